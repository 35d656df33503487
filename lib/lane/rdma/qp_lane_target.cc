// The part of QpLane that receives into the memory of a waiting call, and sends
// there.  target.h has the format, docs/protocol.md the rules.

#include <algorithm>
#include <cstring>
#include <utility>

#include "lib/base/clock.h"
#include "lib/base/guard.h"
#include "lib/base/log.h"
#include "lib/lane/rdma/chain.h"
#include "lib/lane/rdma/qp_lane.h"

namespace rcsock::lane::rdma {
namespace {

// A withdrawal waits until nothing has landed for this long. By then everything
// has landed that a sender had posted before it could see the withdrawal.
constexpr std::uint64_t kQuietNs = 100'000;
// ... and so long at most in all.
constexpr std::uint64_t kPatienceNs = 20'000'000;
// A plain call waits this long for the rest of a send.
constexpr std::uint64_t kRestNs = 100'000'000;
// After n unused targets in a row, about one of 2^n waits has a target. This is
// the largest n.
constexpr std::uint32_t kMostMisses = 8;
// Places in the send queue that a target may take.
constexpr std::uint32_t kRoom = 8;

// Copies `n` bytes of a target to the vector. If another call has read before,
// the owner's bytes move down in its own memory. The copy begins with the first
// byte, and writes nothing ahead of what has been read.
bool CopyOver(IovCursor* to, const std::byte* from, std::size_t n) {
  std::byte piece[4096];
  while (n > 0) {
    const std::size_t part = std::min(n, sizeof(piece));
    std::memcpy(piece, from, part);
    if (!to->CopyIn(piece, part)) return false;
    from += part;
    n -= part;
  }
  return true;
}

}  // namespace

// --- The receiver ------------------------------------------------------------

bool QpLane::OpenTarget(std::byte* at, std::size_t length, bool exact,
                        Window* window) {
  const bool able = !Closed() && target_.length == 0 && peer_.bytes != 0 &&
                    (!iwarp_ || inline_bytes_ >= sizeof(TargetWords));
  if (!able) return false;
  length = std::min(length, kMostTarget);
  const std::size_t here = Readable();
  if (here != 0 && (exact || length < here + kLeastTarget)) return false;
  if (late_key_.kept()) {
    if (read_bytes_ + here < late_key_.until()) return false;
    late_key_.Release();
  }
  if (!window->Open(domain_, memory_->pd(), at, length)) {
    NoteUse();
    return false;
  }
  bool open = false;
  poller_->Settled([&] {
    const std::size_t unread = UnreadOfRing();
    open = !latched_ && unread < length && (unread == 0 || !exact);
    if (!open) return;
    target_ = {at, length, unread, exact, false, read_bytes_};
    target_made_ = true;
    target_end_.store(kNoEnd, std::memory_order_relaxed);
  });
  goes_on_until_ns_ = 0;
  if (open &&
      SayTarget({reinterpret_cast<std::uintptr_t>(at), read_bytes_,
                 window->key(), static_cast<std::uint32_t>(length), exact})) {
    return true;
  }
  poller_->Settled([this] { target_ = {}; });
  window->Close();
  return false;
}

bool QpLane::SayTarget(const Target& target) {
  const TargetWords words = EncodeTarget(target);
  const base::LatchGuard hold(post_latch_);
  if (Room() < kRoom) return false;
  Chain chain(this);
  chain.Target(words.data(), words.size(), kTargetAt);
  chain.Post();
  return true;
}

// The caller holds the drain latch, and no target is open: what has landed is
// in the ring. Returns its unread data bytes.
std::size_t QpLane::UnreadOfRing() {
  std::size_t bytes = 0;
  EachUnread([&](const ring::Rx& at) {
    if (at.data()) bytes += at.left();
    placed_at_[at.next() % kMessages] = nullptr;
    return true;
  });
  return bytes;
}

// The caller holds the drain latch. Calls `each(at)` for the messages that have
// landed and are unread, the current one first, until `each` returns false.
template <class Each>
void QpLane::EachUnread(Each each) {
  ring::Rx at = rx_;
  const std::uint64_t landed =
      std::min(rx_limit_, landed_.load(std::memory_order_relaxed));
  for (;;) {
    while (!at.active()) {
      if (at.next() >= landed) return;
      const std::uint32_t imm =
          inbox_[at.next() % kMessages].load(std::memory_order_relaxed);
      if (ring::Decode(imm).kind == ring::Kind::kSetup) {
        at.TakeInline();
      } else if (!at.Accept(imm)) {
        return;  // Fill() ends the lane there
      }
    }
    if (!each(at)) return;
    at.Take(at.left());
  }
}

// The caller holds the drain latch.
base::Reason QpLane::OnTarget(std::uint64_t number, ring::Imm* imm) {
  const bool placed = imm->kind == ring::Kind::kPlaced;
  // A placed message behind a withdrawal is late, and no breach: its sender
  // keeps the bytes.
  if (target_.length == 0 || target_.closing) {
    if (!placed) return base::Reason::kNone;
    return target_made_ ? base::Reason::kLaneError : base::Reason::kProtocol;
  }
  std::byte*& at = placed_at_[number % kMessages];
  at = nullptr;
  if (!ring::IsData(imm->kind)) return base::Reason::kNone;
  const bool last = placed && (imm->flags & ring::kFlagLast) != 0;
  const bool over = target_end_.load(std::memory_order_relaxed) != kNoEnd;
  if (placed) {
    imm->kind = ring::Kind::kData;
    imm->flags &= static_cast<std::uint8_t>(~ring::kFlagLast);
    if (over || target_.landed > target_.length ||
        imm->length > target_.length - target_.landed) {
      return base::Reason::kProtocol;
    }
    at = target_.at + target_.landed;
  }
  target_.landed += imm->length;
  if (!over && (target_.landed >= target_.length ||
                (target_.exact && (!placed || last)))) {
    target_end_.store(number, std::memory_order_relaxed);
  }
  return base::Reason::kNone;
}

const std::byte* QpLane::InTarget(const ring::Rx& rx) const {
  const std::byte* at = placed_at_[rx.next() % kMessages];
  if (at == nullptr) return nullptr;
  const std::uint32_t bits =
      inbox_[rx.next() % kMessages].load(std::memory_order_relaxed);
  return at + (ring::Decode(bits).length - rx.left());
}

bool QpLane::TargetGoesOn() {
  const bool on = target_.length != 0 && target_.exact &&
                  State() == base::Reason::kNone &&
                  rx_.next() <= target_end_.load(std::memory_order_relaxed);
  if (!on) return false;
  const std::uint64_t now = base::NowNs();
  if (goes_on_until_ns_ == 0) goes_on_until_ns_ = now + kRestNs;
  return now < goes_on_until_ns_;
}

// As Read, but for bytes that may already be where they belong.
std::size_t QpLane::ReadTarget(const iovec* iov, int count, std::size_t skip,
                               std::size_t limit, bool peek) {
  const bool drop = iov == nullptr;
  IovCursor to(iov, drop ? 0 : count, skip);
  const std::size_t all = drop ? limit : to.Left(limit);
  ring::Rx look = rx_;
  const ring::Rx& at = peek ? look : rx_;
  std::size_t done = 0;
  std::size_t kept = 0;
  while (done < all && (peek ? LandedData(&look) : Fill() && rx_.data())) {
    auto n = static_cast<std::uint32_t>(
        std::min<std::size_t>(at.left(), all - done));
    const std::byte* placed = InTarget(at);
    bool good = true;
    if (!drop) {
      n = static_cast<std::uint32_t>(std::min<std::size_t>(n, to.Here()));
      // The program may have unmapped it.
      good = placed == nullptr || base::Readable(placed, n);
      if (good && placed == to.Next()) {
        kept += n;
        to.Pass(n);
      } else if (good) {
        good = placed != nullptr ? CopyOver(&to, placed, n)
                                 : to.CopyIn(Bytes(at), n);
      }
    }
    if (!good) [[unlikely]] {
      base::tls_fault = done == 0;
      break;
    }
    if (peek) {
      look.Take(n);
    } else {
      Take(n);
    }
    done += n;
  }
  if (!peek) {
    read_bytes_ += done;
    if (kept != 0) {
      CountInPlace(kept);
      target_used_ = true;
    }
  }
  return done;
}

// The sender looks at the check before each message that it would place.
void QpLane::WithdrawTarget() {
  const auto over = [this] {
    return Closed() || target_end_.load(std::memory_order_relaxed) != kNoEnd;
  };
  const std::uint64_t begun = base::NowNs();
  std::uint64_t quiet = begun;
  std::uint64_t seen = landed_.load(std::memory_order_acquire);
  bool told = false;
  for (;;) {
    poller_->Drain();
    if (over()) return;
    if (!told) told = SayWithdrawn();
    const std::uint64_t now = base::NowNs();
    const std::uint64_t landed = landed_.load(std::memory_order_acquire);
    if (landed != seen) {
      seen = landed;
      quiet = now;
    }
    if (now - quiet >= kQuietNs || now - begun >= kPatienceNs) return;
  }
}

bool QpLane::SayWithdrawn() {
  const base::LatchGuard hold(post_latch_);
  if (Room() < kRoom) return false;
  const std::uint64_t none = 0;
  Chain chain(this);
  chain.Target(&none, 1, kTargetCheckAt);
  chain.Post();
  return true;
}

void QpLane::CloseTarget(Window* window) {
  if (target_.length == 0) {
    window->Close();
    return;
  }
  WithdrawTarget();
  // The device refuses a write to the target that comes after this. Then the
  // lane ends, and the peer sends its bytes another way. No other memory gets
  // this key before the peer can write by it no more.
  late_key_.Keep(window->key(), kNoLimit);
  window->Close();
  bool moved = true;
  poller_->Settled([&] {
    target_.closing = true;
    moved = MoveToRing();
  });
  KeepLateKey();
  poller_->Settled([this] { target_ = {}; });
  NoteUse();
  if (!moved) Lost(base::Reason::kLaneError);
}

// The caller holds the rx latch, and the target is closing. A target that has
// ended is void for its sender. For an exact target the next message shows
// that: a message in the ring comes behind the withdrawal, and a placed message
// ends the lane. Any other target is void behind its end.
void QpLane::KeepLateKey() {
  if (target_end_.load(std::memory_order_relaxed) != kNoEnd) {
    late_key_.Release();
  } else {
    late_key_.KeepUntil(target_.from +
                        (target_.exact ? target_.landed + 1 : target_.length));
  }
}

void QpLane::NoteUse() {
  if (std::exchange(target_used_, false)) {
    target_misses_ = 0;
    return;
  }
  target_misses_ = std::min(target_misses_ + 1, kMostMisses);
  target_skips_ = (1u << target_misses_) - 2;
}

// Moves what has landed in the target and is unread to its place in the ring,
// which its sender has kept free. False: the program's memory has gone.
bool QpLane::MoveToRing() {
  bool good = true;
  EachUnread([&](const ring::Rx& at) {
    const std::byte* from = InTarget(at);
    if (from == nullptr) return true;
    good = base::Readable(from, at.left());
    if (!good) {
      // The bytes of this message and of later ones are not credited, so the
      // peer has them.
      rx_limit_ = at.next();
      return false;
    }
    auto* to = const_cast<std::byte*>(rx_rings_[at.ring()]) + at.offset();
    std::memcpy(to, from, at.left());
    placed_at_[at.next() % kMessages] = nullptr;
    return true;
  });
  if (!good && rx_limit_ == rx_.next()) rx_.Forget();
  return good;
}

// --- The sender --------------------------------------------------------------

// The caller holds the tx latch. Returns whether the next `all` bytes, or at
// least the first of them, go to the peer's target.
bool QpLane::TakesTarget(std::size_t all) {
  const std::uint64_t check = TargetCheck();
  const std::uint64_t posted = tx_->posted();
  if (check != to_check_) {
    TargetWords words;
    for (std::size_t i = 0; i < words.size(); ++i) {
      words[i] = HeadWord(kTargetAt + i * sizeof(words[0])).load();
    }
    // The words may be whole later.
    if (!DecodeTarget(words, &to_)) return false;
    to_check_ = words.back();
    to_used_ = false;
    to_void_ = to_.at > posted || to_.bytes < kLeastPlaced;
  }
  if (to_void_) return false;
  const std::uint64_t used = posted - to_.at;
  if (used >= to_.bytes || (to_.exact && !to_used_ && used != 0)) {
    to_void_ = true;
    return false;
  }
  if (all >= kLeastPlaced || (to_.exact && to_used_)) return true;
  to_void_ = to_.exact;
  return false;
}

std::size_t QpLane::PostToTarget(IovCursor from, std::size_t all,
                                 const std::byte* direct) {
  std::uint32_t lkey = 0;
  if (direct != nullptr && !MayPostDirect(&lkey)) direct = nullptr;
  const std::uint64_t landed = landed_.load(std::memory_order_relaxed);
  {
    const base::LatchGuard hold(post_latch_);
    if (landed != landed_at_post_) reply_wrs_ = posted_wrs_;
    if (!FlushLocked()) return 0;
  }
  landed_at_post_ = landed;
  std::size_t done = 0;
  while (done < all && !to_void_) {
    const std::uint64_t used = tx_->posted() - to_.at;
    if (used >= to_.bytes) break;
    const std::size_t want =
        std::min<std::size_t>(all - done, to_.bytes - used);
    if (direct == nullptr && !from.Readable(std::min<std::size_t>(
                                 want, tx_->record_max()))) [[unlikely]] {
      base::tls_fault = done == 0;
      break;
    }
    ring::Placement place = tx_->ReserveData(want);
    if (place.length == 0) break;
    const std::byte* source = TxRing() + place.offset;
    if (direct != nullptr) {
      source = direct + done;
      NoteDirect(place, source);
    } else {
      from.CopyOut(TxRing() + place.offset, place.length);
    }
    PostPiece(&place, source, direct != nullptr ? lkey : tx_ring_.lkey,
              direct != nullptr, to_.address + used,
              done + place.length == all);
    done += place.length;
    if (done == all) break;
    LookForRoom();
    if (Closed() || !EnsureRoom()) break;
  }
  return done;
}

// Posts one message, to the target unless that has been withdrawn.
void QpLane::PostPiece(ring::Placement* place, const std::byte* from,
                       std::uint32_t lkey, bool direct, std::uint64_t to,
                       bool last) {
  const base::LatchGuard hold(post_latch_);
  Chain chain(this);
  PublishAlong(&chain, place->length);
  if (direct && send_from_->device() != nullptr) chain.FromDevice();
  if (TargetCheck() == to_check_) {
    place->imm.kind = ring::Kind::kPlaced;
    if (to_.exact && last) {
      place->imm.flags |= ring::kFlagLast;
      to_void_ = true;
    }
    to_used_ = true;
    chain.MessageTo(*place, from, lkey, to, to_.key);
  } else {
    to_void_ = true;
    chain.MessageFrom(*place, from, lkey);
  }
  if (direct && !iwarp_) chain.Ticket();
  sent_for_wakes_.store(tx_->sent(), std::memory_order_relaxed);
  chain.Post();
  if (!direct) return;
  direct_wrs_ = posted_wrs_;
  if (!iwarp_) fence_wrs_ = posted_wrs_;
}

}  // namespace rcsock::lane::rdma
