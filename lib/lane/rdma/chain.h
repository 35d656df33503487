#ifndef RCSOCK_LIB_LANE_RDMA_CHAIN_H_
#define RCSOCK_LIB_LANE_RDMA_CHAIN_H_

#include <cstdint>

#include "lib/lane/rdma/qp_lane.h"

namespace rcsock::lane::rdma {

// Writes that go out together, with one doorbell.  Made, filled and posted
// under the lane's post_latch_.
class Chain {
 public:
  explicit Chain(QpLane* lane) : lane_(*lane) {}

  // One more message, whose bytes lie in the mirror.
  void Message(const ring::Placement& place);
  // The credit word; with a wake-up or without.
  void Credit(std::uint64_t word, bool wake);
  bool empty() const { return count_ == 0; }
  bool Full() const { return count_ + 4 > kMost; }
  void Post();

 private:
  static constexpr std::uint32_t kMost = 24;

  void Write(const std::byte* from, std::uint32_t length, std::uint64_t to);
  void Immediate(std::byte* staged, std::uint32_t imm);

  QpLane& lane_;
  std::uint32_t count_ = 0;
  ibv_send_wr wrs_[kMost];
  ibv_sge sges_[kMost];
};

}  // namespace rcsock::lane::rdma

#endif  // RCSOCK_LIB_LANE_RDMA_CHAIN_H_
