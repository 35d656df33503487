#ifndef RCSOCK_LIB_POSIX_IOMUX_REGISTRY_H_
#define RCSOCK_LIB_POSIX_IOMUX_REGISTRY_H_

// The registrations of streams in epoll sets: which stream is in which set, and
// whether the kernel or rcsock has the registration.

#include <sys/epoll.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <initializer_list>
#include <new>

#include "lib/base/latch.h"
#include "lib/base/pool.h"
#include "lib/base/real.h"
#include "lib/lane/shm/shm_poller.h"
#include "lib/posix/iomux/epoll.h"
#include "lib/posix/sharing/forks.h"
#include "lib/posix/socket/interest_latch.h"
#include "lib/posix/socket/sock.h"
#include "lib/posix/sys/pinned.h"
#include "lib/posix/thread/bell_shares.h"

namespace rcsock::posix {

// Forgotten registrations that waits of their sets may still be looking at.
// Nothing reuses a registration before these waits have ended.  Otherwise a
// wait would report what it found for the old stream with the data of the new
// stream.
class Lookers {
 public:
  inline void Forget(Interest* interest) RC_REQUIRES(interest_latch);
  inline void WaitOut() RC_EXCLUDES(interest_latch);

 private:
  Interest* forgotten_ = nullptr;  // linked by next_of_set
};

inline int EpollSet::Enlist(Interest* interest) {
  if (interest->ready.load(std::memory_order_relaxed)) return 0;
  RC_DCHECK((ready_head_ == nullptr) == (ready_tail_ == nullptr));  // I-LIST-1
  interest->ready.store(true, std::memory_order_relaxed);
  interest->ready_next = nullptr;
  interest->ready_prev = ready_tail_;
  (ready_tail_ != nullptr ? ready_tail_->ready_next : ready_head_) = interest;
  ready_tail_ = interest;
  return 1;
}

inline int EpollSet::Delist(Interest* interest) {
  if (!interest->ready.load(std::memory_order_relaxed)) return 0;
  RC_DCHECK((interest->ready_prev == nullptr) == (ready_head_ == interest));
  RC_DCHECK((interest->ready_next == nullptr) == (ready_tail_ == interest));
  interest->ready.store(false, std::memory_order_relaxed);
  (interest->ready_prev != nullptr ? interest->ready_prev->ready_next
                                   : ready_head_) = interest->ready_next;
  (interest->ready_next != nullptr ? interest->ready_next->ready_prev
                                   : ready_tail_) = interest->ready_prev;
  return 1;
}

inline void EpollSet::LinkReady(Interest* interest) {
  if (Enlist(interest) != 0) {
    ready_count_.fetch_add(1, std::memory_order_seq_cst);
  }
}

inline void EpollSet::UnlinkReady(Interest* interest) {
  if (Delist(interest) != 0) ListShrinks(1);
}

// The functions that need the private parts of a set.
struct Registry {
  // Linked by next_of_set.
  static inline Interest* free_interests RC_GUARDED_BY(interest_latch) =
      nullptr;
  // Linked by pool_next_.
  static inline EpollSet* free_sets RC_GUARDED_BY(interest_latch) = nullptr;
  static inline EpollSet* left_sets RC_GUARDED_BY(interest_latch) = nullptr;

  static Interest* TakeInterest() RC_REQUIRES(interest_latch) {
    if (free_interests == nullptr) {
      static constinit base::Pool pool(sizeof(Interest));
      void* at = pool.Take();
      return at == nullptr ? nullptr : new (at) Interest();
    }
    Interest* interest = free_interests;
    free_interests = interest->next_of_set;
    return interest;
  }

  static void GiveInterest(Interest* interest) RC_REQUIRES(interest_latch) {
    interest->next_of_set = free_interests;
    free_interests = interest;
  }

  // Finds a dormant registration, too.
  static Interest* Find(Sock* sock, EpollSet* set, int fd)
      RC_REQUIRES(interest_latch) {
    for (Interest* i = sock->interests; i != nullptr; i = i->next_of_sock) {
      if (i->set == set && i->fd == fd) return i;
    }
    return nullptr;
  }

  // `dirty_` is stored first.  Collect leaves a direct stream off the list
  // without the interest latch.  The next wait then rebuilds, and takes the
  // interest latch after this thread.
  static void MakeDirect(Interest* interest) RC_REQUIRES(interest_latch) {
    EpollSet* set = interest->set;
    set->dirty_.store(true, std::memory_order_seq_cst);
    interest->direct.store(true, std::memory_order_release);
    set->direct_members_[set->direct_used_++] = interest;
  }

  // Every wait looks at the streams of a small set, so these streams need no
  // bits.  A stream in several sets always needs bits.  Returns whether the
  // registration has become direct.
  static bool ChooseDirect(Interest* interest) RC_REQUIRES(interest_latch) {
    EpollSet* set = interest->set;
    const bool wanted = interest->sock->interests == interest &&
                        interest->next_of_sock == nullptr &&
                        !set->crowded_.load(std::memory_order_relaxed);
    const bool direct = interest->direct.load(std::memory_order_relaxed);
    if (direct == wanted) return false;
    if (direct) {
      DropDirect(interest);
      return false;
    }
    if (set->direct_used_ == EpollSet::kMostDirect) return false;
    MakeDirect(interest);
    return true;
  }

  // Whether the registration is not direct, and the set has room for it.
  static bool MayBeDirect(const Interest* interest)
      RC_REQUIRES(interest_latch) {
    const EpollSet* set = interest->set;
    return !interest->direct.load(std::memory_order_relaxed) &&
           set->direct_used_ < EpollSet::kMostDirect &&
           !set->crowded_.load(std::memory_order_relaxed);
  }

  static void DropDirect(Interest* interest) RC_REQUIRES(interest_latch) {
    if (!interest->direct.load(std::memory_order_relaxed)) return;
    EpollSet* set = interest->set;
    // A Collect that still sees the registration direct has taken it off the
    // list before this thread puts it there.
    interest->direct.store(false, std::memory_order_relaxed);
    // No other path reports what the stream has now.  Its next message sets its
    // bit.
    if (set->heats_.load(std::memory_order_relaxed)) MakeReady(interest);
    for (int i = 0; i < set->direct_used_; ++i) {
      if (set->direct_members_[i] != interest) continue;
      set->direct_members_[i] = set->direct_members_[--set->direct_used_];
      break;
    }
    set->dirty_.store(true, std::memory_order_seq_cst);
  }

  static void SetInKernel(Interest* interest, bool in_kernel)
      RC_REQUIRES(interest_latch) {
    interest->in_kernel = in_kernel;
    CountLocal(interest);
  }
  // Gives the registration to the kernel.  False: errno says why not.
  static bool AddToKernel(Interest* interest) RC_REQUIRES(interest_latch) {
    epoll_event event{};
    event.events = interest->events.load(std::memory_order_relaxed);
    event.data.u64 = interest->data.load(std::memory_order_relaxed);
    const int set = interest->set->fd();
    int result = real::epoll_ctl(set, EPOLL_CTL_ADD, interest->fd, &event);
    // EEXIST: another process that has shared the set since a fork has added it
    // (InterestsForkChild).
    if (result != 0 && errno == EEXIST) {
      result = real::epoll_ctl(set, EPOLL_CTL_MOD, interest->fd, &event);
    }
    if (result == 0) SetInKernel(interest, true);
    return result == 0;
  }
  static void RemoveFromKernel(Interest* interest) RC_REQUIRES(interest_latch) {
    epoll_event unused{};
    real::epoll_ctl(interest->set->fd(), EPOLL_CTL_DEL, interest->fd, &unused);
    SetInKernel(interest, false);
  }
  static void CountLocal(Interest* interest) RC_REQUIRES(interest_latch) {
    const bool counts = interest->in_kernel && interest->sock->peer().local();
    if (counts == interest->counted) return;
    interest->counted = counts;
    interest->set->CountLocal(interest->data.load(std::memory_order_relaxed),
                              counts);
  }
  // The program has armed the registration anew.
  static void SetData(Interest* interest, std::uint64_t data)
      RC_REQUIRES(interest_latch) {
    EpollSet* const set = interest->set;
    const std::uint64_t old = interest->data.load(std::memory_order_relaxed);
    interest->data.store(data, std::memory_order_release);
    if (!interest->counted) return;
    if (data == old) {
      if (set->HasUser()) set->LocalNews();
      return;
    }
    set->CountLocal(data, true);
    set->CountLocal(old, false);
  }

  static bool EnsurePoller(EpollSet* set) RC_REQUIRES(interest_latch) {
    if (set->poller_) return true;
    rendezvous::Conductor* conductor = rendezvous::Conductor::IfRunning();
    if (conductor == nullptr) return false;
    int bell = TakeBell(false);
    lane::shm::Bells* bells = conductor->bells();
    if (bells->EnsureBell(bell) >= 0) {
      conductor->AnnounceBell(bell);
    } else {
      // No descriptor is left.  The set takes the bell of another set, or a
      // bell that the conductor has made for this case.
      GiveBell(bell);
      bell = lane::shm::kSetBells;
      while (bell < lane::kBells && bells->bell_fd(bell) < 0) ++bell;
      if (bell == lane::kBells) return false;
    }
    set->board_ = conductor->board();
    set->poller_.reset(new (std::nothrow) lane::shm::ShmPoller(bells, bell));
    return set->poller_ != nullptr;
  }

  static bool EnterUser(Interest* interest) RC_REQUIRES(interest_latch) {
    EpollSet* set = interest->set;
    if (!EnsurePoller(set)) return false;
    set->ever_user_.store(true, std::memory_order_release);
    const bool mirrored = set->mirror_.wanted.load(std::memory_order_relaxed);
    if (mirrored && !OpenMirror(set)) return false;
    if (!set->bell_in_kernel_ && !mirrored) {
      // The data is an address that no program can know.
      epoll_event event{};
      event.events = EPOLLIN | EPOLLET;
      event.data.ptr = set;
      if (real::epoll_ctl(set->fd_, EPOLL_CTL_ADD, set->poller_->fd(),
                          &event) != 0) {
        return false;
      }
      set->bell_in_kernel_ = true;
    }
    // While no stream was on a lane, no thread looked at what the kernel
    // reported.
    if (!set->HasUser()) set->LocalNews();
    set->moves_.fetch_add(1, std::memory_order_seq_cst);
    interest->in_user.store(true, std::memory_order_relaxed);
    interest->was_user = true;
    interest->edge.store(true, std::memory_order_relaxed);
    interest->prev_of_set = nullptr;
    interest->next_of_set = set->members_;
    if (set->members_ != nullptr) set->members_->prev_of_set = interest;
    set->members_ = interest;
    const int others = set->user_count_.fetch_add(1, std::memory_order_seq_cst);
    if (others == EpollSet::kMostDirect) {
      set->crowded_.store(true, std::memory_order_relaxed);
    }
    if (others == 0) set->first_came_ = true;
    return true;
  }
  // Returns whether a first stream has come into user space since this was
  // asked.
  static bool TakeFirst(EpollSet* set) RC_REQUIRES(interest_latch) {
    return std::exchange(set->first_came_, false);
  }

  // Requires a set that others look at, and that never again has a stream on a
  // lane.  The bell is of no use there, and would look like something to read.
  static void DropBell(EpollSet* set) RC_REQUIRES(interest_latch) {
    if (!set->bell_in_kernel_ || set->fd_ < 0) return;
    epoll_event unused{};
    real::epoll_ctl(set->fd_, EPOLL_CTL_DEL, set->poller_->fd(), &unused);
    set->bell_in_kernel_ = false;
  }

  static void LeaveUser(Interest* interest) RC_REQUIRES(interest_latch) {
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
      if (set->nested_.load(std::memory_order_relaxed)) DropBell(set);
      // The mirror may be raised for an event of the stream that has left.
      if (set->mirror_.fd.load(std::memory_order_relaxed) >= 0) set->KickBell();
    }
    set->ready_latch_.lock();
    set->UnlinkReady(interest);
    set->ready_latch_.unlock();
  }

  static void Forget(Interest* interest) RC_REQUIRES(interest_latch) {
    Unlist(interest);
    GiveInterest(interest);
  }

  // Forgets the registration, but keeps its memory.
  static void Unlist(Interest* interest) RC_REQUIRES(interest_latch) {
    if (interest->in_user.load(std::memory_order_relaxed)) LeaveUser(interest);
    SetInKernel(interest, false);
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
  }

  static void PutToSleep(Interest* interest) RC_REQUIRES(interest_latch) {
    EpollSet* set = interest->set;
    interest->dormant.store(true, std::memory_order_relaxed);
    interest->events.store(0, std::memory_order_relaxed);
    // A wait that has it in a batch may put it back behind either look.  Then
    // it is on the list, and reports nothing.
    if (!interest->ready.load(std::memory_order_relaxed)) return;
    set->ready_latch_.lock();
    set->UnlinkReady(interest);
    set->ready_latch_.unlock();
  }

  static void MakeReady(Interest* interest) RC_REQUIRES(interest_latch) {
    EpollSet* set = interest->set;
    if (interest->dormant.load(std::memory_order_relaxed)) return;
    interest->edge.store(true, std::memory_order_relaxed);
    set->ready_latch_.lock();
    set->LinkReady(interest);
    set->ready_latch_.unlock();
  }

  static bool AsksRoom(const Interest* interest) {
    return (interest->events.load(std::memory_order_relaxed) &
            (EPOLLOUT | EPOLLWRNORM | EPOLLWRBAND)) != 0;
  }
  // Every wait looks at events that do not depend on edges.
  static bool NoEdgeOfRoom(const Interest* interest) {
    return (interest->events.load(std::memory_order_relaxed) &
            static_cast<std::uint32_t>(EPOLLET)) != 0 &&
           !AsksRoom(interest);
  }

  static bool OpenMirror(EpollSet* set) RC_REQUIRES(interest_latch);
  static void CloseMirror(EpollSet* set)
      RC_REQUIRES(set->wait_latch_, interest_latch);

  static void KickSleepers(EpollSet* set) {
    // All four operations are seq_cst.  A sleeper counts itself, then looks at
    // ready_count_. LinkReady has changed ready_count_ before this thread looks
    // at the count of sleepers.  If a registration was already on the list, the
    // thread that linked it tells the sleepers.
    if ((set->sleepers_.load(std::memory_order_seq_cst) > 0 ||
         set->mirror_.fd.load(std::memory_order_relaxed) >= 0) &&
        set->poller_) {
      set->poller_->Kick();
    }
  }

  static void WaitOutLookers(EpollSet* set) {
    set->wait_latch_.lock();
    set->wait_latch_.unlock();
  }

  static EpollSet* Take() RC_REQUIRES(interest_latch) {
    // First put back the sets that were closed while a thread slept in them.
    for (EpollSet** at = &left_sets; *at != nullptr;) {
      EpollSet* const set = *at;
      if (set->sleepers_.load(std::memory_order_seq_cst) > 0 ||
          set->strangers_.load(std::memory_order_seq_cst) > 0) {
        at = &set->pool_next_;
        continue;
      }
      *at = set->pool_next_;
      Put(set);
    }
    if (free_sets == nullptr) return new (std::nothrow) EpollSet();
    EpollSet* set = free_sets;
    free_sets = set->pool_next_;
    return set;
  }

  static void Put(EpollSet* set) RC_REQUIRES(interest_latch) {
    set->pool_next_ = free_sets;
    free_sets = set;
  }
  static void Leave(EpollSet* set) RC_REQUIRES(interest_latch) {
    set->pool_next_ = left_sets;
    left_sets = set;
  }

  // Whether no other set, no poll and no other process waits for the set.
  static bool MayHide(const EpollSet* set) RC_REQUIRES(interest_latch) {
    return !set->nested_.load(std::memory_order_relaxed) &&
           !set->outside_.load(std::memory_order_relaxed) &&
           !set->mirror_.wanted.load() && set->mirror_.fd.load() < 0;
  }

  // Returns whether the kernel has exactly the registrations that are listed
  // here.  So it is if no other process has the set, and no call for it comes
  // past the hooks.
  static bool Known(const EpollSet* set) RC_REQUIRES(interest_latch) {
    return set->copies_ == TableCopies() && set->copies_ != 0 &&
           !set->nested_.load(std::memory_order_relaxed) &&
           !set->outside_.load(std::memory_order_relaxed) && AllCallsSeen();
  }

  static Interest* Members(EpollSet* set) RC_REQUIRES(interest_latch) {
    return set->members_;
  }

  // In the child of a fork (I-LIST-2).  Another thread of the parent may have
  // been amid a change of the list, which it makes without interest_latch.  Or
  // it had registrations in a batch.  What is listed is in user space, so the
  // members are all that the list may have.
  static void ListAllAnew(EpollSet* set) RC_REQUIRES(interest_latch) {
    set->ready_latch_.AssertUnshared();
    set->ready_head_ = set->ready_tail_ = nullptr;
    int listed = 0;
    for (Interest* i = set->members_; i != nullptr; i = i->next_of_set) {
      i->ready.store(false, std::memory_order_relaxed);
      if (i->dormant.load(std::memory_order_relaxed)) continue;
      // That thread may have taken the edge.
      i->edge.store(true, std::memory_order_relaxed);
      listed += set->Enlist(i);
    }
    set->ready_count_.store(listed, std::memory_order_relaxed);
  }

  static void ForkChild(EpollSet* set) {
    set->wait_latch_.Reset();
    set->ready_latch_.Reset();
    set->wait_latch_.AssertUnshared();
    interest_latch.AssertUnshared();
    ListAllAnew(set);
    set->sleepers_.store(0);
    set->strangers_.store(0);
    set->dirty_.store(true);
    (void)set->poller_.release();  // the parent's bell, abandoned
    set->source_count_.store(0);
    set->bell_in_kernel_ = false;
    set->armed_outside_ = false;
    set->armed_awake_ = false;
    set->away_watched_.store(false, std::memory_order_relaxed);
    set->mirror_.latch.Reset();
    set->mirror_.Close();
    set->mirror_.watched_by = nullptr;
    set->timer_.ForkChild();
  }
  // Resets the latches and states of the sets that are in no table.
  static void ForkChildOfPool() {
    interest_latch.AssertUnshared();
    for (EpollSet* pool : {free_sets, left_sets}) {
      for (EpollSet* set = pool; set != nullptr; set = set->pool_next_) {
        ForkChild(set);
      }
    }
  }
};

// A wait may have taken a registration off its list before the registration
// left user space, and still look at it.  Interests::Refresh waits for a look
// when a lane is given back.  That look is not the last, since the set's
// streams leave after it.
inline void Lookers::Forget(Interest* interest) {
  if (!interest->was_user) {
    Registry::Forget(interest);
    return;
  }
  interest->was_of = interest->set;
  Registry::Unlist(interest);
  interest->next_of_set = forgotten_;
  forgotten_ = interest;
}

inline void Lookers::WaitOut() {
  if (forgotten_ == nullptr) return;
  const EpollSet* last = nullptr;
  for (Interest* i = forgotten_; i != nullptr; i = i->next_of_set) {
    if (i->was_of != last) Registry::WaitOutLookers(i->was_of);
    last = i->was_of;
  }
  interest_latch.lock();
  while (forgotten_ != nullptr) {
    Interest* const next = forgotten_->next_of_set;
    forgotten_->next_of_set = Registry::free_interests;
    Registry::free_interests = forgotten_;
    forgotten_ = next;
  }
  interest_latch.unlock();
}

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_IOMUX_REGISTRY_H_
