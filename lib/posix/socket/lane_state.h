#ifndef RCSOCK_LIB_POSIX_SOCKET_LANE_STATE_H_
#define RCSOCK_LIB_POSIX_SOCKET_LANE_STATE_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "lib/base/log.h"

namespace rcsock::posix {

// How far a stream is on its way to a lane and back.  Owned by its Sock.
//
// One word has the state and two flags.  Step is the only function that changes
// the word, and kEdges has every change of the state.  Any thread may step and
// ask, without a latch.  Each step is one compare-and-exchange, so of two
// threads that begin a search one succeeds.  A step that comes too late, behind
// a close or a fork for instance, finds no edge, changes nothing and returns
// false.
//
// Latches: kAdopt, kReturn and kStay lead into the states of the engine and out
// of them.  A thread makes these steps with both latches of the stream, where
// its mode changes, too.  So a thread with either latch finds a state of the
// engine if and only if the mode is Mode::kEngine (I-LANE-2).  A thread also
// takes both latches for kHope, kLoseHope, kAgree and kOpen, and to end a
// search of the conductor.  kConnect, kSeek, kHalt, kPin, kUnpin and the kStop
// of a close may come at any moment between.
//
// Order: each step is sequentially consistent.  These pairs need that, too:
// each side stores, and then looks at what the other stores:
// - ~InKernel clears a mark, and looks at Wanted.  Adopt steps.  Then
//   TakeFromKernelLatched looks at the marks, behind a fence of all threads
//   (I-MARK-1).
// - CloseLast marks the stream as closed and looks at Seeking; a search steps,
//   and then TcpAnchor::Borrow looks at the mark.
// - LaneSearch::Begin steps, and then asks for the verdict on the code of the
//   program; raw_code::BeforeUnseenOpen changes the verdict, and then asks
//   Engaged.
class LaneState {
 public:
  // The bits are what calls ask for: each question is one load and one test.
  enum class State : std::uint16_t {
    // No search begins: the stream is not connected, closed or pinned, bytes
    // that were read ahead come first, or no lane could be made.
    kOff = 0,
    // No lane will ever come.  The stream's calls are the kernel's, and are not
    // counted as inside it.
    kNever = 1 << 0,
    // A call's end may begin a search.
    kIdle = 1 << 1,
    // The conductor looks for the peer.
    kSeeking = 1 << 2,
    // As kSeeking, and the lane is worth a wait.  Sends wait for the lane, and
    // a thread that comes out of the kernel looks for the peer's answer.
    kHoping = kSeeking | 1 << 3,
    // Both ends have met.  The last thread that comes out of the kernel adopts
    // the stream.
    kAgreed = kHoping | 1 << 4,
    // The engine has the stream.  The lane is still to come.
    kAdopted = kSeeking | 1 << 4 | 1 << 5,
    // The lane has come.  The state lasts until the kernel has the stream
    // again, also while the stream leaves its lane.
    kOnLane = 1 << 5 | 1 << 6,
    // The engine has the stream, and no lane will come.
    kReturning = 1 << 5,
  };

  enum class Event : std::uint8_t {
    kConnect,   // connected, or what kept the stream on TCP is over
    kForbid,    // no lane, for good
    kSeek,      // a search begins
    kHope,      // the lane of the search is worth a wait
    kLoseHope,  // the wait is over, and the search goes on
    kAgree,     // the peer has been found
    kAdopt,     // the engine takes the stream over
    kOpen,      // the lane is there
    kGiveUp,    // the search is over; another one may begin
    kStop,      // the search is over; no other one begins
    kHalt,      // no search begins
    kReturn,    // the kernel has the stream; a search may begin
    kStay,      // the kernel has the stream; no search begins
    // From here on events change flags.
    kPin,  // the stream is bound to TCP
    kUnpin,
    kLeave,  // see kLeaving
    kStopLeaving,
  };
  static constexpr int kEvents = static_cast<int>(Event::kStopLeaving) + 1;

  struct Edge {
    Event event;
    State from;
    State to;
  };
  // Every change of the state.  Next has what a pin changes in an edge.
  static constexpr Edge kEdges[] = {
      {Event::kConnect, State::kOff, State::kIdle},

      {Event::kForbid, State::kOff, State::kNever},
      {Event::kForbid, State::kIdle, State::kNever},
      {Event::kForbid, State::kSeeking, State::kNever},
      {Event::kForbid, State::kHoping, State::kNever},
      {Event::kForbid, State::kAgreed, State::kNever},
      {Event::kForbid, State::kAdopted, State::kReturning},

      {Event::kSeek, State::kIdle, State::kSeeking},
      {Event::kHope, State::kSeeking, State::kHoping},
      {Event::kLoseHope, State::kHoping, State::kSeeking},
      {Event::kAgree, State::kSeeking, State::kAgreed},
      {Event::kAgree, State::kHoping, State::kAgreed},
      {Event::kAdopt, State::kAgreed, State::kAdopted},
      {Event::kOpen, State::kAdopted, State::kOnLane},

      {Event::kGiveUp, State::kSeeking, State::kIdle},
      {Event::kGiveUp, State::kHoping, State::kIdle},
      {Event::kGiveUp, State::kAgreed, State::kIdle},
      {Event::kGiveUp, State::kAdopted, State::kReturning},
      {Event::kStop, State::kSeeking, State::kOff},
      {Event::kStop, State::kHoping, State::kOff},
      {Event::kStop, State::kAgreed, State::kOff},
      {Event::kStop, State::kAdopted, State::kReturning},
      {Event::kHalt, State::kIdle, State::kOff},

      {Event::kReturn, State::kOnLane, State::kIdle},
      {Event::kReturn, State::kReturning, State::kIdle},
      {Event::kStay, State::kOnLane, State::kOff},
      {Event::kStay, State::kReturning, State::kOff},
      {Event::kStay, State::kAdopted, State::kOff},

      {Event::kPin, State::kIdle, State::kOff},
      {Event::kPin, State::kHoping, State::kSeeking},
  };

  // Flags of the word.  They are no states, since each flag is set in several
  // states.
  //
  // The stream is bound to TCP.  A pin may come while the stream is on its
  // lane, which it then leaves.  The pin of an exec that fails, or of a policy,
  // may end.
  static constexpr std::uint16_t kPinned = 1 << 7;
  // A thread that does not use the stream waits until it is on TCP, so bytes
  // that were read ahead do not hold it.  A stream may leave before its lane
  // has come: it takes a lane that both ends have agreed to, only to leave it.
  static constexpr std::uint16_t kLeaving = 1 << 8;
  static constexpr State StateOf(unsigned word) {
    return static_cast<State>(word & ~unsigned{kPinned | kLeaving});
  }

  // Returns what a step makes of a word.  Returns the word itself if there is
  // no edge.
  static constexpr std::uint16_t Next(Event event, std::uint16_t word);
  // Returns whether there may be such a word:
  // - no pinned stream is kIdle or kHoping;
  // - kLeaving is with states of the engine only.
  static constexpr bool Legal(std::uint16_t word);

  // Makes a step.  Returns whether it has changed the word.
  bool Step(Event event);
  // As Step, with a few instructions where the stream is at `from`, without a
  // flag.
  template <Event event, State from>
  bool StepFrom();

  // --- What it is
  // Questions take kWeak on the path of a call on TCP, where the mode is loaded
  // relaxed, too.
  using Order = std::memory_order;
  static constexpr Order kStrong = std::memory_order_seq_cst;
  static constexpr Order kWeak = std::memory_order_relaxed;

  State state() const { return StateOf(word_.load(kStrong)); }
  bool Never(Order order = kStrong) const { return Has(kNeverBit, order); }
  bool Idle(Order order = kStrong) const { return Has(kIdleBit, order); }
  bool Seeking(Order order = kStrong) const { return Has(kSeekingBit, order); }
  // Returns Never and Wanted by one load.
  enum class Call : std::uint8_t { kKernels, kPlain, kWanted };
  Call ForCall() const {
    const unsigned word = word_.load(kWeak);
    return (word & kNeverBit) != 0    ? Call::kKernels
           : (word & kWantedBit) != 0 ? Call::kWanted
                                      : Call::kPlain;
  }
  // Returns whether the state is kHoping or kAgreed: calls on TCP have more to
  // do.
  bool Wanted(Order order = kStrong) const { return Has(kWantedBit, order); }
  // Returns whether the state is kAgreed or kAdopted.
  bool Agreed(Order order = kStrong) const { return Has(kAgreedBit, order); }
  // Returns whether the engine has the stream (I-LANE-2).
  bool InEngine(Order order = kStrong) const { return Has(kEngineBit, order); }
  // Returns whether a search may begin, or is under way.
  bool MayLeaveTcp(Order order = kStrong) const {
    return Has(kIdleBit | kSeekingBit, order);
  }
  bool MayTakeLane(Order order = kStrong) const {
    const unsigned word = word_.load(order);
    return (word & (kIdleBit | kSeekingBit)) != 0 && (word & kPinned) == 0;
  }
  // Returns whether the stream may be adopted, now or later: then a wait in the
  // kernel must be known.
  bool MayAdopt(Order order = kStrong) const {
    return Has(kIdleBit | kSeekingBit | kEngineBit, order);
  }
  // Returns whether the stream waits for a lane that is worth the wait.
  bool AwaitsLane() const {
    const unsigned word = word_.load(kStrong);
    return (word & kSeekingBit) != 0 && (word & kPinned) == 0 &&
           ((word & kAgreedBit) != 0 || Hopeful());
  }
  bool Pinned(Order order = kStrong) const { return Has(kPinned, order); }
  bool Leaving(Order order = kStrong) const { return Has(kLeaving, order); }

  // --- Apart from the word, since they are no part of the way
  // What the stream's service promises.  Both flags are set before the first
  // search, and outlive it: a later search of a hopeful stream hopes, too.
  bool Hopeful() const { return hopeful_.load(kWeak); }
  void SetHopeful(bool hopeful) { hopeful_.store(hopeful, kWeak); }
  // Returns whether the stream looks for its peer as soon as it is connected.
  bool AtOnce() const { return at_once_.load(kWeak); }
  void SetAtOnce() { at_once_.store(true, kWeak); }
  bool TakeAtOnce() { return at_once_.exchange(false, kWeak); }
  // An option that accepted sockets inherit has pinned the stream.  A listener
  // keeps this flag for them.
  bool PinnedByOption() const { return pinned_by_option_.load(kWeak); }
  void SetPinnedByOption() { pinned_by_option_.store(true, kWeak); }

  // Resets all, for another connection.  Requires that no other thread knows
  // the stream.
  void Reset() {
    word_.store(0, std::memory_order_relaxed);
    hopeful_.store(false, std::memory_order_relaxed);
    at_once_.store(false, std::memory_order_relaxed);
    pinned_by_option_.store(false, std::memory_order_relaxed);
  }
  // Ends the search, which was the parent's.  `lost`: the engine had the
  // stream, and it is the parent's alone.  Requires the child of a fork, which
  // has no other thread.
  void OnForkChild(bool lost);

 private:
  static constexpr unsigned kNeverBit = 1 << 0;
  static constexpr unsigned kIdleBit = 1 << 1;
  static constexpr unsigned kSeekingBit = 1 << 2;
  static constexpr unsigned kWantedBit = 1 << 3;
  static constexpr unsigned kAgreedBit = 1 << 4;
  static constexpr unsigned kEngineBit = 1 << 5;

  bool Has(unsigned bits, Order order) const {
    return (word_.load(order) & bits) != 0;
  }

  static void LogStep(const LaneState* state, Event event, unsigned from,
                      unsigned to);

  std::atomic<std::uint16_t> word_{0};
  std::atomic<bool> hopeful_{false};
  std::atomic<bool> at_once_{false};
  std::atomic<bool> pinned_by_option_{false};
};

constexpr bool LaneState::Legal(std::uint16_t word) {
  const State state = StateOf(word);
  if ((word & kPinned) != 0 &&
      (state == State::kIdle || state == State::kHoping)) {
    return false;
  }
  return (word & kLeaving) == 0 ||
         (static_cast<unsigned>(state) & kEngineBit) != 0;
}

// Where the edges lead, for each event and state.  A connection of one request
// makes a dozen steps, so no step looks through all edges.
inline constexpr auto kLaneTargets = [] {
  constexpr std::size_t kStates = LaneState::kPinned;
  std::array<std::array<std::uint8_t, kStates>, LaneState::kEvents> targets{};
  for (auto& of_event : targets) {
    for (std::size_t from = 0; from < kStates; ++from) {
      of_event[from] = static_cast<std::uint8_t>(from);
    }
  }
  for (const LaneState::Edge& edge : LaneState::kEdges) {
    targets[static_cast<std::size_t>(edge.event)]
           [static_cast<std::size_t>(edge.from)] =
               static_cast<std::uint8_t>(edge.to);
  }
  return targets;
}();

constexpr std::uint16_t LaneState::Next(Event event, std::uint16_t word) {
  const State from = StateOf(word);
  const bool pinned = (word & kPinned) != 0;
  State to = static_cast<State>(kLaneTargets[static_cast<std::size_t>(event)]
                                            [static_cast<std::size_t>(from)]);
  unsigned flags = word & (kPinned | kLeaving);
  if (flags == 0 && event < Event::kPin) return static_cast<std::uint16_t>(to);
  switch (event) {
    case Event::kHope:
    case Event::kAdopt:
      if (pinned) return word;
      break;
    case Event::kOpen:
      if (pinned && (word & kLeaving) == 0) return word;
      break;
    case Event::kPin:
      flags |= kPinned;
      break;
    case Event::kUnpin:
      flags &= ~unsigned{kPinned};
      break;
    case Event::kLeave:
      if ((static_cast<unsigned>(from) & kEngineBit) != 0) flags |= kLeaving;
      break;
    case Event::kStopLeaving:
      flags &= ~unsigned{kLeaving};
      break;
    default:
      break;
  }
  // No search of a pinned stream begins.
  if (to == State::kIdle && pinned) to = State::kOff;
  // A stream outside the engine is not leaving it.
  if ((static_cast<unsigned>(to) & kEngineBit) == 0) {
    flags &= ~unsigned{kLeaving};
  }
  return static_cast<std::uint16_t>(static_cast<unsigned>(to) | flags);
}

template <LaneState::Event event, LaneState::State from>
inline bool LaneState::StepFrom() {
  constexpr auto kFrom = static_cast<std::uint16_t>(from);
  constexpr std::uint16_t kTo = Next(event, kFrom);
  static_assert(kTo != kFrom && Legal(kTo));
  std::uint16_t word = kFrom;
  if (!word_.compare_exchange_strong(word, kTo, std::memory_order_seq_cst))
      [[unlikely]] {
    return Step(event);
  }
  if (base::log_level >= 3) [[unlikely]]
    LogStep(this, event, kFrom, kTo);
  return true;
}

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_SOCKET_LANE_STATE_H_
