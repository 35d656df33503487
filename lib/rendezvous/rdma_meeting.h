#ifndef RCSOCK_LIB_RENDEZVOUS_RDMA_MEETING_H_
#define RCSOCK_LIB_RENDEZVOUS_RDMA_MEETING_H_

#include <chrono>
#include <memory>

#include "lib/rendezvous/cm.h"
#include "lib/rendezvous/connection.h"
#include "lib/rendezvous/probe.h"
#include "lib/rendezvous/rdma_wire.h"
#include "lib/rendezvous/rendezvous.h"
#include "lib/rendezvous/timer.h"

namespace rcsock::rendezvous {

class Directory;
class Rdma;
class Session;

// How a session looks for its peer on another host.  The connecting end
// connects to the RDMA port that goes with the peer's TCP port.  The accepting
// end waits for that.
//
// Threads: only within a turn of the conductor (Step).
class RdmaMeeting : public std::enable_shared_from_this<RdmaMeeting> {
 public:
  RdmaMeeting(Core* core, Session* session);

  // `local` is the anchor's own address.
  void Begin(const Address& local, std::uint32_t scope, const Address& peer,
             std::uint16_t peer_port);
  // The session is over.  It calls nothing of the meeting any more.
  void Close();
  void Adopted();

  // The accepting end: returns whether it takes a REQ.  A REQ may replace
  // another whose handshake has not ended.  The peer has given up that
  // handshake, for instance because a REP was lost.  Its rejection may not have
  // come yet.
  bool waiting() const {
    return state_ == State::kWaiting || state_ == State::kRequested ||
           state_ == State::kAccepted;
  }
  void OnRequest(verbs::Id id, const Req& req);
  // The connecting end: too many handshakes are under way.
  bool queued() const { return state_ == State::kQueued; }
  void OnTurn();

  void OnCm(const CmEvent& event);
  void OnCompletion();
  void OnLost(base::Reason why);
  void ConnectFailed(const verbs::Error& error);

 private:
  enum class State {
    kStart,
    kQueued,
    kPausing,     // nobody listened or waited: again in a moment
    kSilent,      // the peer's host answers nobody: a longer pause
    kConnecting,  // from resolving the address to the REP
    kWaiting,
    kRequested,  // REQ taken; the stream is to be adopted before REP
    kAccepted,   // REP sent
    kAdopting,   // connected; both streams are to be adopted
    kDone,
  };

  void Queue();
  void TakePlace();
  // Whether the stream may have shared memory and RDMA, and not only RDMA.
  bool Auto() const;
  // Whether the configuration allows the device that `id` is bound to.
  bool MayUse(const rdma_cm_id* id) const;
  void Connect(std::uint16_t port);
  void TryAgain(base::Reason if_late);
  void AskAgain();
  void NoAnswer(base::Reason why);
  void Answered();
  void LeaveConnection();
  void OnConnecting(const CmEvent& event);
  void StartProbe();
  void SendReq();
  void OnRep(const CmEvent& event);
  void OnRejected(const CmEvent& event);
  void SendRep();
  void Reopen();
  // Sets what each end's READY has to prove.  Both nonces are known.
  void AgreeOnReady();
  void Established();
  void Progress();
  void StartNudge();
  void OnNudge();
  void Deliver();
  void Fail(base::Reason why, bool final);
  void StartTimer(std::chrono::milliseconds limit);
  void OnTimer();

  Core* const core_;
  Session* session_;  // null: the meeting is closed
  Rdma* rdma_ = nullptr;
  State state_ = State::kStart;
  Address local_{};
  std::uint32_t scope_ = 0;
  Address peer_{};
  std::uint16_t peer_port_ = 0;
  base::Fabric fabric_;
  Timer timer_;
  Timer nudge_timer_;
  std::chrono::milliseconds nudge_pause_;
  std::shared_ptr<Connection> connection_;
  std::shared_ptr<Probe> probe_;
  std::uint16_t port_ = 0;  // the peer's RDMA port
  std::shared_ptr<Directory> directory_;
  void* cookie_ = nullptr;
  std::chrono::steady_clock::time_point give_up_{};
  std::chrono::steady_clock::time_point queued_{};
  std::chrono::milliseconds pause_;
  bool turn_ = false;   // has a turn to connect; passed on to the connection
  bool place_ = false;  // has a place in the stream's limit of lanes
  bool redirected_ = false;
  bool asks_again_ = false;  // if no answer comes within answer_limit_
  std::chrono::milliseconds answer_limit_{};
  int asks_ = 0;           // REQs without an answer
  int requests_ = 0;       // REQs that came, counted against kMostRequests
  bool reopened_ = false;  // accepting end: the peer gave up a handshake
  std::uint32_t epoch_ = 0;
  stream::Nonce peers_{};
  bool adopted_ = false;
  bool peer_adopted_ = false;
  bool ready_sent_ = false;
};

}  // namespace rcsock::rendezvous

#endif  // RCSOCK_LIB_RENDEZVOUS_RDMA_MEETING_H_
