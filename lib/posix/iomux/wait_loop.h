#ifndef RCSOCK_LIB_POSIX_IOMUX_WAIT_LOOP_H_
#define RCSOCK_LIB_POSIX_IOMUX_WAIT_LOOP_H_

#include <signal.h>

#include <cerrno>
#include <cstdint>

#include "lib/base/barrier.h"
#include "lib/base/clock.h"
#include "lib/posix/thread/signals.h"
#include "lib/posix/thread/wait_mask.h"

// What epoll_wait, poll and select have in common.  docs/readiness.md says
// where they differ.
namespace rcsock::posix {

// One part of a sleep.
struct SleepPart {
  std::int64_t ns;  // < 0: no end
  bool last;        // the time of the wait is over behind it
};

// What ends a wait that finds nothing: its time, or a handler.
class WaitLimits {
 public:
  // `handlers`: ThreadSignals::any at the start of the wait.
  WaitLimits(std::int64_t timeout_ns, const sigset_t* mask,
             std::uint32_t handlers)
      : timeout_ns_(timeout_ns), handlers_(handlers), mask_(mask) {}

  // False: the call looks once, and does not wait.
  bool Waits() const { return timeout_ns_ != 0; }
  // Returns how much time is left; < 0: the wait has no end.  The first call
  // starts the clock.  So a wait whose first look finds something reads no
  // clock.
  std::int64_t Left() {
    if (timeout_ns_ <= 0) return timeout_ns_;
    const std::uint64_t now = base::NowNs();
    if (deadline_ns_ == 0) {
      deadline_ns_ = now + static_cast<std::uint64_t>(timeout_ns_);
    }
    return now >= deadline_ns_ ? 0
                               : static_cast<std::int64_t>(deadline_ns_ - now);
  }
  void StartClock() {
    if (deadline_ns_ == 0) Left();
  }
  // The whole wait is no longer than a nap.
  bool Brief() const { return timeout_ns_ >= 0 && timeout_ns_ <= base::kNapNs; }
  // 0: the wait has no end, or the clock has not been started.
  std::uint64_t deadline_ns() const { return deadline_ns_; }
  // The time is over.  What follows is the last look.
  void Expire() { timeout_ns_ = 0; }

  // The next part of a sleep.  A nap lasts kNapNs at most.
  SleepPart NextPart(bool naps) {
    const std::int64_t left = Left();
    const bool brief = left >= 0 && left <= base::kNapNs;
    return {naps && !brief ? base::kNapNs : left, brief};
  }

  // Whether a handler has run that ends the wait.
  bool Interrupted() const { return tls_signals.any != handlers_; }
  std::uint32_t handlers() const { return handlers_; }
  // Blocks the signals of the mask.  A handler that ran before this ran before
  // the wait.
  void BlockMask() {
    if (mask_.Block()) handlers_ = tls_signals.any;
  }
  // Whether the thread may spin.
  bool MaskInForce() const { return mask_.InForce(); }
  const sigset_t* mask() const { return mask_.get(); }

 private:
  std::int64_t timeout_ns_;
  std::uint64_t deadline_ns_ = 0;
  std::uint32_t handlers_;
  WaitMask mask_;
};

// Looks, spins and sleeps until the call is over.  A Call has these members:
//
//   bool Look();          a look; it returns whether the call is over
//   bool TimeOut();       the time is over; returns whether the call is, or the
//                         next look is the last
//   bool Spin();          false: the thread has spun for long enough
//   bool Sleep();         arms, looks and sleeps; returns whether it is over
//   bool Fail(int error);
template <class Call>
[[gnu::always_inline]] inline void WaitLoop(Call* call, WaitLimits* limits) {
  while (!call->Look()) {
    if (limits->Left() == 0) {
      // The thread may have lost its CPU for longer than the wait's time.
      if (call->TimeOut()) return;
      continue;
    }
    limits->BlockMask();
    if (limits->Interrupted()) {
      call->Fail(EINTR);
      return;
    }
    if (call->Spin()) continue;
    if (call->Sleep()) return;
  }
}

// The look of a thread that has armed, and then its sleep (I-SLEEP-1).  Returns
// what the kernel does, or kFound.  Armed has armed.  It disarms when it ends,
// on cancellation too.  It has these members:
//
//   static constexpr int kFound;
//   bool Look();                        returns whether there is something
//   bool naps() const;                  whether it has armed for a nap only
//   int Sleep(const SleepPart& part);   asks the kernel
template <class Armed>
[[gnu::always_inline]] inline int LookThenSleep(Armed* armed,
                                                WaitLimits* limits) {
  if (armed->Look()) return Armed::kFound;
  if (limits->Interrupted()) {
    errno = EINTR;
    return -1;
  }
  return armed->Sleep(limits->NextPart(armed->naps()));
}

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_IOMUX_WAIT_LOOP_H_
