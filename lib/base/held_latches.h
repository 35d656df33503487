#ifndef RCSOCK_LIB_BASE_HELD_LATCHES_H_
#define RCSOCK_LIB_BASE_HELD_LATCHES_H_

#include <atomic>
#include <cstdint>

#include "lib/base/dcheck.h"

namespace rcsock::base {

// The order in which a thread takes latches, if it takes several with a rank
// (I-LATCH-2). A thread takes a latch without a rank last or alone, and then
// none with a rank. Only uring::held_latch comes before all.
enum class LatchRank : std::uint8_t {
  kNone,
  kWait,      // EpollSet::wait_latch_
  kTx,        // Sock::tx_latch
  kRx,        // Sock::rx_latch
  kInterest,  // interest_latch
  kReady,     // EpollSet::ready_latch_
};

#if RC_DCHECK_IS_ON

// The latches with a rank that this thread holds.
struct HeldLatches {
  static constexpr int kRanks = 6;
  std::uint8_t of[kRanks] = {};

  // Returns true if no latch of rank `from`, or of a later rank, is held.
  bool None(LatchRank from) const {
    for (int i = static_cast<int>(from); i < kRanks; ++i) {
      if (of[i] != 0) return false;
    }
    return true;
  }
};
inline thread_local constinit HeldLatches tls_held_latches
    __attribute__((tls_model("initial-exec")));
// Cleared when two threads share thread-local variables (clone() without
// CLONE_SETTLS): then nothing is known of the latches that they hold.
inline constinit std::atomic<bool> held_latches_known{true};

inline bool KnowsHeldLatches() {
  return held_latches_known.load(std::memory_order_relaxed);
}

#endif

// Asserts that this thread holds no latch with a rank, and so may sleep
// (I-LATCH-3).
inline void CheckMaySleep() {
#if RC_DCHECK_IS_ON
  RC_DCHECK(!KnowsHeldLatches() || tls_held_latches.None(LatchRank::kWait));
#endif
}

inline void ForgetHeldLatches() {
#if RC_DCHECK_IS_ON
  held_latches_known.store(false, std::memory_order_relaxed);
#endif
}

}  // namespace rcsock::base

#endif  // RCSOCK_LIB_BASE_HELD_LATCHES_H_
