// syscall(2), and the libraries that enter the kernel past libc. The linker
// sends the calls of this library's own code to __wrap_syscall (--wrap). So
// only the program's calls come to the exported symbol.

#include <sys/syscall.h>

#include <cerrno>
#include <cstdarg>

#include "lib/base/cancellation.h"
#include "lib/posix/hooks/hooks_raw.h"
#include "lib/posix/sys/identity.h"
#include "preload/library.h"

#define RCSOCK_EXPORT extern "C" __attribute__((visibility("default")))

namespace raw = rcsock::posix::raw;

static_assert(raw::kArguments == 6);

// Few calls pass six arguments. The last is read from the caller's stack,
// whatever is there, as libc's own syscall does.
#define RCSOCK_READS_ALL __attribute__((no_sanitize("address")))

extern "C" RCSOCK_READS_ALL long __wrap_syscall(long number, ...) {
  va_list arguments;
  va_start(arguments, number);
  long a[raw::kArguments];
  for (long& one : a) one = va_arg(arguments, long);
  va_end(arguments);
  register long r10 __asm__("r10") = a[3];
  register long r8 __asm__("r8") = a[4];
  register long r9 __asm__("r9") = a[5];
  long result;
  __asm__ volatile("syscall"
                   : "=a"(result)
                   : "a"(number), "D"(a[0]), "S"(a[1]), "d"(a[2]), "r"(r10),
                     "r"(r8), "r"(r9)
                   : "rcx", "r11", "memory");
  if (result < 0 && result > -4096) {
    errno = static_cast<int>(-result);
    return -1;
  }
  return result;
}

RCSOCK_EXPORT RCSOCK_READS_ALL long syscall(long number, ...) {
  va_list arguments;
  va_start(arguments, number);
  long a[raw::kArguments];
  for (long& one : a) one = va_arg(arguments, long);
  va_end(arguments);
  if (rcsock::base::Cancels() && !rcsock::posix::InBorrowedMemory()) {
    return rcsock::base::Cancellable<false>(
        [number, &a] { return raw::Syscall(number, a); });
  }
  return raw::Syscall(number, a);
}

// A library that is linked without --wrap would have the calls of this file
// come back to themselves. This reference keeps such a library from being
// linked.
extern "C" long __real_syscall(long number, ...);
extern "C" __attribute__((used)) long (*const rcsock_needs_wrap)(long, ...) =
    &__real_syscall;

// --- libaio

RCSOCK_EXPORT int io_submit(void* context, long count, void** blocks) {
  static constexpr const char* kSonames[] = {"libaio.so.1", "libaio.so.1t64",
                                             nullptr};
  static constinit rcsock::preload::Library<int(void*, long, void**)> next(
      "io_submit", kSonames);
  raw::BeforeAio(count, blocks);
  auto* submit = next.Get();
  return submit != nullptr ? submit(context, count, blocks) : -ENOSYS;
}

RCSOCK_EXPORT int pidfd_getfd(int process, int number, unsigned flags) {
  const long a[raw::kArguments] = {process, number, static_cast<long>(flags)};
  return static_cast<int>(raw::Syscall(SYS_pidfd_getfd, a));
}

RCSOCK_EXPORT int unshare(int flags) {
  const long a[raw::kArguments] = {flags};
  return static_cast<int>(raw::Syscall(SYS_unshare, a));
}
