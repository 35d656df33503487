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

// For the sleep of an application's call: points at which pthread_cancel ends
// the thread, asleep or about to be, as it does in the kernel's blocking calls.
// The callers' frames are unwound.

// FutexWait.
int FutexSleep(const void* word, std::uint32_t expected,
               const timespec* timeout, bool shared);
// The same of a word in memory that another process maps, which can move its
// sleepers to another word (FUTEX_CMP_REQUEUE): nobody wakes them there.  So
// `own`, a word of this process, ends the sleep as well.  Where the kernel
// cannot sleep on two words, or is to end the sleep for each signal (with a
// time-out), the sleep ends after some seconds: -EAGAIN, look again.
int FutexSleepShared(const std::atomic<std::uint32_t>* word,
                     std::uint32_t expected,
                     const std::atomic<std::uint32_t>* own,
                     std::uint32_t own_expected, const timespec* timeout);
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
  CheckMaySleep();
  const timespec brief{0, ns};
  ::syscall(SYS_nanosleep, &brief, nullptr);
}

}  // namespace rcsock::base

#endif  // RCSOCK_LIB_BASE_SLEEP_H_
