// The sending half of QpLane.

#include <algorithm>
#include <cstring>
#include <utility>

#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "lib/lane/rdma/chain.h"
#include "lib/lane/rdma/deferred.h"
#include "lib/lane/rdma/qp_lane.h"

namespace rcsock::lane::rdma {
namespace {

// Sends of a thread that follow each other within this many microseconds make a
// burst. From this many sends on a lane on, they are put together.
constexpr std::uint64_t kGapUs = 10;
constexpr std::uint32_t kBurst = 16;
// An interrupt or another thread's turn makes a longer gap, which costs a burst
// some of its sends. So a burst ends if more than every fifth send has a longer
// gap. If each gap ended a burst, each of many lanes would need sixteen sends
// anew, and these would make more gaps. A pause ends a burst at once.
constexpr std::uint32_t kGapCosts = 4;
constexpr std::uint64_t kPauseUs = 200;
// The longest send that is put together with others, and how long their record
// grows.
constexpr std::size_t kSmallSend = 8 * 1024;
constexpr std::uint32_t kJoined = 16 * 1024;

}  // namespace

// When this thread last sent on any lane. Not in an anonymous namespace: see
// sleepers.cc.
extern thread_local constinit std::uint64_t tls_post_ended
    __attribute__((tls_model("initial-exec")));
thread_local constinit std::uint64_t tls_post_ended = 0;

std::uint64_t QpLane::InFlight() const {
  const std::uint64_t done = done_wrs_.load(std::memory_order_seq_cst);
  return posted_wrs_ - std::max(done, reply_wrs_);
}

bool QpLane::Streaming() const {
  return InFlight() >= (iwarp_ ? pace_.window_iwarp : pace_.window);
}

bool QpLane::Bursts(bool reply) {
  if (!pace_.joins_bursts) return false;
  const std::uint64_t gap = base::Ticks() - tls_post_ended;
  if (reply || gap > kPauseUs * base::ticks_per_us) {
    burst_ = 0;
  } else if (gap > kGapUs * base::ticks_per_us) {
    burst_ -= std::min(burst_, kGapCosts);
  } else if (burst_ < kBurst) {
    ++burst_;
  }
  bursting_ = burst_ == kBurst || (bursting_ && burst_ > kBurst / 2);
  return bursting_;
}

// Returns whether enough has been consumed for a credit to go before a write
// that is due anyway, and that cannot carry the credit. A peer that has the
// message then has the credit, finds nothing outstanding, and begins at the
// front of the ring, or says so. So this end knows what its peer knows, and
// never has to wake it.
bool QpLane::CreditAlong() {
  const std::uint64_t consumed = consumed_.load(std::memory_order_relaxed);
  // Earlier than where credit is due: the next message may be too late.
  const std::uint64_t along = 3 * kMessages / 4 / pace_.credit_part;
  if (consumed - published_.load(std::memory_order_relaxed) >= along) {
    return true;
  }
  // After one more message like the last, the credit would need a write of its
  // own. This thread holds post_latch_, and so published_ stays. The draining
  // thread writes at most 32 messages ahead of published_. So it does not write
  // the entry of message consumed - 1.
  const std::uint32_t ring = rx_ring_bytes_.load(std::memory_order_relaxed);
  const std::uint64_t end =
      bytes_before_[consumed % 64].load(std::memory_order_relaxed);
  const std::uint64_t last =
      end - bytes_before_[(consumed - 1) % 64].load(std::memory_order_relaxed);
  return end - published_bytes_.load(std::memory_order_relaxed) + last >
         ring / pace_.credit_part;
}

// For a message of `length` that is about to go.
void QpLane::PublishAlong(Chain* chain, std::uint32_t length) {
  if (chain->MayCarry(length)) {
    // A credit takes some bits of the immediate, or four bytes of a SEND: it
    // always goes along.
    if (consumed_.load(std::memory_order_relaxed) !=
        published_.load(std::memory_order_relaxed)) {
      PublishLocked(chain, true);
    }
  } else if (CreditAlong()) {
    PublishLocked(chain);
  }
}

// False: the peer can't have consumed so much.
bool QpLane::TakeCredit() {
  const std::uint64_t consumed = Consumed();
  // A value less than what is known is half of a word that is coming in.
  if (consumed <= tx_->credited()) return true;
  if (!tx_->OnCredit(consumed)) return false;
  credit_seen_.store(consumed, std::memory_order_relaxed);
  if (directs_ != 0) [[unlikely]]
    DropCredited();
  return true;
}

void QpLane::LookForCredit() {
  const std::uint64_t word = CreditWord().load(std::memory_order_acquire);
  const auto wakes = static_cast<std::uint16_t>(word >> kWakeShift);
  if (wakes != wakes_drained_) {
    // Even a sender that never sleeps must take its wake-ups out of the queue.
    wakes_drained_ = wakes;
    poller_->Collect();
  }
  if (!TakeCredit()) {
    Lost(base::Reason::kProtocol);
    return;
  }
  if (old_mirror_ ||
      ring_offers_.load(std::memory_order_acquire) != rings_taken_) {
    TakeRing();
  }
}

// Credit may have come with messages that no thread has looked for.
void QpLane::LookForRoom() {
  LookForCredit();
  if (tx_->Writable() != 0 || Closed()) return;
  poller_->Collect();
  LookForCredit();
}

// Goes over to the ring that the peer has offered, as soon as the ring before
// the present one is no longer needed.
void QpLane::TakeRing() {
  // The messages of the old ring are credited, and the device has sent them: it
  // might send from the old ring once more.
  if (!tx_->OldCredited() ||
      done_wrs_.load(std::memory_order_acquire) < switch_wrs_) {
    return;
  }
  if (old_mirror_) {
    tx_grown_[tx_->ring() ^ 1].reset();
    old_mirror_ = false;
  }
  const std::uint32_t offers = ring_offers_.load(std::memory_order_acquire);
  if (offers == rings_taken_ || !Flush()) return;
  rings_taken_ = offers;
  const std::uint64_t address = ring_address_.load(std::memory_order_relaxed);
  const std::uint64_t key_bytes =
      ring_key_bytes_.load(std::memory_order_relaxed);
  const auto bytes = static_cast<std::uint32_t>(key_bytes);
  // Only ever larger, so that a peer can make this process do this a bounded
  // number of times.
  if (bytes <= peer_.bytes || bytes > kBlockMax || bytes % 4096 != 0 ||
      address == 0 || address % 64 != 0 || address + bytes < address) {
    Lost(base::Reason::kProtocol);
    return;
  }
  verbs::Error error;
  if (bytes > most_ring_ || !memory_->MayGrow(bytes)) return;
  Block block = memory_->Get(bytes, false, &error);
  if (!block) return;
  RCSOCK_LOG(2, "rdma: sends into a ring of %u bytes", bytes);
  base::LatchGuard hold(post_latch_);
  peer_.bytes = bytes;
  tx_->Switch(bytes, std::min(RecordMax(bytes), pace_.record));
  tx_ring_ = {block.base(), address, block.lkey(),
              static_cast<std::uint32_t>(key_bytes >> 32)};
  tx_mirrors_[tx_->ring()] = block.base();
  tx_grown_[tx_->ring()] = std::move(block);
  old_mirror_ = true;
  switch_wrs_ = posted_wrs_;
}

// Whether there is room for kHeadroom and kPostWrs. The caller holds the tx
// latch, and not post_latch_.
bool QpLane::EnsureRoom() {
  const auto enough = [this] { return HasRoom(kHeadroom + kPostWrs); };
  if (enough()) return true;
  poller_->Collect();
  if (enough()) return true;
  // Said before the last look. Tell() looks at it after OnSent has made room.
  queue_full_.store(true, std::memory_order_seq_cst);
  WantSent();
  poller_->Collect();
  return enough();
}

void QpLane::SendFrom(std::shared_ptr<UserMemory> memory) {
  send_from_ = std::move(memory);
  send_thread_ = &tls_post_ended;
}

std::size_t QpLane::Post(const iovec* iov, int count, std::size_t skip,
                         std::size_t limit) {
  if (!tx_ || Closed()) return 0;
  if (next_post_ != nullptr) [[unlikely]] {
    std::exchange(next_post_, nullptr)();
  }
  LookForRoom();
  IovCursor from(iov, count, skip);
  const std::size_t all = from.Left(limit);
  if (all == 0 || !EnsureRoom()) return 0;
  const std::byte* direct = nullptr;
  if (send_from_ != nullptr && send_thread_ == &tls_post_ended && count == 1)
      [[unlikely]] {
    const auto* at = static_cast<const std::byte*>(iov[0].iov_base) + skip;
    if (send_from_->Has(at, all)) direct = at;
    // No CPU may touch a GPU's memory.
    std::uint32_t lkey = 0;
    if (direct != nullptr && send_from_->device() != nullptr &&
        !MayPostDirect(&lkey)) {
      base::tls_fault = true;
      return 0;
    }
  }
  if (TargetCheck() != 0 && TakesTarget(all)) [[unlikely]] {
    return PostToTarget(from, all, direct);
  }
  if (direct != nullptr) [[unlikely]]
    return PostDirect(direct, all);
  // Tried before the message has a place: the place could not be given back.
  if (!from.Readable(std::min(all, kSmallSend))) [[unlikely]] {
    base::tls_fault = true;
    return 0;
  }
  return all <= kSmallSend ? PostSmall(from, all) : PostLarge(from, all);
}

[[gnu::always_inline]] inline std::size_t QpLane::Extend(IovCursor* from,
                                                         std::size_t all) {
  const std::uint32_t n = tx_->ExtendLast(all);
  from->CopyOut(TxRing() + waiting_.offset + waiting_.length, n);
  waiting_.length += n;
  waiting_.imm.length = waiting_.length;
  return n;
}

[[gnu::always_inline]] inline void QpLane::SendWaiting(Chain* chain) {
  if (waiting_.length != 0) {
    PublishAlong(chain, waiting_.length);
    chain->Message(waiting_);
  } else if (CreditAlong()) {
    PublishLocked(chain);
  }
  waiting_.length = 0;
  sent_for_wakes_.store(tx_->sent(), std::memory_order_relaxed);
  chain->Post();
  waits_.store(tell_owed_, std::memory_order_relaxed);
}

[[gnu::always_inline]] inline void QpLane::LetWait(bool burst) {
  bursts_.store(burst && !tell_owed_, std::memory_order_seq_cst);
  waits_.store(true, std::memory_order_seq_cst);
  // This thread stores waits_, then loads done_wrs_. The draining thread stores
  // done_wrs_, then loads waits_. One of the two sends the record, and while
  // the window is full a signalled write is in flight. In a burst neither sends
  // the record: a thread that stops sending sleeps or looks, or the timer
  // comes.
  if (!burst && !Streaming()) FlushLocked();
}

std::size_t QpLane::PostSmall(IovCursor from, std::size_t all) {
  const std::uint64_t landed = landed_.load(std::memory_order_relaxed);
  const bool reply = landed != landed_at_post_;
  landed_at_post_ = landed;
  const bool burst = Bursts(reply);
  post_latch_.lock();
  if (reply) reply_wrs_ = posted_wrs_;
  if (!burst && Streaming()) {
    post_latch_.unlock();
    poller_->Collect();
    post_latch_.lock();
  }
  if (iwarp_ && all <= kSendData && waiting_.length == 0 && !burst &&
      !Streaming()) {
    const bool sent = PostShort(from, static_cast<std::uint32_t>(all));
    post_latch_.unlock();
    tls_post_ended = base::Ticks();
    return sent ? all : 0;
  }
  std::size_t done = 0;
  if (waiting_.length != 0) done = Extend(&from, all);
  Chain chain(this);
  while (done < all) {
    if (waiting_.length != 0) chain.Message(waiting_);
    waiting_ = tx_->ReserveData(all - done);
    if (waiting_.length == 0) break;
    from.CopyOut(TxRing() + waiting_.offset, waiting_.length);
    done += waiting_.length;
  }
  const bool wait = waiting_.length != 0 && chain.empty() && done == all &&
                    (burst || Streaming()) && waiting_.length < kJoined &&
                    deferred_->Enabled();
  if (wait) {
    LetWait(burst);
  } else {
    SendWaiting(&chain);
  }
  const bool defer = waiting_.length != 0;
  post_latch_.unlock();
  // A flush clears listed_ before it takes the latch. If listed_ is still set
  // here, that flush is yet to come.
  if (defer && !listed_.load(std::memory_order_seq_cst)) deferred_->Add(this);
  tls_post_ended = base::Ticks();
  return done;
}

// One request in place of two: the bytes go with the immediate.
bool QpLane::PostShort(IovCursor from, std::uint32_t all) {
  const std::uint64_t outstanding = tx_->outstanding();
  if (outstanding >= tx_->most_outstanding()) return false;
  ring::Placement place{tx_->ReserveInline(all),
                        0,
                        all,
                        {ring::Kind::kData, ring::kFlagInline, all}};
  // As at the front of the ring: all messages before have been credited.
  if (outstanding == 0) place.imm.flags |= ring::kFlagRewind;
  from.CopyOut(TxSlot(place.number), all);
  Chain chain(this);
  PublishAlong(&chain, all);
  chain.Message(place);
  sent_for_wakes_.store(tx_->sent(), std::memory_order_relaxed);
  chain.Post();
  waits_.store(tell_owed_, std::memory_order_relaxed);
  return true;
}

std::size_t QpLane::PostLarge(IovCursor from, std::size_t all) {
  const std::uint64_t landed = landed_.load(std::memory_order_relaxed);
  {
    base::LatchGuard hold(post_latch_);
    if (landed != landed_at_post_) reply_wrs_ = posted_wrs_;
    if (!FlushLocked()) return 0;  // what waits goes first
  }
  landed_at_post_ = landed;
  std::size_t done = 0;
  bool fault = false;
  while (done < all) {
    // Copied outside the latch: no other thread touches these bytes.
    ring::Placement places[kPostWrs / 2 - 2];
    std::size_t count = 0;
    std::size_t bytes = 0;
    while (done < all && count < std::size(places) && bytes < pace_.doorbell) {
      fault =
          !from.Readable(std::min<std::size_t>(all - done, tx_->record_max()));
      if (fault) [[unlikely]]
        break;
      const ring::Placement place = tx_->ReserveData(all - done);
      if (place.length == 0) break;
      from.CopyOut(TxRing() + place.offset, place.length);
      places[count++] = place;
      bytes += place.length;
      done += place.length;
    }
    if (count == 0) {
      base::tls_fault = fault && done == 0;
      break;
    }
    {
      base::LatchGuard hold(post_latch_);
      Chain chain(this);
      PublishAlong(&chain, places[0].length);
      for (std::size_t i = 0; i < count; ++i) chain.Message(places[i]);
      sent_for_wakes_.store(tx_->sent(), std::memory_order_relaxed);
      chain.Post();
    }
    if (done == all || fault) break;
    LookForRoom();
    if (Closed() || !EnsureRoom()) break;
  }
  return done;
}

bool QpLane::PostCtl(const void* message, std::size_t length) {
  if (!tx_ || Closed()) return false;
  LookForRoom();
  return PostControl(message, length, ring::Kind::kCtl);
}

bool QpLane::PostControl(const void* message, std::size_t length,
                         ring::Kind kind) {
  EnsureRoom();
  base::LatchGuard hold(post_latch_);
  if (Room() < kHeadroom / 2) return false;
  const ring::Placement place = tx_->ReserveCtl(length, kind);
  if (place.length == 0) return false;
  Chain chain(this);
  if (waiting_.length != 0) chain.Message(waiting_);
  waiting_.length = 0;
  std::memcpy(TxSlot(place.number), message, place.length);
  chain.Message(place);
  sent_for_wakes_.store(tx_->sent(), std::memory_order_relaxed);
  chain.Post();
  waits_.store(tell_owed_, std::memory_order_relaxed);
  return true;
}

bool QpLane::FlushLocked() {
  if (Room() < kPostWrs / 2) return waiting_.length == 0 && !tell_owed_;
  Chain chain(this);
  if (waiting_.length != 0) {
    PublishAlong(&chain, waiting_.length);
    chain.Message(waiting_);
    // No message follows this one.
    sent_for_wakes_.store(waiting_.number + 1, std::memory_order_relaxed);
  }
  waiting_.length = 0;
  if (tell_owed_) {
    tell_owed_ = false;
    PublishLocked(&chain);
  }
  chain.Post();
  waits_.store(false, std::memory_order_relaxed);
  return true;
}

bool QpLane::Flush() {
  if (!waits_.load(std::memory_order_seq_cst)) return true;
  base::LatchGuard hold(post_latch_);
  if (FlushLocked()) return true;
  WantSent();
  return false;
}

std::size_t QpLane::Writable() {
  if (!tx_ || Closed()) return 0;
  LookForRoom();
  if (Closed()) return 0;
  const std::size_t room = tx_->Writable();
  // A thread that waits for room sleeps next. The peer must see all messages
  // first.
  if (room == 0) Flush();
  return room;
}

std::uint64_t QpLane::Acked() {
  if (!tx_) return 0;
  if (State() == base::Reason::kNone) {
    LookForCredit();
    // More credit may have come with messages that no thread has looked for.
    if (tx_->acked() != tx_->posted()) {
      poller_->Collect();
      LookForCredit();
    }
  } else if (State() != base::Reason::kProtocol) {
    // The credit that came before the lane's end still says how much the peer
    // has read. Whether the peer's end was orderly depends on that.
    static_cast<void>(TakeCredit());
  }
  return tx_->acked();
}

std::size_t QpLane::CopyUnacked(std::uint64_t from, void* to,
                                std::size_t length) {
  if (!tx_) return 0;
  auto* out = static_cast<std::byte*>(to);
  std::size_t done = 0;
  while (done < length) {
    const ring::Piece piece = tx_->Find(from + done);
    if (piece.length == 0) break;
    const std::byte* at =
        (piece.in_slot ? TxSlot(piece.number) : tx_mirrors_[piece.ring]) +
        piece.offset;
    const Direct& direct = direct_[piece.number % kMessages];
    const std::size_t n = std::min<std::size_t>(piece.length, length - done);
    if (direct.bytes != nullptr && direct.number == piece.number) {
      at = direct.bytes + (at - direct.mirror);
      if (!direct.memory->CopyOut(out + done, at, n)) break;
    } else {
      std::memcpy(out + done, at, n);
    }
    done += n;
  }
  return done;
}

// --- What waits --------------------------------------------------------------

void Deferred::Add(QpLane* lane) {
  bool first = false;
  {
    base::LatchGuard hold(latch_);
    if (lane->listed_.load(std::memory_order_relaxed)) return;
    lane->listed_.store(true, std::memory_order_seq_cst);
    lane->next_deferred_ = first_;
    first_ = lane;
    first = count_.fetch_add(1, std::memory_order_seq_cst) == 0;
  }
  if (!first) return;
  if (auto* fn = fn_.load(std::memory_order_acquire)) fn(arg_);
}

void Deferred::Remove(QpLane* lane) {
  base::LatchGuard hold(latch_);
  for (QpLane** at = &first_; *at != nullptr; at = &(*at)->next_deferred_) {
    if (*at != lane) continue;
    *at = lane->next_deferred_;
    lane->listed_.store(false, std::memory_order_relaxed);
    count_.fetch_sub(1, std::memory_order_seq_cst);
    return;
  }
}

void Deferred::FlushAll() {
  bool left = false;
  RdmaPoller* full = nullptr;
  {
    base::LatchGuard hold(latch_);
    QpLane** at = &first_;
    while (*at != nullptr) {
      QpLane* lane = *at;
      lane->listed_.store(false, std::memory_order_seq_cst);
      if (lane->Flush()) {
        *at = lane->next_deferred_;
        count_.fetch_sub(1, std::memory_order_seq_cst);
      } else {
        lane->listed_.store(true, std::memory_order_relaxed);
        at = &lane->next_deferred_;
        left = true;
        full = lane->poller_;
      }
    }
  }
  if (!left) return;
  // For one lane's poller; the others' turn comes when this is called again.
  full->Collect();
  if (auto* fn = fn_.load(std::memory_order_acquire)) fn(arg_);
}

}  // namespace rcsock::lane::rdma
