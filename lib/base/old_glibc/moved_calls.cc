// Functions that glibc 2.34 moved from libpthread and libdl into libc. The
// preload calls them wherever they are, and has neither library as a
// dependency. The loader of a later glibc would open both at each exec,
// although they are empty there. unwinder.cc has the third library, libgcc_s.
//
// A call may come before any constructor, and before a sanitizer's runtime has
// begun. So this file calls only the loader and lib/base/image_symbols.h.

#include <dlfcn.h>
#include <link.h>

#include "lib/base/image_symbols.h"
#include "lib/base/old_glibc/forward.h"

namespace {

namespace base = rcsock::base;

// __libc_dlopen_mode of libc, on which libdl is built before glibc 2.34.
using OpenMode = void*(const char* path, int mode);
constexpr int kByDlopen = static_cast<int>(0x80000000);

// Returns the first definition in the order of loading but for this library's
// own, as the loader would have bound it.
void* Find(const char* name) {
  for (const link_map* image = _r_debug.r_map; image != nullptr;
       image = image->l_next) {
    if (image->l_ld == _DYNAMIC) continue;
    if (void* found = base::ImageSymbols(image).Find(name)) return found;
  }
  return nullptr;
}

// The program does not depend on libpthread and libdl, so nobody has loaded
// them. They become visible to all, as if this library depended on them.
void LoadOldLibraries() {
  const auto open = reinterpret_cast<OpenMode*>(Find("__libc_dlopen_mode"));
  if (open == nullptr) return;
  open("libpthread.so.0", RTLD_NOW | RTLD_GLOBAL | kByDlopen);
  open("libdl.so.2", RTLD_NOW | RTLD_GLOBAL | kByDlopen);
}

// Before the program begins: later a handler may make the first call, or a
// process that has left the folder of its libraries.
[[gnu::constructor]] void LoadEarly() {
  if (Find("pthread_create") == nullptr || Find("dlopen") == nullptr) {
    LoadOldLibraries();
  }
  // Looks for it before there are threads.
  dl_find_object none;
  static_cast<void>(::_dl_find_object(nullptr, &none));
}

}  // namespace

// Every glibc with which a program can begin under this library has the
// function, in libc or in one of the two.
extern "C" [[gnu::used, gnu::visibility("hidden")]] void* rcsock_find_moved(
    const char* name) {
  void* found = Find(name);
  if (found == nullptr) {
    LoadOldLibraries();
    found = Find(name);
  }
  if (found == nullptr) __builtin_trap();
  return found;
}

// For lib/base/image_symbols.h: glibc has it from 2.35 on.
extern "C" [[gnu::visibility("hidden")]] int _dl_find_object(
    void* address, dl_find_object* result) noexcept {
  static decltype(&::_dl_find_object) slot = nullptr;
  static bool looked = false;
  // Once: if the function is missing, the look goes on to what dlopen has
  // brought, and another thread may unload that meanwhile.
  if (!__atomic_load_n(&looked, __ATOMIC_ACQUIRE)) {
    __atomic_store_n(&slot,
                     reinterpret_cast<decltype(slot)>(Find("_dl_find_object")),
                     __ATOMIC_RELAXED);
    __atomic_store_n(&looked, true, __ATOMIC_RELEASE);
  }
  const auto found = __atomic_load_n(&slot, __ATOMIC_RELAXED);
  return found != nullptr ? found(address, result) : -1;
}

#define MOVED(name) RCSOCK_FORWARD(name, rcsock_find_moved)

MOVED(dladdr);
MOVED(dladdr1);
MOVED(dlclose);
MOVED(dlinfo);
MOVED(pthread_attr_setstacksize);
MOVED(pthread_condattr_setclock);
MOVED(pthread_detach);
MOVED(pthread_join);
MOVED(pthread_key_create);
MOVED(pthread_mutex_trylock);
MOVED(pthread_once);
MOVED(pthread_setname_np);
MOVED(pthread_setspecific);
MOVED(pthread_testcancel);
