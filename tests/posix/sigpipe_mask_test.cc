// Signals that are put off while a post blocks SIGPIPE: so many that all others
// are blocked until they are delivered.  What is blocked then is what the
// program has blocked, and no more.
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>

#include "lib/base/no_sigpipe.h"
#include "lib/posix/signals.h"

namespace rcsock::posix {
namespace {

volatile sig_atomic_t runs;

bool Blocked(int number) {
  sigset_t now;
  ::pthread_sigmask(SIG_BLOCK, nullptr, &now);
  return ::sigismember(&now, number) == 1;
}

void SetBlocked(bool blocked) {
  sigset_t set;
  ::sigemptyset(&set);
  ::sigaddset(&set, SIGPIPE);
  ::pthread_sigmask(blocked ? SIG_BLOCK : SIG_UNBLOCK, &set, nullptr);
}

TEST(SigpipeMask, IsTheProgramsBehindAPost) {
  struct sigaction action {};
  action.sa_handler = [](int) { runs = runs + 1; };
  constexpr int kCount = ThreadSignals::kMostDeferred + 2;
  for (int i = 0; i < kCount; ++i) {
    ASSERT_EQ(HookedSigaction(SIGRTMIN + i, &action, nullptr), 0);
  }
  for (const bool blocked : {false, true, false}) {
    SetBlocked(blocked);
    runs = 0;
    {
      Critical critical;
      {
        const base::NoSigpipe no_sigpipe(true);
        EXPECT_TRUE(Blocked(SIGPIPE));
        for (int i = 0; i < kCount; ++i) ::raise(SIGRTMIN + i);
        EXPECT_TRUE(Blocked(SIGUSR1)) << "not so many that all are blocked";
      }
      EXPECT_EQ(runs, 0);
    }
    EXPECT_EQ(runs, kCount);
    EXPECT_FALSE(Blocked(SIGUSR1));
    EXPECT_EQ(Blocked(SIGPIPE), blocked);
  }
}

}  // namespace
}  // namespace rcsock::posix
