// rsocket's names: what Debian's programs do not try.

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <rcsock/rcsock.h>
#include <rcsock/rsocket.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

// In a guest (rdma_test.sh), the device's.
const char* Address() {
  const char* rdma = std::getenv("RDMA_IP");
  return rdma != nullptr ? rdma : "127.0.0.1";
}
bool Rdma() { return std::getenv("RDMA_IP") != nullptr; }

class RsocketTest : public testing::Test {
 protected:
  void Listen(int maps) {
    listener_ = rsocket(AF_INET, SOCK_STREAM, 0);
    address_ = {};
    address_.sin_family = AF_INET;
    address_.sin_addr.s_addr = inet_addr(Address());
    socklen_t size = sizeof address_;
    auto* const name = reinterpret_cast<sockaddr*>(&address_);
    ASSERT_EQ(rbind(listener_, name, size), 0);
    ASSERT_EQ(rlisten(listener_, 5), 0);
    ASSERT_EQ(rgetsockname(listener_, name, &size), 0);
    Allow(listener_, maps);
  }

  static void Allow(int fd, int maps) {
    ASSERT_EQ(rsetsockopt(fd, SOL_RDMA, RDMA_IOMAPSIZE, &maps, sizeof maps), 0);
  }

  void Connect(int maps, int policy = RCS_POLICY_AUTO) {
    Listen(maps);
    ASSERT_EQ(rcs_set_policy(listener_, policy), 0);
    one_ = rsocket(AF_INET, SOCK_STREAM, 0);
    ASSERT_EQ(rcs_set_policy(one_, policy), 0);
    Allow(one_, maps);
    std::thread accept(
        [this] { other_ = raccept(listener_, nullptr, nullptr); });
    const int result =
        rconnect(one_, reinterpret_cast<sockaddr*>(&address_), sizeof address_);
    accept.join();
    ASSERT_EQ(result, 0) << std::strerror(errno);
    ASSERT_GE(other_, 0);
  }

  void Sync() {
    char byte = 's';
    ASSERT_EQ(rsend(other_, &byte, 1, 0), 1);
    ASSERT_EQ(rrecv(one_, &byte, 1, MSG_WAITALL), 1);
    ASSERT_EQ(rsend(one_, &byte, 1, 0), 1);
    ASSERT_EQ(rrecv(other_, &byte, 1, MSG_WAITALL), 1);
  }

  // Until both are on a lane; false after 20 s.
  bool Promoted() {
    const time_t end = std::time(nullptr) + 20;
    const int lane = Rdma() ? RCS_RDMA : RCS_SHM;
    while (rcs_get_lane(one_) != lane || rcs_get_lane(other_) != lane) {
      Sync();
      if (HasFatalFailure() || std::time(nullptr) > end) return false;
    }
    return true;
  }

  std::uint64_t Sent() const {
    rcs_stream_info info{};
    EXPECT_GT(rcs_get_stream_info(one_, &info, sizeof info), 0);
    return info.tx_bytes;
  }

  // Maps `memory` of other_'s at 0, and writes there until the bytes do not go
  // by the stream any more; false after 20 s.
  bool MapUntilDirect(std::vector<unsigned char>* memory) {
    EXPECT_EQ(riomap(other_, memory->data(), memory->size(), PROT_WRITE, 0, 0),
              0);
    const time_t end = std::time(nullptr) + 20;
    std::vector<unsigned char> from(memory->size(), 1);
    do {
      Sync();
      if (HasFatalFailure() || std::time(nullptr) > end) return false;
      const std::uint64_t before = Sent();
      EXPECT_EQ(riowrite(one_, from.data(), from.size(), 0, 0), from.size());
      if (Sent() - before < from.size()) return true;
    } while (true);
  }

  struct Unmapped {
    RsocketTest* test;
    std::vector<unsigned char>* memory;
    ~Unmapped() { riounmap(test->other_, memory->data(), memory->size()); }
  };

  // Writes by `one_` into memory that `other_` has mapped, many times.
  void WriteAndLook() {
    std::vector<unsigned char> memory(100'000), from(memory.size());
    ASSERT_EQ(riomap(other_, memory.data(), memory.size(), PROT_WRITE, 0, 1000),
              1000);
    Sync();
    for (int round = 1; round < 40; ++round) {
      std::fill(from.begin(), from.end(), static_cast<unsigned char>(round));
      ASSERT_EQ(riowrite(one_, from.data(), from.size(), 1000, 0), from.size());
      Sync();
      ASSERT_EQ(memory, from) << round;
    }
    // A part, in the middle.
    const char text[] = "text";
    ASSERT_EQ(riowrite(one_, text, sizeof text, 1500, 0), sizeof text);
    Sync();
    EXPECT_EQ(std::memcmp(memory.data() + 500, text, sizeof text), 0);
    ASSERT_EQ(riounmap(other_, memory.data(), memory.size()), 0);
    EXPECT_EQ(riounmap(other_, memory.data(), memory.size()), -1);
    const auto before = memory;
    // Perhaps it has not heard yet; then nothing comes of it.
    std::fill(from.begin(), from.end(), 77);
    riowrite(one_, from.data(), from.size(), 1000, 0);
    Sync();
    EXPECT_EQ(memory, before);
    EXPECT_EQ(riowrite(one_, from.data(), 1, 1000, 0), ~std::size_t{0});
    EXPECT_EQ(errno, EINVAL);
  }

  void TearDown() override {
    for (int fd : {one_, other_, listener_}) {
      if (fd >= 0) {
        EXPECT_EQ(rclose(fd), 0);
      }
    }
  }

  sockaddr_in address_{};
  int listener_ = -1;
  int one_ = -1;
  int other_ = -1;
};

TEST_F(RsocketTest, WritesOnALane) {
  Connect(4);
  // From TCP to the lane while it writes, then on the lane.
  WriteAndLook();
  ASSERT_TRUE(Promoted()) << rcs_get_reason(one_);
  WriteAndLook();
  // (What comes too late for a mapping may end an RDMA lane.)
  if (!Rdma()) {
    EXPECT_EQ(rcs_get_lane(one_), RCS_SHM) << rcs_get_reason(one_);
  }
}

TEST_F(RsocketTest, WritesAreDirectOnALane) {
  Connect(4);
  ASSERT_TRUE(Promoted()) << rcs_get_reason(one_);
  std::vector<unsigned char> memory(300'000), from(memory.size());
  ASSERT_TRUE(MapUntilDirect(&memory));
  const std::uint64_t before = Sent();
  for (int round = 1; round < 40; ++round) {
    std::fill(from.begin(), from.end(), static_cast<unsigned char>(round));
    ASSERT_EQ(riowrite(one_, from.data(), from.size(), 0, 0), from.size());
    // The last of several wins.
    from[7] = 99;
    ASSERT_EQ(riowrite(one_, from.data() + 7, 1, 7, 0), 1u);
    Sync();
    ASSERT_EQ(memory, from) << round;
  }
  EXPECT_LT(Sent() - before, from.size());
}

// A lane is left before anybody has asked whether what was placed is there:
// what the peer's program has made of it since stays.
TEST_F(RsocketTest, WritesComeOnce) {
  Connect(4);
  ASSERT_TRUE(Promoted()) << rcs_get_reason(one_);
  std::vector<unsigned char> memory(100'000);
  ASSERT_TRUE(MapUntilDirect(&memory));
  // Before it is freed: the device may still write there.
  const Unmapped at_the_end{this, &memory};
  Sync();
  constexpr int kRounds = 4;
  int rounds = 0;
  for (unsigned char round = 100; rounds < kRounds; ++round) {
    SCOPED_TRACE(int{round});
    // (A lane may be lost at any time; then it is the stream that has written.)
    ASSERT_LT(round, 100 + 5 * kRounds);
    const std::vector<unsigned char> from(memory.size(), round);
    const std::uint64_t before = Sent();
    ASSERT_EQ(riowrite(one_, from.data(), from.size(), 0, 0), from.size());
    if (Sent() - before < from.size()) {
      ++rounds;
      const time_t end = std::time(nullptr) + 20;
      volatile unsigned char* const last = &memory.back();
      while (*last != round && std::time(nullptr) < end) ::sched_yield();
      ASSERT_EQ(*last, round);
      std::fill(memory.begin(), memory.end(), 1);
      ASSERT_EQ(rcs_demote(one_, -1), 0) << std::strerror(errno);
      Sync();
      EXPECT_EQ(memory, std::vector<unsigned char>(memory.size(), 1));
      // And the next one comes, by whichever way, with the last of its bytes.
      ASSERT_EQ(riowrite(one_, from.data(), from.size(), 0, 0), from.size());
    }
    Sync();
    EXPECT_EQ(memory, from);
    ASSERT_EQ(rcs_promote(one_), 0) << std::strerror(errno);
    ASSERT_TRUE(Promoted()) << rcs_get_reason(one_);
    ASSERT_EQ(riounmap(other_, memory.data(), memory.size()), 0);
    ASSERT_TRUE(MapUntilDirect(&memory));
    Sync();
  }
}

// In a guest, where the link can be cut: TCP to the own address goes on.
class CutTest : public RsocketTest {
 protected:
  // With `silent`, nobody calls anything after that.
  void CutAndLook(bool silent) {
    if (!Rdma() || std::getenv("IN_GUEST") == nullptr) GTEST_SKIP();
    Connect(4);
    ASSERT_TRUE(Promoted()) << rcs_get_reason(one_);
    std::vector<unsigned char> memory(300'000), from(memory.size());
    ASSERT_TRUE(MapUntilDirect(&memory));
    Sync();
    ASSERT_EQ(std::system("ip link set net0 down"), 0);
    std::fill(from.begin(), from.end(), static_cast<unsigned char>(7));
    ASSERT_EQ(riowrite(one_, from.data(), from.size(), 0, 0), from.size());
    if (!silent) {
      // What is sent later is read later.
      Sync();
      ASSERT_EQ(memory, from);
    } else {
      const time_t end = std::time(nullptr) + 20;
      volatile unsigned char* const last = &memory.back();
      while (*last != 7 && std::time(nullptr) < end) ::sched_yield();
      Sync();
      ASSERT_EQ(memory, from);
    }
    EXPECT_EQ(rcs_get_lane(one_), RCS_TCP);
  }
};

TEST_F(CutTest, WritesComeBeforeWhatIsSentLater) { CutAndLook(false); }
TEST_F(CutTest, WritesComeUnasked) { CutAndLook(true); }

TEST_F(RsocketTest, WritesOverTcp) {
  Connect(4, RCS_POLICY_TCP);
  WriteAndLook();
  EXPECT_EQ(rcs_get_lane(one_), RCS_TCP);
}

TEST_F(RsocketTest, MapsAreCounted) {
  Connect(2);
  char memory[300];
  EXPECT_EQ(riomap(other_, memory, 100, PROT_WRITE, 0, 0), 0);
  EXPECT_EQ(riomap(other_, memory + 100, 100, PROT_WRITE, 0, 50), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(riomap(other_, memory + 100, 100, PROT_WRITE, 0, -1),
            static_cast<off_t>(reinterpret_cast<std::uintptr_t>(memory + 100)));
  EXPECT_EQ(riomap(other_, memory + 200, 100, PROT_WRITE, 0, 500), -1);
  EXPECT_EQ(errno, ENOBUFS);
  EXPECT_EQ(riomap(other_, memory, 100, PROT_EXEC, 0, 0), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(riomap(-1, memory, 100, PROT_WRITE, 0, 0), -1);
  EXPECT_EQ(errno, EBADF);
}

TEST_F(RsocketTest, WithoutMapsItIsAStream) {
  Listen(0);
  // A peer that knows nothing of us.
  const int peer = ::socket(AF_INET, SOCK_STREAM, 0);
  ASSERT_EQ(
      ::connect(peer, reinterpret_cast<sockaddr*>(&address_), sizeof address_),
      0);
  other_ = raccept(listener_, nullptr, nullptr);
  ASSERT_GE(other_, 0);
  char memory[100];
  EXPECT_EQ(riomap(other_, memory, 100, PROT_WRITE, 0, 0), -1);
  EXPECT_EQ(errno, EINVAL);
  ASSERT_EQ(::write(peer, "abc", 3), 3);
  std::thread later([&] {
    // Once the receiver has what there is, and wants more.
    int left = 1;
    while (::ioctl(other_, FIONREAD, &left) == 0 && left > 0) {
      ::sched_yield();
    }
    EXPECT_EQ(::write(peer, "def", 3), 3);
  });
  EXPECT_EQ(rrecv(other_, memory, 6, MSG_WAITALL), 6);
  later.join();
  EXPECT_EQ(std::string(memory, 6), "abcdef");
  EXPECT_EQ(rsend(other_, "xyz", 3, 0), 3);
  EXPECT_EQ(::read(peer, memory, 100), 3);
  ::close(peer);
  EXPECT_EQ(rrecv(other_, memory, 6, 0), 0);
}

TEST_F(RsocketTest, PollAndSelect) {
  Connect(2);
  pollfd one{other_, POLLIN | POLLOUT, 0};
  ASSERT_EQ(rpoll(&one, 1, 1000), 1);
  EXPECT_EQ(one.revents, POLLOUT);
  one.events = POLLIN;
  EXPECT_EQ(rpoll(&one, 1, 10), 0);
  // A mapping is nothing to read.
  char memory[100];
  ASSERT_EQ(riomap(one_, memory, 100, PROT_WRITE, 0, 0), 0);
  EXPECT_EQ(rpoll(&one, 1, 10), 0);
  ASSERT_EQ(rsend(one_, "x", 1, 0), 1);
  EXPECT_EQ(rpoll(&one, 1, 5000), 1);
  EXPECT_EQ(one.revents, POLLIN);
  fd_set in;
  FD_ZERO(&in);
  FD_SET(other_, &in);
  timeval limit{5, 0};
  EXPECT_EQ(rselect(other_ + 1, &in, nullptr, nullptr, &limit), 1);
  EXPECT_TRUE(FD_ISSET(other_, &in));
  char byte;
  EXPECT_EQ(rrecv(other_, &byte, 1, 0), 1);
  limit = {0, 10'000};
  EXPECT_EQ(rselect(other_ + 1, &in, nullptr, nullptr, &limit), 0);
  EXPECT_EQ(rrecv(other_, &byte, 1, MSG_DONTWAIT), -1);
  EXPECT_EQ(errno, EAGAIN);
}

// A peer that says hello and then anything: the stream ends, nothing else does.
TEST_F(RsocketTest, HostileRecords) {
  const unsigned char magic[8] = {0xf5, 'r', 'c', 's', 'r', 'i', 'o', 2};
  for (unsigned seed = 0; seed < 88; ++seed) {
    SCOPED_TRACE(seed);
    RsocketTest::TearDown();
    listener_ = one_ = other_ = -1;
    Listen(4);
    const int peer = ::socket(AF_INET, SOCK_STREAM, 0);
    ASSERT_EQ(::connect(peer, reinterpret_cast<sockaddr*>(&address_),
                        sizeof address_),
              0);
    unsigned char hello[56] = {};
    std::memcpy(hello, magic, sizeof magic);
    hello[8] = 4;
    ASSERT_EQ(::write(peer, hello, sizeof hello),
              static_cast<ssize_t>(sizeof hello));
    other_ = raccept(listener_, nullptr, nullptr);
    char memory[64] = {};
    ASSERT_EQ(riomap(other_, memory, sizeof memory, PROT_WRITE, 0, 0), 0);
    // {type, length, offset, extent, address, valid}: out of range in one way
    // or another.
    struct {
      std::uint32_t type, length;
      std::uint64_t offset, extent, address, valid;
    } record = {};
    record.type = seed % 11;
    record.length = seed & 8 ? 0xffffffffu : seed & 16 ? 0 : 128;
    record.offset = seed & 32 ? ~std::uint64_t{0} - 3 : 32;
    record.extent = seed & 16 ? ~std::uint64_t{0} : 0;
    ASSERT_EQ(::write(peer, &record, sizeof record),
              static_cast<ssize_t>(sizeof record));
    char rest[256];
    std::memset(rest, 'r', sizeof rest);
    ASSERT_EQ(::send(peer, rest, sizeof rest, MSG_NOSIGNAL),
              static_cast<ssize_t>(sizeof rest));
    ::shutdown(peer, SHUT_WR);
    char got[512];
    while (rrecv(other_, got, sizeof got, 0) > 0) {
    }
    for (char byte : memory) EXPECT_EQ(byte, 0);
    ::close(peer);
  }
}

// A peer made by hand, which says what it likes.
class HelloTest : public RsocketTest {
 protected:
  // As librcsock_rsocket sends it.
  struct Hello {
    unsigned char magic[8] = {0xf5, 'r', 'c', 's', 'r', 'i', 'o', 2};
    std::uint32_t iomap_size = 4;
    std::uint32_t pid = 0;
    std::uint64_t pid_namespace = 0;
    std::uint64_t cookie_at = 0;
    std::uint64_t busy_at = 0;
    unsigned char cookie[16] = {};
  };

  // Connected and accepted; nothing has been said.
  void Meet(int maps) {
    Listen(maps);
    peer_ = ::socket(AF_INET, SOCK_STREAM, 0);
    ASSERT_EQ(::connect(peer_, reinterpret_cast<sockaddr*>(&address_),
                        sizeof address_),
              0);
    other_ = raccept(listener_, nullptr, nullptr);
    ASSERT_GE(other_, 0);
  }
  void Say(const void* bytes, std::size_t length) {
    EXPECT_EQ(::send(peer_, bytes, length, MSG_NOSIGNAL),
              static_cast<ssize_t>(length));
  }
  void Say(const Hello& hello) { Say(&hello, sizeof hello); }
  std::string Hear() {
    char bytes[256];
    const ssize_t n = ::recv(peer_, bytes, sizeof bytes, 0);
    return std::string(bytes, n > 0 ? static_cast<std::size_t>(n) : 0);
  }
  // Says that its memory is that of process `pid`, where a write is under way
  // while `busy_` is not 0.
  Hello Claim(pid_t pid) {
    struct stat status {};
    EXPECT_EQ(::stat("/proc/self/ns/pid", &status), 0);
    Hello hello;
    hello.pid = static_cast<std::uint32_t>(pid);
    hello.pid_namespace = status.st_ino;
    hello.cookie_at = reinterpret_cast<std::uintptr_t>(cookie_);
    hello.busy_at = reinterpret_cast<std::uintptr_t>(&busy_);
    std::memcpy(hello.cookie, cookie_, sizeof cookie_);
    return hello;
  }
  void TearDown() override {
    ::close(peer_);
    RsocketTest::TearDown();
  }

  int peer_ = -1;
  const unsigned char cookie_[16] = {7, 7, 7};
  std::atomic<std::uint32_t> busy_{1};
};

TEST_F(HelloTest, ComesAfterTheAcceptorHasSpoken) {
  Meet(0);
  ASSERT_EQ(rsend(other_, "abc", 3, 0), 3);
  EXPECT_EQ(Hear(), "abc");
  Say(Hello{});
  Say("request", 7);
  ::shutdown(peer_, SHUT_WR);
  char got[64];
  EXPECT_EQ(rrecv(other_, got, 7, MSG_WAITALL), 7);
  EXPECT_EQ(std::string(got, 7), "request");
  ASSERT_EQ(rsend(other_, "answer", 6, 0), 6);
  EXPECT_EQ(Hear(), "answer");
}

TEST_F(HelloTest, AloneIsNothingToReadForThoseWhoHaveSpoken) {
  Meet(0);
  ASSERT_EQ(rsend(other_, "abc", 3, 0), 3);
  Say(Hello{});
  pollfd one{other_, POLLIN, 0};
  EXPECT_EQ(rpoll(&one, 1, 200), 0);
  Say("x", 1);
  EXPECT_EQ(rpoll(&one, 1, 5000), 1);
  EXPECT_EQ(one.revents, POLLIN);
}

TEST_F(HelloTest, MayComeDuringRiomap) {
  Meet(0);
  // Once this thread sleeps there (or in join, if it does not).
  std::thread later([this, waiting = ::gettid()] {
    const std::string path =
        "/proc/self/task/" + std::to_string(waiting) + "/stat";
    for (std::string line; line.find(") S") == std::string::npos;) {
      std::getline(std::ifstream(path), line);
    }
    Say(Hello{});
  });
  char memory[100];
  EXPECT_EQ(riomap(other_, memory, sizeof memory, PROT_WRITE, 0, 0), 0)
      << std::strerror(errno);
  later.join();
}

TEST_F(HelloTest, OneByteOfItIsData) {
  Meet(0);
  Say("\xf5", 1);
  std::atomic<bool> done{false};
  std::thread release([&] {
    for (int i = 0; i < 500 && !done; ++i) ::usleep(10'000);
    if (!done) Say("x", 1);
  });
  unsigned char got[2] = {};
  EXPECT_EQ(rrecv(other_, got, 1, 0), 1);
  EXPECT_FALSE(done.exchange(true));
  EXPECT_EQ(got[0], 0xf5);
  release.join();
  EXPECT_EQ(::recv(peer_, got, 1, MSG_DONTWAIT), -1);
  EXPECT_EQ(rrecv(other_, got, 1, MSG_DONTWAIT), -1) << "it came too late";
}

TEST_F(HelloTest, CannotClaimToBeThisProcess) {
  Meet(4);
  Say(Claim(::getpid()));
  char memory[100];
  ASSERT_EQ(riomap(other_, memory, sizeof memory, PROT_WRITE, 0, 0), 0);
  std::thread release([this] {
    for (int i = 0; i < 300 && busy_ != 2; ++i) ::usleep(10'000);
    busy_ = 0;
  });
  EXPECT_EQ(riounmap(other_, memory, sizeof memory), 0);
  EXPECT_EQ(busy_.exchange(2), 1u) << "it has waited for our own memory";
  release.join();
}

TEST_F(HelloTest, AWriteThatDoesNotEndHoldsUpNobodyForEver) {
  Meet(4);
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(20);
    for (;;) ::pause();
  }
  Say(Claim(child));
  char memory[100];
  ASSERT_EQ(riomap(other_, memory, sizeof memory, PROT_WRITE, 0, 0), 0);
  timespec before{}, after{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &before);
  EXPECT_EQ(riounmap(other_, memory, sizeof memory), -1);
  EXPECT_EQ(errno, EBUSY);
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &after);
  EXPECT_LT(after.tv_sec - before.tv_sec, 3);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_EQ(riounmap(other_, memory, sizeof memory), 0);
}

// --- Waiting as the stream does

// Cancels a thread that is in a call, once it sleeps there.
void CancelIn(void* (*call)(void*), void* argument) {
  static std::atomic<pid_t> id;
  static void* (*run)(void*);
  id = 0;
  run = call;
  pthread_t thread{};
  ASSERT_EQ(::pthread_create(
                &thread, nullptr,
                [](void* with) {
                  id = ::gettid();
                  return run(with);
                },
                argument),
            0);
  const auto sleeps = [] {
    std::string word;
    std::ifstream in("/proc/self/task/" + std::to_string(id) + "/stat");
    for (int i = 0; i < 3; ++i) in >> word;
    return word == "S";
  };
  for (int in_a_row = 0; in_a_row < 20; in_a_row = sleeps() ? in_a_row + 1 : 0)
    ::usleep(1000);
  ASSERT_EQ(::pthread_cancel(thread), 0);
  void* result = nullptr;
  ASSERT_EQ(::pthread_join(thread, &result), 0);
  EXPECT_EQ(result, PTHREAD_CANCELED);
}

TEST_F(HelloTest, AThreadIsCancelledInARead) {
  Meet(0);
  CancelIn(
      [](void* fd) -> void* {
        char byte;
        rrecv(*static_cast<int*>(fd), &byte, 1, 0);
        return nullptr;
      },
      &other_);
  CancelIn(
      [](void* fd) -> void* {
        char byte;
        const iovec iov{&byte, 1};
        rreadv(*static_cast<int*>(fd), &iov, 1);
        return nullptr;
      },
      &other_);
}

TEST_F(HelloTest, AResetIsNoEnd) {
  Meet(0);
  const linger now{1, 0};
  ::setsockopt(peer_, SOL_SOCKET, SO_LINGER, &now, sizeof now);
  ::close(std::exchange(peer_, -1));
  pollfd one{other_, POLLIN, 0};
  EXPECT_EQ(rpoll(&one, 1, -1), 1);
  EXPECT_NE(one.revents & POLLERR, 0);
  char byte;
  EXPECT_EQ(rrecv(other_, &byte, 1, 0), -1);
  EXPECT_EQ(errno, ECONNRESET);
  EXPECT_EQ(rrecv(other_, &byte, 1, 0), 0);
}

TEST_F(HelloTest, AResetAmongRecordsIsNoEnd) {
  Meet(4);
  Say(Hello{});
  char byte;
  EXPECT_EQ(rrecv(other_, &byte, 1, MSG_DONTWAIT), -1);
  const linger now{1, 0};
  ::setsockopt(peer_, SOL_SOCKET, SO_LINGER, &now, sizeof now);
  ::close(std::exchange(peer_, -1));
  pollfd one{other_, POLLIN, 0};
  EXPECT_EQ(rpoll(&one, 1, -1), 1);
  EXPECT_EQ(rrecv(other_, &byte, 1, 0), -1);
  EXPECT_EQ(errno, ECONNRESET);
}

TEST_F(HelloTest, ATimeOutCountsBeforeTheFirstByteAndBehindTheHello) {
  Meet(4);
  const timeval brief{0, 20'000};
  ASSERT_EQ(rsetsockopt(other_, SOL_SOCKET, SO_RCVTIMEO, &brief, sizeof brief),
            0);
  char byte;
  EXPECT_EQ(rrecv(other_, &byte, 1, 0), -1);
  EXPECT_EQ(errno, EAGAIN);
  Say(Hello{});
  EXPECT_EQ(rrecv(other_, &byte, 1, 0), -1);
  EXPECT_EQ(errno, EAGAIN);
}

TEST_F(RsocketTest, PiecesThatAreEmptyDoNotCount) {
  Connect(1);
  char byte;
  std::vector<iovec> pieces(100, iovec{&byte, 0});
  pieces[99].iov_len = 1;
  ASSERT_EQ(rsend(one_, "x", 1, 0), 1);
  EXPECT_EQ(rreadv(other_, pieces.data(), 100), 1);
  EXPECT_EQ(byte, 'x');
}

TEST_F(RsocketTest, SelectWaitsLongerThanAnIntHasMilliseconds) {
  Connect(1);
  std::thread later([this] {
    ::usleep(20'000);
    EXPECT_EQ(rsend(one_, "x", 1, 0), 1);
  });
  fd_set in;
  FD_ZERO(&in);
  FD_SET(other_, &in);
  timeval long_time{4'294'968, 0};
  EXPECT_EQ(rselect(other_ + 1, &in, nullptr, nullptr, &long_time), 1);
  later.join();
}

// The thread that takes what the peer writes into our memory holds latches most
// of the time.
TEST_F(RsocketTest, AChildOfForkFindsNoLatchTaken) {
  Connect(1, RCS_POLICY_TCP);
  std::vector<unsigned char> memory(1 << 20);
  ASSERT_EQ(riomap(other_, memory.data(), memory.size(), PROT_WRITE, 0, 0), 0);
  Sync();
  std::atomic<bool> done{false};
  std::thread writer([&] {
    std::vector<unsigned char> from(65536, 1);
    while (!done) {
      EXPECT_EQ(riowrite(one_, from.data(), from.size(), 0, 0), from.size());
    }
  });
  for (int i = 0; i < 40; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(10);
      rclose(other_);
      ::_exit(0);
    }
    int status = -1;
    ::waitpid(child, &status, 0);
    ASSERT_EQ(status, 0) << "child " << i;
  }
  done = true;
  writer.join();
  EXPECT_EQ(riounmap(other_, memory.data(), memory.size()), 0);
}

TEST_F(RsocketTest, ASendThatIsCutShortInTheHandshakeSaysSo) {
  const int plain = ::socket(AF_INET, SOCK_STREAM, 0);
  address_.sin_family = AF_INET;
  address_.sin_addr.s_addr = inet_addr(Address());
  socklen_t size = sizeof address_;
  auto* const name = reinterpret_cast<sockaddr*>(&address_);
  ASSERT_EQ(::bind(plain, name, size), 0);
  ASSERT_EQ(::listen(plain, 1), 0);
  ASSERT_EQ(::getsockname(plain, name, &size), 0);
  one_ = rsocket(AF_INET, SOCK_STREAM, 0);
  Allow(one_, 1);
  ASSERT_EQ(rfcntl(one_, F_SETFL, O_NONBLOCK), 0);
  EXPECT_EQ(rconnect(one_, name, size), -1);
  EXPECT_EQ(errno, EINPROGRESS);
  const int peer = ::accept(plain, nullptr, nullptr);
  ASSERT_EQ(::send(peer, "plain", 5, 0), 5);
  ASSERT_EQ(rfcntl(one_, F_SETFL, 0L), 0);
  const timeval brief{0, 50'000};
  ASSERT_EQ(rsetsockopt(one_, SOL_SOCKET, SO_SNDTIMEO, &brief, sizeof brief),
            0);
  std::vector<unsigned char> bytes(64 << 20);
  for (std::size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<unsigned char>((i * 2654435761u) >> 16);
  const ssize_t sent = rsend(one_, bytes.data(), bytes.size(), 0);
  EXPECT_GT(sent, 0);
  EXPECT_LT(sent, static_cast<ssize_t>(bytes.size()));
  char plain_bytes[5];
  EXPECT_EQ(rrecv(one_, plain_bytes, 5, MSG_WAITALL), 5);
  rclose(std::exchange(one_, -1));
  std::vector<unsigned char> got(bytes.size());
  std::size_t n = 0;
  for (ssize_t more;
       (more = ::recv(peer, got.data() + n, got.size() - n, 0)) > 0;)
    n += static_cast<std::size_t>(more);
  const std::size_t hello = 56;
  EXPECT_EQ(n, hello + static_cast<std::size_t>(sent));
  EXPECT_EQ(std::memcmp(got.data() + hello, bytes.data(), n - hello), 0);
  ::close(peer);
  ::close(plain);
}

}  // namespace
