#ifndef RCSOCK_LIB_LANE_RDMA_RDMA_LANE_H_
#define RCSOCK_LIB_LANE_RDMA_RDMA_LANE_H_

#include "lib/lane/lane.h"
#include "lib/lane/rdma/domain.h"

namespace rcsock::lane::rdma {

// One end of a stream on a Reliable Connection. The rendezvous calls the
// functions of this class, on the conductor's thread, before the stream has the
// lane. The rest is Lane's.
//
// The id outlives the lane. The lane destroys its QP (rdma_destroy_qp), the
// rendezvous the id.
class RdmaLane : public Lane {
 public:
  // What the peer needs to write to this end.
  virtual Offer offer() const = 0;
  // What this end needs to write to the peer. The connecting end has it from
  // REP, the other end from READY.
  virtual void SetPeer(const Offer& offer) = 0;
  // The cookie of this lane's completions on the board. Set before SetNotify.
  virtual void SetCookie(void* cookie) = 0;
  // What READY carries, of this end and of the peer. Set before either is sent.
  virtual void SetReadyMacs(const ReadyMac& mine, const ReadyMac& theirs) = 0;
  // The connection is established, and this end's stream adopted. Tells the
  // peer, with this end's offer; the peer posts nothing before. False: the lane
  // is dead.
  virtual bool SendReady() = 0;
  // Whether the peer's READY has come. A completion kCompletionRx tells when to
  // look.
  virtual bool PeerReady() = 0;
  // Writes something that is no news to the peer.
  //
  // siw loses what comes while its rdma_accept is still at work, until more
  // comes.
  virtual void Nudge() {}
  // Calls `fn` once, at the next Post. The caller holds the tx latch, as for
  // Post.
  virtual void OnNextPost(void (*fn)()) = 0;
  // The QP may receive from now on: rdma_accept is about to be called.
  virtual void MayReceive() = 0;
  // The QP is connected.
  virtual void Connected() = 0;
  // After Freeze: whether the device has still to report LAST_WQE_REACHED for
  // the QP. Until then the QP may hold a receive of its shared queue, which
  // goes with the QP. So the thread that destroys the lane waits for the report
  // first, within a bound.
  virtual bool OwesLastWqe() const = 0;
  virtual void LastWqeReached() = 0;
  // The name of the lane's device.
  virtual const char* device() const = 0;
  // Bytes registered for the lane. The caller holds both latches.
  virtual std::size_t Pinned() const { return 0; }
  // rdma_cm says that the connection or its device is gone. Any thread may call
  // it.
  virtual void Lost(base::Reason reason) = 0;
};

}  // namespace rcsock::lane::rdma

#endif  // RCSOCK_LIB_LANE_RDMA_RDMA_LANE_H_
