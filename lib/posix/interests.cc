// What happens to the registrations of a stream when the stream itself changes
// sides, has something to tell, or goes.

#include <poll.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>

#include "lib/base/log.h"
#include "lib/base/real.h"
#include "lib/posix/epoll.h"
#include "lib/posix/poll.h"
#include "lib/posix/registry.h"
#include "lib/posix/signals.h"
#include "lib/posix/sock.h"

namespace rcsock::posix {

// /proc says whether the kernel has already reported a ONESHOT registration:
// then only the flag bits of its events are left.
static bool SpentInKernel(int set, int fd) {
  char path[64];
  std::snprintf(path, sizeof path, "/proc/self/fdinfo/%d", set);
  const long file = ::syscall(SYS_openat, -100, path, 0, 0);
  if (file < 0) return false;
  static char text[16384];  // interest_latch's
  std::size_t length = 0;
  bool spent = false;
  for (bool found = false; !found;) {
    const long n =
        ::syscall(SYS_read, file, text + length, sizeof text - 1 - length);
    if (n <= 0) break;
    length += static_cast<std::size_t>(n);
    text[length] = 0;
    char* line = text;
    for (char* end; !found && (end = std::strchr(line, '\n')) != nullptr;
         line = end + 1) {
      int number = -1;
      unsigned events = 0;
      found = std::sscanf(line, "tfd: %d events: %x", &number, &events) == 2 &&
              number == fd;
      spent = found && (events & ~(EPOLLONESHOT | EPOLLET | EPOLLEXCLUSIVE |
                                   EPOLLWAKEUP)) == 0;
    }
    // The rest of a line comes with the next read.
    length -= static_cast<std::size_t>(line - text);
    std::memmove(text, line, length);
  }
  ::syscall(SYS_close, file);
  return spent;
}

void InterestsToUser(Sock* sock) {
  Critical critical;
  interest_latch.lock();
  // It may have gone back meanwhile.
  if (sock->mode() != Mode::kEngine) {
    interest_latch.unlock();
    return;
  }
  sock->interests_user = true;
  for (Interest* i = sock->interests; i != nullptr; i = i->next_of_sock) {
    if (!i->in_kernel) continue;
    epoll_event unused{};
    if (!Registry::EnterUser(i)) continue;
    if ((i->events.load() & EPOLLONESHOT) != 0) {
      // It counts as moved before the look, for ToldByLane.
      i->moved_at = i->set->CountOnceMoved();
      i->told_by_kernel = SpentInKernel(i->set->fd(), i->fd);
      if (i->told_by_kernel) i->spent.store(true, std::memory_order_relaxed);
    }
    real::epoll_ctl(i->set->fd(), EPOLL_CTL_DEL, i->fd, &unused);
    i->in_kernel = false;
    Registry::MakeReady(i);
    Registry::KickSleepers(i->set);
    // A thread that sleeps in the kernel since before the bell was in its set
    // does not count as a sleeper.
    i->set->KickBell();
  }
  interest_latch.unlock();
}

void InterestsToKernel(Sock* sock) {
  Critical critical;
  interest_latch.lock();
  if (sock->mode() == Mode::kEngine) {
    interest_latch.unlock();
    return;
  }
  sock->interests_user = false;
  Interest* next = nullptr;
  for (Interest* i = sock->interests; i != nullptr; i = next) {
    next = i->next_of_sock;
    if (!i->in_user.load(std::memory_order_relaxed)) continue;
    EpollSet* set = i->set;
    if (i->dormant.load(std::memory_order_relaxed)) {
      Registry::Forget(i);
      continue;
    }
    Registry::LeaveUser(i);
    if (i->spent.load(std::memory_order_relaxed)) continue;
    epoll_event event{};
    event.events = i->events.load(std::memory_order_relaxed);
    event.data.u64 = i->data.load(std::memory_order_relaxed);
    // Its number may have been closed since, and a copy be left.
    if (Entry(i->fd) != sock) i->fd = sock->fd();
    if (real::epoll_ctl(set->fd(), EPOLL_CTL_ADD, i->fd, &event) == 0) {
      i->in_kernel = true;
      i->edge.store(true, std::memory_order_relaxed);
    } else {
      base::Log("fd %d can't go back into epoll set %d: errno %d", i->fd,
                set->fd(), errno);
    }
  }
  interest_latch.unlock();
}

void InterestsRefresh(Sock* sock, bool barrier) {
  Critical critical;
  EpollSet* sets[16];
  int count = 0;
  interest_latch.lock();
  for (Interest* i = sock->interests; i != nullptr; i = i->next_of_sock) {
    if (!i->in_user.load(std::memory_order_relaxed)) continue;
    if (i->direct.load(std::memory_order_relaxed)) i->set->MarkDirty();
    if (count < 16) sets[count++] = i->set;
  }
  interest_latch.unlock();
  if (!barrier) return;
  for (int i = 0; i < count; ++i) Registry::WaitOutLookers(sets[i]);
}

void InterestsReady(Sock* sock) {
  // Without the latch: what is to be reported was stored with one of the
  // stream's latches held, and a registration looks for it, by the same latch,
  // after it has put itself here.  So one of the two sees the other.
  if (sock->interests == nullptr) return;
  interest_latch.lock();
  for (Interest* i = sock->interests; i != nullptr; i = i->next_of_sock) {
    if (!i->in_user.load(std::memory_order_relaxed)) continue;
    Registry::MakeReady(i);
    Registry::KickSleepers(i->set);
  }
  interest_latch.unlock();
}

void InterestsKick(Sock* sock) {
  interest_latch.lock();
  for (Interest* i = sock->interests; i != nullptr; i = i->next_of_sock) {
    i->set->KickBell();
  }
  interest_latch.unlock();
}

void InterestsDrop(Sock* sock, int fd) {
  if (sock->interests == nullptr) return;
  Critical critical;
  Lookers lookers;
  interest_latch.lock();
  for (Interest* i = sock->interests; i != nullptr;) {
    Interest* next = i->next_of_sock;
    if (fd < 0 || i->fd == fd) {
      lookers.Add(i);
      if (!i->dormant.load(std::memory_order_relaxed)) {
        i->set->DropRegistered();
      }
      Registry::Forget(i);
    }
    i = next;
  }
  interest_latch.unlock();
  lookers.WaitOut();
}

bool InterestsNamed(Sock* sock, int fd) {
  if (sock->interests == nullptr) return false;
  Critical critical;
  interest_latch.lock();
  bool found = false;
  for (Interest* i = sock->interests; i != nullptr; i = i->next_of_sock) {
    found |= i->fd == fd;
  }
  interest_latch.unlock();
  return found;
}

bool InterestsKept(Sock* sock) {
  if (sock->interests == nullptr) return false;
  Critical critical;
  interest_latch.lock();
  bool kept = false;
  for (Interest* i = sock->interests; i != nullptr; i = i->next_of_sock) {
    const long flags = ::syscall(SYS_fcntl, i->set->fd(), F_GETFD);
    kept |= flags >= 0 && (flags & FD_CLOEXEC) == 0;
  }
  interest_latch.unlock();
  return kept;
}

int InterestsUnread(Sock* sock, EpollSet* set, epoll_event* out, int capacity) {
  const bool unread = sock->UnreadBytes() > 0;
  Critical critical;
  int found = 0;
  interest_latch.lock();
  for (Interest* i = sock->interests; i != nullptr && found < capacity;
       i = i->next_of_sock) {
    const std::uint32_t events = i->events.load(std::memory_order_relaxed);
    std::uint32_t holds = unread ? events & (EPOLLIN | EPOLLRDNORM) : 0;
    if (sock->Completions()) holds |= EPOLLERR;
    if (i->set != set || !i->in_kernel || holds == 0 ||
        ((events & EPOLLET) != 0 && !i->edge.exchange(false))) {
      continue;
    }
    out[found].events = holds;
    out[found].data.u64 = i->data.load(std::memory_order_relaxed);
    if ((events & EPOLLET) == 0) {
      // What else holds belongs into this report, if there is room for one
      // only.
      pollfd one{i->fd, static_cast<short>(events & 0xffff), 0};
      real::poll(&one, 1, 0);
      out[found].events |= static_cast<std::uint16_t>(one.revents);
    }
    if (events & EPOLLONESHOT) {
      epoll_event unused{};
      real::epoll_ctl(set->fd(), EPOLL_CTL_DEL, i->fd, &unused);
      i->in_kernel = false;
      i->spent.store(true, std::memory_order_relaxed);
    }
    ++found;
  }
  interest_latch.unlock();
  return found;
}

void InterestsNotifyLatched(Sock* sock) {
  if (sock->lane() == nullptr || !sock->OnLane()) return;
  interest_latch.lock();
  std::uint32_t bits = 0;
  int bell = 0;
  EpollSet* only = nullptr;
  bool several = false;
  for (Interest* i = sock->interests; i != nullptr; i = i->next_of_sock) {
    if (!i->in_user.load(std::memory_order_relaxed)) continue;
    if (only != nullptr && only != i->set) several = true;
    only = i->set;
    bell = i->set->bell();
    if (sock->link() != nullptr) i->set->AddLink(sock->link());
    if (sock->source() != nullptr) i->set->AddSource(sock->source());
    Registry::ChooseDirect(i);
    bits |=
        lane::kNotifyRxPoller | lane::kNotifyTxPoller |
        (i->direct.load(std::memory_order_relaxed) ? 0u : lane::kNotifyRxBits);
  }
  interest_latch.unlock();
  // The stream rings one bell.  Of several sets nobody may be waiting on the
  // one whose bell it is: the conductor's then, who tells them all.
  if (several) bell = 0;
  // Nobody watches now: an epoll set's bell stays, since a wish costs the
  // peer's line and a heavy fence, and the next registration will want the
  // same.  (The conductor's bell is that of the switch, which is over.)
  if (bits == 0 && sock->bell() != 0) return;
  if (bits == sock->notify_bits() && bell == sock->bell()) return;
  sock->SetNotify(bits, bell);
  // What came between the look and the new bits has rung nobody's bell.
  InterestsReady(sock);
}

int InterestsBell(Sock* sock) {
  int bell = kPollBell;
  Critical critical;
  interest_latch.lock();
  for (Interest* i = sock->interests; i != nullptr; i = i->next_of_sock) {
    if (!Registry::EnsurePoller(i->set)) continue;
    bell = i->set->bell();
    break;
  }
  interest_latch.unlock();
  return bell;
}

void InterestsNotify(Sock* sock) {
  Latched latched(sock);
  InterestsNotifyLatched(sock);
}

void InterestsForkLock() { interest_latch.lock(); }
void InterestsForkUnlock() { interest_latch.unlock(); }

void InterestsForkChild() {
  const int top = fd_high.load(std::memory_order_relaxed);
  for (int fd = 0; fd <= top; ++fd) {
    File* file = Entry(fd);
    if (file != nullptr && file->kind == FileKind::kEpoll) {
      Registry::ForkChild(static_cast<EpollSet*>(file));
    }
  }
}

}  // namespace rcsock::posix
