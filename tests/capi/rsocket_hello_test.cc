// Peers made by hand: what they say first, and what they claim.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pthread.h>
#include <rcsock/rsocket.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <fstream>
#include <string>
#include <thread>
#include <utility>

#include "tests/capi/rsocket_pair.h"

namespace {

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

}  // namespace
