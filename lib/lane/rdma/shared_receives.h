#ifndef RCSOCK_LIB_LANE_RDMA_SHARED_RECEIVES_H_
#define RCSOCK_LIB_LANE_RDMA_SHARED_RECEIVES_H_

#include <cstdint>

#include "lib/lane/rdma/limits.h"
#include "lib/lane/rdma/memory.h"
#include "lib/lane/rdma/receives.h"
#include "lib/verbs/verbs.h"

namespace rcsock::lane::rdma {

// The shared receive queue of one CqSet, and its receives.
//
// Losses. A device may fetch receives from the SRQ for a QP before messages
// come. The device gives them back, as flushed, after the QP has gone into
// error, and then reports LAST_WQE_REACHED (InfiniBand specification, 10.3.1).
// A QP that is destroyed before the report takes its receive with it. The queue
// has spare receives for kBorne such losses. After more losses it is worn: its
// set takes no new lane. When the set's last lane has gone, a new queue
// replaces it.
//
// Threads: the poller's latch covers it.
class SharedReceives {
 public:
  // Makes the queue for so many lanes. srq() stays null if the device turns out
  // to have none. False: *error.
  bool Open(ibv_pd* pd, Memory* memory, const Limits& limits,
            std::uint32_t capacity, verbs::Error* error);
  ibv_srq* srq() const { return srq_.get(); }
  Receives& receives() { return receives_; }
  // Posts the receives that so many lanes may use. False: *error.
  bool PostFor(std::uint32_t lanes, verbs::Error* error);
  void Refill() { receives_.Post(srq_.get()); }

  // A QP was destroyed, and the device had not reported LAST_WQE_REACHED.
  void NoteLost();
  // The device reports SRQ_LIMIT_REACHED: fewer receives are left than the
  // lanes may need.
  void NoteLimit() { lost_ = kBorne + 1; }
  bool worn() const { return lost_ > kBorne; }
  bool losses() const { return lost_ != 0; }
  // Requires that there is no lane. A new queue takes the place of this one.
  // False: *error, and the old queue stays.
  bool Renew(verbs::Error* error);

  // Receives above what the lanes can use. kRefill have been used and wait to
  // be posted, and QPs may have taken as many with them.
  static constexpr std::uint32_t kRefill = 32;
  static constexpr std::uint32_t kSpare = 64;
  static constexpr std::uint32_t kBorne = kSpare - kRefill;

 private:
  std::uint32_t Count(std::uint32_t lanes) const {
    return lanes * kReceivesPerLane + kSpare;
  }

  ibv_pd* pd_ = nullptr;
  Memory* memory_ = nullptr;
  Limits limits_;
  std::uint32_t capacity_ = 0;  // in lanes
  std::uint32_t lost_ = 0;      // receives, at most
  std::uint16_t generation_ = 0;
  bool limit_set_ = false;
  Receives receives_;  // outlives srq_, whose receives have its memory
  verbs::Srq srq_;
};

}  // namespace rcsock::lane::rdma

#endif  // RCSOCK_LIB_LANE_RDMA_SHARED_RECEIVES_H_
