#include "lib/lane/rdma/qp_lane.h"

#include <algorithm>
#include <cerrno>
#include <new>
#include <utility>

#include "lib/base/critical.h"
#include "lib/base/internal.h"
#include "lib/base/log.h"
#include "lib/base/no_cancel.h"
#include "lib/base/no_sigpipe.h"
#include "lib/lane/rdma/chain.h"
#include "lib/lane/rdma/deferred.h"
#include "lib/lane/rdma/refusal.h"

namespace rcsock::lane::rdma {

std::unique_ptr<QpLane> QpLane::Make(QpLaneParts parts) {
  std::unique_ptr<QpLane> lane(new (std::nothrow) QpLane(std::move(parts)));
  if (lane == nullptr) {
    // Nothing has been moved. NOLINTBEGIN(bugprone-use-after-move)
    parts.poller->sleepers().Put(parts.words);
    parts.poller->Leave(parts.set, true);
    // NOLINTEND(bugprone-use-after-move)
    return nullptr;
  }
  lane->added_ = lane->poller_->Add(lane.get(), lane->qp_num_);
  if (!lane->added_) return nullptr;
  return lane;
}

QpLane::QpLane(QpLaneParts parts)
    : domain_(std::move(parts.domain)),
      poller_(parts.poller),
      set_(parts.set),
      words_(parts.words),
      memory_(parts.memory),
      deferred_(parts.deferred),
      lanes_(std::move(parts.lanes)),
      id_(parts.id),
      qp_(parts.id->qp),
      qp_num_(parts.id->qp->qp_num),
      send_depth_(parts.send_depth),
      inline_bytes_(parts.inline_bytes),
      iwarp_(parts.iwarp),
      routed_(parts.routed),
      sink_(parts.sink),
      pace_(parts.pace),
      receives_(std::move(parts.receives)),
      queue_(std::move(parts.queue)),
      rx_block_(std::move(parts.rx)),
      ring_bytes_(RingBytes(rx_block_.bytes())),
      most_ring_(parts.most_ring),
      most_rx_ring_(parts.most_ring),
      reports_last_wqe_(parts.reports_last_wqe),
      software_(parts.software),
      rx_(GeometryOf(ring_bytes_, parts.iwarp ? kSendData : 0)),
      rx_ring_bytes_(ring_bytes_) {
  rx_rings_[0] = rx_block_.base() + kRingAt;
  lanes_->fetch_add(1, std::memory_order_relaxed);
}

QpLane::~QpLane() {
  // The receives that the lane's messages have used are posted to the SRQ again
  // when their completions are taken. Many providers remove those completions
  // with the QP. So first the QP gets no more messages, and then the
  // completions are taken.
  Freeze();
  poller_->Settled([] {});
  {
    base::LatchGuard hold(post_latch_);
    qp_ = nullptr;
  }
  {
    const base::NoCancel no_cancel;
    const base::NoSigpipe no_sigpipe(iwarp_);
    base::InternalScope internal;
    verbs::calls.rdma_destroy_qp(id_);
  }
  if (added_) poller_->Remove(qp_num_);
  UnwantSent();
  deferred_->Remove(this);
  for (Direct& one : direct_) DropDirect(&one);
  poller_->board()->SetCookie(&mark_, nullptr);
  poller_->sleepers().Put(words_);
  poller_->Leave(set_, !OwesLastWqe());
  lanes_->fetch_sub(1, std::memory_order_relaxed);
}

Region QpLane::RxRegion() const {
  // The most that may be unread: the old ring counts too, while there are two.
  std::size_t length = ring_bytes_;
  for (const Block& grown : rx_grown_) {
    if (grown) length += grown.bytes();
  }
  return {const_cast<std::byte*>(rx_rings_[rx_.ring()]), length,
          rx_block_.rkey()};
}

std::size_t QpLane::Pinned() const {
  std::size_t bytes = 0;
  for (const Block* block : {&rx_block_, &tx_block_, &rx_grown_[0],
                             &rx_grown_[1], &tx_grown_[0], &tx_grown_[1]}) {
    if (*block) bytes += block->bytes();
  }
  return bytes;
}

Region QpLane::TxRegion() const {
  if (!tx_block_) return {};
  return {TxRing(), peer_.bytes, tx_ring_.lkey};
}

Credits QpLane::credits() const {
  if (!tx_) return {};
  const std::uint32_t most = tx_->most_outstanding();
  const std::uint64_t out = tx_->outstanding();
  return {out < most ? most - static_cast<std::uint32_t>(out) : 0, most};
}

const char* QpLane::device() const { return domain_->context()->device->name; }

// --- Before the stream has the lane ------------------------------------------

Offer QpLane::offer() const {
  Offer offer{};
  const auto base = reinterpret_cast<std::uintptr_t>(rx_block_.base());
  offer.address = base + kSlotsAt;
  offer.credit = base;
  offer.key = rx_block_.rkey();
  offer.bytes = ring_bytes_;
  offer.messages = kMessages;
  offer.most_ring = static_cast<std::uint16_t>(most_ring_ / kOfferPage);
  return offer;
}

void QpLane::SetPeer(const Offer& offer) {
  if (tx_) return;
  verbs::Error error;
  // A peer may offer any size. Beyond a new lane's size the limits of this
  // process hold here, as they do when a ring grows.
  const std::size_t bytes = kRingAt + offer.bytes;
  if (bytes > std::max(kBlockMin, most_ring_) || !memory_->MayGrow(bytes)) {
    RCSOCK_LOG(1, "rdma: the peer asks for a send buffer of %zu bytes", bytes);
    Lost(base::Reason::kNoMemory);
    return;
  }
  Block block = memory_->Get(bytes, false, &error);
  if (!block) {
    RCSOCK_LOG(1, "rdma: no send buffer of %u bytes: %s: %d", offer.bytes,
               error.call, error.code);
    Lost(ReasonOf(error));
    return;
  }
  base::LatchGuard hold(post_latch_);
  tx_block_ = std::move(block);
  tx_ring_ = {tx_block_.base() + kRingAt,
              offer.address + kMessages * kSlotBytes, tx_block_.lkey(),
              offer.key};
  tx_mirrors_[0] = tx_ring_.mirror;
  // ReserveInline puts what goes into a slot.
  tx_.emplace(sent_table_.data(), GeometryOf(offer.bytes, 0, pace_.record));
  peer_ = offer;
  // The peer has a mirror of the ring that it writes to, as large as that ring.
  if (offer.most_ring != 0) {
    most_rx_ring_.store(
        std::min(most_ring_, std::size_t{offer.most_ring} * kOfferPage),
        std::memory_order_relaxed);
  }
}

void QpLane::SetCookie(void* cookie) {
  poller_->board()->SetCookie(&mark_, cookie);
}

void QpLane::SetReadyMacs(const ReadyMac& mine, const ReadyMac& theirs) {
  ready_mac_ = mine;
  peers_ready_mac_ = theirs;
}

bool QpLane::SendReady() {
  if (State() != base::Reason::kNone) return false;
  ready_wanted_ = true;
  if (!tx_ || ready_sent_) return true;
  std::uint8_t message[kReadySize];
  EncodeOffer(offer(), message);
  std::memcpy(message + kOfferSize, ready_mac_.data(), ready_mac_.size());
  ready_sent_ = PostControl(message, sizeof(message), ring::Kind::kSetup);
  return ready_sent_ && State() == base::Reason::kNone;
}

bool QpLane::PeerReady() {
  poller_->Drain();
  if (!setup_seen_.load(std::memory_order_acquire)) return false;
  SetPeer(setup_);
  if (ready_wanted_ && !ready_sent_) SendReady();
  return tx_.has_value() && State() == base::Reason::kNone;
}

void QpLane::MayReceive() {
  if (reports_last_wqe_ && last_wqe_ == LastWqe::kNone) {
    last_wqe_ = LastWqe::kOwed;
  }
}

void QpLane::Connected() {
  MayReceive();
  verbs::Error error;
  base::LatchGuard hold(post_latch_);
  // Nothing may depend on this call: without it the peer only waits longer
  // between tries.
  if (!iwarp_ && !verbs::SetRnrTimer(qp_, &error)) {
    RCSOCK_LOG(2, "rdma: min_rnr_timer: %s: %d", error.call, error.code);
  }
}

void QpLane::Nudge() {
  base::LatchGuard hold(post_latch_);
  if (peer_.bytes == 0 || Room() < 6) return;
  Chain chain(this);
  chain.Credit(Word(published_.load(std::memory_order_relaxed), false), false);
  chain.Post();
}

void QpLane::Lost(base::Reason reason) {
  base::Reason none = base::Reason::kNone;
  if (!failed_.compare_exchange_strong(none, reason,
                                       std::memory_order_seq_cst)) {
    return;
  }
  // failed_ is stored before the words change. A sleeper takes its token, then
  // looks at failed_.
  WakeLocal();
  poller_->board()->Post(
      static_cast<int>(notify_.load(std::memory_order_relaxed) >> 8), &mark_,
      kCompletionRx | kCompletionTx | kCompletionError);
}

// --- Notification ------------------------------------------------------------

void QpLane::SetNotify(std::uint32_t bits, int bell) {
  constexpr std::uint32_t kPollerBits =
      kNotifyRxPoller | kNotifyRxBits | kNotifyTxPoller;
  const auto k = static_cast<std::uint32_t>(bell) & (kBells - 1);
  notify_.store((bits & kPollerBits) | k << 8, std::memory_order_relaxed);
  // Wish stored -> the caller looks: see Tell.
  base::FullFence();
}

bool QpLane::RxPending() const {
  if (RxLanded()) return true;
  poller_->DrainThrottled();
  return RxLanded();
}

bool QpLane::RxLanded() const {
  return landed_.load(std::memory_order_acquire) !=
             quick_next_.load(std::memory_order_relaxed) ||
         Closed();
}

std::uint32_t QpLane::SleepToken(bool tx) const {
  return Sleepers::Token(words_, tx);
}

int QpLane::SleepRx(std::uint32_t token, const timespec* timeout) {
  if (RxLanded()) return -EAGAIN;
  return poller_->sleepers().Sleep(words_, false, token, timeout);
}

int QpLane::SleepTx(std::uint32_t token, const timespec* timeout) {
  {
    base::Critical critical;
    Flush();
  }
  // A credit that came since the caller looked may have come without a wake-up.
  // Then either the wake-up that the receiver owes for all that this end has
  // sent has yet to come, or this look sees the credit.
  if (Consumed() > credit_seen_.load(std::memory_order_relaxed) || Closed()) {
    return -EAGAIN;
  }
  return poller_->sleepers().Sleep(words_, true, token, timeout);
}

void QpLane::WakeLocal() { poller_->sleepers().WakeLocal(words_); }

// --- End ---------------------------------------------------------------------

void QpLane::Freeze() {
  if (closing_.exchange(true, std::memory_order_seq_cst)) return;
  {
    base::LatchGuard hold(post_latch_);
    verbs::Error error;
    if (qp_ != nullptr && !verbs::ToError(qp_, &error)) {
      RCSOCK_LOG(1, "rdma: %s: %d", error.call, error.code);
    }
  }
  // The peer can write no more. This end takes what the peer has written, and
  // nothing else.
  poller_->Settled([this] { latched_ = true; });
  rx_limit_ = std::min(rx_limit_, landed_.load(std::memory_order_acquire));
  WakeLocal();
}

}  // namespace rcsock::lane::rdma
