// How far a stream is on its way to a lane (lib/posix/socket/lane_state.h): its
// table, its writer, and a search that races with all that may end it.
#include "lib/posix/socket/lane_state.h"

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/base/model.h"

namespace rcsock::posix {
namespace {

using State = LaneState::State;
using Event = LaneState::Event;
constexpr std::uint16_t kPinned = LaneState::kPinned;
constexpr std::uint16_t kLeaving = LaneState::kLeaving;

constexpr State kStates[] = {
    State::kOff,     State::kNever,  State::kIdle,
    State::kSeeking, State::kHoping, State::kAgreed,
    State::kAdopted, State::kOnLane, State::kReturning};

std::uint16_t Word(State state, unsigned flags = 0) {
  return static_cast<std::uint16_t>(static_cast<unsigned>(state) | flags);
}

bool IsEngine(State state) {
  return state == State::kAdopted || state == State::kOnLane ||
         state == State::kReturning;
}

// The words that there may be, and steps that lead to each.
std::map<std::uint16_t, std::vector<Event>> Words() {
  std::map<std::uint16_t, std::vector<Event>> words{{0, {}}};
  std::vector<std::uint16_t> todo{0};
  while (!todo.empty()) {
    const std::uint16_t word = todo.back();
    todo.pop_back();
    for (int i = 0; i < LaneState::kEvents; ++i) {
      const auto event = static_cast<Event>(i);
      const std::uint16_t to = LaneState::Next(event, word);
      if (words.count(to) != 0) continue;
      words[to] = words[word];
      words[to].push_back(event);
      todo.push_back(to);
    }
  }
  return words;
}

std::unique_ptr<LaneState> Make(const std::vector<Event>& steps) {
  auto made = std::make_unique<LaneState>();
  for (const Event event : steps) EXPECT_TRUE(made->Step(event));
  return made;
}

std::uint16_t WordOf(const LaneState& state) {
  return Word(state.state(), (state.Pinned() ? kPinned : 0u) |
                                 (state.Leaving() ? kLeaving : 0u));
}

// Every step without a flag, in the order of kStates.  A point: no edge.
struct Row {
  Event event;
  const char* to;
};
constexpr Row kRows[] = {
    // O off, N never, I idle, S seeking, H hoping, A agreed, D adopted,
    // L on lane, R returning
    {Event::kConnect, "I........"},    {Event::kForbid, "N.NNNNR.."},
    {Event::kSeek, "..S......"},       {Event::kHope, "...H....."},
    {Event::kLoseHope, "....S...."},   {Event::kAgree, "...AA...."},
    {Event::kAdopt, ".....D..."},      {Event::kOpen, "......L.."},
    {Event::kGiveUp, "...IIIR.."},     {Event::kStop, "...OOOR.."},
    {Event::kHalt, "..O......"},       {Event::kReturn, ".......II"},
    {Event::kStay, "......OOO"},       {Event::kPin, "..O.S...."},
    {Event::kUnpin, "........."},      {Event::kLeave, "........."},
    {Event::kStopLeaving, "........."}};
// The same of a stream that is pinned, where that differs.
constexpr Row kPinnedRows[] = {
    {Event::kConnect, "........."}, {Event::kHope, "........."},
    {Event::kAdopt, "........."},   {Event::kOpen, "........."},
    {Event::kGiveUp, "...OOOR.."},  {Event::kReturn, ".......OO"}};

const char* RowOf(Event event, bool pinned) {
  if (pinned) {
    for (const Row& row : kPinnedRows) {
      if (row.event == event) return row.to;
    }
  }
  for (const Row& row : kRows) {
    if (row.event == event) return row.to;
  }
  return "";
}

State Expected(Event event, std::size_t from, bool pinned) {
  const char to = RowOf(event, pinned)[from];
  return to == '.' ? kStates[from]
                   : kStates[std::string_view("ONISHADLR").find(to)];
}

TEST(LaneState, EachEdgeAndNoOther) {
  int edges = 0;
  for (const auto& [word, steps] : Words()) {
    const State from = LaneState::StateOf(word);
    std::size_t index = 0;
    while (kStates[index] != from) ++index;
    for (int i = 0; i < LaneState::kEvents; ++i) {
      const auto event = static_cast<Event>(i);
      const bool pinned = (word & kPinned) != 0;
      const bool leaving = (word & kLeaving) != 0;
      State to = Expected(event, index, pinned);
      // It leaves: then it takes its lane.
      if (event == Event::kOpen && from == State::kAdopted && leaving) {
        to = State::kOnLane;
      }
      unsigned flags = word & (kPinned | kLeaving);
      if (event == Event::kPin) flags |= kPinned;
      if (event == Event::kUnpin) flags &= ~unsigned{kPinned};
      if (event == Event::kLeave && IsEngine(from)) flags |= kLeaving;
      if (event == Event::kStopLeaving || !IsEngine(to)) {
        flags &= ~unsigned{kLeaving};
      }
      const std::unique_ptr<LaneState> state = Make(steps);
      EXPECT_EQ(state->Step(event), Word(to, flags) != word)
          << word << " " << i;
      EXPECT_EQ(WordOf(*state), Word(to, flags)) << word << " " << i;
      edges += to != from ? 1 : 0;
    }
  }
  EXPECT_GT(edges, 60);
}

TEST(LaneState, LegalWords) {
  const auto words = Words();
  // Nine states: unpinned and pinned; those of the engine leaving, too.
  EXPECT_EQ(words.size(), 9u + 7u + 3u + 3u);
  for (const State state : kStates) {
    for (const unsigned flags : {0u, unsigned{kPinned}, unsigned{kLeaving},
                                 unsigned{kPinned} | kLeaving}) {
      const std::uint16_t word = Word(state, flags);
      EXPECT_EQ(LaneState::Legal(word), words.count(word) != 0) << word;
    }
  }
}

TEST(LaneState, Questions) {
  for (const auto& [word, steps] : Words()) {
    const std::unique_ptr<LaneState> state = Make(steps);
    const State is = LaneState::StateOf(word);
    const bool pinned = (word & kPinned) != 0;
    const bool seeking = is == State::kSeeking || is == State::kHoping ||
                         is == State::kAgreed || is == State::kAdopted;
    EXPECT_EQ(state->state(), is);
    EXPECT_EQ(state->Never(), is == State::kNever);
    EXPECT_EQ(state->Idle(), is == State::kIdle);
    EXPECT_EQ(state->Seeking(), seeking);
    EXPECT_EQ(state->Wanted(), is == State::kHoping || is == State::kAgreed);
    EXPECT_EQ(state->Agreed(), is == State::kAgreed || is == State::kAdopted);
    EXPECT_EQ(state->InEngine(), IsEngine(is));
    EXPECT_EQ(state->MayLeaveTcp(), seeking || is == State::kIdle);
    EXPECT_EQ(state->MayTakeLane(), (seeking || is == State::kIdle) && !pinned);
    EXPECT_EQ(state->MayAdopt(), is != State::kOff && is != State::kNever);
    EXPECT_EQ(state->AwaitsLane(), state->Agreed() && !pinned);
    state->SetHopeful(true);
    EXPECT_EQ(state->AwaitsLane(), seeking && !pinned);
    state->SetAtOnce();
    state->SetPinnedByOption();
    state->Reset();
    EXPECT_EQ(WordOf(*state), 0);
    EXPECT_FALSE(state->Hopeful() || state->AtOnce() ||
                 state->PinnedByOption());
  }
}

// A child has no search and no lane of its parent's.  What was not the engine's
// may have a lane.
TEST(LaneState, ForkChild) {
  for (const auto& [word, steps] : Words()) {
    for (const bool lost : {false, true}) {
      const std::unique_ptr<LaneState> state = Make(steps);
      const State is = LaneState::StateOf(word);
      const bool pinned = (word & kPinned) != 0 || lost;
      state->OnForkChild(lost);
      const State to = is == State::kNever ? State::kNever
                       : is == State::kOff ? State::kOff
                       : pinned            ? State::kOff
                                           : State::kIdle;
      EXPECT_EQ(WordOf(*state), Word(to, pinned ? kPinned : 0u)) << word;
    }
  }
}

// Of two threads one begins the search.
TEST(LaneState, OneSearch) {
  constexpr int kRounds = 2000;
  LaneState state;
  state.Step(Event::kConnect);
  std::atomic<int> round{0};
  std::atomic<int> begun{0};
  std::atomic<int> ready{0};
  const auto race = [&] {
    for (int i = 1; i <= kRounds; ++i) {
      while (round.load() < i) std::this_thread::yield();
      if (state.Step(Event::kSeek)) begun.fetch_add(1);
      ready.fetch_add(1);
    }
  };
  std::thread one(race);
  std::thread other(race);
  for (int i = 1; i <= kRounds; ++i) {
    round.store(i);
    while (ready.load() < 2 * i) std::this_thread::yield();
    ASSERT_EQ(begun.load(), i);
    ASSERT_TRUE(state.Step(Event::kGiveUp));
  }
  one.join();
  other.join();
}

// --- A stream, by the rules of Sock

// One stream with all that happens to it: a call begins a search, the conductor
// agrees, adopts, opens the lane or fails, the lane ends, and other threads
// give the search up, pin the stream, take the pin back, and close it.  The
// word is changed by LaneState::Next, as LaneState::Step does.  A step is one
// access, or what the latches protect as long as nobody without them can tell.
//
// What must not be is a state in which nothing moves.
struct Stream {
  // Rules to leave out.
  bool takes_pinned = false;  // kAdopt and kOpen refuse a pinned stream
  bool seeks_pinned = false;  // a pinned stream is not kIdle
  bool keeps_refused =
      false;                // LaneOpen: a lane that is refused ends the search
  bool halts_once = false;  // CloseLast: kHalt, again behind the latches

  static constexpr int kSeeker = 0, kConductor = 1, kCanceller = 2, kPinner = 3,
                       kCloser = 4, kThreads = 5;
  enum {
    kLow,
    kHigh,
    kEngine,  // the mode
    kHolder,  // of the latches, from 1
    kClosed,
    kSession,  // the conductor's
    kLane,
    kBad,
    kSearches,
    kLanes,
    kSeen,  // the canceller and the pinner have seen that it is open
    kSeenToo,
    kSeenByConductor,
    kAt,
    kSize = kAt + kThreads
  };
  using Bytes = std::array<std::uint8_t, kSize>;
  using State = Bytes;

  State First() const {
    State s{};
    Put(&s, LaneState::Next(Event::kConnect, 0));
    return s;
  }
  static std::uint16_t Get(const State& s) {
    return static_cast<std::uint16_t>(s[kLow] | s[kHigh] << 8);
  }
  static void Put(State* s, std::uint16_t word) {
    (*s)[kLow] = static_cast<std::uint8_t>(word);
    (*s)[kHigh] = static_cast<std::uint8_t>(word >> 8);
  }
  static posix::LaneState::State Is(const State& s) {
    return LaneState::StateOf(Get(s));
  }
  static bool Pinned(const State& s) { return (Get(s) & kPinned) != 0; }
  static bool Seeking(const State& s) {
    return (static_cast<unsigned>(Is(s)) &
            static_cast<unsigned>(posix::LaneState::State::kSeeking)) != 0;
  }

  bool Step(State* s, Event event) const {
    const std::uint16_t word = Get(*s);
    std::uint16_t to;
    const bool adopts = event == Event::kAdopt || event == Event::kOpen;
    const bool ends = event == Event::kGiveUp || event == Event::kReturn;
    if (((takes_pinned && adopts) || (seeks_pinned && ends)) && Pinned(*s)) {
      to = LaneState::Next(event, static_cast<std::uint16_t>(word & ~kPinned));
      to = static_cast<std::uint16_t>(to | kPinned);
    } else {
      to = LaneState::Next(event, word);
    }
    Put(s, to);
    return to != word;
  }

  // Nobody is in the midst of anything.
  static bool Quiet(const State& s) {
    if (s[kHolder] != 0 || s[kSession] != 0) return false;
    for (int i = 0; i < kThreads; ++i) {
      if (s[kAt + i] != 0 && s[kAt + i] != kOver) return false;
    }
    return s[kEngine] == 0 || s[kLane] != 0;
  }
  bool Sound(const State& s) const {
    using posix::LaneState;
    const auto is = Is(s);
    if (s[kBad] != 0) return false;
    if (!seeks_pinned && !LaneState::Legal(Get(s))) return false;
    // I-LANE-2
    if (s[kHolder] == 0 && IsEngine(is) != (s[kEngine] != 0)) return false;
    if (!Quiet(s)) return true;
    if (is == LaneState::State::kNever) return true;
    if (s[kLane] != 0) return is == LaneState::State::kOnLane;
    if (s[kClosed] != 0 || Pinned(s)) return is == LaneState::State::kOff;
    // It can still get a lane.
    return is == LaneState::State::kIdle;
  }
  bool Done(const State& s) const { return Sound(s); }

  void Steps(const State& s, Next<State>* next) const {
    if (!Sound(s)) return;
    for (int i = 0; i < kThreads; ++i) {
      if (s[kHolder] != 0 && s[kHolder] != i + 1 && NeedsLatch(s, i)) continue;
      State to = s;
      Thread(i, &to, next);
    }
    if (s[kHolder] == 0) Lane(s, next);
  }

  enum : std::uint8_t { kOver = 99 };
  bool NeedsLatch(const State& s, int i) const {
    const int at = s[kAt + i];
    switch (i) {
      case kSeeker:
        return at == 1;
      case kConductor:
        return true;
      case kCanceller:
        return at >= 2;
      case kPinner:
        return at >= 3 && at <= 5;
      default:
        return at >= 3;
    }
  }

  void Thread(int i, State* to, Next<State>* next) const {
    switch (i) {
      case kSeeker:
        return Seek(*to, next);
      case kConductor:
        return Conduct(*to, next);
      case kCanceller:
        return Cancel(*to, kCanceller, 0, kSeen, kOver, next);
      case kPinner:
        return Pin(*to, next);
      default:
        return Close(*to, next);
    }
  }

  // LaneSearch::Begin.
  void Seek(State to, Next<State>* next) const {
    std::uint8_t& at = to[kAt + kSeeker];
    switch (at) {
      case 0:
        if (to[kSearches] == 2 || !Step(&to, Event::kSeek)) return;
        ++to[kSearches];
        at = 1;
        return next->Add(to);
      case 1: {
        at = 2;
        next->Add(to);
        Step(&to, Event::kHope);
        return next->Add(to);
      }
      default:
        to[kSession] = 1;
        at = 0;
        return next->Add(to);
    }
  }

  // LaneSearch::EndLatched, in two steps: what it sees of the close, what it
  // does.
  void EndSearch(State* to, bool open) const {
    Step(to, open ? Event::kGiveUp : Event::kStop);
  }

  void Conduct(State to, Next<State>* next) const {
    std::uint8_t& at = to[kAt + kConductor];
    const auto go = [&](int where, bool held) {
      to[kAt + kConductor] = static_cast<std::uint8_t>(where);
      to[kHolder] = held ? kConductor + 1 : 0;
      next->Add(to);
    };
    const State before = to;
    switch (at) {
      case 0:  // Adopt, or SeekFailed
        if (to[kSession] == 0) return;
        to[kSeenByConductor] = to[kClosed] == 0 ? 1 : 0;
        go(5, true);
        to = before;
        Step(&to, Event::kAgree);
        return go(1, false);
      case 1:  // TryAdopt
        if (Is(to) != posix::LaneState::State::kAgreed || to[kClosed] != 0) {
          return go(0, false);
        }
        if (Pinned(to) && !takes_pinned) return go(6, false);
        to[kEngine] = 1;
        go(2, true);
        to = before;  // somebody is inside
        return go(0, false);
      case 2:
        if (Step(&to, Event::kAdopt)) return go(3, false);
        to[kEngine] = 0;
        return go(6, false);
      case 3:  // LaneOpen, or SeekFailed
        to[kSeenByConductor] = to[kClosed] == 0 ? 1 : 0;
        go(5, true);
        return go(4, true);
      case 4: {
        const bool pinned = Pinned(to) && (Get(to) & kLeaving) == 0;
        to[kSession] = 0;
        if (to[kSeenByConductor] != 0 && to[kEngine] != 0 &&
            Step(&to, Event::kOpen)) {
          to[kLane] = 1;
          to[kBad] = pinned ? 1 : 0;
        } else if (!keeps_refused) {
          EndSearch(&to, to[kSeenByConductor] != 0);
        }
        return go(0, false);
      }
      case 5: {  // SeekFailed
        to[kSession] = 0;
        const State failed = to;
        EndSearch(&to, to[kSeenByConductor] != 0);
        go(0, false);
        to = failed;  // for good
        if (to[kEngine] == 0)
          Step(&to, Event::kForbid);
        else
          Step(&to, Event::kStop);
        return go(0, false);
      }
      default:  // LaneSearch::Cancel
        to[kSession] = 0;
        to[kSeenByConductor] = to[kClosed] == 0 ? 1 : 0;
        EndSearch(&to, to[kSeenByConductor] != 0);
        return go(0, false);
    }
  }

  // WayBack::Step of another thread, from `base` on.
  void Cancel(State to, int who, int base, int seen, int end,
              Next<State>* next) const {
    const auto go = [&](int where, bool held) {
      to[kAt + who] = static_cast<std::uint8_t>(where);
      to[kHolder] = held ? static_cast<std::uint8_t>(who + 1) : 0;
      next->Add(to);
    };
    const auto stay = [&](int where) {
      to[kAt + who] = static_cast<std::uint8_t>(where);
      next->Add(to);
    };
    switch (to[kAt + who] - base) {
      case 0:
        return stay(Seeking(to) ? base + 1 : base + 4);
      case 1:
        to[kSession] = 0;
        return stay(base + 2);
      case 2:
        to[seen] = to[kClosed] == 0 ? 1 : 0;
        return go(base + 3, true);
      case 3:
        EndSearch(&to, to[seen] != 0);
        return go(base + 4, false);
      case 4: {
        if (to[kEngine] != 0) Step(&to, Event::kLeave);
        return go(end, false);
      }
      default:
        return;
    }
  }

  void Pin(State to, Next<State>* next) const {
    std::uint8_t& at = to[kAt + kPinner];
    switch (at) {
      case 0:
        Step(&to, Event::kPin);
        at = 1;
        return next->Add(to);
      case 6:  // for good, or not
        at = kOver;
        next->Add(to);
        at = 7;
        Step(&to, Event::kUnpin);
        return next->Add(to);
      case 7:
        at = kOver;
        if (to[kClosed] == 0) Step(&to, Event::kConnect);
        return next->Add(to);
      case kOver:
        return;
      default:
        return Cancel(to, kPinner, 1, kSeenToo, 6, next);
    }
  }

  // CloseLast, and Finish.
  void Close(State to, Next<State>* next) const {
    std::uint8_t& at = to[kAt + kCloser];
    switch (at) {
      case 0:
        to[kClosed] = 1;
        at = 1;
        return next->Add(to);
      case 1:
        Step(&to, Event::kHalt);
        at = 2;
        return next->Add(to);
      case 2:
        if (Step(&to, Event::kStop)) to[kSession] = 0;
        at = 3;
        return next->Add(to);
      case 3:
        if (!halts_once) Step(&to, Event::kHalt);
        at = 4;
        return next->Add(to);
      case 4:
        to[kLane] = 0;
        if (to[kEngine] != 0) {
          to[kEngine] = 0;
          Step(&to, Event::kStay);
        }
        at = kOver;
        return next->Add(to);
      default:
        return;
    }
  }

  // The lane ends, and BackToPlain.
  void Lane(State to, Next<State>* next) const {
    if (to[kLane] != 0) {
      to[kLane] = 0;
      return next->Add(to);
    }
    if (to[kEngine] == 0 || Seeking(to) || to[kClosed] != 0) return;
    to[kEngine] = 0;
    Step(&to, Pinned(to) && !seeks_pinned ? Event::kStay : Event::kReturn);
    next->Add(to);
  }
};

TEST(LaneStateModel, GetsItsLaneUnlessPinned) {
  EXPECT_GT(Search<Stream>::Run({}), 1000);
}

TEST(LaneStateModel, EachRuleIsNeeded) {
  for (bool Stream::*rule : {&Stream::takes_pinned, &Stream::seeks_pinned,
                             &Stream::keeps_refused, &Stream::halts_once}) {
    Stream model;
    model.*rule = true;
    EXPECT_TRUE(Hangs(model));
  }
}

}  // namespace
}  // namespace rcsock::posix
