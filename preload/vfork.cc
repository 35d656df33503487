// vfork. Its child borrows this process's memory, so it is counted before it is
// there (lib/posix/sys/identity.h).
//
// The function returns twice from one frame, and the child overwrites what lies
// below. So it makes the call itself and keeps the return address in a register
// meanwhile, as glibc does. The parent has its memory back when the call
// returns there.

#include <gnu/libc-version.h>
#include <sys/types.h>

#include <cerrno>
#include <cstdlib>

#include "lib/base/image_symbols.h"
#include "lib/posix/sys/identity.h"

namespace base = rcsock::base;
namespace posix = rcsock::posix;

namespace {

// Before 2.29 glibc makes children for system(), popen() and posix_spawn() by
// calls of its own, and handlers of the program may run in them. Before 2.25
// its vfork() notes for getpid() that the child is another process.
bool KnowsAllChildren() {
  const char* version = ::gnu_get_libc_version();
  char* rest = nullptr;
  const long major = std::strtol(version, &rest, 10);
  const long minor = *rest == '.' ? std::strtol(rest + 1, nullptr, 10) : 0;
  return major > 2 || (major == 2 && minor >= 29);
}

[[gnu::constructor, gnu::cold]] void AskAlways() {
  if (!KnowsAllChildren()) posix::LendMemoryForGood();
}

// Returns the vfork that stands behind the preload, if that has to make the
// call: glibc's own of such a version, or that of another library.
void* OtherVfork() {
  static const char kHere = 0;
  const link_map* ours = base::ImageAt(&kHere);
  void* next = base::FindBehind(ours, "vfork");
  void* libc = base::FindBehind(ours, "gnu_get_libc_version");
  const bool libcs = next != nullptr && libc != nullptr &&
                     base::ImageAt(next) == base::ImageAt(libc);
  return libcs && KnowsAllChildren() ? nullptr : next;
}

}  // namespace

extern "C" {

// Returns the function to go on to, or null: then the caller makes the call.
[[gnu::used]] void* rcsock_before_vfork() {
  static void* other = nullptr;
  static bool looked = false;
  // Threads that race here find equal pointers.
  if (!__atomic_load_n(&looked, __ATOMIC_ACQUIRE)) {
    __atomic_store_n(&other, OtherVfork(), __ATOMIC_RELAXED);
    __atomic_store_n(&looked, true, __ATOMIC_RELEASE);
  }
  void* next = __atomic_load_n(&other, __ATOMIC_RELAXED);
  next == nullptr ? posix::LendMemory() : posix::LendMemoryForGood();
  return next;
}

// In the parent. Returns what vfork returns.
[[gnu::used]] pid_t rcsock_after_vfork(long result) {
  posix::TakeMemoryBack();
  if (result >= 0) return static_cast<pid_t>(result);
  errno = static_cast<int>(-result);
  return -1;
}

}  // extern "C"

__asm__(
    ".pushsection .text\n"
    ".globl vfork\n"
    ".type vfork, @function\n"
    ".p2align 4\n"
    "vfork:\n"
    ".cfi_startproc\n"
    "endbr64\n"
    "sub $8, %rsp\n"
    ".cfi_adjust_cfa_offset 8\n"
    "call rcsock_before_vfork\n"
    "add $8, %rsp\n"
    ".cfi_adjust_cfa_offset -8\n"
    "test %rax, %rax\n"
    "jne 1f\n"
    "pop %rdi\n"
    ".cfi_adjust_cfa_offset -8\n"
    ".cfi_register %rip, %rdi\n"
    "mov $58, %eax\n"  // SYS_vfork
    "syscall\n"
    "push %rdi\n"
    ".cfi_adjust_cfa_offset 8\n"
    ".cfi_rel_offset %rip, 0\n"
    "test %rax, %rax\n"
    "je 2f\n"
    "mov %rax, %rdi\n"
    "jmp rcsock_after_vfork\n"
    "2:\n"
    "ret\n"
    "1:\n"
    "jmp *%rax\n"
    ".cfi_endproc\n"
    ".size vfork, . - vfork\n"
    ".globl __vfork\n"
    ".type __vfork, @function\n"
    ".set __vfork, vfork\n"
    ".popsection\n");
