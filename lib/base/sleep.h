#ifndef RCSOCK_LIB_BASE_SLEEP_H_
#define RCSOCK_LIB_BASE_SLEEP_H_

#include <signal.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <ctime>

namespace rcsock::base {

// For the sleep of an application's call: points at which pthread_cancel ends
// the thread, asleep or about to be, as it does in the kernel's blocking calls.
// The callers' frames are unwound.

// FutexWait.
int FutexSleep(const void* word, std::uint32_t expected,
               const timespec* timeout, bool shared);
// epoll_wait on a set of ours; how many events, or -errno.  timeout null: none.
int EpollSleep(int set, epoll_event* events, int capacity,
               const timespec* timeout);
// epoll_pwait2, also where the kernel does not know it or a filter of system
// calls refuses it: in milliseconds then.
int EpollPwait(int set, epoll_event* events, int capacity,
               const timespec* timeout, const sigset_t* mask);

// No such point, as nanosleep() would be: for a wait inside a call that is
// none. Less than a second; a handler may end it.
inline void SleepThrough(long ns) {
  const timespec brief{0, ns};
  ::syscall(SYS_nanosleep, &brief, nullptr);
}

}  // namespace rcsock::base

#endif  // RCSOCK_LIB_BASE_SLEEP_H_
