#include "lib/base/sleep.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>

#include <cerrno>

#include "lib/base/real.h"

namespace rcsock::base {

// While cancellation is asynchronous the thread may be unwound from any
// instruction.  So the functions that let it be so have nothing to clean up
// (then the unwinder does not ask their tables where a call may throw), and the
// system call is made here and not by syscall(), which is declared to throw
// nothing.  libc's own blocking calls do the same.  (Not the program's
// pthread_setcanceltype(): what this thread sets here is no wish of the
// program's.)

namespace {

[[gnu::always_inline]] inline long Call(long number, long a, long b, long c,
                                        long d) {
  long result = number;
  register long fourth asm("r10") = d;
  register const void* fifth asm("r8") = nullptr;
  register long sixth asm("r9") =
      8;  // a signal mask's size, had there been one
  asm volatile("syscall"
               : "+a"(result)
               : "D"(a), "S"(b), "d"(c), "r"(fourth), "r"(fifth), "r"(sixth)
               : "rcx", "r11", "memory");
  return result;
}

}  // namespace

[[gnu::noinline]] int FutexSleep(const void* word, std::uint32_t expected,
                                 const timespec* timeout, bool shared) {
  int type;
  real::pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &type);
  const long result =
      Call(SYS_futex, reinterpret_cast<long>(word),
           FUTEX_WAIT | (shared ? 0 : FUTEX_PRIVATE_FLAG),
           static_cast<long>(expected), reinterpret_cast<long>(timeout));
  real::pthread_setcanceltype(type, nullptr);
  return static_cast<int>(result);
}

[[gnu::noinline]] int EpollSleep(int set, epoll_event* events, int capacity,
                                 const timespec* timeout) {
  int type;
  real::pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &type);
  long result = Call(SYS_epoll_pwait2, set, reinterpret_cast<long>(events),
                     capacity, reinterpret_cast<long>(timeout));
  if (result == -ENOSYS) {
    // Longer than an int of milliseconds: it ends early, and is looked at.
    constexpr long kMostMs = 1'000'000'000;
    long ms = -1;
    if (timeout != nullptr) {
      ms = timeout->tv_sec >= kMostMs / 1000
               ? kMostMs
               : timeout->tv_sec * 1000 +
                     (timeout->tv_nsec + 999'999) / 1'000'000;
    }
    result =
        Call(SYS_epoll_wait, set, reinterpret_cast<long>(events), capacity, ms);
  }
  real::pthread_setcanceltype(type, nullptr);
  return static_cast<int>(result);
}

}  // namespace rcsock::base
