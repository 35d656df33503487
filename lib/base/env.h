#ifndef RCSOCK_LIB_BASE_ENV_H_
#define RCSOCK_LIB_BASE_ENV_H_

#include <sys/auxv.h>

#include <cstdlib>

namespace rcsock::base {

// Whether the program has more rights than whoever started it: set-uid, set-gid
// or with capabilities of its file.
inline bool MorePrivilegedThanCaller() { return ::getauxval(AT_SECURE) != 0; }

// A variable of the environment; null: there is none, or it is that of a caller
// with fewer rights.  Nothing in lib and preload reads the environment another
// way (tests/posix/privilege_test).
inline const char* Env(const char* name) { return ::secure_getenv(name); }

}  // namespace rcsock::base

#endif  // RCSOCK_LIB_BASE_ENV_H_
