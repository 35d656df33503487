#include "lib/base/real.h"

#include <dlfcn.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>

#include "lib/base/log.h"
#include "lib/base/resolve.h"

extern "C" __attribute__((weak, visibility("default")))
const int rcsock_posix_names;

namespace rcsock::real {
namespace {

// The answer of a call that this libc does not have.
long Missing() {
  errno = ENOSYS;
  return -1;
}

std::atomic<bool> behind_first{false};

// librcsock_posix has these names too, and would only send us back. A look-up
// in vain takes memory, but a handler or the program's malloc may call this. A
// library that is loaded later comes behind libc.
bool PosixNamesNext() { return &rcsock_posix_names != nullptr; }

[[gnu::cold]] void* Look(const char* name) {
  if (behind_first.load(std::memory_order_relaxed)) {
    return ::dlsym(RTLD_DEFAULT, name);
  }
  // A program may be linked so that libc comes before us.
  if (!PosixNamesNext()) {
    if (void* next = ::dlsym(RTLD_NEXT, name)) return next;
  }
  void* libc = ::dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD);
  return libc != nullptr ? ::dlsym(libc, name) : nullptr;
}

}  // namespace

SignalsBlocked::SignalsBlocked() {
  const std::uint64_t all = ~std::uint64_t{0};
  ::syscall(SYS_rt_sigprocmask, SIG_SETMASK, &all, &before_, sizeof before_);
}

SignalsBlocked::~SignalsBlocked() {
  ::syscall(SYS_rt_sigprocmask, SIG_SETMASK, &before_, nullptr, sizeof before_);
}

[[gnu::cold]] void* Resolve(void** slot, const char* name) {
  const SignalsBlocked blocked;
  return ResolveBlocked(slot, name);
}

[[gnu::cold]] void* ResolveBlocked(void** slot, const char* name) {
  void* found = Look(name);
  if (found == nullptr) {
    found = reinterpret_cast<void*>(&Missing);
    base::Log("libc has no %s", name);
  }
  // Two threads that race here store equal values.
  __atomic_store_n(slot, found, __ATOMIC_RELEASE);
  return found;
}

namespace table {
#define CALL(group, result, name, params, args, doc) \
  result(*name) params = nullptr;
#define CALLV(group, name, params, args, doc) void(*name) params = nullptr;
#define VARIADIC(group, result, name, params, doc) \
  result(*name) params = nullptr;
#define ALIAS(...)
#include "lib/base/calls.def"
#undef CALL
#undef CALLV
#undef VARIADIC
#undef ALIAS
}  // namespace table

void UseFirstDefinitions() {
  behind_first.store(true, std::memory_order_relaxed);
#define CALL(group, result, name, params, args, doc) \
  __atomic_store_n(&table::name, nullptr, __ATOMIC_RELEASE);
#define CALLV(group, name, params, args, doc) \
  __atomic_store_n(&table::name, nullptr, __ATOMIC_RELEASE);
#define VARIADIC(group, result, name, params, doc) \
  __atomic_store_n(&table::name, nullptr, __ATOMIC_RELEASE);
#define ALIAS(...)
#include "lib/base/calls.def"
#undef CALL
#undef CALLV
#undef VARIADIC
#undef ALIAS
}

}  // namespace rcsock::real
