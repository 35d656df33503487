#include "lib/base/real.h"

#include <dlfcn.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include "lib/base/log.h"
#include "lib/base/resolve.h"
#include "lib/base/start_data.h"

extern "C" __attribute__((weak, visibility("default")))
const int rcsock_posix_names;

namespace rcsock::real {
namespace {

// The answer of a call that this libc does not have.
long Missing() {
  errno = ENOSYS;
  return -1;
}

// Calls that an old libc lacks. The preload exports their names, so a program
// that looks for a name takes the call for present, and the call has to work.
int CloseRange(unsigned first, unsigned last, int flags) {
  return static_cast<int>(::syscall(SYS_close_range, first, last, flags));
}

int EpollPwait2(int set, epoll_event* events, int capacity,
                const timespec* timeout, const sigset_t* mask) {
  constexpr std::size_t kMaskSize = 8;
  return static_cast<int>(::syscall(SYS_epoll_pwait2, set, events, capacity,
                                    timeout, mask, kMaskSize));
}

int ExecveAt(int fd, const char* path, char* const argv[], char* const envp[],
             int flags) {
  return static_cast<int>(::syscall(SYS_execveat, fd, path, argv, envp, flags));
}

ssize_t Preadv2(int fd, const iovec* iov, int count, off_t offset, int flags) {
  return ::syscall(SYS_preadv2, fd, iov, count, offset, 0, flags);
}

ssize_t Pwritev2(int fd, const iovec* iov, int count, off_t offset, int flags) {
  return ::syscall(SYS_pwritev2, fd, iov, count, offset, 0, flags);
}

struct Later {
  const char* name;
  void* slot;
  void* function;
};
#define LATER(name, function) \
  { #name, &table::name, reinterpret_cast < void*>(&function) }
const Later kLater[] = {
    LATER(_Fork, Missing),
    LATER(close_range, CloseRange),
    LATER(epoll_pwait2, EpollPwait2),
    LATER(execveat, ExecveAt),
    LATER(preadv2, Preadv2),
    LATER(preadv64v2, Preadv2),
    LATER(pwritev2, Pwritev2),
    LATER(pwritev64v2, Pwritev2),
};
#undef LATER

[[gnu::cold]] void* FindLater(const char* name) {
  for (const Later& one : kLater) {
    if (std::strcmp(name, one.name) == 0) return one.function;
  }
  return nullptr;
}

RCSOCK_START_DATA constinit std::atomic<bool> behind_first{false};

// librcsock_posix has these names too, and would only call back into rcsock. A
// look-up in vain takes memory, but a handler or the program's malloc may call
// this. A library that is loaded later comes after libc.
bool PosixNamesNext() { return &rcsock_posix_names != nullptr; }

[[gnu::cold]] void* Look(const char* name) {
  if (behind_first.load(std::memory_order_relaxed)) {
    return ::dlsym(RTLD_DEFAULT, name);
  }
  // A program may be linked so that libc comes before rcsock.
  if (!PosixNamesNext()) {
    if (void* next = ::dlsym(RTLD_NEXT, name)) return next;
  }
  // Before 2.34 glibc has these libraries apart, and a plugin may bring a
  // library that is not in the program's scope.
  constexpr const char* kLibraries[] = {"libc.so.6", "librt.so.1",
                                        "libutil.so.1", "libanl.so.1",
                                        "libseccomp.so.2"};
  for (const char* one : kLibraries) {
    void* library = ::dlopen(one, RTLD_LAZY | RTLD_NOLOAD);
    if (library == nullptr) continue;
    if (void* found = ::dlsym(library, name)) return found;
  }
  return nullptr;
}

}  // namespace

[[gnu::cold]] SignalsBlocked::SignalsBlocked() {
  const std::uint64_t all = ~std::uint64_t{0};
  ::syscall(SYS_rt_sigprocmask, SIG_SETMASK, &all, &before_, sizeof before_);
}

[[gnu::cold]] SignalsBlocked::~SignalsBlocked() {
  ::syscall(SYS_rt_sigprocmask, SIG_SETMASK, &before_, nullptr, sizeof before_);
}

[[gnu::cold]] void* Resolve(void** slot, const char* name) {
  const SignalsBlocked blocked;
  return ResolveBlocked(slot, name);
}

[[gnu::cold]] void* ResolveBlocked(void** slot, const char* name) {
  void* found = Look(name);
  if (found == nullptr) found = FindLater(name);
  if (found == nullptr && std::strcmp(name, "fcntl64") == 0) {
    found = Look("fcntl");
  }
  if (found == nullptr) {
    found = reinterpret_cast<void*>(&Missing);
    RCSOCK_LOG(1, "libc has no %s", name);
    // A plugin may still bring it.
    return found;
  }
  // Two threads that race here store equal values.
  __atomic_store_n(slot, found, __ATOMIC_RELEASE);
  return found;
}

namespace table {
#define CALL(group, result, name, params, args, doc) \
  RCSOCK_START_DATA result(*name) params = nullptr;
#define CALLV(group, name, params, args, doc) \
  RCSOCK_START_DATA void(*name) params = nullptr;
#define VARIADIC(group, result, name, params, doc) \
  RCSOCK_START_DATA result(*name) params = nullptr;
#define ALIAS(...)
#include "lib/base/calls.def"
#undef CALL
#undef CALLV
#undef VARIADIC
#undef ALIAS
}  // namespace table

// epoll_pwait2 is the youngest of them. If libc has it, libc has the others
// too. Otherwise look-ups in vain come now, and not in a handler, or between
// vfork and exec.
void LookEarly() {
  if (Look("epoll_pwait2") != nullptr) return;
  for (const Later& one : kLater) {
    Resolve(static_cast<void**>(one.slot), one.name);
  }
}

bool StandsInForLibc(const void* found) {
  for (const Later& one : kLater) {
    if (found == one.function) return true;
  }
  return false;
}

bool IsMissing(const void* found) {
  return found == reinterpret_cast<const void*>(&Missing);
}

void UseFirstDefinitions() {
  behind_first.store(true, std::memory_order_relaxed);
#define CALL(group, result, name, params, args, doc) \
  __atomic_store_n(&table::name, nullptr, __ATOMIC_RELEASE);
#define CALLV(group, name, params, args, doc) \
  __atomic_store_n(&table::name, nullptr, __ATOMIC_RELEASE);
#define VARIADIC(group, result, name, params, doc) \
  __atomic_store_n(&table::name, nullptr, __ATOMIC_RELEASE);
#define ALIAS(...)
#include "lib/base/calls.def"
#undef CALL
#undef CALLV
#undef VARIADIC
#undef ALIAS
}

}  // namespace rcsock::real
