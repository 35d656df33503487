#include "lib/rendezvous/rdma_meeting.h"

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>

#include "lib/base/log.h"
#include "lib/rendezvous/core.h"
#include "lib/rendezvous/device.h"
#include "lib/rendezvous/directory.h"
#include "lib/rendezvous/rdma.h"
#include "lib/rendezvous/session.h"

namespace rcsock::rendezvous {
namespace {

using std::chrono::milliseconds;

// A wait costs the accepting end a table entry.  The connecting end may have to
// stand in a queue.
constexpr milliseconds kWaitLimit{5000};
constexpr milliseconds kQueueLimit{60'000};
// How long the connecting end looks for a peer that listens and waits.  It asks
// again after 10 ms, 30, 90, 270 and 810.
constexpr milliseconds kMeetLimit{1500};
constexpr milliseconds kFirstPause{10};
// A little longer than a plain peer is remembered.
constexpr milliseconds kPlainLimit{1010};
// A handshake in a black hole ends here. rdma_cm itself would go on for a
// minute.
constexpr milliseconds kConnectLimit{3000};
// How long a REQ may go without an answer from a host that does answer: the REQ
// or its REP was lost. rdma_cm would repeat it only after four seconds.  So
// this end asks twice more, and then waits for kConnectLimit, as the host may
// be slow.
//
// Where TCP is connected first, TCP sends a SYN again after one second, then
// after two more.  So the limit leaves time for the first repetition.
constexpr milliseconds kAnswerLimit{1000};
constexpr milliseconds kTcpAnswerLimit{1500};
constexpr int kMostAsks = 3;
// The status of REJECTED when the connecting end has given up a REQ.
constexpr int kIbGivenUp = 4;
// As for a shm lane (session.cc).
constexpr milliseconds kAdoptLimit{2000};
// RdmaLane::Nudge comes after 20 ms, 40, 80 and so on.
constexpr milliseconds kFirstNudge{20};
constexpr int kResolveMs = 1500;
// The status of IB's connection manager when nobody listens.
constexpr int kIbNoListener = 8;

// Whether a list of devices names this one, and does not merely let it be.
bool IsNamed(const char* devices, const char* name, unsigned port) {
  // With an entry that fits no device, only what is named may be used.
  const std::string all = std::string(devices) + "+*:0";
  return *devices != '\0' && base::MayUseDevice(all.c_str(), name, port);
}

// Whether there are no private data. rxe gives zeros.
bool IsEmpty(const CmEvent& event) {
  return std::all_of(event.data.begin(),
                     event.data.begin() + static_cast<long>(event.length),
                     [](std::uint8_t byte) { return byte == 0; });
}

// Whether the connecting end has heard no REP in time.
bool GivenUp(const CmEvent& event) {
  return event.type == RDMA_CM_EVENT_REJECTED && event.status == kIbGivenUp;
}

// A transport may refuse the traffic class.
void SetTrafficClass(rdma_cm_id* id, std::uint8_t value) {
  verbs::calls.rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &value,
                               sizeof value);
}

}  // namespace

RdmaMeeting::RdmaMeeting(Core* core, Session* session)
    : core_(core),
      session_(session),
      timer_(core),
      nudge_timer_(core),
      nudge_pause_(kFirstNudge),
      pause_(kFirstPause) {}

void RdmaMeeting::Begin(const Address& local, std::uint32_t scope,
                        const Address& peer, std::uint16_t peer_port) {
  local_ = local;
  scope_ = scope;
  peer_ = peer;
  peer_port_ = peer_port;
  const bool accepted = session_->role() == stream::Role::kAcceptor;
  fabric_ = base::FabricFor(base::GetConfig(), peer_.data(),
                            session_->tuple().s_port, accepted);
  base::Reason why;
  rdma_ = core_->GetRdma(&why);
  if (rdma_ == nullptr) {
    return Fail(why, why == base::Reason::kNoDevice ||
                         why == base::Reason::kNoRdmaLibrary);
  }
  if (session_->role() == stream::Role::kConnector) {
    give_up_ = std::chrono::steady_clock::now() + kMeetLimit;
    if (!core_->plain.Has(peer_, peer_port_)) return Queue();
    // Looks once, when the plain peer is forgotten.
    give_up_ = {};
    state_ = State::kPausing;
    return StartTimer(kPlainLimit);
  }
  if (*fabric_.devices != '\0' || (Auto() && !core_->hardware.Has(local_, 0))) {
    // A device that is left alone gets no listener, either.
    verbs::Error error;
    const verbs::Id id = rdma_->cm()->Bind(nullptr, local_, scope_, 0, &error);
    if (id == nullptr) {
      LogError(error);
      return Fail(VerbsReason(error), false);
    }
    if (!MayUse(id.get())) return Fail(base::Reason::kDeviceLeftAlone, true);
    if (!IsSoftware(id->verbs)) core_->hardware.Note(local_, 0);
  }
  directory_ =
      rdma_->DirectoryOf(local_, scope_, session_->tuple().s_port, &why);
  if (directory_ == nullptr) return Fail(why, false);
  state_ = State::kWaiting;
  StartTimer(kWaitLimit);
  directory_->Add(session_->tuple());
  rdma_->Answer(session_->tuple(), 0);
}

void RdmaMeeting::Close() {
  if (directory_ != nullptr) directory_->Remove(session_->tuple());
  directory_.reset();
  const std::shared_ptr<Seeker> seeker = session_->seeker();
  session_ = nullptr;
  state_ = State::kDone;
  timer_.Stop();
  nudge_timer_.Stop();
  LeaveConnection();
  if (std::exchange(turn_, false)) rdma_->EndTurn();
  if (std::exchange(place_, false)) seeker->LeavePlace();
}

void RdmaMeeting::LeaveConnection() {
  if (probe_ != nullptr) probe_->Retire();
  probe_.reset();
  if (cookie_ != nullptr) rdma_->DropCookie(std::exchange(cookie_, nullptr));
  if (connection_ == nullptr) return;
  connection_->LeaveMeeting();
  if (rdma_->connects()->Leave(connection_.get())) connection_->EndHandshake();
  if (connection_->MustPark()) return rdma_->Park(std::move(connection_));
  rdma_->lane_ends()->Add(std::move(connection_));
}

void RdmaMeeting::Fail(base::Reason why, bool final) {
  if (session_ == nullptr) return;
  const auto keep = shared_from_this();
  session_->Fail(why, final);  // closes this meeting
}

// --- Connecting

void RdmaMeeting::Queue() {
  turn_ = rdma_->TakeTurn(shared_from_this());
  if (turn_) return TakePlace();
  state_ = State::kQueued;
  queued_ = std::chrono::steady_clock::now();
  StartTimer(kQueueLimit);
}

void RdmaMeeting::OnTurn() {
  turn_ = true;
  // The time in the queue does not count: the session was not looking.
  give_up_ += std::chrono::steady_clock::now() - queued_;
  if (session_->cancelled()) return Fail(base::Reason::kNone, false);
  // A meeting before it in the queue may have found out that the peer is plain.
  if (core_->plain.Has(peer_, peer_port_)) {
    return Fail(base::Reason::kPeerPlain, false);
  }
  TakePlace();
}

void RdmaMeeting::TakePlace() {
  if (!core_->silent.MayTry(peer_, peer_port_)) {
    // A pause first: a busy stream would come back at once.
    if (std::exchange(turn_, false)) rdma_->EndTurn();
    state_ = State::kSilent;
    return StartTimer(kPlainLimit);
  }
  base::Reason why;
  if (!place_) place_ = session_->seeker()->TakePlace(&why);
  if (!place_) return Fail(why, false);
  Connect(0);
}

// Port 0: the port where the peer's directory is.
void RdmaMeeting::Connect(std::uint16_t port) {
  state_ = State::kConnecting;
  asks_again_ = false;
  StartTimer(kConnectLimit);
  if (connection_ != nullptr) turn_ = connection_->TakeTurn();
  LeaveConnection();
  connection_ = std::make_shared<Connection>(core_, this, fabric_);
  if (std::exchange(turn_, false)) connection_->SetTurn();
  verbs::Error error;
  verbs::Id id =
      rdma_->cm()->Bind(connection_.get(), local_, scope_, 0, &error);
  if (id == nullptr) {
    LogError(error);
    return Fail(VerbsReason(error), false);
  }
  if (!MayUse(id.get())) return Fail(base::Reason::kDeviceLeftAlone, true);
  port_ = port != 0 ? port : Rdma::ServicePort(id->verbs, peer_port_);
  if (asks_ + 1 < kMostAsks && core_->silent.Answers(peer_, peer_port_)) {
    asks_again_ = true;
    answer_limit_ = ConnectBlocks(id->verbs) ? kTcpAnswerLimit : kAnswerLimit;
    StartTimer(answer_limit_);
  }
  if (fabric_.traffic_class >= 0) {
    // The administrator's class is for RDMA.  The socket's is for TCP.
    SetTrafficClass(id.get(), static_cast<std::uint8_t>(fabric_.traffic_class));
  } else if (const std::uint8_t asked =
                 session_->seeker()->TrafficClass(IsMapped(local_))) {
    // If the socket asks for no class, the default in rdma_cm's configfs holds.
    SetTrafficClass(id.get(), asked);
  }
  rdma_cm_id* raw = id.get();
  connection_->SetId(std::move(id));
  sockaddr_storage peer = ToSockaddr(peer_, scope_, port_);
  if (verbs::calls.rdma_resolve_addr(
          raw, nullptr, reinterpret_cast<sockaddr*>(&peer), kResolveMs) != 0) {
    error = {"rdma_resolve_addr", errno, {}};
    LogError(error);
    Fail(VerbsReason(error), false);
  }
}

bool RdmaMeeting::Auto() const { return session_->seeker()->MayShm(); }

bool RdmaMeeting::MayUse(const rdma_cm_id* id) const {
  const char* const name = id->verbs->device->name;
  if (!base::MayUseDevice(fabric_.devices, name, id->port_num)) return false;
  return !Auto() || IsNamed(fabric_.devices, name, id->port_num) ||
         !IsSoftware(id->verbs);
}

void RdmaMeeting::OnCm(const CmEvent& event) {
  if (session_ == nullptr) return;
  if (session_->cancelled()) return Fail(base::Reason::kNone, false);
  switch (state_) {
    case State::kConnecting:
      return OnConnecting(event);
    case State::kRequested:
      if (GivenUp(event)) return Reopen();
      // The connecting end has gone.
      return Fail(base::Reason::kPeerRefused, false);
    case State::kAccepted:
      if (GivenUp(event)) return Reopen();
      if (event.type == RDMA_CM_EVENT_ESTABLISHED) return Established();
      // The connecting end has gone, or has refused the REP.
      return Fail(event.type == RDMA_CM_EVENT_UNREACHABLE
                      ? base::Reason::kRdmaTimeout
                      : base::Reason::kPeerRefused,
                  false);
    case State::kAdopting:
      if (event.type == RDMA_CM_EVENT_DISCONNECTED ||
          event.type == RDMA_CM_EVENT_CONNECT_ERROR) {
        return Fail(base::Reason::kPeerRefused, false);
      }
      return;
    default:
      return;
  }
}

void RdmaMeeting::OnConnecting(const CmEvent& event) {
  rdma_cm_id* id = connection_->id();
  switch (event.type) {
    case RDMA_CM_EVENT_ADDR_RESOLVED:
      if (!verbs::ResolveRoute(id, kResolveMs)) {
        return Fail(base::Reason::kNoRoute, false);
      }
      return;
    case RDMA_CM_EVENT_ROUTE_RESOLVED:
      return ConnectBlocks(id->verbs) ? StartProbe() : SendReq();
    case RDMA_CM_EVENT_ADDR_ERROR:
    case RDMA_CM_EVENT_ROUTE_ERROR:
      return NoAnswer(base::Reason::kNoRoute);
    case RDMA_CM_EVENT_ESTABLISHED:
      return OnRep(event);
    case RDMA_CM_EVENT_REJECTED:
      return OnRejected(event);
    case RDMA_CM_EVENT_UNREACHABLE:
      return NoAnswer(base::Reason::kRdmaTimeout);
    default:
      return Fail(base::Reason::kRdmaError, false);
  }
}

void RdmaMeeting::AskAgain() {
  ++asks_;
  redirected_ = false;
  // The peer may know that this search has ended, and look anew.
  give_up_ += answer_limit_;
  Connect(0);
}

void RdmaMeeting::NoAnswer(base::Reason why) {
  core_->silent.Note(peer_, peer_port_);
  Fail(why, false);
}

void RdmaMeeting::Answered() { core_->silent.Answered(peer_, peer_port_); }

void RdmaMeeting::StartProbe() {
  if (rdma_->connects()->Stuck(peer_)) {
    return Fail(base::Reason::kRdmaTimeout, false);
  }
  probe_ = std::make_shared<Probe>(core_);
  const bool started = probe_->Start(
      ToSockaddr(local_, scope_, 0), ToSockaddr(peer_, scope_, port_),
      [weak = weak_from_this()](int result) {
        const auto self = weak.lock();
        if (self == nullptr || self->session_ == nullptr) return;
        if (result == 0) return self->SendReq();
        self->ConnectFailed({"connect", result, {}});
      });
  if (!started) ConnectFailed({"connect", errno, {}});
}

void RdmaMeeting::ConnectFailed(const verbs::Error& error) {
  if (error.code == ECONNREFUSED) {
    Answered();
    RCSOCK_LOG(2, "%s: nobody listens at port %u", error.call, port_);
    return TryAgain(base::Reason::kPeerPlain);
  }
  LogError(error);
  // On iWARP, rdma_cm may pick a port that TCP uses.
  if (error.code == EADDRINUSE) return TryAgain(VerbsReason(error));
  Fail(VerbsReason(error), false);
}

// Asks again after a pause: the peer may be about to listen, or to wait for
// this connection.
void RdmaMeeting::TryAgain(base::Reason if_late) {
  if (std::chrono::steady_clock::now() + pause_ < give_up_) {
    LeaveConnection();
    redirected_ = false;
    state_ = State::kPausing;
    StartTimer(pause_);
    pause_ *= 3;
    return;
  }
  if (if_late == base::Reason::kPeerPlain) {
    core_->plain.Note(peer_, peer_port_);
  }
  Fail(if_late, false);
}

void RdmaMeeting::SendReq() {
  base::Reason why;
  cookie_ = rdma_->NewCookie(this);
  if (!connection_->MakeLane(session_->seeker()->Bell(), cookie_, &why)) {
    return Fail(why, false);
  }
  // A REQ is good for one lane, and this one may be a repetition.
  if (!session_->NewNonce()) return Fail(base::Reason::kLaneError, false);
  epoch_ = core_->NextEpoch();
  const ReqBytes req =
      EncodeReq({session_->tuple().c_port, session_->tuple().s_port, epoch_,
                 session_->nonce()},
                session_->tuple(), rdma_->key());
  if (ConnectBlocks(connection_->id()->verbs)) {
    connection_->BeginHandshake();
    if (const int error = rdma_->connects()->Start(peer_, connection_, req)) {
      connection_->EndHandshake();
      ConnectFailed({"pthread_create", error, {}});
    }
    return;
  }
  rdma_conn_param parameters = connection_->Parameters(req.data(), req.size());
  if (verbs::calls.rdma_connect(connection_->id(), &parameters) != 0) {
    return ConnectFailed({"rdma_connect", errno, {}});
  }
  connection_->BeginHandshake();
}

void RdmaMeeting::OnRep(const CmEvent& event) {
  Answered();
  connection_->SetConnected();
  Rep rep;
  switch (DecodeRep(event.data.data(), event.length, session_->tuple(),
                    session_->nonce(), rdma_->key(), &rep)) {
    case Parsed::kOk:
      break;
    case Parsed::kOtherVersion:
      return Fail(base::Reason::kPeerVersion, true);
    case Parsed::kKey:
      return Fail(base::Reason::kPeerKey, true);
    case Parsed::kForeign:
      // The listener belongs to another program.
      core_->plain.Note(peer_, peer_port_);
      return Fail(base::Reason::kPeerPlain, false);
  }
  if (rep.epoch != epoch_) return Fail(base::Reason::kProtocol, false);
  peers_ = rep.nonce;
  peer_adopted_ = rep.adopted;
  connection_->lane()->SetPeer(rep.offer);
  AgreeOnReady();
  Established();
}

void RdmaMeeting::OnRejected(const CmEvent& event) {
  Answered();
  Rej rej;
  switch (DecodeRej(event.data.data(), event.length, session_->nonce(),
                    rdma_->key(), &rej)) {
    case Parsed::kOk:
      break;
    case Parsed::kOtherVersion:
      return Fail(base::Reason::kPeerVersion, true);
    case Parsed::kKey:
      return Fail(base::Reason::kPeerKey, true);
    case Parsed::kForeign: {
      // Nobody listens, or a program that is not rcsock.  If the rejection is
      // empty, the kernel sent it for a directory whose process has just died.
      // Another process is about to take over.
      const bool nobody =
          event.status == kIbNoListener || event.status == -ECONNREFUSED;
      RCSOCK_LOG(2, "rejected by another than us: status %d", event.status);
      if (nobody) return TryAgain(base::Reason::kPeerPlain);
      if (IsEmpty(event)) return TryAgain(base::Reason::kRdmaRejected);
      return Fail(base::Reason::kRdmaRejected, false);
    }
  }
  switch (rej.code) {
    case RejCode::kRedirect:
      if (std::exchange(redirected_, true)) {
        return Fail(base::Reason::kPeerRefused, false);
      }
      return Connect(rej.port);
    case RejCode::kLater:
      return TryAgain(base::Reason::kTimeout);
    case RejCode::kOtherVersion:
      return Fail(base::Reason::kPeerVersion, true);
    case RejCode::kKey:
      return Fail(base::Reason::kPeerKey, true);
    case RejCode::kFull:
      return Fail(base::Reason::kPeerBudget, false);
    case RejCode::kRefused:
      break;
  }
  Fail(base::Reason::kPeerRefused, false);
}

// --- Both

void RdmaMeeting::AgreeOnReady() {
  const bool connector = session_->role() == stream::Role::kConnector;
  const stream::Nonce& connectors = connector ? session_->nonce() : peers_;
  const stream::Nonce& acceptors = connector ? peers_ : session_->nonce();
  const auto mac = [&](stream::Role of) {
    return MacOfReady(of, epoch_, session_->tuple(), connectors, acceptors,
                      rdma_->key());
  };
  connection_->lane()->SetReadyMacs(
      mac(session_->role()),
      mac(connector ? stream::Role::kAcceptor : stream::Role::kConnector));
}

void RdmaMeeting::Established() {
  connection_->SetConnected();
  state_ = State::kAdopting;
  StartTimer(kAdoptLimit);
  const auto keep = shared_from_this();
  adopted_ ? Progress() : session_->seeker()->Adopt();
}

void RdmaMeeting::Adopted() {
  const bool asked = state_ == State::kRequested || state_ == State::kAdopting;
  if (!asked || adopted_) return;
  if (session_->cancelled()) return Fail(base::Reason::kNone, false);
  adopted_ = true;
  state_ == State::kRequested ? SendRep() : Progress();
}

void RdmaMeeting::OnCompletion() {
  const auto keep = shared_from_this();
  if (session_ == nullptr) return;
  if (connection_->lane()->State() != base::Reason::kNone) {
    return OnLost(connection_->lane()->State());
  }
  // The connecting end's READY can be faster than rdma_cm's event.
  if (state_ == State::kAccepted && connection_->lane()->PeerReady()) {
    Established();
  }
  if (state_ == State::kAdopting) Progress();
}

void RdmaMeeting::Progress() {
  if (!adopted_) return;
  lane::rdma::RdmaLane* lane = connection_->lane();
  const bool peer_ready = lane->PeerReady();
  // The connecting end sends first, as iWARP demands.
  if (!ready_sent_ &&
      (session_->role() == stream::Role::kConnector || peer_ready)) {
    if (!lane->SendReady()) {
      // If the lane found no memory, it knows the reason better.
      const base::Reason why = lane->State();
      return OnLost(why != base::Reason::kNone ? why
                                               : base::Reason::kLaneError);
    }
    ready_sent_ = true;
    // On this transport a message may stay unread until the next one comes.  So
    // only the peer's own READY proves that the peer receives.
    if (!peer_ready && ConnectBlocks(connection_->id()->verbs)) {
      peer_adopted_ = false;
      nudge_pause_ = kFirstNudge;
      StartNudge();
    }
  }
  if (ready_sent_ && (peer_ready || peer_adopted_)) Deliver();
}

void RdmaMeeting::StartNudge() {
  nudge_timer_.Start(nudge_pause_, weak_from_this(), &RdmaMeeting::OnNudge);
  nudge_pause_ *= 2;
}

void RdmaMeeting::OnNudge() {
  if (state_ != State::kAdopting || connection_ == nullptr) return;
  connection_->lane()->Nudge();
  StartNudge();
}

void RdmaMeeting::Deliver() {
  if (session_->cancelled()) return Fail(base::Reason::kNone, false);
  const auto keep = shared_from_this();
  const std::shared_ptr<Connection> connection = std::move(connection_);
  const std::shared_ptr<Seeker> seeker = session_->seeker();
  const stream::Nonce mine = session_->nonce();
  const bool authenticated = rdma_->key().set;
  const bool place = std::exchange(place_, false);
  session_->Delivered();  // closes this meeting
  std::unique_ptr<lane::Lane> lane = connection->Deliver(seeker);
  core_->AddRdmaLane(lane.get(), connection);
  seeker->LaneOpen(std::move(lane), epoch_, mine, peers_, authenticated);
  // Only now: the stream has counted its wish for the source, and itself.
  connection->StopDraining();
  if (place) seeker->LeavePlace();
}

void RdmaMeeting::OnLost(base::Reason why) { Fail(why, false); }

void RdmaMeeting::StartTimer(milliseconds limit) {
  timer_.Start(limit, shared_from_this(), &RdmaMeeting::OnTimer);
}

void RdmaMeeting::OnTimer() {
  if (session_ == nullptr) return;
  if (session_->cancelled()) return Fail(base::Reason::kNone, false);
  switch (state_) {
    case State::kRequested:
      return SendRep();
    case State::kWaiting:
      if (reopened_) return Fail(base::Reason::kRdmaTimeout, false);
      return Fail(directory_->foreign() ? base::Reason::kPeerUid
                                        : base::Reason::kPeerPlain,
                  false);
    case State::kAdopting:
      return Fail(adopted_ ? base::Reason::kTimeout : base::Reason::kBusy,
                  false);
    case State::kPausing:
      return Queue();
    case State::kConnecting:
      if (asks_again_) return AskAgain();
      return NoAnswer(base::Reason::kRdmaTimeout);
    case State::kQueued:
      return Fail(base::Reason::kTimeout, false);
    default:
      return Fail(base::Reason::kRdmaTimeout, false);
  }
}

}  // namespace rcsock::rendezvous
