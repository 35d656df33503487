#ifndef RCSOCK_LIB_RING_RX_H_
#define RCSOCK_LIB_RING_RX_H_

#include <cstddef>
#include <cstdint>

#include "lib/base/dcheck.h"
#include "lib/ring/imm.h"
#include "lib/ring/tx.h"

namespace rcsock::ring {

// The receiver's side of a ring. Takes one message at a time, checks it, and
// says where its bytes are. No threads: the lane's latch of this direction
// guards the object. The object is small enough to copy: peeking runs on a
// copy.
class Rx {
 public:
  explicit Rx(const Geometry& geometry)
      : due_bytes_(geometry.bytes / 4 < kDueBytes ? geometry.bytes / 4
                                                  : kDueBytes),
        due_slots_(geometry.slots / 4),
        slots_(geometry.slots),
        geometry_(geometry) {}

  // The message to look at next, or the current one: the count of whole
  // messages consumed.
  std::uint64_t next() const { return next_; }
  // The slot of that message, or slot 0 instead: see Tx::At.
  std::uint32_t slot() const { return slot_; }
  // The next message is in slot 0.
  void ToFirstSlot() { slot_ = 0; }
  // A message has been accepted and not yet consumed to its end.
  bool active() const { return left_ != 0; }
  // Valid while active().
  bool data() const { return data_; }
  bool in_slot() const { return in_slot_; }
  std::uint32_t left() const { return left_; }
  // Where the first byte left is: in the byte ring, or in the slot.
  std::uint32_t offset() const { return offset_; }

  // Takes message number next(). Requires !active(). Returns false if it is
  // malformed; then nothing has changed, and the lane must end. Takes data and
  // control only; kCredit is the lane's business.
  //
  // A sender that lies within these bounds, for example by writing over bytes
  // not yet consumed, spoils only its own data.
  [[nodiscard]] bool Accept(std::uint32_t bits) {
    const Imm imm = Decode(bits);
    const bool data = imm.kind == Kind::kData;
    if ((!data && imm.kind != Kind::kCtl) || imm.length == 0) return false;
    if (imm.flags == kFlagInline) {
      if (imm.length > (data ? geometry_.inline_max : kCtlMax)) return false;
      offset_ = 0;
      in_slot_ = true;
    } else {
      if (!data) return false;
      if (imm.flags == kFlagRing && next_bytes_ != 0) {
        if (imm.length > next_bytes_ / 2) return false;
        geometry_.bytes = next_bytes_;
        geometry_.record_max = next_bytes_ / 2;
        next_bytes_ = 0;
        position_ = 0;
        ring_ ^= 1;
      } else if (imm.flags != 0 && imm.flags != kFlagRewind) {
        return false;
      }
      const std::uint32_t offset = imm.flags == kFlagRewind ? 0 : position_;
      // `offset` < bytes and length < 2^25: no overflow.
      if (imm.length > geometry_.record_max ||
          offset + imm.length > geometry_.bytes) {
        return false;
      }
      offset_ = offset;
      position_ = offset + imm.length;
      if (position_ == geometry_.bytes) position_ = 0;
      in_slot_ = false;
    }
    ring_length_ = in_slot_ ? 0 : imm.length;
    data_ = data;
    left_ = imm.length;
    return true;
  }

  // From now on the sender may go over to a ring of this many bytes, with
  // records of up to half that size.
  void Expect(std::uint32_t bytes) { next_bytes_ = bytes; }
  std::uint32_t ring_bytes() const { return geometry_.bytes; }
  // Which ring the last data message is in: 0 and 1 in turn.
  std::uint8_t ring() const { return ring_; }

  // Consumes a whole inline message that the caller has checked and taken.
  // Requires !active().
  void TakeInline() {
    ++next_;
    slot_ = (slot_ + 1) & (slots_ - 1);
  }

  // Consumes `n` <= left() bytes of the current message. Returns true at its
  // end.
  bool Take(std::uint32_t n) {
    RC_DCHECK(n <= left_);  // I-RING-2
    left_ -= n;
    offset_ += n;
    if (left_ != 0) return false;
    TakeInline();
    pending_bytes_ += ring_length_;
    return true;
  }

  // Drops the rest of the current message without consuming it. The lane ends.
  void Forget() { left_ = 0; }

  // Returns true if enough has been consumed since the last credit to write a
  // new one.
  bool CreditDue() const {
    return next_ - published_ >= due_slots_ || pending_bytes_ >= due_bytes_;
  }
  // As CreditDue, when the last message was inline.
  bool SlotsDue() const { return next_ - published_ >= due_slots_; }
  std::uint64_t unpublished() const { return next_ - published_; }
  // Returns the credit to write now: the count of messages consumed.
  std::uint64_t Publish() {
    published_ = next_;
    pending_bytes_ = 0;
    return published_;
  }

 private:
  // Often enough that a sender in full flow never waits for credit, and seldom
  // enough that the control line stays shared.
  static constexpr std::uint32_t kDueBytes = 16 * 1024;

  // The fields that every message needs come first, side by side.
  std::uint64_t next_ = 0;
  std::uint64_t published_ = 0;
  std::uint32_t left_ = 0;
  std::uint32_t slot_ = 0;
  std::uint32_t pending_bytes_ = 0;  // consumed and not yet published
  std::uint32_t due_bytes_;
  std::uint32_t due_slots_;
  std::uint32_t slots_;
  std::uint32_t offset_ = 0;
  std::uint32_t ring_length_ = 0;  // of the current message, in the byte ring
  std::uint32_t position_ = 0;  // of the byte ring, for the next message there
  std::uint32_t next_bytes_ = 0;  // size of the offered ring; 0: none
  std::uint8_t ring_ = 0;
  bool data_ = false;
  bool in_slot_ = false;
  Geometry geometry_;
};

}  // namespace rcsock::ring

#endif  // RCSOCK_LIB_RING_RX_H_
