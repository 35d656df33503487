#include "lib/base/real.h"

#include <dlfcn.h>

#include <cerrno>

#include "lib/base/log.h"

namespace rcsock::real {
namespace {

// What a call that this libc does not have answers.
long Missing() {
  errno = ENOSYS;
  return -1;
}

}  // namespace

void* Resolve(void** slot, const char* name) {
  void* found = ::dlsym(RTLD_NEXT, name);
  if (found == nullptr) {
    found = reinterpret_cast<void*>(&Missing);
    base::Log("libc has no %s", name);
  }
  // Two threads that race here store the same value.
  __atomic_store_n(slot, found, __ATOMIC_RELEASE);
  return found;
}

namespace table {
#define CALL(group, result, name, params, args, doc) \
  result(*name) params = nullptr;
#define CALLV(group, name, params, args, doc) \
  void(*name) params = nullptr;
#define VARIADIC(group, result, name, params, doc) \
  result(*name) params = nullptr;
#define ALIAS(...)
#include "lib/base/calls.def"
#undef CALL
#undef CALLV
#undef VARIADIC
#undef ALIAS
}  // namespace table

}  // namespace rcsock::real
