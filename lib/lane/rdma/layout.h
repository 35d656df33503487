#ifndef RCSOCK_LIB_LANE_RDMA_LAYOUT_H_
#define RCSOCK_LIB_LANE_RDMA_LAYOUT_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "lib/ring/tx.h"

// What lies in a lane's registered memory: two blocks of one form. The peer
// writes to the receiving block. The sending block mirrors the peer's receiving
// block, offset for offset.
//
//   0     head line: the credit word, at 16 a larger ring that is offered, and
//         at 32 a target; in the sending block, the copies that these are
//         written from
//   64    32 slots of 72 bytes: control messages, and on iWARP short data
//   2368  the byte ring
//
// An idle lane has two blocks of 16 KiB. On iWARP they have 12 KiB, and the
// lane has its share of the poller's receive buffers. When the sender runs out
// of room again and again, the receiver offers a larger ring, a block of its
// own. Slots and head line stay where they are.
namespace rcsock::lane::rdma {

constexpr std::uint32_t kMessages = 32;  // in flight; the credit at the start
constexpr std::size_t kSlotBytes = 72;
constexpr std::size_t kSlotsAt = 64;
constexpr std::size_t kRingAt = kSlotsAt + kMessages * kSlotBytes;

constexpr std::size_t kBlockMin = 16 * 1024;
constexpr std::size_t kBlockMinIwarp = 12 * 1024;
constexpr std::size_t kBlockMax = 8 * 1024 * 1024;
// The unit of Offer::most_ring.
constexpr std::size_t kOfferPage = 4096;
static_assert(kBlockMax / kOfferPage <= 0xffff);
constexpr std::uint32_t RingBytes(std::size_t block) {
  return static_cast<std::uint32_t>(block - kRingAt);
}

// A larger ring: its address (8), key (4), bytes (4); little-endian.
constexpr std::size_t kRingOfferAt = 16;
constexpr std::size_t kRingOfferSize = 16;

// In the head line of the sending block.
constexpr std::size_t kCreditCopyAt = 0;  // the credit word as last written
// iWARP: the immediates of the last wake-ups. A wake-up that has not gone out
// yet is not overwritten: a peer that has not got it sends no more than it may,
// and so is owed one more wake-up at most.
constexpr std::size_t kWakeCopiesAt = 32;
constexpr std::uint32_t kWakeCopies = 8;
static_assert(kWakeCopiesAt + kWakeCopies * sizeof(std::uint32_t) <= kSlotsAt);

// iWARP: a SEND carries what stands in the sender's slot: the bytes of a
// message that lies in its slot, a credit if the message has one, and the
// immediate. Data of at most this many bytes goes in one request, where a write
// would need a SEND after it. A larger limit would be faster up to some KiB.
// But each receive that is posted must have room for it, and every lane needs
// kReceivesPerLane receives.
constexpr std::uint32_t kSendData = 64;
constexpr std::uint32_t kSendCredit = 4;
constexpr std::uint32_t kSendMost = kSendData + kSendCredit + 4;
static_assert(kSendData >= ring::kCtlMax && kSendMost <= kSlotBytes);

// The credit word: messages consumed, and the number of wake-ups sent, which
// are immediates of kind kCredit. By the number of wake-ups the sender knows
// that there is something to drain.
constexpr int kWakeShift = 48;
constexpr std::uint64_t kConsumedMask = (std::uint64_t{1} << kWakeShift) - 1;

// How much of a ring one message may take. A message that is cut in two costs
// two completions. A message that fills the ring leaves the sender nothing to
// do.
constexpr std::uint32_t RecordMax(std::uint32_t ring_bytes) {
  return ring_bytes / 2;
}
constexpr ring::Geometry GeometryOf(std::uint32_t ring_bytes,
                                    std::uint32_t inline_max,
                                    std::uint32_t record_max = kBlockMax) {
  return {ring_bytes, kMessages, inline_max,
          std::min(RecordMax(ring_bytes), record_max)};
}

// A ring of this many bytes grows further for long records only.
constexpr std::uint32_t kRingEnough = 1024 * 1024;
// The limit where the lanes of the domain have kMany bytes already. They share
// what is under way on the device, so each needs a smaller ring. And all of
// their rings together should stay in a cache.
constexpr std::uint32_t kRingEnoughOfMany = 256 * 1024;
constexpr std::uint64_t kMany = 8 * 1024 * 1024;

}  // namespace rcsock::lane::rdma

#endif  // RCSOCK_LIB_LANE_RDMA_LAYOUT_H_
