#ifndef RCSOCK_TESTS_POSIX_HIDDEN_SYSCALL_H_
#define RCSOCK_TESTS_POSIX_HIDDEN_SYSCALL_H_

#include <sys/mman.h>

#include <cstring>

#include "tests/posix/pair.h"

// A system call that rcsock neither sees nor finds in the program's code: the
// instruction lies in memory that is written here, and nothing beside it tells
// the number.
inline long PastCall(long number, long a, long b, long c, long d) {
  constexpr unsigned char kCode[] = {
      0x48, 0x89, 0xf8,  // mov %rdi, %rax
      0x48, 0x89, 0xf7,  // mov %rsi, %rdi
      0x48, 0x89, 0xd6,  // mov %rdx, %rsi
      0x48, 0x89, 0xca,  // mov %rcx, %rdx
      0x4d, 0x89, 0xc2,  // mov %r8, %r10
      0x0f, 0x05,        // syscall
      0xc3,              // ret
  };
  static void* const memory = [&] {
    void* const at = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE | PROT_EXEC,
                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK_THAT(at != MAP_FAILED);
    std::memcpy(at, kCode, sizeof kCode);
    return at;
  }();
  return reinterpret_cast<long (*)(long, long, long, long, long)>(memory)(
      number, a, b, c, d);
}

#endif  // RCSOCK_TESTS_POSIX_HIDDEN_SYSCALL_H_
