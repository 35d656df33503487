#ifndef RCSOCK_LIB_POSIX_IOMUX_UNREAD_WAIT_H_
#define RCSOCK_LIB_POSIX_IOMUX_UNREAD_WAIT_H_

#include <poll.h>
#include <sys/epoll.h>
#include <sys/select.h>

namespace rcsock::posix {

class EpollSet;

// Streams with shared unread bytes are the kernel's, but the kernel does not
// know that they are readable.  Unread bytes only ever become fewer, so no
// thread has to be woken for them.  A call that waits looks once.  If it finds
// some, it asks the kernel without waiting, and adds them.  Completions of
// MSG_ZEROCOPY that the kernel does not know of are handled likewise: a waiting
// call reports them as an error.  Call these functions only if AnyUnread().

// PollFindsUnread returns whether poll, or `select`, would find unread bytes.
// If so, the caller polls without a time-out, and AddUnread adds them to that
// answer.
bool PollFindsUnread(const pollfd* fds, nfds_t count, bool select = false);
int AddUnread(pollfd* fds, nfds_t count, int found);

// The form for select.  Keeps the sets as the program gave them, for Add.
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

// Fills in what an epoll set should report of them, and returns how many.
int EpollFindsUnread(EpollSet* set, epoll_event* events, int capacity);
// Behind the `found` events stand `more` events of the other side, the kernel's
// or the lanes'.  If two are of one registration, this joins them, since a
// program may close a descriptor at its first event.  Returns how many remain.
int MergeEvents(epoll_event* events, int found, int more);

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_IOMUX_UNREAD_WAIT_H_
