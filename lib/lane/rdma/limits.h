#ifndef RCSOCK_LIB_LANE_RDMA_LIMITS_H_
#define RCSOCK_LIB_LANE_RDMA_LIMITS_H_

#include <cstdint>

namespace rcsock::lane::rdma {

// What a device can do, and what its lanes need.
struct Limits {
  bool iwarp = false;
  std::uint32_t entries = 0;     // of one CQ
  std::uint32_t receives = 0;    // of one SRQ; 0: the device has none
  std::uint32_t send_depth = 0;  // WRs of one QP's send queue
  // A device in software. Its provider keeps no account of the events that are
  // fetched, so they may stay in the channel until many are read at once. Its
  // QP takes a receive from an SRQ only for a message that has come, so no
  // receive is lost with the QP.
  bool lazy_events = false;
};

// The most of Limits::send_depth, and the least. A Post asks for 36 free places
// (kHeadroom and kPostWrs), and must find them while others are in flight.
constexpr std::uint32_t kSendDepth = 128;
constexpr std::uint32_t kLeastSendDepth = 48;
// Receives that one lane's peer can have outstanding: its messages, and its
// credits with an immediate (QpLane) that this end has not drained.
constexpr std::uint32_t kReceivesPerLane = 40;
// If the device has no shared receive queues, each lane has a queue of its own,
// and posts this many receives again at a time. Intel's E810 and X722 have
// none.
constexpr std::uint32_t kOwnBatch = 8;
constexpr std::uint32_t kOwnReceives = kReceivesPerLane + kOwnBatch;

}  // namespace rcsock::lane::rdma

#endif  // RCSOCK_LIB_LANE_RDMA_LIMITS_H_
