#ifndef RCSOCK_LIB_BASE_BARRIER_H_
#define RCSOCK_LIB_BASE_BARRIER_H_

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>

namespace rcsock::base {

// Dekker's argument (store mine, fence, look at yours; and so the other side)
// wants a full fence on both sides.  Where one side is a data path and the
// other is about to sleep, membarrier(2) lets the sleeper pay for both: it
// makes every running thread of the processes that have registered execute a
// full fence, so the data path needs only to keep the compiler from reordering.

// What this process could register for; set by InitBarriers, and in a child of
// fork again.  A filter of system calls that comes later may take it away.
struct Barriers {
  std::atomic<bool> threads{false};    // among the threads of this process
  std::atomic<bool> processes{false};  // among registered processes
};
inline constinit Barriers barriers;

// Called by the thread whose barrier among processes is refused from now on: no
// sleep on a lane can be trusted any more.
using BarriersLost = void (*)();
inline constinit BarriersLost barriers_lost = nullptr;

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

// From now on nobody makes one.
inline void ForgetBarriers() {
  barriers.threads.store(false, std::memory_order_relaxed);
  barriers.processes.store(false, std::memory_order_relaxed);
}

// How long a sleep may be that begins without the heavy fence: what it may miss
// it finds when it ends by itself.  Later than the next tick of a busy
// processor: a timer that is due first costs another interrupt.
constexpr std::int64_t kNapNs = 5'000'000;
// So many looks before it take longer than a message is in a store buffer.
constexpr int kNapLooks = 10;

inline void FullFence() { std::atomic_thread_fence(std::memory_order_seq_cst); }

// The sleeper's side.  Always a full fence here; elsewhere too, if registered.
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

// The data path's side, given that the other side's is the heavy one.
inline void LightFence() {
  std::atomic_signal_fence(std::memory_order_seq_cst);
}

}  // namespace rcsock::base

#endif  // RCSOCK_LIB_BASE_BARRIER_H_
