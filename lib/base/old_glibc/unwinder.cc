// libgcc_s, which unwinds the stack for an exception or a cancelled thread. The
// preload does not name it. Many programs do not name it either, and each of
// their starts would pay for it: its constructors run CPUID, which leaves a
// virtual machine some twenty times.
//
// There must be one unwinder for all frames of a thread: glibc unwinds a
// cancelled thread with libgcc_s, and another copy cannot read its state. So
// the unwinder is the one that the loader would have bound:
//
// - the first image that defines it, of those that the process starts with, or
// - libgcc_s.  It is loaded at the start of a program that calls socket() and
//   the like.  In others it is loaded when rcsock may throw
//   (lib/base/unwinder.h), or when glibc unwinds with it.

#include "lib/base/unwinder.h"

#include <dlfcn.h>
#include <link.h>

#include <iterator>

#include "lib/base/first_root.h"
#include "lib/base/image_symbols.h"
#include "lib/base/old_glibc/forward.h"

namespace {

namespace base = rcsock::base;

constexpr char kLibrary[] = "libgcc_s.so.1";
constexpr char kAny[] = "_Unwind_Resume";

bool IsOurs(const link_map* image) { return image->l_ld == _DYNAMIC; }

// Stays loaded.
const link_map* unwinder = nullptr;

void Use(const link_map* image) {
  __atomic_store_n(&unwinder, image, __ATOMIC_RELEASE);
}

// Somebody may have loaded the library, and may unload it: so this adds a
// reference.
[[gnu::cold]] const link_map* Load() {
  const link_map* ours = _r_debug.r_map;
  while (ours != nullptr && !IsOurs(ours)) ours = ours->l_next;
  if (ours == nullptr) return nullptr;
  const auto open =
      reinterpret_cast<decltype(&::dlopen)>(base::FindBehind(ours, "dlopen"));
  if (open == nullptr) return nullptr;
  void* handle = open(kLibrary, RTLD_NOW | RTLD_NOLOAD);
  if (handle == nullptr && base::InFirstRoot()) {
    handle = open(kLibrary, RTLD_NOW);
  }
  // Other threads may load and unload images, so this does not look for it
  // among all.
  const link_map* image = nullptr;
  if (handle == nullptr || ::dlinfo(handle, RTLD_DI_LINKMAP, &image) != 0 ||
      base::ImageSymbols(image).Find(kAny) == nullptr) {
    return nullptr;
  }
  Use(image);
  return image;
}

const link_map* Unwinder() {
  const link_map* image = __atomic_load_n(&unwinder, __ATOMIC_ACQUIRE);
  return image != nullptr ? image : Load();
}

// What a program calls that makes connections, accepts them, or gets them.
constexpr const char* kCalls[] = {"socket",  "connect",     "listen", "accept",
                                  "accept4", "getpeername", "recvmsg"};

// The libraries that the process starts with stay loaded.  A program that has
// connections gets libgcc_s now: later it may have changed its root, or be
// about to wait for a thread that has the loader's lock.  The program is the
// loader's first image.
[[gnu::constructor, gnu::cold]] void LookEarly() {
  base::make_ready_to_throw = [] { return Unwinder() != nullptr; };
  for (const link_map* image = _r_debug.r_map; image != nullptr;
       image = image->l_next) {
    if (!IsOurs(image) && base::ImageSymbols(image).Find(kAny) != nullptr) {
      return Use(image);
    }
  }
  if (base::ImageSymbols(_r_debug.r_map)
          .ImportsAny(kCalls, std::size(kCalls))) {
    Load();
  }
}

}  // namespace

extern "C" {

// A thread that throws has called base::ReadyToThrow() before. If a thread is
// unwound, glibc has loaded the library.
[[gnu::used, gnu::visibility("hidden")]] void* rcsock_find_unwinder(
    const char* name) {
  const link_map* image = Unwinder();
  void* found = nullptr;
  if (image != nullptr) found = base::ImageSymbols(image).Find(name);
  if (found == nullptr) __builtin_trap();
  return found;
}

}  // extern "C"

#define UNWINDS(name) RCSOCK_FORWARD(name, rcsock_find_unwinder)

UNWINDS(_Unwind_DeleteException);
UNWINDS(_Unwind_GetDataRelBase);
UNWINDS(_Unwind_GetIPInfo);
UNWINDS(_Unwind_GetLanguageSpecificData);
UNWINDS(_Unwind_GetRegionStart);
UNWINDS(_Unwind_GetTextRelBase);
UNWINDS(_Unwind_RaiseException);
UNWINDS(_Unwind_Resume);
UNWINDS(_Unwind_Resume_or_Rethrow);
UNWINDS(_Unwind_SetGR);
UNWINDS(_Unwind_SetIP);
