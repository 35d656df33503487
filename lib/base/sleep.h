#ifndef RCSOCK_LIB_BASE_SLEEP_H_
#define RCSOCK_LIB_BASE_SLEEP_H_

#include <signal.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <ctime>

#include "lib/base/held_latches.h"

namespace rcsock::base {

// Sleeps of an application's call. pthread_cancel ends the thread in each of
// them, asleep or about to be, as in the kernel's blocking calls. The callers'
// frames are unwound.

// As FutexWait.
int FutexSleep(const void* word, std::uint32_t expected,
               const timespec* timeout, bool shared);
// As FutexSleep, on a word in memory that another process maps. That process
// can move the sleepers of the word to another word (FUTEX_CMP_REQUEUE), where
// no thread wakes them. So a change of `own`, a word of this process, ends the
// sleep as well. If the kernel cannot sleep on two words, or if a time-out is
// given, the sleep ends after some seconds. Each signal then ends it, too. It
// then returns -EAGAIN: look again.
int FutexSleepShared(const std::atomic<std::uint32_t>* word,
                     std::uint32_t expected,
                     const std::atomic<std::uint32_t>* own,
                     std::uint32_t own_expected, const timespec* timeout);
// epoll_wait on a set of rcsock's. Returns how many events, or -errno. Null
// `timeout`: no limit.
int EpollSleep(int set, epoll_event* events, int capacity,
               const timespec* timeout);
// epoll_pwait2. If the kernel does not know it, or a filter of system calls
// refuses it, epoll_pwait in milliseconds.
int EpollPwait(int set, epoll_event* events, int capacity,
               const timespec* timeout, const sigset_t* mask);

// Sleeps less than a second; a handler may end the sleep. SleepThrough is no
// cancellation point, as nanosleep() would be: it serves calls that are none.
inline void SleepThrough(long ns) {
  CheckMaySleep();
  const timespec brief{0, ns};
  ::syscall(SYS_nanosleep, &brief, nullptr);
}

}  // namespace rcsock::base

#endif  // RCSOCK_LIB_BASE_SLEEP_H_
