// A SIGPIPE that the kernel raises in the thread that posts, as siw's does
// where its TCP connection has ended: the program never sees it, and sees every
// other one.

#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>
#include <functional>

#include "tests/base/sigpipe.h"
#include "tests/lane/fake_ends.h"

namespace rcsock::lane::test {
namespace {

void KillThread() { ::syscall(SYS_tgkill, ::getpid(), ::gettid(), SIGPIPE); }
void KillProcess() { ::kill(::getpid(), SIGPIPE); }

volatile sig_atomic_t caught;
volatile int last_code;
void OnPipe(int, siginfo_t* info, void*) {
  caught = caught + 1;
  last_code = info->si_code;
}

constexpr int kNone = -1000;
// The next one that is pending: its code.  (As the kernel says it: libc's call
// makes SI_USER of SI_TKILL.)
int Take() {
  sigset_t set;
  ::sigemptyset(&set);
  ::sigaddset(&set, SIGPIPE);
  const timespec now{0, 0};
  siginfo_t info{};
  return ::syscall(SYS_rt_sigtimedwait, &set, &info, &now, 8) == SIGPIPE
             ? info.si_code
             : kNone;
}

class Sigpipe : public FakeEnds {
 protected:
  void SetUp() override {
    ::pthread_sigmask(SIG_BLOCK, nullptr, &mask_);
    // By all threads but this one.
    Block();
    FakeEnds::SetUp();
    Unblock();
    caught = 0;
    struct sigaction action {};
    action.sa_sigaction = &OnPipe;
    action.sa_flags = SA_SIGINFO | SA_RESTART;
    ::sigaction(SIGPIPE, &action, &before_);
  }
  void TearDown() override {
    if (made_.verbs != nullptr) made_.verbs->OnSend(nullptr);
    while (Take() != kNone) {
    }
    ::pthread_sigmask(SIG_SETMASK, &mask_, nullptr);
    ::sigaction(SIGPIPE, &before_, nullptr);
    FakeEnds::TearDown();
  }
  // What is less may wait for more.
  static constexpr std::size_t kMuch = 10'000;
  static void Block() { Set(SIG_BLOCK); }
  static void Unblock() { Set(SIG_UNBLOCK); }
  // What `during` does is done in the midst of a post, which there is.
  void PostWith(const std::function<void()>& during) {
    int posts = 0;
    made_.verbs->OnSend([&] {
      ++posts;
      during();
    });
    errno = 77;
    const std::size_t sent = Post(lane_, kMuch);
    EXPECT_EQ(errno, 77);
    EXPECT_EQ(sent, kMuch);
    EXPECT_GT(posts, 0);
    made_.verbs->OnSend(nullptr);
    char bytes[kMuch];
    iovec iov{bytes, sizeof(bytes)};
    peer_->source()->Drain();
    EXPECT_EQ(peer_->Read(&iov, 1, 0, kMuch, false), kMuch);
    lane_->source()->Drain();
  }

 private:
  static void Set(int how) {
    sigset_t set;
    ::sigemptyset(&set);
    ::sigaddset(&set, SIGPIPE);
    ::pthread_sigmask(how, &set, nullptr);
  }
  struct sigaction before_ {};
  sigset_t mask_{};
};

class SigpipeDeathTest : public Sigpipe {
 protected:
  void SetUp() override {
    // A child of fork has none of a lane's memory.
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    Sigpipe::SetUp();
    ::signal(SIGPIPE, SIG_DFL);
  }
};

TEST_P(SigpipeDeathTest, DoesNotEndAProgram) {
  EXPECT_EXIT(
      {
        PostWith(&RaiseSigpipe);
        ::_exit(testing::Test::HasFailure() ? 1 : 0);
      },
      testing::ExitedWithCode(0), "");
}

TEST_P(SigpipeDeathTest, OfItsOwnEndsAProgram) {
  EXPECT_EXIT(
      {
        PostWith(&RaiseSigpipe);
        RaiseSigpipe();
        ::_exit(0);
      },
      testing::KilledBySignal(SIGPIPE), "");
  EXPECT_EXIT(
      {
        PostWith(&KillThread);
        ::_exit(0);
      },
      testing::KilledBySignal(SIGPIPE), "");
}

TEST_P(Sigpipe, ComesToNoHandler) {
  for (int i = 0; i < 20; ++i) PostWith(&RaiseSigpipe);
  EXPECT_EQ(caught, 0);
  EXPECT_FALSE(SigpipePending());
  EXPECT_FALSE(SignalBlocked(SIGPIPE));
  RaiseSigpipe();
  EXPECT_EQ(caught, 1);
}

TEST_P(Sigpipe, IsNotLeftWhereItIsIgnored) {
  ::signal(SIGPIPE, SIG_IGN);
  PostWith(&RaiseSigpipe);
  struct sigaction now {};
  ::sigaction(SIGPIPE, nullptr, &now);
  EXPECT_EQ(now.sa_handler, SIG_IGN);
  Block();
  PostWith(&RaiseSigpipe);
  EXPECT_FALSE(SigpipePending());
}

TEST_P(Sigpipe, IsNotLeftWhereItIsBlocked) {
  Block();
  for (int i = 0; i < 20; ++i) PostWith(&RaiseSigpipe);
  EXPECT_FALSE(SigpipePending());
  EXPECT_TRUE(SignalBlocked(SIGPIPE));
  Unblock();
  EXPECT_EQ(caught, 0);
}

// One of this thread's, by a write or by a call; one of the process's; and
// both.
TEST_P(Sigpipe, LeavesWhatIsPending) {
  Block();
  for (const bool also : {false, true}) {
    const auto during = [also] {
      if (also) RaiseSigpipe();
    };
    RaiseSigpipe();
    PostWith(during);
    EXPECT_EQ(Take(), SI_USER);
    EXPECT_EQ(Take(), kNone);

    KillThread();
    PostWith(during);
    EXPECT_EQ(Take(), SI_TKILL);
    EXPECT_EQ(Take(), kNone);

    KillProcess();
    PostWith(during);
    EXPECT_EQ(Take(), SI_USER);
    EXPECT_EQ(Take(), kNone);

    KillProcess();
    KillThread();
    PostWith(during);
    EXPECT_EQ(Take(), SI_TKILL);
    EXPECT_EQ(Take(), SI_USER);
    EXPECT_EQ(Take(), kNone);
  }
  EXPECT_EQ(caught, 0);
}

// (Of one thread's own the kernel keeps the first.)
TEST_P(Sigpipe, LeavesWhatIsSentMeanwhile) {
  PostWith(&KillThread);
  EXPECT_EQ(caught, 1);
  EXPECT_EQ(last_code, SI_TKILL);
  PostWith(&KillProcess);
  EXPECT_EQ(caught, 2);
  EXPECT_EQ(last_code, SI_USER);
  PostWith([] {
    KillThread();
    RaiseSigpipe();
  });
  EXPECT_EQ(caught, 3);
  EXPECT_EQ(last_code, SI_TKILL);
  PostWith([] {
    RaiseSigpipe();
    KillProcess();
  });
  EXPECT_EQ(caught, 4);
  EXPECT_EQ(last_code, SI_USER);
  Block();
  PostWith([] {
    RaiseSigpipe();
    KillProcess();
  });
  EXPECT_EQ(Take(), SI_USER);
  EXPECT_EQ(Take(), kNone);
  PostWith(&KillThread);
  EXPECT_EQ(Take(), SI_TKILL);
  EXPECT_EQ(Take(), kNone);
  EXPECT_EQ(caught, 4);
}

TEST_P(Sigpipe, OfTheEndOfALaneIsNobodys) {
  int sends = 0;
  made_.verbs->OnSend([&sends] {
    ++sends;
    RaiseSigpipe();
  });
  lane_->Freeze();
  EXPECT_EQ(sends, 1);
  EXPECT_EQ(caught, 0);
  made_.pair.reset();
  EXPECT_GT(sends, 3);  // its peer's, and both are destroyed
  EXPECT_EQ(caught, 0);
}

INSTANTIATE_TEST_SUITE_P(Iwarp, Sigpipe, testing::Values(true));
INSTANTIATE_TEST_SUITE_P(Iwarp, SigpipeDeathTest, testing::Values(true));

// Where no device sends in the thread that posts, nothing is blocked for it.
class NoSends : public FakeEnds {};
TEST_P(NoSends, CostNothing) {
  bool blocked = false;
  made_.verbs->OnSend([&blocked] { blocked = SignalBlocked(SIGPIPE); });
  EXPECT_EQ(Post(lane_, 100), 100u);
  EXPECT_EQ(blocked, GetParam());
  made_.verbs->OnSend(nullptr);
}
INSTANTIATE_TEST_SUITE_P(Device, NoSends, testing::Bool());

}  // namespace
}  // namespace rcsock::lane::test
