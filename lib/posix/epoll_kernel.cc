// The kernel's part of a set's wait: what the kernel tells, and in which order
// that and what the lanes have are told.

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
#include "lib/posix/epoll.h"
#include "lib/posix/registry.h"
#include "lib/posix/signals.h"
#include "lib/posix/sock.h"
#include "lib/posix/unread_wait.h"

namespace rcsock::posix {

void EpollSet::CountLocal(std::uint64_t data, bool counts) {
  const int change = counts ? 1 : -1;
  local_tcp_.fetch_add(change, std::memory_order_relaxed);
  local_data_[LocalSlot(data)].fetch_add(static_cast<std::uint32_t>(change),
                                         std::memory_order_relaxed);
  if (counts) LocalNews();
}

void EpollSet::LocalNews() {
  local_news_at_.store(base::Ticks(), std::memory_order_release);
  local_recent_.store(true, std::memory_order_release);
}

// The kernel has told of none.  (By what makes a system call anyway: no look at
// the lanes reads a clock for this.)
void EpollSet::NoLocalNews() {
  if (!local_recent_.load(std::memory_order_relaxed)) return;
  const std::uint64_t at = local_news_at_.load(std::memory_order_acquire);
  // (It may be another processor's, and a little ahead.)
  if (static_cast<std::int64_t>(base::Ticks() - at) <=
      static_cast<std::int64_t>(kRecentUs * base::ticks_per_us)) {
    return;
  }
  // News of this moment are not lost: seq_cst, so that either their own store
  // comes behind this one, or their time is seen.
  local_recent_.exchange(false, std::memory_order_seq_cst);
  if (local_news_at_.load(std::memory_order_seq_cst) != at) {
    local_recent_.store(true, std::memory_order_release);
  }
}

// Whether something may be told of the lanes, by a look that takes nothing off.
// (An edge that has been told of may be one once more.)
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

// While nobody looks at the lanes, their senders ring the bell all the same, so
// that the kernel knows when they had something.  (As for a nap: of a message
// that comes at this moment it does not.)
//
// What a lane has already came before what its sender will stamp.
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

// Just now: what they have came behind that, and whoever has sent it has not
// had the time to send something by the kernel too.  So all that the kernel has
// told in a look since came first; it may have had it for long.
bool EpollSet::LanesWereEmpty() const {
  return base::Ticks() - lanes_empty_at_.load(std::memory_order_relaxed) <=
         kSoonUs * base::ticks_per_us;
}

// `out` begins with `kernels` events that the kernel has told.  What a peer did
// before that is to be told no later: that it has closed one connection before
// it made another, say.  So the lanes are looked at after the kernel, where the
// end has been since before it told (Stream::SendFin).  How many there are,
// then.  `moves`: as it was when this wait began.
//
// The kernel tells in the order of coming, and the bell's place there is that
// of the first news that a lane had since this thread has armed: so the
// kernel's first `ahead` events are told before the lanes, the rest behind
// them.  Where nobody knows (kNoBell) the lanes come first.
int EpollSet::WithLanes(epoll_event* out, int kernels, int capacity, int ahead,
                        std::uint32_t moves, Leave* leave) {
  int count = kernels;
  bool leaves = false;
  if (capacity > kernels) {
    Critical critical;
    wait_latch_.lock();
    if (HasUser() && life_.load(std::memory_order_relaxed) == leave->life) {
      // (What another thread's wait has told meanwhile is none of this one's.)
      ++wait_number_;
      Rebuild();
      // What the conductor takes from a ring it lists before it lets go of the
      // latch; who is not looked at directly has his bit still.
      for (int d = 0; d < direct_count_; ++d) {
        if (direct_[d].lane->RxPendingQuick()) continue;
        // (Who has found the ring empty because of him sees his latch, too: he
        // has taken it before.)
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
  // (A stream that has moved in the wait may be there twice.)
  if (moves_.load(std::memory_order_seq_cst) != moves) {
    count = MergeEvents(out, kernels, count - kernels);
  }
  if (ahead == kNoBell) ahead = 0;
  std::rotate(out + ahead, out + kernels, out + count);
  return count;
}

// epoll_wait of the kernel's part of the set, without the bell.  kOnlyBell if
// nothing else was there.
int EpollSet::KernelWait(epoll_event* out, int capacity,
                         std::int64_t timeout_ns, const sigset_t* mask,
                         bool* bell, int* ahead) {
  // This is the look that is due.
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
  if (n <= 0) {
    if (n < 0) return errno == EFAULT ? FaultOfKernel(before, bell) : n;
    NoLocalNews();
    return n;
  }
  int kept = OfKernel(out, n, before, bell, ahead);
  // The bell may have taken the room of others, and a source too: edges all, so
  // the answer behind them is theirs.
  const timespec now{};
  const bool mirrored = mirror_.fd.load(std::memory_order_relaxed) >= 0;
  const int most = mirrored ? 0 : kMostSources;
  for (int i = 0; kept == kOnlyBell && n == capacity && i <= most; ++i) {
    n = base::EpollPwait(fd_, out, capacity, &now, nullptr);
    if (n <= 0) break;
    kept = OfKernel(out, n, before, bell);
  }
  // The mirror of another process, which has the set since a fork: it tells
  // this one of nothing, and does not go away by a look.
  if (kept == kOnlyBell && timeout_ns != 0 && out[0].data.ptr == &mirror_ &&
      !mirror_.raised.load(std::memory_order_relaxed)) {
    constexpr timespec kBrief{0, 1'000'000};
    ::syscall(SYS_ppoll, nullptr, 0, &kBrief, nullptr, 8);
  }
  return kept;
}

// The array that the program has named is not there, and of what the kernel had
// for it a bell is nothing.
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
    // (It stays until the lanes have nothing.)
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

// A ONESHOT registration that moves out of the kernel is looked up in /proc and
// then deleted there.  What the kernel tells between the two the lane would
// tell another thread once more: the first of them spends it.  (Who is told by
// the kernel has begun to wait before the deletion, and looks at once_moved_
// after: it finds the mark of BeginOnceMove, and waits here for the end of the
// move, or the count of EndOnceMove, which is past the one that it began with.)
bool EpollSet::ToldByLane(const epoll_event& event, std::uint32_t before) {
  Critical critical;
  interest_latch.lock();
  Interest* only = nullptr;
  bool several = false;
  for (Interest* i = members_; i != nullptr && !several; i = i->next_of_set) {
    if (i->data.load(std::memory_order_relaxed) != event.data.u64 ||
        (i->events.load(std::memory_order_relaxed) & EPOLLONESHOT) == 0 ||
        !After(i->moved_at, before) ||
        i->dormant.load(std::memory_order_relaxed)) {
      continue;
    }
    several = only != nullptr;
    only = i;
  }
  bool told = false;
  // (Which of several it is that have the same data, nobody can tell: rather
  // twice than never.)
  if (only != nullptr && !several) {
    // (Armed again meanwhile: the lane has told what there was, or will.)
    told = only->armed_here ||
           (!only->told_by_kernel &&
            only->spent.exchange(true, std::memory_order_relaxed));
    only->told_by_kernel = true;
  }
  interest_latch.unlock();
  return told;
}

}  // namespace rcsock::posix
