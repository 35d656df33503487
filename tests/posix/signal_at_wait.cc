// Stands between the preload and libc: when armed, the next wait that may sleep
// finds a signal that has come at its very beginning.
#include <dlfcn.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <unistd.h>

// The library's own symbols are hidden else.
#pragma GCC visibility push(default)
extern "C" {

volatile int between_signal = 0;   // 0: not armed
volatile int between_endless = 0;  // only a wait without an end counts

static void Come(bool sleeps, bool endless) {
  if (!sleeps || between_signal == 0) return;
  if (between_endless != 0 && !endless) return;
  const int number = between_signal;
  between_signal = 0;
  ::syscall(SYS_tgkill, ::getpid(), ::syscall(SYS_gettid), number);
}

static bool Sleeps(const timespec* timeout) {
  return timeout == nullptr || timeout->tv_sec != 0 || timeout->tv_nsec != 0;
}

#define NEXT(name)         \
  static const auto next = \
      reinterpret_cast<decltype(&::name)>(::dlsym(RTLD_NEXT, #name))

int ppoll(pollfd* fds, nfds_t count, const timespec* timeout,
          const sigset_t* mask) {
  NEXT(ppoll);
  Come(Sleeps(timeout), timeout == nullptr);
  return next(fds, count, timeout, mask);
}

int pselect(int count, fd_set* in, fd_set* out, fd_set* other,
            const timespec* timeout, const sigset_t* mask) {
  NEXT(pselect);
  Come(Sleeps(timeout), timeout == nullptr);
  return next(count, in, out, other, timeout, mask);
}

int epoll_pwait(int set, epoll_event* events, int capacity, int timeout,
                const sigset_t* mask) {
  NEXT(epoll_pwait);
  Come(timeout != 0, timeout < 0);
  return next(set, events, capacity, timeout, mask);
}

int epoll_pwait2(int set, epoll_event* events, int capacity,
                 const timespec* timeout, const sigset_t* mask) {
  NEXT(epoll_pwait2);
  Come(Sleeps(timeout), timeout == nullptr);
  return next(set, events, capacity, timeout, mask);
}

}  // extern "C"
#pragma GCC visibility pop
