// A thread within a post on iWARP (base/no_sigpipe.h), under the preload: where
// the kernel's SIGPIPE goes to a handler, what the program sees of that, and of
// its own; and what it has blocked in the end.
#include "tests/base/sigpipe.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "lib/base/no_sigpipe.h"
#include "lib/posix/hooks/hooks.h"
#include "lib/posix/thread/signals.h"

namespace rcsock::posix {
namespace {

volatile sig_atomic_t runs;
volatile sig_atomic_t pipes;

void SetBlocked(bool blocked) {
  sigset_t set;
  ::sigemptyset(&set);
  ::sigaddset(&set, SIGPIPE);
  hook::pthread_sigmask(blocked ? SIG_BLOCK : SIG_UNBLOCK, &set, nullptr);
}

template <class During>
void Post(During during) {
  Critical critical;
  const base::NoSigpipe no_sigpipe(true);
  during();
}

void OnPipe(int) { pipes = pipes + 1; }

class Sigpipe : public testing::Test {
 protected:
  void SetUp() override {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    InitSignals();
    Set(&OnPipe, 0);
    SetBlocked(false);
    // It is known from now on.
    Post([] { EXPECT_TRUE(SignalBlocked(SIGPIPE)); });
    pipes = 0;
    runs = 0;
  }
  static struct sigaction Set(void (*handler)(int), int flags) {
    struct sigaction action {};
    struct sigaction old {};
    action.sa_handler = handler;
    action.sa_flags = flags;
    EXPECT_EQ(HookedSigaction(SIGPIPE, &action, &old), 0);
    return old;
  }
};
using SigpipeDeathTest = Sigpipe;

TEST_F(Sigpipe, IsDroppedByTheHandlerWithoutAnyCall) {
  Post([] {
    EXPECT_FALSE(SignalBlocked(SIGPIPE));
    RaiseSigpipe();
    EXPECT_FALSE(SigpipePending());
  });
  EXPECT_EQ(pipes, 0);
  RaiseSigpipe();
  EXPECT_EQ(pipes, 1);
}

TEST_F(Sigpipe, ThatSomebodySendsComesToTheHandler) {
  Post([] { ::syscall(SYS_tgkill, ::getpid(), ::gettid(), SIGPIPE); });
  EXPECT_EQ(pipes, 1);
}

TEST_F(Sigpipe, KeepsWhatTheProgramHasSet) {
  EXPECT_EQ(Set(SIG_DFL, SA_ONSTACK).sa_handler, &OnPipe);
  Post(&RaiseSigpipe);
  EXPECT_EQ(HookedSignal(SIGPIPE, SIG_IGN, SA_RESTART), SIG_DFL);
  Post(&RaiseSigpipe);
  EXPECT_EQ(Set(&OnPipe, SA_RESETHAND).sa_handler, SIG_IGN);
  Post(&RaiseSigpipe);
  RaiseSigpipe();
  EXPECT_EQ(pipes, 1);
  const struct sigaction after = Set(&OnPipe, 0);
  EXPECT_EQ(after.sa_handler, SIG_DFL);
  EXPECT_EQ(after.sa_flags & SA_SIGINFO, 0);
}

TEST_F(SigpipeDeathTest, OfItsOwnAloneEndsTheProgram) {
  Set(SIG_DFL, 0);
  EXPECT_EXIT(
      {
        Post(&RaiseSigpipe);
        ::_exit(7);
      },
      testing::ExitedWithCode(7), "");
  EXPECT_EXIT(
      {
        Post(&RaiseSigpipe);
        RaiseSigpipe();
        ::_exit(7);
      },
      testing::KilledBySignal(SIGPIPE), "");
  // Where a handler of the program's has been, too.
  Set(&OnPipe, SA_RESETHAND);
  RaiseSigpipe();
  EXPECT_EXIT(
      {
        Post(&RaiseSigpipe);
        ::_exit(7);
      },
      testing::ExitedWithCode(7), "");
}

TEST_F(Sigpipe, IsTakenBackWhereTheProgramBlocksIt) {
  SetBlocked(true);
  Post(&RaiseSigpipe);
  EXPECT_FALSE(SigpipePending());
  EXPECT_TRUE(SignalBlocked(SIGPIPE));
  SetBlocked(false);
  EXPECT_EQ(pipes, 0);
  // In a handler alone.
  struct sigaction action {};
  action.sa_handler = [](int) {
    EXPECT_TRUE(SignalBlocked(SIGPIPE));
    Post(&RaiseSigpipe);
    runs = runs + 1;
    EXPECT_FALSE(SigpipePending());
  };
  ::sigaddset(&action.sa_mask, SIGPIPE);
  ASSERT_EQ(HookedSigaction(SIGUSR1, &action, nullptr), 0);
  Post([] {});
  ::raise(SIGUSR1);
  EXPECT_EQ(runs, 1);
  EXPECT_EQ(pipes, 0);
}

TEST_F(SigpipeDeathTest, IsTheKernelsAgainBehindAFilter) {
  Set(SIG_DFL, 0);
  const auto is_default = [] {
    struct sigaction now {};
    real::sigaction(SIGPIPE, nullptr, &now);
    return now.sa_handler == SIG_DFL;
  };
  EXPECT_FALSE(is_default());
  EXPECT_EXIT(
      {
        EndSigpipeHandler();
        const bool at_once = is_default();
        Set(SIG_DFL, 0);
        ::_exit(at_once && is_default() ? 7 : 8);
      },
      testing::ExitedWithCode(7), "");
}

// So many signals put off in a post that all others are blocked until they are
// delivered.  What is blocked then is what the program has blocked, and no
// more.
TEST_F(Sigpipe, AmidManyThatArePutOff) {
  struct sigaction action {};
  action.sa_handler = [](int) { runs = runs + 1; };
  constexpr int kCount = ThreadSignals::kMostDeferred + 2;
  for (int i = 0; i < kCount; ++i) {
    ASSERT_EQ(HookedSigaction(SIGRTMIN + i, &action, nullptr), 0);
  }
  const auto many = [] {
    RaiseSigpipe();
    for (int i = 0; i < kCount; ++i) ::raise(SIGRTMIN + i);
    EXPECT_TRUE(SignalBlocked(SIGUSR1)) << "not so many that all are blocked";
    RaiseSigpipe();
    EXPECT_EQ(runs, 0);
  };
  for (const bool known : {false, true}) {
    for (const bool blocked : {false, true}) {
      SetBlocked(blocked);
      if (known) Post([] {});
      runs = 0;
      Post(many);
      EXPECT_EQ(runs, kCount);
      EXPECT_FALSE(SignalBlocked(SIGUSR1));
      EXPECT_EQ(SignalBlocked(SIGPIPE), blocked);
      EXPECT_FALSE(SigpipePending());
    }
  }
  SetBlocked(false);
  EXPECT_EQ(pipes, 0);
}

}  // namespace
}  // namespace rcsock::posix
