// Ends: half-close and close (rules 16, 17 and 19), and the end of TCP (rule
// 18).

#include <algorithm>

#include "lib/base/log.h"
#include "lib/stream/stream.h"

namespace rcsock::stream {

int Stream::ShutdownWrite() {
  if (shut_) return 0;
  shut_ = true;
  if (tx_ == Tx::kLane) SendFin();
  Settle();
  return 0;
}

void Stream::EndSoon() {
  if (tx_ == Tx::kProp) return Demote(base::Reason::kShortLived);
  if (tx_ != Tx::kRaw || rx_ != Rx::kRaw || !LaneUsable() ||
      !lane_->Outlives()) {
    return;
  }
  // A PROPOSE that is still to be read is not answered any more.
  Refuse(lane_, epoch_);
  Trigger(base::Reason::kShortLived);
  Settle();
}

void Stream::Close(bool reset) {
  if (closed_) return;
  shut_ = true;  // a PROPOSE that is still to be read is refused
  TakeCtl();
  reset = reset || Untaken();
  // The peer has not agreed to take what is staged. A process that closes may
  // be about to exit, and TCP outlives it. A reset comes behind the bytes that
  // were sent before it. A peer that does not have the lane yet would never see
  // the staged bytes.
  if (tx_ == Tx::kProp) Trigger(base::Reason::kShortLived);
  closed_ = true;
  reset_ = reset;
  landing_ = reset;
  if (AwaitsLanding()) AskLanded();
  // The end of TCP comes soon after the FIN. If the peer then believes that
  // bytes are unread, it takes that end for a reset.
  if (accept_) lane_->Credit();
  if (!reset && tx_ == Tx::kLane) SendFin();
  Settle();
}

// In PROP, STG and RAW no frame can say it. On a lane that does not outlive its
// end none is needed. Either no frame of the peer's can be unread here, or
// bytes of the peer's are unread, which mean a reset anyway.
void Stream::TellReset() {
  if (kshut_ || tx_broken_ || failed_) return;
  if (lane_ != nullptr) lane_->SayReset();
  says_unread_ = false;
  if (tx_ != Tx::kComm && tx_ != Tx::kLane && tx_ != Tx::kDown) return;
  SendFrame(FrameKind::kReset, 0);
  if (!failed_) FlushOut();
}

void Stream::KernelShutdown() {
  if (kshut_) return;
  kshut_ = true;
  anchor_->ShutdownWrite();
}

// Rules 16 and 17.
void Stream::MaybeShutdown() {
  // A FIN before the reset would be an orderly end to a peer that reads it in
  // time.
  if (!shut_ || tx_broken_ || reset_) return;
  if (!kshut_ && out_.empty()) {
    const bool all_read =
        pfin_known_ && (closed_ ? InOff() : rx_off()) == pfin_;
    if (tx_ == Tx::kRaw) {
      KernelShutdown();
    } else if (tx_ == Tx::kLane && fin_sent_ && !fin_second_ && all_read &&
               (fin_acked_ || (lane_ != nullptr && AckedOff() == tx_off()))) {
      KernelShutdown();
    } else if ((tx_ == Tx::kLane || tx_ == Tx::kDown) && fin_sent_ && eof_) {
      // OnTcpEnd has found that the peer's end was orderly. The end that shut
      // down second ends second on TCP, too. So the first end has TIME_WAIT.
      KernelShutdown();
    } else if (tx_ == Tx::kLane && closed_ && fin_acked_ && !pfin_known_) {
      // No application here reads what may still come. A peer that writes
      // learns it by the reset, as from any closed socket. If the peer's FIN
      // has come, both ends go on by rule 17, which resets nothing.
      KernelShutdown();
    }
  }
  if (kshut_ && eof_) {
    // Both directions have ended: nothing is owed on the lane any more.
    if (lane_ != nullptr && !frozen_) FreezeLane(why_left_);
    tx_ = Tx::kRaw;
    rx_ = Rx::kRaw;
  }
}

// From now on nothing is taken from the lane, or owed to the lane or to TCP.
void Stream::LetGo() {
  accept_ = false;
  tx_ = Tx::kRaw;
  rx_ = Rx::kRaw;
  waiting_ = Waiting::kNothing;
  awaits_raw_ = false;
  kept_.Clear();
  out_.Clear();
  DropLimbo();
  ahead_ = 0;
  copy_.Clear();
  back_.Clear();
  back_left_ = 0;
}

// Rule 19.
void Stream::MaybeFinish() {
  if (!closed_ || finished_) return;
  // Bytes of the peer's are left for an application that is gone.
  if (!stash_.empty() || (accept_ && lane_->Readable() != 0)) reset_ = true;
  // An anchor in ARM holds, or will get, the data of a peer that has staged.
  // The kernel answers that data as for any closed socket. In frames the peer's
  // RAW must come first. Otherwise our close would reset what the peer has not
  // yet read. Our close must also not reset what was read before it came by
  // TCP.
  const bool raw = tx_ == Tx::kRaw && out_.empty() && ahead_ == 0 &&
                   (rx_ == Rx::kRaw || rx_ == Rx::kArm);
  // The peer's RAW, which answers ours, must not meet a closed socket.
  const bool back = tx_ == Tx::kRaw && rx_ == Rx::kFrames;
  const bool over =
      kshut_ && (eof_ || (fin_acked_ && !pfin_known_ && ahead_ == 0 && !back));
  if (!failed_ && !reset_ && !tx_broken_ && !raw && !over) return;
  if (AwaitsLanding()) return;
  finished_ = true;
  if (reset_) TellReset();
  // Bytes that a reset discards are not taken: the peer must see that they were
  // never read. This holds for bytes that land after the look above, too. Once
  // taken they would count as read, and their writer would wait for the answer
  // for ever.
  accept_ = false;
  if (lane_ != nullptr && !frozen_) FreezeLane(base::Reason::kNone);
  LetGo();
  stash_.Clear();
  tx_broken_ = eof_ = true;
  Emit(kFinished | kTimerOff);
  if (failed_ || reset_) Emit(kMustReset);
}

void Stream::SendFin() {
  if (fin_sent_) return;
  fin_sent_ = true;
  fin_second_ = pfin_known_;
  if (LaneUsable()) tx_off_ += lane_->Withdraw();
  // A client that has closed may connect again at once. TCP would show that
  // connection behind the end of this stream. A thread may read the frame FIN
  // too late for that. So the lane carries the end, too, behind the last byte.
  // To another host the lane is not ahead of the anchor.
  if (LaneUsable() && lane_->kind() != lane::Kind::kRdma) {
    Ctl end;
    end.kind = CtlKind::kEnd;
    end.epoch = epoch_;
    end.offset = tx_off();
    PostCtl(end);
  }
  SendFrame(FrameKind::kFin, tx_off(), closed_ ? kFrameClosed : 0);
}

// All bytes before END have been taken, so all of them are accepted. FIN is
// still to come, and this end acts on TCP only after FIN.
void Stream::OnEnd(const Ctl& ctl) {
  // The COMMIT before that FIN is still under way.
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

void Stream::OnTcpEnd(int error) {
  if (eof_) return;
  // An ACCEPT that is read now gets no answer.
  const bool raw_tx = SendsRaw();
  // What landed before the end was noticed still says where bytes belong.
  TakeCtl();
  TakeForgone();
  if (eof_ || failed_) return;
  if (error == 0) error = send_error_;
  send_error_ = 0;
  Emit(kRxReady | kTxReady);
  if (rx_ == Rx::kFrames) {
    if (tx_ == Tx::kLane || tx_ == Tx::kDown) {
      FreezeLane(base::Reason::kPeerGone);
      if (failed_) return;
      if (fin_seen_ && InOff() == pfin_ && fin_sent_ && error == 0) {
        // Rule 17: the peer has all of our bytes, or it would not have shut
        // down.
        eof_ = true;
        ahead_ = 0;
        fin_acked_ = true;
        out_.Clear();
        return;
      }
    }
    return PeerDied(error, raw_tx);
  }
  if (rx_ != Rx::kRaw) return PeerDied(error, raw_tx);
  const bool staged = Trusted() &&
                      (waiting_ != Waiting::kNothing || !limbo_.empty()) &&
                      (returns_ || InOff() == rx_x_);
  if (error != 0 || staged) return PeerDied(error, raw_tx);
  // An orderly half-close: we can still send.
  if (MayHaveLeft()) TakeLeft();
  if (failed_) return;
  eof_ = true;
  ahead_ = 0;
  Trigger(base::Reason::kShortLived);
  FreezeLane(base::Reason::kShortLived);
}

// A peer goes on writing to the ring until it hears that the lane is left. The
// peer may die before that, or before TCP has all that the peer sends again.
// Then the memory that outlives the peer still has what lies behind the freeze
// offset. What has been taken from TCP behind that offset is a copy of these
// bytes.
bool Stream::MayHaveLeft() const {
  return lane_ != nullptr && frozen_ && (broken_ & kNoThaw) == 0 &&
         (left_taken_ || Trusted());
}

// The peer has these bytes, and sends them again: from now on they are read
// from TCP.
void Stream::KeepReturns() {
  if (returns_ && lane_ != nullptr && !settled_ && lane_->Outlives()) {
    kept_at_ = rx_off() + stash_.size();
    kept_.Swap(limbo_);
  }
  DropLimbo();
}

// All other accepted bytes lie in the stash, or have been read.
void Stream::TakeLeft() {
  const std::uint64_t in = rx_off() + stash_.size();
  if (kept_at_ <= in && in - kept_at_ < kept_.size()) {
    const auto skip = static_cast<std::size_t>(in - kept_at_);
    if (!stash_.Append(kept_.data() + skip, kept_.size() - skip)) {
      return Fail(base::Reason::kNoMemory);
    }
  }
  if (!lane_->Thaw()) return;
  std::size_t room = lane_->RxRegion().length + kMaxTie;  // as in FreezeLane
  bool known = left_known_;
  for (;;) {
    const lane::Head head = lane_->Peek();
    const std::uint64_t have = rx_off() + stash_.size();
    if (head == lane::Head::kCtl) {
      std::uint8_t bytes[lane::Lane::kCtlMax];
      const std::size_t length = lane_->ReadCtl(bytes, sizeof bytes);
      Ctl ctl;
      if (!Decode(bytes, length, &ctl) || ctl.epoch != epoch_) return;
      if (ctl.kind == CtlKind::kPropose || ctl.kind == CtlKind::kSwitch) {
        // The lane was left before this message was read.
        if (left_taken_) return;
        left_at_ = ctl.offset;
        known = true;
      } else if (ctl.kind == CtlKind::kEnd) {
        if (left_taken_ && ctl.offset == have && left_at_ == have &&
            !pfin_known_) {
          pfin_known_ = true;
          pfin_ = have;
        }
        return;
      }
      continue;
    }
    // More is missing than the ring has, for example bytes that were read
    // ahead.
    if (!known || left_at_ > have) return;
    std::size_t n = head == lane::Head::kData ? lane_->Readable() : 0;
    if (n == 0) return;
    if (left_at_ < have) {
      n = static_cast<std::size_t>(std::min<std::uint64_t>(n, have - left_at_));
      n = lane_->Read(nullptr, 0, 0, n, false);
    } else {
      std::uint8_t* to = n <= room ? stash_.Reserve(n) : nullptr;
      if (to == nullptr) return Fail(base::Reason::kProtocol);
      const iovec iov{to, n};
      n = lane_->Read(&iov, 1, 0, n, false);
      stash_.Commit(n);
      room -= n;
    }
    if (n == 0) return;
    left_at_ += n;
  }
}

// Requires that the stream is on TCP in both directions.
void Stream::TellLeft() {
  using Left = lane::Lane::Left;
  const Left left = out_.empty() ? Left::kAll : Left::kTold;
  if (told_left_ >= left) return;
  told_left_ = left;
  lane_->TellLeft(left);
}

// Returns true if the peer needs the memory no more: if the peer is killed now,
// TCP delivers what it has written. A program that takes the connection over
// here does not wait until TCP has had room for all of that. A peer that is not
// proven, and from whose ring nothing has been taken, may never say anything;
// MayHaveLeft takes nothing from it.
bool Stream::MayLetGo() const {
  using Left = lane::Lane::Left;
  if (!lane_->Outlives() || eof_ || closed_ || failed_ ||
      !(left_taken_ || Trusted()) || (broken_ & kForgetRing) != 0) {
    return true;
  }
  return lane_->PeerLeft() >= (hands_over_ ? Left::kTold : Left::kAll);
}

// ... and the lane cannot be let go of, while a user waits for that: what TCP
// has comes before what the ring has.
bool Stream::PeerIsDead() const {
  return hands_over_ && lane_ != nullptr && frozen_ && !settled_ &&
         tx_ == Tx::kRaw && rx_ == Rx::kRaw && ahead_ == 0 && !eof_ &&
         lane_->State() != base::Reason::kNone && !MayLetGo();
}

// A PROPOSE or SWITCH alone changes nothing on TCP.
bool Stream::SendsRaw() const {
  const bool asks = tx_ == Tx::kProp || (tx_ == Tx::kStg && rx_ == Rx::kArm);
  return tx_ == Tx::kRaw || (asks && tx_off() == x_);
}

void Stream::PeerDied(int error, bool raw_tx) {
  const bool tcp_reset = error != 0;
  const bool raw_rx = rx_ == Rx::kRaw;
  // The peer has sent raw bytes up to there, if it has named an X.
  const std::uint64_t sent = rx_x_;
  if (!TakeLastBytes(tcp_reset)) return;
  eof_ = true;
  error = ErrorOfEnd(error, raw_tx, raw_rx);
  const bool unread = lane_ != nullptr && lane_->PeerSaysReset();
  if ((InOff() < sent || unread) && error == 0) error = ECONNRESET;
  const bool short_of_end = pfin_known_ && rx_off() + stash_.size() < pfin_;
  if (short_of_end && (error == 0 || error == EPIPE)) error = ECONNRESET;
  if (error != 0 && so_error_ == 0) {
    so_error_ = pfin_known_ && !short_of_end ? EPIPE : error;
  }
  // After an orderly end the kernel decides what becomes of a write. The kernel
  // takes the first write, and the answer to that ends the connection.
  if (tcp_reset || so_error_ != 0) tx_broken_ = true;
  // Our frames have caused the reset, or will. Without them this end would have
  // seen an orderly end, and the answer to the next write would be the reset.
  last_write_ = (tcp_reset || !raw_tx) && so_error_ == 0;
  if (last_write_) tx_broken_ = true;
  LetGo();
  hs_have_ = 0;
  Emit(kTimerOff | kRxReady | kTxReady);
}

// Freezes the lane, and takes all that the peer has left there. Returns false
// if the stream has failed.
bool Stream::TakeLastBytes(bool tcp_reset) {
  // P never ends in order with staged bytes: it flushes them raw first. So if
  // TCP ends exactly where they begin, P died staging.
  const std::uint64_t start = rx_x_;
  // A reset that came before the lane was there is the connection's, not the
  // process's.
  const bool never = tcp_reset && tx_ == Tx::kRaw && rx_ == Rx::kRaw && !used_;
  FreezeLane(never ? base::Reason::kShortLived : base::Reason::kPeerGone);
  if (failed_) return false;
  const bool left = MayHaveLeft();
  if (!limbo_.empty() && (returns_ || InOff() == start) && Trusted()) {
    if (!stash_.Append(limbo_.data(), limbo_.size())) {
      Fail(base::Reason::kNoMemory);
      return false;
    }
  }
  if (left) TakeLeft();
  if (!failed_ && pfin_known_ && rx_off() + stash_.size() > pfin_) {
    Fail(base::Reason::kProtocol);
  }
  return !failed_;
}

// Returns the error that the end of TCP means to the application, if TCP has
// reported `error`. `raw_tx` and `raw_rx`: whether each direction was raw
// before the lane was frozen.
//
// If bytes of ours were left unread, TCP would report ECONNRESET. If none were,
// the anchor's reset may only mean that the peer exited with a frame of ours
// unread. The reset is the application's in two cases. The peer has said so, or
// there can be no such frame. In the second case the peer has taken lane bytes,
// so it has read our COMMIT or GOT. No FIN, ACK or LANE_DOWN is under way,
// either. An error of the network is always the application's. So is a TCP end
// before the offset that the peer has named.
int Stream::ErrorOfEnd(int error, bool raw_tx, bool raw_rx) const {
  if (error != 0 && error != ECONNRESET && error != EPIPE) return error;
  const bool resets =
      peer_resets_ || (lane_ != nullptr && lane_->PeerSaysReset());
  if (!raw_tx && lane_ != nullptr) {
    // The peer's ACK counts for all bytes, too. So do the bytes that the peer
    // has named as landed after it has closed: the last credit may have died
    // with its device.
    const std::uint64_t acked = fin_acked_ ? tx_off()
                                : pclosed_ ? std::max(AckedOff(), probe_landed_)
                                           : AckedOff();
    if (acked < tx_off()) return ECONNRESET;
    const bool frame_unread =
        tx_ != Tx::kLane || acked <= x_ || fin_sent_ || pfin_known_;
    return frame_unread && !resets ? 0 : error;
  }
  if (!raw_tx || tx_off() != x_ || resets) return error;
  // On the way back to TCP: no byte of the application's is behind our RAW. A
  // peer that has not said RAW itself may have left our RAW unread.
  if (rx_ == Rx::kFrames) return 0;
  // P has left COMM.  R may have read neither COMMIT nor RAW.
  if (raw_rx && left_comm_ && !lane_down_seen_) return 0;
  // The peer has said RAW, and was killed before it had read ours.
  if (raw_rx && lane_down_seen_ && lane_ != nullptr && lane_->Outlives() &&
      lane_->PeerLeft() == lane::Lane::Left::kNot) {
    return 0;
  }
  return error;
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
  LetGo();
  stash_.Clear();
  so_error_ = ECONNRESET;
  eof_ = tx_broken_ = true;
  pfin_known_ = false;
  Emit(kMustReset | kRxReady | kTxReady | kTimerOff);
}

}  // namespace rcsock::stream
