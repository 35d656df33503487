#ifndef RCSOCK_LIB_LANE_RDMA_QP_LANE_PARTS_H_
#define RCSOCK_LIB_LANE_RDMA_QP_LANE_PARTS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "lib/lane/rdma/memory.h"
#include "lib/lane/rdma/pace.h"
#include "lib/lane/rdma/rdma_lane.h"
#include "lib/lane/rdma/rdma_poller.h"
#include "lib/lane/rdma/sleepers.h"

namespace rcsock::lane::rdma {

class Deferred;

// What a lane gets from its domain.
struct QpLaneParts {
  std::shared_ptr<Domain> domain;
  RdmaPoller* poller = nullptr;
  CqSet* set = nullptr;
  Sleepers::Words* words = nullptr;
  Memory* memory = nullptr;
  Deferred* deferred = nullptr;
  std::shared_ptr<std::atomic<std::uint32_t>> lanes;  // those of the domain
  rdma_cm_id* id = nullptr;                           // with the lane's QP
  Block rx;
  std::unique_ptr<Receives> receives;  // null: the set has them
  PinCount queue;                      // for the QP
  std::uint32_t send_depth = 0;
  std::uint32_t inline_bytes = 0;
  std::size_t most_ring = 0;
  bool iwarp = false;
  bool routed = false;  // see Chain::Data
  Sink* sink = nullptr;
  Pace pace = kSoftwarePace;
  bool reports_last_wqe = false;
  bool software = false;
};

}  // namespace rcsock::lane::rdma

#endif  // RCSOCK_LIB_LANE_RDMA_QP_LANE_PARTS_H_
