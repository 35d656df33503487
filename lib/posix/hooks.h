#ifndef RCSOCK_LIB_POSIX_HOOKS_H_
#define RCSOCK_LIB_POSIX_HOOKS_H_

#include "lib/base/real.h"

// What each interposed symbol does: rcsock::posix::hook::recv(...) and so on,
// with the signatures of lib/base/calls.def.
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

// The variadic ones, their argument already fetched.
int Fcntl(int fd, int command, long argument);
int Ioctl(int fd, unsigned long request, void* argument);
int Prctl(int option, const unsigned long (&arguments)[4]);
void BeforeStdio(int fd);
// By the call, whatever its name, with these CLONE_... .
void BeforeClone(unsigned long flags);

// Whether the kernel takes it for a time.
inline bool Valid(const timespec* timeout) {
  return timeout->tv_sec >= 0 && timeout->tv_nsec >= 0 &&
         timeout->tv_nsec < 1'000'000'000;
}

}  // namespace rcsock::posix::hook

#endif  // RCSOCK_LIB_POSIX_HOOKS_H_
