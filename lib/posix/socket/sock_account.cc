// What a stream has moved, for the statistics and for later streams of its
// service.

#include <cstdint>

#include "lib/base/clock.h"
#include "lib/posix/policy/prospect.h"
#include "lib/posix/socket/sock.h"
#include "lib/posix/socket/stats.h"
#include "lib/posix/thread/signals.h"

namespace rcsock::posix {

using base::Reason;

void Sock::Account() { Fold(&stats, true); }

void Sock::Fold(Stats* to, bool last) {
  Latched latched(this);
  if (!accounted_) {
    // The look for the peer was not even over.
    if (last && reason_ == Reason::kPending &&
        base::NowNs() - remote_.sought_ns < 1'000'000'000) {
      reason_ = Reason::kShortLived;
    }
    const bool connection = !listening.load(std::memory_order_relaxed);
    if (connection) FoldLatched(to);
    if (last) {
      accounted_ = true;
      if (connection) LearnLatched();
      LeaveHolders();
    }
  }
}

void Sock::LearnLatched() const {
  // What other holders do with the connection is not seen here.
  if (!connected_.load(std::memory_order_relaxed) || !SoleHolder() ||
      given_away_.load(std::memory_order_relaxed) != 0) {
    return;
  }
  const auto [tx, rx, lane_tx, lane_rx] = TrafficLatched();
  if (tx + rx == 0) return;
  // Calls on a lane are not counted.  Most calls are small, if there are any.
  Prospect::Learn(service_.load(std::memory_order_relaxed), tx + rx,
                  ops() + (lane_tx + lane_rx) / 1024, promoted_);
}

Sock::Traffic Sock::TrafficLatched() const {
  std::uint64_t tx = tx_raw_.load(std::memory_order_relaxed);
  std::uint64_t rx = rx_raw_.load(std::memory_order_relaxed);
  if (stream_ != nullptr && mode() == Mode::kEngine) {
    tx = stream_->tx_off();
    rx = stream_->rx_off();
  }
  tx -= account_tx_ < tx ? account_tx_ : tx;
  rx -= account_rx_ < rx ? account_rx_ : rx;
  // What the engine delivered, less what the engine read from TCP.
  const std::uint64_t from_tcp = anchor_.BytesRead(rx_latch);
  const std::uint64_t by_lane = LaneRx() > from_tcp ? LaneRx() - from_tcp : 0;
  return {tx, rx, LaneTx() < tx ? LaneTx() : tx, by_lane < rx ? by_lane : rx};
}

void Sock::FoldLatched(Stats* to) const {
  const auto [tx, rx, lane_tx, lane_rx] = TrafficLatched();
  if (inherited_ && tx == 0 && rx == 0) return;
  LaneCounts& counts = lane_kind_ == lane::Kind::kRdma ? to->rdma : to->shm;
  counts.tx_bytes.fetch_add(lane_tx, std::memory_order_relaxed);
  counts.rx_bytes.fetch_add(lane_rx, std::memory_order_relaxed);
  to->tcp.tx_bytes.fetch_add(tx - lane_tx, std::memory_order_relaxed);
  to->tcp.rx_bytes.fetch_add(rx - lane_rx, std::memory_order_relaxed);
  if (!connected_.load(std::memory_order_relaxed)) return;
  to->streams.fetch_add(1, std::memory_order_relaxed);
  if (promoted_) {
    counts.streams.fetch_add(1, std::memory_order_relaxed);
  } else {
    to->tcp.streams.fetch_add(1, std::memory_order_relaxed);
    to->reasons[static_cast<int>(reason_.load())].fetch_add(
        1, std::memory_order_relaxed);
  }
}

}  // namespace rcsock::posix
