#ifndef RCSOCK_LIB_LANE_RDMA_QUEUE_BYTES_H_
#define RCSOCK_LIB_LANE_RDMA_QUEUE_BYTES_H_

#include <algorithm>
#include <bit>
#include <cstddef>

namespace rcsock::lane::rdma {

// What the queues of an HCA pin. Its provider allocates them in the process,
// and the kernel counts them against RLIMIT_MEMLOCK. No call returns their
// size: this is what mlx5 takes, and others take about as much or less.
// Software devices have their queues in the kernel, which does not count them.

constexpr std::size_t kQueuePage = 4096;

constexpr std::size_t QueueBytes(std::size_t entries, std::size_t entry) {
  const std::size_t bytes = std::bit_ceil(entries * entry);
  return std::max(bytes, kQueuePage);
}

constexpr std::size_t CqBytes(std::size_t entries) {
  return QueueBytes(std::bit_ceil(entries + 1), 64);
}

// Of receives that have one buffer each.
constexpr std::size_t SrqBytes(std::size_t entries) {
  return QueueBytes(std::bit_ceil(entries + 1), 32);
}

// A request takes as many blocks of 64 bytes as its segments, the longest there
// might be, and its inline data need.
constexpr std::size_t SendQueueBytes(std::size_t requests,
                                     std::size_t inline_bytes) {
  const std::size_t inline_part = (4 + inline_bytes + 15) / 16 * 16;
  return QueueBytes(requests, (128 + inline_part + 63) / 64 * 64);
}

}  // namespace rcsock::lane::rdma

#endif  // RCSOCK_LIB_LANE_RDMA_QUEUE_BYTES_H_
