#ifndef RCSOCK_LIB_BASE_PROCESS_LATCH_H_
#define RCSOCK_LIB_BASE_PROCESS_LATCH_H_

#include <atomic>
#include <cstdint>

#include "lib/base/latch.h"

namespace rcsock::base {

// The latches of which a process has one, so that all its threads meet at them.
enum class ProcessLatchOf : std::uint8_t {
  kInterest,   // the registrations with epoll sets
  kConductor,  // the conductor's turns
  kTables,     // the conductor's tables, and what is posted to it
  kCount,
};

// How often each has been taken. Written by its holder.
inline constinit std::atomic<std::uint64_t>
    process_latches_taken[static_cast<int>(ProcessLatchOf::kCount)] = {};

// A latch of which a process has one. It counts how often it is taken: a
// message on a lane is to take none (tests/bench/latches_test.sh).
class RC_CAPABILITY("latch") ProcessLatch : public Latch {
 public:
  constexpr explicit ProcessLatch(ProcessLatchOf which,
                                  LatchRank rank = LatchRank::kNone)
      : Latch(rank), which_(which) {}

  void lock() RC_ACQUIRE() {
    Latch::lock();
    Count();
  }
  bool try_lock() RC_TRY_ACQUIRE(true) {
    const bool locked = Latch::try_lock();
    if (locked) Count();
    return locked;
  }

 private:
  void Count() {
    auto& taken = process_latches_taken[static_cast<int>(which_)];
    taken.store(taken.load(std::memory_order_relaxed) + 1,
                std::memory_order_relaxed);
  }

  const ProcessLatchOf which_;
};

}  // namespace rcsock::base

#endif  // RCSOCK_LIB_BASE_PROCESS_LATCH_H_
