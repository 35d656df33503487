#ifndef RCSOCK_LIB_POSIX_UNREAD_WAIT_H_
#define RCSOCK_LIB_POSIX_UNREAD_WAIT_H_

#include <poll.h>
#include <sys/epoll.h>
#include <sys/select.h>

namespace rcsock::posix {

class EpollSet;

// Streams with shared unread bytes are the kernel's, which does not know that
// they are readable.  Unread bytes only ever become fewer, so nobody has to be
// woken for them: a call that waits looks once, and if it finds some it asks
// the kernel without waiting and adds them.  Call these only if AnyUnread().
// The same of completions of MSG_ZEROCOPY that the kernel does not know of,
// which are an error to whoever waits.

// Whether poll, or `select`, would find some; and then, after it has been
// called without a time-out, adds them to its answer.
bool PollFindsUnread(const pollfd* fds, nfds_t count, bool select = false);
int AddUnread(pollfd* fds, nfds_t count, int found);

// The same for select: the sets as they were asked, for Add.
class SelectUnread {
 public:
  // False: there are none.
  bool Look(int count, const fd_set* in, const fd_set* out);
  int Add(fd_set* in, fd_set* out, int found) const;

 private:
  static constexpr int kMost = 64;
  struct Found {
    int fd;
    bool reads;
    bool writes;
  };
  Found fds_[kMost];
  int found_ = 0;
};

// Fills in what an epoll set should report of them; how many.
int EpollFindsUnread(EpollSet* set, epoll_event* events, int capacity);
// `more` events of the other side, the kernel's or the lanes', stand behind the
// `found` ones: makes one of two that are of the same registration, for a
// program may close a descriptor at its first event.  How many there are.
int MergeEvents(epoll_event* events, int found, int more);

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_UNREAD_WAIT_H_
