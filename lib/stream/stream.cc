// What the owner of a stream sees: the application's calls, by whichever path
// the bytes go; the events; and the state.

#include "lib/stream/stream.h"

#include <poll.h>

#include <algorithm>

#include "lib/base/pool.h"
#include "lib/lane/iov_cursor.h"

namespace rcsock::stream {
namespace {

// The most that P stages before its peer is proven, or that S stages before it
// knows that C has not proposed too.
constexpr std::size_t kMaxCopy = 64 * 1024;

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
  says_unread_ = false;
  leaves_later_ = base::Reason::kNone;
  lane_down_seen_ = left_known_ = left_taken_ = left_comm_ = false;
  hands_over_ = awaits_raw_ = false;
  kept_.Clear();
  told_left_ = lane::Lane::Left::kNot;
  waiting_ = Waiting::kNothing;
  x_ = rx_x_ = posted_base_ = 0;
  DropLimbo();
  if (tx_ != Tx::kRaw || rx_ != Rx::kRaw || shut_ || eof_ || tx_broken_) {
    // Otherwise the peer would wait for an answer.
    Refuse(lane_, epoch_);
    FreezeLane(base::Reason::kShortLived);
  }
  Settle();
}

void Stream::ReleaseLane() {
  TakeBackUnread();
  if (lane_ != nullptr) lane_->TellLeft(lane::Lane::Left::kAll);
  lane_ = nullptr;
  kept_.Clear();
  frozen_ = settled_ = accept_ = left_known_ = left_taken_ = false;
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
    so_error_ = EPIPE;  // the answer to that write came: the peer has hung up
    Emit(kRxReady | kTxReady);
    return static_cast<ssize_t>(total);
  }
  // A write of no bytes gets no answer.
  if (last_write_ && !shut_) return 0;
  if (shut_ || tx_broken_) return -EPIPE;
  if (total == 0) return 0;
  switch (tx_) {
    case Tx::kRaw:
      if (awaits_raw_) return -EAGAIN;
      if (!FlushOut()) {
        if (so_error_ != 0) return -TakeError();
        return tx_broken_ ? -EPIPE : -EAGAIN;
      }
      if (MayPropose() && !anchor_->Ended()) {
        int i = 0;
        while (iov[i].iov_len == 0) ++i;
        // If some bytes can't be read, the kernel takes what it can, and
        // reports the rest.
        if (lane::IovCursor(iov, count, 0)
                .Readable(std::min(total, kMaxCopy)) &&
            Propose(static_cast<const std::uint8_t*>(iov[i].iov_base))) {
          ssize_t n = StageOrPost(iov, count, total);
          if (n > 0) return n;
          // Rule 2: a byte follows this PROPOSE.
          Trigger(base::Reason::kLaneError);
        }
      }
      return SendRaw(iov, count);
    case Tx::kStg:
      if (frozen_) TakeForgone();
      if (tx_ == Tx::kRaw) return WriteNow(iov, count, total);
      [[fallthrough]];
    case Tx::kProp:
    case Tx::kComm:
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
    if (!lane::IovCursor(iov, count, 0).Readable(limit)) return -EFAULT;
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
  return n != 0 ? static_cast<ssize_t>(n) : Nothing();
}

// When the held bytes may go to the ring, all of them must fit.
std::size_t Stream::CopyLimit() const {
  return Holds() ? std::min(kMaxCopy, lane_->Writable()) : kMaxCopy;
}

// --- Reading

std::size_t Stream::TakeBuffered(const iovec* iov, int count, std::size_t total,
                                 bool peek) {
  // Rule 14: ring up to the freeze offset, stash, TCP. What was raw before the
  // ring is in the stash too.
  const std::size_t stashed = std::min(stash_.size(), total);
  std::size_t got = stash_.CopyTo(iov, count, 0, total);
  // At a fault, the bytes behind the faulting piece are not the next bytes.
  const bool part = got != stashed;
  if (!peek) {
    stash_.Drop(got);
    rx_off_ += got;
    if (says_unread_ && stash_.empty()) TakeBackUnread();
  }
  if (part || got == total || (!accept_ && !ReadsLimbo())) return got;
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
  std::optional<ssize_t> result;
  // A look that finds nothing reads TCP. What TCP brings, a frame or the end
  // for instance, can make bytes readable only a few times.
  for (int look = 0; look < 4 && !result; ++look) {
    result = ReadOnce(iov, count, total, peek);
  }
  Settle();
  return result.value_or(-EAGAIN);
}

std::optional<ssize_t> Stream::ReadOnce(const iovec* iov, int count,
                                        std::size_t total, bool peek) {
  std::size_t got = TakeBuffered(iov, count, total, peek);
  if (base::TakeFault()) return got != 0 ? static_cast<ssize_t>(got) : -EFAULT;
  if (got != 0 && got < total && rx_ == Rx::kRaw && ahead_ == 0 && !eof_ &&
      !failed_) {
    // What the kernel has goes along, as if both were one queue. A reader may
    // take a short answer for the end of the data.
    got += RecvRest(iov, count, got, peek);
  }
  if (got != 0) return static_cast<ssize_t>(got);
  // After the peer's FIN there is only the end, whatever came later. EPIPE is a
  // reset after the peer's end. The writer gets EPIPE by write, SO_ERROR and
  // poll; a reader does not.
  const bool past_fin =
      pfin_known_ ? rx_off() == pfin_ : eof_ && so_error_ == EPIPE;
  if (so_error_ != 0 && !past_fin) {
    // What came before the error is still there.
    ssize_t n = 0;
    if (rx_ == Rx::kRaw && !accept_ && !eof_ && DropAhead()) {
      n = RecvRaw(iov, count, peek);
    }
    return n > 0 ? n : -TakeError();
  }
  if (AtEof()) return 0;
  if (accept_ || eof_) return -EAGAIN;  // frames are Progress's business
  if (rx_ == Rx::kRaw) return ReadKernel(iov, count, peek);
  const Rx before = rx_;
  PumpTcp();
  if (stash_.empty() && rx_ == before && !eof_ && !accept_) return -EAGAIN;
  return std::nullopt;
}

std::optional<ssize_t> Stream::ReadKernel(const iovec* iov, int count,
                                          bool peek) {
  if (ahead_ != 0) {
    if (!DropAhead() && !eof_ && !failed_) return -EAGAIN;
    return std::nullopt;
  }
  const ssize_t n = RecvRaw(iov, count, peek);
  // A fault is the caller's, and no end of the connection.
  if (n > 0 || n == -EAGAIN || n == -EINTR || n == -EFAULT) return n;
  OnTcpEnd(n == 0 ? 0 : static_cast<int>(-n));
  return std::nullopt;
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

void Stream::KeepError(int error) {
  if (!IsToldOnce(error) || so_error_ != 0) return;
  so_error_ = error;
  Emit(kRxReady | kTxReady);
  Settle();
}

// --- Events

void Stream::Progress() {
  if (finished_) return;
  FlushOut();
  TakeCtl();
  PumpTcp();
  TakeCtl();
  TakeForgone();
  CheckPending();
  if (LaneUsable() && lane_->State() != base::Reason::kNone) {
    Trigger(lane_->State());
  }
  ProposeAhead();
  Settle();
}

void Stream::Timer() {
  if ((broken_ & kNoTimer) != 0) return;
  // What has landed still says where staged bytes belong, and may be the
  // answer.
  TakeCtl();
  if (tx_ == Tx::kProp || tx_ == Tx::kComm) Trigger(base::Reason::kTimeout);
  TakeForgone();
  if (tx_ == Tx::kStg && frozen_) Emit(kTimerOn);
  Settle();
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
      rx_ == Rx::kRaw) {
    TellLeft();
    // An end that has let go of the lane can say nothing more. Until TCP has
    // our bytes, the peer has only those in the ring.
    const bool told =
        !lane_->Outlives() || told_left_ == lane::Lane::Left::kAll;
    if (ahead_ == 0 && told && MayLetGo()) {
      settled_ = true;
      Emit(kSettled);
    }
  }
  fast_tx_ = tx_ == Tx::kLane && LaneUsable() && !shut_ && !tx_broken_ &&
             so_error_ == 0;
  fast_rx_ = ReadsLane() && !pfin_known_;
  if (quick_ != nullptr) {
    quick_->may_send = fast_tx_;
    quick_->may_receive = fast_rx_;
  }
}

// --- State

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
  // The credit of a stale tie does not put the peer ahead of us.
  return std::min(x_ + since, tx_off());
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
    writable = out_.empty() && !awaits_raw_;
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
  return WantedAhead() != 0;
}

bool Stream::Untaken() const {
  if (Readable() != 0 || !limbo_.empty()) return true;
  return (waiting_ == Waiting::kPropose && InOff() < rx_x_) ||
         (waiting_ != Waiting::kNothing && InOff() <= rx_x_ && LaneUsable() &&
          lane_->Readable() != 0);
}

// The kernel no longer knows of these bytes.  If the process is killed now, its
// end is in order, where TCP would reset.
void Stream::SayUnread() {
  if (says_unread_ || lane_ == nullptr) return;
  says_unread_ = true;
  lane_->SayReset();
}

void Stream::TakeBackUnread() {
  if (!says_unread_) return;
  says_unread_ = false;
  if (lane_ != nullptr) lane_->TakeBackReset();
}

bool Stream::Adopted() const { return adopted_; }

bool Stream::Idle() const {
  return tx_ == Tx::kRaw && rx_ == Rx::kRaw && lane_ == nullptr &&
         out_.empty() && stash_.empty() && limbo_.empty() && ahead_ == 0 &&
         so_error_ == 0 && send_error_ == 0 && !failed_;
}

bool Stream::OnlyStash() const {
  return tx_ == Tx::kRaw && rx_ == Rx::kRaw && lane_ == nullptr &&
         out_.empty() &&
         (!stash_.empty() || so_error_ != 0 || send_error_ != 0) &&
         limbo_.empty() && ahead_ == 0 && !failed_ && !closed_;
}

int Stream::ErrorBehindStash() const {
  const bool past_fin = pfin_known_ ? rx_off() + stash_.size() == pfin_
                                    : eof_ && so_error_ == EPIPE;
  return past_fin ? 0 : so_error_ != 0 ? so_error_ : send_error_;
}

ByteQueue Stream::TakeStash() {
  ByteQueue taken;
  taken.Swap(stash_);
  return taken;
}

}  // namespace rcsock::stream
