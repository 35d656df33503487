#ifndef RCSOCK_LIB_POSIX_SPIN_H_
#define RCSOCK_LIB_POSIX_SPIN_H_

#include <sched.h>

#include <algorithm>
#include <cstdint>

#include "lib/base/clock.h"
#include "lib/base/config.h"
#include "lib/base/latch.h"
#include "lib/posix/signals.h"

namespace rcsock::posix {

// How long this thread spins before it sleeps.  A wake-up costs a hundred ring
// crossings, so a spin that is long enough to meet the answer pays.  A spin
// that never meets it is halved each time.
//
// A spinner that loses its CPU to a thread with work of its own loses a whole
// slice, milliseconds.  If several threads want that CPU, it loses a slice to
// each.  A thread that sleeps is woken at once.  So after such a loss the
// thread sleeps at once for a while: the hold.  The hold is several times the
// loss, so that losses take a small part of the time however many threads want
// the CPU.  It doubles each time that a loss comes again soon.
struct SpinBudget {
  std::uint32_t us = ~0u;      // ~0: not set yet; 0 in a hold
  std::uint32_t held_us = 0;   // what `us` is after the hold
  std::uint64_t hold = 0;      // length of the last hold, in ticks
  std::uint64_t hold_end = 0;  // when the hold ends, or ended, in ticks
  bool held = false;

  // Whether there is a hold.  Ends it when it is over.
  bool Held(std::uint64_t now) {
    if (held && now >= hold_end) {
      held = false;
      us = held_us;
    }
    return held;
  }
  // It has cost `ticks` to be scheduled again, until `now`.
  void Lost(std::uint64_t ticks, std::uint64_t now) {
    // More than a peer needs to answer, and less than a slice.
    constexpr std::uint64_t kSliceUs = 100;
    if (ticks > kSliceUs * base::ticks_per_us) Hold(ticks, now);
  }

 private:
  [[gnu::noinline]] void Hold(std::uint64_t lost, std::uint64_t now) {
    constexpr std::uint64_t kLeastUs = 2'000;
    constexpr std::uint64_t kMostUs = 128'000;
    // Multiples of what was lost.
    constexpr std::uint64_t kLeastTimes = 8;
    constexpr std::uint64_t kMostTimes = 32;
    // The limit for any loss.  A machine that was stopped says nothing of its
    // load.
    constexpr std::uint64_t kLimitUs = 2'000'000;
    if (held) return;
    const std::uint64_t limit = kLimitUs * base::ticks_per_us;
    lost = std::min(lost, limit);
    const std::uint64_t least = std::min(
        std::max(kLeastUs * base::ticks_per_us, kLeastTimes * lost), limit);
    const std::uint64_t most = std::min(
        std::max(kMostUs * base::ticks_per_us, kMostTimes * lost), limit);
    // The time of the loss does not count as a time without loss.
    const bool soon = hold != 0 && now - hold_end <= 4 * hold + lost;
    hold = soon ? std::clamp(2 * hold, least, most) : least;
    hold_end = now + hold;
    held_us = us;
    us = 0;
    held = true;
  }
};
extern thread_local constinit SpinBudget tls_spin
    __attribute__((tls_model("initial-exec")));

// The spin of one wait:
//
// Spinner spin; while (!ready && spin.Go()) ...;
class Spinner {
 public:
  Spinner() = default;
  // For a caller whose look is long: it makes no turns but those that the
  // budget allows.
  static Spinner ForLongLooks() {
    Spinner spin;
    spin.turns_ = kQuickTurns;
    return spin;
  }
  // The turns that a wait may make without the clock, before it spins or
  // sleeps.
  static int QuickTurns() { return tls_spin.us > 2 ? 2 * kQuickTurns : 0; }
  // One turn.  False: the time is up, or a signal waits, or another thread
  // wants this CPU, perhaps of the very process that is waited for.
  bool Go() {
    return Go([] { ::sched_yield(); });
  }
  // Go() with another way to yield.
  template <class Yield>
  bool Go(Yield&& yield) {
    // An answer within a microsecond needs neither the clock nor `pause`, which
    // takes 140 cycles on some processors.
    if (++turns_ < kQuickTurns && (turns_ < kFewTurns || tls_spin.us > 2)) {
      return true;
    }
    base::CpuRelax();
    const std::uint64_t now = base::Ticks();
    if (start_ == 0) {
      Start(now);
    } else {
      tls_spin.Lost(now - last_, now);
    }
    last_ = now;
    if (now - start_ >= budget_ || tls_spin.held || SignalsPending()) {
      return false;
    }
    if (now >= yield_at_) {
      // A long yield has let another thread run.  Spinning on would starve it.
      yield();
      last_ = base::Ticks();
      tls_spin.Lost(last_ - now, last_);
      if (last_ - now > kBusyUs * base::ticks_per_us) return false;
      yield_at_ = last_ + kYieldEveryUs * base::ticks_per_us;
    }
    return true;
  }

  // Learns from the sleep after a spin.  `since`: base::Ticks() at the sleep's
  // start.  Ticks, since without a vDSO the clock is a system call.
  static void Slept(std::uint64_t since) {
    const std::uint64_t slept_us = (base::Ticks() - since) / base::ticks_per_us;
    const std::uint32_t most = base::GetConfig().spin_us;
    if (tls_spin.held) return;
    if (slept_us < 10ull * most) {
      // If both ends had spun a little longer, neither would have slept.
      tls_spin.us = most;
    } else if (tls_spin.us > 2) {
      tls_spin.us /= 2;
    }
  }

 private:
  static constexpr int kQuickTurns = 200;
  // For a thread that has given up spinning, or must not spin.  A look may cost
  // a drain of a completion queue.
  static constexpr int kFewTurns = 3;
  static constexpr std::uint64_t kPureUs = 10;
  static constexpr std::uint64_t kYieldEveryUs = 3;
  static constexpr std::uint64_t kBusyUs = 8;
  [[gnu::noinline]] void Start(std::uint64_t now) {
    if (tls_spin.us == ~0u) tls_spin.us = base::GetConfig().spin_us;
    tls_spin.Held(now);
    start_ = now;
    budget_ = tls_spin.us * base::ticks_per_us;
    yield_at_ = now + kPureUs * base::ticks_per_us;
  }

  std::uint64_t start_ = 0;  // 0: still in the quick turns
  std::uint64_t last_ = 0;   // when it last read the clock
  std::uint64_t budget_ = 0;
  std::uint64_t yield_at_ = 0;
  int turns_ = 0;
};

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_SPIN_H_
