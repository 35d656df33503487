// The C library: rcs_X is the hook that the preload puts before libc's X.

#include "lib/include/rcsock/rcsock.h"

#include <dlfcn.h>
#include <unistd.h>

#include "lib/base/real.h"
#include "lib/posix/hooks/arguments.h"
#include "lib/posix/hooks/hooks.h"
#include "lib/posix/sys/identity.h"

#define RCSOCK_EXPORT extern "C" __attribute__((visibility("default")))

namespace hook = rcsock::posix::hook;
using rcsock::posix::Face;

// --- The calls of lib/base/calls.def

#define RCSOCK_DEFINE(result, name, params, args) \
  RCSOCK_EXPORT result rcs_##name params { return hook::name args; }
#define CALL_connection RCSOCK_DEFINE
#define CALL_data RCSOCK_DEFINE
#define CALL_waiting RCSOCK_DEFINE
#define CALL_descriptors RCSOCK_DEFINE
#define CALL_processes RCSOCK_DEFINE
#define CALL_signals RCSOCK_DEFINE
#define CALL_fortify(...)
#define CALL_sandbox(...)
#define CALL_threads(...)
#define CALL_rare(...)
#define CALL(group, result, name, params, args, doc) \
  CALL_##group(result, name, params, args)
#define CALLV(...)
#define VARIADIC(...)
#define ALIAS(...)
#include "lib/base/calls.def"

RCSOCK_EXPORT void rcs_closefrom(int first) { hook::closefrom(first); }

RCSOCK_EXPORT void rcs_immediate_exit(int status) {
  hook::_exit(status);
  __builtin_unreachable();
}

RCSOCK_EXPORT void rcs_quick_exit(int status) {
  hook::quick_exit(status);
  __builtin_unreachable();
}

// --- Calls that need nothing of ours

RCSOCK_EXPORT int rcs_getsockname(int fd, sockaddr* address,
                                  socklen_t* length) {
  return ::getsockname(fd, address, length);
}

// --- The variadic calls

RCSOCK_EXPORT int rcs_fcntl(int fd, int command, ...) {
  va_list arguments;
  va_start(arguments, command);
  const long argument = va_arg(arguments, long);
  va_end(arguments);
  return hook::Fcntl(fd, command, argument);
}

RCSOCK_EXPORT int rcs_ioctl(int fd, unsigned long request, ...) {
  va_list arguments;
  va_start(arguments, request);
  void* argument = va_arg(arguments, void*);
  va_end(arguments);
  return hook::Ioctl(fd, request, argument);
}

RCSOCK_EXPORT int rcs_dprintf(int fd, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  const int result = hook::vdprintf(fd, format, arguments);
  va_end(arguments);
  return result;
}

RCSOCK_EXPORT int rcs_execl(const char* path, const char* argument, ...) {
  RCSOCK_COLLECT(list, argument, rest);
  va_end(rest);
  return hook::execv(path, list);
}

RCSOCK_EXPORT int rcs_execlp(const char* file, const char* argument, ...) {
  RCSOCK_COLLECT(list, argument, rest);
  va_end(rest);
  return hook::execvp(file, list);
}

RCSOCK_EXPORT int rcs_execle(const char* path, const char* argument, ...) {
  RCSOCK_COLLECT(list, argument, rest);
  char* const* environment = va_arg(rest, char* const*);
  va_end(rest);
  return hook::execve(path, list, environment);
}

// --- Calls that libraries inside this one make

// The preload sees these calls by their names alone. Here the linker redirects
// them (--wrap), so that an io_context's descriptors stay out of the program's
// range.
extern "C" int __wrap_close(int fd) { return hook::close(fd); }
extern "C" int __wrap_eventfd(unsigned initial, int flags) {
  return hook::eventfd(initial, flags);
}
extern "C" int __wrap_timerfd_create(int clock, int flags) {
  return hook::timerfd_create(clock, flags);
}
extern "C" int __wrap_epoll_create1(int flags) {
  return hook::epoll_create1(flags);
}

// --- Start and end

namespace {

// A program under `rcsock run` has an engine already: the preload's, which all
// its calls reach. If two engines each adopted a connection, the connection
// would be lost.
__attribute__((constructor)) void Start() {
  const bool preloaded = ::dlsym(RTLD_DEFAULT, "rcsock_preloaded") != nullptr;
  hook::Start(preloaded ? Face::kBehind : Face::kLibrary);
}

__attribute__((destructor)) void End() { hook::End(); }

}  // namespace
