// The symbols that the preload puts before libc's, one definition for each line
// of lib/base/calls.def, and nothing else.

#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/sendfile.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <cerrno>
#include <string_view>

#include "lib/base/cancellation.h"
#include "lib/base/internal.h"
#include "lib/base/real.h"
#include "lib/posix/hooks/arguments.h"
#include "lib/posix/hooks/hooks.h"
#include "lib/posix/lifecycle/clone.h"
#include "lib/posix/sys/identity.h"

#define RCSOCK_EXPORT extern "C" __attribute__((visibility("default")))

namespace hook = rcsock::posix::hook;

// Placed with the hooks that they call (hooks_data.h).
extern "C" {
[[gnu::hot]] ssize_t read(int, void*, size_t);
[[gnu::hot]] ssize_t write(int, const void*, size_t);
[[gnu::hot]] ssize_t recv(int, void*, size_t, int);
[[gnu::hot]] ssize_t send(int, const void*, size_t, int);
[[gnu::hot]] ssize_t readv(int, const iovec*, int);
[[gnu::hot]] ssize_t writev(int, const iovec*, int);
[[gnu::hot]] ssize_t recvmsg(int, msghdr*, int);
[[gnu::hot]] ssize_t sendmsg(int, const msghdr*, int);
[[gnu::hot]] int epoll_wait(int, epoll_event*, int, int);
[[gnu::hot]] int connect(int, const sockaddr*, socklen_t);
[[gnu::hot]] int accept4(int, sockaddr*, socklen_t*, int);
[[gnu::hot]] int close(int);
[[gnu::hot]] int fcntl(int, int, ...);
[[gnu::hot]] int fcntl64(int, int, ...);
#ifndef __clang__  // libc's headers have these noexcept, and Clang minds
[[gnu::hot]] int epoll_ctl(int, int, int, epoll_event*);
[[gnu::hot]] int socket(int, int, int);
[[gnu::hot]] int setsockopt(int, int, int, const void*, socklen_t);
#endif
}

// The variable is in this library: hidden saves an instruction in each call.
namespace rcsock::base {
extern constinit std::atomic<bool> cancels
    __attribute__((visibility("hidden")));
}

namespace {

// The calls here that are cancellation points and may return without libc's
// call. If libc makes another call a point, it remains a point.
constexpr bool Point(std::string_view group, std::string_view name) {
  if (group == "waiting") {
    return name != "epoll_create" && name != "epoll_create1" &&
           name != "epoll_ctl";
  }
  if (group == "fortify" || group == "rare" || group == "aliases") {
    for (const char* one :
         {"__read_chk", "__recv_chk", "__recvfrom_chk", "__poll_chk",
          "__ppoll_chk", "preadv64v2", "pwritev64v2", "__read", "__write",
          "__send", "__poll", "__select"}) {
      if (name == one) return true;
    }
  }
  return group == "data";
}

// The calls of "threads" set the flags that the other calls look at.
constexpr bool Guarded(std::string_view group) { return group != "threads"; }

}  // namespace

// If a child of vfork becomes another program, the flags that are set for the
// call would stay set in its parent's thread.
#define BODY(group, name, call)                               \
  if constexpr (Guarded(#group)) {                            \
    if (rcsock::base::Cancels() &&                            \
        (__builtin_strcmp(#group, "processes") != 0 ||        \
         !rcsock::posix::InBorrowedMemory())) {               \
      return rcsock::base::Cancellable<Point(#group, #name)>( \
          [=] { return call; });                              \
    }                                                         \
  }                                                           \
  return call

#define CALL(group, result, name, params, args, doc) \
  RCSOCK_EXPORT result name params { BODY(group, name, hook::name args); }
constexpr bool ComesBack(std::string_view name) {
  for (const std::string_view one :
       {"closefrom", "backtrace_symbols_fd", "openlog", "vsyslog",
        "__vsyslog_chk", "psiginfo"}) {
    if (one == name) return true;
  }
  return false;
}

// A call that does not return must not be unwound on its way out.
#define CALLV(group, name, params, args, doc)                                  \
  RCSOCK_EXPORT void name params {                                             \
    if constexpr (!ComesBack(#name)) {                                         \
      if (rcsock::base::Cancels() && !rcsock::posix::InBorrowedMemory()) {     \
        rcsock::real::pthread_setcanceltype(PTHREAD_CANCEL_DEFERRED, nullptr); \
      }                                                                        \
      hook::name args;                                                         \
      __builtin_unreachable();                                                 \
    } else if (rcsock::base::Cancels()) {                                      \
      rcsock::base::Cancellable<false>([=] { hook::name args; });              \
    } else {                                                                   \
      hook::name args;                                                         \
    }                                                                          \
  }
#define VARIADIC(...)
#define ALIAS(group, alias, name, result, params, args) \
  RCSOCK_EXPORT result alias params { BODY(group, alias, hook::name args); }
#include "lib/base/calls.def"

// --- The variadic calls

// A missing argument reads as garbage. The kernel ignores it where it expects
// none, as with libc's own fcntl and ioctl.
#define FCNTL(name)                                               \
  RCSOCK_EXPORT int name(int fd, int command, ...) {              \
    va_list arguments;                                            \
    va_start(arguments, command);                                 \
    const long argument = va_arg(arguments, long);                \
    va_end(arguments);                                            \
    BODY(descriptors, fcntl, hook::Fcntl(fd, command, argument)); \
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
  BODY(descriptors, ioctl, hook::Ioctl(fd, request, argument));
}

// Arguments that are not passed are read, too, as in libc's clone.
RCSOCK_EXPORT __attribute__((no_sanitize("address"))) int clone(
    int (*start)(void*), void* stack, int flags, void* argument, ...) noexcept {
  void* more[3];
  va_list arguments;
  va_start(arguments, argument);
  for (void*& one : more) one = va_arg(arguments, void*);
  va_end(arguments);
  if (start != nullptr && stack != nullptr &&
      rcsock::posix::ClonesAsFork(static_cast<unsigned>(flags)) &&
      !rcsock::base::tls_internal) {
    return rcsock::posix::CloneAsFork(start, stack, flags, argument, more);
  }
  hook::BeforeClone(static_cast<unsigned>(flags));
  return RCSOCK_REAL(clone)(start, stack, flags, argument, more[0], more[1],
                            more[2]);
}

RCSOCK_EXPORT int prctl(int option, ...) {
  unsigned long all[4];
  va_list arguments;
  va_start(arguments, option);
  for (unsigned long& one : all) one = va_arg(arguments, unsigned long);
  va_end(arguments);
  return hook::Prctl(option, all);
}

RCSOCK_EXPORT int dprintf(int fd, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  const int result = hook::vdprintf(fd, format, arguments);
  va_end(arguments);
  return result;
}

RCSOCK_EXPORT int __dprintf_chk(int fd, int flag, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  const int result = hook::__vdprintf_chk(fd, flag, format, arguments);
  va_end(arguments);
  return result;
}

RCSOCK_EXPORT void syslog(int priority, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  hook::vsyslog(priority, format, arguments);
  va_end(arguments);
}

RCSOCK_EXPORT void __syslog_chk(int priority, int flag, const char* format,
                                ...) {
  va_list arguments;
  va_start(arguments, format);
  hook::__vsyslog_chk(priority, flag, format, arguments);
  va_end(arguments);
}

RCSOCK_EXPORT int execl(const char* path, const char* argument, ...) {
  RCSOCK_COLLECT(list, argument, rest);
  va_end(rest);
  return hook::execv(path, list);
}

RCSOCK_EXPORT int execlp(const char* file, const char* argument, ...) {
  RCSOCK_COLLECT(list, argument, rest);
  va_end(rest);
  return hook::execvp(file, list);
}

RCSOCK_EXPORT int execle(const char* path, const char* argument, ...) {
  RCSOCK_COLLECT(list, argument, rest);
  char* const* environment = va_arg(rest, char* const*);
  va_end(rest);
  return hook::execve(path, list, environment);
}

// A library of rcsock's in this process finds this symbol, and leaves the work
// to the preload.
RCSOCK_EXPORT const int rcsock_preloaded = 1;

// --- Start and end

namespace {

__attribute__((constructor)) void Start() {
  hook::Start(rcsock::posix::Face::kPreload);
}
__attribute__((destructor)) void End() { hook::End(); }

}  // namespace
