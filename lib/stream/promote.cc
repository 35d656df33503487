// Promotion: rules 2 to 10 of docs/protocol.md.

#include <cstring>

#include "lib/stream/stream.h"

namespace rcsock::stream {

// Rules 1 and 2. Requires that Write has a byte to stage.
bool Stream::MayPropose() const {
  return LaneUsable() && may_propose_ && !used_ && tx_ == Tx::kRaw &&
         rx_ == Rx::kRaw && waiting_ == Waiting::kNothing && !shut_ && !eof_ &&
         tx_off() - tail_from_ >= min_tail_ && out_.empty();
}

// Rule 3.
bool Stream::Propose(std::uint8_t first) {
  if (lane_->Writable() == 0) return false;
  used_ = true;
  x_ = tx_off();
  posted_base_ = lane_->Posted();
  flip_ = peers_[0] == first;
  Ctl ctl;
  ctl.kind = CtlKind::kPropose;
  ctl.flags = flip_ ? kCtlFlip : 0;
  ctl.tail = static_cast<std::uint8_t>(tail_tx_.size());
  ctl.epoch = epoch_;
  ctl.offset = x_;
  if (!PostCtl(ctl)) {
    Trigger(base::Reason::kLaneError);
    return false;
  }
  tx_ = Tx::kProp;
  Emit(kTimerOn);
  return true;
}

void Stream::OnPropose(const Ctl& ctl) {
  if (waiting_ != Waiting::kNothing || accept_ || got_sent_) {
    return Trigger(base::Reason::kProtocol);
  }
  if (tx_ == Tx::kProp) {
    if (role_ == Role::kConnector) {  // rule 10
      waiting_ = Waiting::kTie;
      rx_x_ = ctl.offset;
      return;
    }
    Withdraw();
  } else if (tx_ != Tx::kRaw || rx_ != Rx::kRaw) {
    return Trigger(base::Reason::kProtocol);
  }
  used_ = true;
  flip_ = (ctl.flags & kCtlFlip) != 0;
  their_tail_ = ctl.tail;
  rx_x_ = ctl.offset;
  waiting_ = Waiting::kPropose;
  CheckPending();
}

// Rule 10: S gives up its own PROPOSE for C's; the lane lives on.
void Stream::Withdraw() {
  Emit(kTimerOff | kTxReady);
  tx_ = Tx::kRaw;
  tail_tx_.Push(copy_.data(), copy_.size());
  if (!out_.Append(copy_.data(), copy_.size())) {
    return Fail(base::Reason::kNoMemory);
  }
  copy_.Clear();
  FlushOut();
}

// Answers a PROPOSE (rule 4) or a SWITCH (rule 7) once TCP has reached its X.
void Stream::CheckPending() {
  if (waiting_ != Waiting::kPropose && waiting_ != Waiting::kSwitch) return;
  if (!LaneUsable()) return;
  // Rule 21: compared before the answer, never afterwards.
  const bool too_far = rx_x_ > InOff() && rx_x_ - rx_off() > limits_.stash;
  if (waiting_ == Waiting::kPropose) {
    const bool late = InOff() > rx_x_ && (broken_ & kLatePropose) == 0;
    // While the queue for TCP has not drained, refuse: it would grow by a ring
    // for each attempt of a peer that does not read.
    if (too_far || late || shut_ || eof_ || tx_ != Tx::kRaw ||
        rx_ != Rx::kRaw || !out_.empty()) {
      Refuse(lane_, epoch_);
      // The bytes behind that PROPOSE still wait, in case P dies.
      return Trigger(base::Reason::kPeerRefused);
    }
    if (InOff() < rx_x_) return;
    std::uint8_t tail = their_tail_;
    if (tail > tail_rx_.size())
      tail = static_cast<std::uint8_t>(tail_rx_.size());
    if (tail < min_tail_) {
      // So short a MAC would prove nothing. The MAC over a byte or two would
      // tell a stranger what these bytes are.
      Refuse(lane_, epoch_);
      return Trigger(base::Reason::kPeerRefused);
    }
    Ctl ctl;
    ctl.kind = CtlKind::kAccept;
    ctl.epoch = epoch_;
    ctl.tail = tail;
    ctl.mac = TailMac(ConnectorNonce(), AcceptorNonce(), epoch_, rx_x_,
                      tail_rx_.Last(tail), tail);
    if (!PostCtl(ctl)) return Trigger(base::Reason::kLaneError);
    waiting_ = Waiting::kArm;
    rx_ = Rx::kArm;
    hs_have_ = 0;
    return;
  }
  // Rule 7.
  if (InOff() > rx_x_) return Trigger(base::Reason::kProtocol);
  if (too_far) return Trigger(base::Reason::kPeerRefused);
  if (InOff() < rx_x_) return;
  waiting_ = Waiting::kGot;
  got_sent_ = true;
  rx_ = Rx::kArmF;
  hs_have_ = 0;
  SendFrame(FrameKind::kGot, 0);
}

// Rule 5.
void Stream::OnAccept(const Ctl& ctl) {
  if (waiting_ == Waiting::kTie) {
    waiting_ = Waiting::kNothing;  // S has withdrawn
    limbo_.Clear();
  }
  if (tx_ != Tx::kProp) return Trigger(base::Reason::kProtocol);
  std::uint8_t tail = ctl.tail;
  bool good = tail <= tail_tx_.size() && tail >= min_tail_;
  if (good) {
    Mac mac = TailMac(ConnectorNonce(), AcceptorNonce(), epoch_, x_,
                      tail_tx_.Last(tail), tail);
    good = Equal(mac, ctl.mac);
  }
  if (!good) return Trigger(base::Reason::kProtocol);
  Nonce commit = CommitOf(peers_, flip_);
  if (out_.Reserve(commit.size()) == nullptr) {
    return Trigger(base::Reason::kNoMemory);
  }
  if (Holds() && !PostHeld()) return Trigger(base::Reason::kLaneError);
  out_.Append(commit.data(), commit.size());
  proven_ = true;
  tx_ = Tx::kComm;
  // C has not proposed. The bytes that are not acknowledged stay in the ring. A
  // writer that waits for room in the copy gets that room.
  copy_.Clear();
  Emit(kTxReady);
}

// Posts all bytes, or fails. If not all fit, what has been posted is raw data
// again, which R distinguishes from COMMIT.
bool Stream::PostHeld() {
  const iovec iov{const_cast<std::uint8_t*>(copy_.data()), copy_.size()};
  std::size_t done = 0;
  while (done < iov.iov_len) {
    const std::size_t n = lane_->Post(&iov, 1, done, iov.iov_len - done);
    if (n == 0) return false;
    done += n;
  }
  return true;
}

// The lane half of rule 7.
void Stream::OnSwitch(const Ctl& ctl) {
  if (tx_ != Tx::kComm || got_sent_ || rx_ != Rx::kRaw ||
      waiting_ != Waiting::kNothing) {
    return Trigger(base::Reason::kProtocol);
  }
  waiting_ = Waiting::kSwitch;
  rx_x_ = ctl.offset;
  CheckPending();
}

// Rule 6: R at X_p.
void Stream::OnArmBytes() {
  const Nonce commit = CommitOf(mine_, flip_);
  for (std::uint8_t i = 0; i < hs_have_; ++i) {
    if (hs_[i] == commit[i]) continue;
    // The bytes are the application's: P has withdrawn, or the lane's peer does
    // not own this connection.
    std::uint8_t n = hs_have_;
    hs_have_ = 0;
    rx_ = Rx::kRaw;
    // What P has staged is in the ring while it comes by TCP.
    Trigger(base::Reason::kPeerDemoted);
    limbo_.Clear();
    waiting_ = Waiting::kNothing;
    tail_rx_.Push(hs_, n);
    if (!stash_.Append(hs_, n)) return Fail(base::Reason::kNoMemory);
    Emit(kRxReady);
    TookRaw();
    return;
  }
  if (hs_have_ < commit.size()) return;
  hs_have_ = 0;
  proven_ = true;
  rx_ = Rx::kFrames;
  waiting_ = Waiting::kGot;
  if (!LaneUsable() || tx_ != Tx::kRaw || shut_ || tx_broken_) return;
  x_ = tx_off();
  posted_base_ = lane_->Posted();
  Ctl ctl;
  ctl.kind = CtlKind::kSwitch;
  ctl.epoch = epoch_;
  ctl.offset = x_;
  if (!PostCtl(ctl)) return Trigger(base::Reason::kLaneError);
  tx_ = Tx::kStg;
  if ((broken_ & kAcceptEarly) != 0) accept_ = true;
  Emit(kTxReady);
}

// Rule 8.
void Stream::OnGot() {
  if (tx_ != Tx::kStg) return Fail(base::Reason::kProtocol);
  if (!out_.Append(peers_.data(), peers_.size())) {
    return Fail(base::Reason::kNoMemory);
  }
  tx_ = Tx::kLane;
  Emit(kPromotedTx | kTxReady);
  if (shut_) SendFin();
  if (!LaneUsable()) {
    SendLaneDown();
    tx_ = Tx::kDown;
    return;
  }
  // Only now: until GOT, P may still abort and send its staged bytes raw.
  accept_ = true;
  waiting_ = Waiting::kNothing;
  Emit(kPromotedRx | kRxReady);
}

// Rule 9: P at X_r.
void Stream::OnCommitFrame() {
  if (std::memcmp(hs_, mine_.data(), mine_.size()) != 0) {
    return Fail(base::Reason::kProtocol);
  }
  rx_ = Rx::kFrames;
  if (LaneUsable()) {
    accept_ = true;
    waiting_ = Waiting::kNothing;
    Emit(kPromotedRx | kRxReady);
  }
  if (tx_ == Tx::kComm) {
    tx_ = Tx::kLane;
    Emit(kTimerOff | kPromotedTx | kTxReady);
    if (shut_) SendFin();
  }
}

}  // namespace rcsock::stream
