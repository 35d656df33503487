#include "lib/lane/shm/shm_lane.h"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>

#include "lib/base/barrier.h"
#include "lib/base/clock.h"
#include "lib/base/config.h"
#include "lib/base/latch.h"
#include "lib/base/pool.h"
#include "lib/base/spin_budget.h"
#include "lib/lane/iov_cursor.h"
#include "lib/lane/read_landed.h"
#include "lib/lane/shm/link_state.h"
#include "lib/lane/shm/touched.h"

namespace rcsock::lane::shm {
namespace {

// How much a receiver takes before it wakes a sender that waits for room: this
// many slots, or a quarter of the ring in bytes. A wake for each record would
// cost a switch of threads for each.
constexpr std::uint32_t kWakeSlots = kSlots / 4;

}  // namespace

namespace {
constinit base::Pool lanes(sizeof(ShmLane));
constinit base::Pool tables(kSlots * sizeof(ring::Sent));
}  // namespace

ShmLane* ShmLane::New(const std::shared_ptr<LinkState>& link, int index) {
  void* at = lanes.Take();
  auto* table = static_cast<ring::Sent*>(tables.Take());
  if (at == nullptr || table == nullptr) {
    lanes.Give(at);
    tables.Give(table);
    return nullptr;
  }
  return ::new (at) ShmLane(link, index, table);
}
void ShmLane::operator delete(void* at) noexcept { lanes.Give(at); }

ShmLane::ShmLane(std::shared_ptr<LinkState> link, int index, ring::Sent* table)
    : hot_(link->stream(index).hot),
      more_(link->stream(index).more),
      link_(link.get()),
      light_fence_(link->PeerFences()),
      side_(static_cast<std::uint8_t>(link->side())),
      index_(static_cast<std::uint16_t>(index)),
      tx_(table, GeometryOf(link->ring_bytes())),
      rx_(GeometryOf(link->ring_bytes())),
      link_owner_(std::move(link)),
      own_futex_(link_->stream(index).futex[side_]),
      own_wake_(link_->OwnWake(index)),
      peer_futex_(link_->stream(index).futex[1 - side_]),
      tx_bytes_(link_->stream(index).bytes[side_]),
      rx_bytes_(link_->stream(index).bytes[1 - side_]),
      table_(table) {
  static_assert(2 * sizeof(Slot) == kQuickStride && offsetof(Slot, head) == 0);
  static_assert(kHotSlots == kQuickFirst && kSlots <= kQuickSlot + 1);
  quick_slots_ = reinterpret_cast<const std::byte*>(&hot_->slots[0][1 - side_]);
  quick_more_ = reinterpret_cast<const std::byte*>(&more_[0][1 - side_]);
}

ShmLane::~ShmLane() {
  own().poll.store(kNotifyNone, std::memory_order_relaxed);
  // A lane that no stream has had states here that it is left.
  if (own().left.load(std::memory_order_relaxed) !=
      static_cast<std::uint32_t>(Left::kAll)) {
    TellLeft(Left::kAll);
  }
  link_->Close(index_);
  tables.Give(table_);
  Touched::Add(-std::int64_t{touched_});
}

void ShmLane::Touch(std::uint32_t end) {
  if (end <= touched_) [[likely]]
    return;
  const std::uint32_t before = touched_;
  touched_ = (end + kPage - 1) / kPage * kPage;
  Touched::Add(touched_ - before);
  if (touched_ > Touched::kIdle) Touched::Grown();
}

Region ShmLane::RxRegion() const {
  return {const_cast<std::byte*>(rx_bytes_), rx_.ring_bytes(),
          static_cast<std::uint64_t>(index_ / kSegmentStreams)};
}

Region ShmLane::TxRegion() const {
  return {tx_bytes_, tx_.ring_bytes(),
          static_cast<std::uint64_t>(index_ / kSegmentStreams)};
}

Credits ShmLane::credits() const {
  const std::uint32_t most = tx_.most_outstanding();
  const std::uint64_t out = tx_.outstanding();
  return {out < most ? most - static_cast<std::uint32_t>(out) : 0, most};
}

base::Reason ShmLane::State() const {
  const base::Reason own = failed_.load(std::memory_order_acquire);
  return own != base::Reason::kNone ? own : link_->why_dead();
}

void ShmLane::Fail(base::Reason why) {
  failed_.store(why, std::memory_order_seq_cst);
  over_.store(true, std::memory_order_seq_cst);
  WakeLocal();
}

// --- Sending -----------------------------------------------------------------

void ShmLane::LookForCredit() {
  const std::uint64_t credit = peer().consumed.load(std::memory_order_acquire);
  if (credit > credit_seen_.load(std::memory_order_relaxed)) {
    // This thread takes the news, so a thread that has released the latch and
    // is on its way to sleep would miss it. From here on that thread's token is
    // old. The bump comes first, then what SleepTx compares. A thread that
    // finds the second finds the first too, and does not fall asleep.
    own_futex_.tx.fetch_add(1, std::memory_order_relaxed);
    credit_seen_.store(credit, std::memory_order_release);
  }
  TakeCredit(credit);
}

void ShmLane::TakeCredit(std::uint64_t credit) {
  // Credit older than what a message has brought, or Acked() has seen, is no
  // news.
  if (credit <= tx_.credited()) return;
  if (!tx_.OnCredit(credit)) {
    Fail();
    return;
  }
  // The request for a wake-up is cleared late, so that a sender that runs at
  // the receiver's pace leaves the line alone. Until then the request stands,
  // which costs nothing while no thread sleeps.
  if (starved_ && tx_.FreeBytes() >= tx_.ring_bytes() / 2 &&
      tx_.outstanding() <= kSlots / 2 &&
      (!tx_.bounded() || tx_.Allowed() >= 2 * tx_.LeastAllowed())) {
    starved_ = false;
    own().sleepers.fetch_and(~kStarved, std::memory_order_relaxed);
  }
}

void ShmLane::SetStarved() {
  if (starved_) return;
  starved_ = true;
  own().sleepers.fetch_or(kStarved, std::memory_order_seq_cst);
  // Starved is stored before the caller loads the credit. The receiver stores
  // the credit, fences, and loads starved. Either this end sees the credit, or
  // the receiver sees that this end starves, and notifies it.
  FullFence();
  // A bounded sender has no room although hardly anything may be due for
  // credit. The argument in Taken does not cover that. The receiver stores
  // `reached`, and loads starved without a fence. Here starved is stored, then
  // comes the heavy fence, then `reached` is loaded. So this end sees how far
  // the receiver has come, or the receiver sees that this end starves. Then the
  // receiver notifies this end when it has taken the rest.
  if (tx_.bounded()) {
    base::HeavyFenceProcesses();
    TakeCredit(
        hot_->reached[1 - side_].messages.load(std::memory_order_acquire));
  }
}

// Bounds only if the ring holds far more: only then is the slower way, with
// more wake-ups, worth it.
void ShmLane::BoundUnread(std::uint64_t bytes) {
  if (bytes > tx_.ring_bytes() / 2) {
    SetBound(0);
    return;
  }
  SetBound(
      static_cast<std::uint32_t>(std::max<std::uint64_t>(bytes, kInlineMax)));
  own().sleepers.fetch_or(kBounded, std::memory_order_relaxed);
}

ring::Placement ShmLane::Reserve(std::size_t want) {
  // Early news of credit lets the ring rewind, and starved_ end. The line is
  // shared, so the look is cheap unless there is news.
  if (starved_ || tx_.outstanding() >= kSlots / 4 ||
      tx_.FreeBytes() <= tx_.ring_bytes() / 2) {
    LookForCredit();
  }
  ring::Placement place = tx_.ReserveData(want);
  if (place.length != 0) return place;
  SetStarved();
  LookForCredit();
  if (!Closed()) place = tx_.ReserveData(want);
  if (place.length == 0) bulk_.NoRoom();
  return place;
}

void ShmLane::RenewSlots() {
  // `consumed` is the last message known to be consumed: the receiver looks for
  // none up to it. What is outstanding, the last message included, is new. No
  // scrubbed slot is left either: its 0 is message 2^32 - 1's. So what is in a
  // slot is never older than 2^31 messages and a lap of the ring. Publish's
  // release comes after these stores: a receiver that takes a later message
  // finds them.
  const std::uint64_t consumed = static_cast<std::uint32_t>(tx_.credited());
  for (std::uint32_t at = 0; at < kSlots; ++at) {
    if (((at - tx_.At(tx_.credited())) & (kSlots - 1)) < tx_.outstanding())
      continue;
    Slot& slot =
        at < kHotSlots ? hot_->slots[at][side_] : more_[at - kHotSlots][side_];
    slot.head.store(consumed << 32, std::memory_order_relaxed);
  }
}

// A sleeper finds at once, and in no order, all that has come until it looks.
// It reports streams by when their messages came, as the kernel does
// (EpollSet::TellInOrder).
//
// The stamp comes behind the message, before the kick, and before whatever this
// thread sends next, on this stream or another. A thread that finds that later
// message, by an acquire, finds this time too.
void ShmLane::Stamp(int bell) {
  const std::uint64_t armed = link_->Armed(bell);
  if (armed == 0 || armed == stamped_) return;
  stamped_ = armed;
  own().came.store(base::Ticks(), std::memory_order_release);
}

void ShmLane::AfterPublish(std::uint32_t sleepers, std::uint32_t poll) {
  if (tx_.sent() % kRenewEvery == 0) RenewSlots();
  if ((sleepers & kRxSleeper) != 0) {
    // The waker takes the bit away, so that the next messages find it gone.
    // First the bit, then the bump: a thread that sets the bit again meanwhile
    // holds a token from before the bump, and does not sleep.
    peer().sleepers.fetch_and(~kRxSleeper, std::memory_order_seq_cst);
    BumpAndWake(peer_futex_.rx);
    base::tls_spin.WokePeer(base::GetConfig().spin_us);
  }
  // For a stream with bits nothing reads the time.
  if ((poll & (kNotifyRxPoller | kNotifyRxBits)) == kNotifyRxPoller) {
    Stamp(BellOf(poll));
  }
  if ((poll & kNotifyRxBits) != 0) {
    link_->Mark(kReadyRx, BellOf(poll), index_);
  }
  if ((poll & (kNotifyRxPoller | kNotifyRxBits)) != 0) {
    link_->Ring(BellOf(poll));
  }
}

std::size_t ShmLane::Post(const iovec* iov, int count, std::size_t skip,
                          std::size_t limit) {
  if (count == 1 && skip == 0 && iov->iov_len <= limit) {
    const std::size_t n = PostQuick(iov->iov_base, iov->iov_len);
    if (n != 0) [[likely]]
      return n;
  }
  if (Closed()) [[unlikely]]
    return 0;
  TakeHeard();
  return PostAny(iov, count, skip, limit);
}

// The hint is slot 0 after two messages in a row in slot 0. Of a pair, the
// second message goes elsewhere, and the receiver is at slot 0's line.
void ShmLane::TellAnew(Told told) {
  const bool more = told == Told::kMore;
  if (more != (told_ == Told::kMore)) {
    own().more.store(more ? 1 : 0, std::memory_order_release);
    if (!more) told = Told::kAlone;
  }
  told_ = told;
  if (hint_ == nullptr) return;
  const void* const next =
      told == Told::kHinted ? static_cast<const void*>(&hot_->slots[0][side_])
                            : hint_;
  hint_->store(next, std::memory_order_relaxed);
}

// Told before the post, which may fail: nothing else is in the ring.
std::size_t ShmLane::PostFirst(const void* from, std::size_t length,
                               std::uint64_t number) {
  TellAnew(Told::kHinted);
  return PostAlone(from, length, number);
}

std::size_t ShmLane::PostBehind(const void* from, std::size_t length,
                                std::uint64_t heard) {
  if (heard > tx_.credited()) TakeCredit(heard);
  static_assert(kSlots / 4 <= kSlots - ring::kCtlSlots);
  if (starved_ || tx_.outstanding() >= kSlots / 4 || length > tx_.Allowed()) {
    return 0;
  }
  const auto bytes = static_cast<std::uint32_t>(length);
  // Copied before it counts: see PostAlone.
  const std::uint32_t at = tx_.NextAt();
  Slot& slot =
      at < kHotSlots ? hot_->slots[at][side_] : more_[at - kHotSlots][side_];
  if (!base::TrySmall(slot.payload, from, length)) [[unlikely]]
    return 0;
  const std::uint64_t number = tx_.ReserveInline(bytes);
  Publish(slot, number, at == 0 ? Told::kHinted : Told::kMore,
          kQuickBits | bytes);
  return length;
}

// The message goes whole, or by PostAny, which asks for credit and cuts it.
std::size_t ShmLane::PostRecord(const void* from, std::size_t length) {
  if (length == 0 || Closed()) return 0;
  TakeHeard();
  if (starved_ || tx_.outstanding() >= kSlots / 4 || !tx_.Fits(length) ||
      !base::Readable(from, length)) {
    return 0;
  }
  RecordCopy* const copy = CopyFor(length);
  const ring::Placement place = tx_.ReserveData(length);
  Slot& slot = TxSlot(place.number);
  if ((place.imm.flags & ring::kFlagInline) == 0) Touch(place.offset + length);
  copy->Copy((place.imm.flags & ring::kFlagInline) != 0
                 ? slot.payload
                 : tx_bytes_ + place.offset,
             static_cast<const std::byte*>(from), length);
  Publish(slot, place.number, ToldOf(tx_.At(place.number) == 0, place.imm),
          ring::Encode(place.imm));
  return length;
}

std::size_t ShmLane::PostAny(const iovec* iov, int count, std::size_t skip,
                             std::size_t limit) {
  IovCursor from(iov, count, skip);
  const std::size_t all = from.Left(limit);
  RecordCopy* const copy = CopyFor(all);
  std::size_t done = 0;
  while (done < all) {
    // Tried before the message has a place: the place could not be given back.
    if (!from.Readable(std::min<std::size_t>(all - done, tx_.record_max())))
        [[unlikely]] {
      base::tls_fault = done == 0;
      break;
    }
    const ring::Placement place = Reserve(all - done);
    if (place.length == 0) break;
    Slot& slot = TxSlot(place.number);
    std::byte* to = (place.imm.flags & ring::kFlagInline) != 0
                        ? slot.payload
                        : tx_bytes_ + place.offset;
    if ((place.imm.flags & ring::kFlagInline) == 0) {
      Touch(place.offset + place.length);
    }
    from.CopyOut(to, place.length,
                 [copy](std::byte* out, const std::byte* part, std::size_t n) {
                   copy->Copy(out, part, n);
                 });
    Publish(slot, place.number, ToldOf(tx_.At(place.number) == 0, place.imm),
            ring::Encode(place.imm));
    done += place.length;
  }
  return done;
}

bool ShmLane::PostCtl(const void* message, std::size_t length) {
  if (length > kCtlMax || Closed()) return false;
  TakeHeard();
  if (tx_.outstanding() >= kSlots / 4) LookForCredit();
  const ring::Placement place = tx_.ReserveCtl(length);
  if (place.length == 0) return false;
  Slot& slot = TxSlot(place.number);
  std::memcpy(slot.payload, message, place.length);
  Publish(slot, place.number, ToldOf(tx_.At(place.number) == 0, place.imm),
          ring::Encode(place.imm));
  return true;
}

std::size_t ShmLane::Writable() {
  if (Closed()) return 0;
  LookForCredit();
  if (tx_.Writable() == 0) {
    SetStarved();
    LookForCredit();
  }
  return Closed() ? 0 : tx_.Writable();
}

std::uint64_t ShmLane::Acked() {
  TakeCredit(hot_->reached[1 - side_].messages.load(std::memory_order_acquire));
  return tx_.acked();
}

std::size_t ShmLane::CopyUnacked(std::uint64_t from, void* to,
                                 std::size_t length) {
  auto* out = static_cast<std::byte*>(to);
  std::size_t done = 0;
  while (done < length) {
    const ring::Piece piece = tx_.Find(from + done);
    if (piece.length == 0) break;
    const std::byte* at =
        (piece.in_slot ? TxSlot(piece.number).payload : tx_bytes_) +
        piece.offset;
    const std::size_t n = std::min<std::size_t>(piece.length, length - done);
    std::memcpy(out + done, at, n);
    done += n;
  }
  return done;
}

// --- Receiving ---------------------------------------------------------------

bool ShmLane::Fill() {
  if (rx_.active()) return true;
  std::uint32_t imm;
  if (!Landed(&rx_, &imm)) {
    // Only the peer can take away what Freeze has latched.
    if (rx_limit_ != kNoLimit && rx_.next() < rx_limit_) {
      rx_limit_ = rx_.next();
      Fail();
    }
    return false;
  }
  const ring::Imm what = ring::Decode(imm);
  const bool too_long = what.kind == ring::Kind::kCtl && what.length > kCtlMax;
  if (!too_long && rx_.Accept(imm)) {
    Hear(RxSlot(rx_.slot()));
    return true;
  }
  rx_limit_ = rx_.next();
  Fail();
  return false;
}

bool ShmLane::LandedData(ring::Rx* at) const {
  std::uint32_t imm;
  if (!at->active() && (!Landed(at, &imm) || !at->Accept(imm))) return false;
  return at->data();
}

Head ShmLane::Peek() {
  if (Fill()) return rx_.data() ? Head::kData : Head::kCtl;
  if (State() == base::Reason::kNone) return Head::kEmpty;
  // The lane is dead. What landed before its end still counts, and may have
  // landed after the first look.
  if (Fill()) return rx_.data() ? Head::kData : Head::kCtl;
  return Head::kDead;
}

void ShmLane::Take(std::uint32_t n) {
  const std::uint32_t ring_bytes = rx_.in_slot() ? 0 : n;
  unnotified_bytes_ += ring_bytes;
  if (rx_.Take(n)) Taken(rx_.CreditDue());
}

void ShmLane::PublishCredit() {
  own().consumed.store(rx_.Publish(), std::memory_order_release);
  // The credit is stored before the starvation is loaded: see SetStarved and
  // SleepTx.
  FullFence();
  const std::uint32_t sleepers =
      peer().sleepers.load(std::memory_order_relaxed);
  if ((sleepers & (kStarved | kTxSleeper)) == 0) return;
  if (unnotified_bytes_ < rx_.ring_bytes() / 4 &&
      unnotified_slots_ < kWakeSlots && (sleepers & kBounded) == 0) {
    // Not yet worth a wake-up if there is more to take: then the receiver comes
    // here again.
    std::uint32_t imm;
    if (rx_.active() || Landed(&rx_, &imm)) return;
  }
  unnotified_bytes_ = 0;
  unnotified_slots_ = 0;
  const std::uint32_t poll = peer().poll.load(std::memory_order_relaxed);
  if ((sleepers & kTxSleeper) != 0) {
    peer().sleepers.fetch_and(~kTxSleeper, std::memory_order_seq_cst);
    BumpAndWake(peer_futex_.tx);
  }
  if ((poll & kNotifyTxPoller) != 0) {
    link_->Mark(kReadyTx, BellOf(poll), index_);
    link_->Ring(BellOf(poll));
  }
}

void ShmLane::Credit() {
  if (rx_.unpublished() != 0) PublishCredit();
}

std::size_t ShmLane::Read(const iovec* iov, int count, std::size_t skip,
                          std::size_t limit, bool peek) {
  if (count == 1 && skip == 0 && !peek && iov != nullptr) {
    const std::size_t n =
        ReadQuick(iov->iov_base, std::min(iov->iov_len, limit));
    if (n != 0) [[likely]]
      return n;
  }
  return ReadAny(iov, count, skip, limit, peek);
}

std::size_t ShmLane::ReadMore(void* to, std::size_t length) {
  auto* const at = static_cast<std::byte*>(to);
  std::size_t done = 0;
  while (Fill() && rx_.data()) {
    const auto n = static_cast<std::uint32_t>(
        std::min<std::size_t>(rx_.left(), length - done));
    if (!TryCopyIn(at + done, Bytes(rx_), n)) [[unlikely]]
      break;
    Take(n);
    done += n;
    if (done == length || !RxMore()) break;
  }
  return done;
}

std::size_t ShmLane::ReadAny(const iovec* iov, int count, std::size_t skip,
                             std::size_t limit, bool peek) {
  return LandedReader::Read(this, iov, count, skip, limit, peek);
}

std::size_t ShmLane::ReadCtl(void* message, std::size_t capacity) {
  return LandedReader::ReadCtl(this, message, capacity);
}

std::size_t ShmLane::Readable() {
  std::uint32_t messages;
  return Unread(&messages);
}

bool ShmLane::HalfFull() {
  std::uint32_t messages;
  const std::size_t bytes = Unread(&messages);
  return bytes >= RxRegion().length / 2 || messages >= kSlots / 2;
}

std::size_t ShmLane::Unread(std::uint32_t* messages) {
  std::size_t bytes = 0;
  ring::Rx at = rx_;
  // One lap at most: the peer may post all the while.
  for (*messages = 0; *messages < kSlots; ++*messages) {
    if (!LandedData(&at)) break;
    bytes += at.left();
    at.Take(at.left());
  }
  return bytes;
}

bool ShmLane::Arrived() {
  const std::uint64_t before = std::max(arrived_, rx_.next());
  arrived_ = before;
  std::uint32_t imm;
  for (std::uint64_t ahead; (ahead = arrived_ - rx_.next()) < kSlots;) {
    if (!(ahead == 0 ? Landed(&rx_, &imm) : LandedToo(ahead))) break;
    ++arrived_;
  }
  return arrived_ != before;
}

}  // namespace rcsock::lane::shm
