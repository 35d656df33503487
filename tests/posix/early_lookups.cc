// Stands in front of the preload or behind it, as a malloc library or a
// sanitizer does: it defines functions of libc, and finds libc's own by dlsym()
// when they are called first.  While it looks none of them works.
//
// EARLY=front or behind says where it stands.
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include <atomic>

namespace {

__thread bool looking __attribute__((tls_model("initial-exec"))) = false;

// (The preload's own write() may call what does not work.)
[[noreturn]] void Fail(const char* text) {
  static bool failing = false;
  if (!failing) {
    failing = true;
    ::dprintf(2, "early: %s\n", text);
  }
  __builtin_trap();
}

void* Next(std::atomic<void*>* slot, const char* name) {
  void* found = slot->load(std::memory_order_relaxed);
  if (found != nullptr) return found;
  if (looking) Fail(name);
  looking = true;
  found = ::dlsym(RTLD_NEXT, name);
  looking = false;
  if (found == nullptr) Fail("not found");
  slot->store(found, std::memory_order_relaxed);
  return found;
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

#define LATER(result, name, params, args)                               \
  result name params {                                                  \
    static std::atomic<void*> slot;                                     \
    return reinterpret_cast<result(*) params>(Next(&slot, #name)) args; \
  }

LATER(int, strcmp, (const char* a, const char* b) noexcept, (a, b))
LATER(int, strncmp, (const char* a, const char* b, size_t n) noexcept,
      (a, b, n))
LATER(size_t, strlen, (const char* a) noexcept, (a))
LATER(int, memcmp, (const void* a, const void* b, size_t n) noexcept, (a, b, n))
LATER(void*, memcpy, (void* a, const void* b, size_t n) noexcept, (a, b, n))
LATER(void*, memmove, (void* a, const void* b, size_t n) noexcept, (a, b, n))
LATER(void*, memset, (void* a, int b, size_t n) noexcept, (a, b, n))
LATER(void*, malloc, (size_t n) noexcept, (n))
LATER(void*, calloc, (size_t m, size_t n) noexcept, (m, n))
LATER(void*, realloc, (void* a, size_t n) noexcept, (a, n))
LATER(void, free, (void* a) noexcept, (a))
LATER(int, pthread_mutex_lock, (pthread_mutex_t * a) noexcept, (a))
LATER(int, pthread_mutex_unlock, (pthread_mutex_t * a) noexcept, (a))

LATER(char*, strchr, (const char* a, int b) noexcept, (a, b))
LATER(char*, strrchr, (const char* a, int b) noexcept, (a, b))
LATER(char*, strstr, (const char* a, const char* b) noexcept, (a, b))

}  // extern "C"
#pragma GCC visibility pop

namespace {

__attribute__((constructor)) void Look() {
  const char* where = ::getenv("EARLY");
  if (where == nullptr) Fail("EARLY is not set");
  looking = true;
  void* next = ::dlsym(RTLD_NEXT, "send");
  void* by_default = ::dlsym(RTLD_DEFAULT, "send");
  if (next == nullptr || by_default == nullptr) Fail("no send");
  if ((next == by_default) != (where[0] == 'f')) Fail("another send is next");
  if (::dlvsym(RTLD_NEXT, "memcpy", "GLIBC_2.14") == nullptr) Fail("no memcpy");
  void* libc = ::dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD);
  if (libc == nullptr) Fail("no libc");
  if (::dlsym(libc, "send") != by_default) Fail("another send in the handle");
  if (::dlvsym(libc, "send", "GLIBC_2.2.5") != by_default) {
    Fail("another send of that version in the handle");
  }
  if (::dlsym(libc, "strcmp") == ::dlsym(RTLD_DEFAULT, "strcmp")) {
    Fail("the handle's strcmp is not libc's");
  }
  if (::dlopen("libm.so.6", RTLD_NOW) == nullptr) Fail("no libm");
  looking = false;
  ::dlclose(libc);
}

}  // namespace
