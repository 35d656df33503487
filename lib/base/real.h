#ifndef RCSOCK_LIB_BASE_REAL_H_
#define RCSOCK_LIB_BASE_REAL_H_

#include <aio.h>
#include <fcntl.h>
#include <mqueue.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <pty.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <threads.h>
#include <time.h>

#include <cstddef>

// The calls that the preload interposes, as libc has them:
// rcsock::real::recv(...) never comes back to rcsock. Each is looked up at its
// first use, so that a call before any constructor works too.
namespace rcsock::real {

// Finds the next definition of `name` and stores it in `slot`. Returns it, or
// null.
void* Resolve(void** slot, const char* name);

// Returns true if Resolve has found that this libc does not have the call,
// which then fails with ENOSYS.
bool IsMissing(const void* found);

// Looks for the calls that an old libc does not have.
void LookEarly();

// From now on the first definition in the process counts, and not the next one:
// another copy of rcsock does the work.
void UseFirstDefinitions();

namespace table {
#define CALL(group, result, name, params, args, doc) \
  extern result(*name) params;
#define CALLV(group, name, params, args, doc) extern void(*name) params;
#define VARIADIC(group, result, name, params, doc) extern result(*name) params;
#define ALIAS(...)
#include "lib/base/calls.def"
#undef CALL
#undef CALLV
#undef VARIADIC
#undef ALIAS
}  // namespace table

template <class F>
inline F* Find(F** slot, const char* name) {
  F* found = __atomic_load_n(slot, __ATOMIC_ACQUIRE);
  if (__builtin_expect(found != nullptr, 1)) return found;
  return reinterpret_cast<F*>(Resolve(reinterpret_cast<void**>(slot), name));
}

#define RCSOCK_REAL(name) \
  (::rcsock::real::Find(&::rcsock::real::table::name, #name))

#define CALL(group, result, name, params, args, doc) \
  inline result name params { return RCSOCK_REAL(name) args; }
#define CALLV(group, name, params, args, doc) \
  inline void name params { RCSOCK_REAL(name) args; }
#define VARIADIC(...)
#define ALIAS(...)
#include "lib/base/calls.def"
#undef CALL
#undef CALLV
#undef VARIADIC
#undef ALIAS

}  // namespace rcsock::real

#endif  // RCSOCK_LIB_BASE_REAL_H_
