// The kernel's part of a set's wait: what the kernel reports, and the order of
// these reports and those of the lanes.

#include <signal.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <ctime>

#include "lib/base/clock.h"
#include "lib/base/latch.h"
#include "lib/base/sleep.h"
#include "lib/posix/iomux/epoll.h"
#include "lib/posix/iomux/once.h"
#include "lib/posix/iomux/registry.h"
#include "lib/posix/iomux/unread_wait.h"
#include "lib/posix/socket/sock.h"
#include "lib/posix/thread/signals.h"

namespace rcsock::posix {

[[gnu::hot]] void EpollSet::CountLocal(std::uint64_t data, bool counts) {
  // The latch excludes other writers.
  constexpr auto kRelaxed = std::memory_order_relaxed;
  const int change = counts ? 1 : -1;
  local_tcp_.store(local_tcp_.load(kRelaxed) + change, kRelaxed);
  std::atomic<std::uint32_t>& of_data = local_data_[LocalSlot(data)];
  of_data.store(of_data.load(kRelaxed) + static_cast<std::uint32_t>(change),
                kRelaxed);
  // For a set without a stream on a lane, EnterUser brings the news.
  if (counts && HasUser()) LocalNews();
}

void EpollSet::LocalNews() {
  local_news_at_.store(base::Ticks(), std::memory_order_release);
  local_recent_.store(true, std::memory_order_release);
}

// Called when the kernel has reported no local registration.  Only code that
// makes a system call anyway calls this, so that no look at the lanes reads a
// clock.
void EpollSet::NoLocalNews() {
  if (!local_recent_.load(std::memory_order_relaxed)) return;
  const std::uint64_t at = local_news_at_.load(std::memory_order_acquire);
  // The time may come from another processor, and be a little ahead.
  if (static_cast<std::int64_t>(base::Ticks() - at) <=
      static_cast<std::int64_t>(kRecentUs * base::ticks_per_us)) {
    return;
  }
  // News that come at this moment are not lost.  All accesses are seq_cst:
  // either the store of the news comes behind this exchange, or this thread
  // sees the time of the news.
  local_recent_.exchange(false, std::memory_order_seq_cst);
  if (local_news_at_.load(std::memory_order_seq_cst) != at) {
    local_recent_.store(true, std::memory_order_release);
  }
}

// Returns whether the lanes may have something to report.  Takes nothing off
// the list.  An edge that has been reported may count once more.
bool EpollSet::Peek(bool all) {
  if (ready_count_.load(std::memory_order_relaxed) > 0) return true;
  for (int d = 0; d < direct_count_; ++d) {
    const Interest* interest = direct_[d].interest;
    if (direct_[d].lane->RxPendingQuick() &&
        (interest->events.load(std::memory_order_relaxed) & kReadable) != 0 &&
        !interest->spent.load(std::memory_order_relaxed)) {
      return true;
    }
  }
  if (all || direct_count_ < user_count_.load(std::memory_order_relaxed) ||
      ++undrained_ >= kDirectLooks) {
    undrained_ = 0;
    DrainPoller();
    if (ready_count_.load(std::memory_order_relaxed) > 0) return true;
  }
  lanes_empty_at_.store(base::Ticks(), std::memory_order_relaxed);
  return false;
}

// While no thread looks at the lanes, their senders ring the bell, so that the
// kernel knows when the lanes had something.  A message that is on its way at
// this moment does not ring, as for a nap.  What a lane already has came before
// anything that its sender will stamp.
void EpollSet::ArmAwake() {
  if (armed_awake_ || !poller_) return;
  armed_awake_ = true;
  poller_->ArmForNap();
  if (slept_since_ != 0) return;
  slept_since_ = base::Ticks();
  order_wait_ = 0;
  came_before_ = 0;
  for (int d = 0; d < direct_count_; ++d) {
    if (direct_[d].lane->RxPendingQuick()) came_before_ |= 1ull << d;
  }
}

void EpollSet::DisarmAwake() {
  if (!armed_awake_) return;
  armed_awake_ = false;
  poller_->Disarm();
}

// Returns whether the lanes were empty just now.  What they have came after
// that.  Their senders have had no time to send something by the kernel, too.
// So all that the kernel reported in a look since then came first: the kernel
// may have had it for long.
bool EpollSet::LanesWereEmpty() const {
  return base::Ticks() - lanes_empty_at_.load(std::memory_order_relaxed) <=
         kSoonUs * base::ticks_per_us;
}

// `out` begins with `kernels` events of the kernel.  Returns the number of
// events with those of the lanes.  `moves` is the count at the start of this
// wait.
//
// What a peer did before a kernel event is reported no later than that event.
// For instance, a peer closed one connection before it made the next.  So the
// lanes are looked at after the kernel.  A lane has had its end since before
// the kernel's report (Stream::SendFin).
//
// The kernel reports in the order of arrival.  The bell has the place of the
// first news that a lane had since this thread armed.  So the kernel's first
// `ahead` events come before those of the lanes, and the rest behind them.  If
// the order is unknown (kNoBell), the lanes come first.
int EpollSet::WithLanes(epoll_event* out, int kernels, int capacity, int ahead,
                        std::uint32_t moves, Leave* leave) {
  int count = kernels;
  bool leaves = false;
  if (capacity > kernels) {
    Critical critical;
    wait_latch_.lock();
    if (HasUser() && life_.load(std::memory_order_relaxed) == leave->life) {
      // Events that another thread's wait has reported meanwhile do not count
      // here.
      ++wait_number_;
      Rebuild();
      // The conductor lists what it takes from a ring before it releases the
      // latch.  A stream that is not looked at directly still has its bit.
      for (int d = 0; d < direct_count_; ++d) {
        if (direct_[d].lane->RxPendingQuick()) continue;
        // The conductor took the latch before it emptied the ring.  So a look
        // that finds the ring empty for this reason sees the latch, too.
        std::atomic_signal_fence(std::memory_order_seq_cst);
        base::Latch& latch = direct_[d].sock->rx_latch;
        if (!latch.Held()) continue;
        latch.lock();
        latch.unlock();
      }
      const int room = DirectRoom(capacity - count);
      const int direct = TellDirect(out + count, room);
      hot_hits_ += static_cast<std::uint32_t>(direct);
      count += direct;
      count += DrainAndCollect(out + count, capacity - count);
      if (count == kernels && room == 0) {
        count += TellDirect(out + count, capacity - count);
      }
      if (count > kernels) leaves = LeavesWork();
      if (count > 0 && InOrderWithKernel(capacity)) ArmAwake();
    }
    wait_latch_.unlock();
  }
  if (leaves) {
    Registry::KickSleepers(this);
    leave->Looked();
  }
  if (count == kernels) return count;
  // A stream that has moved during the wait may be there twice.
  if (moves_.load(std::memory_order_seq_cst) != moves) {
    count = MergeEvents(out, kernels, count - kernels);
  }
  if (ahead == kNoBell) ahead = 0;
  std::rotate(out + ahead, out + kernels, out + count);
  return count;
}

// epoll_wait of the kernel's part of the set.  Removes the bell, and returns
// kOnlyBell if nothing else was there.
int EpollSet::KernelWait(epoll_event* out, int capacity,
                         std::int64_t timeout_ns, const sigset_t* mask,
                         bool* bell, int* ahead) {
  // A wait that may sleep is the look at the kernel that is due.
  if (timeout_ns != 0) {
    base::CheckMaySleep();
    waits_.store(0, std::memory_order_relaxed);
  }
  timespec limit{static_cast<time_t>(timeout_ns / 1'000'000'000),
                 static_cast<long>(timeout_ns % 1'000'000'000)};
  UpdateMirrors();
  const std::uint32_t before = moves();
  int n = base::EpollPwait(fd_, out, capacity,
                           timeout_ns < 0 ? nullptr : &limit, mask);
  // The kernel may have more than there was room for.
  if (timeout_ns != 0 && n < capacity) {
    kernel_look_.store(base::Ticks(), std::memory_order_relaxed);
  }
  if (n <= 0) {
    if (n < 0) return errno == EFAULT ? FaultOfKernel(before, bell) : n;
    NoLocalNews();
    return n;
  }
  int kept = OfKernel(out, n, before, bell, ahead);
  // The bell, a source or the timer may have taken the room of other events.
  // All are edges, so the answer behind them belongs to the others.
  const timespec now{};
  const bool mirrored = mirror_.fd.load(std::memory_order_relaxed) >= 0;
  const int most = mirrored ? 0 : kMostSources + 1;
  for (int i = 0; kept == kOnlyBell && n == capacity && i <= most; ++i) {
    n = base::EpollPwait(fd_, out, capacity, &now, nullptr);
    if (n <= 0) break;
    kept = OfKernel(out, n, before, bell);
  }
  // The mirror belongs to another process that has shared the set since a fork.
  // Its state says nothing of this process, and a look here does not clear it.
  if (kept == kOnlyBell && timeout_ns != 0 && out[0].data.ptr == &mirror_ &&
      !mirror_.raised.load(std::memory_order_relaxed)) {
    constexpr timespec kBrief{0, 1'000'000};
    ::syscall(SYS_ppoll, nullptr, 0, &kBrief, nullptr, 8);
  }
  return kept;
}

// The program's array is not accessible.  A bell alone is no event for it.
int EpollSet::FaultOfKernel(std::uint32_t before, bool* bell) {
  epoll_event unseen;
  const timespec now{};
  const int n = base::EpollPwait(fd_, &unseen, 1, &now, nullptr);
  if (n == 0 || (n > 0 && OfKernel(&unseen, 1, before, bell) == kOnlyBell)) {
    return kOnlyBell;
  }
  errno = EFAULT;
  return -1;
}

int EpollSet::OfKernel(epoll_event* events, int count, std::uint32_t before,
                       bool* bell, int* ahead) {
  const bool moved = After(once_moved_.load(std::memory_order_seq_cst), before);
  const bool local = local_tcp_.load(std::memory_order_relaxed) > 0;
  bool news = false;
  int kept = 0;
  for (int i = 0; i < count; ++i) {
    if (events[i].data.ptr == this) {
      if (bell != nullptr) *bell = true;
      if (ahead != nullptr && *ahead == kNoBell) *ahead = kept;
      continue;
    }
    // The time of a sleep is over.
    if (events[i].data.ptr == &timer_) [[unlikely]]
      continue;
    // The mirror stays until the lanes have nothing.
    if (events[i].data.ptr == &mirror_) [[unlikely]] {
      if (ahead != nullptr && *ahead == kNoBell) *ahead = kept;
      continue;
    }
    news = news || (local && local_data_[LocalSlot(events[i].data.u64)].load(
                                 std::memory_order_relaxed) != 0);
    if (moved && ToldByLane(events[i], before)) continue;
    if (kept != i) events[kept] = events[i];
    ++kept;
  }
  if (news) {
    LocalNews();
  } else if (local) {
    NoLocalNews();
  }
  return kept > 0 ? kept : kOnlyBell;
}

namespace {

// Returns a registration of the set that `is` accepts, on whichever side, or
// null.
template <class Is>
Interest* FindIn(const EpollSet* set, Is&& is) RC_REQUIRES(interest_latch) {
  const int top = fd_high.load(std::memory_order_relaxed);
  for (int fd = 0; fd <= top; ++fd) {
    File* const file = Named(fd);
    if (file == nullptr || file->kind != FileKind::kSock) continue;
    for (Interest* i = static_cast<Sock*>(file)->interests; i != nullptr;
         i = i->next_of_sock) {
      if (i->set == set && is(i)) return i;
    }
  }
  return nullptr;
}

}  // namespace

// A wait that began before looks on both sides (ToldByLane).
void EpollSet::OnceLeaves() {
  ever_user_.store(true, std::memory_order_release);
  once_left_at_ = moves();
}

// A ONESHOT registration that leaves the kernel is looked up in /proc, and then
// deleted there.  If the kernel reports an event between the two, that event
// would be reported again: by the lane, by InterestsUnread, or by the kernel
// once the stream is back.  The first of the two reports spends the
// registration.  A thread with the kernel's report began to wait before the
// deletion, and looks at once_moved_ after the wait.  If it finds the mark of
// BeginOnceMove, it waits here for the end of the move.  Otherwise it finds the
// count of EndOnceMove, which is past the count that its wait began with.
bool EpollSet::ToldByLane(const epoll_event& event, std::uint32_t before) {
  Critical critical;
  interest_latch.lock();
  const auto has_data = [&](const Interest* i) {
    return i->data.load(std::memory_order_relaxed) == event.data.u64 &&
           !i->dormant.load(std::memory_order_relaxed);
  };
  const auto moved = [&](const Interest* i) RC_REQUIRES(interest_latch) {
    return has_data(i) &&
           (i->events.load(std::memory_order_relaxed) & EPOLLONESHOT) != 0 &&
           After(i->moved_at, before);
  };
  Interest* one = members_;
  while (one != nullptr && !moved(one)) one = one->next_of_set;
  if (one == nullptr && After(once_left_at_, before)) one = FindIn(this, moved);
  bool told = false;
  // If several registrations have this data, the event may be of any.  Then the
  // event is reported: twice is better than never.
  if (one != nullptr && FindIn(this, [&](const Interest* i) {
                          return i != one && has_data(i);
                        }) == nullptr) {
    if (one->in_kernel) {
      // The stream is back.  If the kernel has not reported the registration
      // since, it will report what still holds.
      told = AskAbout(one) == KernelSays::kArmed;
    } else {
      // If the registration has been armed again meanwhile, the lane has
      // reported what there was, or will report it.
      told = one->armed_here ||
             (!one->told_by_kernel &&
              one->spent.exchange(true, std::memory_order_relaxed));
      one->told_by_kernel = true;
    }
  }
  interest_latch.unlock();
  return told;
}

}  // namespace rcsock::posix
