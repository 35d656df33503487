#ifndef RCSOCK_TESTS_RING_RING_DRIVER_H_
#define RCSOCK_TESTS_RING_RING_DRIVER_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <string>
#include <vector>

#include "lib/ring/imm.h"
#include "lib/ring/rx.h"
#include "lib/ring/tx.h"

namespace rcsock::ring::test {

// Runs a ring's two ends against a model, a queue of bytes, as the input says.
// Run() returns what is wrong, or "".  With `inline_max` 0 no data is inline,
// the ring is no power of two, messages wait and grow, and the ring changes
// under way, as over RDMA.
template <std::uint32_t kInlineMax>
class DriverOf {
 public:
  DriverOf(const std::uint8_t* input, std::size_t size)
      : input_(input), size_(size) {}

  std::string Run() {
    while (at_ < size_ && error_.empty()) {
      switch (Byte() % (kRdma ? 10 : 8)) {
        case 0:
          Send(Byte());
          break;
        case 1:
          Send(Byte() << 8 | Byte());
          break;
        case 2:
          SendCtl(Byte() % 64);
          break;
        case 3:
          Receive(Byte());
          break;
        case 4:
          Receive(Byte() << 8 | Byte());
          break;
        case 5:
          Publish(Byte() % 2 == 0);
          break;
        case 6:
          LookUp(Byte() << 8 | Byte());
          break;
        case 7:
          Lie(Byte() << 24 | Byte() << 16 | Byte() << 8 | Byte());
          break;
        case 8:
          Extend(Byte() * 8);
          break;
        case 9:
          Change();
          break;
      }
    }
    return error_;
  }

  static constexpr bool kRdma = kInlineMax == 0;
  static constexpr std::uint32_t kBytes = kRdma ? 14'272 : 16'384;
  static constexpr Geometry kGeometry = {kBytes, 16, kInlineMax, kBytes / 4};

 private:
  struct Unread {  // a message that is in the ring
    bool data;
    std::uint32_t length;
  };

  std::uint32_t Byte() { return at_ < size_ ? input_[at_++] : 0; }
  void Check(bool so, const char* what) {
    if (!so && error_.empty()) error_ = what;
  }
  std::uint32_t Slot(std::uint64_t number) { return number % kGeometry.slots; }

  void Send(std::uint32_t want) {
    Settle();
    const std::uint64_t outstanding = tx_.outstanding();
    const Placement place = tx_.ReserveData(want);
    if (place.length == 0) {
      Check(want == 0 || outstanding >= kGeometry.slots - kCtlSlots ||
                outstanding_bytes_ + kMinRoom > size_now_ ||
                outstanding_bytes_ + want > size_now_,
            "no room, though there is");
      if (want >= kMinRoom) Check(tx_.Writable() == 0, "writable but no room");
      return;
    }
    Check(outstanding < kGeometry.slots - kCtlSlots, "took a control slot");
    Check(place.length <= want && place.length <= size_now_ / 4,
          "longer than asked");
    const bool in_slot = (place.imm.flags & kFlagInline) != 0;
    Check(place.imm.length == place.length && place.imm.kind == Kind::kData,
          "immediate");
    Check(in_slot == (want <= kGeometry.inline_max), "inline or not");
    if (in_slot) {
      for (std::uint32_t i = 0; i < place.length; ++i) {
        payload_[Slot(place.number)][i] = Next();
      }
    } else {
      Check((place.imm.flags == kFlagRing) == fresh_, "first in its ring");
      if (fresh_) Check(place.offset == 0, "not at its front");
      fresh_ = false;
      if (!PutBytes(place.offset, place.length)) return;
    }
    posted_ += place.length;
    Check(tx_.posted() == posted_, "posted");
    if (kRdma) {
      waiting_ = place;  // Extend may add to it
    } else {
      Land(place, in_slot ? 0 : place.length);
    }
  }

  bool PutBytes(std::uint32_t offset, std::uint32_t length) {
    Check(offset + length <= size_now_, "across the end");
    outstanding_bytes_ += length;
    Check(outstanding_bytes_ <= size_now_, "beyond the credit");
    if (!error_.empty()) return false;
    for (std::uint32_t i = 0; i < length; ++i) {
      Check(owner_[ring_][offset + i] == 0, "over bytes not yet credited");
      owner_[ring_][offset + i] = 1;
      bytes_[ring_][offset + i] = Next();
    }
    return true;
  }

  // What waits is posted.
  void Settle() {
    if (waiting_.length == 0) return;
    waiting_.imm.length = waiting_.length;
    Land(waiting_, waiting_.length);
    waiting_.length = 0;
  }

  void Extend(std::uint32_t want) {
    if (waiting_.length == 0) return;
    const std::uint32_t n = tx_.ExtendLast(want);
    Check(n <= want && waiting_.length + n <= size_now_ / 4, "grew too long");
    if (n != 0 && !PutBytes(waiting_.offset + waiting_.length, n)) return;
    waiting_.length += n;
    posted_ += n;
    Check(tx_.posted() == posted_, "posted");
  }

  // The receiver offers another ring; the sender goes over at once.
  void Change() {
    Settle();
    if (!tx_.OldCredited() || offered_ || fresh_ || size_now_ > 40'000) return;
    size_now_ += 1024;
    rx_.Expect(size_now_);
    offered_ = true;
    tx_.Switch(size_now_, size_now_ / 4);
    ring_ ^= 1;
    Check(ring_ == tx_.ring(), "which ring");
    std::memset(owner_[ring_], 0, sizeof(owner_[ring_]));
    outstanding_bytes_ = 0;
    fresh_ = true;
  }

  void SendCtl(std::uint32_t length) {
    const bool fits =
        length >= 1 && length <= kCtlMax && tx_.outstanding() < kGeometry.slots;
    Settle();
    const Placement place = tx_.ReserveCtl(length);
    Check((place.length != 0) == fits, "room for control or not");
    if (place.length == 0) return;
    std::memset(payload_[Slot(place.number)], 0xcc, length);
    Land(place, 0);
  }

  void Land(const Placement& place, std::uint32_t ring_bytes) {
    Check(place.number == sent_++, "message number");
    imm_[Slot(place.number)] = Encode(place.imm);
    unread_.push_back({place.imm.kind == Kind::kData, place.length});
    uncredited_.push_back({place.offset, ring_bytes,
                           place.imm.kind == Kind::kData ? place.length : 0,
                           ring_});
  }

  void Receive(std::uint32_t most) {
    while (most > 0 && error_.empty() && !unread_.empty()) {
      if (!rx_.active()) {
        Check(rx_.next() == consumed_, "next");
        Check(rx_.Accept(imm_[Slot(rx_.next())]), "refused an honest message");
        if (Decode(imm_[Slot(rx_.next())]).flags == kFlagRing) {
          offered_ = false;
        }
        if (!error_.empty()) return;
      }
      Check(rx_.data() == unread_.front().data, "kind");
      Check(rx_.left() == unread_.front().length, "left");
      const std::uint32_t n = std::min(most, rx_.left());
      if (rx_.data()) {
        const std::uint8_t* from =
            rx_.in_slot() ? payload_[Slot(rx_.next())] : bytes_[rx_.ring()];
        for (std::uint32_t i = 0; i < n; ++i) {
          Check(from[rx_.offset() + i] == stream_.front(), "wrong byte");
          stream_.pop_front();
        }
      }
      unread_.front().length -= n;
      const bool end = unread_.front().length == 0;
      Check(rx_.Take(n) == end, "end of message");
      if (end) {
        unread_.pop_front();
        ++consumed_;
      }
      most -= n;
    }
  }

  void Publish(bool only_if_due) {
    Check(rx_.unpublished() == consumed_ - published_, "unpublished");
    if (rx_.unpublished() >= kGeometry.slots / 4) {
      Check(rx_.CreditDue(), "credit is due by messages");
    }
    if (only_if_due && !rx_.CreditDue()) return;
    const std::uint64_t credit = rx_.Publish();
    Check(credit == consumed_, "credit");
    Check(!rx_.CreditDue(), "due again at once");
    published_ = credit;
    Check(tx_.OnCredit(credit), "refused an honest credit");
    for (; credited_ < credit; ++credited_) {
      const Uncredited& message = uncredited_.front();
      for (std::uint32_t i = 0; i < message.ring_bytes; ++i) {
        owner_[message.ring][message.offset + i] = 0;
      }
      if (message.ring == ring_) outstanding_bytes_ -= message.ring_bytes;
      acked_ += message.data;
      uncredited_.pop_front();
    }
    Check(tx_.acked() == acked_, "acked");
    Check(tx_.FreeBytes() == size_now_ - outstanding_bytes_, "free");
  }

  // Every byte from `from` on that is not acked is found, and is the right one.
  void LookUp(std::uint64_t back) {
    std::uint64_t from = posted_ - std::min(posted_, back);
    if (from < acked_) {
      Check(tx_.Find(from).length == 0, "found an acked byte");
      from = acked_;
    }
    while (from < posted_ && error_.empty()) {
      const Piece piece = tx_.Find(from);
      Check(piece.length != 0, "not found");
      const std::uint8_t* at =
          (piece.in_slot ? payload_[Slot(piece.number)] : bytes_[piece.ring]) +
          piece.offset;
      for (std::uint32_t i = 0; i < piece.length; ++i) {
        Check(at[i] == static_cast<std::uint8_t>((from + i) * 7),
              "found wrong");
      }
      from += piece.length;
    }
    Check(tx_.Find(posted_).length == 0, "found beyond the end");
  }

  // What a hostile peer may write is refused, or harmless.
  void Lie(std::uint32_t word) {
    const std::uint64_t ahead = tx_.sent() + 1 + word % 1000;
    Check(!tx_.OnCredit(ahead), "credit for what was not sent");
    if (tx_.credited() > 0) {
      Check(!tx_.OnCredit(tx_.credited() - 1), "credit going back");
    }
    Check(!tx_.OnCredit(tx_.credited() - 1 - (std::uint64_t{1} << 63)),
          "credit far off");
    Rx rx = rx_;
    if (rx.active()) rx.Take(rx.left());
    for (std::uint32_t i = 0; i < 8; ++i, word = word * 2654435761u + i) {
      // Both any word, and one that is almost right.
      const std::uint32_t likely =
          Encode({Kind::kData, static_cast<std::uint8_t>(word >> 28 & 3),
                  word & 8191});
      for (std::uint32_t bits : {word, likely}) {
        if (!rx.Accept(bits)) continue;
        const std::uint32_t end = rx.offset() + rx.left();
        Check(rx.left() > 0, "empty message");
        Check(end <= (rx.in_slot() ? kCtlMax : size_now_), "out of bounds");
        Check(rx.data() || rx.in_slot(), "control outside its slot");
        rx.Take(rx.left());
      }
    }
  }

  std::uint8_t Next() {
    const auto byte = static_cast<std::uint8_t>(made_++ * 7);
    stream_.push_back(byte);
    return byte;
  }

  struct Uncredited {
    std::uint32_t offset;
    std::uint32_t ring_bytes;
    std::uint32_t data;
    std::uint8_t ring;
  };

  const std::uint8_t* input_;
  std::size_t size_;
  std::size_t at_ = 0;
  std::string error_;

  Sent table_[kGeometry.slots];
  Tx tx_{table_, kGeometry};
  Rx rx_{kGeometry};
  std::uint32_t imm_[kGeometry.slots] = {};
  static constexpr std::uint32_t kMost = 42'000;
  std::uint8_t payload_[kGeometry.slots][kCtlMax] = {};
  std::uint8_t bytes_[2][kMost] = {};
  std::uint8_t owner_[2][kMost] = {};  // 1: holds an uncredited byte
  std::uint32_t size_now_ = kBytes;
  std::uint8_t ring_ = 0;
  bool fresh_ = false;    // nothing has been sent in it
  bool offered_ = false;  // and the receiver has not come to it
  Placement waiting_{};

  std::deque<std::uint8_t> stream_;  // sent and not yet received
  std::deque<Unread> unread_;
  std::deque<Uncredited> uncredited_;
  std::uint64_t made_ = 0;
  std::uint64_t posted_ = 0;
  std::uint64_t acked_ = 0;
  std::uint64_t sent_ = 0;
  std::uint64_t consumed_ = 0;
  std::uint64_t published_ = 0;
  std::uint64_t credited_ = 0;
  std::uint32_t outstanding_bytes_ = 0;
};

using Driver = DriverOf<56>;
using RdmaDriver = DriverOf<0>;

}  // namespace rcsock::ring::test

#endif  // RCSOCK_TESTS_RING_RING_DRIVER_H_
