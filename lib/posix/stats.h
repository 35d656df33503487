#ifndef RCSOCK_LIB_POSIX_STATS_H_
#define RCSOCK_LIB_POSIX_STATS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "lib/base/reason.h"

namespace rcsock::posix {

class Sock;

// What the process has counted, of streams that have ended and of what happens
// to those that have not.
struct LaneCounts {
  std::atomic<std::uint64_t> streams{0};
  std::atomic<std::uint64_t> tx_bytes{0};
  std::atomic<std::uint64_t> rx_bytes{0};
};
struct Stats {
  std::atomic<std::uint64_t> streams{0};
  std::atomic<std::uint64_t> promoted{0};
  std::atomic<std::uint64_t> demotions{0};
  std::atomic<std::uint64_t> failovers{0};
  // Streams that were asked to leave an rdma lane: for hotter ones, for others
  // that want larger rings, because they were idle and had large ones.
  std::atomic<std::uint64_t> evicted_budget{0};
  std::atomic<std::uint64_t> evicted_memory{0};
  std::atomic<std::uint64_t> evicted_idle{0};
  // That were read ahead, and that a program without rcsock can't be told of.
  std::atomic<std::uint64_t> lost_bytes{0};
  LaneCounts tcp;
  LaneCounts shm;
  LaneCounts rdma;
  std::atomic<std::uint64_t> reasons[static_cast<int>(base::Reason::kCount)] =
      {};
  void Clear();
  void CopyFrom(const Stats& other);
};
extern Stats stats;
// With the streams that are still open; null when out of memory.
std::unique_ptr<Stats> CountAll();

// So many are lost: said, and counted.
void CountLost(Sock* sock, std::size_t bytes, Stats* in);

// Into the file that the configuration names, if any.
void WriteStats(const Stats& from);
// In the child of fork.
void StatsForkChild();

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_STATS_H_
