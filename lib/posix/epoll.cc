#include "lib/posix/epoll.h"

#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <new>
#include <optional>

#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "lib/base/pool.h"
#include "lib/base/real.h"
#include "lib/posix/poll.h"
#include "lib/posix/signals.h"
#include "lib/posix/sock.h"
#include "lib/posix/spin.h"
#include "lib/posix/unread_wait.h"

namespace rcsock::posix {

using rendezvous::Conductor;

namespace {

// Guards Sock::interests, EpollSet::members_ and which side, kernel or user,
// has an interest.
base::Latch interest_latch;

Interest* free_interests = nullptr;  // through next_of_set; interest_latch's
EpollSet* free_sets = nullptr;

std::atomic<int> next_bell{2};

Interest* TakeInterest() {
  if (free_interests == nullptr) {
    static constinit base::Pool pool(sizeof(Interest));
    void* at = pool.Take();
    return at == nullptr ? nullptr : new (at) Interest();
  }
  Interest* interest = free_interests;
  free_interests = interest->next_of_set;
  return interest;
}

// All that the kernel lets EPOLLEXCLUSIVE go with.
constexpr std::uint32_t kWithExclusive =
    EPOLLIN | EPOLLOUT | EPOLLERR | EPOLLHUP | EPOLLWAKEUP |
    static_cast<std::uint32_t>(EPOLLET) | EPOLLEXCLUSIVE;

constexpr std::uint32_t kReadable = EPOLLIN | EPOLLRDNORM | EPOLLRDHUP;

}  // namespace

// What needs the private parts of a set; every call has interest_latch.
struct Registry {
  // Also one that is dormant.
  static Interest* Find(Sock* sock, EpollSet* set, int fd) {
    for (Interest* i = sock->interests; i != nullptr; i = i->next_of_sock) {
      if (i->set == set && i->fd == fd) return i;
    }
    return nullptr;
  }

  // The streams of a small set are looked at in every wait and need no bits;
  // one that is in several sets always does.
  static void ChooseDirect(Interest* interest) {
    EpollSet* set = interest->set;
    const bool wanted = interest->sock->interests == interest &&
                        interest->next_of_sock == nullptr &&
                        !set->crowded_.load(std::memory_order_relaxed);
    if (interest->direct == wanted) return;
    if (interest->direct) {
      DropDirect(interest);
    } else if (set->direct_used_ < EpollSet::kMostDirect) {
      interest->direct = true;
      set->direct_members_[set->direct_used_++] = interest;
      set->dirty_.store(true, std::memory_order_seq_cst);
    }
  }

  // It is not, and there is room again.
  static bool MayBeDirect(const Interest* interest) {
    const EpollSet* set = interest->set;
    return !interest->direct && set->direct_used_ < EpollSet::kMostDirect &&
           !set->crowded_.load(std::memory_order_relaxed);
  }

  static void DropDirect(Interest* interest) {
    if (!interest->direct) return;
    EpollSet* set = interest->set;
    interest->direct = false;
    // What it has is told by nobody else; its next message has its bit.
    if (set->heats_.load(std::memory_order_relaxed)) MakeReady(interest);
    for (int i = 0; i < set->direct_used_; ++i) {
      if (set->direct_members_[i] != interest) continue;
      set->direct_members_[i] = set->direct_members_[--set->direct_used_];
      break;
    }
    set->dirty_.store(true, std::memory_order_seq_cst);
  }

  static bool EnsurePoller(EpollSet* set) {
    if (set->poller_) return true;
    Conductor* conductor = Conductor::IfRunning();
    if (conductor == nullptr) return false;
    const int bell = 2 + next_bell.fetch_add(1, std::memory_order_relaxed) %
                             (lane::shm::kBells - 2);
    lane::shm::Bells* bells = conductor->bells();
    if (bells->EnsureBell(bell) < 0) return false;
    conductor->AnnounceBell(bell);
    set->board_ = conductor->board();
    set->poller_.reset(new (std::nothrow) lane::shm::ShmPoller(bells, bell));
    return set->poller_ != nullptr;
  }

  static bool EnterUser(Interest* interest) {
    EpollSet* set = interest->set;
    if (!EnsurePoller(set)) return false;
    set->ever_user_.store(true, std::memory_order_release);
    if (!set->bell_in_kernel_) {
      // Its data is an address that no program can know.
      epoll_event event{};
      event.events = EPOLLIN | EPOLLET;
      event.data.ptr = set;
      if (real::epoll_ctl(set->fd_, EPOLL_CTL_ADD, set->poller_->fd(),
                          &event) != 0) {
        return false;
      }
      set->bell_in_kernel_ = true;
    }
    set->moves_.fetch_add(1, std::memory_order_seq_cst);
    interest->in_user.store(true, std::memory_order_relaxed);
    interest->edge.store(true, std::memory_order_relaxed);
    interest->prev_of_set = nullptr;
    interest->next_of_set = set->members_;
    if (set->members_ != nullptr) set->members_->prev_of_set = interest;
    set->members_ = interest;
    if (set->user_count_.fetch_add(1, std::memory_order_seq_cst) ==
        EpollSet::kMostDirect) {
      set->crowded_.store(true, std::memory_order_relaxed);
    }
    return true;
  }

  static void LeaveUser(Interest* interest) {
    EpollSet* set = interest->set;
    if (!interest->in_user.load(std::memory_order_relaxed)) return;
    interest->in_user.store(false, std::memory_order_relaxed);
    DropDirect(interest);
    (interest->prev_of_set != nullptr ? interest->prev_of_set->next_of_set
                                      : set->members_) = interest->next_of_set;
    if (interest->next_of_set != nullptr) {
      interest->next_of_set->prev_of_set = interest->prev_of_set;
    }
    if (set->user_count_.fetch_sub(1, std::memory_order_seq_cst) == 1) {
      set->crowded_.store(false, std::memory_order_relaxed);
      set->heats_.store(false, std::memory_order_relaxed);
    }
    set->ready_latch_.lock();
    set->UnlinkReady(interest);
    set->ready_latch_.unlock();
  }

  static void Forget(Interest* interest) {
    LeaveUser(interest);
    Sock* sock = interest->sock;
    Interest* before = nullptr;
    for (Interest* i = sock->interests; i != nullptr && i != interest;
         i = i->next_of_sock) {
      before = i;
    }
    if (before == nullptr) {
      sock->interests = interest->next_of_sock;
    } else {
      before->next_of_sock = interest->next_of_sock;
    }
    interest->set = nullptr;
    interest->sock = nullptr;
    interest->dormant.store(false, std::memory_order_relaxed);
    interest->next_of_set = free_interests;
    free_interests = interest;
  }

  static void PutToSleep(Interest* interest) {
    EpollSet* set = interest->set;
    interest->dormant.store(true, std::memory_order_relaxed);
    interest->events.store(0, std::memory_order_relaxed);
    set->ready_latch_.lock();
    set->UnlinkReady(interest);
    set->ready_latch_.unlock();
  }

  static void MakeReady(Interest* interest) {
    EpollSet* set = interest->set;
    if (interest->dormant.load(std::memory_order_relaxed)) return;
    interest->edge.store(true, std::memory_order_relaxed);
    set->ready_latch_.lock();
    set->LinkReady(interest);
    set->ready_latch_.unlock();
  }

  static void KickSleepers(EpollSet* set) {
    // seq_cst, all four: a sleeper counts itself and then looks at
    // ready_count_; LinkReady has changed ready_count_ before the count is
    // looked at here.  (Of what was on the list already, whoever linked it
    // tells the sleepers.)
    if (set->sleepers_.load(std::memory_order_seq_cst) > 0 && set->poller_) {
      set->poller_->Kick();
    }
  }

  static void WaitOutLookers(EpollSet* set) {
    set->wait_latch_.lock();
    set->wait_latch_.unlock();
  }

  static EpollSet* Take() {
    if (free_sets == nullptr) return new (std::nothrow) EpollSet();
    EpollSet* set = free_sets;
    free_sets = set->pool_next_;
    return set;
  }

  static void Put(EpollSet* set) {
    set->pool_next_ = free_sets;
    free_sets = set;
  }

  static Interest* Members(EpollSet* set) { return set->members_; }

  static void ForkChild(EpollSet* set) {
    set->wait_latch_.Reset();
    set->ready_latch_.Reset();
    set->sleepers_.store(0);
    set->dirty_.store(true);
    (void)set->poller_.release();  // the parent's bell: abandoned
    set->source_count_.store(0);
    set->bell_in_kernel_ = false;
    set->armed_outside_ = false;
  }
};

// --- Registration
// ------------------------------------------------------------------

EpollSet* EpollSet::New(int fd) {
  Critical critical;
  interest_latch.lock();
  EpollSet* set = Registry::Take();
  interest_latch.unlock();
  if (set != nullptr) {
    set->fd_ = fd;
    set->nested_.store(false, std::memory_order_relaxed);
    set->ever_user_.store(false, std::memory_order_relaxed);
    set->outside_.store(false, std::memory_order_relaxed);
    set->idle_since_ = 0;
    set->shares_cpu_ = false;
  }
  return set;
}

void EpollSet::Free() {
  Critical critical;
  DisarmOutside();
  interest_latch.lock();
  // Registrations of streams that are still open; found through the table,
  // since the kernel's part of the set has no list here.
  while (members_ != nullptr) Registry::Forget(members_);
  const int top = fd_high.load(std::memory_order_relaxed);
  for (int fd = 0; fd <= top && registered_ > 0; ++fd) {
    File* file = Lookup(fd);
    if (file == nullptr || file->kind != FileKind::kSock) continue;
    auto* sock = static_cast<Sock*>(file);
    for (Interest* i = sock->interests; i != nullptr;) {
      Interest* next = i->next_of_sock;
      if (i->set == this) {
        if (!i->dormant.load(std::memory_order_relaxed)) --registered_;
        Registry::Forget(i);
      }
      i = next;
    }
  }
  registered_ = 0;
  fd_ = -1;
  crowded_.store(false, std::memory_order_relaxed);
  heats_.store(false, std::memory_order_relaxed);
  interest_latch.unlock();
  wait_latch_.lock();
  poller_.reset();
  bell_in_kernel_ = false;
  source_count_.store(0, std::memory_order_relaxed);
  direct_count_ = 0;
  wait_latch_.unlock();
  interest_latch.lock();
  Registry::Put(this);
  interest_latch.unlock();
}

int EpollSet::Ctl(int op, int fd, Sock* sock, epoll_event* event) {
  if (op != EPOLL_CTL_DEL && Null(event)) {
    return real::epoll_ctl(fd_, op, fd, event);
  }
  if (nested_.load(std::memory_order_relaxed) && op == EPOLL_CTL_ADD) {
    sock->Pin(base::Reason::kPinnedOption);
  }
  Critical critical;
  interest_latch.lock();
  const bool engine = sock->interests_user;
  Interest* asleep = nullptr;
  Interest* found = Registry::Find(sock, this, fd);
  if (found != nullptr && found->dormant.load(std::memory_order_relaxed)) {
    asleep = found;
    found = nullptr;
  }
  int result = 0;
  bool kick = false;
  bool notify = false;  // what the lane is asked to tell may have changed
  const bool had_user = HasUser();
  if (op == EPOLL_CTL_ADD) {
    if (found != nullptr) {
      errno = EEXIST;
      result = -1;
    } else if (engine && (event->events & EPOLLEXCLUSIVE) != 0 &&
               (event->events & ~kWithExclusive) != 0) {
      errno = EINVAL;
      result = -1;
    } else if (asleep != nullptr) {
      asleep->events.store(event->events, std::memory_order_relaxed);
      asleep->data.store(event->data.u64, std::memory_order_relaxed);
      asleep->told_by_kernel = false;
      asleep->spent.store(false, std::memory_order_relaxed);
      asleep->dormant.store(false, std::memory_order_release);
      ++registered_;
      Registry::MakeReady(asleep);
      kick = true;
      notify = Registry::MayBeDirect(asleep);
    } else if (Interest* interest = TakeInterest(); interest == nullptr) {
      errno = ENOMEM;
      result = -1;
    } else {
      if (!engine) {
        result = real::epoll_ctl(fd_, op, fd, event);
      }
      if (result != 0) {
        interest->next_of_set = free_interests;
        free_interests = interest;
      } else {
        interest->set = this;
        interest->sock = sock;
        interest->fd = fd;
        interest->events.store(event->events, std::memory_order_relaxed);
        interest->data.store(event->data.u64, std::memory_order_relaxed);
        interest->in_kernel = !engine;
        interest->in_user.store(false, std::memory_order_relaxed);
        interest->spent.store(false, std::memory_order_relaxed);
        interest->edge.store(true, std::memory_order_relaxed);
        interest->direct = false;
        interest->told_by_kernel = false;
        interest->told = 0;  // of another set's waits
        interest->next_of_sock = sock->interests;
        sock->interests = interest;
        ++registered_;
        notify = true;
        if (engine) {
          if (Registry::EnterUser(interest)) {
            Registry::MakeReady(interest);
            kick = true;
          } else {
            Registry::Forget(interest);
            --registered_;
            errno = ENOMEM;
            result = -1;
          }
        }
      }
    }
  } else if (op == EPOLL_CTL_MOD) {
    if (found == nullptr) {
      interest_latch.unlock();
      return real::epoll_ctl(fd_, op, fd, event);
    }
    if (found->in_kernel) {
      result = real::epoll_ctl(fd_, op, fd, event);
    } else if (!found->in_user.load(std::memory_order_relaxed)) {
      // A spent ONESHOT that came back from a lane, and was on no side since.
      if (!engine) {
        result = real::epoll_ctl(fd_, EPOLL_CTL_ADD, fd, event);
        if (result == 0) found->in_kernel = true;
      } else if (Registry::EnterUser(found)) {
        notify = true;
      } else {
        errno = ENOMEM;
        result = -1;
      }
    } else if ((found->events.load() | event->events) & EPOLLEXCLUSIVE) {
      errno = EINVAL;
      result = -1;
    }
    if (result == 0) {
      found->events.store(event->events, std::memory_order_relaxed);
      found->data.store(event->data.u64, std::memory_order_relaxed);
      found->told_by_kernel = false;
      found->spent.store(false, std::memory_order_relaxed);
      found->edge.store(true, std::memory_order_relaxed);
      if (found->in_user.load(std::memory_order_relaxed)) {
        Registry::MakeReady(found);
        kick = true;
        notify = notify || Registry::MayBeDirect(found);
      }
    }
  } else if (op == EPOLL_CTL_DEL) {
    if (found == nullptr) {
      interest_latch.unlock();
      return real::epoll_ctl(fd_, op, fd, event);
    }
    if (found->in_kernel) result = real::epoll_ctl(fd_, op, fd, event);
    if (result == 0) {
      --registered_;
      if (found->in_user.load(std::memory_order_relaxed)) {
        Registry::PutToSleep(found);
      } else {
        Registry::Forget(found);
        notify = true;
      }
    }
  } else {
    errno = EINVAL;
    result = -1;
  }
  interest_latch.unlock();
  if (kick) {
    Registry::KickSleepers(this);
    // A thread that sleeps since before the set had a stream in user space does
    // not count as a sleeper; the bell is in its set by now.
    if (!had_user) KickBell();
  }
  if (result == 0 && engine && notify) InterestsNotify(sock);
  return result;
}

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
    if (Lookup(i->fd) != sock) i->fd = sock->fd();
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
    if (i->direct) i->set->MarkDirty();
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
  EpollSet* lookers[16];
  int count = 0;
  interest_latch.lock();
  for (Interest* i = sock->interests; i != nullptr;) {
    Interest* next = i->next_of_sock;
    if (fd < 0 || i->fd == fd) {
      // (A set whose looks change may still have one that is no longer direct.)
      if ((i->direct || i->set->Heats()) && count < 16) {
        lookers[count++] = i->set;
      }
      if (!i->dormant.load(std::memory_order_relaxed)) {
        i->set->DropRegistered();
      }
      Registry::Forget(i);
    }
    i = next;
  }
  interest_latch.unlock();
  // A direct stream is in one set only, so there are no more than its numbers.
  for (int i = 0; i < count; ++i) Registry::WaitOutLookers(lookers[i]);
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
    bits |= lane::kNotifyRxPoller | lane::kNotifyTxPoller |
            (i->direct ? 0u : lane::kNotifyRxBits);
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
  Critical critical;
  sock->tx_latch.lock();
  sock->rx_latch.lock();
  InterestsNotifyLatched(sock);
  sock->rx_latch.unlock();
  sock->tx_latch.unlock();
}

void InterestsForkLock() { interest_latch.lock(); }
void InterestsForkUnlock() { interest_latch.unlock(); }

void InterestsForkChild() {
  const int top = fd_high.load(std::memory_order_relaxed);
  for (int fd = 0; fd <= top; ++fd) {
    File* file = Lookup(fd);
    if (file != nullptr && file->kind == FileKind::kEpoll) {
      Registry::ForkChild(static_cast<EpollSet*>(file));
    }
  }
}

// --- Ready list
// -----------------------------------------------------------------------

void EpollSet::LinkReady(Interest* interest) {
  if (interest->ready.load(std::memory_order_relaxed)) return;
  interest->ready.store(true, std::memory_order_relaxed);
  interest->ready_next = nullptr;
  interest->ready_prev = ready_tail_;
  (ready_tail_ != nullptr ? ready_tail_->ready_next : ready_head_) = interest;
  ready_tail_ = interest;
  ready_count_.fetch_add(1, std::memory_order_seq_cst);
}

void EpollSet::UnlinkReady(Interest* interest) {
  if (!interest->ready.load(std::memory_order_relaxed)) return;
  interest->ready.store(false, std::memory_order_relaxed);
  (interest->ready_prev != nullptr ? interest->ready_prev->ready_next
                                   : ready_head_) = interest->ready_next;
  (interest->ready_next != nullptr ? interest->ready_next->ready_prev
                                   : ready_tail_) = interest->ready_prev;
  ready_count_.fetch_sub(1, std::memory_order_seq_cst);
}

// --- Waiting
// ---------------------------------------------------------------------------

void EpollSet::AddLink(const std::shared_ptr<lane::shm::Link>& link) {
  poller_->AddLink(link);
}

void EpollSet::AddSource(lane::Source* source) {
  const int count = source_count_.load(std::memory_order_relaxed);
  int at = count;
  for (int i = 0; i < count; ++i) {
    lane::Source* one = sources_[i].load(std::memory_order_relaxed);
    if (one == source) return;
    if (one->fd() < 0) at = i;  // its device has gone
  }
  if (at == kMostSources) return;  // more devices than that: by the bell
  epoll_event event{};
  event.events = EPOLLIN | EPOLLET;
  event.data.ptr = this;
  real::epoll_ctl(fd_, EPOLL_CTL_ADD, source->fd(), &event);
  sources_[at].store(source, std::memory_order_seq_cst);
  if (at == count) source_count_.store(count + 1, std::memory_order_seq_cst);
  // A thread that sleeps has not armed it.
  Registry::KickSleepers(this);
}

void EpollSet::DrainSources() {
  const int count = source_count_.load(std::memory_order_acquire);
  for (int i = 0; i < count; ++i) source(i)->Drain();
}

void EpollSet::KickBell() {
  if (poller_) poller_->Kick();
}

// Chooses the few streams whose rings are looked at in every wait: a spinner
// that looks at the ring itself sees a message one cache line earlier than one
// that waits for its bit.
void EpollSet::Rebuild() {
  if (__builtin_expect(!dirty_.load(std::memory_order_acquire), 1)) return;
  dirty_.store(false, std::memory_order_seq_cst);
  interest_latch.lock();
  direct_count_ = 0;
  for (int d = 0; d < direct_used_; ++d) {
    Interest* i = direct_members_[d];
    if (!i->sock->OnLane()) continue;
    direct_[direct_count_++] = {i, i->sock, i->sock->lane()};
  }
  interest_latch.unlock();
}

// The set has outgrown direct looks: each direct stream gets its bit instead.
// No latch held.
void EpollSet::LeaveDirect() {
  for (;;) {
    Sock* sock = nullptr;
    interest_latch.lock();
    if (direct_used_ > 0 && crowded_.load(std::memory_order_relaxed)) {
      sock = direct_members_[0]->sock;
      sock->Ref();
      Registry::DropDirect(direct_members_[0]);
    } else if (crowded_.load(std::memory_order_relaxed)) {
      heats_.store(true, std::memory_order_relaxed);
    }
    interest_latch.unlock();
    if (sock == nullptr) return;
    InterestsNotify(sock);
    sock->Unref();
  }
}

// It has been reported, and not long before: the next report may come by a
// direct look.  (Level-triggered input alone, in shared memory.)
void EpollSet::Heat(Interest* interest, Sock* sock) {
  if (rests_) {
    if (wait_number_ - rest_from_ < kRestWaits) return;
    rests_ = false;
  }
  constexpr std::uint32_t kOther = EPOLLOUT | EPOLLWRNORM | EPOLLONESHOT |
                                   static_cast<std::uint32_t>(EPOLLET);
  const std::uint32_t events = interest->events.load(std::memory_order_relaxed);
  if ((events & EPOLLIN) == 0 || (events & kOther) != 0 ||
      sock->source() != nullptr) {
    return;
  }
  interest_latch.lock();
  if (heats_.load(std::memory_order_relaxed) && interest->set == this &&
      interest->in_user.load(std::memory_order_relaxed) && !interest->direct &&
      sock->interests == interest && interest->next_of_sock == nullptr &&
      direct_used_ < kMostHot) {
    interest->direct = true;
    direct_members_[direct_used_++] = interest;
    dirty_.store(true, std::memory_order_seq_cst);
  }
  interest_latch.unlock();
}

// Hot streams that are so no longer make room.  If the looks find hardly
// anything, because the traffic is spread over many, they are given up for a
// while.
void EpollSet::Cool() {
  const bool all = hot_hits_ < kCoolWaits / 4;
  hot_hits_ = 0;
  if (direct_count_ == 0) return;
  interest_latch.lock();
  for (int d = direct_used_; d-- > 0;) {
    Interest* interest = direct_members_[d];
    if (all || wait_number_ - interest->told > kCoolWaits) {
      Registry::DropDirect(interest);
    }
  }
  interest_latch.unlock();
  if (all) {
    rests_ = true;
    rest_from_ = wait_number_;
  }
}

// Input of a hot stream needs no bit: it is found by every wait.  With the
// interest latch.
bool EpollSet::LooksAt(const Interest* interest, const Sock* sock) const {
  return interest->direct && heats_.load(std::memory_order_relaxed) &&
         (interest->events.load(std::memory_order_relaxed) &
          static_cast<std::uint32_t>(EPOLLET)) == 0 &&
         sock->OnLane();
}

// Reports the direct streams that have something to read, past the ready list.
// What else holds for them (EPOLLOUT, the end) comes by the list.
int EpollSet::TellDirect(epoll_event* out, int capacity) {
  int filled = 0;
  const int first = direct_next_ < direct_count_ ? direct_next_ : 0;
  direct_next_ = 0;
  for (int k = 0; k < direct_count_; ++k) {
    int d = first + k;
    if (d >= direct_count_) d -= direct_count_;
    if (filled == capacity) {
      direct_next_ = d;  // has its turn next time
      break;
    }
    if (!direct_[d].lane->RxPendingQuick()) continue;
    Interest* interest = direct_[d].interest;
    const std::uint32_t events =
        interest->events.load(std::memory_order_relaxed);
    if ((events & (EPOLLIN | EPOLLRDNORM)) == 0 ||
        interest->spent.load(std::memory_order_relaxed)) {
      continue;
    }
    Sock* sock = direct_[d].sock;
    const bool whole = (events & (EPOLLOUT | EPOLLWRNORM | EPOLLONESHOT)) != 0;
    if (events & EPOLLET) {
      sock->rx_latch.lock();
      const bool edge =
          sock->lane() == direct_[d].lane && direct_[d].lane->Arrived();
      sock->rx_latch.unlock();
      if (!edge) continue;
    }
    // (A lane that says it has something may only be dead, if it is not in
    // memory.  One that is put on the list just now is told of here: `told`
    // keeps the list from telling it again.)
    if (whole || interest->ready.load(std::memory_order_relaxed) ||
        !sock->OnLane() ||
        (sock->source() != nullptr &&
         direct_[d].lane->State() != base::Reason::kNone)) {
      if (events & EPOLLET) {
        interest->edge.store(true, std::memory_order_relaxed);
      }
      ready_latch_.lock();
      if (interest->set == this && interest->in_user.load()) {
        LinkReady(interest);
      }
      ready_latch_.unlock();
      continue;
    }
    interest->told = wait_number_;
    out[filled].events = events & (EPOLLIN | EPOLLRDNORM);
    out[filled].data.u64 = interest->data.load(std::memory_order_relaxed);
    ++filled;
  }
  return filled;
}

// How many of the events that there is room for may be direct ones: where the
// list has some, those that always have something must leave it a part.
int EpollSet::DirectRoom(int room) const {
  if (ready_count_.load(std::memory_order_relaxed) == 0) return room;
  return room > 1 ? room - room / 2 : static_cast<int>(wait_number_ & 1);
}

// What this wait leaves behind for another thread: on the list, where the end
// of the wait finds it, or (true) in a direct stream that there was no room
// for. A kick that has come for several wakes one thread.
bool EpollSet::LeavesWork() {
  if (sleepers_.load(std::memory_order_seq_cst) == 0) return false;
  if (undrained_ > 0) {
    undrained_ = 0;
    DrainPoller();
  }
  for (int d = 0; d < direct_count_; ++d) {
    const Interest* interest = direct_[d].interest;
    const std::uint32_t events =
        interest->events.load(std::memory_order_relaxed);
    if ((events & (EPOLLIN | EPOLLRDNORM)) == 0 ||
        interest->spent.load(std::memory_order_relaxed) ||
        // (What was told at its edge may lie there for long.)
        ((events & EPOLLET) != 0 && direct_next_ == 0)) {
      continue;
    }
    if (interest->told != wait_number_ && direct_[d].lane->RxPendingQuick()) {
      return true;
    }
  }
  return false;
}

bool EpollSet::AnyDirect() {
  for (int d = 0; d < direct_count_; ++d) {
    if (!direct_[d].lane->RxPending()) continue;
    Interest* interest = direct_[d].interest;
    const std::uint32_t events =
        interest->events.load(std::memory_order_relaxed);
    if ((events & kReadable) == 0 ||
        interest->spent.load(std::memory_order_relaxed)) {
      continue;
    }
    if ((events & EPOLLET) == 0) return true;
    // An edge is used up by the look: it goes to the list.
    Sock* sock = direct_[d].sock;
    sock->rx_latch.lock();
    const bool edge =
        sock->lane() == direct_[d].lane && direct_[d].lane->Arrived();
    sock->rx_latch.unlock();
    if (!edge) continue;
    interest->edge.store(true, std::memory_order_relaxed);
    ready_latch_.lock();
    if (interest->set == this && interest->in_user.load()) LinkReady(interest);
    ready_latch_.unlock();
    return true;
  }
  return false;
}

int EpollSet::DrainPoller() {
  lane::Completion found[64];
  int total = 0;
  DrainSources();
  for (int round = 0; round < 4; ++round) {
    int n = poller_->Poll(found, 64);
    if (n < 64) n += board_->Poll(poller_->bell(), found + n, 64 - n);
    if (n <= 0) break;
    total += n;
    // A stream of thousands is in no cache, and each latch would wait for one
    // line after the other.
    for (int c = 0; c < n; ++c) {
      static_cast<Sock*>(found[c].cookie)->Warm();
    }
    for (int c = 0; c < n; ++c) {
      static_cast<Sock*>(found[c].cookie)->WarmMore();
    }
    // (Of a single one when it is looked at.)
    for (int c = 0; c < n && n > 1; ++c) {
      static_cast<Sock*>(found[c].cookie)->WarmLane();
    }
    interest_latch.lock();
    ready_latch_.lock();
    for (int c = 0; c < n; ++c) {
      auto* sock = static_cast<Sock*>(found[c].cookie);
      for (Interest* i = sock->interests; i != nullptr; i = i->next_of_sock) {
        if (!i->in_user.load(std::memory_order_relaxed)) continue;
        if (i->dormant.load(std::memory_order_relaxed)) continue;
        if (found[c].flags == lane::kCompletionRx && i->set == this &&
            LooksAt(i, sock)) {
          continue;
        }
        i->edge.store(true, std::memory_order_relaxed);
        if (i->set == this) {
          LinkReady(i);
        } else {
          ready_latch_.unlock();
          Registry::MakeReady(i);
          Registry::KickSleepers(i->set);
          ready_latch_.lock();
        }
      }
    }
    ready_latch_.unlock();
    interest_latch.unlock();
    if (n < 64) break;
  }
  return total;
}

int EpollSet::Collect(epoll_event* out, int capacity) {
  // Taken off first and put back at the end if still ready: level-triggered
  // streams take turns, as in the kernel.
  Interest* batch[64];
  int filled = 0;
  int looked = 0;
  const int most = ready_count_.load(std::memory_order_relaxed);
  while (filled < capacity && looked < most) {
    int n = 0;
    ready_latch_.lock();
    while (n < 64 && n < capacity - filled && ready_head_ != nullptr) {
      batch[n] = ready_head_;
      UnlinkReady(ready_head_);
      ++n;
    }
    ready_latch_.unlock();
    if (n == 0) break;
    looked += n;
    for (int b = 0; b < n; ++b) {
      Interest* interest = batch[b];
      Sock* sock = interest->sock;
      const std::uint32_t events =
          interest->events.load(std::memory_order_relaxed);
      if (interest->set != this || sock == nullptr ||
          !interest->in_user.load(std::memory_order_relaxed) ||
          interest->dormant.load(std::memory_order_acquire) ||
          interest->spent.load(std::memory_order_relaxed)) {
        continue;
      }
      // Reported already: no descriptor twice in one wait.  It stays listed.
      if (interest->told == wait_number_) {
        ready_latch_.lock();
        if (interest->set == this && interest->in_user.load()) {
          LinkReady(interest);
        }
        ready_latch_.unlock();
        continue;
      }
      if ((events & EPOLLET) &&
          !interest->edge.exchange(false, std::memory_order_relaxed)) {
        continue;
      }
      // EPOLL* and POLL* have the same values for what a socket can be.
      bool plain = false;
      const std::uint32_t holds = sock->Readiness(
          (events & 0xffff) | EPOLLERR | EPOLLHUP | EPOLLRDHUP | Sock::kInRing,
          &plain, most == 1 && crowded_.load(std::memory_order_relaxed));
      const std::uint32_t ready =
          holds & ((events & 0xffff) | EPOLLERR | EPOLLHUP);
      if (ready == 0) continue;
      // (ToldByLane may have come first.)
      if ((events & EPOLLONESHOT) != 0 &&
          interest->spent.exchange(true, std::memory_order_relaxed)) {
        continue;
      }
      // The list may have become shorter meanwhile: what has been put back
      // would come again.
      const std::uint32_t ago = wait_number_ - interest->told;
      interest->told = wait_number_;
      if (ago <= kHotWaits && heats_.load(std::memory_order_relaxed)) {
        Heat(interest, sock);
      }
      out[filled].events = ready;
      out[filled].data.u64 = interest->data.load(std::memory_order_relaxed);
      ++filled;
      if ((events & (EPOLLET | EPOLLONESHOT)) == 0 &&
          !(interest->direct && sock->OnLane() &&
            (events & (EPOLLOUT | EPOLLWRNORM)) == 0 &&
            (holds & ~std::uint32_t{EPOLLRDNORM}) ==
                (EPOLLIN | Sock::kInRing))) {
        // (A direct stream that only has something to read in its ring is
        // looked at anyway; the look does not see the stash, nor the end, nor
        // its own SHUT_RD.)
        ready_latch_.lock();
        if (interest->set == this && interest->in_user.load()) {
          LinkReady(interest);
        }
        ready_latch_.unlock();
      }
    }
  }
  return filled;
}

bool EpollSet::SomethingReady() {
  DrainSources();
  if (ready_count_.load(std::memory_order_seq_cst) > 0) return true;
  if (AnyDirect()) return true;
  DrainPoller();
  return ready_count_.load(std::memory_order_seq_cst) > 0;
}

bool EpollSet::AnyReady() {
  if (!HasUser()) return false;
  Critical critical;
  wait_latch_.lock();
  Rebuild();
  epoll_event one;
  bool any = false;
  // A direct level-triggered stream is on no list.
  ++wait_number_;
  for (int d = 0; d < direct_count_ && !any; ++d) {
    const Interest* interest = direct_[d].interest;
    const std::uint32_t events =
        interest->events.load(std::memory_order_relaxed);
    any = (events & EPOLLET) == 0 && (events & (EPOLLIN | EPOLLRDNORM)) != 0 &&
          !interest->spent.load(std::memory_order_relaxed) &&
          direct_[d].lane->RxPending();
  }
  if (!any && SomethingReady()) {
    // Looked at without being reported: an edge stays one.
    ready_latch_.lock();
    Interest* head = ready_head_;
    ready_latch_.unlock();
    const bool edge = head != nullptr && head->edge.load();
    const bool oneshot =
        head != nullptr && (head->events.load() & EPOLLONESHOT) != 0;
    any = Collect(&one, 1) > 0;
    if (any && head != nullptr) {
      if (edge) head->edge.store(true);
      if (oneshot) head->spent.store(false);
      ready_latch_.lock();
      if (head->set == this && head->in_user.load()) LinkReady(head);
      ready_latch_.unlock();
    }
  }
  wait_latch_.unlock();
  return any;
}

bool EpollSet::TimeForKernel() {
  const std::uint64_t now = base::Ticks();
  if (now - kernel_look_.load(std::memory_order_relaxed) <=
      kKernelLookUs * base::ticks_per_us) {
    return false;
  }
  kernel_look_.store(now, std::memory_order_relaxed);
  return true;
}

// Several threads may miss each other's count: then one of them looks later.
bool EpollSet::KernelDue() {
  const std::uint32_t waits = waits_.load(std::memory_order_relaxed) + 1;
  waits_.store(waits, std::memory_order_relaxed);
  return (waits & 3) == 0 && TimeForKernel();
}

// What KernelDue() would say.
bool EpollSet::KernelDueNext() const {
  return (waits_.load(std::memory_order_relaxed) & 3) == 3 &&
         base::Ticks() - kernel_look_.load(std::memory_order_relaxed) >
             kKernelLookUs * base::ticks_per_us;
}

[[gnu::flatten]] int EpollSet::QuickWait(epoll_event* out, int capacity,
                                         bool may_wait) {
  const bool heats = heats_.load(std::memory_order_relaxed);
  if ((crowded_.load(std::memory_order_relaxed) && !heats) || KernelDueNext()) {
    return 0;
  }
  Critical critical;
  if (!wait_latch_.try_lock()) return 0;
  int filled = 0;
  bool leaves = false;
  if (++wait_number_ % kCoolWaits == 0 && heats) Cool();
  constexpr int kLooks = 8;
  int turns = may_wait ? Spinner::QuickTurns() / kLooks : 0;
  do {
    if (!HasUser() || ready_count_.load(std::memory_order_relaxed) > 0) break;
    Rebuild();
    if (direct_count_ == 0) break;
    // Few streams are looked at several times for each look at all the rest.
    for (int look = 1; look < kLooks && turns > 0 && direct_count_ <= 4;
         ++look) {
      bool pending = false;
      for (int d = 0; d < direct_count_; ++d) {
        pending |= direct_[d].lane->RxPendingQuick();
      }
      if (pending) break;
    }
    filled = TellDirect(out, capacity);
    if (filled > 0) {
      waits_.store(waits_.load(std::memory_order_relaxed) + 1,
                   std::memory_order_relaxed);
      if (heats) {
        hot_hits_ += static_cast<std::uint32_t>(filled);
        // The others have their turn in the next wait.
        if (++undrained_ >= kDirectLooks) {
          undrained_ = 0;
          DrainPoller();
        }
      }
      leaves = LeavesWork();
      break;
    }
    if ((undrained_ += heats ? kColdLooks : 1) >= kDirectLooks) {
      undrained_ = 0;
      DrainPoller();
    }
  } while (--turns > 0 && !wait_latch_.Contended());
  wait_latch_.unlock();
  // As in Wait.
  if (leaves ||
      (filled > 0 && ready_count_.load(std::memory_order_seq_cst) > 0)) {
    Registry::KickSleepers(this);
  }
  return filled;
}

// A program may close a descriptor at its first event: a second in the same
// batch would be of a number that is gone, or another's.
int EpollSet::WithoutTwins(epoll_event* events, int first, int filled) {
  int kept = first;
  for (int i = first; i < filled; ++i) {
    int twin = 0;
    while (twin < first && events[twin].data.u64 != events[i].data.u64) ++twin;
    if (twin < first) {
      events[twin].events |= events[i].events;
    } else {
      events[kept++] = events[i];
    }
  }
  return kept;
}

int EpollSet::Wait(epoll_event* out, int capacity, std::int64_t timeout_ns,
                   const sigset_t* mask) {
  const std::uint32_t signals = tls_signals.any;
  // Set when the first look has found nothing: what is ready costs no clock.
  std::uint64_t deadline = 0;
  const auto left = [&]() -> std::int64_t {
    if (timeout_ns <= 0) return timeout_ns;
    const std::uint64_t now = base::NowNs();
    if (deadline == 0) deadline = now + static_cast<std::uint64_t>(timeout_ns);
    return now >= deadline ? 0 : static_cast<std::int64_t>(deadline - now);
  };
  if (capacity <= 0) return real::epoll_wait(fd_, out, capacity, 0);
  if (Null(out)) {
    errno = EFAULT;  // as the kernel will say when something comes
    return -1;
  }
  while (!HasUser()) {
    if (AnyUnread()) {
      const int n = EpollFindsUnread(this, out, capacity);
      if (n > 0) return n;
    }
    const int n = KernelWait(out, capacity, left(), mask);
    if (n != kOnlyBell) return n;
    if (left() == 0) return 0;
  }
  sigset_t before;
  if (mask != nullptr) ::pthread_sigmask(SIG_SETMASK, mask, &before);
  int result = 0;
  int error = 0;
  Spinner spin;
  // However busy the lanes are, kernel descriptors get their look; first, so
  // that ready streams cannot take all the room.
  int first = 0;
  const std::uint32_t moves = moves_.load(std::memory_order_seq_cst);
  if (KernelDue()) {
    const int n = KernelWait(out, capacity > 1 ? capacity / 2 : 1, 0, nullptr);
    if (n > 0) first = n;
    if (first == capacity) {
      if (mask != nullptr) ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
      return first;
    }
  }
  for (;;) {
    int filled = 0;
    bool kernel = false;
    bool over = false;
    bool leaves = false;
    unsigned turns = 0;
    {
      Critical critical;
      const bool crowded = crowded_.load(std::memory_order_relaxed);
      if (__builtin_expect(crowded, 0) &&
          !heats_.load(std::memory_order_relaxed)) {
        LeaveDirect();
      }
      wait_latch_.lock();
      if (++wait_number_ % kCoolWaits == 0 && crowded) Cool();
      for (;;) {
        filled = first;
        if (!HasUser()) {
          over = true;
          kernel = timeout_ns == 0 && filled == 0;
          break;
        }
        Rebuild();
        filled += TellDirect(out + filled, DirectRoom(capacity - filled));
        if (crowded) hot_hits_ += static_cast<std::uint32_t>(filled - first);
        // The bitmaps and the list in few of the looks, where there are direct
        // streams, so that these are met early.
        undrained_ += crowded && filled == 0 ? kColdLooks : 1;
        if (direct_count_ == 0 || undrained_ >= kDirectLooks ||
            (timeout_ns == 0 && filled == 0) ||
            ready_count_.load(std::memory_order_relaxed) > 0) {
          undrained_ = 0;
          DrainPoller();
          if (ready_count_.load(std::memory_order_relaxed) > 0) {
            filled += Collect(out + filled, capacity - filled);
          }
        }
        if (filled == 0) {
          if (timeout_ns == 0) {
            kernel = true;
          } else if ((++turns & 15) == 0) {
            if (deadline == 0) left();
            kernel = TimeForKernel();
          }
        }
        if (filled > 0) leaves = LeavesWork();
        if (filled > 0 || kernel) break;
        if (wait_latch_.Contended()) wait_latch_.Yield();
        if (!spin.Go()) {
          over = true;
          break;
        }
      }
      wait_latch_.unlock();
    }
    if (leaves) Registry::KickSleepers(this);
    if (kernel) {
      const int more = KernelWait(out, capacity, 0, nullptr);
      if (more > 0) {
        filled = more;
      } else if (more < 0 && more != kOnlyBell) {
        result = -1;
        error = errno;
        break;
      }
    }
    if (filled > 0) {
      if (first > 0 && filled > first &&
          moves_.load(std::memory_order_seq_cst) != moves) {
        filled = WithoutTwins(out, first, filled);
      }
      result = filled;
      break;
    }
    if (timeout_ns == 0 || left() == 0) break;
    if (tls_signals.any != signals) {
      result = -1;
      error = EINTR;
      break;
    }
    if (!over) continue;
    // Arm, look, sleep.  Arm() is a full fence, and so is the sender's side
    // between its post and its look at the armed word; sleepers_ does the same
    // for what this process's own threads put on the ready list.
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    if (poller_) poller_->Arm();
    const int armed = source_count_.load(std::memory_order_seq_cst);
    lane::Source* sources[kMostSources];
    for (int i = 0; i < armed; ++i) (sources[i] = source(i))->Arm();
    bool ready = false;
    {
      Critical critical;
      wait_latch_.lock();
      Rebuild();
      ready = HasUser() && SomethingReady();
      wait_latch_.unlock();
    }
    // A stream that has gone to the kernel since leaves that list, and maybe
    // bytes that the kernel does not know of.
    if (!ready && AnyUnread()) {
      result = EpollFindsUnread(this, out, capacity);
    }
    int n = kOnlyBell;
    bool bell = false;
    struct Undo {  // by cancellation in the kernel's wait too
      EpollSet* set;
      int armed;
      lane::Source** sources;
      bool bell = false;
      Undo(EpollSet* of, int count, lane::Source** them)
          : set(of), armed(count), sources(them) {}
      Undo(const Undo&) = delete;
      Undo& operator=(const Undo&) = delete;
      ~Undo() {
        // The bell first: what is drained on the way need not ring for us.
        if (set->poller_) set->poller_->Disarm();
        for (int i = 0; i < armed; ++i) sources[i]->Disarm(bell);
        set->sleepers_.fetch_sub(1, std::memory_order_seq_cst);
      }
    };
    std::optional<Undo> undo(std::in_place, this, armed, sources);
    if (result > 0) break;
    if (!ready) {
      const std::uint64_t start = base::Ticks();
      if (tls_signals.any != signals) {
        n = -1;
        errno = EINTR;
      } else {
        n = KernelWait(out, capacity, left(), nullptr, &bell);
      }
      error = errno;
      Spinner::Slept(start);
    }
    undo->bell = bell;
    undo.reset();
    // The bell rang for this thread, which returns without a look.
    if (bell && n > 0) Registry::KickSleepers(this);
    if (n != kOnlyBell && (n != 0 || left() == 0)) {
      result = n;
      break;
    }
    spin = Spinner();
  }
  // Who leaves work behind wakes the next.
  if (result > 0 && ready_count_.load(std::memory_order_seq_cst) > 0) {
    Registry::KickSleepers(this);
  }
  if (mask != nullptr) ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (result < 0) errno = error;
  return result;
}

// epoll_wait of the kernel's part of the set, without the bell.  kOnlyBell if
// nothing else was there.
int EpollSet::KernelWait(epoll_event* out, int capacity,
                         std::int64_t timeout_ns, const sigset_t* mask,
                         bool* bell) {
  // This is the look that is due.
  if (timeout_ns != 0) waits_.store(0, std::memory_order_relaxed);
  timespec limit{static_cast<time_t>(timeout_ns / 1'000'000'000),
                 static_cast<long>(timeout_ns % 1'000'000'000)};
  const std::uint32_t before = moves();
  int n = real::epoll_pwait2(fd_, out, capacity,
                             timeout_ns < 0 ? nullptr : &limit, mask);
  if (n < 0 && errno == ENOSYS) {
    const int ms = timeout_ns < 0
                       ? -1
                       : static_cast<int>((timeout_ns + 999'999) / 1'000'000);
    n = real::epoll_pwait(fd_, out, capacity, ms, mask);
  }
  if (n <= 0) return n;
  return OfKernel(out, n, before, bell);
}

int EpollSet::OfKernel(epoll_event* events, int count, std::uint32_t before,
                       bool* bell) {
  const bool moved = After(once_moved_.load(std::memory_order_seq_cst), before);
  int kept = 0;
  for (int i = 0; i < count; ++i) {
    if (events[i].data.ptr == this) {
      if (bell != nullptr) *bell = true;
      continue;
    }
    if (moved && ToldByLane(events[i], before)) continue;
    if (kept != i) events[kept] = events[i];
    ++kept;
  }
  return kept > 0 ? kept : kOnlyBell;
}

// A ONESHOT registration that moves out of the kernel is looked up in /proc and
// then deleted there.  What the kernel tells between the two, to a thread whose
// wait began before the move, the lane would tell another once more: the first
// of them spends it.  (A thread that sees no move has been told before the
// look, which then has found it spent.)
bool EpollSet::ToldByLane(const epoll_event& event, std::uint32_t before) {
  Critical critical;
  interest_latch.lock();
  bool told = false;
  for (Interest* i = members_; i != nullptr; i = i->next_of_set) {
    if (i->data.load(std::memory_order_relaxed) != event.data.u64 ||
        (i->events.load(std::memory_order_relaxed) & EPOLLONESHOT) == 0 ||
        !After(i->moved_at, before) ||
        i->dormant.load(std::memory_order_relaxed)) {
      continue;
    }
    told = !i->told_by_kernel &&
           i->spent.exchange(true, std::memory_order_relaxed);
    i->told_by_kernel = true;
    break;
  }
  interest_latch.unlock();
  return told;
}

void EpollSet::SetNested() {
  if (outside_.load(std::memory_order_relaxed)) return;
  nested_.store(true, std::memory_order_relaxed);
  // On either side; those that come later are pinned when they are added.
  const int top = fd_high.load(std::memory_order_relaxed);
  for (int fd = 0; fd <= top; ++fd) {
    Sock* member = nullptr;
    {
      Critical critical;
      interest_latch.lock();
      File* file = registered_ > 0 ? Lookup(fd) : nullptr;
      if (file != nullptr && file->kind == FileKind::kSock) {
        auto* sock = static_cast<Sock*>(file);
        for (Interest* i = sock->interests; i != nullptr && member == nullptr;
             i = i->next_of_sock) {
          if (i->set == this) member = sock;
        }
      }
      if (member != nullptr) member->Ref();
      interest_latch.unlock();
    }
    if (member == nullptr) continue;
    member->Pin(base::Reason::kPinnedOption);
    member->Unref();
  }
  Critical critical;
  interest_latch.lock();
  if (members_ == nullptr && bell_in_kernel_) {
    // Nobody needs it any more, and it would look like something to read.
    epoll_event unused{};
    real::epoll_ctl(fd_, EPOLL_CTL_DEL, poller_->fd(), &unused);
    bell_in_kernel_ = false;
  }
  interest_latch.unlock();
}

}  // namespace rcsock::posix
