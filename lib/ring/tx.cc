#include "lib/ring/tx.h"

#include <algorithm>

namespace rcsock::ring {

std::uint32_t Tx::ExtendLast(std::size_t want) {
  if (outstanding() == 0) return 0;
  Sent& last = Entry(sent_ - 1);
  if (!last.data || last.in_slot || last.ring != ring_) return 0;
  std::uint32_t room = geometry_.record_max - last.length;
  room = std::min(room, geometry_.bytes - last.offset - last.length);
  room = std::min(room, FreeBytes());
  const auto n = static_cast<std::uint32_t>(
      std::min({std::uint64_t{room}, std::uint64_t{want}, Allowed()}));
  if (n == 0) return 0;
  last.length += n;
  posted_ += n;
  Advance(n);
  Check();
  return n;
}

Stretch Tx::Claim(Filling* filling, std::size_t want) {
  RC_DCHECK(!fresh_);
  if (filling->bytes == 0 && outstanding() == 0 && offset_ != 0) {
    filling->before = offset_;
    filling->rewound = true;
    offset_ = 0;
  }
  const std::uint32_t free = geometry_.bytes - used_ - filling->bytes;
  // No sum is beyond twice the ring.
  std::uint32_t at = offset_ + filling->bytes;
  if (at >= geometry_.bytes) at -= geometry_.bytes;
  const auto most =
      static_cast<std::uint32_t>(std::min<std::size_t>(want, geometry_.bytes));
  if (free < std::min(most, kMinRoom)) return {};
  const std::uint32_t n = std::min({most, free, geometry_.bytes - at});
  filling->bytes += n;
  return {at, n};
}

Placement Tx::ReserveClaimed(Filling* filling, std::size_t want) {
  if (outstanding() >= most_outstanding()) return {};
  const std::uint32_t n = std::min(
      {static_cast<std::uint32_t>(std::min<std::size_t>(want, filling->bytes)),
       geometry_.record_max, geometry_.bytes - offset_});
  if (n == 0) return {};
  Placement place{sent_, offset_, n, {Kind::kData, 0, n}};
  if (filling->rewound) place.imm.flags = kFlagRewind;
  filling->rewound = false;
  filling->bytes -= n;
  Advance(n);
  Next() = {posted_, place.offset, n, false, true, ring_};
  posted_ += n;
  CountSent();
  Check();
  return place;
}

void Tx::DropClaims(Filling* filling) {
  if (filling->rewound) offset_ = filling->before;
  *filling = {};
}

Placement Tx::ReserveCtl(std::size_t length, Kind kind) {
  if (length == 0 || length > kCtlMax || outstanding() >= slots_) {
    return {};
  }
  const auto bytes = static_cast<std::uint32_t>(length);
  Next() = {posted_, 0, bytes, true, false, ring_};
  return {CountSent(), 0, bytes, {kind, kFlagInline, bytes}};
}

std::size_t Tx::Writable() const {
  const std::uint64_t limit = slots_ - kCtlSlots;
  if (outstanding() >= limit) return 0;
  const std::uint32_t free = FreeBytes();
  if (free < kMinRoom) return 0;
  if (bounded() && Allowed() < LeastAllowed()) return 0;
  const std::uint64_t most =
      (limit - outstanding()) * std::uint64_t{geometry_.record_max};
  return std::min({std::uint64_t{free}, most, Allowed()});
}

Piece Tx::Find(std::uint64_t from) const {
  if (from < acked_ || from >= posted_) return {};
  for (std::uint64_t n = credited_; n != sent_; ++n) {
    const Sent& message = Entry(n);
    if (!message.data || from - message.start >= message.length) continue;
    const auto skip = static_cast<std::uint32_t>(from - message.start);
    return {n, message.offset + skip, message.length - skip,
            message.in_slot != 0, static_cast<std::uint8_t>(message.ring)};
  }
  return {};
}

}  // namespace rcsock::ring
