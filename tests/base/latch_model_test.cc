// A model of base::Latch: who holds it, who sleeps, who is woken.

#include <gtest/gtest.h>

#include <array>
#include <cstdint>

#include "tests/base/model.h"

namespace rcsock {
namespace {

// Threads that lock and unlock some times each.  Here the order of memory is
// what matters, so it is modelled, as x86 has it: the store that frees the word
// stays in its thread's store buffer, where no other thread sees it, until it
// drains by itself, or an atomic operation or a system call of that thread, or
// somebody's heavy fence, drains it.  (The count of waiters is changed by
// atomic operations alone.)
//
// That two hold it at a time is a state in which nothing moves, so a hang.
struct Latch {
  // Rules to leave out.
  bool no_fence = false;      // LockSlow: counted, then the heavy fence
  bool late_count = false;    // ... fence and look, then counted
  bool no_compare = false;    // the kernel's futex: the word, once more
  bool early_look = false;    // unlock: the count, then the word
  bool wakes_nobody = false;  // unlock: who waits
  bool no_bound = false;      // refused: a waiter sleeps without end
  // Situations.
  bool exchanges = false;  // no barrier to be had: unlock is a full fence
  bool refused = false;    // ... no longer: holders count on it all the same

  static constexpr int kThreads = 3;
  static constexpr int kTimes = 2;
  enum {
    kTry,
    kCount,
    kFence,
    kLook,
    kWait,
    kAsleep,
    kLeave,
    kHeld,
    kAskWaiters,
    kWake,
    kEnd,
  };
  enum { kAt, kBuffered, kSawWaiters, kTurns, kOfThread };
  enum { kWord = kOfThread * kThreads, kWaiters, kSize };
  using State = std::array<std::uint8_t, kSize>;

  State First() const { return {}; }
  bool Done(const State& s) const {
    for (int i = 0; i < kThreads; ++i) {
      if (s[kOfThread * i + kAt] != kEnd) return false;
    }
    return true;
  }

  static void DrainOf(State* s, int i) {
    if ((*s)[kOfThread * i + kBuffered] != 0) (*s)[kWord] = 0;
    (*s)[kOfThread * i + kBuffered] = 0;
  }

  void Steps(const State& s, Next<State>* next) const {
    int holders = 0;
    for (int i = 0; i < kThreads; ++i) {
      const int at = s[kOfThread * i + kAt];
      holders += at == kHeld || at == kLeave ? 1 : 0;
    }
    if (holders > 1) return;
    for (int i = 0; i < kThreads; ++i) {
      State drained = s;
      DrainOf(&drained, i);
      next->Add(drained);
      Step(s, i, next);
    }
  }

  // Behind unlock.
  static void GoOn(State* s, int i) {
    auto* own = &(*s)[kOfThread * i];
    own[kSawWaiters] = 0;
    own[kAt] = ++own[kTurns] == kTimes ? kEnd : kTry;
  }

  void Free(State* s, int i) const {
    if (exchanges) {
      DrainOf(s, i);
      (*s)[kWord] = 0;
    } else {
      (*s)[kOfThread * i + kBuffered] = 1;
    }
  }

  void Step(const State& s, int i, Next<State>* next) const {
    State to = s;
    auto* own = &to[kOfThread * i];
    const auto go = [&](int at) {
      own[kAt] = static_cast<std::uint8_t>(at);
      next->Add(to);
    };
    switch (own[kAt]) {
      case kTry:
        DrainOf(&to, i);
        if (to[kWord] != 0) return go(late_count ? kFence : kCount);
        to[kWord] = 1;
        return go(kHeld);
      case kCount:
        DrainOf(&to, i);
        ++to[kWaiters];
        if (late_count) return go(kWait);
        return go(kFence);
      case kFence:
        if (!no_fence && !exchanges && !refused) {
          for (int k = 0; k < kThreads; ++k) DrainOf(&to, k);
        }
        return go(kLook);
      case kLook:
        DrainOf(&to, i);
        if (to[kWord] != 0) return go(late_count ? kCount : kWait);
        to[kWord] = 1;
        if (late_count) ++to[kWaiters];
        return go(kLeave);
      case kWait:
        // (The kernel compares with its bucket locked: one step.)
        DrainOf(&to, i);
        return go(to[kWord] != 0 || no_compare ? kAsleep : kLook);
      case kAsleep:
        if (refused && !no_bound) return go(kLook);
        return;
      case kLeave:
        DrainOf(&to, i);
        --to[kWaiters];
        return go(kHeld);
      case kHeld:
        if (early_look) {
          own[kSawWaiters] = to[kWaiters] != 0 ? 1 : 0;
        } else {
          Free(&to, i);
        }
        return go(kAskWaiters);
      case kAskWaiters:
        if (early_look) {
          Free(&to, i);
        } else {
          own[kSawWaiters] = to[kWaiters] != 0 ? 1 : 0;
        }
        if (own[kSawWaiters] != 0 && !wakes_nobody) return go(kWake);
        GoOn(&to, i);
        next->Add(to);
        return;
      case kWake: {
        DrainOf(&to, i);
        GoOn(&to, i);
        bool any = false;
        for (int k = 0; k < kThreads; ++k) {
          if (s[kOfThread * k + kAt] != kAsleep) continue;
          any = true;
          State woken = to;
          woken[kOfThread * k + kAt] = kLook;
          next->Add(woken);
        }
        if (!any) next->Add(to);
        return;
      }
      default:
        return;
    }
  }
};

TEST(LatchModel, EverybodyHasIt) {
  EXPECT_GT(Search<Latch>::Run({}), 1000);
  Latch model;
  model.exchanges = true;
  EXPECT_GT(Search<Latch>::Run(model), 1000);
}

// A filter of system calls has come between.
TEST(LatchModel, WithoutItsBarrierWaitersLookBySelf) {
  Latch model;
  model.refused = true;
  EXPECT_FALSE(Hangs(model));
  model.no_bound = true;
  EXPECT_TRUE(Hangs(model));
}

TEST(LatchModel, EachRuleIsNeeded) {
  for (bool Latch::*rule :
       {&Latch::no_fence, &Latch::late_count, &Latch::no_compare,
        &Latch::early_look, &Latch::wakes_nobody}) {
    Latch model;
    model.*rule = true;
    EXPECT_TRUE(Hangs(model));
  }
}

}  // namespace
}  // namespace rcsock
