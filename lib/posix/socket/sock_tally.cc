#include "lib/posix/socket/sock_tally.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "lib/base/clock.h"
#include "lib/lane/rdma/rdma_lane.h"
#include "lib/posix/policy/prospect.h"
#include "lib/posix/sharing/unread.h"
#include "lib/posix/socket/snapshot.h"
#include "lib/posix/socket/sock.h"
#include "lib/posix/socket/stats.h"
#include "lib/posix/thread/signals.h"
#include "lib/rendezvous/address.h"

namespace rcsock::posix {

using base::Reason;

StreamFacts Tally::Describe() const {
  Latched latched(sock_);
  return sock_->FactsLatched();
}

void Tally::Fold(Stats* to) const {
  Latched latched(sock_);
  latches_.AssertHeld();
  if (accounted_ || sock_->listening.load(std::memory_order_relaxed)) return;
  Add(sock_->FactsLatched(), to);
}

void Tally::Account() {
  Latched latched(sock_);
  AccountLatched();
}

// As Add and Learn.  Most streams are short, so this asks for nothing that a
// stream has only behind a search.
template <bool kLone>
[[gnu::hot]] void Tally::AddOnTcp() const {
  latches_.AssertUnshared();  // the callers have seen to that
  if (sock_->listening.load(std::memory_order_relaxed)) return;
  const PlainCalls& calls = sock_->calls();
  const std::uint64_t tx = calls.tx() - std::min(begun_tx_, calls.tx());
  const std::uint64_t rx = calls.rx() - std::min(begun_rx_, calls.rx());
  const auto add = [](std::atomic<std::uint64_t>& to, std::uint64_t n) {
    constexpr auto kRelaxed = std::memory_order_relaxed;
    if constexpr (kLone) {
      to.store(to.load(kRelaxed) + n, kRelaxed);
    } else {
      to.fetch_add(n, kRelaxed);
    }
  };
  if ((tx | rx) != 0) {
    add(stats.tcp.tx_bytes, tx);
    add(stats.tcp.rx_bytes, rx);
  }
  if (!sock_->peer().connected()) return;
  add(stats.streams, 1);
  add(stats.tcp.streams, 1);
  add(stats.reasons[static_cast<int>(sock_->search().reason())], 1);
  if ((tx | rx) == 0 || (!kLone && !sock_->holders().Sole())) return;
  Prospect::Learn(sock_->peer().service(), tx + rx, calls.count(), false);
}

[[gnu::hot]] void Tally::AccountLone() {
  latches_.AssertUnshared();
  if (accounted_) return;  // AtExit has
  accounted_ = true;
  AddOnTcp<true>();
}

[[gnu::hot]] void Tally::AccountLatched() {
  AssertLatched(sock_);
  latches_.AssertHeld();
  if (accounted_) return;
  accounted_ = true;
  if (sock_->remote().sought_ns() == 0 && !inherited_) {
    AddOnTcp<false>();
    sock_->holders().Leave();
    return;
  }
  StreamFacts facts = sock_->FactsLatched();
  // The search for the peer was not even over.
  if (facts.reason == Reason::kPending &&
      base::NowNs() - facts.sought_ns < 1'000'000'000) {
    facts.reason = Reason::kShortLived;
  }
  if (!sock_->listening.load(std::memory_order_relaxed)) {
    Add(facts, &stats);
    Learn(facts);
  }
  sock_->holders().Leave();
}

void Tally::Learn(const StreamFacts& facts) const {
  latches_.AssertHeld();
  // What other holders do with the connection is not seen here.
  if (!facts.connected || !sock_->holders().Sole()) return;
  const auto [tx, rx, lane_tx, lane_rx] = TrafficOf(facts);
  if (tx + rx == 0) return;
  // Calls on a lane are not counted.  Most calls are small, if there are any.
  const std::uint64_t calls = sock_->calls().count();
  Prospect::Learn(facts.service, tx + rx, calls + (lane_tx + lane_rx) / 1024,
                  promoted_);
  // They are as large as those on TCP were.
  const std::uint64_t on_tcp = tx + rx - lane_tx - lane_rx;
  if (facts.sought_ns == 0 || on_tcp == 0) return;
  const std::uint64_t all =
      calls +
      (lane_tx + lane_rx) / (on_tcp / std::max<std::uint64_t>(calls, 1) + 1);
  if (all == 0) return;
  // Each search begins that time anew.  The calls before it were as far apart.
  const std::uint64_t since =
      all - std::min<std::uint64_t>(sock_->remote().sought_calls(), all - 1);
  Prospect::LearnPace(facts.service, tx + rx, all,
                      (base::NowNs() - facts.sought_ns) / since * all);
}

Tally::Traffic Tally::TrafficOf(const StreamFacts& facts) const {
  latches_.AssertHeld();
  const std::uint64_t tx = facts.tx_bytes - std::min(begun_tx_, facts.tx_bytes);
  const std::uint64_t rx = facts.rx_bytes - std::min(begun_rx_, facts.rx_bytes);
  return {tx, rx, std::min(facts.lane_tx_bytes, tx),
          std::min(facts.lane_rx_bytes, rx)};
}

void Tally::Add(const StreamFacts& facts, Stats* to) const {
  latches_.AssertHeld();
  const auto [tx, rx, lane_tx, lane_rx] = TrafficOf(facts);
  if (inherited_ && tx == 0 && rx == 0) return;
  LaneCounts& counts = facts.kind == lane::Kind::kRdma ? to->rdma : to->shm;
  if ((lane_tx | lane_rx) != 0) {
    counts.tx_bytes.fetch_add(lane_tx, std::memory_order_relaxed);
    counts.rx_bytes.fetch_add(lane_rx, std::memory_order_relaxed);
  }
  to->tcp.tx_bytes.fetch_add(tx - lane_tx, std::memory_order_relaxed);
  to->tcp.rx_bytes.fetch_add(rx - lane_rx, std::memory_order_relaxed);
  if (!facts.connected) return;
  to->streams.fetch_add(1, std::memory_order_relaxed);
  if (promoted_) {
    counts.streams.fetch_add(1, std::memory_order_relaxed);
  } else {
    to->tcp.streams.fetch_add(1, std::memory_order_relaxed);
    to->reasons[static_cast<int>(facts.reason)].fetch_add(
        1, std::memory_order_relaxed);
  }
}

bool Tally::Describe(SnapshotStream* to) const {
  if (sock_->listening.load(std::memory_order_relaxed) ||
      !Describe().connected) {
    return false;
  }
  const int number = sock_->fd();
  rendezvous::Seeker* const seeker = sock_;
  sockaddr_storage names[2];
  rendezvous::Address local;
  rendezvous::Address peer;
  if (!seeker->Names(&names[0], &names[1]) ||
      !rendezvous::Normalise(names[0], &local, &to->local_port) ||
      !rendezvous::Normalise(names[1], &peer, &to->peer_port)) {
    return false;
  }
  std::memcpy(to->local, local.data(), sizeof to->local);
  std::memcpy(to->peer, peer.data(), sizeof to->peer);
  to->inode = SocketInode(rendezvous::BorrowedNumber(seeker));
  to->fd = number;
  to->acceptor = seeker->role() == stream::Role::kAcceptor ? 1 : 0;

  Latched latched(sock_);
  latches_.AssertHeld();
  const StreamFacts facts = sock_->FactsLatched();
  to->reason = static_cast<std::uint8_t>(facts.reason);
  to->promotions = promotions_;
  to->demotions = left_;
  to->failovers = failed_over_;
  const Traffic traffic = TrafficOf(facts);
  to->tcp_tx_bytes = traffic.tx - traffic.lane_tx;
  to->tcp_rx_bytes = traffic.rx - traffic.lane_rx;
  to->lane_tx_bytes = traffic.lane_tx;
  to->lane_rx_bytes = traffic.lane_rx;
  to->lane_kind = facts.kind == lane::Kind::kRdma ? SnapshotLane::kRdma
                                                  : SnapshotLane::kShm;
  lane::Lane* const lane =
      sock_->mode() == Mode::kEngine ? sock_->lane() : nullptr;
  to->state = lane != nullptr && facts.on_lane ? SnapshotState::kOnLane
              : facts.switching                ? SnapshotState::kSwitching
              : sock_->lane_state().Seeking()  ? SnapshotState::kSeeking
                                               : SnapshotState::kTcp;
  if (lane != nullptr) {
    if (facts.on_lane) to->lane = to->lane_kind;
    to->tx_ring = lane->TxRegion().length;
    to->rx_ring = lane->RxRegion().length;
    const std::uint64_t acked = lane->Acked();
    to->tx_fill = lane->Posted() - acked;
    to->rx_fill = lane->Readable();
    const lane::Credits credits = lane->credits();
    to->credit_left = credits.left;
    to->credit_most = credits.most;
    if (facts.kind == lane::Kind::kRdma) {
      const char* name = static_cast<lane::rdma::RdmaLane*>(lane)->device();
      std::strncpy(to->device, name, sizeof to->device - 1);
    }
  }
  return sock_->fd() == number && !sock_->ending().closed();
}

void Tally::Promoted() {
  latches_.AssertHeld();
  if (promoted_) return;
  promoted_ = true;
  stats.promoted.fetch_add(1, std::memory_order_relaxed);
}

bool Tally::promoted() const {
  latches_.AssertHeld();
  return promoted_;
}

void Tally::CameOnLane() {
  latches_.AssertHeld();
  ++promotions_;
}

void Tally::LeftLane(bool failover) {
  latches_.AssertHeld();
  ++(failover ? failed_over_ : left_);
  (failover ? stats.failovers : stats.demotions)
      .fetch_add(1, std::memory_order_relaxed);
}

void Tally::CountDemotion() {
  latches_.AssertHeld();
  ++demotions_;
}

bool Tally::TakeDemotionBack() {
  latches_.AssertHeld();
  if (demotions_ == 0) return false;
  --demotions_;
  return true;
}

std::uint32_t Tally::demotions() const {
  latches_.AssertHeld();
  return demotions_;
}

// The other holders have counted these bytes.
void Tally::OthersMoved(std::uint64_t tx, std::uint64_t rx) {
  latches_.AssertHeld();
  begun_tx_ += tx;
  begun_rx_ += rx;
}

void Tally::BeginAt(std::uint64_t tx, std::uint64_t rx) {
  latches_.AssertUnshared();
  begun_tx_ = tx;
  begun_rx_ = rx;
}

void Tally::JoinAt(std::uint64_t tx, std::uint64_t rx) {
  sock_->calls().SetMoved(tx, rx);
  BeginAt(tx, rx);
}

void Tally::OnForkChild() {
  BeginAt(sock_->calls().tx(), sock_->calls().rx());
  latches_.AssertUnshared();
  promoted_ = false;
  inherited_ = true;
}

}  // namespace rcsock::posix
