#ifndef RCSOCK_LIB_LANE_SHM_LINK_STATE_H_
#define RCSOCK_LIB_LANE_SHM_LINK_STATE_H_

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "lib/base/latch.h"
#include "lib/base/reason.h"
#include "lib/base/unique_fd.h"
#include "lib/lane/lane.h"
#include "lib/lane/shm/layout.h"
#include "lib/lane/shm/passing.h"

namespace rcsock::lane::shm {

// What a Link and its lanes share. The object lives as long as any of them, so
// no lane outlives the memory under it.
//
// Threads: any.
class LinkState {
 public:
  LinkState(int side, base::UniqueFd page_fd, LinkPage* page);
  ~LinkState();
  LinkState(const LinkState&) = delete;
  LinkState& operator=(const LinkState&) = delete;

  int side() const { return side_; }
  int page_fd() const { return page_fd_.get(); }
  int segments() const { return segments_.load(std::memory_order_acquire); }

  // Takes over a mapping. False: there are too many, or no memory is left.
  bool AddSegment(Segment* memory);
  // All null if `index` is out of range.
  StreamMemory stream(int index) const;

  // Returns true if this side has the stream open. Open returns false if it has
  // already.
  bool Open(int index);
  void Close(int index);
  bool IsOpen(int index) const;
  // Notes that an end may open the stream from now on.  Returns true if one
  // could before.
  bool MarkUsed(int index);
  void SetCookie(int index, void* cookie);
  // Where the lane is, for prefetches.
  void SetLane(int index, const void* lane);
  // The bell that this side's end of the stream names.
  void SetBell(int index, int bell);
  std::atomic<std::uint32_t>& OwnWake(int index) {
    return segment(index)->wakes[index % kSegmentStreams];
  }

  bool SetPeerBellPage(base::UniqueFd fd, std::uint32_t most_ring);
  // The size of the rings of this link's lanes.
  std::uint32_t ring_bytes() const {
    return ring_bytes_.load(std::memory_order_relaxed);
  }
  void SetPeerBell(int k, base::UniqueFd fd);
  void PassMemory() { passes_.store(true, std::memory_order_relaxed); }
  bool passes() const { return passes_.load(std::memory_order_relaxed); }
  // Sets the stream's bit in the peer's bitmap for that bell.
  void Mark(Ready what, int bell, int index) {
    Mark(1 - side_, what, bell, index);
  }
  // Sets the link's socket, and the messages that go there: `rung` makes the
  // peer look which bells were rung, `memory` goes with a descriptor of an
  // allocation and ends with its number. Both are of static storage. The caller
  // owns the socket, and sets -1 before it closes the socket.
  void SetSocket(int fd, std::span<const std::byte> rung,
                 std::span<const std::byte> memory);
  // Sends a descriptor of allocation `id`, which the caller keeps. Returns
  // false if it cannot be sent now. Never waits.
  bool SendMemory(std::uint64_t id, int fd);
  Memories& memories() { return memories_; }
  // SetSocket(-1) in a child of fork.
  void ForgetSocket() { socket_.store(-1, std::memory_order_relaxed); }
  // Kicks the peer's bell if a thread sleeps by it. Requires a fence between
  // what the sleeper is to see and this call: a full one, or the light one if
  // PeerFences().
  void Ring(int bell);
  // A bit for each of this side's bells that the peer has rung by a message, or
  // by bell 0. A thread that has read any message of the link's socket, or bell
  // 0, calls this afterwards.
  BellMask TakeRung() {
    auto& bells = page_->rung[side_].bells;
    // Most links have none, and a process may have many links.
    if (bells.load(std::memory_order_acquire) == 0) return 0;
    return bells.exchange(0, std::memory_order_seq_cst);
  }
  // Returns true if Ring may kick anything. Costs one look for each message.
  bool Rings(int bell) const {
    const BellPage* page = peer_bells_.load(std::memory_order_acquire);
    return page == nullptr ||
           (page->bells[bell].armed.load(std::memory_order_seq_cst) & 1) != 0;
  }

  // The generation in which a thread sleeps by the bell, or is about to; 0:
  // none does.
  std::uint64_t Armed(int bell) const {
    const BellPage* page = peer_bells_.load(std::memory_order_acquire);
    if (page == nullptr) return 0;
    const std::uint64_t word =
        page->bells[bell].armed.load(std::memory_order_seq_cst);
    return (word & 1) != 0 ? word : 0;
  }

  // Returns true if a sender's fence may be the light one. It may if both
  // processes have registered, and the peer makes the heavy fence before it
  // sleeps.
  bool PeerFences() const {
    const BellPage* page = peer_bells_.load(std::memory_order_acquire);
    return page != nullptr &&
           base::barriers.processes.load(std::memory_order_relaxed) &&
           page->heavy.load(std::memory_order_relaxed) == 1;
  }

  // The segments of summary word `word` whose words may have bits.
  std::uint64_t Summary(Ready what, int bell, int word) const {
    return page_->summary[side_][bell].words[what][word].load(
        std::memory_order_relaxed);
  }
  // Called before the words of these segments are taken.
  void ClearSummary(Ready what, int bell, int word, std::uint64_t segments);
  // Takes the bits of word `segment` of the bell's bitmap.
  std::uint64_t TakeReady(Ready what, int bell, int segment);
  void PutBack(int bell, int segment, const std::uint64_t bits[2]);
  // Where the next Drain begins. A hint: pollers that share a bell both move
  // it.
  int cursor(int bell) const {
    return cursors_[bell].load(std::memory_order_relaxed);
  }
  void set_cursor(int bell, int index) {
    cursors_[bell].store(index, std::memory_order_relaxed);
  }

  // Lines of this process that are touched, besides the lane's, when an event
  // of the stream is reported and handled.
  static constexpr int kBeside = 2;
  static constexpr std::size_t kCookieLine = 64;  // from the cookie on
  void SetBeside(int index, int which, const void* line);

  // The Warm functions are hints only. The summary is about to be read. If it
  // has bits, the peer has written to it, and it will be cleared.
  void WarmSummary(int bell) const {
    FetchToWrite(&page_->summary[side_][bell]);
  }
  // The word of a segment is about to be taken.
  void WarmReady(int bell, int segment) const {
    FetchToWrite(&page_->ready[side_][bell].words[kReadyRx][segment]);
    if (const SegmentState* state =
            table_[segment].load(std::memory_order_acquire)) {
      __builtin_prefetch(&state->open);
    }
  }
  // The streams are about to be reported, read and answered. Fetches the lines
  // that say where each stream's rest is, and the lines that the streams share.
  void WarmStreams(int segment, std::uint64_t streams) const {
    const SegmentState* state = table_[segment].load(std::memory_order_acquire);
    for (int most = 16; streams != 0 && most > 0; --most) {
      const int at = std::countr_zero(streams);
      __builtin_prefetch(&state->near[at]);
      HotMemory& hot = state->hot[at];
      FetchPair(&hot.slots[0][1 - side_]);
      __builtin_prefetch(&hot.control[1 - side_]);
      FetchToWrite(&hot.reached[side_]);
      FetchPairToWrite(&hot.slots[0][side_]);
      streams &= streams - 1;
    }
  }
  // Then fetches the rest of one stream at once, so that no line waits for
  // another. Returns the stream's cookie; null: this side does not have it
  // open. Requires that the segment exists.
  void* Visit(int segment, int at) const {
    const SegmentState& state =
        *table_[segment].load(std::memory_order_acquire);
    if ((state.open.load(std::memory_order_acquire) >> at & 1) == 0) {
      return nullptr;
    }
    const Near& near = state.near[at];
    void* const cookie = near.cookie.load(std::memory_order_acquire);
    if (cookie == nullptr) return nullptr;
    __builtin_prefetch(static_cast<const std::byte*>(cookie) + kCookieLine);
    const auto* lane = static_cast<const std::byte*>(
        near.lane.load(std::memory_order_relaxed));
    for (const std::size_t line : kLaneLines) __builtin_prefetch(lane + line);
    for (const auto& line : near.beside) {
      __builtin_prefetch(line.load(std::memory_order_relaxed));
    }
    // The answer will set a bit in a word of the peer's bitmap. The peer has
    // taken the bits that were there, and has the line. WarmStreams has fetched
    // `poll`.
    const std::uint32_t poll =
        state.hot[at].control[1 - side_].poll.load(std::memory_order_relaxed);
    if ((poll & kNotifyRxBits) != 0) {
      FetchToWrite(&page_->ready[1 - side_][(poll >> 8) & (kBells - 1)]
                        .words[kReadyRx][segment]);
    }
    return cookie;
  }
  // The lines of the lane that a small message touches.
  static constexpr std::size_t kLaneLines[] = {0, 64, 192};

  void Kill(base::Reason why);
  void Abandon();
  base::Reason why_dead() const {
    return dead_.load(std::memory_order_acquire);
  }

 private:
  // Where a stream's other memory is in this process. All but the cookie is
  // only ever prefetched, and may be out of date.
  struct alignas(32) Near {
    std::atomic<void*> cookie{nullptr};
    std::atomic<const void*> lane{nullptr};
    std::atomic<const void*> beside[kBeside] = {};
  };

  // Private to this process.
  struct SegmentState {
    Segment* memory;
    HotMemory* hot = nullptr;  // of the segment's first stream
    std::atomic<std::uint64_t> open{0};
    std::atomic<std::uint64_t> used{0};
    Near near[kSegmentStreams] = {};
    std::atomic<std::uint8_t> bells[kSegmentStreams] = {};
    // This process's threads sleep on these words as well. No peer maps them.
    std::atomic<std::uint32_t> wakes[kSegmentStreams] = {};
  };

  // Fetches a line for writing. A CPU that has fetched it for reading would
  // have to ask the other CPU a second time.
  static void FetchToWrite(const void* line) {
#if defined(__x86_64__)
    // The compiler makes this of __builtin_prefetch only if it builds for newer
    // processors than the oldest supported, which take this for a nop.
    asm volatile("prefetchw %0" : : "m"(*static_cast<const char*>(line)));
#else
    __builtin_prefetch(line, 1);
#endif
  }
  static void FetchPair(const void* pair) {
    __builtin_prefetch(pair);
    __builtin_prefetch(static_cast<const std::byte*>(pair) + 64);
  }
  static void FetchPairToWrite(const void* pair) {
    FetchToWrite(pair);
    FetchToWrite(static_cast<const std::byte*>(pair) + 64);
  }

  SegmentState* segment(int index) const {
    if (index < 0 || index >= segments() * kSegmentStreams) return nullptr;
    return table_[index / kSegmentStreams].load(std::memory_order_acquire);
  }
  static std::uint64_t Bit(int index) {
    return std::uint64_t{1} << (index % kSegmentStreams);
  }
  void Mark(int side, Ready what, int bell, int index);
  void RingByMessage(int bell, std::uint64_t armed);

  const int side_;
  base::UniqueFd page_fd_;
  LinkPage* page_;  // null: abandoned
  base::Latch latch_;
  std::atomic<int> segments_{0};  // written under latch_, as table_ is
  std::atomic<SegmentState*> table_[kMaxSegments] = {};
  std::atomic<base::Reason> dead_{base::Reason::kNone};
  std::atomic<std::uint32_t> ring_bytes_{kRingBytes};
  std::atomic<bool> passes_{false};
  std::atomic<const BellPage*> peer_bells_{nullptr};
  std::atomic<int> peer_fds_[kBells];
  std::atomic<std::uint64_t> kicked_[kBells] =
      {};                                  // generation last kicked for
  std::atomic<int> cursors_[kBells] = {};  // where the next Drain begins
  base::Latch socket_latch_;               // held for each send on the socket
  std::atomic<int> socket_{-1};
  std::span<const std::byte> message_ RC_GUARDED_BY(socket_latch_);
  std::span<const std::byte> memory_message_ RC_GUARDED_BY(socket_latch_);
  Memories memories_;
};

// Wakes every thread, of any process if `shared`, that sleeps on `word`, or is
// about to with a token taken before.
void BumpAndWake(std::atomic<std::uint32_t>& word, bool shared = true);

}  // namespace rcsock::lane::shm

#endif  // RCSOCK_LIB_LANE_SHM_LINK_STATE_H_
