// The rules of docs/protocol.md: promotion, demotion, failover, the ends.

#include "lib/base/log.h"
#include "lib/stream/stream.h"

namespace rcsock::stream {
namespace {

// Control messages, or runs of dropped data, looked at in one call.
constexpr int kMaxCtl = 32;
// What S may have staged behind a PROPOSE that C ignores.
constexpr std::size_t kMaxTie = 64 * 1024;
// What one end hands back to the other at most.
constexpr std::size_t kMaxBack = 8 * 1024 * 1024;

}  // namespace

const Nonce& Stream::ConnectorNonce() const {
  return role_ == Role::kConnector ? mine_ : peers_;
}

const Nonce& Stream::AcceptorNonce() const {
  return role_ == Role::kConnector ? peers_ : mine_;
}

// --- Messages out

void Stream::SendFrame(FrameKind kind, std::uint64_t offset,
                       std::uint8_t flags) {
  Frame frame{kind, flags, epoch_, offset};
  FrameBytes bytes = Encode(frame);
  if (!out_.Append(bytes.data(), bytes.size())) Fail(base::Reason::kNoMemory);
}

void Stream::SendLaneDown() {
  SendFrame(FrameKind::kLaneDown, InOff(),
            IsFailover(why_left_) ? 0 : kFrameLeaves);
}

// After own FIN the peer may have ended its side of TCP, and takes nothing
// back.
bool Stream::MayHandBack() const {
  return leave_ && accept_ && !stash_.empty() && stash_.size() <= kMaxBack &&
         tx_ == Tx::kLane && !fin_sent_;
}

// What was read ahead of the application lies before everything of this lane,
// so the peer has no copy.  The kernel's queue takes it from nobody but the
// peer.
void Stream::HandBack() {
  if (out_.Reserve(kFrameSize + stash_.size()) == nullptr) return;
  if (limbo_.size() != 0 && !stash_.Append(limbo_.data(), limbo_.size()))
    return;
  const std::size_t count = stash_.size() - limbo_.size();
  SendFrame(FrameKind::kBack, rx_off());
  out_.Append(stash_.data(), count);
  // If the peer dies before it has sent them, they are its last words.
  limbo_.Clear();
  limbo_.Swap(stash_);
  rx_x_ = rx_off();
}

void Stream::SendFin() {
  if (fin_sent_) return;
  fin_sent_ = true;
  // Whoever has closed may connect again at once, and TCP would show that
  // connection behind this one's end.  A frame is read by a thread that may
  // come too late for it; so the end is told behind the last byte, too.  (To
  // another host the lane is not ahead of the anchor.)
  if (LaneUsable() && lane_->kind() != lane::Kind::kRdma) {
    Ctl end;
    end.kind = CtlKind::kEnd;
    end.epoch = epoch_;
    end.offset = tx_off();
    PostCtl(end);
  }
  SendFrame(FrameKind::kFin, tx_off(), closed_ ? kFrameClosed : 0);
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

// --- Promotion

// Rules 1 and 2.  Write has a byte to stage.
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
      // Rule 10: the bytes behind a PROPOSE that lost.  S has its own copy;
      // they count only if S dies before it learns (rule 19).
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
      // An answer; or the peer has changed its mind before anybody asked.
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

// All that was posted before it has been taken, so what is accepted is all
// there is.  FIN comes all the same, and what is done to TCP waits for it.
void Stream::OnEnd(const Ctl& ctl) {
  // (The COMMIT before that FIN is still under way.)
  if (!accept_ && waiting_ == Waiting::kGot && rx_ == Rx::kArmF) return;
  if (!accept_ || end_seen_ || ctl.offset != InOff() ||
      (pfin_known_ && pfin_ != ctl.offset)) {
    return Trigger(base::Reason::kProtocol);
  }
  end_seen_ = true;
  if (pfin_known_) return;
  pfin_known_ = true;
  pfin_ = ctl.offset;
  Emit(kRxReady);
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
  // Rule 21: looked at before the answer, never afterwards.
  const bool too_far = rx_x_ > InOff() && rx_x_ - rx_off() > limits_.stash;
  if (waiting_ == Waiting::kPropose) {
    const bool late = InOff() > rx_x_ && (broken_ & kLatePropose) == 0;
    // (A queue for TCP that has not drained yet must not grow by a ring for
    // each attempt of a peer that does not read.)
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
      // It would prove nothing; and to a stranger the MAC over a byte or two
      // would tell what they are.
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
  // C has not proposed: what is unacked stays in the ring, and who waits for
  // room in the copy has it.
  copy_.Clear();
  Emit(kTxReady);
}

// All or nothing: what has been posted if not all could be is raw data again,
// which R tells from COMMIT.
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
    // They are the application's: P has withdrawn, or the lane's peer is not
    // the owner of this connection.
    std::uint8_t n = hs_have_;
    hs_have_ = 0;
    rx_ = Rx::kRaw;
    limbo_.Clear();
    waiting_ = Waiting::kNothing;
    tail_rx_.Push(hs_, n);
    if (!stash_.Append(hs_, n)) return Fail(base::Reason::kNoMemory);
    Emit(kRxReady);
    Trigger(base::Reason::kPeerDemoted);
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

// --- Frames

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
      return OnLaneDown(frame.offset, (frame.flags & kFrameLeaves) != 0);
    case FrameKind::kRaw:
      // Rule 14.  A peer that goes raw from elsewhere than where we stopped has
      // lost bytes, or repeats them.
      if (!lane_down_seen_ || frame.offset != InOff()) {
        return Fail(base::Reason::kProtocol);
      }
      rx_ = Rx::kRaw;
      accept_ = false;
      if (ahead_ == 0) DropLimbo();
      waiting_ = Waiting::kNothing;
      Emit(kRxReady);
      return;
    case FrameKind::kFin:
      if (fin_seen_ || frame.offset < InOff() + ahead_ ||
          (pfin_known_ && pfin_ != frame.offset)) {
        return Fail(base::Reason::kProtocol);
      }
      fin_seen_ = true;
      pclosed_ = (frame.flags & kFrameClosed) != 0;
      if (pfin_known_) return;
      pfin_known_ = true;
      pfin_ = frame.offset;
      Emit(kRxReady);
      return;
    case FrameKind::kAck:
      if (!fin_sent_ || frame.offset != tx_off()) {
        return Fail(base::Reason::kProtocol);
      }
      fin_acked_ = true;
      return;
    case FrameKind::kPing:
      return;
    case FrameKind::kProbe:
      return OnProbe();
    case FrameKind::kLanded:
      return OnLanded(frame.offset);
    case FrameKind::kBack:
      return OnBack(frame.offset);
    case FrameKind::kReset:
      // By itself it changes nothing: what ends the stream is the anchor.
      if (frame.offset != 0) return Fail(base::Reason::kProtocol);
      peer_resets_ = true;
      return;
  }
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

void Stream::OnProbe() {
  // Elsewhere a frame of ours may not be legal, or the lane is over anyway.
  if (tx_ != Tx::kLane || kshut_ || !accept_ || !LaneUsable()) return;
  // An honest peer asks once more only when it has been answered, so no more
  // than one answer waits here.  Another would fill our memory.
  constexpr std::size_t kMostWaiting = 4096;
  if (out_.size() > kMostWaiting) return;
  const std::uint64_t landed = InOff() + lane_->Readable();
  // It asks after a silence: if this process is killed now, or later, it should
  // know what has been read, as TCP would.
  lane_->Credit();
  SendFrame(FrameKind::kLanded, landed);
}

void Stream::OnLanded(std::uint64_t offset) {
  constexpr std::uint8_t kMostStalled = 3;
  if (!probe_out_ || offset > tx_off()) return Fail(base::Reason::kProtocol);
  probe_out_ = false;
  const bool asked = std::exchange(probe_asked_, false);
  if (tx_ != Tx::kLane || !LaneUsable()) {
    probe_landed_ = offset;
    return;
  }
  if (offset >= probe_at_) {
    probed_ = probe_at_;
    probe_stalled_ = 0;
  } else if (offset != probe_landed_) {
    probe_stalled_ = 0;
  } else if (asked) {
    // An application may ask more often than a slow lane moves.
  } else if (++probe_stalled_ >= kMostStalled) {
    Trigger(base::Reason::kLaneStalled);
  }
  probe_landed_ = offset;
  if (AwaitsLanding()) AskLanded();
}

void Stream::OnBack(std::uint64_t offset) {
  if ((tx_ != Tx::kLane && tx_ != Tx::kDown) || lane_down_seen_ ||
      !back_.empty() || offset >= x_ || x_ - offset > kMaxBack) {
    return Fail(base::Reason::kProtocol);
  }
  back_left_ = static_cast<std::size_t>(x_ - offset);
}

// Rule 13.
void Stream::OnLaneDown(std::uint64_t r, bool leaves) {
  lane_down_seen_ = true;
  // On iWARP the lane's end can come before the peer's word for it.
  if (leaves && frozen_ &&
      (why_left_ == base::Reason::kPeerGone ||
       why_left_ == base::Reason::kLaneError)) {
    why_left_ = base::Reason::kPeerDemoted;
  }
  // In flight or not, the peer takes no more.  It may have left for the sake of
  // something that only TCP can carry (urgent data), which nobody may read
  // past: so what is unread goes the same way.
  leave_ = !kshut_;
  const bool hand_back = MayHandBack();
  FreezeLane(base::Reason::kPeerDemoted);
  leave_ = false;
  if (kshut_) return;
  switch (tx_) {
    case Tx::kStg:  // before GOT: no frame, and r says nothing about us
      return GoRaw(x_, false);
    case Tx::kLane:
    case Tx::kDown:
      // Hostile: beyond what we sent, or less than it has already credited.
      if (r > tx_off() || (r < AckedOff() && AckedOff() > x_)) {
        return Fail(base::Reason::kProtocol);
      }
      if (!back_.empty() && r + back_.size() != x_) {
        return Fail(base::Reason::kProtocol);
      }
      if (tx_ == Tx::kLane && (broken_ & kRawFirst) == 0) {
        if (hand_back) HandBack();
        SendLaneDown();
      }
      return GoRaw(std::max(r, x_), true);
    case Tx::kRaw:
      return;
    case Tx::kProp:
    case Tx::kComm:
      // Its COMMIT, which comes first, would have moved us on.
      return Fail(base::Reason::kProtocol);
  }
}

// Rules 12 and 13: back to raw bytes, from offset `from` on.
void Stream::GoRaw(std::uint64_t from, bool with_frame) {
  if (with_frame) SendFrame(FrameKind::kRaw, from - back_.size());
  if (failed_) return;
  if (!back_.empty() && (broken_ & kLoseBack) == 0) {
    if (!out_.Append(back_.data(), back_.size())) {
      return Fail(base::Reason::kNoMemory);
    }
    tail_tx_.Push(back_.data(), back_.size());
  }
  back_.Clear();
  const bool copied = tx_ == Tx::kProp && Copies();
  tx_ = Tx::kRaw;
  Emit(kTxReady);
  std::size_t count = static_cast<std::size_t>(tx_off() - from);
  if (count == 0) {
    copy_.Clear();
    return;
  }
  std::uint8_t* to = out_.Reserve(count);
  if (to == nullptr) return Fail(base::Reason::kNoMemory);
  if (copied) {
    std::memcpy(to, copy_.data(), count);
    copy_.Clear();
  } else if (lane_ == nullptr || lane_->CopyUnacked(posted_base_ + (from - x_),
                                                    to, count) != count) {
    // The peer credited bytes that it now denies.
    return Fail(base::Reason::kProtocol);
  }
  out_.Commit(count);
  tail_tx_.Push(to, count);
}

// --- Abort and demotion

// Rule 11.
void Stream::FreezeLane(base::Reason reason) {
  if (lane_ == nullptr || frozen_) return;
  RCSOCK_LOG(2, "stream leaves its lane: %s", base::ReasonKey(reason));
  frozen_ = true;
  if ((broken_ & kNoFreeze) != 0 && accept_) return;
  lane_->Freeze();
  why_left_ = reason;
  Emit(kLeftLane | kRxReady | kTxReady);
  // What had landed: the application's, if the direction is proven.  Else it is
  // kept apart: should the peer turn out to be dead, exactly at the offset
  // where these bytes would begin, they are its last words (rule 19).  So is
  // what is left to the peer on purpose: it has not been credited.
  if (accept_ && leave_) {
    rx_x_ = InOff();
    limbo_.Clear();
    returns_ = true;
  }
  const bool take = accept_ && !leave_;
  const bool keep =
      accept_ || (waiting_ != Waiting::kNothing && (broken_ & kNoLimbo) == 0);
  ByteQueue* to = take ? &stash_ : &limbo_;
  std::size_t room = lane_->RxRegion().length + kMaxTie;
  while (keep && !failed_) {
    std::size_t n = lane_->Readable();
    if (n == 0) break;
    std::uint8_t* bytes = n <= room ? to->Reserve(n) : nullptr;
    if (bytes == nullptr) {
      if (!take) break;
      accept_ = false;
      return Fail(base::Reason::kProtocol);
    }
    iovec iov{bytes, n};
    // Bytes that are not accepted must not be credited either: P would find
    // them gone from its ring when it goes raw.
    n = lane_->Read(&iov, 1, 0, n, !take);
    to->Commit(n);
    if (n == 0 || !take) break;
    room -= n;
  }
  accept_ = false;
  // (By TCP they have come, and been read; nothing more may come there.)
  if (InOff() > rx_x_) limbo_.Clear();
  if (waiting_ == Waiting::kPropose || waiting_ == Waiting::kSwitch) {
    // Never answered now; limbo_ remembers rx_x_.
    waiting_ = Waiting::kNothing;
  }
  if (pfin_known_ && InOff() > pfin_) Fail(base::Reason::kProtocol);
}

// Rule 12.
void Stream::Trigger(base::Reason reason) {
  if (lane_ == nullptr || frozen_ || failed_) return;
  // A lane that ends by itself may do so because the peer is leaving it, whose
  // word for that comes later (iWARP): the same is done as for that word.
  const bool asked = leave_;
  leave_ = asked || IsFailover(reason);
  const bool hand_back = MayHandBack();
  leave_ = asked || hand_back;
  FreezeLane(reason);
  leave_ = asked;
  if (kshut_ || failed_) return;
  switch (tx_) {
    case Tx::kProp:
      Emit(kTimerOff);
      GoRaw(x_, false);
      break;
    case Tx::kComm:
      Emit(kTimerOff);
      SendLaneDown();
      if (got_sent_) {
        // R may be past STG and reading what we staged: it tells us how far.
        tx_ = Tx::kDown;
      } else {
        GoRaw(x_, true);
      }
      break;
    case Tx::kLane:
      if (hand_back) HandBack();
      SendLaneDown();
      tx_ = Tx::kDown;
      break;
    case Tx::kStg:  // R may not leave STG by itself (rule 8)
    case Tx::kDown:
    case Tx::kRaw:
      break;
  }
}

// --- The end of TCP (rule 18)

void Stream::OnTcpEnd(int error) {
  if (eof_) return;
  // What landed before the end was noticed still says where bytes belong.
  TakeCtl();
  if (eof_ || failed_) return;
  if (error == 0) error = send_error_;
  send_error_ = 0;
  Emit(kRxReady | kTxReady);
  if (rx_ == Rx::kFrames) {
    if (tx_ == Tx::kLane || tx_ == Tx::kDown) {
      FreezeLane(base::Reason::kPeerGone);
      if (failed_) return;
      if (fin_seen_ && InOff() == pfin_ && fin_sent_ && error == 0) {
        // Rule 17: the peer has all of ours, or it would not have shut down.
        eof_ = true;
        ahead_ = 0;
        fin_acked_ = true;
        out_.Clear();
        return;
      }
    }
    return PeerDied(error);
  }
  if (rx_ != Rx::kRaw) return PeerDied(error);
  const bool staged = Trusted() &&
                      (waiting_ != Waiting::kNothing || !limbo_.empty()) &&
                      (returns_ || InOff() == rx_x_);
  if (error != 0 || staged) return PeerDied(error);
  // An orderly half-close: we can still send.
  eof_ = true;
  ahead_ = 0;
  Trigger(base::Reason::kShortLived);
  FreezeLane(base::Reason::kShortLived);
}

void Stream::PeerDied(int error) {
  // P never ends in order with staged bytes: it flushes them raw first.  So an
  // end exactly where they begin means that it died staging.
  const std::uint64_t start = rx_x_;
  const bool raw_tx = tx_ == Tx::kRaw;
  // (A reset before the lane was there is the connection's, not the process's.)
  const bool never = error != 0 && raw_tx && rx_ == Rx::kRaw && !used_;
  FreezeLane(never ? base::Reason::kShortLived : base::Reason::kPeerGone);
  if (failed_) return;
  if (!limbo_.empty() && (returns_ || InOff() == start) && Trusted()) {
    if (!stash_.Append(limbo_.data(), limbo_.size())) {
      return Fail(base::Reason::kNoMemory);
    }
  }
  DropLimbo();
  ahead_ = 0;
  eof_ = true;
  // TCP would say ECONNRESET if bytes of ours were left unread.  If none were,
  // the anchor's reset may only mean that the peer exited with a frame of ours
  // unread.  It is the application's where there can be no such frame: the peer
  // has taken lane bytes, so it has read our COMMIT or GOT, and no FIN, ACK or
  // LANE_DOWN is under way; or where the peer has said so.
  // (An error of the network's is none of this, and always the application's.)
  const bool tcp_reset = error != 0;
  const bool by_reset = error == 0 || error == ECONNRESET || error == EPIPE;
  if (!raw_tx && lane_ != nullptr) {
    // (Its ACK says so too, and what it says has landed after it has closed:
    // the last credit may have died with its device.)
    const std::uint64_t acked = fin_acked_ ? tx_off()
                                : pclosed_ ? std::max(AckedOff(), probe_landed_)
                                           : AckedOff();
    if (acked < tx_off()) {
      error = ECONNRESET;
    } else if (by_reset && !peer_resets_ &&
               (tx_ != Tx::kLane || acked <= x_ || fin_sent_ || pfin_known_)) {
      error = 0;
    }
  } else if (raw_tx && by_reset && rx_ == Rx::kFrames && tx_off() == x_ &&
             !peer_resets_) {
    // On the way back to TCP: nothing of the application's is behind our RAW,
    // which a peer that has not said RAW itself may have left unread.
    error = 0;
  }
  if (error != 0 && so_error_ == 0) so_error_ = pfin_known_ ? EPIPE : error;
  // After an orderly end the kernel decides what becomes of a write: it takes
  // the first, and the answer to that ends the connection.
  if (tcp_reset || so_error_ != 0) tx_broken_ = true;
  // (The reset is of our frames' making, or will be: without them this end
  // would have seen an orderly one, and the answer to the next write is the
  // reset.)
  last_write_ = (tcp_reset || !raw_tx) && so_error_ == 0;
  if (last_write_) tx_broken_ = true;
  out_.Clear();
  copy_.Clear();
  back_.Clear();
  back_left_ = 0;
  accept_ = false;
  hs_have_ = 0;
  tx_ = Tx::kRaw;
  rx_ = Rx::kRaw;
  waiting_ = Waiting::kNothing;
  Emit(kTimerOff | kRxReady | kTxReady);
}

// The peer broke the rules, or memory ran out where bytes would be lost: the
// stream ends as if reset.
void Stream::Fail(base::Reason reason) {
  if (failed_) return;
  RCSOCK_LOG(1, "stream reset: %s", base::ReasonKey(reason));
  failed_ = true;
  accept_ = false;
  if (lane_ != nullptr && !frozen_) {
    lane_->Freeze();
    frozen_ = true;
    Emit(kLeftLane);
  }
  why_left_ = reason;
  out_.Clear();
  stash_.Clear();
  DropLimbo();
  ahead_ = 0;
  copy_.Clear();
  back_.Clear();
  back_left_ = 0;
  tx_ = Tx::kRaw;
  rx_ = Rx::kRaw;
  waiting_ = Waiting::kNothing;
  so_error_ = ECONNRESET;
  eof_ = tx_broken_ = true;
  pfin_known_ = false;
  Emit(kMustReset | kRxReady | kTxReady | kTimerOff);
}

}  // namespace rcsock::stream
