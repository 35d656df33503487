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

// One rdma_cm id and the lane on it, from the handshake until the stream has
// given the lane back.
//
// Threads: the conductor's.  After the conductor's end, the thread that returns
// the lane.
class Connection : public CmOwner,
                   public std::enable_shared_from_this<Connection> {
 public:
  Connection(Core* core, RdmaMeeting* meeting, const base::Fabric& fabric)
      : core_(core), meeting_(meeting), fabric_(fabric) {}
  ~Connection() override;

  rdma_cm_id* id() const { return id_.get(); }
  lane::rdma::RdmaLane* lane() const { return lane_; }
  void SetId(verbs::Id id);
  // Returns the parameters of the id's rdma_connect or rdma_accept.
  rdma_conn_param Parameters(const void* data, std::size_t length) const;
  // Makes a lane on the id.  Its completions carry `cookie`.  Returns false and
  // sets *why if it fails.
  bool MakeLane(int bell, void* cookie, base::Reason* why);
  // rdma_connect or rdma_accept has been called.  Its outcome is not known yet.
  void BeginHandshake() { handshake_ = true; }
  // A helper thread's rdma_connect has returned: 0 or an errno.
  void ConnectReturned(int error);
  // rdma_connect has not been called, and will not be.
  void EndHandshake() { handshake_ = false; }
  void SetConnected();
  // The connection holds a turn to connect (Rdma::TakeTurn) until it has
  // connected or failed.
  void SetTurn() { turn_ = true; }
  bool TakeTurn() { return std::exchange(turn_, false); }
  // Whether destroying the id would wait: on iWARP the kernel waits for the end
  // of the id's handshake.
  bool MustPark() const;
  // The device has gone: no event comes any more.
  bool gone() const { return gone_; }
  // The lane has been given back, and nothing uses the connection any more.
  // Returns true if the device has still to report LAST_WQE_REACHED.  The QP is
  // in error then, and the peer knows.  The caller should destroy the
  // connection after that report.
  bool LeaveLane();
  void LastWqeReached();
  // The report of LAST_WQE_REACHED did not come in time.
  void NotReported();
  // From BeginEnd on only one thread uses the connection: it calls End, which
  // may block.
  void BeginEnd();
  void End();
  // The meeting is over.
  void LeaveMeeting() { meeting_ = nullptr; }
  // Returns the lane to the stream that owns it from now on.
  std::unique_ptr<lane::Lane> Deliver(std::shared_ptr<Seeker> seeker);
  // Called after the stream has said where the lane's completions are to go.
  void StopDraining();
  // The stream has returned the lane.  Any thread may call this, before the
  // destructor.
  void TakeBack(std::unique_ptr<lane::Lane> lane) {
    held_ = std::move(lane);
    returned_.store(true, std::memory_order_release);
  }
  // The lane is dead.  Tells its meeting or its stream, once.
  void Lost(base::Reason why);
  void OnCm(const CmEvent& event) override;

 private:
  void GiveTurn();

  Core* const core_;
  RdmaMeeting* meeting_;
  const base::Fabric fabric_;
  std::shared_ptr<Device> device_;
  verbs::Id id_;
  std::unique_ptr<lane::Lane> held_;  // null while a stream has it
  lane::rdma::RdmaLane* lane_ = nullptr;
  bool handshake_ = false;
  bool connected_ = false;
  bool established_ = false;  // rdma_cm has said so
  bool turn_ = false;
  lane::Source* drained_ = nullptr;  // the conductor drains it for this end
  std::atomic<bool> returned_{false};
  bool lost_ = false;
  bool gone_ = false;
  bool ending_ = false;
  std::shared_ptr<Seeker> seeker_;
};

// Never destroys the connection: the kernel is at work on its id.  The
// conductor ends, and the thread that stops it cannot wait for the kernel.
inline void LeaveToTheKernel(std::shared_ptr<Connection> connection) {
  static_cast<void>(new std::shared_ptr<Connection>(std::move(connection)));
}

}  // namespace rcsock::rendezvous

#endif  // RCSOCK_LIB_RENDEZVOUS_CONNECTION_H_
