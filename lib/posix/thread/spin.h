#ifndef RCSOCK_LIB_POSIX_THREAD_SPIN_H_
#define RCSOCK_LIB_POSIX_THREAD_SPIN_H_

#include <sched.h>

#include <cstdint>

#include "lib/base/clock.h"
#include "lib/base/config.h"
#include "lib/base/latch.h"
#include "lib/base/spin_budget.h"
#include "lib/posix/thread/signals.h"

namespace rcsock::posix {

using base::SpinBudget;
using base::tls_spin;

// What the first spin of a thread needs.
inline void BeginThread() {
  const base::Config& config = base::GetConfig();
  if (tls_spin.us == ~0u) tls_spin.Begin(config.spin_us, config.spin_earned);
}

// The spin of one wait:
//
// Spinner spin; while (!ready && spin.Go()) ...; if (ready) spin.Found();
class Spinner {
 public:
  Spinner() = default;
  ~Spinner() { End(false); }
  Spinner(const Spinner&) = delete;
  Spinner& operator=(const Spinner&) = delete;
  // Begins another wait's spin.
  void Restart() {
    End(false);
    turns_ = 0;
  }
  // The caller has found something on a lane.  A spin that ends without this
  // has found nothing, whatever else has ended it.
  void Found() {
    if (start_ != 0) {
      End(true);
    } else if (tls_spin.earned && turns_ > kFewTurns) {
      tls_spin.account.Quick(1);
    }
  }
  // For a caller whose look is long: it makes only the turns that the budget
  // allows.
  struct LongLooks {};
  explicit Spinner(LongLooks) : turns_(kQuickTurns) {}
  void RestartForLongLooks() {
    Restart();
    turns_ = kQuickTurns;
  }
  // The turns that a wait may make without the clock, before it spins or
  // sleeps.
  static int QuickTurns() { return tls_spin.us > 2 ? 2 * kQuickTurns : 0; }
  // One turn.  Returns false if the time is up, if a signal waits, or if
  // another thread wants this CPU.  That thread may belong to the process that
  // the spinner waits for.
  bool Go() {
    return Go([] { ::sched_yield(); });
  }
  // Go() with another way to yield.
  template <class Yield>
  bool Go(Yield&& yield) {
    // An answer within a microsecond needs no clock and no `pause`, which takes
    // 140 cycles on some processors.
    ++turns_;
    if (tls_spin.us == 0) {
      // The caller has looked, and sleeps at once.  The end of a hold takes the
      // clock.
      if (!tls_spin.held) return false;
    } else if (turns_ < kQuickTurns &&
               (turns_ < kFewTurns || tls_spin.us > 2)) {
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
      End(false);
      return false;
    }
    if (now >= yield_at_) {
      // A long yield has let another thread run.  Spinning on would starve it,
      // and more such yields would starve this thread (SpinBudget::Yielded).
      yield();
      last_ = base::Ticks();
      if (tls_spin.Yielded(last_ - now, last_)) {
        End(false);
        return false;
      }
      yield_at_ = last_ + kYieldEveryUs * base::ticks_per_us;
    }
    return true;
  }

  // Learns from the sleep after a spin.  `since`: base::Ticks() at the sleep's
  // start.  Ticks, since without a vDSO the clock is a system call.  `came`:
  // something on a lane has ended the sleep.
  static void Slept(std::uint64_t since, bool came) {
    BeginThread();
    tls_spin.Slept(base::Ticks() - since, came, base::GetConfig().spin_us);
  }

 private:
  static constexpr int kQuickTurns = 200;
  // For a thread that has given up spinning, or must not spin.  A look may cost
  // a drain of a completion queue.
  static constexpr int kFewTurns = 3;
  static constexpr std::uint64_t kPureUs = 10;
  static constexpr std::uint64_t kYieldEveryUs = 3;
  // Counts a spin once.  A spin that was not allowed is none.
  void End(bool found) {
    if (start_ == 0) return;
    if (budget_ != 0) {
      tls_spin.Spun(last_ - start_, found, base::GetConfig().spin_us);
    }
    start_ = 0;
  }
  [[gnu::noinline]] void Start(std::uint64_t now) {
    BeginThread();
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

#endif  // RCSOCK_LIB_POSIX_THREAD_SPIN_H_
