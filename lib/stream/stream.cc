#include "lib/stream/stream.h"

#include <poll.h>

#include <algorithm>

#include "lib/base/pool.h"

namespace rcsock::stream {
namespace {

// Bounds the work of one Progress call, whatever the peer does.
constexpr int kMaxRecvs = 64;
constexpr std::size_t kReadAhead = 64 * 1024;
// What P stages before it knows whom it has proposed to, or (S) that C has not
// proposed too.
constexpr std::size_t kMaxCopy = 64 * 1024;

}  // namespace

namespace {
constinit base::Pool streams(sizeof(Stream));
}  // namespace

void* Stream::operator new(std::size_t) noexcept { return streams.Take(); }
void* Stream::operator new(std::size_t, const std::nothrow_t&) noexcept {
  return streams.Take();
}
void Stream::operator delete(void* at) noexcept { streams.Give(at); }

Stream::Stream(Role role, Anchor* anchor, Limits limits, Quick* quick)
    : anchor_(anchor), quick_(quick), role_(role), limits_(limits) {
  if (quick_ != nullptr) quick_->may_send = quick_->may_receive = false;
}

void Stream::Adopt(std::uint64_t tx_off, std::uint64_t rx_off) {
  tx_off_ = tx_off;
  rx_off_ = rx_off;
  if (quick_ != nullptr) {
    tx_off_ -= quick_->tx;
    rx_off_ -= quick_->rx;
  }
  adopted_ = true;
}

// Rule 1.
void Stream::LaneUp(lane::Lane* lane, std::uint32_t epoch, const Nonce& mine,
                    const Nonce& peers, bool may_propose,
                    std::uint8_t min_tail) {
  lane_ = lane;
  epoch_ = epoch;
  mine_ = mine;
  peers_ = peers;
  may_propose_ = may_propose;
  min_tail_ = min_tail;
  tail_from_ = tx_off();
  proven_ = min_tail == 0;
  probed_ = probe_at_ = probe_landed_ = probe_acked_ = 0;
  probe_stalled_ = 0;
  probe_out_ = probe_asked_ = false;
  frozen_ = settled_ = used_ = flip_ = got_sent_ = accept_ = false;
  lane_down_seen_ = false;
  waiting_ = Waiting::kNothing;
  x_ = rx_x_ = posted_base_ = 0;
  DropLimbo();
  if (tx_ != Tx::kRaw || rx_ != Rx::kRaw || shut_ || eof_ || tx_broken_) {
    Refuse(lane_, epoch_);  // or the peer would wait for an answer
    FreezeLane(base::Reason::kShortLived);
  }
  Settle();
}

void Stream::ReleaseLane() {
  lane_ = nullptr;
  frozen_ = settled_ = accept_ = false;
  Settle();
}

std::uint32_t Stream::TakeChanges() {
  std::uint32_t changes = changes_;
  changes_ = 0;
  return changes;
}

// --- Writing

ssize_t Stream::WriteSlow(const iovec* iov, int count, std::size_t total) {
  ssize_t n = WriteNow(iov, count, total);
  Settle();
  return n;
}

ssize_t Stream::WriteNow(const iovec* iov, int count, std::size_t total) {
  if (so_error_ != 0) return -TakeError();
  if (last_write_ && !shut_ && total != 0) {
    last_write_ = false;
    so_error_ = EPIPE;  // the answer to it: now it has hung up
    Emit(kRxReady | kTxReady);
    return static_cast<ssize_t>(total);
  }
  // (Nothing is written by nothing: no answer comes to it.)
  if (last_write_ && !shut_) return 0;
  if (shut_ || tx_broken_) return -EPIPE;
  if (total == 0) return 0;
  switch (tx_) {
    case Tx::kRaw:
      if (!FlushOut()) {
        if (so_error_ != 0) return -TakeError();
        return tx_broken_ ? -EPIPE : -EAGAIN;
      }
      if (MayPropose()) {
        int i = 0;
        while (iov[i].iov_len == 0) ++i;
        if (Propose(*static_cast<const std::uint8_t*>(iov[i].iov_base))) {
          ssize_t n = StageOrPost(iov, count, total);
          if (n > 0) return n;
          // Rule 2: never a proposal without a staged byte.
          Trigger(base::Reason::kLaneError);
        }
      }
      return SendRaw(iov, count);
    case Tx::kProp:
    case Tx::kComm:
    case Tx::kStg:
    case Tx::kLane:
      return LaneUsable() ? StageOrPost(iov, count, total) : -EAGAIN;
    case Tx::kDown:
      break;
  }
  return -EAGAIN;
}

ssize_t Stream::StageOrPost(const iovec* iov, int count, std::size_t total) {
  const bool copy = tx_ == Tx::kProp && Copies();
  std::size_t limit = total;
  if (copy) {
    const std::size_t most = CopyLimit();
    limit = std::min(limit, most - std::min(most, copy_.size()));
    if (limit == 0 || copy_.Reserve(limit) == nullptr) return -EAGAIN;
  }
  const bool hold = copy && Holds();
  std::size_t n = hold ? limit : lane_->Post(iov, count, 0, limit);
  if (copy) {
    std::size_t left = n;
    for (int i = 0; i < count && left != 0; ++i) {
      std::size_t part = std::min(iov[i].iov_len, left);
      copy_.Append(iov[i].iov_base, part);
      left -= part;
    }
  }
  tx_off_ += n;
  return n != 0 ? static_cast<ssize_t>(n) : -EAGAIN;
}

// What is held must fit into the ring, all of it, when it may go there.
std::size_t Stream::CopyLimit() const {
  return Holds() ? std::min(kMaxCopy, lane_->Writable()) : kMaxCopy;
}

ssize_t Stream::SendRaw(const iovec* iov, int count) {
  ssize_t n = anchor_->Send(iov, count);
  if (n > 0) {
    tail_tx_.Push(iov, count, static_cast<std::size_t>(n));
    tx_off_ += static_cast<std::uint64_t>(n);
  } else if (n < 0 && n != -EAGAIN && n != -EINTR) {
    // Only what the kernel itself will repeat for ever.
    if (n == -EPIPE || n == -ECONNRESET) tx_broken_ = true;
  }
  return n;
}

// True if nothing is left to be written.
bool Stream::FlushOut() {
  if (out_.empty()) return true;
  while (!out_.empty()) {
    iovec iov{const_cast<std::uint8_t*>(out_.data()), out_.size()};
    ssize_t n = anchor_->Send(&iov, 1);
    if (n == -EAGAIN || n == -EINTR || n == 0) return false;
    if (n < 0) {
      // The reading side still delivers what the peer sent before it went.
      // After its FIN a reset is EPIPE, as in the kernel, which has not seen
      // the FIN if it came as a frame; and nothing at all if only frames were
      // still to go: to TCP its end would have been an orderly one.
      const bool nothing =
          pfin_known_ && (tx_ == Tx::kLane || tx_ == Tx::kDown) &&
          (fin_acked_ || (lane_ != nullptr && AckedOff() == tx_off()));
      if (n != -EPIPE && so_error_ == 0 && !nothing) {
        const bool more =
            rx_ != Rx::kRaw || waiting_ != Waiting::kNothing || !limbo_.empty();
        if (n == -ECONNRESET && more && !pfin_known_) {
          // The kernel tells of a reset once, and this time told the writer.
          // What is on the lane came before it.
          send_error_ = static_cast<int>(-n);
        } else {
          so_error_ = pfin_known_ ? EPIPE : static_cast<int>(-n);
        }
      }
      tx_broken_ = true;
      out_.Clear();
      Emit(kTxReady | kRxReady);
      return false;
    }
    out_.Drop(static_cast<std::size_t>(n));
  }
  Emit(kTxReady);
  return true;
}

// --- Reading

std::size_t Stream::TakeBuffered(const iovec* iov, int count, std::size_t total,
                                 bool peek) {
  // Rule 14: ring up to the latch, stash, TCP; and whatever was raw before the
  // ring is in the stash too.
  std::size_t got = stash_.CopyTo(iov, count, 0, total);
  if (!peek) {
    stash_.Drop(got);
    rx_off_ += got;
  }
  if (got == total || (!accept_ && !ReadsLimbo())) return got;
  std::size_t limit = total - got;
  if (pfin_known_) {
    std::uint64_t left = pfin_ - (peek ? rx_off() + got : rx_off());
    if (limit > left) limit = static_cast<std::size_t>(left);
  }
  if (limit == 0) return got;
  if (!accept_) {
    const std::size_t n = limbo_.CopyTo(iov, count, got, limit);
    if (!peek) {
      limbo_.Drop(n);
      rx_off_ += n;
      if ((broken_ & kRepeatReturns) == 0) ahead_ += n;
    }
    return got + n;
  }
  std::size_t n = lane_->Read(iov, count, got, limit, peek);
  if (!peek) rx_off_ += n;
  return got + n;
}

ssize_t Stream::ReadSlow(const iovec* iov, int count, std::size_t total,
                         bool peek) {
  if (total == 0) return 0;
  ssize_t result = -EAGAIN;
  // Each round that finds nothing reads TCP; what that brings (a frame, the
  // end) can make bytes readable at most a few times.
  for (int round = 0; round < 4; ++round) {
    std::size_t got = TakeBuffered(iov, count, total, peek);
    if (got != 0 && got < total && rx_ == Rx::kRaw && ahead_ == 0 && !eof_ &&
        !failed_) {
      // What the kernel has goes with it, as it would in one queue: a reader
      // may take a short answer for the end of what there is.
      got += RecvRest(iov, count, got, peek);
    }
    if (got != 0) {
      result = static_cast<ssize_t>(got);
      break;
    }
    // Behind the peer's FIN there is nothing but the end, whatever came after.
    // (EPIPE is a reset after the peer's end: the writer's, by write, SO_ERROR
    // and poll, and nothing to a reader.)
    const bool past_fin =
        pfin_known_ ? rx_off() == pfin_ : eof_ && so_error_ == EPIPE;
    if (so_error_ != 0 && !past_fin) {
      // What had come before it is still there.
      ssize_t n = 0;
      if (rx_ == Rx::kRaw && !accept_ && !eof_ && DropAhead()) {
        n = RecvRaw(iov, count, peek);
      }
      result = n > 0 ? n : -TakeError();
      break;
    }
    if (AtEof()) {
      result = 0;
      break;
    }
    if (accept_ || eof_) break;  // frames are Progress's business
    if (rx_ == Rx::kRaw && ahead_ != 0) {
      if (!DropAhead() && !eof_ && !failed_) break;
      continue;
    }
    if (rx_ == Rx::kRaw) {
      ssize_t n = RecvRaw(iov, count, peek);
      if (n > 0) {
        result = n;
        break;
      }
      if (n == -EAGAIN || n == -EINTR) {
        result = n;
        break;
      }
      OnTcpEnd(n == 0 ? 0 : static_cast<int>(-n));
      continue;
    }
    Rx before = rx_;
    PumpTcp();
    if (stash_.empty() && rx_ == before && !eof_ && !accept_) break;
  }
  Settle();
  return result;
}

// For the application: bytes, 0 at the end, or -errno.
ssize_t Stream::RecvRaw(const iovec* iov, int count, bool peek) {
  const ssize_t n = anchor_->RecvV(iov, count, peek);
  if (n > 0 && !peek) {
    tail_rx_.Push(iov, count, static_cast<std::size_t>(n));
    rx_off_ += static_cast<std::uint64_t>(n);
    TookRaw();
  }
  return n;
}

// The same behind the first `skip` bytes of the vector; 0: nothing, for now.
std::size_t Stream::RecvRest(const iovec* iov, int count, std::size_t skip,
                             bool peek) {
  if (anchor_->AtMark()) return 0;
  for (int i = 0; i < count; ++i) {
    if (skip >= iov[i].iov_len) {
      skip -= iov[i].iov_len;
      continue;
    }
    const iovec first{static_cast<char*>(iov[i].iov_base) + skip,
                      iov[i].iov_len - skip};
    ssize_t n = RecvRaw(&first, 1, peek);
    if (n <= 0) return 0;  // an end or an error is for the next call
    auto got = static_cast<std::size_t>(n);
    // (Not behind a read that has come to the switch: what is sent there is
    // no application's.)
    if (got == first.iov_len && i + 1 < count && !peek && rx_ == Rx::kRaw &&
        !anchor_->AtMark()) {
      n = RecvRaw(iov + i + 1, count - i - 1, false);
      if (n > 0) got += static_cast<std::size_t>(n);
    }
    return got;
  }
  return 0;
}

// What the application has had from limbo_ comes once more, by TCP.  True: all
// of it has.
bool Stream::DropAhead() {
  std::uint8_t nowhere[4096];
  while (ahead_ != 0) {
    const ssize_t n = anchor_->Recv(nowhere, std::min(ahead_, sizeof nowhere));
    if (n == -EAGAIN || n == -EINTR) return false;
    if (n <= 0) {
      OnTcpEnd(static_cast<int>(-n));
      return false;
    }
    tail_rx_.Push(nowhere, static_cast<std::size_t>(n));
    ahead_ -= static_cast<std::size_t>(n);
    if (ahead_ == 0) {
      // The rest is behind it.  (Who waits for that may have looked before.)
      DropLimbo();
      Emit(kRxReady);
    }
    TookRaw();
    if (failed_) return false;
  }
  return true;
}

// Reads ahead into the stash.
void Stream::PumpRaw(std::size_t want) {
  want = std::min(want, kReadAhead);
  std::uint8_t* to = stash_.Reserve(want);
  ssize_t n = to == nullptr ? -EAGAIN : anchor_->Recv(to, want);
  if (n > 0) {
    tail_rx_.Push(to, static_cast<std::size_t>(n));
    stash_.Commit(static_cast<std::size_t>(n));
    Emit(kRxReady);
    TookRaw();
    return;
  }
  if (stash_.empty()) stash_.Clear();
  if (n != -EAGAIN && n != -EINTR) OnTcpEnd(n == 0 ? 0 : static_cast<int>(-n));
}

void Stream::PumpTcp() {
  for (int i = 0; i < kMaxRecvs && !eof_ && !failed_; ++i) {
    if (rx_ == Rx::kRaw) {
      if (ahead_ != 0) {
        if (!DropAhead()) return;
        continue;
      }
      std::size_t want = 0;
      if (waiting_ == Waiting::kPropose || waiting_ == Waiting::kSwitch) {
        // Not beyond X: what follows there decides what it is.
        want = static_cast<std::size_t>(rx_x_ - InOff());
      } else if (closed_) {
        want = stash_.empty() ? 1 : 0;  // one byte is enough to answer with RST
      } else if (!limbo_.empty()) {
        // One byte behind X tells a peer that went raw from one that died
        // staging.
        const std::uint64_t in = InOff();
        want = static_cast<std::size_t>(in < rx_x_ ? rx_x_ - in + 1 : 1);
      } else if (pfin_known_ && InOff() == pfin_) {
        want = 1;  // there is nothing but the end of TCP
      }
      if (want == 0) return;
      std::uint64_t before = InOff();
      PumpRaw(want);
      if (InOff() == before) return;
      continue;
    }
    std::uint8_t* to = hs_ + hs_have_;
    std::size_t want = kFrameSize - hs_have_;
    if (back_left_ != 0) {
      want = std::min(back_left_, kReadAhead);
      to = back_.Reserve(want);
      if (to == nullptr) return Fail(base::Reason::kNoMemory);
    }
    ssize_t n = anchor_->Recv(to, want);
    if (n == -EAGAIN || n == -EINTR) return;
    if (n <= 0) {
      OnTcpEnd(static_cast<int>(-n));
      return;
    }
    if (back_left_ != 0) {
      back_.Commit(static_cast<std::size_t>(n));
      back_left_ -= static_cast<std::size_t>(n);
      continue;
    }
    hs_have_ = static_cast<std::uint8_t>(hs_have_ + n);
    if (rx_ == Rx::kArm) {
      OnArmBytes();
    } else if (hs_have_ == kFrameSize) {
      hs_have_ = 0;
      if (rx_ == Rx::kArmF) {
        OnCommitFrame();
      } else {
        OnFrame();
      }
    }
  }
}

// Raw bytes have come in.
void Stream::TookRaw() {
  // (They went over TCP.)
  if (!limbo_.empty() && !returns_ && InOff() > rx_x_) limbo_.Clear();
  if (pfin_known_ && InOff() > pfin_) return Fail(base::Reason::kProtocol);
  CheckPending();
}

bool Stream::AtEof() const {
  if (!stash_.empty()) return false;
  return eof_ || (pfin_known_ && rx_off() == pfin_);
}

int Stream::TakeError() {
  int error = so_error_;
  so_error_ = 0;
  return error;
}

// --- Ends

int Stream::ShutdownWrite() {
  if (shut_) return 0;
  shut_ = true;
  if (tx_ == Tx::kLane) SendFin();
  Settle();
  return 0;
}

void Stream::Close(bool reset) {
  if (closed_) return;
  TakeCtl();
  reset = reset || Untaken();
  // Nobody has agreed to take what is staged, and a process that closes may be
  // about to exit: TCP outlives it.  And a reset comes behind what was sent
  // before it: a peer that does not have the lane yet would never see that.
  if (tx_ == Tx::kProp) Trigger(base::Reason::kShortLived);
  closed_ = shut_ = true;
  reset_ = reset;
  landing_ = reset;
  if (AwaitsLanding()) AskLanded();
  // The end of TCP comes soon after the FIN, and what the peer then believes
  // unread is a reset to it.
  if (accept_) lane_->Credit();
  if (!reset && tx_ == Tx::kLane) SendFin();
  Settle();
}

// (PROP, STG and RAW have no need: the peer has no frame of ours that could be
// unread, or bytes of its own are, which says the same.)
void Stream::TellReset() {
  if (kshut_ || tx_broken_ || failed_) return;
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
  // A FIN before the reset would be an orderly end to who reads it in time.
  if (!shut_ || tx_broken_ || reset_) return;
  if (!kshut_ && out_.empty()) {
    const bool all_read =
        pfin_known_ && (closed_ ? InOff() : rx_off()) == pfin_;
    if (tx_ == Tx::kRaw) {
      KernelShutdown();
    } else if (tx_ == Tx::kLane && fin_sent_ && all_read &&
               (fin_acked_ || (lane_ != nullptr && AckedOff() == tx_off()))) {
      KernelShutdown();
    } else if ((tx_ == Tx::kLane || tx_ == Tx::kDown) && fin_sent_ && eof_) {
      // OnTcpEnd has found that the peer's end was an orderly one.
      KernelShutdown();
    } else if (tx_ == Tx::kLane && closed_ && fin_acked_ && !pfin_known_) {
      // Nobody here reads what may still come: who writes it learns by the
      // reset, as from any closed socket.  (Where the peer's FIN has come, both
      // ends go on by rule 17, which resets nothing.)
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

// Rule 19.
void Stream::MaybeFinish() {
  if (!closed_ || finished_) return;
  // The peer's bytes for an application that is gone.
  if (!stash_.empty() || (accept_ && lane_->Readable() != 0)) reset_ = true;
  // An anchor in ARM holds, or will get, the data of a peer that staged some:
  // the kernel answers that as it does for any closed socket.  In frames the
  // peer's RAW must come first, or our close would reset what it has not yet
  // read.  (Nor must it reset what has been read before it came.)
  const bool raw = tx_ == Tx::kRaw && out_.empty() && ahead_ == 0 &&
                   (rx_ == Rx::kRaw || rx_ == Rx::kArm);
  const bool over =
      kshut_ && (eof_ || (fin_acked_ && !pfin_known_ && ahead_ == 0));
  if (!failed_ && !reset_ && !tx_broken_ && !raw && !over) return;
  if (AwaitsLanding()) return;
  finished_ = true;
  if (reset_) TellReset();
  // What is reset is not taken: the peer must see that it was never read.  Nor
  // is what lands since the look above, which would count as read, too: its
  // writer would wait for the answer for ever.
  accept_ = false;
  if (lane_ != nullptr && !frozen_) FreezeLane(base::Reason::kNone);
  tx_ = Tx::kRaw;
  rx_ = Rx::kRaw;
  waiting_ = Waiting::kNothing;
  out_.Clear();
  stash_.Clear();
  DropLimbo();
  ahead_ = 0;
  copy_.Clear();
  back_.Clear();
  back_left_ = 0;
  tx_broken_ = eof_ = true;
  Emit(kFinished | kTimerOff);
  if (failed_ || reset_) Emit(kMustReset);
}

void Stream::Settle() {
  if (accept_ && pfin_known_ && rx_off() == pfin_ && !ack_sent_ && !kshut_ &&
      (tx_ == Tx::kLane || tx_ == Tx::kDown)) {
    ack_sent_ = true;
    lane_->Credit();
    AskWhatIsRead();
    SendFrame(FrameKind::kAck, pfin_);
  }
  if (!out_.empty()) FlushOut();
  MaybeShutdown();
  MaybeFinish();
  if (lane_ != nullptr && frozen_ && !settled_ && tx_ == Tx::kRaw &&
      rx_ == Rx::kRaw && ahead_ == 0) {
    settled_ = true;
    Emit(kSettled);
  }
  fast_tx_ = tx_ == Tx::kLane && LaneUsable() && !shut_ && !tx_broken_ &&
             so_error_ == 0;
  fast_rx_ = ReadsLane() && !pfin_known_;
  if (quick_ != nullptr) {
    quick_->may_send = fast_tx_;
    quick_->may_receive = fast_rx_;
  }
}

// --- Events

void Stream::Progress() {
  if (finished_) return;
  FlushOut();
  TakeCtl();
  PumpTcp();
  TakeCtl();
  CheckPending();
  if (LaneUsable() && lane_->State() != base::Reason::kNone) {
    Trigger(lane_->State());
  }
  Settle();
}

void Stream::Timer() {
  if ((broken_ & kNoTimer) != 0) return;
  // What has landed still says where staged bytes belong, and may be the
  // answer.
  TakeCtl();
  if (tx_ == Tx::kProp || tx_ == Tx::kComm) Trigger(base::Reason::kTimeout);
  Settle();
}

void Stream::Demote(base::Reason reason, bool leave) {
  TakeCtl();
  if (LaneUsable() && tx_ == Tx::kRaw && rx_ == Rx::kRaw &&
      waiting_ == Waiting::kNothing && !closed_) {
    // Nobody has proposed yet: on TCP there is no frame to say it by, and the
    // peer would wait for a PROPOSE, and read ahead, for ever.
    Refuse(lane_, epoch_);
  } else if (LaneUsable() && tx_ == Tx::kRaw &&
             (waiting_ == Waiting::kPropose || waiting_ == Waiting::kArm)) {
    // Nor can R by a frame: P would learn by its timer only, which may be a
    // long one, and until then R can't be on TCP (a fork waits for that).
    Refuse(lane_, epoch_);
  }
  leave_ = leave;
  Trigger(reason);
  leave_ = false;
  Settle();
}

// --- What is so

std::size_t Stream::Readable() const {
  std::size_t n = stash_.size();
  if (accept_ || ReadsLimbo()) {
    std::size_t next = accept_ ? lane_->Readable() : limbo_.size();
    if (pfin_known_) {
      std::uint64_t left = pfin_ - (rx_off() + n);
      if (next > left) next = static_cast<std::size_t>(left);
    }
    n += next;
  }
  return n;
}

std::uint64_t Stream::AckedOff() const {
  std::uint64_t acked = lane_->Acked();
  std::uint64_t since = acked > posted_base_ ? acked - posted_base_ : 0;
  // A peer that owns a stale tie's credit is not ahead of us.
  return std::min(x_ + since, tx_off());
}

bool Stream::Probe() {
  if (!LaneUsable() || tx_ != Tx::kLane || kshut_ || fin_sent_) return false;
  const std::uint64_t acked = AckedOff();
  if (acked >= tx_off() || probed_ >= tx_off()) return false;
  if (acked != probe_acked_) {
    probe_acked_ = acked;
    probe_stalled_ = 0;
    return true;
  }
  if (probe_out_) {
    probe_asked_ = false;  // its answer counts: who asks all the time hides it
  } else {
    SendProbe();
    FlushOut();
    Settle();
  }
  return true;
}

void Stream::SendProbe() {
  probe_out_ = true;
  probe_at_ = tx_off();
  SendFrame(FrameKind::kProbe, tx_off());
}

// On our ACK a peer that has closed lets go of its lane, and the credit that it
// has given before FIN may still be in its device.  So it is asked first: what
// has landed there has been read, or is answered by a reset.
void Stream::AskWhatIsRead() {
  if (!pclosed_ || tx_ != Tx::kLane || !LaneUsable() || fin_sent_ ||
      probe_out_ || AckedOff() >= tx_off()) {
    return;
  }
  probe_asked_ = true;
  SendProbe();
}

void Stream::AskLanded() {
  if (!LaneUsable() || tx_ != Tx::kLane || kshut_ || fin_sent_ || probe_out_ ||
      std::max(AckedOff(), probe_landed_) >= tx_off()) {
    return;
  }
  probe_asked_ = true;
  SendProbe();
  FlushOut();
  Settle();
}

bool Stream::AwaitsLanding() const {
  return landing_ && !finished_ && !failed_ && !tx_broken_ && !kshut_ &&
         !eof_ && tx_ == Tx::kLane && LaneUsable() &&
         lane_->kind() == lane::Kind::kRdma &&
         std::max(AckedOff(), probe_landed_) < tx_off();
}

void Stream::Hurry() {
  landing_ = false;
  Settle();
}

std::uint64_t Stream::Unacked() const {
  if (tx_ == Tx::kRaw) return out_.size();
  std::uint64_t unacked = out_.size();
  if (lane_ != nullptr) {
    unacked += tx_off() - std::max({AckedOff(), x_, probe_landed_});
  }
  return unacked;
}

std::uint32_t Stream::Readiness() const {
  std::uint32_t events = 0;
  std::size_t readable = Readable();
  const bool end_landed = eof_ || (pfin_known_ && rx_off() + readable == pfin_);
  if (readable != 0 || end_landed || so_error_ != 0) events |= POLLIN;
  if (end_landed) events |= POLLRDHUP;
  if (so_error_ != 0) events |= POLLERR;
  if (end_landed && (shut_ || (tx_broken_ && !last_write_))) events |= POLLHUP;
  bool writable = false;
  if (shut_ || tx_broken_ || so_error_ != 0) {
    writable = true;
  } else if (tx_ == Tx::kRaw) {
    writable = out_.empty();
  } else if (tx_ == Tx::kProp && Copies()) {
    writable =
        LaneUsable() && copy_.size() < CopyLimit() && lane_->Writable() != 0;
  } else if (tx_ != Tx::kDown) {
    writable = LaneUsable() && lane_->Writable() != 0;
  }
  if (writable) events |= POLLOUT;
  return events;
}

bool Stream::WantsAnchorWrite() const { return !out_.empty(); }

bool Stream::WantsAnchorRead() const {
  if (eof_ || failed_ || finished_) return false;
  if (rx_ != Rx::kRaw || ahead_ != 0) return true;
  if (waiting_ == Waiting::kPropose || waiting_ == Waiting::kSwitch)
    return true;
  return closed_ || !limbo_.empty() || (pfin_known_ && InOff() == pfin_);
}

bool Stream::Untaken() const {
  if (Readable() != 0 || !limbo_.empty()) return true;
  // A PROPOSE is never without bytes behind it (rule 2).
  return waiting_ == Waiting::kPropose ||
         (waiting_ != Waiting::kNothing && InOff() <= rx_x_ && LaneUsable() &&
          lane_->Readable() != 0);
}

bool Stream::Adopted() const { return adopted_; }

bool Stream::Idle() const {
  return tx_ == Tx::kRaw && rx_ == Rx::kRaw && lane_ == nullptr &&
         out_.empty() && stash_.empty() && limbo_.empty() && ahead_ == 0 &&
         so_error_ == 0 && !failed_;
}

bool Stream::OnlyStash() const {
  return tx_ == Tx::kRaw && rx_ == Rx::kRaw && lane_ == nullptr &&
         out_.empty() && !stash_.empty() && limbo_.empty() && ahead_ == 0 &&
         !failed_ && !closed_;
}

ByteQueue Stream::TakeStash() {
  ByteQueue taken;
  taken.Swap(stash_);
  return taken;
}

}  // namespace rcsock::stream
