// epoll_wait of a set that has streams on lanes.  The wait looks, spins, sleeps
// in the kernel, and puts together what both sides have.

#include <sched.h>
#include <signal.h>
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>

#include "lib/base/barrier.h"
#include "lib/base/clock.h"
#include "lib/base/latch.h"
#include "lib/base/nap.h"
#include "lib/base/real.h"
#include "lib/posix/iomux/epoll.h"
#include "lib/posix/iomux/epoll_sleep.h"
#include "lib/posix/iomux/registry.h"
#include "lib/posix/iomux/unread_wait.h"
#include "lib/posix/iomux/wait_loop.h"
#include "lib/posix/sys/user_arguments.h"
#include "lib/posix/thread/signals.h"
#include "lib/posix/thread/spin.h"

namespace rcsock::posix {

// No stranger misses a wake-up.  While streams are in user space and strangers
// sleep, one of three holds:
// - A counted sleeper exists.
// - A thread is awake in a wait, and will hand on when it leaves.
// - No thread has yet taken an edge of the bell.
//
// The coming of the first stream makes an edge behind its count
// (Interests::ToUser, Ctl).  A stranger counts itself, then looks at that
// count. All of this is sequentially consistent.  So the stranger sees the
// stream, or the thread that takes the edge sees the stranger.
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

// HandOn(true): an edge that the kernel gives the thread on its way out is
// handed on, too.
void EpollSet::TakeBack(const CountedWait& wait) {
  if (wait.stranger) strangers_.fetch_sub(1, std::memory_order_seq_cst);
  if (wait.sleeper) {
    if (poller_) poller_->Disarm();
    sleepers_.fetch_sub(1, std::memory_order_seq_cst);
  }
  HandOn(true);
}

// The sleep may begin only now, after the look.  So an edge ends the sleep, or
// makes another thread look, which is as good.  A stranger looks at the count
// of streams, as MaySleep does.  A stranger that has been woken before looks at
// signals, too: the kernel does not remember the signals of that time.
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

// Gives the other sleepers a new generation.  The kernel gives an edge to one
// thread, and a sender kicks once in a generation.  So the edge has used up the
// generation of all sleepers.  Without a new generation the next message would
// kick none of them.  Returns whether the other sleepers need no wake-up.
//
// Called only when a thread is about to leave with an edge.  While that thread
// looks, it needs no kick.  If it goes to sleep, it makes a new generation and
// looks again (Sleep).  If it kicks a sleeper, the woken thread takes over this
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
bool EpollSet::LookBeforeSleep(std::uint64_t since) {
  Critical critical;
  wait_latch_.lock();
  if (slept_since_ == 0) {
    slept_since_ = since;
    order_wait_ = 0;
    came_before_ = 0;
  }
  Rebuild();
  const bool ready = HasUser() && SomethingReady();
  wait_latch_.unlock();
  return ready;
}

// One call of epoll_wait: its arguments, and how far it is.
class EpollSet::WaitCall {
 public:
  WaitCall(EpollSet* set, Leave* leave, epoll_event* out, int capacity,
           std::int64_t timeout_ns, const sigset_t* mask)
      : set_(set),
        leave_(leave),
        out_(out),
        capacity_(capacity),
        limits_(timeout_ns, mask, leave->signals) {}

  [[gnu::always_inline]] int Run() {
    while (!set_->HasUser()) {
      if (SleepAsStranger()) return Result();
    }
    moves_ = set_->moves();
    if (!LookAtKernelFirst()) WaitLoop(this, &limits_);
    return closed_ ? Result() : Finish();
  }

  // --- For WaitLoop.
  bool Look();
  bool TimeOut() {
    limits_.Expire();
    return false;
  }
  bool Spin() const { return spins_; }
  bool Sleep();
  bool Fail(int error) {
    error_ = error;
    return End(-1);
  }

 private:
  // What one look has found.
  struct Found {
    int events = 0;
    bool asks = false;    // the kernel is to be asked
    bool peeked = false;  // the lanes may have something, and wait for the
                          // kernel's word
    bool leaves = false;  // it leaves something for another thread
    bool over = false;    // it has spun for long enough
    unsigned turns = 0;
  };
  class Armed;

  bool SleepAsStranger();
  bool LookAtKernelFirst();
  bool LookAtLanes(Found* found) RC_EXCLUDES(set_->wait_latch_);
  bool LookOnce(Found* found, bool crowded) RC_REQUIRES(set_->wait_latch_);
  void Tell(Found* found, bool crowded) RC_REQUIRES(set_->wait_latch_);
  bool SpinLatched(Found* found) RC_REQUIRES(set_->wait_latch_);
  bool AskKernel(Found* found);
  int Finish();
  // Another thread has closed the set, which may be another set now.  On TCP
  // the wait would sleep on.
  bool Gone() const {
    return set_->life_.load(std::memory_order_seq_cst) != leave_->life;
  }
  // Each of these ends the call, and returns true.
  bool End(int result) {
    result_ = result;
    return true;
  }
  bool Close() {
    closed_ = true;
    return true;
  }
  int Result() {
    if (closed_) return leave_->Closed();
    if (result_ < 0) errno = error_;
    return result_;
  }

  EpollSet* const set_;
  Leave* const leave_;
  epoll_event* const out_;
  const int capacity_;
  WaitLimits limits_;
  Spinner spin_;
  std::uint32_t moves_ = 0;  // of the set when the wait began
  int result_ = 0;
  int error_ = 0;
  bool closed_ = false;
  // The next look includes the bitmaps and the list.
  bool due_ = false;
  bool spins_ = false;  // the last look has left time to spin
  // The kernel has had nothing until the end of the wait's time.
  bool asked_ = false;
  bool timed_ = false;  // the set's timer is armed for the end of the wait
};

// Waits in the kernel's part alone, since no stream is in user space.  Returns
// whether the call is over.
bool EpollSet::WaitCall::SleepAsStranger() {
  // The edge had one of two meanings.  It meant the first stream, which has not
  // come yet, or will make another edge.  Or it meant unread bytes, which this
  // thread looks for now.
  leave_->Looked();
  if (AnyUnread()) {
    const int n = EpollFindsUnread(set_, out_, capacity_);
    if (n > 0) return End(n);
    if (NowhereToTell(out_)) return Fail(EFAULT);
  }
  int n = kOnlyBell;
  bool interrupted = false;
  leave_->Ask();
  {
    const Stranger stranger(set_, true);
    if (Gone()) [[unlikely]]
      return Close();
    limits_.BlockMask();
    interrupted = limits_.Interrupted();
    if (stranger.MaySleep()) {
      n = set_->KernelWait(out_, capacity_, interrupted ? 0 : limits_.Left(),
                           limits_.mask(), &leave_->unlooked);
      error_ = errno;
    }
  }
  if (n != kOnlyBell && !(n == 0 && interrupted)) return End(n);
  if (set_->HasUser()) return false;
  // A look that does not wait cannot be ended by a handler.
  if (interrupted && limits_.Waits()) return Fail(EINTR);
  return limits_.Left() == 0 && End(0);
}

// However busy the lanes are, kernel descriptors get their look.  That look
// comes first, so that ready streams cannot take all the room.  Returns whether
// the call is over.  The bitmaps and the list get their look every fourth time,
// too.  Otherwise a direct stream that always has something would keep them
// waiting.
[[gnu::always_inline]] inline bool EpollSet::WaitCall::LookAtKernelFirst() {
  if (set_->LocalTcpTells()) [[unlikely]] {
    if (capacity_ > 1 || !set_->TurnOfLocalTcp()) return false;
  } else if (!set_->KernelDue()) {
    return false;
  }
  if (Gone()) return false;
  due_ = true;
  leave_->Ask();
  const int n = set_->KernelWait(out_, capacity_ > 1 ? capacity_ / 2 : 1, 0,
                                 nullptr, &leave_->unlooked);
  return n > 0 &&
         End(set_->WithLanes(out_, n, capacity_, kNoBell, moves_, leave_));
}

// Looks at the lanes, and spins.  Then looks at the kernel if that is due.
[[gnu::always_inline]] inline bool EpollSet::WaitCall::Look() {
  Found found;
  if (!LookAtLanes(&found)) return Close();
  if (found.leaves) {
    Registry::KickSleepers(set_);
    leave_->Looked();
  }
  if (found.asks && !AskKernel(&found)) return true;
  if (found.events > 0) {
    if (!found.asks) spin_.Found();
    return End(found.events);
  }
  if (NowhereToTell(out_)) [[unlikely]] {
    Registry::KickSleepers(set_);
    return Fail(EFAULT);
  }
  spins_ = !found.over;
  return !limits_.Waits();
}

// Looks and spins with the wait latch.  False: the set has been closed.
[[gnu::always_inline]] inline bool EpollSet::WaitCall::LookAtLanes(
    Found* found) {
  Critical critical;
  tls_spin.Count(set_, set_->waits_.load(std::memory_order_relaxed));
  const bool crowded = set_->crowded_.load(std::memory_order_relaxed);
  if (__builtin_expect(crowded, 0) &&
      !set_->heats_.load(std::memory_order_relaxed)) {
    set_->LeaveDirect();
  }
  set_->wait_latch_.lock();
  if (Gone()) [[unlikely]] {
    set_->wait_latch_.unlock();
    return false;
  }
  ++set_->wait_number_;
  set_->DisarmAwake();
  if (crowded && set_->CoolDue()) set_->Cool();
  while (LookOnce(found, crowded)) {
  }
  set_->wait_latch_.unlock();
  return true;
}

// Returns whether the thread looks again without giving up the latch.
[[gnu::always_inline]] inline bool EpollSet::WaitCall::LookOnce(Found* found,
                                                                bool crowded) {
  if (!set_->HasUser()) {
    found->over = true;
    found->asks = !limits_.Waits();
    return false;
  }
  set_->Rebuild();
  if (set_->InOrderWithKernel(capacity_)) {
    found->asks = found->peeked = set_->Peek(!limits_.Waits());
  } else {
    Tell(found, crowded);
  }
  if (found->events == 0 && !found->peeked) {
    if (!limits_.Waits()) {
      found->asks = !asked_;
      found->over = true;
    } else if ((++found->turns & 15) == 0) {
      limits_.StartClock();
      found->asks = set_->TimeForKernel();
    }
  }
  if (found->events > 0) found->leaves = set_->LeavesWork();
  return found->events == 0 && !found->asks && !found->over &&
         limits_.MaskInForce() && SpinLatched(found);
}

// Reports what the lanes have.  If there are direct streams, only a few looks
// include the bitmaps and the list.  So messages on direct streams are found
// early.
[[gnu::always_inline]] inline void EpollSet::WaitCall::Tell(Found* found,
                                                            bool crowded) {
  const int room = set_->DirectRoom(capacity_);
  found->events = set_->TellDirect(out_, room);
  if (crowded) set_->hot_hits_ += static_cast<std::uint32_t>(found->events);
  set_->undrained_ += due_ || (crowded && found->events == 0) ? kColdLooks : 1;
  due_ = false;
  const std::uint32_t most = crowded ? kHotLooks : kDirectLooks;
  if (set_->direct_count_ != 0 && set_->undrained_ < most &&
      (limits_.Waits() || found->events > 0) &&
      set_->ready_count_.load(std::memory_order_relaxed) <= 0) {
    return;
  }
  set_->undrained_ = 0;
  found->events +=
      set_->DrainAndCollect(out_ + found->events, capacity_ - found->events);
  if (found->events == 0 && room == 0) {
    found->events = set_->TellDirect(out_, capacity_);
  }
}

// One turn of the spin.  Lets another thread have the latch, or the processor.
// False: the spin is over.
[[gnu::always_inline]] inline bool EpollSet::WaitCall::SpinLatched(
    Found* found) {
  if (set_->wait_latch_.Contended()) {
    set_->wait_latch_.Yield();
    if (Gone()) {
      found->over = true;
      return false;
    }
  }
  // The thread that gets the processor meanwhile may be the sender.
  const auto yield = [this] {
    set_->wait_latch_.AssertHeld();
    if (set_->InOrderWithKernel(capacity_)) set_->ArmAwake();
    ::sched_yield();
    set_->DisarmAwake();
  };
  found->over = !spin_.Go(yield);
  return !found->over;
}

// Adds what the kernel has.  False: the call has failed.
bool EpollSet::WaitCall::AskKernel(Found* found) {
  leave_->Ask();
  int ahead = kNoBell;
  // Keeps room for what the lanes have.
  const int more =
      set_->KernelWait(out_, found->peeked ? capacity_ / 2 : capacity_, 0,
                       nullptr, &leave_->unlooked, &ahead);
  if (more < 0 && more != kOnlyBell) return !Fail(errno);
  if (more > 0 && set_->LanesWereEmpty()) ahead = more;
  if (more > 0 || found->peeked) {
    found->events = set_->WithLanes(out_, std::max(more, 0), capacity_, ahead,
                                    moves_, leave_);
    if (found->events == 0 && !spin_.Go()) found->over = true;
  }
  return true;
}

// For LookThenSleep.
class EpollSet::WaitCall::Armed {
 public:
  static constexpr int kFound = kOnlyBell;

  explicit Armed(WaitCall* call)
      : call_(call),
        armed_at_(base::Ticks()),
        sleep_(call->set_, call->leave_->life, call->leave_->unlooked,
               call->limits_.Brief()),
        armed_by_(base::Ticks()) {}

  bool Look() {
    if (call_->Gone()) return true;
    if (naps()) base::AwaitNapLook(armed_by_);
    const bool ready = call_->set_->LookBeforeSleep(armed_at_);
    // This thread has armed anew before LookBeforeSleep.
    call_->leave_->Looked();
    // A stream that has gone to the kernel since leaves the ready list.  The
    // stream may have bytes that the kernel does not know of.
    if (!ready && AnyUnread()) {
      call_->result_ =
          EpollFindsUnread(call_->set_, call_->out_, call_->capacity_);
    }
    if (ready || call_->result_ > 0 || tls_untold) return true;
    if (slept_from_ == 0) slept_from_ = base::Ticks();
    return false;
  }
  bool naps() const { return sleep_.naps(); }
  int Sleep(const SleepPart& part) {
    last_ = part.last;
    EpollSet* const set = call_->set_;
    // The set's timer ends the sleep.  The time-out that stays is never the
    // processor's next timer.
    const bool timed = call_->timed_ && last_ && sleep_.alone();
    const int n = set->KernelWait(
        call_->out_, call_->capacity_, part.ns + (timed ? base::kNapNs : 0),
        call_->limits_.mask(), &call_->leave_->unlooked, &ahead_);
    // Another thread, or a child of fork, looks here too, and has taken the
    // timer's edge.  It would do so again.
    if (timed && n == 0) [[unlikely]]
      set->timer_.Refuse();
    return timed && n == kOnlyBell && !call_->leave_->unlooked &&
                   call_->limits_.Left() == 0
               ? 0
               : n;
  }

  // A nap with more time behind it has found nothing.
  bool MayDeepen() const { return naps() && !last_; }
  void Deepen() { sleep_.Deepen(); }
  // The thread is awake.  Returns how many of the kernel's `n` events came
  // before what the lanes have.
  int Woken(int n) {
    // The bell tells of the lanes.
    if (slept_from_ != 0) {
      Spinner::Slept(slept_from_, call_->leave_->unlooked);
    }
    sleep_.rang = call_->leave_->unlooked;
    if (n <= 0 || ahead_ != kNoBell) return ahead_;
    // No sender has rung.  So no lane had anything before the kernel's events,
    // except from a sender that saw no armed thread.  A sender misses only
    // napping threads in this way.
    return naps() ? 0 : n;
  }

 private:
  WaitCall* const call_;
  const std::uint64_t armed_at_;
  EpollSet::Sleep sleep_;
  const std::uint64_t armed_by_;  // armed_at_ is before, this is behind
  std::uint64_t slept_from_ = 0;  // ticks; 0: it has not slept
  int ahead_ = kNoBell;
  bool last_ = false;
};

// Arm, look, sleep.  A nap comes first.
bool EpollSet::WaitCall::Sleep() {
  int n = kOnlyBell;
  int ahead = kNoBell;
  leave_->Owe();
  // Arming the timer takes some microseconds.  What comes meanwhile needs no
  // kick: the bell is armed behind it.
  timed_ = set_->sleepers_.load(std::memory_order_relaxed) == 0 &&
           limits_.Brief() &&
           set_->timer_.Ends(set_->fd_, limits_.deadline_ns());
  {
    Armed armed(this);
    n = LookThenSleep(&armed, &limits_);
    if (n == 0 && armed.MayDeepen()) {
      armed.Deepen();
      n = LookThenSleep(&armed, &limits_);
    }
    error_ = errno;
    if (n == 0 && armed.naps()) {
      // The time is over, and only the look at the lanes is left: a nap may
      // have missed a message.
      limits_.Expire();
      asked_ = true;
      n = kOnlyBell;
    }
    ahead = armed.Woken(n);
  }
  if (Gone()) return Close();
  if (result_ > 0) return true;
  if (n > 0) {
    return End(set_->WithLanes(out_, n, capacity_, ahead, moves_, leave_));
  }
  if (n != kOnlyBell && (n != 0 || limits_.Left() == 0)) return End(n);
  spin_.Restart();
  return false;
}

// A wait that reports `count` events leaves nothing behind for which no thread
// is awake.
void EpollSet::EndWait(int count, Leave* leave) {
  if (count > 1 && tls_spin.earned) tls_spin.account.Beside(count - 1);
  // A thread that leaves work behind wakes the next thread.
  if (count > 0 && ready_count_.load(std::memory_order_seq_cst) > 0) {
    Registry::KickSleepers(this);
    leave->Looked();
  }
  // A woken thread looks itself at what has come to streams that are the
  // kernel's.
  if (leave->unlooked && HasUser() && !AnyUnread() && NothingBehind()) {
    leave->Looked();
  }
  WatchAway();
}

[[gnu::always_inline]] inline int EpollSet::WaitCall::Finish() {
  set_->EndWait(result_, leave_);
  return Result();
}

int EpollSet::Wait(Leave* leave, epoll_event* out, int capacity,
                   std::int64_t timeout_ns, const sigset_t* mask) {
  if (!MayHold(capacity)) return real::epoll_wait(fd_, out, capacity, 0);
  if (Null(out)) {
    errno = EFAULT;
    return -1;
  }
  WaitCall call(this, leave, out, capacity, timeout_ns, mask);
  return call.Run();
}

}  // namespace rcsock::posix
