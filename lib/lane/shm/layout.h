#ifndef RCSOCK_LIB_LANE_SHM_LAYOUT_H_
#define RCSOCK_LIB_LANE_SHM_LAYOUT_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "lib/base/barrier.h"
#include "lib/ring/tx.h"

// What lies in memory shared with another process.  Only lock-free atomics and
// bytes; no pointer.  The peer may write anything anywhere in it at any time.
namespace rcsock::lane::shm {

constexpr int kBells =
    8;  // 0: the conductor's; 1: poll/select; rest: epoll sets
constexpr int kSegmentStreams = 64;  // one word of a ready bitmap
constexpr int kMaxSegments = 256;    // 16,384 streams between two processes
constexpr std::size_t kPage = 4096;

// More small messages than a receiver leaves unread while it runs, in eight
// pages for both directions, so that they stay in a first-level cache.
constexpr std::uint32_t kSlots = 128;
// Twice the usual 128 KiB write: one half is read while the other is written,
// and both rings of a stream stay in a second-level cache of 1 MiB.
constexpr std::uint32_t kRingBytes = 256 * 1024;
// What a slot has room for: up to 56 bytes are in its first cache line; what
// the second one holds comes with it (processors fetch lines in pairs), and
// needs no other page.
constexpr std::uint32_t kInlineMax = 120;
// A large write goes in pieces of this, so that the receiver copies one while
// the sender copies the next.  Measured: tests/bench/lane_bench.cc.
constexpr std::uint32_t kRecordMax = 16 * 1024;

constexpr ring::Geometry kGeometry = {kRingBytes, kSlots, kInlineMax,
                                      kRecordMax};

// One message.  The head is sequence << 32 | immediate, where the sequence of
// message n is uint32(n + 1): a slot of the lap before never looks new, and a
// scrubbed one reads 0.
struct alignas(128) Slot {
  std::atomic<std::uint64_t> head;
  std::byte payload[kInlineMax];
};
static_assert(sizeof(Slot) == 128);

// In ControlLine::sleepers.
enum : std::uint32_t {
  kRxSleeper = 1,  // a thread of this side sleeps, or is about to, on futex rx
  kTxSleeper = 2,  // ... on futex tx
  kStarved = 4,    // this side's sender found no room
};

// What one side tells the other about a stream; written by that side, but for
// the sleepers' bits, which the peer takes away when it wakes them.
struct alignas(128) ControlLine {
  std::atomic<std::uint64_t> consumed;  // credit: messages consumed
  std::atomic<std::uint32_t> sleepers;
  std::atomic<std::uint32_t> poll;  // bell << 8 | kNotify* of the poller
};

// On lines of their own: the peer bumps them.
struct alignas(128) FutexLine {
  std::atomic<std::uint32_t> rx;
  std::atomic<std::uint32_t> tx;
};

// What this side has consumed, to the message.  Nobody looks while it lives, so
// it costs a store to a line of its own; when it is killed, the peer can tell
// bytes that were read from bytes that were lost.
struct alignas(128) ReachedLine {
  std::atomic<std::uint64_t> messages;
};

struct SideControl {
  ControlLine control;
  FutexLine futex;
  ReachedLine reached;
};

// Index `side`: the side that writes slots and bytes; the side that control
// describes.  A request and its answer are about as far in their directions, so
// that their slots lie side by side, in one page.
struct StreamMemory {
  SideControl side[2];
  std::byte unused[kPage - 2 * sizeof(SideControl)];
  Slot slots[kSlots][2];  // message; side
  std::byte bytes[2][kRingBytes];
};
static_assert(sizeof(StreamMemory) % kPage == 0);
static_assert(offsetof(StreamMemory, slots) == kPage);
static_assert(offsetof(StreamMemory, bytes) % kPage == 0);

struct Segment {
  StreamMemory streams[kSegmentStreams];
};

// The streams of one direction of readiness that the peer marked for one bell.
// A summary bit says that its word may have bits.
enum Ready : int { kReadyRx = 0, kReadyTx = 1 };
struct alignas(64) ReadySummary {
  std::atomic<std::uint64_t> words[2][kMaxSegments / 64];
};
static_assert(sizeof(ReadySummary) == 64, "one line tells that nothing came");
struct alignas(kPage) ReadyWords {
  std::atomic<std::uint64_t> words[2][kMaxSegments];
};

// Index: the side that drains; the bell.
struct LinkPage {
  ReadySummary summary[2][kBells];
  std::byte unused[kPage - 2 * kBells * sizeof(ReadySummary)];
  ReadyWords ready[2][kBells];
};
static_assert(sizeof(LinkPage) % kPage == 0);

// A process's own page; peers can only read it.  Odd: armed; each Arm is a new
// generation, so that a peer kicks at most once for each.
struct BellPage {
  struct alignas(128) Bell {
    std::atomic<std::uint64_t> armed;
  };
  Bell bells[kBells];
  // 1: the owner pays for the senders' fences: it makes the heavy one before it
  // sleeps.  Written before the page is handed out.
  alignas(128) std::atomic<std::uint32_t> heavy;
  std::byte unused[kPage - (kBells + 1) * sizeof(Bell)];
};
static_assert(sizeof(BellPage) == kPage);

static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

// Between this side's store and its look at what the other side stores:
// Dekker's argument needs it on both sides (lib/base/barrier.h).
using base::FullFence;

}  // namespace rcsock::lane::shm

#endif  // RCSOCK_LIB_LANE_SHM_LAYOUT_H_
