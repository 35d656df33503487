#ifndef RCSOCK_LIB_BASE_BARRIER_H_
#define RCSOCK_LIB_BASE_BARRIER_H_

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>

namespace rcsock::base {

// Dekker's argument needs a full fence on both sides: each stores its own word,
// fences, then looks at the other's. Where one side is a data path and the
// other is about to sleep, membarrier(2) lets the sleeper pay for both. It
// makes every running thread of the registered processes execute a full fence.
// So the data path needs only to keep the compiler from reordering.

// What this process could register for. InitBarriers sets it at start, and
// again in a child of fork. A later filter of system calls may take it away.
struct Barriers {
  std::atomic<bool> threads{false};    // among the threads of this process
  std::atomic<bool> processes{false};  // among registered processes
};
inline constinit Barriers barriers;

// A thread calls it if the kernel refuses its barrier among processes: from now
// on no sleep on a lane can be trusted.
using BarriersLost = void (*)();
extern constinit BarriersLost barriers_lost;

inline void InitBarriers() {
  const int saved = errno;
  barriers.threads.store(
      ::syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0,
                0) == 0,
      std::memory_order_relaxed);
  barriers.processes.store(
      ::syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0,
                0) == 0,
      std::memory_order_relaxed);
  errno = saved;
}

// From now on no thread makes a barrier.
inline void ForgetBarriers() {
  barriers.threads.store(false, std::memory_order_relaxed);
  barriers.processes.store(false, std::memory_order_relaxed);
}

// The longest sleep that begins without the heavy fence. A message that the
// sleeper misses is found when the sleep ends by itself. The sleep ends after
// the next tick of a busy processor: a timer that is due before costs another
// interrupt.
constexpr std::int64_t kNapNs = 5'000'000;

inline void FullFence() { std::atomic_thread_fence(std::memory_order_seq_cst); }

// The sleeper's side. Always a full fence in this thread. If the process has
// registered, also in the other threads or processes.
inline void HeavyFenceThreads() {
  FullFence();
  if (!barriers.threads.load(std::memory_order_relaxed)) return;
  const int saved = errno;
  if (::syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) != 0) {
    barriers.threads.store(false, std::memory_order_relaxed);
  }
  errno = saved;
}
inline void HeavyFenceProcesses() {
  FullFence();
  if (!barriers.processes.load(std::memory_order_relaxed)) return;
  const int saved = errno;
  if (::syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL_EXPEDITED, 0, 0) != 0) {
    ForgetBarriers();
    if (barriers_lost != nullptr) barriers_lost();
  }
  errno = saved;
}

// The data path's side. Requires that the other side's fence is the heavy one.
inline void LightFence() {
  std::atomic_signal_fence(std::memory_order_seq_cst);
}

}  // namespace rcsock::base

#endif  // RCSOCK_LIB_BASE_BARRIER_H_
