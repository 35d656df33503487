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
// crossings, so a spin that is long enough to meet the answer pays; one that
// never meets it is given up by halves.
//
// One that loses its CPU to somebody with work of his own costs a whole slice
// of his, milliseconds, or one of each of all those who want that CPU, whereas
// a thread that sleeps is woken at once.  So after such a loss the thread
// sleeps at once for a while (the hold): several times as long as what it has
// lost, so that losses take a small part of the time however many want the CPU,
// and twice as long each time that it happens again soon.
struct SpinBudget {
  std::uint32_t us = ~0u;      // ~0: not set yet; 0 in a hold
  std::uint32_t held_us = 0;   // what `us` is after it
  std::uint64_t hold = 0;      // how long the last one was; in ticks, as these
  std::uint64_t hold_end = 0;  // when it ends, or ended
  bool held = false;

  // Whether there is a hold; ends it when it is over.
  bool Held(std::uint64_t now) {
    if (held && now >= hold_end) {
      held = false;
      us = held_us;
    }
    return held;
  }
  // It has cost so long to be scheduled again, until `now`.
  void Lost(std::uint64_t ticks, std::uint64_t now) {
    // More than a peer needs to answer, less than a slice.
    constexpr std::uint64_t kSliceUs = 100;
    if (ticks > kSliceUs * base::ticks_per_us) Hold(ticks, now);
  }

 private:
  [[gnu::noinline]] void Hold(std::uint64_t lost, std::uint64_t now) {
    constexpr std::uint64_t kLeastUs = 2'000;
    constexpr std::uint64_t kMostUs = 128'000;
    // Of what was lost.
    constexpr std::uint64_t kLeastTimes = 8;
    constexpr std::uint64_t kMostTimes = 32;
    // Whatever was lost: a machine that was stopped says nothing of its load.
    constexpr std::uint64_t kLimitUs = 2'000'000;
    if (held) return;
    const std::uint64_t limit = kLimitUs * base::ticks_per_us;
    lost = std::min(lost, limit);
    const std::uint64_t least = std::min(
        std::max(kLeastUs * base::ticks_per_us, kLeastTimes * lost), limit);
    const std::uint64_t most = std::min(
        std::max(kMostUs * base::ticks_per_us, kMostTimes * lost), limit);
    // (The loss itself is not a time without one.)
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

// One wait's spin:  Spinner spin; while (!ready && spin.Go()) ...;
class Spinner {
 public:
  Spinner() = default;
  // For one whose look is long: no turns but those that the budget allows.
  static Spinner ForLongLooks() {
    Spinner spin;
    spin.turns_ = kQuickTurns;
    return spin;
  }
  // How many turns a wait may make without the clock, before it spins or
  // sleeps.
  static int QuickTurns() { return tls_spin.us > 2 ? 2 * kQuickTurns : 0; }
  // One turn.  False: the time is up, or this CPU is wanted by somebody else
  // (perhaps by the very process that is waited for), or a signal waits.
  bool Go() {
    return Go([] { ::sched_yield(); });
  }
  // The same with another way to yield.
  template <class Yield>
  bool Go(Yield&& yield) {
    // An answer that comes within a microsecond is met without the clock and
    // without `pause`, which takes 140 cycles on some processors.
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
      // A yield that takes long has let somebody run: spinning on would starve
      // him.
      yield();
      last_ = base::Ticks();
      tls_spin.Lost(last_ - now, last_);
      if (last_ - now > kBusyUs * base::ticks_per_us) return false;
      yield_at_ = last_ + kYieldEveryUs * base::ticks_per_us;
    }
    return true;
  }

  // What came of it.  `since`: base::Ticks() when the sleep after the spin
  // began.  (Not the clock: where there is no vDSO that is a system call.)
  static void Slept(std::uint64_t since) {
    const std::uint64_t slept_us = (base::Ticks() - since) / base::ticks_per_us;
    const std::uint32_t most = base::GetConfig().spin_us;
    if (tls_spin.held) return;
    if (slept_us < 10ull * most) {
      // Had both ends spun a little longer, neither would have slept.
      tls_spin.us = most;
    } else if (tls_spin.us > 2) {
      tls_spin.us /= 2;
    }
  }

 private:
  static constexpr int kQuickTurns = 200;
  // For a thread that has given up spinning, or must not: a look may cost a
  // drain of a completion queue.
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
