// How a wait finds what the streams of a set have on their lanes.  It looks at
// a few rings directly, and then at the ready list.

#include <sys/epoll.h>

#include <algorithm>
#include <cstdint>

#include "lib/base/alone.h"
#include "lib/base/clock.h"
#include "lib/base/guard.h"
#include "lib/posix/iomux/epoll.h"
#include "lib/posix/iomux/epoll_calls.h"
#include "lib/posix/iomux/registry.h"
#include "lib/posix/socket/sock.h"
#include "lib/posix/socket/sock_looks.h"
#include "lib/posix/socket/sock_quick.h"
#include "lib/posix/thread/signals.h"
#include "lib/posix/thread/spin.h"

namespace rcsock::posix {

// Chooses the few streams whose rings every wait looks at.  A spinner that
// looks at the ring sees a message one cache line earlier than a spinner that
// waits for a bit.
void EpollSet::RebuildNow() {
  dirty_.store(false, std::memory_order_seq_cst);
  interest_latch.lock();
  direct_count_ = 0;
  came_before_ = 0;
  for (int d = 0; d < direct_used_; ++d) {
    Interest* i = direct_members_[d];
    if (!i->sock->OnLane()) continue;
    direct_[direct_count_++] = {i, i->sock, i->sock->lane()};
  }
  if (direct_next_ >= direct_count_) direct_next_ = 0;
  interest_latch.unlock();
}

// The next message of a direct stream has landed.  Or its lane is not in
// memory, and that lane says that it has something, or is dead.  Returns the
// events that are reported past the ready list, with their data; 0: none.
std::uint32_t EpollSet::Tells(const Direct& direct, std::uint64_t* data) {
  Interest* const interest = direct.interest;
  *data = interest->data.load(std::memory_order_acquire);
  const std::uint32_t events = interest->events.load(std::memory_order_relaxed);
  if ((events & kReadable) == 0 ||
      interest->spent.load(std::memory_order_acquire)) {
    return 0;
  }
  Sock* const sock = direct.sock;
  constexpr std::uint32_t kInput = EPOLLIN | EPOLLRDNORM;
  constexpr std::uint32_t kRoom = EPOLLOUT | EPOLLWRNORM;
  const bool by_edges = (events & static_cast<std::uint32_t>(EPOLLET)) != 0;
  // The ready list reports what comes with the peer's end.
  bool by_list = (events & EPOLLRDHUP) != 0 || !Looks(sock).TellsInputAlone();
  if (by_list || by_edges) {
    sock->rx_latch.lock();
    by_list = by_list && Looks(sock).EndNextLatched();
    const bool told =
        (by_list || (events & kInput) != 0) &&
        (!by_edges || (sock->lane() == direct.lane && direct.lane->Arrived()));
    sock->rx_latch.unlock();
    if (!told) return 0;
  } else if ((events & kInput) == 0) {
    return 0;
  }
  // A lane that is not in memory may say that it has something only because it
  // is dead.  A registration that is put on the list in this look is reported
  // here.  `told` keeps the list from reporting it again.
  if (!by_list && !interest->ready.load(std::memory_order_relaxed) &&
      sock->OnLane() &&
      (sock->notice().source() == nullptr ||
       direct.lane->State() == base::Reason::kNone)) {
    // As in the kernel, a report of an edge has all that holds.  If there is no
    // edge, the list looks at room in every wait.
    const bool room = by_edges && (events & kRoom) != 0;
    if (((events & (kRoom | EPOLLONESHOT)) == 0 ||
         (room && (events & EPOLLONESHOT) == 0 &&
          Looks(sock).HasRoom(-1, direct.lane))) &&
        // The caller's look may be of an earlier arming.
        (by_edges || base::Alone() || direct.lane->RxPendingQuick()) &&
        interest->Is(events, *data)) {
      return events & (room ? kInput | kRoom : kInput);
    }
    if ((events & (kRoom | EPOLLONESHOT)) == EPOLLONESHOT) {
      // The caller's look, and `events`, may be of an earlier arming.
      const std::uint32_t armings =
          interest->armings.load(std::memory_order_acquire);
      return interest->events.load(std::memory_order_relaxed) == events &&
                     direct.lane->RxPendingQuick() &&
                     Spend(interest, sock, armings, data)
                 ? events & kInput
                 : 0;
    }
  }
  if (by_edges) interest->edge.store(true, std::memory_order_relaxed);
  ready_latch_.lock();
  if (interest->set == this && interest->in_user.load()) LinkReady(interest);
  ready_latch_.unlock();
  return 0;
}

thread_local constinit bool tls_untold = false;

// The program's array is not accessible.  Undoes the look, which has used up
// the edge and the ONESHOT report.
void EpollSet::Untold(Interest* interest) {
  tls_untold = true;
  const std::uint32_t events = interest->events.load(std::memory_order_relaxed);
  if ((events & EPOLLONESHOT) != 0) interest->spent.store(false);
  if ((events & static_cast<std::uint32_t>(EPOLLET)) != 0) {
    interest->edge.store(true, std::memory_order_relaxed);
  }
  ready_latch_.lock();
  if (interest->set == this && interest->in_user.load()) LinkReady(interest);
  ready_latch_.unlock();
}

// Reports the direct streams that have something to read, past the ready list.
// The list reports their other events, such as EPOLLOUT and the end.
int EpollSet::TellDirect(epoll_event* out, int capacity) {
  if (slept_since_ != 0) [[unlikely]]
    return TellInOrder(out, capacity);
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
    std::uint64_t data;
    const std::uint32_t events = Tells(direct_[d], &data);
    if (events == 0) continue;
    Interest* interest = direct_[d].interest;
    if (!base::TryTell(out + filled, events, data)) [[unlikely]] {
      Untold(interest);
      break;
    }
    interest->told = wait_number_;
    ++filled;
  }
  return filled;
}

// The next message of `direct` has landed.  Returns whether this wait reports
// it, and stores the event.  For a stream that asks for input alone this
// repeats the tests of Tells() in line.
[[gnu::always_inline]] inline bool EpollSet::TellOne(const Direct& direct,
                                                     epoll_event* out) {
  Interest* const interest = direct.interest;
  std::uint64_t data;
  std::uint32_t events = interest->events.load(std::memory_order_acquire);
  if ((events & kAsked) == EPOLLIN && direct.lane->InMemory() &&
      !interest->spent.load(std::memory_order_relaxed) &&
      !interest->ready.load(std::memory_order_relaxed) &&
      Looks(direct.sock).TellsInputAlone()) [[likely]] {
    data = interest->data.load(std::memory_order_acquire);
    // The caller's look may be of an earlier arming, whose input another thread
    // has read since.
    if (!base::Alone() && (!direct.lane->RxPendingQuick() ||
                           !interest->Is(events, data))) [[unlikely]] {
      return false;
    }
    events = EPOLLIN;
  } else {
    events = Tells(direct, &data);
    if (events == 0) return false;
  }
  if (!base::TryTell(out, events, data)) [[unlikely]] {
    Untold(interest);
    return false;
  }
  interest->told = wait_number_;
  return true;
}

namespace {

// A direct stream that has something to report.
struct Pending {
  std::uint64_t came;  // 0: its sender knows
  int turn;
  int at;      // in direct_
  bool again;  // reported before, in the wait `told`
  std::uint32_t told;

  bool operator<(const Pending& other) const {
    if (again != other.again) return other.again;
    if (again && told != other.told) {
      return static_cast<std::int32_t>(other.told - told) > 0;  // it wraps
    }
    return came != other.came ? came < other.came : turn < other.turn;
  }
};

}  // namespace

// TellDirect for the first report after a sleep.  Several streams may have
// received something meanwhile.  They are reported by time of arrival, as in
// the kernel: a peer writes to one connection and then to another, and a server
// that slept sees them in this order.
//
// The senders give the times (ShmLane::Stamp).  A message without a time from
// this sleep came before the sleep was armed, or after it.  Its stream is
// reported last.  A false time misplaces the liar's own stream alone.  A stream
// without room is the first in the next look.
//
// If only some of them find room, the next wait goes on behind these.  A stream
// that has been reported, and still has something, comes behind the rest.
int EpollSet::TellInOrder(epoll_event* out, int capacity) {
  Pending all[kMostDirect];
  std::uint64_t seen = 0;
  static_assert(kMostDirect <= 64);
  int count = 0;
  const int first = direct_next_ < direct_count_ ? direct_next_ : 0;
  // Two rounds.  The first may look at a stream too early for a message that
  // came before a message that it finds elsewhere.  The second finds the
  // earlier message.
  for (int round = 0; round < 2; ++round) {
    for (int turn = 0, at = first; turn < direct_count_; ++turn, ++at) {
      if (at == direct_count_) at = 0;
      const Direct& one = direct_[at];
      if ((seen >> at & 1) != 0 || !one.lane->RxPendingQuick()) continue;
      seen |= 1ull << at;
      const std::uint32_t told = one.interest->told;
      const bool before = (came_before_ >> at & 1) != 0;
      all[count++] = {before ? slept_since_ : 0, turn, at,
                      order_wait_ != 0 && !After(order_wait_, told), told};
    }
    if (count == 0) return 0;
  }
  if (count > 1) {
    const std::uint64_t now = base::Ticks();
    for (int p = 0; p < count; ++p) {
      std::uint64_t& came = all[p].came;
      if (came == 0) came = direct_[all[p].at].lane->Came();
      if (came < slept_since_ || came > now) came = now;
    }
    std::sort(all, all + count);
  }
  direct_next_ = 0;
  int filled = 0;
  int p = 0;
  for (; p < count && filled < capacity; ++p) {
    if (TellOne(direct_[all[p].at], out + filled)) ++filled;
  }
  if (p < count && !all[p].again) {
    if (order_wait_ == 0) order_wait_ = wait_number_;
    return filled;
  }
  if (p < count) direct_next_ = all[p].at;  // has its turn next time
  if (filled > 0) {
    slept_since_ = 0;
    order_wait_ = 0;
    came_before_ = 0;
    // The short way of a wait ends without WatchAway.  Nobody looks at the set
    // any more if its thread was elsewhere for long.
    if (armed_awake_) WatchAway();
    DisarmAwake();
  }
  return filled;
}

// TellDirect for a set with few streams.
[[gnu::always_inline]] inline int EpollSet::TellFew(epoll_event* out,
                                                    int capacity) {
  if (direct_next_ != 0 || slept_since_ != 0) [[unlikely]]
    return TellDirect(out, capacity);
  epoll_event* at = out;
  const Direct* const end = direct_ + direct_count_;
  for (const Direct* d = direct_; d != end; ++d) {
    if (at == out + capacity) [[unlikely]] {
      direct_next_ = static_cast<int>(d - direct_);
      break;
    }
    if (d->lane->RxPendingQuick() && TellOne(*d, at)) ++at;
  }
  return static_cast<int>(at - out);
}

// Returns how many events may be direct.  If the list has registrations,
// streams that always have something leave the list a part of the room.  If
// there is room for one event, the two take turns.  If the list then yields
// nothing, the caller asks the direct streams.
int EpollSet::DirectRoom(int room) {
  if (ready_count_.load(std::memory_order_relaxed) == 0) return room;
  if (room > 1) return room - room / 2;
  list_turn_ = !list_turn_;
  return list_turn_ ? 0 : room;
}

// Returns whether this wait leaves a direct stream behind for another thread.
// The end of the wait finds listed registrations by itself.  A kick that has
// come for several streams wakes one thread.  A level-triggered stream is left
// even if it has just been reported, since its reader may leave bytes.  The
// kernel, too, puts the stream back and wakes the next thread at once.
bool EpollSet::LeavesSome() {
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
        // The input of a reported edge may lie unread for long.  A stream
        // without room still has its edge.
        ((events & EPOLLET) != 0 &&
         (direct_next_ == 0 || interest->told == wait_number_))) {
      continue;
    }
    if (direct_[d].lane->RxPendingQuick()) return true;
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
    Sock* sock = direct_[d].sock;
    if ((events & EPOLLET) == 0) {
      if ((events & (EPOLLIN | EPOLLRDNORM)) != 0) return true;
      // The registration asks for the stream's end only.
      if (Looks(sock).EndNext()) return true;
      continue;
    }
    // Arrived() uses up an edge, so the registration goes to the list.
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

bool EpollSet::AnyReady() {
  if (!HasUser()) return false;
  Critical critical;
  const base::LatchGuard hold(wait_latch_);
  return HasEvents();
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

// Threads may miss each other's counts.  Then the look at the kernel comes
// later.
bool EpollSet::KernelDue() {
  const std::uint32_t waits = waits_.load(std::memory_order_relaxed) + 1;
  waits_.store(waits, std::memory_order_relaxed);
  return (waits & 3) == 0 && TimeForKernel();
}

// KernelDue() for a set whose local TCP has had news, and a wait with room for
// one event.  Of as many waits as the set has streams, local TCP gets one for
// each of its own.  By time alone, lanes that always have something would leave
// it a few of a thousand waits.
bool EpollSet::TurnOfLocalTcp() {
  const bool due = KernelDue();
  const int local = std::max(local_tcp_.load(std::memory_order_relaxed), 1);
  const int lanes = user_count_.load(std::memory_order_relaxed);
  const std::uint64_t waits = waits_.load(std::memory_order_relaxed);
  const auto its = static_cast<std::uint64_t>(local);
  return due || waits * its % (its + static_cast<std::uint64_t>(lanes)) < its;
}

// The answer that KernelDue() would give where local TCP has no news.
bool EpollSet::KernelDueNext() const {
  return (waits_.load(std::memory_order_relaxed) & 3) == 3 &&
         base::Ticks() - kernel_look_.load(std::memory_order_relaxed) >
             kKernelLookUs * base::ticks_per_us;
}

// Looks at a lane up to `looks` times.  Returns whether it has something.
[[gnu::always_inline]] inline bool EpollSet::AwaitOne(const lane::Lane* lane,
                                                      int looks) {
  while (!lane->RxPendingQuick()) {
    base::LookOnce();
    if (--looks == 0) return false;
  }
  return true;
}

// Looks at the direct streams up to `looks` times, until one has something.
[[gnu::always_inline]] inline void EpollSet::AwaitDirect(int looks) {
  for (; looks > 0; --looks) {
    bool pending = false;
    for (int d = 0; d < direct_count_; ++d) {
      pending |= direct_[d].lane->RxPendingQuick();
    }
    if (pending) return;
  }
}

[[gnu::always_inline]] inline int EpollSet::LookAtHot(int fd, epoll_event* out,
                                                      int capacity,
                                                      bool may_wait) {
  Critical critical;
  if (!wait_latch_.try_lock()) [[unlikely]]
    return 0;
  int filled = 0;
  bool leaves = false;
  ++wait_number_;
  if (CoolDue()) Cool();
  int turns = may_wait ? Spinner::QuickTurns() / kQuickLooks : 0;
  bool first = true;
  do {
    if (!HasUser() || !IsAt(fd)) break;
    Rebuild();
    const bool cold = first && cold_ > 0;
    first = false;
    // With few streams, each is looked at several times for one look at all
    // others.
    const bool few = direct_count_ > 0 && direct_count_ <= 4 && turns > 0;
    if (few && !cold) AwaitDirect(kQuickLooks - 1);
    const int room = DirectRoom(capacity);
    filled = TellFew(out, room);
    if (filled > 0) {
      hot_hits_ += static_cast<std::uint32_t>(filled);
      ++undrained_;
      if (cold_ > 0) --cold_;
    } else {
      undrained_ += cold || direct_count_ == 0 ? kDirectLooks : kColdLooks;
    }
    if (undrained_ >= kHotLooks ||
        ready_count_.load(std::memory_order_relaxed) > 0) {
      undrained_ = 0;
      filled += DrainAndCollect(out + filled, capacity - filled);
      if (filled == 0 && room == 0) filled = TellDirect(out, capacity);
    }
    if (filled > 0) {
      waits_.store(waits_.load(std::memory_order_relaxed) + 1,
                   std::memory_order_relaxed);
      leaves = LeavesWork();
      break;
    }
  } while (--turns > 0 && !wait_latch_.Contended());
  wait_latch_.unlock();
  // As at the end of Wait.
  if (leaves ||
      (filled > 0 && ready_count_.load(std::memory_order_seq_cst) > 0)) {
    Registry::KickSleepers(this);
  }
  return filled;
}

int EpollSet::QuickMany(int fd, epoll_event* out, int capacity, int timeout) {
  const bool heats = heats_.load(std::memory_order_relaxed);
  const int filled = heats ? LookAtHot(fd, out, capacity, timeout != 0) : 0;
  if (filled > 0) [[likely]]
    return filled;
  return LongEpoll(fd, out, capacity, timeout);
}

// LookAtHot for a set all of whose streams are direct.  It does only what a
// loop with one connection needs between a message and its report.  `due`: the
// wait has just looked at the kernel, and so some waits look at the bits.
[[gnu::always_inline]] inline int EpollSet::LookAtFew(int fd, epoll_event* out,
                                                      int capacity,
                                                      bool may_wait, bool due) {
  Critical critical;
  if (!wait_latch_.try_lock()) [[unlikely]]
    return 0;
  int filled = 0;
  bool leaves = false;
  ++wait_number_;
  int turns = 0;
  for (bool first = true;; first = false) {
    if (!HasUser() || ready_count_.load(std::memory_order_relaxed) > 0 ||
        !IsAt(fd)) {
      break;
    }
    Rebuild();
    if (due && first && (undrained_ += kColdLooks) >= kDirectLooks) {
      undrained_ = 0;
      if (DrainPoller() > 0) break;
    }
    // With one stream, several looks at that stream go before one look at the
    // rest.  Its message is reported at once: while this thread has the latch,
    // no other thread takes the message off the list.
    const bool one = direct_count_ == 1 && direct_[0].lane->InMemory();
    if (one) [[likely]] {
      if (AwaitOne(direct_[0].lane, first ? 1 : kQuickLooks)) [[likely]]
        filled = TellOne(direct_[0], out) ? 1 : 0;
    } else {
      filled = TellFew(out, capacity);
    }
    if (filled > 0) [[likely]] {
      waits_.store(waits_.load(std::memory_order_relaxed) + 1,
                   std::memory_order_relaxed);
      leaves = LeavesWork();
      break;
    }
    if (direct_count_ == 0) break;
    if (++undrained_ >= kDirectLooks) {
      undrained_ = 0;
      DrainPoller();
    }
    if (first) turns = may_wait ? Spinner::QuickTurns() / kQuickLooks : 0;
    if (--turns < 0 || wait_latch_.Contended()) break;
    if (!one && direct_count_ <= 4) AwaitDirect(kQuickLooks - 1);
  }
  wait_latch_.unlock();
  // As at the end of Wait.
  if (leaves || (filled > 0 && ready_count_.load(std::memory_order_seq_cst) >
                                   0)) [[unlikely]] {
    Registry::KickSleepers(this);
  }
  return filled;
}

// A short wait whose look at the kernel is due.  That look comes first, as in
// the long wait (LookAtKernelFirst).
int EpollSet::WaitBehindKernel(int fd, epoll_event* out, int capacity,
                               int timeout) {
  int count = 0;
  {
    Leave leave(this);
    if (leave.Right(fd) && TimeForKernel()) {
      const std::uint32_t moves = this->moves();
      leave.Ask();
      count = KernelWait(out, capacity > 1 ? capacity / 2 : 1, 0, nullptr,
                         &leave.unlooked);
      if (count > 0) {
        waits_.store(waits_.load(std::memory_order_relaxed) + 1,
                     std::memory_order_relaxed);
        count = WithLanes(out, count, capacity, kNoBell, moves, &leave);
      } else {
        count = LookAtFew(fd, out, capacity, timeout != 0, true);
      }
      if (count > 0) EndWait(count, &leave);
    }
  }
  return count > 0 ? count : LongEpoll(fd, out, capacity, timeout);
}

[[gnu::hot]] int EpollSet::QuickWait(int fd, epoll_event* out, int capacity,
                                     int timeout) {
  if (LocalTcpTells()) [[unlikely]]
    return LongEpoll(fd, out, capacity, timeout);
  if (crowded_.load(std::memory_order_relaxed)) {
    return KernelDueNext() ? LongEpoll(fd, out, capacity, timeout)
                           : QuickMany(fd, out, capacity, timeout);
  }
  if (KernelDueNext()) [[unlikely]]
    return WaitBehindKernel(fd, out, capacity, timeout);
  const int filled = LookAtFew(fd, out, capacity, timeout != 0);
  if (filled > 0) [[likely]]
    return filled;
  return LongEpoll(fd, out, capacity, timeout);
}

}  // namespace rcsock::posix
