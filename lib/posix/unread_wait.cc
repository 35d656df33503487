#include "lib/posix/unread_wait.h"

#include "lib/posix/table.h"

namespace rcsock::posix {
namespace {

constexpr int kReadable = POLLIN | POLLRDNORM;

bool HasUnread(int fd) {
  Sock* sock = LookupSock(fd);
  return sock != nullptr && sock->UnreadBytes() > 0;
}

unsigned long Bit(int fd) { return 1ul << (fd % 64); }

}  // namespace

bool PollFindsUnread(const pollfd* fds, nfds_t count) {
  for (nfds_t i = 0; i < count; ++i) {
    if ((fds[i].events & kReadable) != 0 && HasUnread(fds[i].fd)) return true;
  }
  return false;
}

int AddUnread(pollfd* fds, nfds_t count, int found) {
  if (found < 0) return found;
  for (nfds_t i = 0; i < count; ++i) {
    if ((fds[i].events & kReadable) == 0 || !HasUnread(fds[i].fd)) continue;
    if (fds[i].revents == 0) ++found;
    fds[i].revents =
        static_cast<short>(fds[i].revents | (fds[i].events & kReadable));
  }
  return found;
}

bool SelectUnread::Look(int count, const fd_set* in) {
  if (in == nullptr) return false;
  const auto* words = reinterpret_cast<const unsigned long*>(in);
  const int top = fd_high.load(std::memory_order_relaxed);
  for (int fd = 0; fd < count && fd <= top && found_ < kMost; ++fd) {
    if ((words[fd / 64] & Bit(fd)) != 0 && HasUnread(fd)) fds_[found_++] = fd;
  }
  return found_ > 0;
}

int SelectUnread::Add(fd_set* in, int found) const {
  if (found < 0) return found;
  auto* words = reinterpret_cast<unsigned long*>(in);
  for (int i = 0; i < found_; ++i) {
    unsigned long& word = words[fds_[i] / 64];
    if ((word & Bit(fds_[i])) != 0) continue;
    word |= Bit(fds_[i]);
    ++found;
  }
  return found;
}

int EpollFindsUnread(EpollSet* set, epoll_event* events, int capacity) {
  if (events == nullptr) return 0;
  int found = 0;
  const int top = fd_high.load(std::memory_order_relaxed);
  for (int fd = 0; fd <= top && found < capacity; ++fd) {
    Sock* sock = LookupSock(fd);
    if (sock == nullptr || sock->fd() != fd || sock->UnreadBytes() == 0) {
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
