#ifndef RCSOCK_TESTS_RENDEZVOUS_UTIL_H_
#define RCSOCK_TESTS_RENDEZVOUS_UTIL_H_

#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "lib/rendezvous/address.h"
#include "lib/rendezvous/rendezvous.h"

namespace rcsock::rendezvous {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// No process of a test outlives this.
constexpr unsigned kTestSeconds = 50;

struct TcpPair {
  int connector = -1;
  int acceptor = -1;
};

inline int Listen(sockaddr_in* address, bool reuse_port = false) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int one = 1;
  if (reuse_port) {
    ::setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &one, sizeof one);
  }
  if (address->sin_family == 0) {
    address->sin_family = AF_INET;
    address->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  }
  socklen_t length = sizeof *address;
  if (::bind(fd, reinterpret_cast<sockaddr*>(address), length) != 0 ||
      ::listen(fd, 4096) != 0 ||
      ::getsockname(fd, reinterpret_cast<sockaddr*>(address), &length) != 0) {
    ADD_FAILURE() << "listen: " << std::strerror(errno);
  }
  return fd;
}

inline int Connect(const sockaddr_in& address) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (::connect(fd, reinterpret_cast<const sockaddr*>(&address),
                sizeof address) != 0) {
    ADD_FAILURE() << "connect: " << std::strerror(errno);
  }
  return fd;
}

inline std::vector<TcpPair> MakeTcpPairs(int count) {
  sockaddr_in address{};
  const int listener = Listen(&address);
  std::vector<TcpPair> pairs;
  for (int i = 0; i < count; ++i) {
    TcpPair pair;
    pair.connector = Connect(address);
    pair.acceptor = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    pairs.push_back(pair);
  }
  ::close(listener);
  return pairs;
}

inline TcpPair MakeTcpPair() { return MakeTcpPairs(1)[0]; }

inline void CloseBoth(const TcpPair& pair) {
  ::close(pair.connector);
  ::close(pair.acceptor);
}

// Waits for a byte-wide rendezvous between two processes of a test.
class Barrier {
 public:
  Barrier() {
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds_), 0);
  }
  // `side` 0 or 1; false if the other has died.
  bool Meet(int side) {
    if (other_open_) {
      ::close(fds_[1 - side]);
      other_open_ = false;
    }
    char byte = 1;
    return ::send(fds_[side], &byte, 1, MSG_NOSIGNAL) == 1 &&
           ::recv(fds_[side], &byte, 1, 0) == 1;
  }

 private:
  int fds_[2];
  bool other_open_ = true;
};

// Runs `body` in a process of its own; its expectations count.
inline pid_t Spawn(const std::function<void()>& body) {
  std::fflush(nullptr);
  const pid_t pid = ::fork();
  if (pid != 0) return pid;
  ::alarm(kTestSeconds);
  body();
  std::fflush(nullptr);
  ::_exit(::testing::Test::HasFailure() ? 1 : 0);
}

// The process ended by itself, and none of its expectations failed.
inline void ExpectSuccess(pid_t pid) {
  int status = 0;
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0)
      << "status " << status;
}

inline void ExpectKilled(pid_t pid) {
  int status = 0;
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
      << "status " << status;
}

class TestSeeker : public Seeker,
                   public std::enable_shared_from_this<TestSeeker> {
 public:
  TestSeeker(int fd, stream::Role role) : fd_(fd), role_(role) {}

  stream::Role role() const override { return role_; }
  bool Names(sockaddr_storage* local, sockaddr_storage* peer) override {
    return NamesOf(fd_, local, peer);
  }
  int Descriptor() override { return fd_; }
  void Adopt() override {
    if (on_adopt) on_adopt();
    if (never_adopt) return;
    Conductor::IfRunning()->Adopted(this);
  }
  void OnLink(std::shared_ptr<lane::shm::Link> link, int index) override {
    std::lock_guard lock(mutex_);
    link_ = std::move(link);
    index_ = index;
  }
  void LaneOpen(std::unique_ptr<lane::Lane> opened, std::uint32_t its_epoch,
                const stream::Nonce& my_nonce, const stream::Nonce& peers_nonce,
                bool is_authenticated) override {
    if (on_open) on_open();
    std::lock_guard lock(mutex_);
    lane = std::move(opened);
    epoch = its_epoch;
    mine = my_nonce;
    peers = peers_nonce;
    authenticated = is_authenticated;
    ++answers_;
    changed_.notify_all();
  }
  void LinkLost(base::Reason reason) override {
    std::lock_guard lock(mutex_);
    lost = reason;
    changed_.notify_all();
  }
  void SeekFailed(base::Reason why, bool is_final) override {
    std::lock_guard lock(mutex_);
    failed = why;
    final = is_final;
    ++answers_;
    changed_.notify_all();
  }

  // Starts a search and waits for its end.
  bool Seek(Conductor* conductor) {
    Start(conductor);
    return Wait();
  }
  // The same, again while the other process has not come so far: on a busy
  // machine the two may be more than a search apart.
  bool Meet(Conductor* conductor) {
    const auto limit = Clock::now() + milliseconds(20'000);
    while (!Seek(conductor)) {
      const bool missed = failed == base::Reason::kPeerPlain ||
                          failed == base::Reason::kTimeout;
      if (!missed || Clock::now() > limit) return false;
    }
    return true;
  }
  void Start(Conductor* conductor) {
    {
      std::lock_guard lock(mutex_);
      answers_ = 0;
      failed = base::Reason::kNone;
    }
    conductor->Seek(shared_from_this());
  }
  // True if a lane came.
  bool Wait(milliseconds limit = milliseconds(20'000)) {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, limit, [this] { return answers_ > 0; })) {
      ADD_FAILURE() << "no answer";
    }
    EXPECT_LE(answers_, 1);
    return lane != nullptr;
  }
  bool WaitLost() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, milliseconds(20'000),
                             [this] { return lost != base::Reason::kNone; });
  }
  int answers() {
    std::lock_guard lock(mutex_);
    return answers_;
  }
  const std::shared_ptr<lane::shm::Link>& link() const { return link_; }
  int index() const { return index_; }
  int fd() const { return fd_; }

  bool never_adopt = false;
  std::function<void()> on_adopt;
  std::function<void()> on_open;
  std::unique_ptr<lane::Lane> lane;
  std::uint32_t epoch = 0;
  stream::Nonce mine{};
  stream::Nonce peers{};
  bool authenticated = false;
  base::Reason failed = base::Reason::kNone;
  base::Reason lost = base::Reason::kNone;
  bool final = false;

 private:
  const int fd_;
  const stream::Role role_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int answers_ = 0;
  std::shared_ptr<lane::shm::Link> link_;
  int index_ = -1;
};

inline std::shared_ptr<TestSeeker> ConnectorSeeker(int fd) {
  return std::make_shared<TestSeeker>(fd, stream::Role::kConnector);
}
inline std::shared_ptr<TestSeeker> AcceptorSeeker(int fd) {
  return std::make_shared<TestSeeker>(fd, stream::Role::kAcceptor);
}

inline Conductor* GetConductor() {
  base::Reason why;
  Conductor* conductor = Conductor::Get(&why);
  if (conductor == nullptr) {
    ADD_FAILURE() << "no conductor: " << base::ReasonKey(why);
    ::_exit(1);
  }
  return conductor;
}

inline void SendAll(lane::Lane* lane, const void* bytes, std::size_t length) {
  iovec iov{const_cast<void*>(bytes), length};
  std::size_t done = 0;
  const auto limit = Clock::now() + milliseconds(20'000);
  while (done < length) {
    if (lane->source() != nullptr) lane->source()->Drain();
    done += lane->Post(&iov, 1, done, length - done);
    if (Clock::now() > limit) {
      ADD_FAILURE() << "the peer does not read";
      return;
    }
  }
}

inline std::string ReceiveAll(lane::Lane* lane, std::size_t length) {
  std::string got(length, '\0');
  iovec iov{got.data(), length};
  std::size_t done = 0;
  const auto limit = Clock::now() + milliseconds(20'000);
  while (done < length) {
    if (lane->source() != nullptr) lane->source()->Drain();
    if (lane->Peek() == lane::Head::kData) {
      done += lane->Read(&iov, 1, done, length - done, false);
    } else if (Clock::now() > limit) {
      ADD_FAILURE() << "got " << done << " of " << length << " bytes";
      break;
    } else {
      ::usleep(0);
    }
  }
  return got;
}

// What each end does with its new lane: the nonces must be each other's, and
// bytes flow both ways.
inline void ExchangeNonces(TestSeeker* seeker) {
  SendAll(seeker->lane.get(), seeker->mine.data(), seeker->mine.size());
  const std::string got = ReceiveAll(seeker->lane.get(), 16);
  EXPECT_EQ(std::memcmp(got.data(), seeker->peers.data(), 16), 0);
}

// Of two ends that have met.
inline void ExpectAgree(const TestSeeker& a, const TestSeeker& b) {
  EXPECT_EQ(a.epoch, b.epoch);
  EXPECT_EQ(a.mine, b.peers);
  EXPECT_EQ(b.mine, a.peers);
}
inline void SayThereAndBack(TestSeeker* a, TestSeeker* b) {
  SendAll(a->lane.get(), "there", 5);
  EXPECT_EQ(ReceiveAll(b->lane.get(), 5), "there");
  SendAll(b->lane.get(), "back", 4);
  EXPECT_EQ(ReceiveAll(a->lane.get(), 4), "back");
}

// Both ends in this process, the first one first.
inline bool Met(Conductor* conductor, const std::shared_ptr<TestSeeker>& first,
                const std::shared_ptr<TestSeeker>& second) {
  first->Start(conductor);
  second->Start(conductor);
  for (const auto& end : {first, second}) {
    if (end->Wait()) continue;
    ADD_FAILURE() << base::ReasonKey(end->failed);
    return false;
  }
  return true;
}

// One end in a process of its own: opens a lane and uses it.
inline pid_t SpawnEnd(int fd, stream::Role role, Barrier* barrier,
                      void (*use)(TestSeeker*)) {
  return Spawn([=] {
    auto seeker = std::make_shared<TestSeeker>(fd, role);
    if (!seeker->Meet(GetConductor())) {
      ADD_FAILURE() << base::ReasonKey(seeker->failed);
      return;
    }
    use(seeker.get());
    EXPECT_TRUE(barrier->Meet(static_cast<int>(role)));
  });
}
// The same of both, behind which nothing was said on TCP itself.
inline void MeetInTwoProcesses(const TcpPair& pair, void (*use)(TestSeeker*)) {
  Barrier barrier;
  const pid_t a =
      SpawnEnd(pair.connector, stream::Role::kConnector, &barrier, use);
  const pid_t b =
      SpawnEnd(pair.acceptor, stream::Role::kAcceptor, &barrier, use);
  ExpectSuccess(a);
  ExpectSuccess(b);
  for (const int fd : {pair.connector, pair.acceptor}) {
    char byte;
    EXPECT_EQ(::recv(fd, &byte, 1, MSG_DONTWAIT), -1);
  }
  ::close(pair.connector);
  ::close(pair.acceptor);
}

// Descriptor number -> what it is.
inline std::map<int, std::string> OpenFds() {
  std::map<int, std::string> fds;
  DIR* dir = ::opendir("/proc/self/fd");
  while (const dirent* entry = ::readdir(dir)) {
    if (entry->d_name[0] == '.') continue;
    const int fd = std::atoi(entry->d_name);
    if (fd == ::dirfd(dir)) continue;
    char target[256];
    const std::string path = std::string("/proc/self/fd/") + entry->d_name;
    const ssize_t n = ::readlink(path.c_str(), target, sizeof target);
    fds[fd] = std::string(target, n > 0 ? static_cast<std::size_t>(n) : 0);
  }
  ::closedir(dir);
  return fds;
}

// Runs on the conductor after all that was posted before.
inline void Drain(Conductor* conductor) {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  conductor->Post([&] {
    std::lock_guard lock(mutex);
    done = true;
    changed.notify_all();
  });
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return done; });
}

template <typename Condition>
bool Eventually(Condition condition, int limit_ms = 10'000) {
  const auto limit = Clock::now() + milliseconds(limit_ms);
  while (!condition()) {
    if (Clock::now() > limit) return false;
    ::usleep(1000);
  }
  return true;
}

// Where the ends of a connection meet.
inline sockaddr_un NameOf(int fd, stream::Role role, socklen_t* length) {
  sockaddr_storage local;
  sockaddr_storage peer;
  EXPECT_TRUE(TestSeeker(fd, role).Names(&local, &peer));
  Address local_address;
  Address peer_address;
  std::uint16_t local_port;
  std::uint16_t peer_port;
  EXPECT_TRUE(Normalise(local, &local_address, &local_port));
  EXPECT_TRUE(Normalise(peer, &peer_address, &peer_port));
  sockaddr_un name;
  *length = MeetingName(
      MakeTuple(role, local_address, local_port, peer_address, peer_port),
      &name);
  return name;
}

// Takes a name and answers nobody.
inline int Squat(int connector_fd) {
  socklen_t length;
  const sockaddr_un name =
      NameOf(connector_fd, stream::Role::kConnector, &length);
  const int fd = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  EXPECT_EQ(::bind(fd, reinterpret_cast<const sockaddr*>(&name), length), 0);
  EXPECT_EQ(::listen(fd, 5), 0);
  return fd;
}

inline Tuple TupleOf(int connector_fd) {
  sockaddr_storage local;
  sockaddr_storage peer;
  EXPECT_TRUE(
      TestSeeker(connector_fd, stream::Role::kConnector).Names(&local, &peer));
  Address local_address;
  Address peer_address;
  std::uint16_t local_port;
  std::uint16_t peer_port;
  Normalise(local, &local_address, &local_port);
  Normalise(peer, &peer_address, &peer_port);
  return MakeTuple(stream::Role::kConnector, local_address, local_port,
                   peer_address, peer_port);
}

// A name of the kernel's, as processes under rcsock have it; or one in the file
// system, which can be given again.
enum class Named { kNot, kByKernel, kByPath };

// Knocks at the name of a binder, as any process of this uid can.
inline int Knock(const Tuple& tuple, Named named = Named::kNot) {
  sockaddr_un name;
  const socklen_t length = MeetingName(tuple, &name);
  const int fd = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  const sockaddr_un any{AF_UNIX, {}};
  if (named == Named::kByPath) {
    const std::string path = "/tmp/rcsock" + std::to_string(::getpid());
    sockaddr_un at{AF_UNIX, {}};
    EXPECT_LT(path.size(), sizeof at.sun_path);
    path.copy(at.sun_path, sizeof at.sun_path - 1);
    ::unlink(path.c_str());
    EXPECT_EQ(::bind(fd, reinterpret_cast<const sockaddr*>(&at), sizeof at), 0);
    ::unlink(path.c_str());
  } else if (named == Named::kByKernel) {
    EXPECT_EQ(::bind(fd, reinterpret_cast<const sockaddr*>(&any),
                     sizeof any.sun_family),
              0);
  }
  EXPECT_TRUE(Eventually([&] {
    return ::connect(fd, reinterpret_cast<const sockaddr*>(&name), length) == 0;
  }));
  return fd;
}

}  // namespace rcsock::rendezvous

#endif  // RCSOCK_TESTS_RENDEZVOUS_UTIL_H_
