#ifndef RCSOCK_LIB_RENDEZVOUS_CONNECTION_H_
#define RCSOCK_LIB_RENDEZVOUS_CONNECTION_H_

#include <atomic>
#include <memory>
#include <utility>

#include "lib/base/policy.h"
#include "lib/lane/rdma/rdma_lane.h"
#include "lib/rendezvous/cm.h"
#include "lib/rendezvous/device.h"
#include "lib/rendezvous/rendezvous.h"

namespace rcsock::rendezvous {

class RdmaMeeting;

// One id and the lane on it, from the handshake until the stream has given the
// lane back.
//
// Threads: the conductor's; once that has ended, whoever returns the lane.
class Connection : public CmOwner,
                   public std::enable_shared_from_this<Connection> {
 public:
  Connection(Core* core, RdmaMeeting* meeting, const base::Fabric& fabric)
      : core_(core), meeting_(meeting), fabric_(fabric) {}
  ~Connection() override;

  rdma_cm_id* id() const { return id_.get(); }
  lane::rdma::RdmaLane* lane() const { return lane_; }
  void SetId(verbs::Id id);
  // For the id's rdma_connect or rdma_accept.
  rdma_conn_param Parameters(const void* data, std::size_t length) const;
  // A lane on the id, whose completions have `cookie`.  False: *why.
  bool MakeLane(int bell, void* cookie, base::Reason* why);
  // rdma_connect or rdma_accept has been called; its outcome is known.
  void BeginHandshake() { handshake_ = true; }
  // What has come of an rdma_connect off the conductor: 0 or an errno.
  void ConnectReturned(int error);
  // It has not been called, and will not be.
  void EndHandshake() { handshake_ = false; }
  void SetConnected();
  // Its turn to connect (Rdma::TakeTurn), until it has connected or failed.
  void SetTurn() { turn_ = true; }
  bool TakeTurn() { return std::exchange(turn_, false); }
  // The kernel's part of iWARP makes who destroys an id wait for the end of its
  // handshake.
  bool MustPark() const;
  // Its device has gone: no event comes any more.
  bool gone() const { return gone_; }
  // The lane has been given back, and nobody uses the connection any more.
  // True: its QP is in error, the peer is told, and the device has still to
  // report LAST_WQE_REACHED.  The connection should be destroyed after that.
  bool LeaveLane();
  void LastWqeReached();
  // The report did not come in time.
  void NotReported();
  // Nobody uses it from now on but the thread that calls End, which may block.
  void BeginEnd();
  void End();
  // The meeting is over.
  void LeaveMeeting() { meeting_ = nullptr; }
  // The lane, for the stream that has it from now on.
  std::unique_ptr<lane::Lane> Deliver(std::shared_ptr<Seeker> seeker);
  // After the stream has said where its completions are to go.
  void StopDraining();
  // The stream has returned it; any thread, before the destructor.
  void TakeBack(std::unique_ptr<lane::Lane> lane) {
    held_ = std::move(lane);
    returned_.store(true, std::memory_order_release);
  }
  // The lane is dead; whoever has it is told, once.
  void Lost(base::Reason why);
  void OnCm(const CmEvent& event) override;

 private:
  void GiveTurn();

  Core* const core_;
  RdmaMeeting* meeting_;
  const base::Fabric fabric_;
  std::shared_ptr<Device> device_;
  verbs::Id id_;
  std::unique_ptr<lane::Lane> held_;  // while no stream has it
  lane::rdma::RdmaLane* lane_ = nullptr;
  bool handshake_ = false;
  bool connected_ = false;
  bool established_ = false;  // rdma_cm has said so
  bool turn_ = false;
  lane::Source* drained_ = nullptr;  // counted with the conductor's sources
  std::atomic<bool> returned_{false};
  bool lost_ = false;
  bool gone_ = false;
  bool ending_ = false;
  std::shared_ptr<Seeker> seeker_;
};

// The conductor ends, and whoever stops it can't wait for the kernel, which is
// at work on the id: the connection is never destroyed.
inline void LeaveToTheKernel(std::shared_ptr<Connection> connection) {
  static_cast<void>(new std::shared_ptr<Connection>(std::move(connection)));
}

}  // namespace rcsock::rendezvous

#endif  // RCSOCK_LIB_RENDEZVOUS_CONNECTION_H_
