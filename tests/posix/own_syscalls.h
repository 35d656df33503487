#ifndef RCSOCK_TESTS_POSIX_OWN_SYSCALLS_H_
#define RCSOCK_TESTS_POSIX_OWN_SYSCALLS_H_

#include <cerrno>

// A system call by machine code of the program, as Rust's rustix and Zig's
// standard library make them.
template <long number>
inline long OwnCall(long a, long b = 0, long c = 0, long d = 0, long e = 0,
                    long f = 0) {
  register long fourth asm("r10") = d;
  register long fifth asm("r8") = e;
  register long sixth asm("r9") = f;
  long result = number;
  asm volatile("syscall"
               : "+a"(result)
               : "D"(a), "S"(b), "d"(c), "r"(fourth), "r"(fifth), "r"(sixth)
               : "rcx", "r11", "memory");
  if (result < 0) {
    errno = static_cast<int>(-result);
    return -1;
  }
  return result;
}

template <class T>
long Word(T* pointer) {
  return reinterpret_cast<long>(pointer);
}

#endif  // RCSOCK_TESTS_POSIX_OWN_SYSCALLS_H_
