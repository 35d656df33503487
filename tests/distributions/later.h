// What tests/posix uses of libc, for suites whose libc does not have it.

#include <errno.h>
#include <features.h>
#include <signal.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

#if !__GLIBC_PREREQ(2, 32)
inline const char* strerrorname_np(int error) {
  static thread_local char text[16];
  ::snprintf(text, sizeof text, "errno %d", error);
  return error == 0 ? "0" : text;
}
#endif

#if !__GLIBC_PREREQ(2, 35)
inline int epoll_pwait2(int set, epoll_event* events, int capacity,
                        const timespec* timeout, const sigset_t* mask) {
  const long ms =
      timeout == nullptr
          ? -1
          : timeout->tv_sec * 1000 + (timeout->tv_nsec + 999'999) / 1'000'000;
  return ::epoll_pwait(set, events, capacity, static_cast<int>(ms), mask);
}
#endif
