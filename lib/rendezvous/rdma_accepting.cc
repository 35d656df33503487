// The accepting end of a handshake over rdma_cm, up to its REP.

#include <cerrno>
#include <utility>

#include "lib/rendezvous/core.h"
#include "lib/rendezvous/device.h"
#include "lib/rendezvous/rdma.h"
#include "lib/rendezvous/rdma_meeting.h"
#include "lib/rendezvous/session.h"

namespace rcsock::rendezvous {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kAcceptLimit{3000};
// How long the REP waits for the stream's adoption.
constexpr milliseconds kAdoptFirst{50};
// How long to wait for the next REQ once the connecting end has given up a REQ.
// The next REQ may get lost as well.
constexpr milliseconds kAskedAgainLimit{1500};

// The most REQs of one search.  An honest peer asks six times.  If no answer
// comes, it repeats each twice.
constexpr int kMostRequests = 18;

// Returns whether a REQ was sent before the REQ of `than`.  On iWARP a REQ that
// is given up goes on in the kernel's TCP, and may come after its successor.
// Each process begins its count at any number.
bool Earlier(std::uint32_t epoch, std::uint32_t than) {
  constexpr std::uint32_t kNear = 4096;
  return than - epoch - 1 < kNear;
}

}  // namespace

void RdmaMeeting::OnRequest(verbs::Id id, const Req& req) {
  if (session_->cancelled()) {
    rdma_->Reject(std::move(id), req.nonce, {RejCode::kLater, 0});
    return Fail(base::Reason::kNone, false);
  }
  if (!rdma_->UseNonce(req.nonce) ||
      (state_ != State::kWaiting && Earlier(req.epoch, epoch_))) {
    return rdma_->Reject(std::move(id), req.nonce, {RejCode::kRefused, 0});
  }
  // An address that has moved may lead to a device that is left alone.
  if (!MayUse(id.get())) {
    rdma_->Reject(std::move(id), req.nonce, {RejCode::kRefused, 0});
    return Fail(base::Reason::kDeviceLeftAlone, true);
  }
  // Each REQ costs a QP and its memory, from any sender.
  if (++requests_ > kMostRequests) {
    return rdma_->Reject(std::move(id), req.nonce, {RejCode::kLater, 0});
  }
  if (state_ != State::kWaiting) Reopen();
  // A REP that got lost may have carried the old nonce.
  if (reopened_ && !session_->NewNonce()) {
    return Fail(base::Reason::kLaneError, false);
  }
  base::Reason full;
  if (!place_) place_ = session_->seeker()->TakePlace(&full);
  if (!place_) {
    // A lane is about to leave: there will be a place in a moment.
    const RejCode code =
        full == base::Reason::kPending ? RejCode::kLater : RejCode::kFull;
    return rdma_->Reject(std::move(id), req.nonce, {code, 0});
  }
  epoch_ = req.epoch;
  peers_ = req.nonce;
  connection_ = std::make_shared<Connection>(core_, this, fabric_);
  connection_->SetId(std::move(id));
  cookie_ = rdma_->NewCookie(this);
  base::Reason why;
  if (!connection_->MakeLane(session_->seeker()->Bell(), cookie_, &why)) {
    const RejBytes bytes =
        EncodeRej({RejCode::kRefused, 0}, req.nonce, rdma_->key());
    verbs::calls.rdma_reject(connection_->id(), bytes.data(), bytes.size());
    return Fail(why, false);
  }
  // If this end is adopted before REP, the connecting end need not wait for
  // READY.  That saves two messages, and two wake-ups of each process.
  state_ = State::kRequested;
  if (adopted_) return SendRep();
  StartTimer(kAdoptFirst);
  session_->seeker()->Adopt();
}

// The connecting end has given up this handshake, since a packet got lost.  The
// connecting end is about to ask again, or has just done so.
void RdmaMeeting::Reopen() {
  LeaveConnection();
  reopened_ = true;
  state_ = State::kWaiting;
  StartTimer(kAskedAgainLimit);
}

void RdmaMeeting::SendRep() {
  state_ = State::kAccepted;
  StartTimer(kAcceptLimit);
  const RepBytes rep = EncodeRep(
      {epoch_, session_->nonce(), connection_->lane()->offer(), adopted_},
      session_->tuple(), peers_, rdma_->key());
  AgreeOnReady();
  rdma_conn_param parameters = connection_->Parameters(rep.data(), rep.size());
  connection_->lane()->MayReceive();
  if (verbs::calls.rdma_accept(connection_->id(), &parameters) != 0) {
    const verbs::Error error = {"rdma_accept", errno, {}};
    LogError(error);
    return Fail(VerbsReason(error), false);
  }
  connection_->BeginHandshake();
}

}  // namespace rcsock::rendezvous
