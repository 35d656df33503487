// Whoever makes a file decides how long its last close takes: not for those who
// only have it.
#include "lib/base/foreign_fd.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <vector>

#include "lib/base/sleep.h"
#include "tests/base/lingering.h"

// The linker puts this in the place of pthread_create.
extern "C" {
int __real_pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                          void* (*body)(void*), void* argument);
int __wrap_pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                          void* (*body)(void*), void* argument);
}
static std::atomic<int> threads_made{0};
int __wrap_pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                          void* (*body)(void*), void* argument) {
  ++threads_made;
  return __real_pthread_create(thread, attributes, body, argument);
}

namespace rcsock::base {
namespace {

using Clock = std::chrono::steady_clock;

// Of the lingering; half of it is far more than a close takes that does not
// wait.
constexpr int kSeconds = 6;

void ExpectAtOnce(Clock::time_point since) {
  EXPECT_LT(Clock::now() - since, std::chrono::seconds(kSeconds / 2));
}

void ExpectLater(Lingering* socket) {
  // The peer sees the end once the last close has begun.
  EXPECT_TRUE(socket->ReadToTheEnd());
}

class ForeignFdTest : public testing::TestWithParam<bool> {
 protected:
  ForeignFdTest() { PretendFilesCannotBeRefused(GetParam()); }
  ~ForeignFdTest() override { PretendFilesCannotBeRefused(false); }
};

TEST(ForeignFd, ALastCloseThatWaits) {
  Lingering socket(kSeconds);
  const auto before = Clock::now();
  { ForeignFd fd(socket.Take()); }
  ExpectAtOnce(before);
  ExpectLater(&socket);
}

// More than there are threads for.
TEST(ForeignFd, ManyLastClosesThatWait) {
  std::vector<Lingering> sockets;
  for (int i = 0; i < 12; ++i) sockets.emplace_back(2);
  const auto before = Clock::now();
  for (Lingering& socket : sockets) ForeignFd fd(socket.Take());
  EXPECT_LT(Clock::now() - before, std::chrono::seconds(1));
  for (Lingering& socket : sockets) ExpectLater(&socket);
}

// Streams that meet their peers make a close each.  A thread for each would
// stall the program, which shares its memory with them.
TEST(ForeignFd, ManyClosesMakeFewThreads) {
  constexpr int kCloses = 100;
  AwaitCloses();
  const int before = threads_made;
  for (int i = 0; i < kCloses; ++i) {
    { ForeignFd fd(::open("/dev/null", O_RDONLY)); }
    SleepThrough(200'000);
  }
  EXPECT_LT(threads_made - before, kCloses / 4);
  AwaitCloses();
  EXPECT_FALSE(ClosesPileUp());
}

// A thread that waits for another close begins with one that waits, and then
// serves nobody else.
TEST(ForeignFd, ACloseThatWaitsBehindOthers) {
  AwaitCloses();
  { ForeignFd fd(::open("/dev/null", O_RDONLY)); }
  SleepThrough(2'000'000);
  Lingering slow(kSeconds);
  Lingering quick(1);
  const auto before = Clock::now();
  { ForeignFd fd(slow.Take()); }
  { ForeignFd fd(quick.Take()); }
  ExpectLater(&quick);
  ExpectAtOnce(before);
  ExpectLater(&slow);
}

TEST(ForeignFd, KnowsWhatIsHarmless) {
  EXPECT_TRUE(ForeignFd(::memfd_create("rcsock-test", 0)).Harmless());
  EXPECT_TRUE(ForeignFd(::eventfd(0, 0)).Harmless());
  EXPECT_FALSE(ForeignFd(::socket(AF_INET, SOCK_STREAM, 0)).Harmless());
  EXPECT_FALSE(ForeignFd(::open("/dev/null", O_RDONLY)).Harmless());
  int pipes[2];
  ASSERT_EQ(::pipe(pipes), 0);
  ForeignFd one(pipes[0]);
  ForeignFd two(pipes[1]);
  EXPECT_FALSE(one.Harmless() || two.Harmless());
}

// A fork while a close waits: the parent's goes on, and the child has none.
TEST(ForeignFd, ForkAmidAClose) {
  Lingering socket(kSeconds);
  { ForeignFd fd(socket.Take()); }
  const auto before = Clock::now();
  ForeignFdForkLock();
  const pid_t child = ::fork();
  ForeignFdForkUnlock(child == 0);
  if (child == 0) {
    Lingering another(1);
    { ForeignFd fd(another.Take()); }
    ::_exit(another.ReadToTheEnd() ? 0 : 1);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  ExpectAtOnce(before);
  ExpectLater(&socket);
}

// What is queued at a socket of ours: of a visitor that was accepted, and of
// one that was not.
TEST_P(ForeignFdTest, AreNotClosedWithTheSocketTheyWereSentTo) {
  for (const bool accepted : {false, true}) {
    for (const bool late : {false, true}) {
      Lingering socket(kSeconds);
      PeerSocket listener(UniqueFd(::socket(AF_UNIX, SOCK_SEQPACKET, 0)));
      sockaddr_un name{};
      name.sun_family = AF_UNIX;
      ASSERT_EQ(::bind(listener.get(), reinterpret_cast<sockaddr*>(&name),
                       sizeof name.sun_family),
                0);
      // `late`: as one that takes files from whom it has accepted.
      if (!late) listener.RefuseFiles();
      ASSERT_EQ(::listen(listener.get(), 4), 0);
      socklen_t length = sizeof name;
      ::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&name),
                    &length);
      const int visitor = ::socket(AF_UNIX, SOCK_SEQPACKET, 0);
      ASSERT_EQ(::connect(visitor, reinterpret_cast<sockaddr*>(&name), length),
                0);
      PeerSocket there;
      if (accepted) {
        there =
            PeerSocket(UniqueFd(::accept(listener.get(), nullptr, nullptr)));
        there.Inherit(listener);
      }
      const bool sent = socket.SendTo(visitor);
      EXPECT_TRUE(sent || !GetParam());
      ::close(visitor);
      const auto before = Clock::now();
      there.reset();
      listener.reset();
      ExpectAtOnce(before);
      if (sent) ExpectLater(&socket);
    }
  }
}

TEST_P(ForeignFdTest, ASocketThatTakesFilesGetsThem) {
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends), 0);
  PeerSocket there{UniqueFd(ends[0])};
  there.RefuseFiles();
  there.TakeFiles();
  Lingering socket(1);
  EXPECT_TRUE(socket.SendTo(ends[1]));
  there.reset();
  ExpectLater(&socket);
  ::close(ends[1]);
}

INSTANTIATE_TEST_SUITE_P(Kernels, ForeignFdTest, testing::Bool());

}  // namespace
}  // namespace rcsock::base
