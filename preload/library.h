#ifndef RCSOCK_PRELOAD_LIBRARY_H_
#define RCSOCK_PRELOAD_LIBRARY_H_

#include <dlfcn.h>

namespace rcsock::preload {

// Finds the definition that a library has of a function that the preload
// exports too. Get() returns null if that library is not loaded, or if it is
// too old. Any thread may call it.
template <class F>
class Library {
 public:
  // `sonames` ends with a null. The sonames say where to look if the library is
  // not in the program's global scope, as when it came with a plugin.
  constexpr Library(const char* name, const char* const* sonames)
      : name_(name), sonames_(sonames) {}

  F* Get() {
    void* found = __atomic_load_n(&found_, __ATOMIC_ACQUIRE);
    if (found == nullptr) {
      found = Look();
      // Two threads that race here store equal values.
      __atomic_store_n(&found_, found, __ATOMIC_RELEASE);
    }
    return reinterpret_cast<F*>(found);
  }

 private:
  void* Look() const {
    if (void* next = ::dlsym(RTLD_NEXT, name_)) return next;
    for (const char* const* soname = sonames_; *soname != nullptr; ++soname) {
      void* library = ::dlopen(*soname, RTLD_LAZY | RTLD_NOLOAD);
      if (library == nullptr) continue;
      if (void* found = ::dlsym(library, name_)) return found;
    }
    return nullptr;
  }

  const char* name_;
  const char* const* sonames_;
  void* found_ = nullptr;
};

}  // namespace rcsock::preload

#endif  // RCSOCK_PRELOAD_LIBRARY_H_
