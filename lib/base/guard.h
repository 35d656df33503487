#ifndef RCSOCK_LIB_BASE_GUARD_H_
#define RCSOCK_LIB_BASE_GUARD_H_

#include <cstddef>
#include <cstdint>
#include <cstring>

// Accesses to memory that the program has named, and that may not be there. As
// with the kernel's copy_from_user and copy_to_user, a fault is a result, and
// ends no process.
//
// As in the kernel, each instruction that may fault has an entry in a table,
// which says where to go on. The handler of SIGSEGV and SIGBUS
// (lib/posix/thread/signals.cc) looks only in this table, so any other fault is
// handled as it would be without rcsock. An access that does not fault costs no
// extra instruction.
//
// Long pieces are copied by memcpy, after an access to one byte of each page.
// If another thread takes a page away in between, the program ends.
//
// Sanitizers have handlers of their own, and do not see what assembly does.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define RCSOCK_GUARDS 0
#else
#define RCSOCK_GUARDS 1
#endif

namespace rcsock::base {

// Takes a ucontext_t. Returns true if the instruction is in the table, and
// makes the context leave it. Safe in a signal handler.
bool FixFault(void* context);

// True if a call has moved nothing because of a fault.
extern thread_local constinit bool tls_fault
    __attribute__((tls_model("initial-exec")));
inline bool TakeFault() {
  const bool fault = tls_fault;
  if (fault) tls_fault = false;
  return fault;
}

#if RCSOCK_GUARDS

// Each asm below is volatile. Otherwise the compiler would leave out an access
// with an unused result, and its fault too.
//
// RCSOCK_GUARD makes the table's entry for the instruction at this local label:
// the instruction, and the label `fault`. The entry is in the group, if any, of
// the function that it is compiled into.
#define RCSOCK_GUARD(label)                       \
  ".pushsection rcsock_guards,\"a?\",@progbits\n" \
  ".long " #label                                 \
  "b - .\n"                                       \
  ".long %l[fault] - .\n"                         \
  ".popsection\n"

constexpr std::size_t kGuardPage = 4096;

[[gnu::always_inline]] inline bool ReadableEnds(const void* at, std::size_t n) {
  asm volatile goto(
      "1: testb %%al, (%[at])\n"
      "2: testb %%al, -1(%[at],%[n])\n"  //
      RCSOCK_GUARD(1) RCSOCK_GUARD(2)
      :
      : [at] "r"(at), [n] "r"(n)
      : "cc"
      : fault);
  return true;
fault:
  return false;
}
[[gnu::always_inline]] inline bool PutEnds(void* to, const void* from,
                                           std::size_t n) {
  asm volatile goto(
      "movzbl (%[from]), %%eax\n"
      "1: movb %%al, (%[to])\n"
      "movzbl -1(%[from],%[n]), %%eax\n"
      "2: movb %%al, -1(%[to],%[n])\n"  //
      RCSOCK_GUARD(1) RCSOCK_GUARD(2)
      :
      : [to] "r"(to), [from] "r"(from), [n] "r"(n)
      : "rax", "memory"
      : fault);
  return true;
fault:
  return false;
}
// For more than a page.
[[gnu::cold]] bool ReadablePages(const void* at, std::size_t n);
[[gnu::cold]] bool PutPages(void* to, const void* from, std::size_t n);

// Returns true if the `n` > 0 bytes can be read.
[[gnu::always_inline]] inline bool Readable(const void* at, std::size_t n) {
  return ReadableEnds(at, n) && (n <= kGuardPage || ReadablePages(at, n));
}
// Returns true if the `n` > 0 bytes can be written. Writes some of them, as
// memcpy would.
[[gnu::always_inline]] inline bool Writable(void* to, const void* from,
                                            std::size_t n) {
  return PutEnds(to, from, n) && (n <= kGuardPage || PutPages(to, from, n));
}

// *to = *from of a word, or *to = value, by the one instruction that the access
// takes anyway. Returns false at a fault.
template <class T>
[[gnu::always_inline]] inline bool TryLoad(const T* from, T* to) {
  static_assert(sizeof(T) == 2 || sizeof(T) == 4 || sizeof(T) == 8);
  asm volatile goto("1: mov %[from], %[to]\n"  //
                    RCSOCK_GUARD(1)
                    : [to] "=r"(*to)
                    : [from] "m"(*from)
                    :
                    : fault);
  return true;
fault:
  return false;
}
template <class T>
[[gnu::always_inline]] inline bool TryStore(T* to, T value) {
  static_assert(sizeof(T) == 2 || sizeof(T) == 4 || sizeof(T) == 8);
  asm volatile goto("1: mov %[value], %[to]\n"  //
                    RCSOCK_GUARD(1)
                    : [to] "=m"(*to)
                    : [value] "r"(value)
                    :
                    : fault);
  return true;
fault:
  return false;
}

// Stores the two fields of an epoll_event, which is packed.
[[gnu::always_inline]] inline bool TryTell(void* to, std::uint32_t events,
                                           std::uint64_t data) {
  asm volatile goto(
      "1: movl %[events], (%[to])\n"
      "2: movq %[data], 4(%[to])\n"  //
      RCSOCK_GUARD(1) RCSOCK_GUARD(2)
      :
      : [to] "r"(to), [events] "ri"(events), [data] "r"(data)
      : "memory"
      : fault);
  return true;
fault:
  return false;
}

// memcpy of at most 128 bytes, in line. Returns false at a fault; some bytes
// may have been copied.
[[gnu::always_inline]] inline bool TrySmall(void* to, const void* from,
                                            std::size_t n) {
  if (n < 16) {
    if (n >= 8) {
      asm volatile goto(
          "1: movq (%[from]), %%rax\n"
          "2: movq %%rax, (%[to])\n"
          "3: movq -8(%[from],%[n]), %%rax\n"
          "4: movq %%rax, -8(%[to],%[n])\n"  //
          RCSOCK_GUARD(1) RCSOCK_GUARD(2) RCSOCK_GUARD(3) RCSOCK_GUARD(4)
          :
          : [to] "r"(to), [from] "r"(from), [n] "r"(n)
          : "rax", "memory"
          : fault);
    } else {
      for (std::size_t i = 0; i < n; ++i) {
        asm volatile goto(
            "1: movzbl (%[from],%[i]), %%eax\n"
            "2: movb %%al, (%[to],%[i])\n"  //
            RCSOCK_GUARD(1) RCSOCK_GUARD(2)
            :
            : [to] "r"(to), [from] "r"(from), [i] "r"(i)
            : "rax", "memory"
            : fault);
      }
    }
  } else if (n <= 32) {
    asm volatile goto(
        "1: movdqu (%[from]), %%xmm0\n"
        "2: movups %%xmm0, (%[to])\n"
        "3: movdqu -16(%[from],%[n]), %%xmm1\n"
        "4: movups %%xmm1, -16(%[to],%[n])\n"  //
        RCSOCK_GUARD(1) RCSOCK_GUARD(2) RCSOCK_GUARD(3) RCSOCK_GUARD(4)
        :
        : [to] "r"(to), [from] "r"(from), [n] "r"(n)
        : "xmm0", "xmm1", "memory"
        : fault);
  } else if (n <= 64) {
    asm volatile goto(
        "1: movdqu (%[from]), %%xmm0\n"
        "2: movdqu 16(%[from]), %%xmm1\n"
        "3: movups %%xmm0, (%[to])\n"
        "4: movups %%xmm1, 16(%[to])\n"
        "5: movdqu -32(%[from],%[n]), %%xmm0\n"
        "6: movdqu -16(%[from],%[n]), %%xmm1\n"
        "7: movups %%xmm0, -32(%[to],%[n])\n"
        "8: movups %%xmm1, -16(%[to],%[n])\n"  //
        RCSOCK_GUARD(1) RCSOCK_GUARD(2) RCSOCK_GUARD(3) RCSOCK_GUARD(4)
            RCSOCK_GUARD(5) RCSOCK_GUARD(6) RCSOCK_GUARD(7) RCSOCK_GUARD(8)
        :
        : [to] "r"(to), [from] "r"(from), [n] "r"(n)
        : "xmm0", "xmm1", "memory"
        : fault);
  } else {
    // All bytes lie on two pages. The first access touches all of the first
    // page that is used, and the last access all of the last page.
    asm volatile goto(
        "1: movdqu (%[from]), %%xmm0\n"
        "2: movdqu 16(%[from]), %%xmm1\n"
        "3: movdqu 32(%[from]), %%xmm2\n"
        "4: movdqu 48(%[from]), %%xmm3\n"
        "5: movups %%xmm0, (%[to])\n"
        "6: movups %%xmm1, 16(%[to])\n"
        "7: movups %%xmm2, 32(%[to])\n"
        "8: movups %%xmm3, 48(%[to])\n"
        "11: movdqu -64(%[from],%[n]), %%xmm0\n"
        "12: movdqu -48(%[from],%[n]), %%xmm1\n"
        "13: movdqu -32(%[from],%[n]), %%xmm2\n"
        "14: movdqu -16(%[from],%[n]), %%xmm3\n"
        "15: movups %%xmm0, -64(%[to],%[n])\n"
        "16: movups %%xmm1, -48(%[to],%[n])\n"
        "17: movups %%xmm2, -32(%[to],%[n])\n"
        "18: movups %%xmm3, -16(%[to],%[n])\n"  //
        RCSOCK_GUARD(1) RCSOCK_GUARD(2) RCSOCK_GUARD(3) RCSOCK_GUARD(4)
            RCSOCK_GUARD(5) RCSOCK_GUARD(6) RCSOCK_GUARD(7) RCSOCK_GUARD(8)
                RCSOCK_GUARD(11) RCSOCK_GUARD(12) RCSOCK_GUARD(13)
                    RCSOCK_GUARD(14) RCSOCK_GUARD(15) RCSOCK_GUARD(16)
                        RCSOCK_GUARD(17) RCSOCK_GUARD(18)
        :
        : [to] "r"(to), [from] "r"(from), [n] "r"(n)
        : "xmm0", "xmm1", "xmm2", "xmm3", "memory"
        : fault);
  }
  return true;
fault:
  return false;
}

#else

inline bool Readable(const void*, std::size_t) { return true; }
inline bool Writable(void*, const void*, std::size_t) { return true; }
template <class T>
bool TryLoad(const T* from, T* to) {
  *to = *from;
  return true;
}
template <class T>
bool TryStore(T* to, T value) {
  *to = value;
  return true;
}
inline bool TryTell(void* to, std::uint32_t events, std::uint64_t data) {
  std::memcpy(to, &events, sizeof events);
  std::memcpy(static_cast<char*>(to) + sizeof events, &data, sizeof data);
  return true;
}
inline bool TrySmall(void* to, const void* from, std::size_t n) {
  std::memcpy(to, from, n);
  return true;
}

#endif

// memcpy to, or from, memory that the program has named. Returns false at a
// fault; some bytes may have been copied.
inline bool TryPut(void* to, const void* from, std::size_t n) {
  if (n == 0) return true;
  if (!Writable(to, from, n)) return false;
  std::memcpy(to, from, n);
  return true;
}
inline bool TryGet(void* to, const void* from, std::size_t n) {
  if (n == 0) return true;
  if (!Readable(from, n)) return false;
  std::memcpy(to, from, n);
  return true;
}

}  // namespace rcsock::base

#endif  // RCSOCK_LIB_BASE_GUARD_H_
