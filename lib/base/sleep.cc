#include "lib/base/sleep.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <atomic>
#include <cerrno>
#include <ctime>

#include "lib/base/direct.h"
#include "lib/base/real.h"

namespace rcsock::base {

// While cancellation is asynchronous, the thread may be unwound from any
// instruction. So the functions that allow asynchronous cancellation have
// nothing to clean up: then the unwinder does not ask their tables where a call
// may throw. They make the system call themselves, since syscall() is declared
// to throw nothing. libc's own blocking calls do so too. They do not call the
// program's pthread_setcanceltype(): what this thread sets here is no wish of
// the program's.

namespace {

[[gnu::always_inline]] inline long Call(long number, long a, long b, long c,
                                        long d, long e = 0) {
  long result = number;
  register long fourth asm("r10") = d;
  register long fifth asm("r8") = e;
  register long sixth asm("r9") =
      8;  // a signal mask's size, if there were a mask
  asm volatile("syscall"
               : "+a"(result)
               : "D"(a), "S"(b), "d"(c), "r"(fourth), "r"(fifth), "r"(sixth)
               : "rcx", "r11", "memory");
  return result;
}

// epoll_pwait2 is younger than many filters of system calls. These filters say
// ENOSYS or EPERM, which the call itself never says.
constinit std::atomic<bool> refused{false};

bool Refused(long error) {
  if (error != ENOSYS && error != EPERM) return false;
  refused.store(true, std::memory_order_relaxed);
  return true;
}

// A time-out that does not fit ends the sleep early; its caller looks at the
// time.
int Milliseconds(const timespec* timeout) {
  constexpr long kMostMs = 2'000'000'000;
  if (timeout == nullptr) return -1;
  const long ms =
      timeout->tv_sec >= kMostMs / 1000
          ? kMostMs
          : timeout->tv_sec * 1000 + (timeout->tv_nsec + 999'999) / 1'000'000;
  return static_cast<int>(ms);
}

}  // namespace

[[gnu::noinline]] int FutexSleep(const void* word, std::uint32_t expected,
                                 const timespec* timeout, bool shared) {
  CheckMaySleep();
  int type;
  real::pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &type);
  const long result =
      Call(SYS_futex, reinterpret_cast<long>(word),
           FUTEX_WAIT | (shared ? 0 : FUTEX_PRIVATE_FLAG),
           static_cast<long>(expected), reinterpret_cast<long>(timeout));
  real::pthread_setcanceltype(type, nullptr);
  return static_cast<int>(result);
}

namespace {

#ifndef SYS_futex_waitv
#define SYS_futex_waitv 449
#endif
// The kernel's struct futex_waitv, of Linux 5.16.
struct WaitedFor {
  std::uint64_t value;
  std::uint64_t word;
  std::uint32_t flags;
  std::uint32_t reserved;
};
constexpr std::uint32_t kFutex32 = 2;

enum class Two : std::uint8_t { kUnknown, kKnown, kRefused };
constinit std::atomic<Two> two{Two::kUnknown};

// A filter of system calls that does not know a call may end the process.
bool MaySleepOnTwo() {
  const Two known = two.load(std::memory_order_relaxed);
  if (known != Two::kUnknown) return known == Two::kKnown;
  const bool filtered = ::prctl(PR_GET_SECCOMP) != 0;
  two.store(filtered ? Two::kRefused : Two::kKnown, std::memory_order_relaxed);
  return !filtered;
}

// Without a time-out.
[[gnu::noinline]] int SleepOnTwo(const WaitedFor* words) {
  int type;
  real::pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &type);
  const long result = Call(SYS_futex_waitv, reinterpret_cast<long>(words), 2, 0,
                           0, CLOCK_MONOTONIC);
  real::pthread_setcanceltype(type, nullptr);
  return static_cast<int>(result);
}

}  // namespace

int FutexSleepShared(const std::atomic<std::uint32_t>* word,
                     std::uint32_t expected,
                     const std::atomic<std::uint32_t>* own,
                     std::uint32_t own_expected, const timespec* timeout) {
  if (timeout == nullptr && MaySleepOnTwo()) {
    const WaitedFor words[2] = {
        {expected, reinterpret_cast<std::uint64_t>(word), kFutex32, 0},
        {own_expected, reinterpret_cast<std::uint64_t>(own),
         kFutex32 | FUTEX_PRIVATE_FLAG, 0}};
    const int result = SleepOnTwo(words);
    if (result != -ENOSYS && result != -EPERM) return result > 0 ? 0 : result;
    two.store(Two::kRefused, std::memory_order_relaxed);
  }
  // A given time-out may be the application's, of some seconds: it should cause
  // no more wake-ups than needed.
  const timespec longest{timeout == nullptr ? 1 : 10, 0};
  const bool longer = timeout == nullptr || timeout->tv_sec >= longest.tv_sec;
  const int result =
      FutexSleep(word, expected, longer ? &longest : timeout, true);
  return longer && result == -ETIMEDOUT ? -EAGAIN : result;
}

[[gnu::noinline]] int EpollSleep(int set, epoll_event* events, int capacity,
                                 const timespec* timeout) {
  CheckMaySleep();
  int type;
  real::pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &type);
  long result = -ENOSYS;
  if (!refused.load(std::memory_order_relaxed)) {
    result = Call(SYS_epoll_pwait2, set, reinterpret_cast<long>(events),
                  capacity, reinterpret_cast<long>(timeout));
  }
  if (result < 0 && Refused(-result)) {
    result = Call(SYS_epoll_wait, set, reinterpret_cast<long>(events), capacity,
                  Milliseconds(timeout));
  }
  real::pthread_setcanceltype(type, nullptr);
  return static_cast<int>(result);
}

int EpollPwait(int set, epoll_event* events, int capacity,
               const timespec* timeout, const sigset_t* mask) {
  if (!refused.load(std::memory_order_relaxed)) {
    const int n = direct::epoll_pwait2(set, events, capacity, timeout, mask);
    if (n >= 0 || !Refused(errno)) return n;
  }
  return real::epoll_pwait(set, events, capacity, Milliseconds(timeout), mask);
}

}  // namespace rcsock::base
