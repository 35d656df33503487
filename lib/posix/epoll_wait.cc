// epoll_wait of a set that has streams on lanes.  It looks, spins, sleeps in
// the kernel, and puts together what both sides have.

#include <sched.h>
#include <signal.h>
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <optional>

#include "lib/base/barrier.h"
#include "lib/base/clock.h"
#include "lib/base/guard.h"
#include "lib/base/latch.h"
#include "lib/base/real.h"
#include "lib/base/sleep.h"
#include "lib/posix/epoll.h"
#include "lib/posix/registry.h"
#include "lib/posix/signals.h"
#include "lib/posix/spin.h"
#include "lib/posix/unread_wait.h"
#include "lib/posix/user_arguments.h"
#include "lib/posix/wait_mask.h"

namespace rcsock::posix {

// No stranger misses a wake-up.  While streams are in user space and strangers
// sleep, one of three holds:
// - A counted sleeper exists.
// - A thread is awake in a wait, and will hand on when it leaves.
// - No thread has yet taken an edge of the bell.
//
// The coming of the first stream makes an edge behind its count
// (InterestsToUser, Ctl).  A stranger counts itself, then looks at that count.
// All of this is sequentially consistent.  So the stranger sees the stream, or
// the thread that takes the edge sees the stranger.
//
// A thread that takes an edge, by any call, or counts as a sleeper, comes here
// when it leaves.  The last sleeper has taken itself off the count before.
//
// The kernel first wakes the thread that came last, so edges alone reach one
// thread again and again.  Without a stream in user space only an edge is to be
// handed on.  The first stream that comes makes its own edge, behind its count.
void EpollSet::HandOn(bool unlooked) {
  const bool asleep = sleepers_.load(std::memory_order_seq_cst) > 0;
  const bool strangers = strangers_.load(std::memory_order_seq_cst) > 0;
  if (unlooked ? asleep || strangers
               : !asleep && strangers &&
                     user_count_.load(std::memory_order_seq_cst) > 0) {
    KickBell();
  }
}

// HandOn(true), since an edge that the kernel gives the thread on its way out
// goes on, too.
void EpollSet::TakeBack(const CountedWait& wait) {
  if (wait.stranger) strangers_.fetch_sub(1, std::memory_order_seq_cst);
  if (wait.sleeper) {
    if (poller_) poller_->Disarm();
    sleepers_.fetch_sub(1, std::memory_order_seq_cst);
  }
  HandOn(true);
}

// The sleep may begin only now, and its look was before.  So an edge ends the
// sleep, or makes another thread look, which is as good.  A stranger looks at
// the count of streams, as MaySleep does.  If it has been woken before, it
// looks at signals, too: the kernel does not remember those of that time.
void EpollSet::Recount(const CountedWait& wait) {
  if (wait.stranger) strangers_.fetch_add(1, std::memory_order_seq_cst);
  if (wait.sleeper) {
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    if (poller_) poller_->Arm();
  }
  tls_signals.wait = wait;
  if (wait.sleeper ||
      (wait.stranger &&
       (wait.again || user_count_.load(std::memory_order_seq_cst) > 0))) {
    KickBell();
    mirror_.Raise();
  }
}

CountedWait TakeBackWait() {
  Critical critical;
  const CountedWait was = tls_signals.wait;
  tls_signals.wait = {};
  if (was.set != nullptr) static_cast<EpollSet*>(was.set)->TakeBack(was);
  return was;
}

void RecountWait(const CountedWait& wait) {
  Critical critical;
  if (tls_signals.wait.set != nullptr) TakeBackWait();
  static_cast<EpollSet*>(wait.set)->Recount(wait);
}

// A thread on its way into the kernel, and there: it is counted, and all is
// armed.  Its end undoes both, on cancellation too.
//
// Its first part is a nap of kNapNs at most, as in ShmLane::SleepRx.  A nap is
// armed without the heavy fence.  A sender may look at the armed word while its
// message is still in its store buffer, and then kicks nobody.  The nap ends by
// itself, and the look behind its end finds the message.  All other news comes
// from threads that have fenced in full: Mark, PublishCredit, the board,
// KickSleepers.
//
// A sender may miss a napping thread, but misses no other for that: the nap
// makes a new generation, which only adds kicks.  An unlooked edge while others
// sleep is different.  The thread must make sure of the others.  A sender that
// this look misses may believe that it has kicked, in their generation.  A nap
// may end with the kernel's news, and the thread then leaves without another
// look.  So with such an edge the thread naps only if no other sleeps here.  A
// thread that comes later arms and looks for itself.
class EpollSet::Sleep {
 public:
  // Arm() is a full fence, and so is the sender's side between its post and its
  // look at the armed word.  sleepers_ does this for what threads of this
  // process put on the ready list.  `unlooked`: see Leave.
  //
  // `life` is the set's at the start of the wait.  The closing thread changes
  // it, then looks at sleepers_; all is sequentially consistent.  Either the
  // closing thread sees the count and leaves the poller, or the counted thread
  // sees the new life and touches nothing.
  Sleep(EpollSet* set, std::uint32_t life, bool unlooked) : set_(set) {
    Critical critical;
    const int others = set_->sleepers_.fetch_add(1, std::memory_order_seq_cst);
    if (set_->life_.load(std::memory_order_seq_cst) != life) {
      set_->sleepers_.fetch_sub(1, std::memory_order_seq_cst);
      return;
    }
    tls_signals.wait.sleeper = true;
    poller_ = set_->poller_.get();
    if (poller_ != nullptr) {
      naps_ = poller_->Fences() && (others == 0 || !unlooked);
      naps_ ? poller_->ArmForNap() : poller_->Arm();
    }
    count_ = set_->source_count_.load(std::memory_order_seq_cst);
    for (int i = 0; i < count_; ++i) (sources_[i] = set_->source(i))->Arm();
  }
  ~Sleep() {
    Critical critical;
    // Otherwise a handler ends the thread.
    if (tls_signals.wait.sleeper) {
      // The bell comes first: what the sources drain need not ring for this
      // thread.
      if (poller_ != nullptr) poller_->Disarm();
    }
    for (int i = 0; i < count_; ++i) sources_[i]->Disarm(rang);
    if (!tls_signals.wait.sleeper) return;
    tls_signals.wait.sleeper = false;
    set_->sleepers_.fetch_sub(1, std::memory_order_seq_cst);
  }
  Sleep(const Sleep&) = delete;
  Sleep& operator=(const Sleep&) = delete;

  bool naps() const { return naps_; }
  // The nap is over, and has found nothing.  Arms for good, with a new
  // generation.  Then the caller looks.
  void Deepen() {
    Critical critical;
    naps_ = false;
    if (poller_ != nullptr) poller_->Renew();
  }

  bool rang = false;

 private:
  EpollSet* const set_;
  lane::shm::ShmPoller* poller_ = nullptr;  // armed by this sleep
  bool naps_ = false;
  int count_ = 0;
  lane::Source* sources_[kMostSources];
};

// Gives the other sleepers a new generation.  The kernel gives an edge to one
// thread, and a sender kicks once in a generation.  So the edge has used up the
// generation of all sleepers.  Without a new generation the next message would
// kick none of them.  Returns whether there is nothing for them.
//
// This comes only when a thread is about to leave with an edge.  While it
// looks, it needs no kick.  If it goes to sleep, it makes a new generation and
// looks again (Sleep).  If it kicks a sleeper, that thread takes over this
// duty.  So a thread that is woken in vain fences once, not twice.
bool EpollSet::NothingBehind() {
  if (sleepers_.load(std::memory_order_seq_cst) == 0) return true;
  Critical critical;
  wait_latch_.lock();
  // Renew() is a heavy fence between the new generation and the look.  A sender
  // that saw the old generation, and kicked nobody, has posted before the
  // fence.  The look sees that post, an edge too.  A sender that posts later
  // sees the new generation, and kicks.
  if (poller_) poller_->Renew();
  Rebuild();
  const bool nothing = !SomethingReady();
  wait_latch_.unlock();
  return nothing;
}

// The last look of a thread that has armed.
bool EpollSet::LookBeforeSleep(bool nap, std::uint64_t since) {
  Critical critical;
  wait_latch_.lock();
  if (slept_since_ == 0) {
    slept_since_ = since;
    order_wait_ = 0;
    came_before_ = 0;
  }
  Rebuild();
  bool ready = HasUser() && SomethingReady();
  for (int i = 0; nap && !ready && i < base::kNapLooks; ++i) {
    base::CpuRelax();
    ready = AnyDirect();
  }
  wait_latch_.unlock();
  return ready;
}

int EpollSet::Wait(Leave* leave, epoll_event* out, int capacity,
                   std::int64_t timeout_ns, const sigset_t* mask) {
  std::uint32_t signals = leave->signals;
  const std::uint32_t life = leave->life;
  // The set was closed meanwhile, and may be another set by now.  On TCP a wait
  // would sleep on.
  const auto gone = [&] {
    return life_.load(std::memory_order_seq_cst) != life;
  };
  // Set when the first look has found nothing, so that a wait with ready
  // streams reads no clock.
  std::uint64_t deadline = 0;
  const auto left = [&]() -> std::int64_t {
    if (timeout_ns <= 0) return timeout_ns;
    const std::uint64_t now = base::NowNs();
    if (deadline == 0) deadline = now + static_cast<std::uint64_t>(timeout_ns);
    return now >= deadline ? 0 : static_cast<std::int64_t>(deadline - now);
  };
  if (!MayHold(capacity)) return real::epoll_wait(fd_, out, capacity, 0);
  if (Null(out)) {
    errno = EFAULT;
    return -1;
  }
  WaitMask wait_mask(mask);
  while (!HasUser()) {
    // The edge may have meant the first stream, which has not come, or will
    // make another edge.  It may have meant unread bytes, for which this looks
    // now.
    leave->Looked();
    if (AnyUnread()) {
      const int n = EpollFindsUnread(this, out, capacity);
      if (n > 0) return n;
      if (NowhereToTell(out)) {
        errno = EFAULT;
        return -1;
      }
    }
    int n = kOnlyBell;
    bool interrupted = false;
    leave->Ask();
    {
      const Stranger stranger(this, true);
      if (gone()) [[unlikely]]
        return leave->Closed();
      if (wait_mask.Block()) signals = tls_signals.any;
      interrupted = tls_signals.any != signals;
      if (stranger.MaySleep()) {
        n = KernelWait(out, capacity, interrupted ? 0 : left(), mask,
                       &leave->unlooked);
      }
    }
    if (n != kOnlyBell && !(n == 0 && interrupted)) return n;
    if (HasUser()) break;
    // A look that does not wait cannot be ended by a handler.
    if (interrupted && timeout_ns != 0) {
      errno = EINTR;
      return -1;
    }
    if (left() == 0) return 0;
  }
  int result = 0;
  int error = 0;
  Spinner spin;
  // However busy the lanes are, kernel descriptors get their look.  It comes
  // first, so that ready streams cannot take all the room.
  const std::uint32_t moves = moves_.load(std::memory_order_seq_cst);
  // The bitmaps and the list get their look every fourth time, too.  Otherwise
  // a direct stream that always has something would keep them waiting.
  bool due = false;
  if (!InOrderWithKernel(capacity) && KernelDue() && !gone()) {
    due = true;
    leave->Ask();
    const int n = KernelWait(out, capacity > 1 ? capacity / 2 : 1, 0, nullptr,
                             &leave->unlooked);
    if (n > 0) result = WithLanes(out, n, capacity, kNoBell, moves, leave);
  }
  while (result == 0) {
    int filled = 0;
    bool kernel = false;
    bool peeked = false;
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
      if (gone()) [[unlikely]] {
        wait_latch_.unlock();
        return leave->Closed();
      }
      ++wait_number_;
      DisarmAwake();
      if (crowded && CoolDue()) Cool();
      for (;;) {
        if (!HasUser()) {
          over = true;
          kernel = timeout_ns == 0;
          break;
        }
        Rebuild();
        if (InOrderWithKernel(capacity)) {
          kernel = peeked = Peek(timeout_ns == 0);
        } else {
          const int room = DirectRoom(capacity);
          filled = TellDirect(out, room);
          if (crowded) hot_hits_ += static_cast<std::uint32_t>(filled);
          // If there are direct streams, only a few looks include the bitmaps
          // and the list.  So messages on direct streams are found early.
          undrained_ += due || (crowded && filled == 0) ? kColdLooks : 1;
          due = false;
          if (direct_count_ == 0 || undrained_ >= kDirectLooks ||
              (timeout_ns == 0 && filled == 0) ||
              ready_count_.load(std::memory_order_relaxed) > 0) {
            undrained_ = 0;
            filled += DrainAndCollect(out + filled, capacity - filled);
            if (filled == 0 && room == 0) filled = TellDirect(out, capacity);
          }
        }
        if (filled == 0 && !peeked) {
          if (timeout_ns == 0) {
            kernel = true;
          } else if ((++turns & 15) == 0) {
            if (deadline == 0) left();
            kernel = TimeForKernel();
          }
        }
        if (filled > 0) leaves = LeavesWork();
        if (filled > 0 || kernel || !wait_mask.InForce()) break;
        if (wait_latch_.Contended()) {
          wait_latch_.Yield();
          if (gone()) {
            over = true;
            break;
          }
        }
        // The thread that gets the processor meanwhile may be the sender.
        const auto yield = [this, capacity] {
          wait_latch_.AssertHeld();
          if (InOrderWithKernel(capacity)) ArmAwake();
          ::sched_yield();
          DisarmAwake();
        };
        if (!spin.Go(yield)) {
          over = true;
          break;
        }
      }
      wait_latch_.unlock();
    }
    if (leaves) {
      Registry::KickSleepers(this);
      leave->Looked();
    }
    if (kernel) {
      leave->Ask();
      // Keeps room for what the lanes have.
      int ahead = kNoBell;
      const int more = KernelWait(out, peeked ? capacity / 2 : capacity, 0,
                                  nullptr, &leave->unlooked, &ahead);
      if (more < 0 && more != kOnlyBell) {
        result = -1;
        error = errno;
        break;
      }
      if (more > 0 && LanesWereEmpty()) ahead = more;
      if (more > 0 || peeked) {
        filled =
            WithLanes(out, std::max(more, 0), capacity, ahead, moves, leave);
        if (filled == 0 && !spin.Go()) over = true;
      }
    }
    if (filled > 0) {
      result = filled;
      break;
    }
    if (NowhereToTell(out)) [[unlikely]] {
      Registry::KickSleepers(this);
      result = -1;
      error = EFAULT;
      break;
    }
    if (timeout_ns == 0) break;
    if (left() == 0) {
      // The thread may have lost its CPU for longer than that: one last look.
      timeout_ns = 0;
      continue;
    }
    if (wait_mask.Block()) signals = tls_signals.any;
    if (tls_signals.any != signals) {
      result = -1;
      error = EINTR;
      break;
    }
    if (!over) continue;
    // Arm, look, sleep.  A nap comes first.
    leave->Owe();
    const std::uint64_t armed_at = base::Ticks();
    std::optional<Sleep> sleep(std::in_place, this, life, leave->unlooked);
    std::uint64_t start = 0;
    int n = kOnlyBell;
    int ahead = kNoBell;
    while (!gone()) {
      const bool ready = LookBeforeSleep(sleep->naps(), armed_at);
      // It has armed anew before this look.
      leave->Looked();
      // A stream that has gone to the kernel since leaves the ready list.  It
      // may have bytes that the kernel does not know of.
      if (!ready && AnyUnread()) {
        result = EpollFindsUnread(this, out, capacity);
      }
      if (ready || result > 0 || tls_untold) break;
      if (start == 0) start = base::Ticks();
      if (tls_signals.any != signals) {
        n = -1;
        errno = EINTR;
        break;
      }
      const std::int64_t rest = left();
      const bool brief = rest >= 0 && rest <= base::kNapNs;
      n = KernelWait(out, capacity,
                     sleep->naps() && !brief ? base::kNapNs : rest, mask,
                     &leave->unlooked, &ahead);
      if (n != 0 || !sleep->naps()) break;
      if (brief) {
        // The time is over, and only the look is left.
        timeout_ns = 0;
        n = kOnlyBell;
        break;
      }
      sleep->Deepen();
    }
    error = errno;
    if (start != 0) Spinner::Slept(start);
    sleep->rang = leave->unlooked;
    // No sender has rung.  So no lane had anything before the kernel's events,
    // except from a sender that saw no armed thread.  Only naps are missed in
    // this way.
    if (n > 0 && ahead == kNoBell) ahead = sleep->naps() ? 0 : n;
    sleep.reset();
    if (gone()) return leave->Closed();
    if (result > 0) break;
    if (n > 0) {
      result = WithLanes(out, n, capacity, ahead, moves, leave);
      break;
    }
    if (n != kOnlyBell && (n != 0 || left() == 0)) {
      result = n;
      break;
    }
    spin = Spinner();
  }
  // A thread that leaves work behind wakes the next thread.
  if (result > 0 && ready_count_.load(std::memory_order_seq_cst) > 0) {
    Registry::KickSleepers(this);
    leave->Looked();
  }
  // A woken thread looks itself at what has come to streams that are the
  // kernel's.
  if (leave->unlooked && HasUser() && !AnyUnread() && NothingBehind()) {
    leave->Looked();
  }
  WatchAway();
  if (result < 0) errno = error;
  return result;
}

}  // namespace rcsock::posix
