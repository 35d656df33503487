#include "lib/base/sleep.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>

namespace rcsock::base {

// While cancellation is asynchronous the thread may be unwound from any
// instruction.  So this function has nothing to clean up (then the unwinder
// does not ask its tables where a call may throw), and the system call is made
// here and not by syscall(), which is declared to throw nothing.  libc's own
// blocking calls do the same.
[[gnu::noinline]] int FutexSleep(const void* word, std::uint32_t expected,
                                 const timespec* timeout, bool shared) {
  int type;
  ::pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &type);
  long result = SYS_futex;
  register const timespec* limit asm("r10") = timeout;
  register const void* second asm("r8") = nullptr;
  register long mask asm("r9") = 0;
  asm volatile(
      "syscall"
      : "+a"(result)
      : "D"(word),
        "S"(static_cast<long>(FUTEX_WAIT | (shared ? 0 : FUTEX_PRIVATE_FLAG))),
        "d"(static_cast<unsigned long>(expected)), "r"(limit), "r"(second),
        "r"(mask)
      : "rcx", "r11", "memory");
  ::pthread_setcanceltype(type, nullptr);
  return static_cast<int>(result);
}

}  // namespace rcsock::base
