// Stands between the preload and libc: when armed, the next wait that may sleep
// finds a signal that has come at its very beginning.
#include <dlfcn.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <unistd.h>

extern "C" {

volatile int between_signal = 0;  // 0: not armed

static void Come(bool sleeps) {
  if (!sleeps || between_signal == 0) return;
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
  Come(Sleeps(timeout));
  return next(fds, count, timeout, mask);
}

int epoll_pwait(int set, epoll_event* events, int capacity, int timeout,
                const sigset_t* mask) {
  NEXT(epoll_pwait);
  Come(timeout != 0);
  return next(set, events, capacity, timeout, mask);
}

int epoll_pwait2(int set, epoll_event* events, int capacity,
                 const timespec* timeout, const sigset_t* mask) {
  NEXT(epoll_pwait2);
  Come(Sleeps(timeout));
  return next(set, events, capacity, timeout, mask);
}

}  // extern "C"
