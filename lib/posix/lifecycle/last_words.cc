#include "lib/posix/lifecycle/last_words.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

#include "lib/base/config.h"
#include "lib/base/real.h"
#include "lib/base/sleep.h"
#include "lib/base/start_data.h"
#include "lib/posix/socket/each_sock.h"
#include "lib/posix/socket/stats.h"
#include "lib/posix/sys/identity.h"
#include "lib/posix/thread/signals.h"

namespace rcsock::posix {
namespace {

constexpr int kEndings[] = {SIGHUP, SIGINT, SIGTERM};
constexpr int kHighest = SIGTERM;

RCSOCK_START_DATA constinit DeferSignal defer_signal = nullptr;
RCSOCK_START_DATA constinit std::atomic<bool> hiding{false};
// The process in which a thread is writing.  A child of a fork made meanwhile
// has another number.
constinit std::atomic<long> ending{0};
// The actions as the program, or its parent, has set them.  Guarded by
// HookedSigaction's latch.
struct sigaction defaults[kHighest + 1];

bool IsEnding(int number) {
  for (const int one : kEndings) {
    if (one == number) return true;
  }
  return false;
}

void LastWords(int number, siginfo_t* info, void* context);

bool IsHidden(const struct sigaction& action) {
  return (action.sa_flags & SA_SIGINFO) != 0 &&
         action.sa_sigaction == &LastWords;
}

// Ends the process as the kernel would have.
[[noreturn]] void End(int number) {
  struct sigaction action {};
  action.sa_handler = SIG_DFL;
  real::sigaction(number, &action, nullptr);
  const std::uint64_t none = 0;
  ::syscall(SYS_tgkill, ::syscall(SYS_getpid), ::syscall(SYS_gettid), number);
  ::syscall(SYS_rt_sigprocmask, SIG_SETMASK, &none, nullptr, 8);
  // Reached if another thread has set a handler meanwhile.
  for (;;) real::_exit(128 + number);
}

void LastWords(int number, siginfo_t* info, void* context) {
  if (defer_signal(number, info, context)) return;
  // A child of vfork has its parent's memory, and no statistics of its own.
  if (InBorrowedMemory()) End(number);
  // If another thread has got another of these signals, this waits.
  while (ending.exchange(OwnPid()) == OwnPid()) {
    base::SleepThrough(1'000'000'000);
  }
  Stats total;
  total.CopyFrom(stats);
  ForEachSock([&](Sock* sock) { sock->tally().Fold(&total); });
  WriteStats(total);
  End(number);
}

}  // namespace

[[gnu::cold]] void InitLastWords(DeferSignal defer) {
  defer_signal = defer;
  if (*base::GetConfig().stats == '\0' || ::syscall(SYS_getpid) == 1) return;
  signal_users.hide_default.store(&HideDefault, std::memory_order_relaxed);
  signal_users.show_default.store(&ShowDefault, std::memory_order_relaxed);
  hiding.store(true, std::memory_order_relaxed);
  for (const int number : kEndings) {
    struct sigaction now {};
    if (real::sigaction(number, nullptr, &now) == 0 &&
        (now.sa_flags & SA_SIGINFO) == 0 && now.sa_handler == SIG_DFL) {
      HideDefault(number);
    }
  }
}

void EndLastWords() {
  if (!hiding.exchange(false)) return;
  for (const int number : kEndings) {
    struct sigaction now {};
    if (real::sigaction(number, nullptr, &now) == 0 && IsHidden(now)) {
      real::sigaction(number, &defaults[number], nullptr);
    }
  }
}

void HideDefault(int number) {
  if (!hiding.load(std::memory_order_relaxed) || !IsEnding(number) ||
      InBorrowedMemory() ||
      // The flags as the kernel gives them, with the restorer.
      real::sigaction(number, nullptr, &defaults[number]) != 0) {
    return;
  }
  struct sigaction action {};
  action.sa_sigaction = &LastWords;
  // The handler returns only to be called again, at the end of a critical
  // section.
  action.sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK;
  ::sigfillset(&action.sa_mask);
  real::sigaction(number, &action, nullptr);
}

void ShowDefault(int number, struct sigaction* action) {
  if (IsHidden(*action)) *action = defaults[number];
}

}  // namespace rcsock::posix
