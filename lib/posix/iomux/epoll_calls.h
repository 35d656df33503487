#ifndef RCSOCK_LIB_POSIX_IOMUX_EPOLL_CALLS_H_
#define RCSOCK_LIB_POSIX_IOMUX_EPOLL_CALLS_H_

#include <signal.h>
#include <sys/epoll.h>

#include <ctime>

#include "lib/posix/iomux/epoll.h"
#include "lib/posix/iomux/unread_wait.h"
#include "lib/posix/sys/user_arguments.h"

// The calls of the epoll_wait family, for any number.
namespace rcsock::posix {

// Returns whether EpollSet::QuickWait may wait.
inline bool QuickWaits(const EpollSet* set, const epoll_event* events,
                       int capacity) {
  return set != nullptr && set->HasUser() && EpollSet::MayHold(capacity) &&
         !Null(events) && !AnyUnread();
}

// Whether a set has no stream on a lane.  The kernel waits, unless a stream
// comes meanwhile.
inline bool KernelWaits(const EpollSet* set, const epoll_event* events) {
  return set != nullptr && !set->HasUser() && !Null(events) && !AnyUnread();
}

// epoll_wait, epoll_pwait and epoll_pwait2 without a short way.  The caller has
// looked at the mask and at the time, which the kernel has yet to judge.
int LongEpoll(int fd, epoll_event* events, int capacity, int timeout);
int LongEpollPwait(int fd, epoll_event* events, int capacity, int timeout,
                   const sigset_t* mask);
int LongEpollPwait2(int fd, epoll_event* events, int capacity,
                    const timespec* timeout, const sigset_t* mask);
// epoll_wait of a set for which KernelWaits has returned true.
[[gnu::hot]] int KernelEpoll(int fd, epoll_event* events, int capacity,
                             int timeout, EpollSet* set);

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_IOMUX_EPOLL_CALLS_H_
