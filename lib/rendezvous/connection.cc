#include "lib/rendezvous/connection.h"

#include <utility>

#include "lib/base/log.h"
#include "lib/base/no_cancel.h"
#include "lib/rendezvous/core.h"
#include "lib/rendezvous/rdma.h"
#include "lib/rendezvous/rdma_meeting.h"

namespace rcsock::rendezvous {
namespace {

// Returns a QP's time-out n, which means 4.096 us * 2^n: the smallest that is
// not below `ms`.
std::uint8_t AckTimeout(std::uint16_t ms) {
  constexpr std::uint64_t kUnitNs = 4096;
  std::uint8_t n = 0;
  while (kUnitNs << n < std::uint64_t{ms} * 1'000'000) ++n;
  return n;
}

void SetAckTimeout(rdma_cm_id* id, std::uint16_t ms) {
  std::uint8_t timeout = AckTimeout(ms);
  // Some kernels and transports refuse it.
  verbs::calls.rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT,
                               &timeout, sizeof timeout);
}

}  // namespace

Connection::~Connection() {
  const base::NoCancel no_cancel;
  StopDraining();
  if (lane_ != nullptr) {
    if (Rdma* rdma = core_->rdma()) rdma->Remove(this);
  }
  // The lane's end of the QP goes first.  Then the peer may learn of the end.
  held_.reset();
  if (connected_) verbs::calls.rdma_disconnect(id_.get());
  id_.reset();
  // The last user of a device that has gone lets go of the device here.
  device_.reset();
  GiveTurn();
}

void Connection::GiveTurn() {
  if (!std::exchange(turn_, false)) return;
  if (Rdma* rdma = core_->rdma()) rdma->EndTurn();
}

void Connection::SetConnected() {
  handshake_ = false;
  connected_ = true;
  if (lane_ != nullptr) lane_->Connected();
  GiveTurn();
}

bool Connection::LeaveLane() {
  StopDraining();
  if (held_ == nullptr || gone_ || device_->lost()) return false;
  if (!lane_->OwesLastWqe() || !device_->Reports()) return false;
  const base::NoCancel no_cancel;
  lane_->Freeze();
  if (std::exchange(connected_, false)) {
    verbs::calls.rdma_disconnect(id_.get());
  }
  return true;
}

void Connection::LastWqeReached() {
  device_->Reported();
  lane_->LastWqeReached();
}

void Connection::NotReported() { device_->NotReported(); }

bool Connection::MustPark() const {
  return handshake_ && id_ != nullptr && id_->verbs != nullptr &&
         verbs::IsIwarp(id_->verbs);
}

void Connection::BeginEnd() {
  ending_ = true;
  StopDraining();
  if (Rdma* rdma = core_->rdma()) rdma->Remove(this);
}

void Connection::End() {
  held_.reset();
  id_.reset();
}

void Connection::SetId(verbs::Id id) {
  id_ = std::move(id);
  id_->context = static_cast<CmOwner*>(this);
  SetAckTimeout(id_.get(), fabric_.ack_ms);
}

rdma_conn_param Connection::Parameters(const void* data,
                                       std::size_t length) const {
  // Soft-RoCE takes 7 for "without end".  For RNR all devices do.
  constexpr std::uint8_t kMostOfRxe = 6;
  std::uint8_t retries = fabric_.retries;
  if (retries > kMostOfRxe && IsRxe(id_->verbs)) retries = kMostOfRxe;
  return ConnectParameters(data, length, retries);
}

bool Connection::MakeLane(int bell, void* cookie, base::Reason* why) {
  device_ = core_->rdma()->DeviceOf(id_.get(), why);
  if (device_ == nullptr) return false;
  verbs::Error error;
  *why = base::Reason::kRdmaError;
  std::unique_ptr<lane::rdma::RdmaLane> lane =
      device_->domain()->CreateLane(id_.get(), bell, why, &error);
  if (lane == nullptr) {
    LogError(error);
    return false;
  }
  lane_ = lane.get();
  held_ = std::move(lane);
  core_->rdma()->Add(this);
  lane_->SetCookie(cookie);
  if (lane_->source() != nullptr) {
    drained_ = lane_->source();
    core_->sources.Want(drained_, 1);
  }
  lane_->SetNotify(lane::kNotifyRxPoller, 0);
  return true;
}

void Connection::ConnectReturned(int error) {
  const auto keep = shared_from_this();
  if (error == 0) {
    // An event has yet to come, or has come.
    if (Rdma* rdma = core_->rdma()) rdma->EndIfGone(this);
    return;
  }
  handshake_ = false;
  if (Rdma* rdma = core_->rdma()) rdma->Unpark(this);
  if (meeting_ != nullptr) {
    meeting_->ConnectFailed({"rdma_connect", error, {}});
  }
}

std::unique_ptr<lane::Lane> Connection::Deliver(
    std::shared_ptr<Seeker> seeker) {
  meeting_ = nullptr;
  seeker_ = std::move(seeker);
  return std::move(held_);
}

void Connection::StopDraining() {
  if (lane::Source* source = std::exchange(drained_, nullptr)) {
    core_->sources.Want(source, -1);
  }
}

void Connection::Lost(base::Reason why) {
  if (std::exchange(lost_, true)) return;
  if (returned_.load(std::memory_order_acquire)) return;
  const auto keep = shared_from_this();
  if (lane_ != nullptr) lane_->Lost(why);
  if (meeting_ != nullptr) {
    meeting_->OnLost(why);
  } else if (seeker_ != nullptr) {
    // No longer held: the seeker has the lane, and will return it.
    std::shared_ptr<Seeker> seeker = std::move(seeker_);
    seeker->LinkLost(why);
  }
}

void Connection::OnCm(const CmEvent& event) {
  if (ending_) return;
  const auto keep = shared_from_this();
  switch (event.type) {
    case RDMA_CM_EVENT_DEVICE_REMOVAL:
      gone_ = true;
      if (Rdma* rdma = core_->rdma()) rdma->LoseDevice(id_->verbs);
      Lost(base::Reason::kDeviceLost);
      if (Rdma* rdma = core_->rdma()) rdma->EndIfGone(this);
      return;
    case RDMA_CM_EVENT_ADDR_CHANGE:
      // The event says that this end's hardware address has moved: a bond has
      // failed over.
      return Lost(base::Reason::kDeviceLost);
    case RDMA_CM_EVENT_ESTABLISHED:
      established_ = true;
      break;
    case RDMA_CM_EVENT_UNREACHABLE:
      // Since Linux 6.0 UNREACHABLE after the handshake says that the peer's
      // hardware address has moved.  The QP goes on sending to the old address,
      // and would find out by its retries.  An accepting end whose lane is in
      // use may have missed the last packet of its handshake.  To that end
      // UNREACHABLE says nothing of the lane.
      if (established_) return Lost(base::Reason::kLaneError);
      break;
    case RDMA_CM_EVENT_TIMEWAIT_EXIT:
      return;
    default:
      break;
  }
  // Only these two steps go on with a handshake.  Any other event ends it.
  if (event.type != RDMA_CM_EVENT_ADDR_RESOLVED &&
      event.type != RDMA_CM_EVENT_ROUTE_RESOLVED) {
    handshake_ = false;
    if (Rdma* rdma = core_->rdma()) rdma->Unpark(this);
  }
  if (meeting_ != nullptr) return meeting_->OnCm(event);
  if (event.type == RDMA_CM_EVENT_DISCONNECTED) Lost(base::Reason::kPeerGone);
}

}  // namespace rcsock::rendezvous
