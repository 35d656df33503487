#include "lib/posix/epoll.h"

#include <sys/epoll.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

#include "lib/base/guard.h"
#include "lib/base/real.h"
#include "lib/posix/process.h"
#include "lib/posix/registry.h"
#include "lib/posix/signals.h"
#include "lib/posix/sock.h"
#include "lib/posix/sock_quick.h"
#include "lib/posix/table.h"
#include "lib/posix/user_arguments.h"

namespace rcsock::posix {

namespace {

// All flags that the kernel accepts beside EPOLLEXCLUSIVE.
constexpr std::uint32_t kWithExclusive =
    EPOLLIN | EPOLLOUT | EPOLLERR | EPOLLHUP | EPOLLWAKEUP |
    static_cast<std::uint32_t>(EPOLLET) | EPOLLEXCLUSIVE;

}  // namespace

EpollSet* EpollSet::New(int fd) {
  Critical critical;
  interest_latch.lock();
  EpollSet* set = Registry::Take();
  interest_latch.unlock();
  if (set != nullptr) {
    set->set_fd(fd);
    set->nested_.store(false, std::memory_order_relaxed);
    set->ever_user_.store(false, std::memory_order_relaxed);
    set->outside_.store(false, std::memory_order_relaxed);
    set->idle_since_ = 0;
    set->shares_cpu_ = false;
  }
  return set;
}

void EpollSet::LoseFd(int number) {
  Critical critical;
  interest_latch.lock();
  const int other = LeaveNumber(number, this);
  if (fd() == number) set_fd(other);
  interest_latch.unlock();
}

void EpollSet::Free() {
  Critical critical;
  DisarmOutside();
  // The wait latch comes first, since another thread's wait may be looking at
  // the lanes of this set's streams.  A thread that takes a lane away waits
  // only for looks of the sets that the stream is in (InterestsRefresh).  And
  // the wait must not report a registration that is another set's by then.
  wait_latch_.lock();
  interest_latch.lock();
  // Registrations of streams that are still open.  They are found by the table,
  // since the kernel's part of the set has no list here.
  while (members_ != nullptr) Registry::Forget(members_);
  const int top = fd_high.load(std::memory_order_relaxed);
  for (int fd = 0; fd <= top && registered_ > 0; ++fd) {
    File* file = Named(fd);
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
  set_fd(-1);
  if (local_tcp_.exchange(0, std::memory_order_relaxed) != 0) {
    for (auto& count : local_data_) count.store(0, std::memory_order_relaxed);
  }
  crowded_.store(false, std::memory_order_relaxed);
  heats_.store(false, std::memory_order_relaxed);
  Registry::CloseMirror(this);
  interest_latch.unlock();
  DisarmAwake();
  life_.fetch_add(1, std::memory_order_seq_cst);
  // A thread that sleeps in the set takes itself off the set's counts and bell
  // when it wakes.  Until then no other set may use them.
  const bool left = sleepers_.load(std::memory_order_seq_cst) > 0 ||
                    strangers_.load(std::memory_order_seq_cst) > 0;
  // The poller stays.  A thread may be on its way to sleep by it, and the next
  // life of the set can use it.
  if (poller_) poller_->RemoveLinks();
  bell_in_kernel_ = false;
  source_count_.store(0, std::memory_order_relaxed);
  direct_count_ = 0;
  wait_latch_.unlock();
  interest_latch.lock();
  if (left) {
    Registry::Leave(this);
  } else {
    Registry::Put(this);
  }
  interest_latch.unlock();
}

// Whether every wait finds what the registration has without the list.  It must
// ask for level-triggered input alone, its stream must be looked at directly,
// and the stream must have nothing else to tell now.  The caller holds
// interest_latch.
bool EpollSet::FoundAnyway(const Interest* interest) {
  const std::uint32_t events = interest->events.load(std::memory_order_relaxed);
  return interest->direct.load(std::memory_order_relaxed) &&
         (events & kAsked & ~static_cast<std::uint32_t>(EPOLLONESHOT)) ==
             EPOLLIN &&
         interest->sock->TellsInputAlone() &&
         interest->sock->QuickLook(interest->fd, EPOLLIN, false) !=
             Sock::kNotLooked;
}

int EpollSet::Ctl(int number, int op, int fd, Sock* sock, epoll_event* event) {
  // A copy: `event` is read while latches are held, and may go away meanwhile.
  epoll_event told{};
  if (op != EPOLL_CTL_DEL) {
    if (Null(event) || !base::TrySmall(&told, event, sizeof told)) {
      return real::epoll_ctl(number, op, fd, event);
    }
    event = &told;
  }
  if (nested_.load(std::memory_order_relaxed) && op == EPOLL_CTL_ADD) {
    sock->Pin(base::Reason::kPinnedOption);
  }
  Critical critical;
  interest_latch.lock();
  // Since the look-up another thread has closed this number, or the set's.  The
  // object may be another stream by now.
  if ((Named(fd) != sock || !IsAt(number)) && !InBorrowedMemory()) {
    interest_latch.unlock();
    return kStale;
  }
  // The thread that closes the stream last has dropped its registrations, or is
  // about to.  After that the number is closed, or names another file.
  if (op == EPOLL_CTL_ADD && sock->Closed()) {
    interest_latch.unlock();
    return kStale;
  }
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
  Lookers lookers;
  if (op == EPOLL_CTL_ADD) {
    if ((event->events & EPOLLEXCLUSIVE) != 0 &&
        (event->events & ~kWithExclusive) != 0) {
      errno = EINVAL;
      result = -1;
    } else if (found != nullptr) {
      errno = EEXIST;
      result = -1;
    } else if (asleep != nullptr) {
      asleep->events.store(event->events, std::memory_order_relaxed);
      asleep->data.store(event->data.u64, std::memory_order_relaxed);
      asleep->told_by_kernel = false;
      asleep->armed_here = true;
      asleep->spent.store(false, std::memory_order_relaxed);
      asleep->dormant.store(false, std::memory_order_release);
      ++registered_;
      Registry::MakeReady(asleep);
      kick = true;
      notify = Registry::MayBeDirect(asleep);
    } else if (Interest* interest = Registry::TakeInterest();
               interest == nullptr) {
      errno = ENOMEM;
      result = -1;
    } else {
      if (!engine) {
        result = real::epoll_ctl(fd_, op, fd, event);
      }
      if (result != 0) {
        interest->next_of_set = Registry::free_interests;
        Registry::free_interests = interest;
      } else {
        interest->set = this;
        interest->sock = sock;
        interest->fd = fd;
        interest->events.store(event->events, std::memory_order_relaxed);
        interest->data.store(event->data.u64, std::memory_order_relaxed);
        Registry::SetInKernel(interest, !engine);
        interest->in_user.store(false, std::memory_order_relaxed);
        interest->was_user = false;
        interest->spent.store(false, std::memory_order_relaxed);
        interest->edge.store(true, std::memory_order_relaxed);
        interest->direct.store(false, std::memory_order_relaxed);
        interest->told_by_kernel = false;
        interest->told = 0;  // belongs to another set's waits
        interest->next_of_sock = sock->interests;
        sock->interests = interest;
        ++registered_;
        notify = true;
        // The stream has moved here from another set, which must not report it.
        for (Interest* i = interest->next_of_sock; i != nullptr;) {
          Interest* next = i->next_of_sock;
          if (i->set != this && i->dormant.load(std::memory_order_relaxed)) {
            lookers.Forget(i);
          }
          i = next;
        }
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
      // A spent ONESHOT that came back from a lane was on neither side since.
      if (!engine) {
        result = real::epoll_ctl(fd_, EPOLL_CTL_ADD, fd, event);
        if (result == 0) Registry::SetInKernel(found, true);
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
      // While its data change, the registration asks for nothing.  A look
      // without the latch reads the data first.  It has both values of one
      // arming, or looks again.
      found->events.store(0, std::memory_order_relaxed);
      Registry::SetData(found, event->data.u64);
      found->events.store(event->events, std::memory_order_release);
      found->told_by_kernel = false;
      found->armed_here = true;
      found->spent.store(false, std::memory_order_relaxed);
      found->edge.store(true, std::memory_order_relaxed);
      if (found->in_user.load(std::memory_order_relaxed)) {
        if (FoundAnyway(found)) {
          // Orders what has just been stored before the look at the sleepers.
          base::FullFence();
        } else {
          Registry::MakeReady(found);
        }
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
        lookers.Forget(found);
        notify = true;
      }
    }
  } else {
    errno = EINVAL;
    result = -1;
  }
  interest_latch.unlock();
  lookers.WaitOut();
  if (kick) {
    Registry::KickSleepers(this);
    // A thread that has slept since before the set had a stream in user space
    // is not counted as a sleeper.  The bell is in its set by now.
    if (!had_user) KickBell();
  }
  if (result == 0 && engine && notify) InterestsNotify(sock);
  return result;
}

void EpollSet::SetNested() {
  if (outside_.load(std::memory_order_relaxed)) return;
  nested_.store(true, std::memory_order_relaxed);
  // Streams on either side.  Streams that are added later are pinned then.
  const int top = fd_high.load(std::memory_order_relaxed);
  for (int fd = 0; fd <= top; ++fd) {
    Sock* member = nullptr;
    {
      Critical critical;
      interest_latch.lock();
      File* file = registered_ > 0 ? Named(fd) : nullptr;
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
    // Another thread may have taken the stream from its lane, and not yet have
    // moved its registrations.
    InterestsToKernel(member);
    member->Unref();
  }
  Critical critical;
  interest_latch.lock();
  if (members_ == nullptr) Registry::DropBell(this);
  interest_latch.unlock();
}

}  // namespace rcsock::posix
