// Promotion: rules 2 to 10 of docs/protocol.md.

#include <cstring>

#include "lib/stream/stream.h"

namespace rcsock::stream {

// Rules 1 and 2.
bool Stream::MayPropose() const {
  return LaneUsable() && may_propose_ && !used_ && tx_ == Tx::kRaw &&
         rx_ == Rx::kRaw && waiting_ == Waiting::kNothing && !shut_ && !eof_ &&
         tx_off() - tail_from_ >= min_tail_ && out_.empty();
}

// Rule 2. A byte that waits for the switch waits for all its steps. So C asks
// for the switch before it has a byte, if the peer need not be proven and can
// be told later that no COMMIT comes.
void Stream::ProposeAhead() {
  if (role_ != Role::kConnector || !MayPropose() || min_tail_ != 0 ||
      !lane_->Outlives() || anchor_->Ended()) {
    return;
  }
  Propose(nullptr);
}

// Rule 3. `first`: the first byte to be staged, or null.
bool Stream::Propose(const std::uint8_t* first) {
  if (lane_->Writable() == 0) return false;
  used_ = true;
  x_ = tx_off();
  posted_base_ = lane_->Posted();
  flip_ = first != nullptr && peers_[0] == *first;
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
  TakeForgone();
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
    // The answers to both then come at once. Only where the memory outlives
    // this process: until COMMIT the bytes are in no queue of TCP's.
    if (proven_ && lane_->Outlives()) BeginStaging();
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
  if (copy_.empty()) return;
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

// Rule 6: R names X_r, and stages from there on.
void Stream::BeginStaging() {
  if (!LaneUsable() || tx_ != Tx::kRaw || shut_ || tx_broken_) return;
  x_ = tx_off();
  posted_base_ = lane_->Posted();
  Ctl ctl;
  ctl.kind = CtlKind::kSwitch;
  ctl.epoch = epoch_;
  ctl.offset = x_;
  if (!PostCtl(ctl)) return Trigger(base::Reason::kLaneError);
  tx_ = Tx::kStg;
  Emit(kTxReady);
}

// No COMMIT comes. The bytes at X_p are the application's: P has withdrawn, or
// the lane's peer does not own this connection.
void Stream::Disarm() {
  const std::uint8_t n = hs_have_;
  hs_have_ = 0;
  rx_ = Rx::kRaw;
  Trigger(base::Reason::kPeerDemoted);
  waiting_ = Waiting::kNothing;
  // P has sent no GOT, so it still reads raw bytes.
  if (tx_ == Tx::kStg) GoRaw(x_, false);
  // If P dies before TCP has any of what it has staged, that is in the ring
  // alone (rule 18).
  if (n == 0) return;
  limbo_.Clear();
  tail_rx_.Push(hs_, n);
  if (!stash_.Append(hs_, n)) return Fail(base::Reason::kNoMemory);
  Emit(kRxReady);
  TookRaw();
}

// Rule 6. P has proposed ahead, and its bytes may begin as COMMIT does.
void Stream::TakeForgone() {
  const bool asked = rx_ == Rx::kArm || waiting_ == Waiting::kPropose;
  if (asked && lane_ != nullptr && lane_->PeerForgoes() &&
      (broken_ & kDeafToForgo) == 0) {
    Disarm();
  }
}

// Rule 6: R at X_p.
void Stream::OnArmBytes() {
  TakeForgone();
  if (rx_ != Rx::kArm) return;
  const Nonce commit = CommitOf(mine_, flip_);
  for (std::uint8_t i = 0; i < hs_have_; ++i) {
    if (hs_[i] != commit[i]) return Disarm();
  }
  if (hs_have_ < commit.size()) return;
  hs_have_ = 0;
  proven_ = true;
  rx_ = Rx::kFrames;
  waiting_ = Waiting::kGot;
  BeginStaging();
  if (tx_ == Tx::kStg && (broken_ & kAcceptEarly) != 0) accept_ = true;
}

// Rule 8.
void Stream::OnGot() {
  if (tx_ != Tx::kStg) return Fail(base::Reason::kProtocol);
  if (!out_.Append(peers_.data(), peers_.size())) {
    return Fail(base::Reason::kNoMemory);
  }
  tx_ = Tx::kLane;
  Emit(kTimerOff | kPromotedTx | kTxReady);
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
  LeaveIfAsked();
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
  if (LaneUsable()) LeaveIfAsked();
}

}  // namespace rcsock::stream
