// A lane comes only between the two ends of one connection: who holds the other
// end is proved, whatever the peer says.
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cstdlib>
#include <functional>
#include <random>
#include <string>
#include <thread>

#include "lib/base/config.h"
#include "lib/lane/shm/bells.h"
#include "lib/rendezvous/peer_process.h"
#include "lib/rendezvous/socket_diag.h"
#include "lib/rendezvous/traffic.h"
#include "lib/rendezvous/wire.h"
#include "tests/rendezvous/refuse_netlink.h"
#include "tests/rendezvous/util.h"

namespace rcsock::rendezvous {
namespace {

using base::Reason;

// No user of the host's has it.
constexpr uid_t kUser = 23456;

void Say(int from, int to, std::size_t bytes) {
  const std::string text(bytes, 'x');
  ASSERT_EQ(::send(from, text.data(), bytes, 0), static_cast<ssize_t>(bytes));
  std::string got(bytes, '\0');
  ASSERT_EQ(::recv(to, got.data(), bytes, MSG_WAITALL),
            static_cast<ssize_t>(bytes));
}

// --- Which socket is the other end

TEST(SocketDiag, FindsTheOtherEnd) {
  for (const bool refused : {false, true}) {
    std::thread([refused] {
      ASSERT_TRUE(!refused || RefuseNetlink());
      SocketDiag diag;
      const TcpPair pair = MakeTcpPair();
      const Tuple tuple = TupleOf(pair.connector);
      EXPECT_EQ(
          diag.OtherEnd(pair.connector, tuple, stream::Role::kConnector, 0),
          SocketInode(pair.acceptor));
      EXPECT_EQ(diag.OtherEnd(pair.acceptor, tuple, stream::Role::kAcceptor, 0),
                SocketInode(pair.connector));
      EXPECT_NE(SocketInode(pair.acceptor), 0u);
      // A listener at that port is not the other end.
      sockaddr_in address{};
      const int listener = Listen(&address);
      const int alone = Connect(address);
      const int accepted = ::accept(listener, nullptr, nullptr);
      const Tuple gone = TupleOf(alone);
      const linger reset{1, 0};
      ::setsockopt(accepted, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
      ::close(accepted);
      EXPECT_EQ(diag.OtherEnd(alone, gone, stream::Role::kConnector, 0), 0u);
      ::close(alone);
      ::close(listener);
      CloseBoth(pair);
    }).join();
  }
}

TEST(SocketDiag, FindsTheOtherEndOfIpv6) {
  for (const bool refused : {false, true}) {
    std::thread([refused] {
      ASSERT_TRUE(!refused || RefuseNetlink());
      const int listener = ::socket(AF_INET6, SOCK_STREAM, 0);
      sockaddr_in6 any{};
      any.sin6_family = AF_INET6;
      socklen_t length = sizeof any;
      ASSERT_EQ(::bind(listener, reinterpret_cast<sockaddr*>(&any), length), 0);
      ASSERT_EQ(::listen(listener, 2), 0);
      ::getsockname(listener, reinterpret_cast<sockaddr*>(&any), &length);
      // By a mapped address the one end is of IPv4, the other of IPv6.
      sockaddr_in v4{};
      v4.sin_family = AF_INET;
      v4.sin_port = any.sin6_port;
      v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      sockaddr_in6 v6 = any;
      v6.sin6_addr = in6addr_loopback;
      for (const auto& [family, address, size] :
           {std::tuple{AF_INET, reinterpret_cast<sockaddr*>(&v4),
                       socklen_t{sizeof v4}},
            std::tuple{AF_INET6, reinterpret_cast<sockaddr*>(&v6),
                       socklen_t{sizeof v6}}}) {
        const int near = ::socket(family, SOCK_STREAM, 0);
        ASSERT_EQ(::connect(near, address, size), 0);
        const int far = ::accept(listener, nullptr, nullptr);
        const Tuple tuple = TupleOf(near);
        SocketDiag diag;
        EXPECT_EQ(diag.OtherEnd(near, tuple, stream::Role::kConnector, 0),
                  SocketInode(far));
        EXPECT_EQ(diag.OtherEnd(far, tuple, stream::Role::kAcceptor, 0),
                  SocketInode(near));
        ::close(near);
        ::close(far);
      }
      ::close(listener);
    }).join();
  }
}

// Two connections with the same four numbers in two network namespaces: the
// one of the other namespace has no other end here.
TEST(SocketDiag, KnowsNoOtherNamespace) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root";
  for (const bool refused : {false, true}) {
    std::thread([refused] {
      const int here = ::open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
      ASSERT_EQ(::unshare(CLONE_NEWNET), 0);
      ASSERT_EQ(std::system("PATH=$PATH:/usr/sbin ip link set lo up"), 0);
      const int far = ::open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
      const auto pair_in = [](int space, sockaddr_in address, int source) {
        EXPECT_EQ(::setns(space, CLONE_NEWNET), 0);
        const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
        const int one = 1;
        ::setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        EXPECT_EQ(::bind(listener, reinterpret_cast<sockaddr*>(&address),
                         sizeof address),
                  0);
        ::listen(listener, 1);
        TcpPair pair;
        pair.connector = ::socket(AF_INET, SOCK_STREAM, 0);
        sockaddr_in from = address;
        from.sin_port = htons(static_cast<std::uint16_t>(source));
        EXPECT_EQ(::bind(pair.connector, reinterpret_cast<sockaddr*>(&from),
                         sizeof from),
                  0);
        EXPECT_EQ(
            ::connect(pair.connector, reinterpret_cast<sockaddr*>(&address),
                      sizeof address),
            0);
        pair.acceptor = ::accept(listener, nullptr, nullptr);
        ::close(listener);
        return pair;
      };
      sockaddr_in address{};
      ::close(Listen(&address));
      sockaddr_in source{};
      ::close(Listen(&source));
      const TcpPair away = pair_in(far, address, ntohs(source.sin_port));
      const TcpPair near = pair_in(here, address, ntohs(source.sin_port));
      ASSERT_TRUE(!refused || RefuseNetlink());
      const Tuple tuple = TupleOf(near.connector);
      ASSERT_EQ(tuple, TupleOf(away.connector));
      SocketDiag diag;
      for (int round = 0; round < 2; ++round) {
        EXPECT_EQ(
            diag.OtherEnd(near.connector, tuple, stream::Role::kConnector, 0),
            SocketInode(near.acceptor));
        EXPECT_EQ(
            diag.OtherEnd(away.connector, tuple, stream::Role::kConnector, 0),
            0u);
        EXPECT_EQ(
            diag.OtherEnd(away.acceptor, tuple, stream::Role::kAcceptor, 0),
            0u);
      }
      CloseBoth(away);
      CloseBoth(near);
      ::close(here);
      ::close(far);
    }).join();
  }
}

TEST(Token, IsASocketsAndOpensNothing) {
  const TcpPair pair = MakeTcpPair();
  const base::UniqueFd token = OpenToken(pair.connector);
  ASSERT_TRUE(token.ok());
  EXPECT_EQ(TokenInode(token.get(), pair.acceptor),
            SocketInode(pair.connector));
  char byte = 'x';
  EXPECT_EQ(::send(token.get(), &byte, 1, 0), -1);
  EXPECT_EQ(::recv(token.get(), &byte, 1, MSG_DONTWAIT), -1);
  EXPECT_EQ(::shutdown(token.get(), SHUT_RDWR), -1);
  int value = 0;
  socklen_t length = sizeof value;
  EXPECT_EQ(::getsockopt(token.get(), SOL_SOCKET, SO_TYPE, &value, &length),
            -1);
  const std::string link = "/proc/self/fd/" + std::to_string(token.get());
  EXPECT_EQ(::open(link.c_str(), O_RDWR), -1);
  // A number that is no socket's any more gives no token: of a file it would
  // open the file.
  const int file = ::open("/proc/self/status", O_RDONLY);
  EXPECT_FALSE(OpenToken(file).ok());
  EXPECT_FALSE(OpenToken(-1).ok());
  // A socket by its name in a file system is none of the kernel's.
  char folder[] = "/tmp/rcsock-proof.XXXXXX";
  ASSERT_NE(::mkdtemp(folder), nullptr);
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  std::snprintf(name.sun_path, sizeof name.sun_path, "%s/s", folder);
  const int bound = ::socket(AF_UNIX, SOCK_STREAM, 0);
  ASSERT_EQ(::bind(bound, reinterpret_cast<sockaddr*>(&name), sizeof name), 0);
  const int path = ::open(name.sun_path, O_PATH);
  ASSERT_GE(path, 0);
  EXPECT_EQ(TokenInode(path, pair.acceptor), 0u);
  ::unlink(name.sun_path);
  ::rmdir(folder);
  ::close(path);
  ::close(bound);
  ::close(file);
  CloseBoth(pair);
}

// --- What the kernel has counted

// Two ends are never taken for two connections', however busy they are.
TEST(Traffic, OfOneConnectionAgrees) {
  const TcpPair pair = MakeTcpPair();
  std::atomic<bool> over{false};
  const auto talk = [&over](int fd, unsigned seed) {
    std::mt19937 random(seed);
    std::string text(100'000, 'x');
    while (!over) {
      ::send(fd, text.data(), random() % 2 ? random() % 100'000 : 10,
             MSG_DONTWAIT);
      ::recv(fd, text.data(), random() % 100'000, MSG_DONTWAIT);
      if (random() % 50 == 0) ::usleep(2000);
    }
  };
  std::thread one(talk, pair.connector, 1);
  std::thread two(talk, pair.acceptor, 2);
  for (int i = 0; i < 20'000; ++i) {
    const int mine = i % 2 ? pair.connector : pair.acceptor;
    const int its = i % 2 ? pair.acceptor : pair.connector;
    const Traffic before = TrafficOf(mine);
    const Traffic theirs = TrafficOf(its);
    const Traffic now = TrafficOf(mine);
    ASSERT_TRUE(CanBeOne(&before, now, theirs)) << i;
    ASSERT_TRUE(CanBeOne(nullptr, now, theirs)) << i;
  }
  over = true;
  one.join();
  two.join();
  CloseBoth(pair);
}

TEST(Traffic, OfTwoConnectionsDiffers) {
  const TcpPair one = MakeTcpPair();
  const TcpPair two = MakeTcpPair();
  const auto same = [&] {
    const Traffic before = TrafficOf(one.connector);
    const Traffic theirs = TrafficOf(two.acceptor);
    const Traffic now = TrafficOf(one.connector);
    return CanBeOne(&before, now, theirs);
  };
  Say(one.connector, one.acceptor, 100);
  Say(one.acceptor, one.connector, 200);
  EXPECT_FALSE(same());
  Say(two.connector, two.acceptor, 100);
  EXPECT_FALSE(same());
  Say(two.acceptor, two.connector, 300);
  EXPECT_FALSE(same());
  // As many bytes each way, but not when the other connection had them.
  Say(one.acceptor, one.connector, 100);
  ::usleep(100'000);
  Say(one.connector, one.acceptor, 50);
  Say(two.connector, two.acceptor, 50);
  ::usleep(100'000);
  Say(two.acceptor, two.connector, 70);
  Say(two.connector, two.acceptor, 70);
  Say(one.connector, one.acceptor, 70);
  Say(one.acceptor, one.connector, 70);
  ::usleep(100'000);
  Say(two.connector, two.acceptor, 1);
  ::usleep(100'000);
  Say(one.connector, one.acceptor, 1);
  EXPECT_FALSE(same());
  CloseBoth(one);
  CloseBoth(two);
}

// --- Who has it

// What a process says that knows a connection by its ports alone, and talks to
// one of its ends.
class Impostor {
 public:
  Impostor(const Tuple& tuple, bool decides, Named named) : tuple_(tuple) {
    fd_ = Knock(tuple, named);
    Hello theirs;
    EXPECT_TRUE(Next(&theirs));
    auto hello = NewMessage<Hello>();
    std::memset(hello.uuid, decides ? 0 : 0xff, sizeof hello.uuid);
    std::memcpy(hello.tuple, &tuple, sizeof hello.tuple);
    hello.role = 1;  // the acceptor
    hello.thread = static_cast<std::uint32_t>(::gettid());
    EXPECT_EQ(SendPacket(fd_, &hello, sizeof hello, nullptr, 0), 0);
    bells_ = lane::shm::Bells::Create();
  }
  ~Impostor() { ::close(fd_); }

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

  // Answers the victim's OPEN with that claim; true if it says READY.
  bool Answer(const Claim& claim, int token) {
    LinkMsg link;
    if (!Next(&link)) return false;
    wants_token_ = link.wants_tokens != 0;
    const auto ack = NewMessage<LinkAck>();
    const int page = bells_->SharePage();
    EXPECT_EQ(SendPacket(fd_, &ack, sizeof ack, &page, 1), 0);
    SegmentMsg segment;
    OpenMsg open;
    if (!Next(&segment) || !Next(&open)) return false;
    auto opened = NewMessage<OpenedMsg>();
    opened.index = open.index;
    opened.epoch = open.epoch;
    opened.claim = claim;
    EXPECT_EQ(SendPacket(fd_, &opened, sizeof opened, &token,
                         wants_token_ && token >= 0 ? 1 : 0),
              0);
    ReadyMsg ready;
    return Next(&ready);
  }

  // Opens a stream with that claim; true if the victim agrees to it.
  bool Open(const Claim& claim, int token) {
    memory_ = lane::shm::Link::Create();
    const auto link = NewMessage<LinkMsg>();
    const int fds[] = {memory_->page_fd(), bells_->SharePage()};
    EXPECT_EQ(SendPacket(fd_, &link, sizeof link, fds, 2), 0);
    LinkAck ack;
    if (!Next(&ack)) return false;
    wants_token_ = ack.wants_tokens != 0;
    auto segment = NewMessage<SegmentMsg>();
    segment.number = 0;
    const base::UniqueFd rings = memory_->AddSegment();
    const int ring_fd = rings.get();
    EXPECT_EQ(SendPacket(fd_, &segment, sizeof segment, &ring_fd, 1), 0);
    auto open = NewMessage<OpenMsg>();
    open.index = 0;
    open.epoch = 7;
    open.role = 1;
    std::memcpy(open.tuple, &tuple_, sizeof open.tuple);
    open.claim = claim;
    EXPECT_EQ(SendPacket(fd_, &open, sizeof open, &token,
                         wants_token_ && token >= 0 ? 1 : 0),
              0);
    OpenedMsg opened;
    return Next(&opened);
  }
  bool wants_token() const { return wants_token_; }

 private:
  const Tuple tuple_;
  int fd_;
  Packet packet_;
  bool wants_token_ = false;
  std::shared_ptr<lane::shm::Link> memory_;
  std::unique_ptr<lane::shm::Bells> bells_;
};

Claim ClaimOf(int number) {
  Claim claim{};
  claim.number = static_cast<std::uint32_t>(number);
  claim.traffic.acked = UINT64_MAX;  // "not counted": nothing to compare
  return claim;
}

// An impostor that does `act`, as a process that can be seen into or not, and
// what comes of it for the stream's search.  `inherits`: it has the other end.
void TryImpostor(bool visible, bool inherits, bool decides, int (*token)(int),
                 bool lane, Named named = Named::kByKernel) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root";
  const TcpPair pair = MakeTcpPair();
  const Tuple tuple = TupleOf(pair.connector);
  const pid_t victim = Spawn([&] {
    ::close(pair.acceptor);
    ASSERT_EQ(::setresuid(kUser, kUser, kUser), 0);
    auto c = ConnectorSeeker(pair.connector);
    const bool met = c->Seek(GetConductor());
    // An impostor that may have it does not take part to the end.
    EXPECT_FALSE(met);
    EXPECT_EQ(c->failed == Reason::kNotProven, !lane)
        << base::ReasonKey(c->failed);
    char byte;
    EXPECT_EQ(::recv(pair.connector, &byte, 1, MSG_DONTWAIT), -1);
  });
  const pid_t impostor = Spawn([&] {
    const int token_fd = token == nullptr ? -1 : token(pair.acceptor);
    if (!inherits) ::close(pair.acceptor);
    ::close(pair.connector);
    ASSERT_EQ(::setresuid(kUser, kUser, kUser), 0);
    ASSERT_EQ(::prctl(PR_SET_DUMPABLE, visible ? 1 : 0), 0);
    Impostor rogue(tuple, decides, named);
    // The other end's number is right: it is easy to guess.
    const Claim claim = ClaimOf(pair.acceptor);
    const bool got =
        decides ? rogue.Open(claim, token_fd) : rogue.Answer(claim, token_fd);
    EXPECT_EQ(rogue.wants_token(), !visible);
    // (Whoever answers says READY once the stream is adopted, and that is.)
    EXPECT_EQ(got, lane);
  });
  ExpectSuccess(impostor);
  ExpectSuccess(victim);
  // Nobody has said anything to the plain end.
  char byte;
  EXPECT_EQ(::recv(pair.acceptor, &byte, 1, MSG_DONTWAIT), -1);
  CloseBoth(pair);
}

int OtherSocketsToken(int) { return MakeTcpPair().acceptor; }
int FilesToken(int) { return ::open("/proc/self/status", O_RDONLY); }
int TrueToken(int fd) { return OpenToken(fd).release(); }

TEST(Impostor, WhoseDescriptorsAreSeen) {
  for (const bool decides : {false, true}) {
    TryImpostor(true, false, decides, nullptr, false);
  }
}
TEST(Impostor, WhoseDescriptorsAreNotSeen) {
  for (const bool decides : {false, true}) {
    for (const auto token : {static_cast<int (*)(int)>(nullptr),
                             &OtherSocketsToken, &FilesToken}) {
      TryImpostor(false, false, decides, token, false);
    }
  }
}
// The same with the other end, so that it is the proof that was missing.
TEST(Impostor, ThatHasTheOtherEndIsNone) {
  for (const bool decides : {false, true}) {
    TryImpostor(true, true, decides, nullptr, true);
  }
}
// It can only be told apart by what it knows of the connection: such a lane is
// not authenticated (Proof.OfWhomCannotBeSeen).
TEST(Impostor, WithATokenThatItWasGiven) {
  for (const bool decides : {false, true}) {
    TryImpostor(false, true, decides, &TrueToken, true);
    // Without a name of its own its channel could be confused with another.
    TryImpostor(false, true, decides, &TrueToken, false, Named::kNot);
    TryImpostor(false, true, decides, &TrueToken, false, Named::kByPath);
  }
}

void MeetAndTell(const TcpPair& pair, bool first_visible, bool second_visible,
                 bool authenticated) {
  const auto end = [&](int fd, stream::Role role, bool visible) {
    return Spawn([=] {
      ::close(role == stream::Role::kConnector ? pair.acceptor
                                               : pair.connector);
      ASSERT_EQ(::setresuid(kUser, kUser, kUser), 0);
      ASSERT_EQ(::prctl(PR_SET_DUMPABLE, visible ? 1 : 0), 0);
      auto seeker = std::make_shared<TestSeeker>(fd, role);
      ASSERT_TRUE(seeker->Meet(GetConductor()))
          << base::ReasonKey(seeker->failed);
      EXPECT_EQ(seeker->authenticated, authenticated);
      ExchangeNonces(seeker.get());
    });
  };
  const pid_t one =
      end(pair.connector, stream::Role::kConnector, first_visible);
  const pid_t two = end(pair.acceptor, stream::Role::kAcceptor, second_visible);
  ExpectSuccess(one);
  ExpectSuccess(two);
}

// Both ends are of one mind, whichever of them can see the other.
TEST(Proof, OfWhomCannotBeSeen) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root";
  for (int kind = 0; kind < 4; ++kind) {
    const TcpPair pair = MakeTcpPair();
    MeetAndTell(pair, (kind & 1) != 0, (kind & 2) != 0, kind == 3);
    CloseBoth(pair);
  }
}

// A process of another user namespace may list our descriptors, and not read
// what they are.
TEST(Proof, OfWhomIsInAnotherUserNamespace) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root";
  const TcpPair pair = MakeTcpPair();
  const auto end = [&](int fd, stream::Role role, bool apart) {
    return Spawn([=] {
      ASSERT_EQ(::setresuid(kUser, kUser, kUser), 0);
      ASSERT_EQ(::prctl(PR_SET_DUMPABLE, 1), 0);
      if (apart) {
        ASSERT_EQ(::unshare(CLONE_NEWUSER), 0);
        const int map = ::open("/proc/self/uid_map", O_WRONLY);
        const std::string line =
            std::to_string(kUser) + " " + std::to_string(kUser) + " 1";
        ASSERT_EQ(::write(map, line.data(), line.size()),
                  static_cast<ssize_t>(line.size()));
        ::close(map);
      }
      auto seeker = std::make_shared<TestSeeker>(fd, role);
      ASSERT_TRUE(seeker->Meet(GetConductor()))
          << base::ReasonKey(seeker->failed);
      EXPECT_FALSE(seeker->authenticated);
      ExchangeNonces(seeker.get());
    });
  };
  const pid_t one = end(pair.connector, stream::Role::kConnector, true);
  const pid_t two = end(pair.acceptor, stream::Role::kAcceptor, false);
  ExpectSuccess(one);
  ExpectSuccess(two);
  CloseBoth(pair);
}

// Two processes meet by a connection that has its other end in a third.
TEST(Proof, OfTwinsByAddressTranslation) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root";
  ExpectSuccess(Spawn([] {
    ASSERT_EQ(::unshare(CLONE_NEWNET), 0);
    ASSERT_EQ(std::system("PATH=$PATH:/usr/sbin ip link set lo up"), 0);
    if (std::system(
            "PATH=$PATH:/usr/sbin nft -f - 2>/dev/null <<'END'\n"
            "table ip twins {\n"
            " chain out { type nat hook output priority -100;\n"
            "  ip saddr 127.0.0.1 ip daddr 127.0.0.2 tcp dport 2000 dnat to "
            "127.0.0.3:3000\n }\n"
            " chain post { type nat hook postrouting priority 100;\n"
            "  ip saddr 127.0.0.4 ip daddr 127.0.0.2 ip protocol tcp snat to "
            "127.0.0.1:1000\n"
            " }\n}\nEND\n") != 0) {
      std::puts("not tried: no nft, or no address translation here");
      return;
    }
    const auto at = [](const char* address, std::uint16_t port) {
      sockaddr_in name{};
      name.sin_family = AF_INET;
      ::inet_pton(AF_INET, address, &name.sin_addr);
      name.sin_port = htons(port);
      return name;
    };
    const auto pair_of = [&](sockaddr_in listens, sockaddr_in from,
                             sockaddr_in to) {
      const int listener = Listen(&listens);
      TcpPair pair;
      pair.connector = ::socket(AF_INET, SOCK_STREAM, 0);
      EXPECT_EQ(::bind(pair.connector, reinterpret_cast<sockaddr*>(&from),
                       sizeof from),
                0);
      EXPECT_EQ(::connect(pair.connector, reinterpret_cast<sockaddr*>(&to),
                          sizeof to),
                0);
      pair.acceptor = ::accept(listener, nullptr, nullptr);
      ::close(listener);
      return pair;
    };
    const TcpPair twin = pair_of(at("127.0.0.2", 2000), at("127.0.0.4", 2500),
                                 at("127.0.0.2", 2000));
    const TcpPair one = pair_of(at("127.0.0.3", 3000), at("127.0.0.1", 1000),
                                at("127.0.0.2", 2000));
    // What address translation makes of them.
    sockaddr_in name{};
    socklen_t length = sizeof name;
    ::getpeername(twin.acceptor, reinterpret_cast<sockaddr*>(&name), &length);
    ASSERT_EQ(ntohs(name.sin_port), 1000);
    Say(one.connector, one.acceptor, 100);
    Say(twin.connector, twin.acceptor, 104);
    Conductor* conductor = GetConductor();
    auto c = ConnectorSeeker(one.connector);
    auto s = AcceptorSeeker(twin.acceptor);
    c->Start(conductor);
    s->Start(conductor);
    EXPECT_FALSE(c->Wait());
    EXPECT_FALSE(s->Wait());
    EXPECT_TRUE(c->failed == Reason::kNotProven ||
                s->failed == Reason::kNotProven);
    CloseBoth(twin);
    CloseBoth(one);
  }));
}

}  // namespace
}  // namespace rcsock::rendezvous
