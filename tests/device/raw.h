#ifndef RCSOCK_TESTS_DEVICE_RAW_H_
#define RCSOCK_TESTS_DEVICE_RAW_H_

#include <sys/syscall.h>

// System calls past libc.  The preload has hooks for libc's names, and for
// syscall() too; the device's own descriptors would be taken for the program's.
namespace fake_device {

// The kernel's answer: -errno on failure.  Leaves errno alone.
inline long Raw(long number, long a = 0, long b = 0, long c = 0, long d = 0,
                long e = 0, long f = 0) {
#if defined(__x86_64__)
  long result;
  register long r10 __asm__("r10") = d;
  register long r8 __asm__("r8") = e;
  register long r9 __asm__("r9") = f;
  __asm__ volatile("syscall"
                   : "=a"(result)
                   : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8),
                     "r"(r9)
                   : "rcx", "r11", "memory");
  return result;
#elif defined(__aarch64__)
  register long x8 __asm__("x8") = number;
  register long x0 __asm__("x0") = a;
  register long x1 __asm__("x1") = b;
  register long x2 __asm__("x2") = c;
  register long x3 __asm__("x3") = d;
  register long x4 __asm__("x4") = e;
  register long x5 __asm__("x5") = f;
  __asm__ volatile("svc 0"
                   : "+r"(x0)
                   : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5)
                   : "memory");
  return x0;
#else
#error "no system calls for this machine"
#endif
}

template <typename T>
long Arg(T* pointer) {
  return reinterpret_cast<long>(pointer);
}

}  // namespace fake_device

#endif  // RCSOCK_TESTS_DEVICE_RAW_H_
