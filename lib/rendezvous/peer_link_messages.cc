// What the peer of a link sends.

#include <algorithm>
#include <bit>
#include <utility>

#include "lib/base/log.h"
#include "lib/rendezvous/core.h"
#include "lib/rendezvous/peer_link.h"
#include "lib/rendezvous/session.h"
#include "lib/rendezvous/witness.h"

namespace rcsock::rendezvous {
namespace {

using lane::BellBit;
using lane::BellMask;
using lane::kBells;
using lane::shm::kMaxSegments;
using lane::shm::kSegmentStreams;

// The offers that one peer may have this process keep.  The peer takes each
// back when its search ends.
constexpr std::size_t kMostHeld = 256;

}  // namespace

bool PeerLink::Handle(Packet& packet) {
  Header header;
  if (!packet.ReadHeader(&header)) return false;
  if (!up_) return header.type == Type::kLinkAck && HandleAck(packet);
  switch (header.type) {
    case Type::kBell:
      return HandleBell(packet);
    case Type::kRung: {
      RungMsg message;
      return packet.Read(&message) && packet.fd_count == 0;
    }
    case Type::kSegment:
      return !decider() && HandleSegment(packet);
    case Type::kOpen:
      return !decider() && HandleOpen(packet);
    case Type::kOpened:
      return decider() && HandleOpened(packet);
    case Type::kReject:
      return decider() && HandleReject(packet);
    case Type::kReady:
      return HandleReady(packet);
    case Type::kClosed:
      return HandleClosed(packet);
    case Type::kMemory:
      return HandleMemory(packet);
    default:
      return false;
  }
}

bool PeerLink::HandleAck(Packet& packet) {
  LinkAck message;
  if (!packet.Read(&message)) return false;
  const BellMask mask = message.bells;
  if (packet.fd_count != 1 + std::popcount(mask)) return false;
  if (!link_->SetPeerBellPage(packet.TakeFd(0), core_->bells->most_ring()) ||
      !TakeBells(mask, packet, 1)) {
    return false;
  }
  timer_.Stop();
  up_ = true;
  gives_tokens_ = message.wants_tokens != 0;
  OpenNext();
  return true;
}

bool PeerLink::HandleBell(Packet& packet) {
  BellMsg message;
  if (!packet.Read(&message) || packet.fd_count != 1) return false;
  const std::uint32_t bell = message.bell;
  return bell < kBells && TakeBells(BellBit(static_cast<int>(bell)), packet, 0);
}

bool PeerLink::HandleSegment(Packet& packet) {
  SegmentMsg message;
  if (!packet.Read(&message) || packet.fd_count != 1) return false;
  const int number = link_->segments();
  if (message.number != static_cast<std::uint32_t>(number) ||
      number >= kMaxSegments || !link_->MapSegment(packet.TakeFd(0))) {
    return false;
  }
  slots_.resize((static_cast<std::size_t>(number) + 1) * kSegmentStreams);
  return true;
}

bool PeerLink::HandleOpen(Packet& packet) {
  OpenMsg message;
  Claimed claimed;
  if (!packet.Read(&message) || !TakeClaim(message.claim, packet, &claimed)) {
    return false;
  }
  const std::uint32_t index = message.index;
  const std::uint32_t epoch = message.epoch;
  if (index >= slots_.size() || slots_[index].used() || message.role > 1) {
    return false;
  }
  Tuple tuple;
  std::memcpy(&tuple, message.tuple, sizeof tuple);
  const auto role =
      message.role == 0 ? stream::Role::kAcceptor : stream::Role::kConnector;
  stream::Nonce peers;
  std::memcpy(peers.data(), message.nonce, peers.size());
  const int number = static_cast<int>(index);
  Session* session = core_->FindSession(tuple, role);
  // The peer has said HELLO on another socket, before it has sent this.
  if (session != nullptr && far()) session->TakeHello();
  session = core_->FindSession(tuple, role);
  if (session != nullptr && session->Expects(*this)) {
    const Proof proof = Prove(*session, claimed, false);
    if (proof != Proof::kNone) {
      Answer(session->shared_from_this(), number, epoch, peers, proof);
    } else {
      Reject(index, epoch, base::Reason::kNotProven);
      session->ClaimedInVain(*this);
    }
  } else if (session == nullptr && message.offer == 1 && OwnUid() &&
             held_.size() < kMostHeld) {
    Slot& slot = slots_[index];
    slot = Slot();
    slot.epoch = epoch;
    slot.ours = slot.theirs = true;
    held_.push_back({tuple, role, number, peers, claimed});
    held_.back().claimed.witness = -1;  // the packet closes it
  } else {
    Reject(index, epoch);
  }
  return true;
}

void PeerLink::Reject(std::uint32_t index, std::uint32_t epoch,
                      base::Reason why) {
  auto reject = NewMessage<RejectMsg>();
  reject.index = index;
  reject.epoch = epoch;
  reject.reason = static_cast<std::uint32_t>(why);
  channel_->Send(reject);
}

bool PeerLink::HasOffer(const Tuple& tuple, stream::Role role) const {
  return !dead_ && std::any_of(held_.begin(), held_.end(), [&](const Held& h) {
    return h.role == role && h.tuple == tuple;
  });
}

bool PeerLink::TakeOffer(const std::shared_ptr<Session>& session) {
  // Takes the last offer: the peer is taking back all others.
  const auto it =
      std::find_if(held_.rbegin(), held_.rend(), [&session](const Held& h) {
        return h.role == session->role() && h.tuple == session->tuple();
      });
  if (it == held_.rend()) return false;
  const Held held = *it;
  held_.erase(std::next(it).base());
  Slot& slot = slots_[static_cast<std::size_t>(held.index)];
  const Proof proof = Prove(*session, held.claimed, false);
  if (proof != Proof::kNone) {
    Answer(session, held.index, slot.epoch, held.peers, proof);
    return true;
  }
  const std::uint32_t epoch = slot.epoch;
  slot = Slot();
  Reject(static_cast<std::uint32_t>(held.index), epoch,
         base::Reason::kNotProven);
  return false;
}

bool PeerLink::HandleOpened(Packet& packet) {
  OpenedMsg message;
  Claimed claimed;
  if (!packet.Read(&message) || !TakeClaim(message.claim, packet, &claimed)) {
    return false;
  }
  Slot* slot = Find(message.index, message.epoch);
  if (slot == nullptr || slot->answered) return false;
  slot->answered = true;
  --unanswered_;
  // If there is no session, this end has given it up.  Its CLOSED is on its
  // way.
  if (auto session = slot->session.lock()) {
    const int index = static_cast<int>(message.index);
    const Proof proof = Prove(*session, claimed, true);
    if (proof == Proof::kNone) {
      session->NotProven(this, index, message.epoch);
      return true;
    }
    stream::Nonce peers;
    std::memcpy(peers.data(), message.nonce, peers.size());
    session->Opened(shared_from_this(), index, message.epoch, peers, proof);
  }
  return true;
}

bool PeerLink::HandleReject(Packet& packet) {
  RejectMsg message;
  if (!packet.Read(&message) || packet.fd_count != 0) return false;
  Slot* slot = Find(message.index, message.epoch);
  if (slot == nullptr || slot->answered) return false;
  --unanswered_;
  auto session = slot->session.lock();
  slot->ours = slot->theirs = false;
  slot->session.reset();
  const base::Reason why = CheckedReason(message.reason);
  const int number = static_cast<int>(message.index);
  FreeIfDone(number);
  EndOpening(number);
  if (session != nullptr) session->Rejected(this, number, why);
  return true;
}

bool PeerLink::HandleReady(Packet& packet) {
  ReadyMsg message;
  if (!packet.Read(&message) || packet.fd_count != 0) return false;
  Slot* slot = Find(message.index, message.epoch);
  if (slot == nullptr || !slot->answered) return false;
  // A second READY, after the lane was delivered, is nonsense but harmless.
  if (auto session = slot->session.lock()) {
    session->PeerReady(static_cast<Proof>(std::uint32_t{message.proof}));
  }
  return true;
}

bool PeerLink::HandleClosed(Packet& packet) {
  ClosedMsg message;
  if (!packet.Read(&message) || packet.fd_count != 0) return false;
  const std::uint32_t index = message.index;
  // The decider gave up before it saw our REJECT.
  if (!decider() && index < slots_.size() && !slots_[index].used()) return true;
  Slot* slot = Find(index, message.epoch);
  if (slot == nullptr) return false;
  if (!decider() && !slot->answered) {
    // The decider takes an offer back.
    std::erase_if(held_, [index](const Held& held) {
      return held.index == static_cast<int>(index);
    });
    *slot = Slot();
    Reject(index, message.epoch);
    return true;
  }
  // The responder's first word about a stream is its answer.
  if (!slot->answered) return false;
  slot->theirs = false;
  if (auto session = slot->session.lock()) {
    session->Fail(CheckedReason(message.reason), false);  // sends our CLOSED
  } else {
    FreeIfDone(static_cast<int>(index));
  }
  return true;
}

bool PeerLink::HandleMemory(Packet& packet) {
  MemoryMsg message;
  // None: there was no room for it here.
  if (!packet.Read(&message) || packet.fd_count > 1 || !link_->PassesMemory()) {
    return false;
  }
  return link_->PutMemory(message.id, std::move(packet.fds[0]));
}

}  // namespace rcsock::rendezvous
