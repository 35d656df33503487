#include "lib/posix/iomux/unread_wait.h"

#include <cerrno>

#include "lib/base/fail.h"
#include "lib/base/guard.h"
#include "lib/posix/fd/file.h"
#include "lib/posix/iomux/interests.h"
#include "lib/posix/socket/lookup.h"
#include "lib/posix/socket/sock_looks.h"

namespace rcsock::posix {
namespace {

constexpr int kReadable = POLLIN | POLLRDNORM;

bool HasUnread(int fd) {
  Sock* sock = LookupSock(fd);
  return sock != nullptr && sock->read_ahead().Bytes() > 0;
}

bool HasError(int fd) {
  Sock* sock = LookupSock(fd);
  return sock != nullptr && Looks(sock).HasError();
}

unsigned long Bit(int fd) { return 1ul << (fd % 64); }

// False also if the set is not there.
bool IsSet(const fd_set* set, int fd) {
  const auto* words = reinterpret_cast<const unsigned long*>(set);
  unsigned long word = 0;
  return base::TryLoad(words + fd / 64, &word) && (word & Bit(fd)) != 0;
}

bool Get(const pollfd* from, pollfd* one) {
  return base::TryGet(one, from, sizeof *one);
}

}  // namespace

// The program's array may be inaccessible.  The kernel's call says so.
bool PollFindsUnread(const pollfd* fds, nfds_t count, bool select) {
  for (nfds_t i = 0; i < count; ++i) {
    pollfd one{};
    if (!Get(fds + i, &one)) return false;
    if ((one.events & kReadable) != 0 && HasUnread(one.fd)) return true;
    // An error is no exception.
    if (select && (one.events & (POLLIN | POLLOUT)) == 0) continue;
    if (HasError(one.fd)) return true;
  }
  return false;
}

int AddUnread(pollfd* fds, nfds_t count, int found) {
  if (found < 0) return found;
  for (nfds_t i = 0; i < count; ++i) {
    pollfd one{};
    if (!Get(fds + i, &one)) return base::Fail(EFAULT);
    int more = 0;
    if ((one.events & kReadable) != 0 && HasUnread(one.fd)) {
      more = one.events & kReadable;
    }
    if (HasError(one.fd)) more |= POLLERR;
    if (more == 0) continue;
    if (one.revents == 0) ++found;
    const auto told = static_cast<short>(one.revents | more);
    if (!base::TryStore(&fds[i].revents, told)) return base::Fail(EFAULT);
  }
  return found;
}

bool SelectUnread::Look(int count, const fd_set* in, const fd_set* out) {
  const int top = fd_high.load(std::memory_order_relaxed);
  for (int fd = 0; fd < count && fd <= top && found_ < kMost; ++fd) {
    const bool error = HasError(fd);
    const bool reads =
        in != nullptr && IsSet(in, fd) && (error || HasUnread(fd));
    const bool writes = out != nullptr && IsSet(out, fd) && error;
    if (reads || writes) fds_[found_++] = {fd, reads, writes};
  }
  return found_ > 0;
}

int SelectUnread::Add(fd_set* in, fd_set* out, int found) const {
  if (found < 0) return found;
  const auto add = [&found](fd_set* set, int fd) {
    unsigned long* const at = reinterpret_cast<unsigned long*>(set) + fd / 64;
    unsigned long word = 0;
    if (!base::TryLoad(at, &word)) return false;
    if ((word & Bit(fd)) != 0) return true;
    ++found;
    return base::TryStore(at, word | Bit(fd));
  };
  for (int i = 0; i < found_; ++i) {
    if (fds_[i].reads && !add(in, fds_[i].fd)) return base::Fail(EFAULT);
    if (fds_[i].writes && !add(out, fds_[i].fd)) return base::Fail(EFAULT);
  }
  return found;
}

int EpollFindsUnread(EpollSet* set, epoll_event* events, int capacity) {
  if (events == nullptr) return 0;
  // Where the last look of this thread ran out of room.  The next look begins
  // there, so that each stream has its turn.
  static thread_local int first = 0;
  int found = 0;
  const int count = fd_high.load(std::memory_order_relaxed) + 1;
  for (int n = 0, fd = first < count ? first : 0; n < count;
       ++n, fd = fd + 1 < count ? fd + 1 : 0) {
    if (found == capacity) {
      first = fd;
      break;
    }
    Sock* sock = LookupSock(fd);
    if (sock == nullptr || sock->fd() != fd ||
        (sock->read_ahead().Bytes() == 0 && !Looks(sock).HasError())) {
      continue;
    }
    found += InterestsUnread(sock, set, events + found, capacity - found);
  }
  return found;
}

int MergeEvents(epoll_event* events, int found, int more) {
  int kept = found;
  for (int i = found; i < found + more; ++i) {
    int same = 0;
    while (same < found && events[same].data.u64 != events[i].data.u64) ++same;
    if (same < found) {
      events[same].events |= events[i].events;
    } else {
      events[kept++] = events[i];
    }
  }
  return kept;
}

}  // namespace rcsock::posix
