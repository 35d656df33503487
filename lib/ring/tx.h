#ifndef RCSOCK_LIB_RING_TX_H_
#define RCSOCK_LIB_RING_TX_H_

#include <cstddef>
#include <cstdint>

#include "lib/base/dcheck.h"
#include "lib/ring/imm.h"

namespace rcsock::ring {

// What both ends of a ring agree on.
struct Geometry {
  std::uint32_t bytes;       // of the byte ring
  std::uint32_t slots;       // messages in flight, a power of two, at least 16
  std::uint32_t inline_max;  // data up to this length is inline; 0: none
  std::uint32_t record_max;  // longest message
};

// The last slots are for control messages; data may not take them.
constexpr std::uint32_t kCtlSlots = 4;
// A control message is in its slot, and not longer than this.
constexpr std::uint32_t kCtlMax = 56;
// A free stretch shorter than this does not count as room for a longer message.
// Otherwise small leftovers would cut bulk data into small messages for ever.
constexpr std::uint32_t kMinRoom = 4096;

// A message that has been sent and not yet credited.
struct Sent {
  std::uint64_t start;        // of its data in the byte stream
  std::uint32_t offset;       // in the byte ring; no meaning if inline
  std::uint32_t length : 29;  // an immediate has 25 bits for it
  std::uint32_t in_slot : 1;  // kFlagInline
  std::uint32_t data : 1;
  std::uint32_t ring : 1;  // Tx::ring() when sent; no meaning if inline
};
static_assert(sizeof(Sent) == 16);

// Where the next message goes.
struct Placement {
  std::uint64_t number;  // counts messages from 0; Tx::At says its slot
  std::uint32_t offset;  // in the byte ring, unless inline
  std::uint32_t length;  // 0: no room
  Imm imm;
};

// What a device fills of the byte ring before its messages are reserved. While
// it has bytes, nothing else is reserved in the byte ring.
struct Filling {
  std::uint32_t bytes = 0;   // claimed, and in no message yet
  bool rewound = false;      // the next message says so
  std::uint32_t before = 0;  // the ring's offset, if no message says so
};
struct Stretch {
  std::uint32_t offset = 0;  // in the byte ring
  std::uint32_t length = 0;  // 0: no room
};

// A piece of the byte stream that lies in the ring.
struct Piece {
  std::uint64_t number;
  std::uint32_t offset;  // in the byte ring, or in the slot if inline
  std::uint32_t length;  // 0: not here
  bool in_slot;
  std::uint8_t ring;
};

// The sender's side of a ring: what is free, what is outstanding and where. The
// lane's latch of this direction guards it. All state is private to this
// process. Of what the peer can write, it uses only the credit, and checks
// that.
class Tx {
 public:
  // `table` has geometry.slots entries and outlives this. Its first entry is
  // never touched.
  Tx(Sent* table, const Geometry& geometry)
      : table_(table), slots_(geometry.slots), geometry_(geometry) {}

  // Returns the slot of a message that is not yet credited. A message that is
  // sent when all others are credited goes to slot 0. The next go to slot 1 and
  // so on, round and round. So light traffic stays in the first slots.
  std::uint32_t At(std::uint64_t number) const {
    return (static_cast<std::uint32_t>(number) - first_) & (slots_ - 1);
  }

  // Takes the next message, of at most `want` data bytes. The message never
  // crosses the end of the ring, exceeds the credit, or is longer than a
  // record.
  Placement ReserveData(std::size_t want) {
    const std::uint64_t outstanding = sent_ - credited_;
    if (want == 0 || outstanding >= slots_ - kCtlSlots) return {};
    if (want > Allowed()) [[unlikely]] {
      want = Allowed();
      if (want < LeastAllowed()) return {};
    }
    Placement place{sent_, 0, 0, {Kind::kData, 0, 0}};
    if (want <= geometry_.inline_max) {
      place.length = static_cast<std::uint32_t>(want);
      place.imm.flags = kFlagInline;
    } else {
      // All is credited: begin at the front, so that light traffic stays in few
      // lines and pages.
      if (fresh_) {
        place.imm.flags = kFlagRing;
      } else if (outstanding == 0 && offset_ != 0) {
        offset_ = 0;
        place.imm.flags = kFlagRewind;
      }
      const std::uint32_t free = geometry_.bytes - used_;
      std::uint32_t length = want < geometry_.record_max
                                 ? static_cast<std::uint32_t>(want)
                                 : geometry_.record_max;
      if (free < length) {
        if (free < kMinRoom) return {};
        length = free;
      }
      if (length > geometry_.bytes - offset_)
        length = geometry_.bytes - offset_;
      place.length = length;
      place.offset = offset_;
      fresh_ = false;
      Advance(length);
    }
    place.imm.length = place.length;
    Next() = {posted_,      place.offset,
              place.length, (place.imm.flags & kFlagInline) != 0,
              true,         ring_};
    posted_ += place.length;
    CountSent();
    Check();
    return place;
  }

  // Returns true if ReserveData(want) would take all bytes, and either leave
  // half of the ring, or have no other message outstanding.
  bool Fits(std::size_t want) const {
    return want <= geometry_.record_max && want <= Allowed() &&
           (sent_ == credited_ || (used_ + want <= geometry_.bytes / 2 &&
                                   offset_ + want <= geometry_.bytes));
  }

  // Claims up to `want` bytes of the byte ring, in a row. Requires a ring that
  // has never been switched.
  Stretch Claim(Filling* filling, std::size_t want);
  // Takes the next message, of at most `want` of the first claimed bytes.
  Placement ReserveClaimed(Filling* filling, std::size_t want);
  // Gives back what is claimed.
  void DropClaims(Filling* filling);

  // Counts bytes that the receiver has taken in no message. Requires that it
  // has taken all data sent before.
  void CountPassed(std::uint64_t bytes) {
    RC_DCHECK(acked_ == posted_);
    posted_ += bytes;
    acked_ += bytes;
  }

  // Lengthens the last message by up to `want` bytes, if it is data in the byte
  // ring. Requires that its immediate has not been sent. Returns how many bytes
  // it has added behind the message's own.
  std::uint32_t ExtendLast(std::size_t want);

  // ReserveData of what fits in a slot, without its checks. Requires 0 < length
  // <= inline_max, and fewer than slots - kCtlSlots outstanding. Returns the
  // message's number.
  std::uint64_t ReserveInline(std::uint32_t length) {
    RC_DCHECK(length != 0 && outstanding() < slots_);
    Next() = {posted_, 0, length, true, true, 0};
    posted_ += length;
    return CountSent();
  }

  // Returns the slot of the message that is reserved next.
  std::uint32_t NextAt() {
    if (sent_ == credited_) first_ = static_cast<std::uint32_t>(sent_);
    return At(sent_);
  }

  // ReserveInline when all messages before are credited. Does OnAllCredited()
  // as well, and puts the message into slot 0. `number` is sent(), which the
  // caller has.
  void ReserveAlone(std::uint64_t number, std::uint32_t length) {
    RC_DCHECK(number == sent_ && length != 0);
    credited_ = number;
    acked_ = posted_;
    used_ = 0;
    first_ = static_cast<std::uint32_t>(number);
    alone_ = {posted_, 0, length, true, true, 0};
    posted_ += length;
    SetSent(number + 1);
  }

  // From the next data message on, another ring is written to. What is in the
  // old ring stays there until it is credited. Only then may the ring change
  // again.
  void Switch(std::uint32_t bytes, std::uint32_t record_max) {
    geometry_.bytes = bytes;
    geometry_.record_max = record_max;
    ring_ ^= 1;
    offset_ = 0;
    used_ = 0;
    fresh_ = true;
    switched_at_ = sent_;
  }
  // Which ring is written to: 0 and 1 in turn.
  std::uint8_t ring() const { return ring_; }

  // Bounds the data bytes that may be outstanding, whatever room there is. If
  // none are outstanding, one message in a slot always fits.
  void Bound(std::uint32_t bytes) { bound_ = bytes; }
  void Unbound() { bound_ = kUnbounded; }
  bool bounded() const { return bound_ != kUnbounded; }
  std::uint64_t Allowed() const {
    const std::uint64_t out = posted_ - acked_;
    return out < bound_ ? bound_ - out : 0;
  }
  // Less than this counts as no room, as with kMinRoom.
  std::uint64_t LeastAllowed() const { return bound_ / 4 + 1; }
  bool OldCredited() const { return credited_ >= switched_at_; }

  // Takes the next message for a control message of `length` bytes, inline.
  Placement ReserveCtl(std::size_t length, Kind kind = Kind::kCtl);

  // The receiver has consumed its first `consumed` messages. Returns false if
  // that is impossible: the count went back, or is beyond what was sent.
  [[nodiscard]] bool OnCredit(std::uint64_t consumed) {
    if (consumed < credited_ || consumed > sent_) return false;
    // At most `slots` turns: no more can be outstanding.
    for (; credited_ != consumed; ++credited_) {
      const Sent& message = Entry(credited_);
      if (message.data) acked_ += message.length;
      if (!message.in_slot && message.ring == ring_) used_ -= message.length;
    }
    Check();
    return true;
  }

  // As OnCredit(sent()), without a loop.
  void OnAllCredited() {
    credited_ = sent_;
    acked_ = posted_;
    used_ = 0;
  }

  // Returns how many data bytes a bulk sender could post now; 0 if
  // ReserveData(large) fails.
  std::size_t Writable() const;
  std::uint32_t ring_bytes() const { return geometry_.bytes; }
  std::uint32_t record_max() const { return geometry_.record_max; }
  std::uint32_t FreeBytes() const { return geometry_.bytes - used_; }
  std::uint64_t outstanding() const { return sent_ - credited_; }
  // How many data messages may be outstanding.
  std::uint32_t most_outstanding() const { return geometry_.slots - kCtlSlots; }

  // The first two count messages, the last two data bytes.
  std::uint64_t sent() const { return sent_; }
  // As sent(), for any thread; the value may be out of date.
  std::uint64_t SentByNow() const {
    return __atomic_load_n(&sent_, __ATOMIC_RELAXED);
  }
  std::uint64_t credited() const { return credited_; }
  std::uint64_t posted() const { return posted_; }
  std::uint64_t acked() const { return acked_; }

  // Returns where byte `from` of the stream lies, if acked() <= from <
  // posted().
  Piece Find(std::uint64_t from) const;

 private:
  // The entry of the message that is reserved next.
  Sent& Next() {
    const std::uint32_t at = NextAt();
    return at == 0 ? alone_ : table_[at];
  }
  Sent& Entry(std::uint64_t number) {
    const std::uint32_t at = At(number);
    return at == 0 ? alone_ : table_[at];
  }
  const Sent& Entry(std::uint64_t number) const {
    return const_cast<Tx*>(this)->Entry(number);
  }
  // I-RING-1.
  void Check() const {
    RC_DCHECK(credited_ <= sent_ && sent_ - credited_ <= slots_);
    RC_DCHECK(acked_ <= posted_);
    RC_DCHECK(used_ <= geometry_.bytes && offset_ <= geometry_.bytes);
  }
  // Other threads read the count, SentByNow.
  void SetSent(std::uint64_t number) {
    __atomic_store_n(&sent_, number, __ATOMIC_RELAXED);
  }
  std::uint64_t CountSent() {
    const std::uint64_t number = sent_;
    SetSent(number + 1);
    return number;
  }
  // No message goes across the end.
  void Advance(std::uint32_t length) {
    offset_ += length;
    if (offset_ == geometry_.bytes) offset_ = 0;
    used_ += length;
  }

  // The fields that each message in slot 0 needs come first: 56 bytes, which
  // share a line with eight of the lane's.
  std::uint64_t sent_ = 0;
  std::uint64_t credited_ = 0;
  std::uint64_t posted_ = 0;
  std::uint64_t acked_ = 0;
  std::uint32_t first_ = 0;  // the message in slot 0, if not yet credited
  std::uint32_t used_ = 0;   // bytes of the byte ring not yet credited
  Sent alone_{};             // slot 0: light traffic needs no line of the table

  Sent* const table_;  // by slot
  const std::uint32_t slots_;
  std::uint32_t offset_ = 0;  // of the next message in the byte ring
  static constexpr std::uint32_t kUnbounded = ~0u;
  std::uint32_t bound_ = kUnbounded;
  std::uint8_t ring_ = 0;
  bool fresh_ = false;  // nothing has been sent in this ring
  Geometry geometry_;
  std::uint64_t switched_at_ = 0;
};

}  // namespace rcsock::ring

#endif  // RCSOCK_LIB_RING_TX_H_
