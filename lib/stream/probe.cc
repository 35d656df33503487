// The frames that TCP carries beside a busy lane: PROBE, which asks what has
// landed of the bytes that the lane has taken, and the heartbeat.

#include <algorithm>
#include <utility>

#include "lib/base/clock.h"
#include "lib/stream/stream.h"

namespace rcsock::stream {

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
    probe_asked_ = false;  // its answer counts, or frequent questions would
                           // hide that the lane is dead
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

// On our ACK a peer that has closed lets go of its lane. The credit that it has
// given before FIN may still be in its device. So this end asks first, and the
// peer's answer says what it has read.
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

void Stream::Beat() {
  // If a frame of ours waits to be sent, or an end is on its way, TCP is not
  // silent, and needs no heartbeat. An unread frame would turn the peer's exit
  // into a reset.
  if (!LaneUsable() || tx_ != Tx::kLane || kshut_ || fin_sent_ || pfin_known_ ||
      !out_.empty()) {
    return;
  }
  SendFrame(FrameKind::kPing, 0);
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

void Stream::OnPing() {
  // An honest peer sends a PING a minute at most. A peer that was stopped may
  // send some at once. Frames that move nothing must not keep us busy.
  constexpr std::uint32_t kMostAtOnce = 64;
  constexpr std::uint64_t kEachNs = 1'000'000'000;
  const std::uint64_t now = base::NowNs();
  const std::uint64_t passed = (now - ping_ns_) / kEachNs;
  if (passed != 0) {
    pings_ -=
        static_cast<std::uint32_t>(std::min<std::uint64_t>(pings_, passed));
    ping_ns_ = now;
  }
  if (++pings_ > kMostAtOnce) Fail(base::Reason::kProtocol);
}

void Stream::OnProbe() {
  // In other states a frame of ours may not be legal, or the lane is over.
  if (tx_ != Tx::kLane || kshut_ || !accept_ || !LaneUsable()) return;
  // An honest peer asks again only when it has been answered, so one answer at
  // most waits here. More would fill our memory.
  constexpr std::size_t kMostWaiting = 4096;
  if (out_.size() > kMostWaiting) return;
  // Bytes that land after our close are never read, and their writer must learn
  // of that.
  const std::uint64_t landed = InOff() + (closed_ ? 0 : lane_->Readable());
  // The peer asks after a silence. If this process is killed now or later, the
  // peer should know what has been read, as with TCP.
  lane_->AssureCredit();
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

}  // namespace rcsock::stream
