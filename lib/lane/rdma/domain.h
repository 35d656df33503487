#ifndef RCSOCK_LIB_LANE_RDMA_DOMAIN_H_
#define RCSOCK_LIB_LANE_RDMA_DOMAIN_H_

#include <memory>

#include "lib/base/reason.h"
#include "lib/lane/board.h"
#include "lib/lane/poller.h"
#include "lib/lane/rdma/offer.h"
#include "lib/lane/rdma/pace.h"
#include "lib/verbs/verbs.h"

namespace rcsock::lane::rdma {

class RdmaLane;

// One device of this process: its PD, the registered slabs, and pollers that
// the bells share. Made on first use for a context that librdmacm owns, and
// kept until the device goes.
//
// Threads: the conductor's, unless said otherwise.
class Domain : public std::enable_shared_from_this<Domain> {
 public:
  static std::shared_ptr<Domain> Make(ibv_context* context, Board* board,
                                      verbs::Error* error);
  virtual ~Domain() = default;
  virtual ibv_context* context() const = 0;
  virtual bool iwarp() const = 0;
  // Makes a lane, with a QP on `id`, and CQs and SRQ of the poller of `bell`,
  // or of another poller if need be. Null: *why says whether memory, QPs or
  // MEMLOCK have run out, and *error is for the log.
  virtual std::unique_ptr<RdmaLane> CreateLane(rdma_cm_id* id, int bell,
                                               base::Reason* why,
                                               verbs::Error* error) = 0;
  // How large the receive rings of lanes made from now on are at first, and how
  // large they may grow. The size includes slots and head line. Both are
  // rounded up to powers of two from 16 KiB to 8 MiB. By default 16 KiB, on
  // iWARP 12 KiB, and 8 MiB.
  virtual void SetRingBytes(std::size_t first, std::size_t most) = 0;
  // How lanes made from now on divide their work. The default depends on the
  // device.
  virtual void SetPace(const Pace& pace) = 0;
  virtual Pace pace() const = 0;
  // The poller of a bell, made if need be. Null: it could not be made.
  virtual Source* source(int bell) = 0;
  // From now on small sends may wait for a write to complete, or for
  // FlushDeferred(). `fn` is called when a send begins to wait and none waited
  // before. Any thread calls `fn`, with latches held. `fn` arranges that
  // FlushDeferred() is called within Pace::flush_us.
  virtual void SetFlushTimer(void (*fn)(void*), void* arg) = 0;
  virtual void FlushDeferred() = 0;  // any thread
  // The device has failed or gone: every lane on it is dead.
  virtual void DeviceLost() = 0;
  // The device reports SRQ_LIMIT_REACHED.
  virtual void OnSrqLimit(const ibv_srq* srq) = 0;
  // Counts, for tests and statistics; any thread.
  struct Counts {
    std::uint32_t lanes;
    std::uint64_t pinned;  // bytes registered
  };
  virtual Counts counts() const = 0;
};

}  // namespace rcsock::lane::rdma

#endif  // RCSOCK_LIB_LANE_RDMA_DOMAIN_H_
