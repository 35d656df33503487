#ifndef RCSOCK_LIB_LANE_BELL_CPU_H_
#define RCSOCK_LIB_LANE_BELL_CPU_H_

#include <sched.h>

#include <atomic>

#include "lib/lane/poller.h"

namespace rcsock::lane {

// For each bell, 1 more than the CPU of the thread that took the bell last; 0:
// no thread has taken it. A device's interrupts should go to that CPU.
inline constinit std::atomic<int> bell_cpus[kBells] = {};

// The calling thread takes the bell.
inline void NoteBellCpu(int bell) {
  if (bell < 0 || bell >= kBells) return;
  bell_cpus[bell].store(::sched_getcpu() + 1, std::memory_order_relaxed);
}

// -1: not known.
inline int BellCpu(int bell) {
  if (bell < 0 || bell >= kBells) return -1;
  return bell_cpus[bell].load(std::memory_order_relaxed) - 1;
}

// If no thread has taken `bell`, the CPU of `other`'s thread counts for `bell`.
inline void ShareBellCpu(int bell, int other) {
  if (bell < 0 || bell >= kBells || BellCpu(bell) >= 0) return;
  bell_cpus[bell].store(BellCpu(other) + 1, std::memory_order_relaxed);
}

}  // namespace rcsock::lane

#endif  // RCSOCK_LIB_LANE_BELL_CPU_H_
