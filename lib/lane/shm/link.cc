#include "lib/lane/shm/link.h"

#include <sys/mman.h>

#include <bit>
#include <new>
#include <utility>

#include "lib/lane/shm/link_state.h"
#include "lib/lane/shm/memory.h"
#include "lib/lane/shm/shm_lane.h"

namespace rcsock::lane::shm {
namespace {

// How many segments Drain handles together.
constexpr int kGroup = 16;
constexpr Ready kBoth[] = {kReadyRx, kReadyTx};

// A segment with streams that a bell has ready.
struct ReadySegment {
  int segment;
  int turn;  // of the first stream
  std::uint64_t bits[2];
};

// Looks through the summary for up to kGroup segments, from *i behind `start`
// on. Moves *i, and clears the bits of the summary. Returns how many segments
// there are.
[[gnu::always_inline]] inline int FindReady(LinkState& state, int bell,
                                            int start, int* i,
                                            ReadySegment* group) {
  const int first = start / kSegmentStreams;
  std::uint64_t clear[kMaxSegments / 64][2] = {};
  int wanted = 0;
  while (*i < kMaxSegments && wanted < kGroup) {
    const int segment = (first + *i) % kMaxSegments;
    const int at = segment % 64;
    const std::uint64_t rx = state.Summary(kReadyRx, bell, segment / 64);
    const std::uint64_t tx = state.Summary(kReadyTx, bell, segment / 64);
    const std::uint64_t left = (rx | tx) >> at;
    if (left == 0) {
      *i += 64 - at;  // nothing in the rest of this summary word
      continue;
    }
    if ((left & 1) == 0) {
      *i += std::countr_zero(left);
      continue;
    }
    state.WarmReady(bell, segment);
    group[wanted++] = {segment,
                       *i == 0 ? start % kSegmentStreams : 0,
                       {rx >> at & 1, tx >> at & 1}};
    const std::uint64_t bit = std::uint64_t{1} << at;
    clear[segment / 64][kReadyRx] |= rx & bit;
    clear[segment / 64][kReadyTx] |= tx & bit;
    ++*i;
  }
  for (int word = 0; word < kMaxSegments / 64; ++word) {
    for (const Ready what : kBoth) {
      if (clear[word][what] != 0) {
        state.ClearSummary(what, bell, word, clear[word][what]);
      }
    }
  }
  return wanted;
}

// Takes the bits of the first `wanted` segments. Moves those that have some to
// the front. Returns how many these are.
[[gnu::always_inline]] inline int TakeBits(LinkState& state, int bell,
                                           int wanted, ReadySegment* group) {
  int taken = 0;
  for (int g = 0; g < wanted; ++g) {
    group[taken] = group[g];
    ReadySegment& one = group[taken];
    for (const Ready what : kBoth) {
      if (one.bits[what] != 0) {
        one.bits[what] = state.TakeReady(what, bell, one.segment);
      }
    }
    if ((one.bits[kReadyRx] | one.bits[kReadyTx]) == 0) continue;
    // A bit of a segment that does not exist is a peer's mistake, and is
    // dropped. The number of segments is read after the bits have been taken.
    // Another thread may map a segment at any time. But an honest peer marks
    // only when it has heard of the segment (SEGMENT and OPENED), so its bits
    // are never seen before the segment.
    if (one.segment >= state.segments()) continue;
    state.WarmStreams(one.segment, one.bits[kReadyRx]);
    ++taken;
  }
  return taken;
}

// What Drain reports.
struct Report {
  Completion* out;
  int capacity;
  int found;
  std::uint32_t error;  // what each completion says as well

  // Reports the streams of a segment, and takes their bits out of *one. Returns
  // the first stream for which there is no room; -1: there was room for all.
  [[gnu::always_inline]] int Add(const LinkState& state, ReadySegment* one) {
    const int turn = one->turn;
    std::uint64_t left =
        std::rotr(one->bits[kReadyRx] | one->bits[kReadyTx], turn);
    while (left != 0) {
      const int at = (std::countr_zero(left) + turn) % kSegmentStreams;
      const std::uint64_t bit = std::uint64_t{1} << at;
      if (found == capacity) return one->segment * kSegmentStreams + at;
      void* const cookie = state.Visit(one->segment, at);
      if (cookie != nullptr) {
        const bool rx = (one->bits[kReadyRx] & bit) != 0;
        const bool tx = (one->bits[kReadyTx] & bit) != 0;
        out[found++] = {cookie, (rx ? std::uint32_t{kCompletionRx} : 0) |
                                    (tx ? std::uint32_t{kCompletionTx} : 0) |
                                    error};
      }
      one->bits[kReadyRx] &= ~bit;
      one->bits[kReadyTx] &= ~bit;
      left &= left - 1;
    }
    return -1;
  }
};

}  // namespace

std::unique_ptr<Link> Link::Create() {
  base::UniqueFd fd = CreateMemory("rcsock-link", sizeof(LinkPage));
  if (!fd.ok()) return nullptr;
  void* page = MapMemory(fd.get(), sizeof(LinkPage), true);
  if (page == nullptr) return nullptr;
  return std::unique_ptr<Link>(new Link(std::make_shared<LinkState>(
      0, std::move(fd), static_cast<LinkPage*>(page))));
}

std::unique_ptr<Link> Link::Map(base::UniqueFd fd) {
  if (!CheckMemory(fd.get(), sizeof(LinkPage))) return nullptr;
  void* page = MapMemory(fd.get(), sizeof(LinkPage), true);
  if (page == nullptr) return nullptr;
  return std::unique_ptr<Link>(new Link(std::make_shared<LinkState>(
      1, std::move(fd), static_cast<LinkPage*>(page))));
}

Link::Link(std::shared_ptr<LinkState> state) : state_(std::move(state)) {}
Link::~Link() = default;

int Link::side() const { return state_->side(); }
int Link::page_fd() const { return state_->page_fd(); }
int Link::segments() const { return state_->segments(); }

base::UniqueFd Link::AddSegment() {
  base::UniqueFd fd;
  if (side() != 0 || segments() == kMaxSegments) return fd;
  fd = CreateMemory("rcsock-rings", sizeof(Segment));
  if (!fd.ok()) return fd;
  void* memory = MapMemory(fd.get(), sizeof(Segment), true);
  if (memory == nullptr || !state_->AddSegment(static_cast<Segment*>(memory))) {
    UnmapMemory(memory, sizeof(Segment));
    fd.reset();
  }
  return fd;
}

bool Link::MapSegment(base::UniqueFd fd) {
  if (side() != 1 || !CheckMemory(fd.get(), sizeof(Segment))) return false;
  void* memory = MapMemory(fd.get(), sizeof(Segment), true);
  if (memory == nullptr) return false;
  if (state_->AddSegment(static_cast<Segment*>(memory))) return true;
  UnmapMemory(memory, sizeof(Segment));
  return false;
}

bool Link::SetPeerBellPage(base::UniqueFd fd, std::uint32_t most_ring) {
  return state_->SetPeerBellPage(std::move(fd), most_ring);
}

void Link::SetPeerBell(int k, base::UniqueFd fd) {
  state_->SetPeerBell(k, std::move(fd));
}

void Link::SetSocket(int fd, std::span<const std::byte> rung,
                     std::span<const std::byte> memory) {
  state_->SetSocket(fd, rung, memory);
}
bool Link::PassesMemory() const { return state_->passes(); }
bool Link::PutMemory(std::uint64_t id, base::ForeignFd fd) {
  // Many lanes may begin at once, and each has its peer send one. An honest
  // peer's closes wait for the driver alone.
  const bool honest = !fd.ok() || fd.Harmless() || gpu::IsDriversFile(fd.get());
  if (honest ? base::ClosesOverflow() : base::ClosesPileUp()) return false;
  state_->memories().Put(id, std::move(fd));
  return true;
}
void Link::ForgetSocket() { state_->ForgetSocket(); }
BellMask Link::TakeRung() { return state_->TakeRung(); }

std::unique_ptr<Lane> Link::OpenLane(int index) {
  if (!state_->Open(index)) return nullptr;
  auto* lane = ShmLane::New(state_, index);
  if (lane == nullptr) {
    state_->Close(index);
  } else {
    state_->SetLane(index, lane);
  }
  return std::unique_ptr<Lane>(lane);
}

void Link::Scrub(int index) {
  const StreamMemory memory = state_->stream(index);
  // Memory that was never used still reads as zero. Scrub leaves it untouched,
  // and so unallocated. The peer may use it from now on, and this end may give
  // up before it opens the stream.
  if (memory.hot == nullptr || state_->IsOpen(index) ||
      !state_->MarkUsed(index)) {
    return;
  }
  for (int side = 0; side < 2; ++side) {
    ControlLine& control = memory.hot->control[side];
    control.consumed.store(0, std::memory_order_relaxed);
    control.sleepers.store(0, std::memory_order_relaxed);
    control.poll.store(0, std::memory_order_relaxed);
    control.more.store(0, std::memory_order_relaxed);
    control.left.store(0, std::memory_order_relaxed);
    control.forgoes.store(0, std::memory_order_relaxed);
    control.resets.store(0, std::memory_order_relaxed);
    control.came.store(0, std::memory_order_relaxed);
    control.offer.store(0, std::memory_order_relaxed);
    control.takes.store(0, std::memory_order_relaxed);
    memory.hot->reached[side].messages.store(0, std::memory_order_relaxed);
  }
  for (std::uint32_t n = 0; n < kSlots; ++n) {
    for (int side = 0; side < 2; ++side) {
      memory.slot(n, side).head.store(0, std::memory_order_relaxed);
    }
  }
  // Before the message that tells the peer to open the stream.
  FullFence();
}

void Link::Trim(int index) {
  const StreamMemory memory = state_->stream(index);
  ::madvise(memory.bytes, 2 * kRingBytes, MADV_REMOVE);
}

void Link::PassMemory() { state_->PassMemory(); }

void Link::SetCookie(int index, void* cookie) {
  state_->SetCookie(index, cookie);
}
void Link::SetBeside(int index, int which, const void* line) {
  state_->SetBeside(index, which, line);
}

int Link::Drain(int bell, Completion* out, int capacity) {
  if (capacity <= 0) return 0;
  state_->WarmSummary(bell);
  const int start = state_->cursor(bell);
  Report report{out, capacity, 0, dead() ? std::uint32_t{kCompletionError} : 0};
  // One pass over the summary, from the stream behind the last reported stream.
  // So busy streams, or a peer that goes on setting bits, do not hold up the
  // others. The pass makes each step for a group of segments before the next
  // step. If few of thousands of streams are ready, every word, every cookie
  // and every slot is a miss. So the pass waits for the misses of a group
  // together.
  for (int i = 0; i < kMaxSegments;) {
    ReadySegment group[kGroup];
    const int wanted = FindReady(*state_, bell, start, &i, group);
    const int taken = TakeBits(*state_, bell, wanted, group);
    for (int g = 0; g < taken; ++g) {
      const int index = report.Add(*state_, &group[g]);
      if (index < 0) continue;
      for (int rest = g; rest < taken; ++rest) {
        state_->PutBack(bell, group[rest].segment, group[rest].bits);
      }
      state_->set_cursor(bell, index);
      return report.found;
    }
    if (report.found == capacity) {
      const int next =
          taken > 0 ? group[taken - 1].segment + 1 : start / kSegmentStreams;
      state_->set_cursor(bell, next % kMaxSegments * kSegmentStreams);
      return report.found;
    }
  }
  return report.found;
}

void Link::Kill(base::Reason why) { state_->Kill(why); }
void Link::Abandon() {
  state_->memories().CloseInherited();
  state_->Abandon();
}
bool Link::dead() const { return state_->why_dead() != base::Reason::kNone; }

}  // namespace rcsock::lane::shm
