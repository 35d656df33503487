#ifndef RCSOCK_LIB_LANE_SHM_TOUCHED_H_
#define RCSOCK_LIB_LANE_SHM_TOUCHED_H_

#include <atomic>
#include <cstdint>

namespace rcsock::lane::shm {

// Counts the memory of the rings that this process sends by, over all its lanes
// in shared memory. A ring counts as far as it has been written to, since a
// page that was touched stays.
class Touched {
 public:
  // How much of its ring a lane keeps, however long it is idle.
  static constexpr std::uint32_t kIdle = 32 * 1024;

  static std::uint64_t Total() {
    return total_.load(std::memory_order_relaxed);
  }
  // A lane has touched more, or is closed.
  static void Add(std::int64_t bytes) {
    total_.fetch_add(static_cast<std::uint64_t>(bytes),
                     std::memory_order_relaxed);
  }
  // The sending thread calls `grown` when a lane has touched more than an idle
  // lane keeps. The stream's latch is held.
  static void SetHook(void (*grown)()) {
    grown_.store(grown, std::memory_order_release);
  }
  static void Grown() {
    if (void (*grown)() = grown_.load(std::memory_order_acquire)) grown();
  }

 private:
  static inline constinit std::atomic<std::uint64_t> total_{0};
  static inline constinit std::atomic<void (*)()> grown_{nullptr};
};

}  // namespace rcsock::lane::shm

#endif  // RCSOCK_LIB_LANE_SHM_TOUCHED_H_
