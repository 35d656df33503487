#ifndef RCSOCK_LIB_BASE_ENV_H_
#define RCSOCK_LIB_BASE_ENV_H_

#include <sys/auxv.h>

#include <cstdlib>

namespace rcsock::base {

// Returns true if the program has more rights than its caller: by set-uid,
// set-gid or the capabilities of its file.
inline bool MorePrivilegedThanCaller() { return ::getauxval(AT_SECURE) != 0; }

// Returns a variable of the environment. Null: there is none, or a caller with
// fewer rights has set the environment. lib and preload read the environment in
// no other way (tests/posix/privilege_test).
inline const char* Env(const char* name) { return ::secure_getenv(name); }

}  // namespace rcsock::base

#endif  // RCSOCK_LIB_BASE_ENV_H_
