// Sends the messages of the switch (docs/protocol.md), and hands the peer's
// messages to their rules.

#include <cstring>

#include "lib/stream/stream.h"

namespace rcsock::stream {
namespace {

// The most control messages, or runs of dropped data, that one call takes.
constexpr int kMaxCtl = 32;

}  // namespace

const Nonce& Stream::ConnectorNonce() const {
  return role_ == Role::kConnector ? mine_ : peers_;
}

const Nonce& Stream::AcceptorNonce() const {
  return role_ == Role::kConnector ? peers_ : mine_;
}

void Stream::SendFrame(FrameKind kind, std::uint64_t offset,
                       std::uint8_t flags) {
  Frame frame{kind, flags, epoch_, offset};
  FrameBytes bytes = Encode(frame);
  if (!out_.Append(bytes.data(), bytes.size())) Fail(base::Reason::kNoMemory);
}

bool Stream::PostCtl(const Ctl& ctl) {
  CtlBytes bytes = Encode(ctl);
  return lane_->PostCtl(bytes.data(), bytes.size());
}

void Stream::Refuse(lane::Lane* lane, std::uint32_t epoch) {
  Ctl ctl;
  ctl.kind = CtlKind::kRefuse;
  ctl.epoch = epoch;
  const CtlBytes bytes = Encode(ctl);
  lane->PostCtl(bytes.data(), bytes.size());
}

void Stream::TakeCtl() {
  for (int i = 0; i < kMaxCtl && LaneUsable(); ++i) {
    lane::Head head = lane_->Peek();
    if (head == lane::Head::kCtl) {
      std::uint8_t bytes[lane::Lane::kCtlMax];
      std::size_t length = lane_->ReadCtl(bytes, sizeof bytes);
      Ctl ctl;
      if (!Decode(bytes, length, &ctl) || ctl.epoch != epoch_) {
        return Trigger(base::Reason::kProtocol);
      }
      OnCtl(ctl);
      continue;
    }
    if (head == lane::Head::kData && waiting_ == Waiting::kTie) {
      // Rule 10: these bytes are behind a PROPOSE that lost. S has its own
      // copy. They count only if S dies before it learns of the tie (rule 18).
      std::size_t n = lane_->Readable();
      if (n == 0) return;
      std::uint8_t* to = nullptr;
      if (limbo_.size() + n <= kMaxTie) to = limbo_.Reserve(n);
      if (to == nullptr) return Trigger(base::Reason::kProtocol);
      iovec iov{to, n};
      n = lane_->Read(&iov, 1, 0, n, false);
      limbo_.Commit(n);
      if (InOff() > rx_x_) limbo_.Clear();  // read as they came over TCP
      if (n == 0) return;
      continue;
    }
    if (head == lane::Head::kData && waiting_ == Waiting::kNothing &&
        !accept_) {
      // No PROPOSE and no SWITCH says where these bytes belong.
      return Trigger(base::Reason::kProtocol);
    }
    if (head == lane::Head::kDead) {
      base::Reason why = lane_->State();
      return Trigger(why != base::Reason::kNone ? why
                                                : base::Reason::kLaneError);
    }
    return;
  }
}

void Stream::OnCtl(const Ctl& ctl) {
  switch (ctl.kind) {
    case CtlKind::kPropose:
      return OnPropose(ctl);
    case CtlKind::kAccept:
      return OnAccept(ctl);
    case CtlKind::kRefuse:
      // Either an answer, or the peer has left before any PROPOSE, or before
      // COMMIT.
      return Trigger(
          tx_ == Tx::kProp || tx_ == Tx::kComm ? base::Reason::kPeerRefused
          : tx_ == Tx::kRaw && rx_ == Rx::kRaw ? base::Reason::kPeerDemoted
                                               : base::Reason::kProtocol);
    case CtlKind::kSwitch:
      return OnSwitch(ctl);
    case CtlKind::kEnd:
      return OnEnd(ctl);
  }
}

void Stream::OnFrame() {
  FrameBytes bytes;
  std::memcpy(bytes.data(), hs_, bytes.size());
  Frame frame;
  if (!Decode(bytes, &frame) || frame.epoch != epoch_) {
    return Fail(base::Reason::kProtocol);
  }
  switch (frame.kind) {
    case FrameKind::kGot:
      return OnGot();
    case FrameKind::kLaneDown:
      // A peer says it once.
      if (lane_down_seen_) return Fail(base::Reason::kProtocol);
      return OnLaneDown(frame.offset, frame.flags);
    case FrameKind::kRaw:
      return OnRaw(frame.offset);
    case FrameKind::kFin:
      return OnFin(frame.offset, frame.flags);
    case FrameKind::kAck:
      // A peer says it once.
      if (!fin_sent_ || fin_acked_ || frame.offset != tx_off()) {
        return Fail(base::Reason::kProtocol);
      }
      fin_acked_ = true;
      return;
    case FrameKind::kPing:
      return OnPing();
    case FrameKind::kProbe:
      return OnProbe();
    case FrameKind::kLanded:
      return OnLanded(frame.offset);
    case FrameKind::kBack:
      return OnBack(frame.offset);
    case FrameKind::kReset:
      // RESET alone changes nothing: the anchor ends the stream.
      if (frame.offset != 0 || peer_resets_) {
        return Fail(base::Reason::kProtocol);
      }
      peer_resets_ = true;
      return;
  }
}

// Rule 14. A peer that goes raw from an offset where we did not stop has lost
// bytes, or repeats them.
void Stream::OnRaw(std::uint64_t offset) {
  if (!lane_down_seen_ || offset != InOff()) {
    return Fail(base::Reason::kProtocol);
  }
  rx_ = Rx::kRaw;
  accept_ = false;
  if (ahead_ == 0) KeepReturns();
  waiting_ = Waiting::kNothing;
  Emit(awaits_raw_ ? kRxReady | kTxReady : kRxReady);
  awaits_raw_ = false;
}

void Stream::OnFin(std::uint64_t offset, std::uint8_t flags) {
  if (fin_seen_ || offset < InOff() + ahead_ ||
      (pfin_known_ && pfin_ != offset)) {
    return Fail(base::Reason::kProtocol);
  }
  fin_seen_ = true;
  pclosed_ = (flags & kFrameClosed) != 0;
  if (pfin_known_) return;
  pfin_known_ = true;
  pfin_ = offset;
  Emit(kRxReady);
}

}  // namespace rcsock::stream
