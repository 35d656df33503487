#ifndef RCSOCK_LIB_POSIX_HOOKS_H_
#define RCSOCK_LIB_POSIX_HOOKS_H_

#include "lib/base/real.h"

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

// The variadic calls, with their argument fetched.
int Fcntl(int fd, int command, long argument);
int Ioctl(int fd, unsigned long request, void* argument);
int Prctl(int option, const unsigned long (&arguments)[4]);
void BeforeStdio(int fd);
// Called before any clone call, with its CLONE_ flags.
void BeforeClone(unsigned long flags);

// Whether the kernel accepts it as a time.
inline bool Valid(const timespec* timeout) {
  return timeout->tv_sec >= 0 && timeout->tv_nsec >= 0 &&
         timeout->tv_nsec < 1'000'000'000;
}

}  // namespace rcsock::posix::hook

#endif  // RCSOCK_LIB_POSIX_HOOKS_H_
