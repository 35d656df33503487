// How ends of two network namespaces meet in a directory, and who does not get
// a lane there.
#include <sched.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "lib/base/config.h"
#include "lib/lane/shm/bells.h"
#include "lib/rendezvous/meet_directory.h"
#include "lib/rendezvous/socket_diag.h"
#include "lib/rendezvous/traffic.h"
#include "lib/rendezvous/wire.h"
#include "lib/rendezvous/witness.h"
#include "tests/rendezvous/util.h"

namespace rcsock::rendezvous {
namespace {

constexpr auto kConnector = stream::Role::kConnector;
constexpr auto kAcceptor = stream::Role::kAcceptor;

// A directory to meet in, which the configuration names.
class Meeting : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NE(::mkdtemp(folder_), nullptr);
    ::chmod(folder_, 01777);
    ::setenv("RCSOCK_MEET_DIR", folder_, 1);
    base::LoadConfig();
  }
  void TearDown() override {
    ::unsetenv("RCSOCK_MEET_DIR");
    base::LoadConfig();
    EXPECT_EQ(Names(), 0);
    std::filesystem::remove_all(folder_);
  }
  int Names() const {
    int count = 0;
    DIR* dir = ::opendir(folder_);
    while (const dirent* entry = ::readdir(dir)) {
      if (entry->d_name[0] != '.') ++count;
    }
    ::closedir(dir);
    return count;
  }
  std::string Path(const Tuple& half, int place) const {
    std::string path = std::string(folder_) + "/rcsock-1-";
    char hex[8];
    for (const std::uint8_t byte : half.c_addr) {
      std::snprintf(hex, sizeof hex, "%02x", byte);
      path += hex;
    }
    std::snprintf(hex, sizeof hex, "%04x", half.c_port);
    return path + hex + "-" + std::to_string(place);
  }

  char folder_[32] = "/tmp/rcsock-far.XXXXXX";
};

int NewSocket() {
  return ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

Tuple SomeHalf() {
  Tuple half{};
  half.c_addr[15] = 7;
  half.c_port = 4321;
  return half;
}

// --- The directory

TEST_F(Meeting, NameLeadsToTheListener) {
  const Tuple half = SomeHalf();
  const int listener = NewSocket();
  EXPECT_FALSE(meet_directory::Find(half, 0).ok());
  ASSERT_EQ(meet_directory::Publish(listener, half, 4), 0);
  EXPECT_EQ(Names(), 1);
  const base::UniqueFd found = meet_directory::Find(half, 0);
  ASSERT_TRUE(found.ok());
  const int caller = NewSocket();
  EXPECT_EQ(meet_directory::Call(caller, found.get()), 0);
  EXPECT_GE(::accept(listener, nullptr, nullptr), 0);
  // A second one of this half has a place of its own.
  const int twin = NewSocket();
  EXPECT_EQ(meet_directory::Publish(twin, half, 4), 1);
  meet_directory::Withdraw(half, 0);
  meet_directory::Withdraw(half, 1);
  ::close(caller);
  ::close(twin);
  ::close(listener);
}

TEST_F(Meeting, NamesOfTheDeadGiveWay) {
  const Tuple half = SomeHalf();
  const int dead = NewSocket();
  ASSERT_EQ(meet_directory::Publish(dead, half, 4), 0);
  ::close(dead);
  std::ofstream(Path(half, 1)) << "no socket";
  EXPECT_EQ(Names(), 2);
  const int alive = NewSocket();
  EXPECT_EQ(meet_directory::Publish(alive, half, 4), 0);
  // The file of the second place goes only if its place is wanted.
  const int second = NewSocket();
  EXPECT_EQ(meet_directory::Publish(second, half, 4), 1);
  for (const int place : {0, 1}) meet_directory::Withdraw(half, place);
  ::close(alive);
  ::close(second);
}

TEST_F(Meeting, WhatIsNoSocketIsNotCalled) {
  const Tuple half = SomeHalf();
  const std::string elsewhere = std::string(folder_) + "/elsewhere";
  const int other = NewSocket();
  sockaddr_un name{AF_UNIX, {}};
  elsewhere.copy(name.sun_path, sizeof name.sun_path - 1);
  ASSERT_EQ(::bind(other, reinterpret_cast<sockaddr*>(&name), sizeof name), 0);
  ASSERT_EQ(::listen(other, 1), 0);
  // A symbolic link may lead to any service of this host.
  ASSERT_EQ(::symlink(elsewhere.c_str(), Path(half, 0).c_str()), 0);
  ASSERT_EQ(::mkfifo(Path(half, 1).c_str(), 0666), 0);
  ASSERT_EQ(::mkdir(Path(half, 2).c_str(), 0777), 0);
  for (const int place : {0, 1, 2, 3}) {
    EXPECT_FALSE(meet_directory::Find(half, place).ok()) << place;
  }
  const int listener = NewSocket();
  const int place = meet_directory::Publish(listener, half, 1);
  EXPECT_GE(place, 0);
  meet_directory::Withdraw(half, place);
  for (const int one : {0, 1}) ::unlink(Path(half, one).c_str());
  ::rmdir(Path(half, 2).c_str());
  ::unlink(elsewhere.c_str());
  ::close(listener);
  ::close(other);
}

TEST_F(Meeting, NeedsADirectoryOfThisHost) {
  EXPECT_EQ(meet_directory::TryOut(), 0);
  const std::string link = std::string(folder_) + "/link";
  ASSERT_EQ(::symlink(folder_, link.c_str()), 0);
  for (const std::string& path : {link, std::string(folder_) + "/missing",
                                  std::string("/proc/version")}) {
    ::setenv("RCSOCK_MEET_DIR", path.c_str(), 1);
    base::LoadConfig();
    EXPECT_NE(meet_directory::TryOut(), 0) << path;
  }
  ::setenv("RCSOCK_MEET_DIR", "tmp", 1);
  base::LoadConfig();
  EXPECT_FALSE(meet_directory::Given());
  ::unlink(link.c_str());
}

// --- The witness

TEST(Witness, TellsOfItsConnectionOnly) {
  const TcpPair pair = MakeTcpPair();
  const TcpPair other = MakeTcpPair();
  const Tuple tuple = TupleOf(pair.connector);
  for (const auto role : {kConnector, kAcceptor}) {
    const int own = role == kConnector ? pair.connector : pair.acceptor;
    const base::UniqueFd witness = OpenWitness(own, tuple, role);
    ASSERT_TRUE(witness.ok());
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(AskWitness(witness.get(), tuple, role), SocketInode(own));
    }
    EXPECT_EQ(AskWitness(witness.get(), TupleOf(other.connector), role), 0u);
    // Nobody can take the limit away.
    const int off = 0;
    EXPECT_EQ(::setsockopt(witness.get(), SOL_SOCKET, SO_DETACH_FILTER, &off,
                           sizeof off),
              -1);
    EXPECT_EQ(AskWitness(own, tuple, role), 0u);
  }
  EXPECT_EQ(AskWitness(-1, tuple, kConnector), 0u);
  const int file = ::open("/proc/self/status", O_RDONLY);
  EXPECT_EQ(AskWitness(file, tuple, kConnector), 0u);
  ::close(file);
  CloseBoth(pair);
  CloseBoth(other);
}

// --- Two namespaces

int UnshareNet() {
  EXPECT_EQ(::unshare(CLONE_NEWNET), 0);
  return ::open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
}

void Ip(const std::string& words) {
  ASSERT_EQ(std::system(("PATH=$PATH:/usr/sbin ip " + words).c_str()), 0)
      << words;
}

// A connection from one namespace to another, made in a thread that is left in
// a third.
struct FarPair {
  int connector_space = -1;
  int acceptor_space = -1;
  int third_space = -1;
  TcpPair ends;
};

FarPair MakeFarPair() {
  FarPair far;
  std::thread([&far] {
    far.connector_space = UnshareNet();
    far.acceptor_space = UnshareNet();
    Ip("link add v0 type veth peer name v1 netns /proc/" +
       std::to_string(::getpid()) + "/fd/" +
       std::to_string(far.connector_space));
    Ip("addr add 10.91.8.1/24 dev v0");
    Ip("link set v0 up");
    sockaddr_in address{};
    address.sin_family = AF_INET;
    ::inet_pton(AF_INET, "10.91.8.1", &address.sin_addr);
    address.sin_port = htons(7000);
    const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ASSERT_EQ(
        ::bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof address),
        0);
    ASSERT_EQ(::listen(listener, 1), 0);
    ASSERT_EQ(::setns(far.connector_space, CLONE_NEWNET), 0);
    Ip("addr add 10.91.8.2/24 dev v1");
    Ip("link set v1 up");
    far.ends.connector = Connect(address);
    far.ends.acceptor = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    ::close(listener);
    far.third_space = UnshareNet();
  }).join();
  return far;
}

void CloseFar(const FarPair& far) {
  CloseBoth(far.ends);
  for (const int fd :
       {far.connector_space, far.acceptor_space, far.third_space}) {
    ::close(fd);
  }
}

TEST_F(Meeting, OfTwoNamespaces) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root";
  const FarPair far = MakeFarPair();
  const auto end = [&](int fd, int space, stream::Role role, uid_t user) {
    return Spawn([=] {
      ASSERT_EQ(::setns(space, CLONE_NEWNET), 0);
      ::close(role == kConnector ? far.ends.acceptor : far.ends.connector);
      ASSERT_EQ(::setresuid(user, user, user), 0);
      auto seeker = std::make_shared<TestSeeker>(fd, role);
      ASSERT_TRUE(seeker->Meet(GetConductor()))
          << base::ReasonKey(seeker->failed);
      // Neither end sees the other's descriptors.
      EXPECT_FALSE(seeker->authenticated);
      ExchangeNonces(seeker.get());
    });
  };
  const pid_t one =
      end(far.ends.connector, far.connector_space, kConnector, 23456);
  const pid_t two =
      end(far.ends.acceptor, far.acceptor_space, kAcceptor, 23457);
  ExpectSuccess(one);
  ExpectSuccess(two);
  CloseFar(far);
}

// What a process of a third namespace says, that knows the connection's names.
class Caller {
 public:
  explicit Caller(const Tuple& tuple) : tuple_(tuple) {
    fd_ = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    const sockaddr_un any{AF_UNIX, {}};
    ::bind(fd_, reinterpret_cast<const sockaddr*>(&any), sizeof any.sun_family);
    EXPECT_TRUE(Eventually([&] {
      const base::UniqueFd name = meet_directory::Find(ClientHalf(tuple), 0);
      return name.ok() && meet_directory::Call(fd_, name.get()) == 0;
    }));
    auto hello = NewMessage<Hello>();
    std::memset(hello.uuid, 0xff, sizeof hello.uuid);  // the victim decides
    std::memcpy(hello.tuple, &tuple_, sizeof hello.tuple);
    hello.role = 1;
    EXPECT_EQ(SendPacket(fd_, &hello, sizeof hello, nullptr, 0), 0);
    bells_ = lane::shm::Bells::Create();
  }
  ~Caller() { ::close(fd_); }

  template <typename Message>
  bool Next(Message* message) {
    Received got = Received::kNothing;
    Eventually([&] {
      packet_ = Packet();
      got = Receive(fd_, &packet_);
      return got != Received::kNothing;
    });
    return got == Received::kPacket && packet_.Read(message);
  }

  // Answers the victim's OPEN.  Returns true if the victim says READY.
  bool Answer(const int* fds, int count) {
    Hello theirs;
    LinkMsg link;
    if (!Next(&theirs) || !Next(&link)) return false;
    EXPECT_EQ(packet_.fd_count, 2) << "eventfds for a stranger";
    const auto ack = NewMessage<LinkAck>();
    const int page = bells_->SharePage();
    EXPECT_EQ(SendPacket(fd_, &ack, sizeof ack, &page, 1), 0);
    SegmentMsg segment;
    OpenMsg open;
    if (!Next(&segment) || !Next(&open)) return false;
    auto opened = NewMessage<OpenedMsg>();
    opened.index = open.index;
    opened.epoch = open.epoch;
    opened.claim.traffic.acked = UINT64_MAX;  // nothing to compare
    EXPECT_EQ(SendPacket(fd_, &opened, sizeof opened, fds, count), 0);
    ReadyMsg ready;
    return Next(&ready);
  }

 private:
  const Tuple tuple_;
  int fd_;
  Packet packet_;
  std::unique_ptr<lane::shm::Bells> bells_;
};

TEST_F(Meeting, NobodyElseGetsTheLane) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root";
  enum { kNothing, kTokenAlone, kOwnToken, kForeignWitness, kFiles, kTrue };
  for (const int what :
       {kNothing, kTokenAlone, kOwnToken, kForeignWitness, kFiles, kTrue}) {
    const FarPair far = MakeFarPair();
    const Tuple tuple = TupleOf(far.ends.connector);
    const pid_t victim = Spawn([&] {
      ASSERT_EQ(::setns(far.connector_space, CLONE_NEWNET), 0);
      auto seeker = ConnectorSeeker(far.ends.connector);
      EXPECT_FALSE(seeker->Seek(GetConductor()));
    });
    const pid_t caller = Spawn([&] {
      // The last one has the other end: it tells that the proof was missing.
      const int space = what == kTrue ? far.acceptor_space : far.third_space;
      ASSERT_EQ(::setns(space, CLONE_NEWNET), 0);
      Caller rogue(tuple);
      base::UniqueFd token;
      base::UniqueFd witness;
      int fds[2];
      int count = 0;
      if (what == kFiles) {
        fds[count++] = ::open("/proc/self/status", O_RDONLY);
        fds[count++] = ::open("/proc/self/status", O_RDONLY);
      } else if (what != kNothing) {
        // A token that its holder has given away.
        const int shown = what == kOwnToken ? NewSocket() : far.ends.acceptor;
        token = OpenToken(shown);
        fds[count++] = token.get();
        if (what != kTokenAlone) {
          // This namespace has no such connection, unless it is the true one.
          const int here = ::socket(AF_INET, SOCK_STREAM, 0);
          witness = OpenWitness(here, tuple, kAcceptor);
          fds[count++] = witness.get();
        }
      }
      EXPECT_EQ(rogue.Answer(fds, count), what == kTrue) << what;
    });
    ExpectSuccess(caller);
    ExpectSuccess(victim);
    char byte;
    EXPECT_EQ(::recv(far.ends.acceptor, &byte, 1, MSG_DONTWAIT), -1);
    CloseFar(far);
  }
}

}  // namespace
}  // namespace rcsock::rendezvous
