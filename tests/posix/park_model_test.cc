// A model of lanes that a stream leaves while threads sleep on them: the rules
// of Sock::SleepOn, and of Settling.

#include <gtest/gtest.h>

#include <array>
#include <cstdint>

#include "tests/base/model.h"

namespace rcsock {
namespace {

// Two threads sleep on a lane to which nothing comes.  The stream leaves it, is
// the kernel's, takes another lane and leaves that too.  A handler that has
// interrupted the first thread's sleep forks: it waits until the stream is the
// kernel's, and its thread sleeps on behind it, or looks again.
//
// That a thread sleeps on a lane which has been given back is a state in which
// nothing moves, so a hang, as it is one that a lane is never given back.
struct Parked {
  // Rules to leave out.
  bool waits = false;        // Settle: parks, and does not wait for sleepers
  bool no_wake = false;      // Unpark wakes
  bool no_timer = false;     // ... and comes again
  bool count_late = false;   // SleepOn counts under the latch
  bool token_late = false;   // ... behind its token
  bool wakes_once = false;   // ... (with the latter) Unpark wakes each time
  bool one_count = false;    // a lane that is parked has a count of its own
  bool parks_over = false;   // Settle: not while another is parked
  bool asks_nobody = false;  // Unpark: not while it is slept on

  // The stream leaves the second lane only for a fork, or when the first is
  // given back.
  bool stays = false;

  static constexpr int kThreads = 2;
  static constexpr int kCalls = 2;  // of each
  static constexpr int kLanes = 2;
  enum {
    kTry,
    kCount,
    kToken,
    kSleep,
    kAsleep,
    kHandler,
    kAwake,
    kEnd,
  };
  enum { kSettle, kUnpark, kBack, kPromote, kOver };
  enum { kAt, kLane, kSet, kWoken, kCalled, kOfThread };
  enum {
    kConductor = kOfThread * kThreads,
    kTimer,
    kTold,     // Unpark has woken those of the lane that is parked
    kOn,       // the lane that the stream is on; 0: none
    kPark,     // that is parked
    kCurrent,  // the count of those that sleep on kOn
    kPins,
    kGiven = kPins + 2,  // each lane, once it has been given back
    kPlain = kGiven + kLanes + 1,
    kForked,
    kSize,
  };
  using State = std::array<std::uint8_t, kSize>;

  State First() const {
    State s{};
    s[kOn] = 1;
    return s;
  }
  bool Done(const State& s) const {
    for (int i = 0; i < kThreads; ++i) {
      if (s[kOfThread * i + kAt] != kEnd) return false;
    }
    return s[kConductor] == kOver && s[kGiven + 1] != 0 && s[kGiven + 2] != 0;
  }

  static bool Uses(const std::uint8_t* own) {
    return own[kAt] == kSleep || own[kAt] == kAsleep || own[kAt] == kHandler;
  }
  static void Wake(State* s, int lane) {
    for (int i = 0; i < kThreads; ++i) {
      auto* own = &(*s)[kOfThread * i];
      if (own[kLane] == lane) own[kWoken] = 1;
    }
  }
  int ParkedCount(const State& s) const {
    return kPins + (one_count ? s[kCurrent] : 1 - s[kCurrent]);
  }

  void Steps(const State& s, Next<State>* next) const {
    for (int i = 0; i < kThreads; ++i) {
      const auto* own = &s[kOfThread * i];
      if (Uses(own) && s[kGiven + own[kLane]] != 0) return;
    }
    for (int i = 0; i < kThreads; ++i) Sleeper(s, i, next);
    Conductor(s, next);
    if (s[kTimer] != 0) {
      State to = s;
      Look(&to);
      next->Add(to);
    }
  }

  void Sleeper(const State& s, int i, Next<State>* next) const {
    State to = s;
    auto* own = &to[kOfThread * i];
    const auto go = [&](int at) {
      own[kAt] = static_cast<std::uint8_t>(at);
      next->Add(to);
    };
    switch (own[kAt]) {
      case kTry:
        // The kernel has it: its sleeps are not ours.
        if (to[kPlain] != 0) return go(kEnd);
        // (On no lane it sleeps by a word of the stream's, until then.)
        if (to[kOn] == 0) return;
        own[kLane] = to[kOn];
        own[kWoken] = 0;
        if (count_late) return go(kCount);
        own[kSet] = to[kCurrent];
        ++to[kPins + own[kSet]];
        return go(token_late ? kToken : kSleep);
      case kCount:
        own[kSet] = to[kCurrent];
        ++to[kPins + own[kSet]];
        return go(kSleep);
      case kToken:
        own[kWoken] = 0;
        return go(kSleep);
      case kSleep:
        return go(own[kWoken] != 0 ? kAwake : kAsleep);
      case kAsleep:
        if (i == 0 && to[kForked] == 0) {
          State forks = to;
          forks[kForked] = 1;
          forks[kOfThread * i + kAt] = kHandler;
          next->Add(forks);
        }
        if (own[kWoken] != 0) go(kAwake);
        return;
      case kHandler:
        if (to[kPlain] == 0) return;
        return go(kAwake);
      case kAwake:
        --to[kPins + own[kSet]];
        own[kLane] = own[kSet] = own[kWoken] = 0;
        return go(++own[kCalled] == kCalls ? kEnd : kTry);
      default:
        return;
    }
  }

  // Unpark.
  void Look(State* s) const {
    (*s)[kTimer] = 0;
    if ((*s)[kPark] == 0) return;
    if (asks_nobody || (*s)[ParkedCount(*s)] == 0) {
      (*s)[kGiven + (*s)[kPark]] = 1;
      (*s)[kPark] = 0;
      return;
    }
    if (!no_wake && !(wakes_once && (*s)[kTold] != 0)) Wake(s, (*s)[kPark]);
    (*s)[kTold] = 1;
    (*s)[kTimer] = no_timer ? 0 : 1;
  }

  void Conductor(const State& s, Next<State>* next) const {
    State to = s;
    const auto go = [&](int at) {
      to[kConductor] = static_cast<std::uint8_t>(at);
      next->Add(to);
    };
    const bool forks = to[kAt] == kHandler;
    switch (to[kConductor]) {
      case kSettle: {
        if (stays && to[kOn] == 2 && to[kGiven + 1] == 0 && !forks) return;
        const bool slept_on = to[kPins + to[kCurrent]] != 0;
        if (slept_on && (waits || (to[kPark] != 0 && !parks_over))) {
          Wake(&to, to[kOn]);
          if (to[kPark] != 0) Look(&to);
          return go(kSettle);
        }
        if (slept_on) {
          to[kPark] = to[kOn];
          to[kTold] = 0;
          if (!one_count) to[kCurrent] ^= 1;
        } else {
          to[kGiven + to[kOn]] = 1;
        }
        to[kOn] = 0;
        return go(slept_on ? kUnpark : kBack);
      }
      case kUnpark:
        Look(&to);
        return go(kBack);
      case kBack:
        to[kPlain] = 1;
        return go(to[kGiven + 2] != 0 || to[kPark] == 2 ? kOver : kPromote);
      case kPromote:
        if (forks) return;
        to[kPlain] = 0;
        to[kOn] = 2;
        return go(kSettle);
      default:
        return;
    }
  }
};

TEST(ParkedModel, EachLaneIsGivenBackAndNobodySleepsOnOne) {
  const int states = Search<Parked>::Run({});
  EXPECT_GT(states, 500);
}

TEST(ParkedModel, EachRuleIsNeeded) {
  // (A handler that forks waits until the stream is the kernel's, and the
  // stream until the handler is over.)
  EXPECT_TRUE(Hangs(Parked{.waits = true}));
  EXPECT_TRUE(Hangs(Parked{.no_wake = true}));
  EXPECT_TRUE(Hangs(Parked{.no_timer = true}));
  EXPECT_TRUE(Hangs(Parked{.count_late = true}));
  EXPECT_TRUE(Hangs(Parked{.parks_over = true}));
  EXPECT_TRUE(Hangs(Parked{.asks_nobody = true}));
}

TEST(ParkedModel, AStreamThatStaysOnItsNextLaneKeepsNothingOfTheFirst) {
  EXPECT_FALSE(Hangs(Parked{.stays = true}));
  EXPECT_TRUE(Hangs(Parked{.one_count = true, .stays = true}));
}

TEST(ParkedModel, ATokenThatIsTakenLateIsMetByTheNextLook) {
  EXPECT_FALSE(Hangs(Parked{.token_late = true}));
  EXPECT_TRUE(Hangs(Parked{.token_late = true, .wakes_once = true}));
  EXPECT_FALSE(Hangs(Parked{.wakes_once = true}));
}

}  // namespace
}  // namespace rcsock
