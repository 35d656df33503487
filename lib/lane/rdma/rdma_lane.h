#ifndef RCSOCK_LIB_LANE_RDMA_RDMA_LANE_H_
#define RCSOCK_LIB_LANE_RDMA_RDMA_LANE_H_

#include "lib/lane/lane.h"
#include "lib/lane/rdma/domain.h"

namespace rcsock::lane::rdma {

// One end of a stream on a Reliable Connection.  What follows is for the
// rendezvous, on the conductor thread, before the stream has the lane; the rest
// is Lane's.
//
// Its id outlives it: the lane destroys its QP (rdma_destroy_qp), the
// rendezvous the id.
class RdmaLane : public Lane {
 public:
  // What the peer needs to write to us.
  virtual Offer offer() const = 0;
  // What we need to write to the peer: the connecting end has it from REP, the
  // other from READY.
  virtual void SetPeer(const Offer& offer) = 0;
  // The cookie of this lane's completions on the board; before SetNotify.
  virtual void SetCookie(void* cookie) = 0;
  // What READY carries, of this end and of the peer: before either is sent.
  virtual void SetReadyMacs(const ReadyMac& mine, const ReadyMac& theirs) = 0;
  // The connection is established and this end's stream adopted: tells the peer
  // (with our offer), who posts nothing before.  False: the lane is dead.
  virtual bool SendReady() = 0;
  // The peer's READY has come (a completion kCompletionRx tells when to look).
  virtual bool PeerReady() = 0;
  // Writes something that tells the peer nothing new.  siw loses what comes
  // while its rdma_accept is still at work, until more comes.
  virtual void Nudge() {}
  // Calls `fn` once, at the next Post; under the tx latch, as that.
  virtual void OnNextPost(void (*fn)()) = 0;
  // Its QP may receive from now on: rdma_accept is about to be called.
  virtual void MayReceive() = 0;
  // Its QP is connected.
  virtual void Connected() = 0;
  // After Freeze: the device has still to report LAST_WQE_REACHED for the QP.
  // Until then the QP may hold a receive of its shared queue, which goes with
  // it: whoever destroys the lane waits for the report first, within a bound.
  virtual bool OwesLastWqe() const = 0;
  virtual void LastWqeReached() = 0;
  // The name of its device.
  virtual const char* device() const = 0;
  // Bytes registered for it; under both latches.
  virtual std::size_t Pinned() const { return 0; }
  // rdma_cm says that the connection or its device is gone.  Any thread.
  virtual void Lost(base::Reason reason) = 0;
};

}  // namespace rcsock::lane::rdma

#endif  // RCSOCK_LIB_LANE_RDMA_RDMA_LANE_H_
