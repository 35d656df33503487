// Demotion and failover: back to raw bytes, by rules 11 to 14 of
// docs/protocol.md.

#include <algorithm>
#include <cstring>

#include "lib/base/log.h"
#include "lib/stream/stream.h"

namespace rcsock::stream {
namespace {

// The most that one end hands back to the other.
constexpr std::size_t kMaxBack = 8 * 1024 * 1024;

}  // namespace

void Stream::Demote(base::Reason reason, bool leave) {
  TakeCtl();
  if (leave && LaneUsable() && lane_->Outlives() && !stash_.empty() &&
      (tx_ == Tx::kComm || tx_ == Tx::kStg)) {
    // Only an end in LANE can hand back what it has read ahead, and another
    // user of the connection finds only what the kernel has. That end comes
    // there within a message or two, or timer T ends the switch.
    leaves_later_ = reason;
    Settle();
    return;
  }
  if (LaneUsable() && tx_ == Tx::kRaw && rx_ == Rx::kRaw &&
      waiting_ == Waiting::kNothing && !closed_) {
    // Neither end has proposed, so no frame on TCP can say it. Without REFUSE
    // the peer would wait for a PROPOSE, and read ahead, for ever.
    Refuse(lane_, epoch_);
  } else if (LaneUsable() && tx_ == Tx::kRaw &&
             (waiting_ == Waiting::kPropose || waiting_ == Waiting::kArm)) {
    // R cannot say it by a frame either. P would learn of it by its timer only,
    // which may take long. Until then R cannot be on TCP, and a fork would wait
    // for that.
    Refuse(lane_, epoch_);
  }
  leave_ = leave;
  hands_over_ = hands_over_ || leave;
  Trigger(reason);
  leave_ = false;
  Settle();
}

// LANE has come for both directions.
void Stream::LeaveIfAsked() {
  const base::Reason reason = leaves_later_;
  if (reason == base::Reason::kNone) return;
  leave_ = hands_over_ = true;
  Trigger(reason);
  leave_ = false;
}

// Rule 12.
void Stream::Trigger(base::Reason reason) {
  if (lane_ == nullptr || frozen_ || failed_) return;
  // A lane that ends by itself may do so because the peer leaves it, and the
  // peer's LANE_DOWN may come later (iWARP). So this end acts as on LANE_DOWN.
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
      lane_->Forgo();
      GoRaw(x_, false);
      break;
    case Tx::kComm:
      Emit(kTimerOff);
      SendLaneDown();
      if (got_sent_) {
        // R may be past STG and reading what P has staged. R's answer says how
        // far.
        tx_ = Tx::kDown;
      } else {
        left_comm_ = true;
        GoRaw(x_, true);
      }
      break;
    case Tx::kLane:
      if (hand_back) HandBack();
      SendLaneDown();
      tx_ = Tx::kDown;
      break;
    case Tx::kStg:
      // R may not leave STG by itself (rule 8). If the link has ended, too,
      // nothing tells R that P forgoes COMMIT.
      Emit(kTimerOn);
      break;
    case Tx::kDown:
    case Tx::kRaw:
      break;
  }
}

// Rule 11.
void Stream::FreezeLane(base::Reason reason) {
  if (lane_ == nullptr || frozen_) return;
  RCSOCK_LOG(2, "stream leaves its lane: %s", base::ReasonKey(reason));
  frozen_ = true;
  leaves_later_ = base::Reason::kNone;
  if ((broken_ & kNoFreeze) != 0 && accept_) return;
  tx_off_ += lane_->Withdraw();
  lane_->Freeze();
  why_left_ = reason;
  Emit(kLeftLane | kRxReady | kTxReady);
  // If the direction is proven, what had landed is the application's. Otherwise
  // it is kept apart. If it turns out that the peer has died exactly where
  // these bytes would begin, they are its last words (rule 18). Bytes that are
  // left to the peer on purpose are kept apart too: they have not been
  // credited.
  if (accept_ && leave_) {
    rx_x_ = InOff();
    limbo_.Clear();
    returns_ = true;
  }
  const bool take = accept_ && !leave_;
  const bool keep =
      accept_ || (waiting_ != Waiting::kNothing && (broken_ & kNoLimbo) == 0);
  left_known_ = keep;
  left_taken_ = accept_;
  ByteQueue* to = take ? &stash_ : &limbo_;
  // After a tie, limbo_ holds what was taken out of the ring before.
  left_at_ = accept_ ? InOff() : rx_x_ + limbo_.size();
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
    // Bytes that are not accepted must not be credited either. P would find
    // them gone from its ring when it goes raw.
    n = lane_->Read(&iov, 1, 0, n, !take);
    to->Commit(n);
    if (n == 0 || !take) break;
    left_at_ += n;
    room -= n;
  }
  accept_ = false;
  // The application has read these bytes as they came by TCP; no more may come
  // there.
  if (InOff() > rx_x_) limbo_.Clear();
  if (waiting_ == Waiting::kPropose || waiting_ == Waiting::kSwitch) {
    // Never answered now; limbo_ still goes with rx_x_.
    waiting_ = Waiting::kNothing;
  }
  if (pfin_known_ && InOff() > pfin_) Fail(base::Reason::kProtocol);
}

void Stream::SendLaneDown() {
  // An answer to the peer's LANE_DOWN does not say "of its own accord". If the
  // peer's lane has failed, the peer would otherwise take its failover for a
  // demotion by this end.
  const bool leaves = !IsFailover(why_left_) &&
                      why_left_ != base::Reason::kPeerDemoted &&
                      why_left_ != base::Reason::kPeerShared;
  const bool idle = why_left_ == base::Reason::kIdleRings;
  const bool shared = why_left_ == base::Reason::kPinnedFork ||
                      why_left_ == base::Reason::kPinnedExec;
  SendFrame(FrameKind::kLaneDown, InOff(),
            static_cast<std::uint8_t>((leaves ? kFrameLeaves : 0) |
                                      (idle ? kFrameIdle : 0) |
                                      (shared ? kFrameShared : 0)));
}

// Behind this end's own FIN the peer may have ended its side of TCP, and takes
// nothing back.
bool Stream::MayHandBack() const {
  return leave_ && accept_ && !stash_.empty() && stash_.size() <= kMaxBack &&
         tx_ == Tx::kLane && !fin_sent_;
}

// Bytes that were read ahead of the application lie before all bytes of this
// lane, so the peer has no copy. Only the peer can put them into this end's
// kernel queue.
void Stream::HandBack() {
  if (out_.Reserve(kFrameSize + stash_.size()) == nullptr) return;
  if (limbo_.size() != 0 && !stash_.Append(limbo_.data(), limbo_.size()))
    return;
  const std::size_t count = stash_.size() - limbo_.size();
  SendFrame(FrameKind::kBack, rx_off());
  out_.Append(stash_.data(), count);
  // If the peer dies before it has sent these bytes, they are its last words.
  limbo_.Clear();
  limbo_.Swap(stash_);
  rx_x_ = rx_off();
}

void Stream::OnBack(std::uint64_t offset) {
  if ((tx_ != Tx::kLane && tx_ != Tx::kDown) || lane_down_seen_ ||
      !back_.empty() || offset >= x_ || x_ - offset > kMaxBack) {
    return Fail(base::Reason::kProtocol);
  }
  back_left_ = static_cast<std::size_t>(x_ - offset);
}

// Rule 13.
void Stream::OnLaneDown(std::uint64_t r, std::uint8_t flags) {
  lane_down_seen_ = true;
  // On iWARP the lane's end can come before the peer's LANE_DOWN.
  if ((flags & kFrameLeaves) != 0 && frozen_ &&
      (why_left_ == base::Reason::kPeerGone ||
       why_left_ == base::Reason::kLaneError)) {
    why_left_ = base::Reason::kPeerDemoted;
  }
  // The peer takes no more, in flight or not. The peer may have left because
  // only TCP can carry what comes next, such as urgent data, which no reader
  // may pass. So unread bytes go by TCP, too.
  leave_ = !kshut_;
  const bool hand_back = MayHandBack();
  FreezeLane((flags & kFrameIdle) != 0     ? base::Reason::kIdleRings
             : (flags & kFrameShared) != 0 ? base::Reason::kPeerShared
                                           : base::Reason::kPeerDemoted);
  leave_ = false;
  if (kshut_) return;
  switch (tx_) {
    case Tx::kStg:  // before GOT: no frame, and r says nothing about us
      return GoRaw(x_, false);
    case Tx::kLane:
    case Tx::kDown:
      // A hostile peer: beyond what we sent, or less than it has already
      // credited.
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
      // The peer's COMMIT comes first, and would have changed the state.
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
  if (tx_ == Tx::kStg) {
    changes_ &= ~std::uint32_t{kTimerOn};  // Trigger's, if nobody has seen it
    Emit(kTimerOff);
  }
  tx_ = Tx::kRaw;
  // What goes to TCP now is in the ring, too. What comes later is not in the
  // ring. If a process is killed with a frame unread, its kernel drops the
  // bytes that it has not sent.
  awaits_raw_ = rx_ == Rx::kFrames && lane_ != nullptr && lane_->Outlives() &&
                (broken_ & kWriteBehindRaw) == 0;
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

}  // namespace rcsock::stream
