// Models of the marks by which calls in the kernel are known
// (thread/call_marks.h): a stream is adopted, and its object used again, when
// nobody is inside.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>

#include "tests/base/model.h"

namespace rcsock {
namespace {

// --- Adoption

// The rules of Sock::InKernel, LastOut and TryAdopt.  Threads make calls: each
// marks the stream, looks at its mode, is in the kernel, takes the mark back
// and asks whether an adoption waits for that.  The conductor wants the stream
// adopted, and tries once; if somebody is inside then, the last to come out
// does it.  The mark's stores are plain ones: they stay in the thread's store
// buffer, in order, until it drains by itself or by a fence.
//
// That the stream is the engine's while a call is in the kernel is a state in
// which nothing moves, so a hang, as it is one that nobody adopts it.
struct Marks {
  // Rules to leave out.
  bool no_fence = false;      // TryAdopt: the mode, then the heavy fence
  bool late_mode = false;     // ... the fence and the look, then the mode
  bool early_look = false;    // InKernel: the mode, then the mark
  bool asks_nothing = false;  // ~InKernel: wanted_
  bool asks_early = false;    // ... before the mark is gone
  bool late_wish = false;     // Adopt: TryAdopt, then wanted_
  bool no_own_fence = false;  // LastOut: the own mark is seen gone

  static constexpr int kCallers = 2;
  static constexpr int kThreads = kCallers + 1;  // the conductor last
  static constexpr int kCalls = 2;
  static constexpr int kBuffer = 3;
  enum {
    kMark,
    kLook,
    kInside,
    kUnmark,
    kAsk,
    kOwnFence,
    kLastLook,
    kByEngine,
    kEnd,
    // Adopt, TryAdopt
    kWish,
    kLatch,
    kSetMode,
    kFence,
    kLookAtMarks,
    kUnlatch,
    kWishLate,
  };
  enum {
    kAt,
    kCalled,
    kMode,
    kSeen,
    kBuffered,
    kFirst,
    kOfThread = kFirst + 3
  };
  enum {
    kMarked = kOfThread * kThreads,  // as others see it, of each caller
    kEngine = kMarked + kCallers,
    kWanted,
    kAdopted,
    kHolder,  // of the latches, from 1
    kSize
  };
  using State = std::array<std::uint8_t, kSize>;

  State First() const {
    State s{};
    s[kOfThread * kCallers + kAt] = late_wish ? kLatch : kWish;
    return s;
  }
  bool Done(const State& s) const {
    for (int i = 0; i < kThreads; ++i) {
      if (s[kOfThread * i + kAt] != kEnd) return false;
    }
    return s[kAdopted] != 0;
  }

  static void Store(State* s, int i, bool marked) {
    auto* own = &(*s)[kOfThread * i];
    own[kFirst + own[kBuffered]++] = marked ? 1 : 0;
  }
  static void DrainOne(State* s, int i) {
    auto* own = &(*s)[kOfThread * i];
    if (own[kBuffered] == 0) return;
    (*s)[kMarked + i] = own[kFirst];
    std::copy(own + kFirst + 1, own + kFirst + kBuffer, own + kFirst);
    own[kFirst + kBuffer - 1] = 0;
    --own[kBuffered];
  }
  static void Drain(State* s, int i) {
    for (int k = 0; k < kBuffer; ++k) DrainOne(s, i);
  }
  static bool AnyMark(const State& s) {
    return s[kMarked] != 0 || s[kMarked + 1] != 0;
  }

  void Steps(const State& s, Next<State>* next) const {
    for (int i = 0; i < kCallers; ++i) {
      if (s[kOfThread * i + kAt] == kInside && s[kAdopted] != 0) return;
    }
    for (int i = 0; i < kThreads; ++i) {
      State drained = s;
      DrainOne(&drained, i);
      next->Add(drained);
      Step(s, i, next);
    }
  }

  static int AfterCall(std::uint8_t* own) {
    own[kMode] = 0;
    return own[kCalled] == kCalls ? kEnd : kMark;
  }

  void Step(const State& s, int i, Next<State>* next) const {
    State to = s;
    auto* own = &to[kOfThread * i];
    const auto go = [&](int at) {
      own[kAt] = static_cast<std::uint8_t>(at);
      next->Add(to);
    };
    const bool conductor = i == kCallers;
    switch (own[kAt]) {
      case kMark:
        if (own[kBuffered] == kBuffer) return;  // it drains first
        if (early_look && own[kMode] == 0) {
          own[kMode] = to[kEngine] != 0 ? 2 : 1;
          return go(kMark);
        }
        Store(&to, i, true);
        return go(kLook);
      case kLook: {
        const bool engine = early_look ? own[kMode] == 2 : to[kEngine] != 0;
        own[kMode] = engine ? 2 : 1;
        if (engine) return go(kUnmark);
        ++own[kCalled];
        return go(kInside);
      }
      case kInside:
        if (!asks_early) return go(kUnmark);
        own[kSeen] = to[kWanted];
        return go(kUnmark);
      case kUnmark:
        if (own[kBuffered] == kBuffer) return;
        Store(&to, i, false);
        return go(kAsk);
      case kAsk: {
        const bool asked =
            asks_early && own[kMode] == 1 ? own[kSeen] != 0 : to[kWanted] != 0;
        own[kSeen] = 0;
        if (asked && !asks_nothing) return go(kOwnFence);
        return go(own[kMode] == 2 ? kByEngine : AfterCall(own));
      }
      case kOwnFence:
        if (!no_own_fence) Drain(&to, i);
        return go(kLastLook);
      case kLastLook: {
        // (It sees its own as it is.)
        bool inside = false;
        for (int k = 0; k < kCallers; ++k) {
          inside = inside || (k != i && to[kMarked + k] != 0);
        }
        if (!inside) return go(kLatch);
        return go(own[kMode] == 2 ? kByEngine : AfterCall(own));
      }
      case kByEngine:
        // EngineSend takes the latch.
        if (to[kHolder] != 0) return;
        Drain(&to, i);
        own[kMode] = 0;
        if (to[kEngine] == 0) return go(kMark);
        ++own[kCalled];
        return go(AfterCall(own));
      case kWish:
        to[kWanted] = 1;
        return go(kLatch);
      case kLatch:
        if (to[kHolder] != 0) return;
        Drain(&to, i);
        to[kHolder] = static_cast<std::uint8_t>(i + 1);
        if ((to[kWanted] == 0 && !late_wish) || to[kEngine] != 0) {
          return go(kUnlatch);
        }
        return go(late_mode ? kFence : kSetMode);
      case kSetMode:
        to[kEngine] = 1;
        if (!late_mode) return go(kFence);
        to[kWanted] = 0;
        to[kAdopted] = 1;
        return go(kUnlatch);
      case kFence:
        if (!no_fence) {
          for (int k = 0; k < kThreads; ++k) Drain(&to, k);
        }
        return go(kLookAtMarks);
      case kLookAtMarks:
        if (AnyMark(to)) {
          to[kEngine] = 0;
          return go(kUnlatch);
        }
        if (late_mode) return go(kSetMode);
        to[kWanted] = 0;
        to[kAdopted] = 1;
        return go(kUnlatch);
      case kUnlatch:
        to[kHolder] = 0;
        if (conductor) return go(late_wish ? kWishLate : kEnd);
        return go(own[kMode] == 2 ? kByEngine : AfterCall(own));
      case kWishLate:
        to[kWanted] = to[kAdopted] != 0 ? 0 : 1;
        return go(kEnd);
      default:
        return;
    }
  }
};

TEST(MarksModel, AdoptedWhenNobodyIsInside) {
  EXPECT_GT(Search<Marks>::Run({}), 1000);
}

TEST(MarksModel, EachRuleIsNeeded) {
  for (bool Marks::*rule :
       {&Marks::no_fence, &Marks::late_mode, &Marks::early_look,
        &Marks::asks_nothing, &Marks::asks_early, &Marks::late_wish,
        &Marks::no_own_fence}) {
    Marks model;
    model.*rule = true;
    EXPECT_TRUE(Hangs(model));
  }
}

// --- The object of a stream, which is used again

// The rules of SockAt and SockPool: a call finds the object of its number in
// the table, marks it, and asks the table once more; a close takes the object
// from the table, and lets another connection have it when, behind the fence,
// nobody has it marked.  That a call goes on with an object that has become
// another's is a hang here, and so is an object that nobody gets.
struct Reuse {
  // Rules to leave out.
  bool no_fence = false;        // SockPool: the table, then the heavy fence
  bool no_second_look = false;  // SockAt: the mark, then the table
  bool early_look = false;      // SockPool: the marks, then the table

  static constexpr int kCalls = 2;
  enum { kFind, kMark, kLookAgain, kUse, kUnmark, kEnd };
  enum { kTake, kFence, kLook, kGive, kOver };
  enum {
    kAt,
    kCalled,
    kFound,    // the number was the object's
    kPending,  // of the store buffer: 1 + what is stored; the older one first
    kPendingToo,
    kMarked,
    kCloser,
    kInTable,
    kAnothers,
    kSize
  };
  using State = std::array<std::uint8_t, kSize>;

  State First() const {
    State s{};
    s[kInTable] = 1;
    s[kCloser] = early_look ? kFence : kTake;
    return s;
  }
  bool Done(const State& s) const {
    return s[kAt] == kEnd && s[kCloser] == kOver;
  }

  static void DrainOne(State* s) {
    if ((*s)[kPending] == 0) return;
    (*s)[kMarked] = (*s)[kPending] - 1;
    (*s)[kPending] = (*s)[kPendingToo];
    (*s)[kPendingToo] = 0;
  }
  static bool Store(State* s, int marked) {
    auto& at = (*s)[kPending] == 0 ? (*s)[kPending] : (*s)[kPendingToo];
    if (at != 0) return false;
    at = static_cast<std::uint8_t>(1 + marked);
    return true;
  }

  void Steps(const State& s, Next<State>* next) const {
    // It counts its bytes to the other connection.
    if (s[kAt] == kUse && s[kAnothers] != 0) return;
    State drained = s;
    DrainOne(&drained);
    next->Add(drained);
    Call(s, next);
    Close(s, next);
  }

  static int Next1(State* s) {
    (*s)[kFound] = 0;
    return ++(*s)[kCalled] == kCalls ? kEnd : kFind;
  }

  void Call(State to, Next<State>* next) const {
    const auto go = [&](int at) {
      to[kAt] = static_cast<std::uint8_t>(at);
      next->Add(to);
    };
    switch (to[kAt]) {
      case kFind:
        if (to[kInTable] == 0) return go(Next1(&to));  // not ours
        to[kFound] = 1;
        return go(kMark);
      case kMark:
        if (!Store(&to, 1)) return;
        return go(no_second_look ? kUse : kLookAgain);
      case kLookAgain:
        return go(to[kInTable] != 0 ? kUse : kUnmark);
      case kUse:
        return go(kUnmark);
      case kUnmark:
        if (!Store(&to, 0)) return;
        return go(Next1(&to));
      default:
        return;
    }
  }

  void Close(State to, Next<State>* next) const {
    const auto go = [&](int at) {
      to[kCloser] = static_cast<std::uint8_t>(at);
      next->Add(to);
    };
    switch (to[kCloser]) {
      case kTake:
        to[kInTable] = 0;
        return go(early_look ? kGive : kFence);
      case kFence:
        if (!no_fence) {
          DrainOne(&to);
          DrainOne(&to);
        }
        return go(kLook);
      case kLook:
        // (The next batch looks again.)
        if (to[kMarked] != 0) return go(kFence);
        return go(early_look ? kTake : kGive);
      case kGive:
        to[kAnothers] = 1;
        return go(kOver);
      default:
        return;
    }
  }
};

TEST(ReuseModel, AnothersWhenNobodyHasItMarked) {
  EXPECT_GT(Search<Reuse>::Run({}), 50);
}

TEST(ReuseModel, EachRuleIsNeeded) {
  for (bool Reuse::*rule :
       {&Reuse::no_fence, &Reuse::no_second_look, &Reuse::early_look}) {
    Reuse model;
    model.*rule = true;
    EXPECT_TRUE(Hangs(model));
  }
}

}  // namespace
}  // namespace rcsock
