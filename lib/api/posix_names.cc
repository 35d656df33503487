// librcsock_posix.so: POSIX's own names for librcsock's calls. A program that
// is linked with it, before libc, uses rcsock without being compiled again.

#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/sendfile.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "lib/include/rcsock/rcsock.h"
#include "lib/posix/hooks/arguments.h"

#define RCSOCK_EXPORT extern "C" __attribute__((visibility("default")))

// Tells librcsock that the next definition of these names is not libc's.
RCSOCK_EXPORT const int rcsock_posix_names = 1;

#define RCSOCK_DEFINE(result, name, params, args) \
  RCSOCK_EXPORT result name params { return rcs_##name args; }
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
#define ALIAS(group, alias, name, result, params, args) \
  RCSOCK_EXPORT result alias params { return rcs_##name args; }
#define rcs_sendfile64 rcs_sendfile
#include "lib/base/calls.def"

RCSOCK_EXPORT void closefrom(int first) { rcs_closefrom(first); }
RCSOCK_EXPORT void _exit(int status) { rcs_immediate_exit(status); }
RCSOCK_EXPORT void _Exit(int status) { rcs_immediate_exit(status); }
RCSOCK_EXPORT void quick_exit(int status) { rcs_quick_exit(status); }

#define FCNTL(name)                                  \
  RCSOCK_EXPORT int name(int fd, int command, ...) { \
    va_list arguments;                               \
    va_start(arguments, command);                    \
    const long argument = va_arg(arguments, long);   \
    va_end(arguments);                               \
    return rcs_fcntl(fd, command, argument);         \
  }
FCNTL(fcntl)
FCNTL(fcntl64)
FCNTL(__fcntl)
#undef FCNTL

RCSOCK_EXPORT int ioctl(int fd, unsigned long request, ...) {
  va_list arguments;
  va_start(arguments, request);
  void* argument = va_arg(arguments, void*);
  va_end(arguments);
  return rcs_ioctl(fd, request, argument);
}

RCSOCK_EXPORT int dprintf(int fd, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  const int result = rcs_vdprintf(fd, format, arguments);
  va_end(arguments);
  return result;
}

// --- The checked calls of FORTIFY

extern "C" [[noreturn]] void __chk_fail();

RCSOCK_EXPORT ssize_t __read_chk(int fd, void* to, size_t length, size_t size) {
  if (length > size) __chk_fail();
  return rcs_read(fd, to, length);
}

RCSOCK_EXPORT ssize_t __recv_chk(int fd, void* to, size_t length, size_t size,
                                 int flags) {
  if (length > size) __chk_fail();
  return rcs_recv(fd, to, length, flags);
}

RCSOCK_EXPORT ssize_t __recvfrom_chk(int fd, void* to, size_t length,
                                     size_t size, int flags, sockaddr* address,
                                     socklen_t* address_length) {
  if (length > size) __chk_fail();
  return rcs_recvfrom(fd, to, length, flags, address, address_length);
}

RCSOCK_EXPORT int __poll_chk(pollfd* fds, nfds_t count, int timeout,
                             size_t size) {
  if (size / sizeof *fds < count) __chk_fail();
  return rcs_poll(fds, count, timeout);
}

RCSOCK_EXPORT int __ppoll_chk(pollfd* fds, nfds_t count,
                              const timespec* timeout, const sigset_t* mask,
                              size_t size) {
  if (size / sizeof *fds < count) __chk_fail();
  return rcs_ppoll(fds, count, timeout, mask);
}

extern "C" int __vdprintf_chk(int, int, const char*, va_list);

RCSOCK_EXPORT int __dprintf_chk(int fd, int flag, const char* format, ...) {
  (void)flag;  // its check of %n is libc's alone
  va_list arguments;
  va_start(arguments, format);
  const int result = rcs_vdprintf(fd, format, arguments);
  va_end(arguments);
  return result;
}

RCSOCK_EXPORT int __vdprintf_chk(int fd, int flag, const char* format,
                                 va_list arguments) {
  (void)flag;
  return rcs_vdprintf(fd, format, arguments);
}

// --- The variadic ones of exec

RCSOCK_EXPORT int execl(const char* path, const char* argument, ...) {
  RCSOCK_COLLECT(list, argument, rest);
  va_end(rest);
  return rcs_execv(path, list);
}

RCSOCK_EXPORT int execlp(const char* file, const char* argument, ...) {
  RCSOCK_COLLECT(list, argument, rest);
  va_end(rest);
  return rcs_execvp(file, list);
}

RCSOCK_EXPORT int execle(const char* path, const char* argument, ...) {
  RCSOCK_COLLECT(list, argument, rest);
  char* const* environment = va_arg(rest, char* const*);
  va_end(rest);
  return rcs_execve(path, list, environment);
}
