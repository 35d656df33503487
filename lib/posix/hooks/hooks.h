#ifndef RCSOCK_LIB_POSIX_HOOKS_HOOKS_H_
#define RCSOCK_LIB_POSIX_HOOKS_HOOKS_H_

#include "lib/base/real.h"
#include "lib/posix/sys/identity.h"

// What each interposed symbol does, as rcsock::posix::hook::recv(...) and so
// on. lib/base/calls.def has the signatures.
namespace rcsock::posix::hook {

#define CALL(group, result, name, params, args, doc) result name params;
#define CALLV(group, name, params, args, doc) void name params;
#define VARIADIC(...)
#define ALIAS(...)
#include "lib/base/calls.def"
#undef CALL
#undef CALLV
#undef VARIADIC
#undef ALIAS

// The beginning and the end of the process.  Hooks that constructors of other
// libraries call may come before Start.
void Start(Face face);
void End();

// The variadic calls, with their argument fetched.
int Fcntl(int fd, int command, long argument);
int Ioctl(int fd, unsigned long request, void* argument);
int Prctl(int option, const unsigned long (&arguments)[4]);
void BeforeStdio(int fd);
// Called before any clone call, with its CLONE_ flags.
void BeforeClone(unsigned long flags);

}  // namespace rcsock::posix::hook

#endif  // RCSOCK_LIB_POSIX_HOOKS_HOOKS_H_
