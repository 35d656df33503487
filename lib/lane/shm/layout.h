#ifndef RCSOCK_LIB_LANE_SHM_LAYOUT_H_
#define RCSOCK_LIB_LANE_SHM_LAYOUT_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "lib/base/barrier.h"
#include "lib/lane/poller.h"
#include "lib/ring/tx.h"

// Memory that is shared with another process: only lock-free atomics and bytes,
// no pointer. The peer may write anything anywhere in it at any time.
namespace rcsock::lane::shm {

// Bell 0 is the conductor's, bell 1 is for poll and select. The rest are for
// epoll sets and polling threads.
using lane::kBells;
constexpr int kSetBells = 2;         // the first of the epoll sets
constexpr int kSegmentStreams = 64;  // one word of a ready bitmap
constexpr int kMaxSegments = 256;    // 16,384 streams between two processes
constexpr std::size_t kPage = 4096;

// A receiver that keeps up leaves fewer small messages unread. The slots of
// both directions take eight pages, so that they stay in a first-level cache.
constexpr std::uint32_t kSlots = 128;
// This many slots lie beside the control words. A stream with one request under
// way uses no others.
constexpr std::uint32_t kHotSlots = 1;
// The first of this many segments has the hot memory of the streams of all.
constexpr int kHotGroup = 64;
// Twice the usual write of 128 KiB, so that one half is read while the other is
// written. Both rings of a stream stay in a second-level cache of 1 MiB.
constexpr std::uint32_t kRingBytes = 256 * 1024;
// What a slot has room for. Up to 48 bytes lie in its first cache line. The
// second line costs no other page, and comes along, since processors fetch
// lines in pairs.
constexpr std::uint32_t kInlineMax = 112;
// A large write goes in pieces of this size, so that the receiver copies one
// while the sender copies the next. Measured by tests/bench/lane_bench.cc.
constexpr std::uint32_t kRecordMax = 16 * 1024;

// A smaller ring takes the first part of its place. Each end states its size
// (BellPage::most_ring), and both use the smaller of the two.
constexpr std::uint32_t kLeastRingBytes = 16 * 1024;
static_assert(kLeastRingBytes / 4 >= ring::kMinRoom);
// `most`, rounded down to a power of two from kLeastRingBytes to kRingBytes.
constexpr std::uint32_t RingFor(std::uint64_t most) {
  std::uint32_t bytes = kRingBytes;
  while (bytes > kLeastRingBytes && bytes > most) bytes /= 2;
  return bytes;
}
constexpr ring::Geometry GeometryOf(std::uint32_t ring_bytes) {
  return {ring_bytes, kSlots, kInlineMax,
          ring_bytes / 4 < kRecordMax ? ring_bytes / 4 : kRecordMax};
}

// One message. The head is sequence << 32 | immediate. The sequence of message
// n is uint32(n + 1), and a scrubbed slot reads 0. An old message in a slot
// never looks new: see ShmLane::RenewSlots.
//
// Each message carries a credit for the other direction, so that request and
// reply need no other line for it. Each then finds all earlier messages
// consumed, and goes into slot 0 (ring::Tx::At). The receiver looks into slot 0
// and behind the last message.
struct alignas(128) Slot {
  std::atomic<std::uint64_t> head;
  std::atomic<std::uint64_t> credit;  // messages that this sender has consumed
  std::byte payload[kInlineMax];
};
static_assert(sizeof(Slot) == 128);

// In ControlLine::sleepers.
enum : std::uint32_t {
  kRxSleeper = 1,  // a thread of this side sleeps, or is about to, on futex rx
  kTxSleeper = 2,  // ... on futex tx
  kStarved = 4,    // this side's sender found no room
  kBounded = 8,    // ... and may not fill the ring: little credit is much
};

// What one side states about a stream. That side writes it. One bit is an
// exception: the peer clears a sleeper's bit when it wakes the sleeper.
struct alignas(64) ControlLine {
  std::atomic<std::uint64_t> consumed;  // credit: messages consumed
  std::atomic<std::uint32_t> sleepers;
  std::atomic<std::uint32_t> poll;  // bell << 8 | kNotify* of the poller
  // 1: since its last message in slot 0 this side has begun another message. 0:
  // a receiver that has taken slot 0's message need not look at a further line
  // and page.
  std::atomic<std::uint32_t> more;
  std::atomic<std::uint32_t> left;  // Lane::Left
  // When this side sent its first message since the peer armed its bell, by
  // base::Ticks(): Lane::Came.
  std::atomic<std::uint64_t> came;
  // This side's offer of a device's memory: OfferWord. What it names lies at
  // the front of this side's ring, which is empty meanwhile. The peer writes
  // the word, too.
  std::atomic<std::uint64_t> offer;
  // kTakesOffers: a thread of this side looks for the peer's offer. Builds
  // without offers leave 0 there.
  std::atomic<std::uint32_t> takes;
  std::atomic<std::uint32_t> forgoes;  // 1: Lane::Forgo
  std::atomic<std::uint32_t> resets;   // 1: Lane::SayReset
};
static_assert(sizeof(ControlLine) == 64);

// On lines of their own, since the peer bumps them.
struct alignas(64) FutexLine {
  std::atomic<std::uint32_t> rx;
  std::atomic<std::uint32_t> tx;
};

// How many messages this side has consumed, exactly. While the process lives,
// the peer seldom looks (ShmLane::Acked), so this costs a store to a line of
// its own. When the process is killed, the peer can distinguish bytes that were
// read from bytes that were lost.
struct alignas(64) ReachedLine {
  std::atomic<std::uint64_t> messages;
};

// Indices named `side`: the side that writes slots and bytes; the side that
// control describes.
//
// What small messages touch of a stream is in one place. The places of many
// segments' streams lie in a row, eight to a page and page by page. A miss of
// the TLB costs more than a miss of the cache, and its page tables are memory
// as well.
struct alignas(512) HotMemory {
  ControlLine control[2];
  ReachedLine reached[2];
  Slot slots[kHotSlots][2];  // indices: slot, side
};
static_assert(sizeof(HotMemory) == 512);

struct Segment {
  // Only the first segment of a group touches this.
  HotMemory hot[kHotGroup * kSegmentStreams];
  FutexLine futex[kSegmentStreams][2];
  Slot slots[kSegmentStreams][kSlots - kHotSlots][2];
  std::byte bytes[kSegmentStreams][2][kRingBytes];
};
static_assert(sizeof(Segment) % kPage == 0);
static_assert(offsetof(Segment, futex) % kPage == 0);
static_assert(offsetof(Segment, slots) % kPage == 0);
static_assert(offsetof(Segment, bytes) % kPage == 0);

// The memory of one stream.
struct StreamMemory {
  HotMemory* hot = nullptr;
  FutexLine* futex = nullptr;  // [2]
  Slot (*more)[2] = nullptr;   // from slot kHotSlots on
  std::byte (*bytes)[kRingBytes] = nullptr;

  Slot& slot(std::uint32_t number, int side) const {
    return number < kHotSlots ? hot->slots[number][side]
                              : more[number - kHotSlots][side];
  }
};
// `hot` belongs to the segment's first stream.
inline StreamMemory StreamOf(Segment* segment, HotMemory* hot, int i) {
  return {&hot[i], segment->futex[i], segment->slots[i], segment->bytes[i]};
}
// The hot memory of the first stream of segment `number`.
inline HotMemory* HotOf(Segment* first_of_group, int number) {
  return first_of_group->hot + number % kHotGroup * kSegmentStreams;
}

// The streams that the peer has marked for one bell and one direction of
// readiness. A summary bit says that its word may have bits.
enum Ready : int { kReadyRx = 0, kReadyTx = 1 };
struct alignas(64) ReadySummary {
  std::atomic<std::uint64_t> words[2][kMaxSegments / 64];
};
static_assert(sizeof(ReadySummary) == 64, "one line tells that nothing came");
struct alignas(kPage) ReadyWords {
  std::atomic<std::uint64_t> words[2][kMaxSegments];
};

// A bit for each bell that the peer has rung by a message, or by bell 0
// (LinkState::Ring).
struct alignas(64) RungLine {
  std::atomic<BellMask> bells;
};

// Indices: the side that drains, or looks at its bells; the bell.
struct LinkPage {
  ReadySummary summary[2][kBells];
  RungLine rung[2];
  std::byte unused[kPage -
                   (2 * kBells * sizeof(ReadySummary) + 2 * sizeof(RungLine)) %
                       kPage];
  ReadyWords ready[2][kBells];
};
static_assert(sizeof(LinkPage) % kPage == 0);

// A process's own page, which peers can only read. A bell's word is odd while
// the bell is armed. Each Arm makes a new generation, and a peer kicks at most
// once for each.
struct BellPage {
  struct alignas(128) Bell {
    std::atomic<std::uint64_t> armed;
  };
  Bell bells[kBells];
  // 1: before any sleep longer than a nap the owner makes the heavy fence, and
  // so pays for the senders' fences. Written before the page is handed out.
  alignas(128) std::atomic<std::uint32_t> heavy;
  // The largest ring that the owner wants; 0: no opinion. Written before the
  // page is handed out.
  std::atomic<std::uint32_t> most_ring;
  std::byte unused[kPage - (kBells + 1) * sizeof(Bell) % kPage];
};
static_assert(sizeof(BellPage) % kPage == 0);

static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

// Two processes may have different builds. A change of this memory's shape or
// meaning, or of the frames beside it, needs another number here. The number is
// the version of the rendezvous, which keeps different builds apart.
constexpr std::uint8_t kMemoryVersion = 13;

// A hash that notices most changes of shape.
constexpr std::uint64_t Fingerprint() {
  std::uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  for (std::uint64_t part : {std::uint64_t{kBells},
                             std::uint64_t{kSegmentStreams},
                             std::uint64_t{kMaxSegments},
                             std::uint64_t{kSlots},
                             std::uint64_t{kHotSlots},
                             std::uint64_t{kRingBytes},
                             std::uint64_t{kInlineMax},
                             std::uint64_t{kRecordMax},
                             std::uint64_t{sizeof(HotMemory)},
                             std::uint64_t{kHotGroup},
                             std::uint64_t{sizeof(Segment)},
                             std::uint64_t{sizeof(LinkPage)},
                             std::uint64_t{offsetof(HotMemory, slots)},
                             std::uint64_t{offsetof(Slot, credit)},
                             std::uint64_t{offsetof(HotMemory, reached)},
                             std::uint64_t{offsetof(ControlLine, sleepers)},
                             std::uint64_t{offsetof(ControlLine, poll)},
                             std::uint64_t{offsetof(ControlLine, more)},
                             std::uint64_t{offsetof(ControlLine, left)},
                             std::uint64_t{offsetof(ControlLine, came)},
                             std::uint64_t{offsetof(ControlLine, offer)},
                             std::uint64_t{offsetof(ControlLine, takes)},
                             std::uint64_t{offsetof(ControlLine, forgoes)},
                             std::uint64_t{offsetof(ControlLine, resets)},
                             std::uint64_t{offsetof(Segment, futex)},
                             std::uint64_t{offsetof(Segment, slots)},
                             std::uint64_t{offsetof(Segment, bytes)},
                             std::uint64_t{offsetof(LinkPage, rung)},
                             std::uint64_t{offsetof(LinkPage, ready)},
                             std::uint64_t{offsetof(BellPage, heavy)},
                             std::uint64_t{offsetof(BellPage, most_ring)}}) {
    hash = (hash ^ part) * 0x100000001b3;
  }
  return hash;
}
static_assert(Fingerprint() == 0x14c941c99576324c, "then kMemoryVersion too");

// The fence between this side's store and its look at what the other side
// stores. Dekker's argument needs it on both sides (lib/base/barrier.h).
using base::FullFence;

}  // namespace rcsock::lane::shm

#endif  // RCSOCK_LIB_LANE_SHM_LAYOUT_H_
