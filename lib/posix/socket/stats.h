#ifndef RCSOCK_LIB_POSIX_SOCKET_STATS_H_
#define RCSOCK_LIB_POSIX_SOCKET_STATS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "lib/base/reason.h"

namespace rcsock::posix {

class Sock;

// What went over one kind of lane, or over TCP.  Any thread may add.
struct LaneCounts {
  std::atomic<std::uint64_t> streams{0};
  std::atomic<std::uint64_t> tx_bytes{0};
  std::atomic<std::uint64_t> rx_bytes{0};
};
// What the process has counted: of streams that have ended, and of events on
// streams that have not.  Any thread may add.
struct Stats {
  std::atomic<std::uint64_t> streams{0};
  std::atomic<std::uint64_t> promoted{0};
  std::atomic<std::uint64_t> demotions{0};
  std::atomic<std::uint64_t> failovers{0};
  // Streams that were asked to leave an RDMA lane: for hotter streams, for
  // streams that want larger rings, or for being idle with large rings.
  std::atomic<std::uint64_t> evicted_budget{0};
  std::atomic<std::uint64_t> evicted_memory{0};
  std::atomic<std::uint64_t> evicted_idle{0};
  // Bytes that were read ahead, and that a program without rcsock cannot get.
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
// Returns the counts, open streams included, or null without memory.
std::unique_ptr<Stats> CountAll();

// Logs and counts so many lost bytes.
void CountLost(Sock* sock, std::size_t bytes, Stats* in);

// Writes `from` to the file that the configuration names, if any.
void WriteStats(const Stats& from);
// Called in the child of a fork.
void StatsForkChild();

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_SOCKET_STATS_H_
