// The receiving half of QpLane, and what comes in from the poller.

#include <algorithm>
#include <cstring>
#include <utility>

#include "lib/base/log.h"
#include "lib/lane/rdma/chain.h"
#include "lib/lane/rdma/deferred.h"
#include "lib/lane/rdma/qp_lane.h"
#include "lib/lane/read_landed.h"

namespace rcsock::lane::rdma {
namespace {
// Compares in constant time, so that the time does not show how much of the MAC
// is right.
bool IsMac(const std::uint8_t* bytes, const ReadyMac& mac) {
  std::uint8_t differs = 0;
  for (std::size_t i = 0; i < mac.size(); ++i) differs |= bytes[i] ^ mac[i];
  return differs == 0;
}

// A larger ring is worth its memory after two wake-ups for lack of bytes, or
// eight messages that may have been cut.
constexpr std::uint32_t kGrowAfter = 8;
constexpr std::uint32_t kStarved = 4;
// How many wake-ups an honest peer may be ahead of the messages it has had.
constexpr std::uint64_t kWakesAhead = 8;

enum : std::uint32_t { kNewsRx = 1, kNewsTx = 2, kNewsSent = 4 };

}  // namespace

bool QpLane::LandedOrDrain(std::uint64_t number, std::uint32_t* imm) {
  if (number >= rx_limit_) return false;
  if (Landed(number, imm)) return true;
  if (closing_.load(std::memory_order_relaxed)) return false;
  poller_->Drain();
  return Landed(number, imm);
}

bool QpLane::Fill() {
  if (rx_.active()) return true;
  std::uint32_t imm;
  while (LandedOrDrain(rx_.next(), &imm)) {
    if (ring::Decode(imm).kind == ring::Kind::kSetup) {
      rx_.TakeInline();  // OnReceive has handled it
      Taken();
      continue;
    }
    if (rx_.Accept(imm)) {
      if (rx_.ring() != ring_seen_) RingChanged();
      if (!rx_.in_slot()) CountRecord(rx_.left());
      return true;
    }
    rx_limit_ = rx_.next();
    Lost(base::Reason::kProtocol);
  }
  return false;
}

void QpLane::CountRecord(std::uint32_t length) {
  longest_ = std::max(longest_, length);
  if (length < RecordMax(rx_ring_bytes_.load(std::memory_order_relaxed))) {
    return;
  }
  // The message may have been cut because the ring is too small.
  starves_.fetch_add(1, std::memory_order_relaxed);
}

bool QpLane::LandedData(ring::Rx* at) {
  while (!at->active()) {
    std::uint32_t imm;
    if (!LandedOrDrain(at->next(), &imm)) return false;
    if (ring::Decode(imm).kind == ring::Kind::kSetup) {
      at->TakeInline();
    } else if (!at->Accept(imm)) {
      return false;
    }
  }
  return at->data();
}

Head QpLane::Peek() {
  if (Fill()) return rx_.data() ? Head::kData : Head::kCtl;
  if (State() == base::Reason::kNone) return Head::kEmpty;
  // The lane is dead. What landed before its end still counts.
  if (Fill()) return rx_.data() ? Head::kData : Head::kCtl;
  return Head::kDead;
}

void QpLane::Take(std::uint32_t n) {
  if (rx_.Take(n)) Taken();
}

void QpLane::Taken() {
  const std::uint64_t next = rx_.next();
  quick_next_.store(next, std::memory_order_relaxed);
  consumed_.store(next, std::memory_order_release);
  const std::uint64_t unpublished =
      next - published_.load(std::memory_order_relaxed);
  const std::uint64_t bytes =
      bytes_before_[next % 64].load(std::memory_order_relaxed) -
      published_bytes_.load(std::memory_order_relaxed);
  if (CreditDue(unpublished, bytes)) {
    PublishCredit();
  } else if (next == landed_.load(std::memory_order_relaxed) &&
             (credit_asked_ || Starves())) {
    // A sender that may sleep, or that has asked, gets a smaller credit, once
    // there is nothing more here.
    credit_asked_ = false;
    PublishCredit();
  }
  if (starves_.load(std::memory_order_relaxed) >= kGrowAfter) [[unlikely]] {
    GrowRing();
  }
}

bool QpLane::Starves() const {
  const std::uint64_t landed = landed_.load(std::memory_order_seq_cst);
  const std::uint64_t told = told_.load(std::memory_order_relaxed);
  if (landed - told >= kMessages - ring::kCtlSlots) return true;
  return StarvesForBytes(landed);
}

bool QpLane::StarvesForBytes(std::uint64_t landed) const {
  const std::uint64_t bytes =
      bytes_before_[landed % 64].load(std::memory_order_relaxed) -
      told_bytes_.load(std::memory_order_relaxed);
  return bytes >
         rx_ring_bytes_.load(std::memory_order_relaxed) - ring::kMinRoom;
}

bool QpLane::PublishLocked(Chain* chain, bool along) {
  if (peer_.bytes == 0) return true;
  const std::uint64_t consumed = consumed_.load(std::memory_order_acquire);
  const std::uint64_t told = told_.load(std::memory_order_relaxed);
  if (Room() < 6) {
    tell_owed_ = true;
    bursts_.store(false, std::memory_order_relaxed);
    waits_.store(true, std::memory_order_seq_cst);
    return false;
  }
  // Before the peer can see the write: the draining thread compares what lands
  // with published_.
  const std::uint64_t before =
      published_.exchange(consumed, std::memory_order_seq_cst);
  // published_ is stored before Starves loads landed_. The draining thread
  // stores landed_, fences, and looks at published_.
  const bool wake = consumed > told && (assures_ || Starves());
  if (wake && StarvesForBytes(landed_.load(std::memory_order_relaxed))) {
    starves_.fetch_add(kStarved, std::memory_order_relaxed);
  }
  if (!wake && before == consumed) return true;
  const std::uint64_t word = Word(consumed, wake);
  if (along && !wake) {
    chain->Carry(consumed);
  } else {
    chain->Credit(word, wake);
  }
  return true;
}

std::uint64_t QpLane::Word(std::uint64_t consumed, bool wake) {
  const std::uint64_t bytes =
      bytes_before_[consumed % 64].load(std::memory_order_relaxed);
  published_bytes_.store(bytes, std::memory_order_relaxed);
  if (wake) {
    told_.store(consumed, std::memory_order_relaxed);
    told_bytes_.store(bytes, std::memory_order_relaxed);
    assures_ = false;
    ++wakes_sent_;
  }
  return std::uint64_t{wakes_sent_ & 0xffff} << kWakeShift |
         (consumed & kConsumedMask);
}

// The sender has run out of bytes again and again. Offers it a larger ring. The
// sender goes over to that ring with a message that says so.
void QpLane::GrowRing() {
  if (grow_stopped_ || offered_bytes_.load(std::memory_order_relaxed) != 0) {
    return;
  }
  starves_.store(0, std::memory_order_relaxed);
  const std::uint32_t now = rx_ring_bytes_.load(std::memory_order_relaxed);
  const std::uint32_t longest = std::exchange(longest_, 0);
  const bool many = memory_->pinned() >= kMany;
  // The next record may be longer.
  if (now >= (many ? kRingEnoughOfMany : kRingEnough) && longest <= now / 4) {
    return;
  }
  std::size_t bytes = 4 * kBlockMin;
  while (bytes < 4 * std::size_t{now}) bytes *= 2;
  bytes = std::min(bytes, most_rx_ring_.load(std::memory_order_relaxed));
  verbs::Error error;
  Block block;
  if (bytes > now) {
    // There may be memory later.
    if (!memory_->MayGrow(bytes)) return;
    block = memory_->Get(bytes, true, &error);
  }
  if (!block) {
    grow_stopped_ = true;
    return;
  }
  RCSOCK_LOG(2, "rdma: offers a ring of %zu bytes", bytes);
  std::uint8_t offer[kRingOfferSize];
  const auto address = reinterpret_cast<std::uintptr_t>(block.base());
  const std::uint64_t key_bytes =
      std::uint64_t{block.rkey()} | std::uint64_t{bytes} << 32;
  for (int i = 0; i < 8; ++i) {
    offer[i] = address >> 8 * i & 0xff;
    offer[8 + i] = key_bytes >> 8 * i & 0xff;
  }
  base::LatchGuard hold(post_latch_);
  if (Room() < 8) return;
  const std::uint8_t next = rx_.ring() ^ 1;
  rx_rings_[next] = block.base();
  rx_grown_[next] = std::move(block);
  rx_.Expect(static_cast<std::uint32_t>(bytes));
  offered_bytes_.store(static_cast<std::uint32_t>(bytes),
                       std::memory_order_release);
  const std::uint64_t consumed = consumed_.load(std::memory_order_relaxed);
  published_.store(consumed, std::memory_order_seq_cst);
  Chain chain(this);
  chain.CreditAndRing(Word(consumed, true), offer);
  chain.Post();
}

// The first message of the new ring is here: nothing in the old ring is unread.
void QpLane::RingChanged() {
  rx_grown_[ring_seen_].reset();
  ring_seen_ = rx_.ring();
  offered_bytes_.store(0, std::memory_order_relaxed);
}

void QpLane::PublishCredit() {
  bool owed;
  {
    base::LatchGuard hold(post_latch_);
    Chain chain(this);
    owed = !PublishLocked(&chain);
    chain.Post();
    if (owed) WantSent();
  }
  if (owed) poller_->Collect();
  if (owed && !listed_.load(std::memory_order_seq_cst)) deferred_->Add(this);
}

void QpLane::Credit() {
  credit_asked_ = consumed_.load(std::memory_order_relaxed) !=
                  landed_.load(std::memory_order_relaxed);
  if (!closing_.load(std::memory_order_relaxed) &&
      consumed_.load(std::memory_order_relaxed) !=
          published_.load(std::memory_order_relaxed)) {
    PublishCredit();
  }
}

// An older credit word may overwrite the newest, and the peer may sleep. As
// long as nothing is consumed, no later write would correct it.
void QpLane::AssureCredit() {
  Credit();
  if (closing_.load(std::memory_order_relaxed) ||
      consumed_.load(std::memory_order_relaxed) <=
          told_.load(std::memory_order_relaxed)) {
    return;
  }
  {
    base::LatchGuard hold(post_latch_);
    assures_ = true;
  }
  PublishCredit();
}

std::size_t QpLane::Read(const iovec* iov, int count, std::size_t skip,
                         std::size_t limit, bool peek) {
  if (target_.length != 0) [[unlikely]] {
    return ReadTarget(iov, count, skip, limit, peek);
  }
  const std::size_t done =
      LandedReader::Read(this, iov, count, skip, limit, peek);
  if (!peek) read_bytes_ += done;
  return done;
}

std::size_t QpLane::CopyAhead(std::size_t skip, std::byte* to,
                              std::size_t limit) {
  std::size_t done = 0;
  ring::Rx at = rx_;
  while (done < limit && LandedData(&at)) {
    const bool skips = skip != 0;
    const auto n = static_cast<std::uint32_t>(
        std::min<std::size_t>(at.left(), skips ? skip : limit - done));
    if (skips) {
      skip -= n;
    } else {
      std::memcpy(to + done, Bytes(at), n);
      done += n;
    }
    at.Take(n);
  }
  return done;
}

std::size_t QpLane::ReadCtl(void* message, std::size_t capacity) {
  return LandedReader::ReadCtl(this, message, capacity);
}

std::size_t QpLane::Readable() {
  std::uint32_t messages;
  return Unread(&messages);
}

bool QpLane::HalfFull() {
  std::uint32_t messages;
  const std::size_t bytes = Unread(&messages);
  return bytes >= RxRegion().length / 2 || messages >= kMessages / 2;
}

std::size_t QpLane::Unread(std::uint32_t* messages) {
  std::size_t bytes = 0;
  *messages = 0;
  ring::Rx at = rx_;
  while (LandedData(&at)) {
    bytes += at.left();
    at.Take(at.left());
    ++*messages;
  }
  return bytes;
}

bool QpLane::Arrived() {
  const std::uint64_t before = std::max(arrived_, rx_.next());
  std::uint64_t landed = landed_.load(std::memory_order_acquire);
  if (landed <= before && !closing_.load(std::memory_order_relaxed)) {
    poller_->DrainThrottled();
    landed = landed_.load(std::memory_order_acquire);
  }
  arrived_ = std::max(before, std::min(landed, rx_limit_));
  return arrived_ != before;
}

// --- From the poller, under its latch ----------------------------------------

bool QpLane::OnCarried(std::uint32_t bits, std::uint32_t mask) {
  static_assert(kMessages + kSendDepth <= ring::kCreditMask);
  // Stored before the peer could know of any of these messages. The credit is
  // from at most `mask` messages ago (QpLane).
  const std::uint64_t sent = sent_for_wakes_.load(std::memory_order_relaxed);
  const std::uint32_t behind = (static_cast<std::uint32_t>(sent) - bits) & mask;
  if (behind > sent) return false;
  const std::uint64_t consumed = sent - behind;
  if (consumed < carried_.load(std::memory_order_relaxed)) return false;
  carried_.store(consumed, std::memory_order_release);
  return true;
}

[[gnu::always_inline]] inline bool QpLane::TakeCarried(ring::Imm* imm,
                                                       const std::byte* bytes,
                                                       std::uint32_t* length) {
  if (!ring::IsData(imm->kind) || (imm->flags & ring::kFlagCredit) == 0) {
    return true;
  }
  imm->flags &= ~ring::kFlagCredit;
  if (!iwarp_) {
    const std::uint32_t credit = imm->length >> ring::kCreditAt;
    imm->length &= ring::kMaxWithCredit;
    return OnCarried(credit, ring::kCreditMask);
  }
  if (*length < kSendCredit) return false;
  *length -= kSendCredit;
  std::uint32_t credit;
  std::memcpy(&credit, bytes + *length, kSendCredit);
  return OnCarried(ntohl(credit), ~0u);
}

[[gnu::always_inline]] inline void QpLane::OnWakeup(const ring::Imm& imm) {
  const std::uint64_t seen = wakes_seen_.load(std::memory_order_relaxed) + 1;
  wakes_seen_.store(seen, std::memory_order_release);
  // Each wake-up is for something that this end has sent, and says how much of
  // that is consumed.
  if (seen > sent_for_wakes_.load(std::memory_order_relaxed) + kWakesAhead ||
      !OnCarried(imm.length, ring::kMaxLength)) {
    AcceptNoMore(base::Reason::kProtocol);
  }
  if ((imm.flags & ring::kFlagRing) != 0) TakeRingOffer();
  news_ |= kNewsTx;
}

// From here on the reader finds the message.
[[gnu::always_inline]] inline void QpLane::Land(std::uint64_t number,
                                                ring::Imm imm, bool in_slot) {
  if (imm.kind == ring::Kind::kData && (imm.flags & ring::kFlagRewind) != 0) {
    rewound_ = number;
    // In a slot the flag says nothing else.
    if (in_slot) imm.flags &= ~ring::kFlagRewind;
  }
  if (!in_slot && (imm.flags & ring::kFlagRing) != 0) {
    const std::uint32_t grown = offered_bytes_.load(std::memory_order_acquire);
    if (grown != 0) rx_ring_bytes_.store(grown, std::memory_order_relaxed);
  }
  inbox_[number % kMessages].store(ring::Encode(imm),
                                   std::memory_order_relaxed);
  bytes_before_[(number + 1) % 64].store(
      bytes_before_[number % 64].load(std::memory_order_relaxed) +
          (in_slot ? 0 : imm.length),
      std::memory_order_relaxed);
  landed_.store(number + 1, std::memory_order_release);
  news_ |= kNewsRx;
}

void QpLane::OnReceive(std::uint32_t bits, const std::byte* bytes,
                       std::uint32_t length) {
  if (latched_) return;
  ring::Imm imm = ring::Decode(bits);
  // iWARP: the whole of a message that lies in its slot, and else nothing.
  const bool placed = imm.kind == ring::Kind::kPlaced;
  const bool in_slot = (imm.flags & ring::kFlagInline) != 0 && !placed;
  const bool carries = in_slot && imm.kind != ring::Kind::kCredit;
  if (!TakeCarried(&imm, bytes, &length) ||
      (iwarp_ && length != (carries ? imm.length : 0))) {
    return AcceptNoMore(base::Reason::kProtocol);
  }
  if (imm.kind == ring::Kind::kCredit) return OnWakeup(imm);
  const std::uint64_t number = landed_.load(std::memory_order_relaxed);
  // READY comes first. No more can be under way than the peer has credit for.
  if ((imm.kind != ring::Kind::kSetup &&
       !setup_seen_.load(std::memory_order_relaxed)) ||
      number - published_.load(std::memory_order_acquire) >= kMessages) {
    return AcceptNoMore(base::Reason::kProtocol);
  }
  if (target_.length != 0 || placed) [[unlikely]] {
    const base::Reason reason = OnTarget(number, &imm);
    if (reason != base::Reason::kNone) return AcceptNoMore(reason);
  }
  // The slot is free: its last message has been consumed, and credited.
  if (length != 0) std::memcpy(RxSlot(number), bytes, length);
  if (imm.kind == ring::Kind::kSetup) {
    const base::Reason reason = OnSetup(number, imm);
    if (reason != base::Reason::kNone) return AcceptNoMore(reason);
  }
  Land(number, imm, in_slot);
}

void QpLane::TakeRingOffer() {
  const auto* at =
      reinterpret_cast<const std::uint8_t*>(rx_block_.base() + kRingOfferAt);
  std::uint64_t address = 0;
  std::uint64_t key_bytes = 0;
  for (int i = 0; i < 8; ++i) {
    address |= std::uint64_t{at[i]} << 8 * i;
    key_bytes |= std::uint64_t{at[8 + i]} << 8 * i;
  }
  // TakeRing checks what it takes.
  ring_address_.store(address, std::memory_order_relaxed);
  ring_key_bytes_.store(key_bytes >> 32 | key_bytes << 32,
                        std::memory_order_relaxed);
  ring_offers_.fetch_add(1, std::memory_order_release);
}

base::Reason QpLane::OnSetup(std::uint64_t number, ring::Imm imm) {
  const auto* message = reinterpret_cast<const std::uint8_t*>(RxSlot(number));
  Offer offer;
  if (setup_seen_.load(std::memory_order_relaxed) ||
      imm.flags != ring::kFlagInline || imm.length != kReadySize ||
      !DecodeOffer(message, &offer)) {
    return base::Reason::kProtocol;
  }
  if (!IsMac(message + kOfferSize, peers_ready_mac_)) {
    return base::Reason::kPeerKey;
  }
  setup_ = offer;
  setup_seen_.store(true, std::memory_order_release);
  return base::Reason::kNone;
}

void QpLane::AcceptNoMore(base::Reason why) {
  latched_ = true;
  Lost(why);
}

void QpLane::OnSent(std::uint64_t wrs) {
  if ((wrs & kTicket) != 0) {
    wrs &= ~kTicket;
    fenced_wrs_.store(wrs, std::memory_order_release);
  }
  if (wrs > done_wrs_.load(std::memory_order_relaxed)) {
    done_wrs_.store(wrs, std::memory_order_seq_cst);
  }
  news_ |= kNewsSent;
}

void QpLane::PostReceives() {
  base::LatchGuard hold(post_latch_);
  if (qp_ != nullptr) receives_->Post(qp_);
}

void QpLane::OnError(int status, bool receive) {
  if (closing_.load(std::memory_order_seq_cst)) return;
  if (State() != base::Reason::kNone) return;
  RCSOCK_LOG(
      1, "rdma: a %s completed with status %d (%s)",
      receive ? "receive" : "send", status,
      verbs::calls.ibv_wc_status_str(static_cast<ibv_wc_status>(status)));
  Lost(base::Reason::kLaneError);
}

void QpLane::Tell() {
  std::uint32_t news = news_;
  news_ = 0;
  if ((news & kNewsSent) != 0) {
    // A lane that still finds no room says so again.
    UnwantSent();
    if (!bursts_.load(std::memory_order_seq_cst)) Flush();
    if (queue_full_.load(std::memory_order_seq_cst)) {
      queue_full_.store(false, std::memory_order_relaxed);
      news |= kNewsTx;
    }
  }
  if ((news & (kNewsRx | kNewsTx)) == 0) return;
  // The landing is stored before the wishes are loaded. SetNotify stores the
  // wish, fences, and then its caller looks.
  base::FullFence();
  const std::uint32_t notify = notify_.load(std::memory_order_relaxed);
  const int bell = static_cast<int>(notify >> 8);
  Sleepers& sleepers = poller_->sleepers();
  if ((news & kNewsRx) != 0) {
    sleepers.Wake(words_, false);
    if ((notify & (kNotifyRxPoller | kNotifyRxBits)) != 0) {
      poller_->board()->Post(bell, &mark_, kCompletionRx);
    }
  }
  if ((news & kNewsTx) != 0) {
    sleepers.Wake(words_, true);
    if ((notify & kNotifyTxPoller) != 0) {
      poller_->board()->Post(bell, &mark_, kCompletionTx);
    }
  }
  if ((news & kNewsRx) == 0) return;
  const std::uint64_t rewound = std::exchange(rewound_, 0);
  const bool starves = published_.load(std::memory_order_relaxed) >
                           told_.load(std::memory_order_relaxed) &&
                       Starves();
  if (rewound == 0 && !starves) return;
  base::LatchGuard hold(post_latch_);
  // The message began at the front, so the sender knew the credit of all before
  // it.
  const std::uint64_t known =
      std::min(rewound, published_.load(std::memory_order_relaxed));
  if (known > told_.load(std::memory_order_relaxed)) {
    told_.store(known, std::memory_order_relaxed);
    told_bytes_.store(bytes_before_[known % 64].load(std::memory_order_relaxed),
                      std::memory_order_relaxed);
  }
  if (published_.load(std::memory_order_relaxed) >
          told_.load(std::memory_order_relaxed) &&
      Starves()) {
    Chain chain(this);
    // If the queue has no room, the completion that makes room calls this
    // again.
    if (!PublishLocked(&chain)) WantSent();
    chain.Post();
  }
}

}  // namespace rcsock::lane::rdma
