// The loader's functions. A look-up in libc's handle finds what a look-up by
// default does. What dlopen brings is checked (lib/posix/lifecycle/raw_code.h).
//
// The loader's functions depend on their caller: RTLD_NEXT, RTLD_DEFAULT and
// the folders that dlopen searches. So each function here begins as an entry
// that can go on to the loader's own function as if the program had called
// that.
//
// The first caller may be a sanitizer or a malloc library that has not begun,
// and whose strcmp() or memory does not work yet. So a look-up calls only the
// loader and lib/base/image_symbols.h, and has no static object that is
// initialised under a guard. Sanitizers do not instrument this file.

#include <dlfcn.h>

#include "lib/base/alone.h"
#include "lib/base/image_symbols.h"
#include "lib/base/internal.h"
#include "lib/posix/lifecycle/raw_code.h"
#include "lib/posix/sys/identity.h"

namespace base = rcsock::base;
namespace raw_code = rcsock::posix::raw_code;

// What an entry does: it jumps to `next`, or returns `result` if `next` is
// null.
struct Route {
  void* next;
  void* result;
};

// The entries keep the arguments, and add the caller's address.
#define ENTRY(name, caller_register)    \
  __asm__(                              \
      ".pushsection .text\n"            \
      ".globl " #name                   \
      "\n"                              \
      ".type " #name                    \
      ", @function\n"                   \
      ".p2align 4\n" #name              \
      ":\n"                             \
      ".cfi_startproc\n"                \
      "endbr64\n"                       \
      "push %rdi\n"                     \
      ".cfi_adjust_cfa_offset 8\n"      \
      "push %rsi\n"                     \
      ".cfi_adjust_cfa_offset 8\n"      \
      "push %rdx\n"                     \
      ".cfi_adjust_cfa_offset 8\n"      \
      "mov 24(%rsp), %" caller_register \
      "\n"                              \
      "call rcsock_route_" #name        \
      "\n"                              \
      "test %rax, %rax\n"               \
      "jne 1f\n"                        \
      "mov %rdx, %rax\n"                \
      "add $24, %rsp\n"                 \
      ".cfi_remember_state\n"           \
      ".cfi_adjust_cfa_offset -24\n"    \
      "ret\n"                           \
      "1:\n"                            \
      ".cfi_restore_state\n"            \
      "mov %rax, %r11\n"                \
      "pop %rdx\n"                      \
      ".cfi_adjust_cfa_offset -8\n"     \
      "pop %rsi\n"                      \
      ".cfi_adjust_cfa_offset -8\n"     \
      "pop %rdi\n"                      \
      ".cfi_adjust_cfa_offset -8\n"     \
      "jmp *%r11\n"                     \
      ".cfi_endproc\n"                  \
      ".size " #name ", . - " #name     \
      "\n"                              \
      ".popsection\n")

ENTRY(dlsym, "rdx");
ENTRY(dlvsym, "rcx");
ENTRY(dlopen, "rdx");
ENTRY(dlmopen, "rcx");

namespace {

// Finds the object once. Threads that race here find equal pointers.
template <class T, class Find>
T* Once(T** slot, Find&& find) {
  T* found = __atomic_load_n(slot, __ATOMIC_ACQUIRE);
  if (found == nullptr) {
    found = find();
    __atomic_store_n(slot, found, __ATOMIC_RELEASE);
  }
  return found;
}

const link_map* Ours() {
  static const char kHere = 0;
  static const link_map* image = nullptr;
  return Once(&image, [] { return base::ImageAt(&kHere); });
}

// Returns the loader's own function.
template <class F>
F* Next(void** slot, const char* name) {
  return reinterpret_cast<F*>(
      Once(slot, [=] { return base::FindBehind(Ours(), name); }));
}
#define NEXT(name)             \
  static void* slot = nullptr; \
  auto* next = Next<decltype(::name)>(&slot, #name)

// Returns true for a function of this namespace's glibc.
bool IsLibcs(const void* function) {
  const link_map* image = base::ImageAt(function);
  if (image == nullptr || image->l_name == nullptr) return false;
  static const link_map* libc = nullptr;
  if (image == Once(&libc, [] {
        return base::ImageAt(base::FindBehind(Ours(), "gnu_get_libc_version"));
      })) {
    return true;
  }
  // Before glibc 2.34 it had several libraries.
  const char* name = image->l_name;
  for (const char* at = name; *at != '\0'; ++at) {
    if (*at == '/') name = at + 1;
  }
  for (const char* one : {"libpthread.so.0", "librt.so.1", "libdl.so.2"}) {
    if (!base::SameText(name, one)) continue;
    for (const link_map* next = Ours(); next != nullptr; next = next->l_next) {
      if (next == image) return true;
    }
  }
  return false;
}

// Returns what a look-up of `name` that has found `found` is to say.
void* Instead(void* found, const char* name, const void* caller) {
  if (found == nullptr) return nullptr;
  const base::ImageSymbols ours(Ours());
  void* our_own = ours.Find(name);
  if (our_own == nullptr || our_own == found || !IsLibcs(found)) return found;
  // A library that stands before libc itself asks for what comes next.
  const link_map* image = base::ImageAt(caller);
  if (image == nullptr) return found;
  const base::ImageSymbols its(image);
  if (its.Find(name) != nullptr) return found;
  // A library behind us may define not `name`, but a name that our function
  // would call: fcntl, for example, when the library looks for fcntl64. The
  // program stands before us: we call none of its functions.
  if (image->l_prev != nullptr &&
      its.SharesNameWith(ours, base::ImageSymbols(base::ImageAt(found)))) {
    return found;
  }
  return our_own;
}

bool IsPseudo(const void* handle) {
  return handle == RTLD_NEXT || handle == RTLD_DEFAULT;
}

// Returns true if the loader searches the same folders for rcsock as for the
// caller.
//
// The loader searches a name without a slash in the folders that the caller
// names by DT_RUNPATH or DT_RPATH. It also searches the DT_RPATH of the library
// that needs the caller, of the library that needs that library, and so on. The
// loader does not say which library needs which. No library needs the program.
bool AsForUs(const char* path, const void* caller) {
  if (base::HasCharacter(path, '$')) return false;
  const link_map* image = base::ImageAt(caller);
  if (image == nullptr) return false;
  Lmid_t space = LM_ID_NEWLM;
  if (::dlinfo(const_cast<link_map*>(image), RTLD_DI_LMID, &space) != 0 ||
      space != LM_ID_BASE) {
    return false;
  }
  if (base::HasCharacter(path, '/')) return true;
  const bool program = image->l_prev == nullptr;
  return !base::HasSearchPath(image) && (program || !base::AnyInheritedPath());
}

bool LoadsNothing(const char* path, int flags) {
  return path == nullptr || (flags & RTLD_NOLOAD) != 0 || base::tls_internal ||
         rcsock::posix::InBorrowedMemory();
}

}  // namespace

extern "C" {

__attribute__((used)) Route rcsock_route_dlsym(void* handle, const char* name,
                                               const void* caller) {
  NEXT(dlsym);
  if (IsPseudo(handle) || name == nullptr) {
    return {reinterpret_cast<void*>(next), nullptr};
  }
  return {nullptr, Instead(next(handle, name), name, caller)};
}

__attribute__((used)) Route rcsock_route_dlvsym(void* handle, const char* name,
                                                const char* version,
                                                const void* caller) {
  NEXT(dlvsym);
  if (IsPseudo(handle) || name == nullptr) {
    return {reinterpret_cast<void*>(next), nullptr};
  }
  return {nullptr, Instead(next(handle, name, version), name, caller)};
}

__attribute__((used)) Route rcsock_route_dlopen(const char* path, int flags,
                                                const void* caller) {
  NEXT(dlopen);
  if (LoadsNothing(path, flags)) {
    return {reinterpret_cast<void*>(next), nullptr};
  }
  // Such a library finds libc's vfork, and its child may run the program's
  // code.  So may a thread that it makes, or cancels.
  if ((flags & RTLD_DEEPBIND) != 0) {
    rcsock::posix::LendMemoryForGood();
    rcsock::base::EndAlone();
  }
  if (!AsForUs(path, caller)) {
    raw_code::BeforeUnseenOpen();
    return {reinterpret_cast<void*>(next), nullptr};
  }
  void* handle = next(path, flags);
  if (handle != nullptr) raw_code::AfterOpen();
  return {nullptr, handle};
}

__attribute__((used)) Route rcsock_route_dlmopen(Lmid_t space, const char* path,
                                                 int flags,
                                                 const void* caller) {
  NEXT(dlmopen);
  if (LoadsNothing(path, flags)) {
    return {reinterpret_cast<void*>(next), nullptr};
  }
  // It has a libc of its own, with a vfork that nobody sees.
  rcsock::posix::LendMemoryForGood();
  rcsock::base::EndAlone();
  if (!AsForUs(path, caller)) {
    raw_code::BeforeUnseenOpen();
    return {reinterpret_cast<void*>(next), nullptr};
  }
  void* handle = next(space, path, flags);
  if (handle != nullptr) raw_code::AfterOpen();
  return {nullptr, handle};
}

}  // extern "C"
