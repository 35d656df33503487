// Models of a set of epoll that another one holds: the rules of
// EpollSet::UpdateMirror, of the conductor that hears the bell, and of a thread
// that sleeps in the outer set.

#include <gtest/gtest.h>

#include <array>
#include <cstdint>

#include "tests/base/model.h"

namespace rcsock {
namespace {

// The sender posts M::kAll messages.  After each it looks at the bell's
// generation, and kicks unless it has kicked in that one.  A kick is an edge at
// M::kRang.
template <class M>
void Send(const typename M::State& s, Next<typename M::State>* to) {
  auto n = s;
  switch (s[M::kSender]) {
    case 0:
      if (s[M::kPosted] == M::kAll) return;
      ++n[M::kPosted];
      n[M::kSender] = 1;
      break;
    case 1:
      n[M::kSaw] = s[M::kBell];
      n[M::kSender] = s[M::kBell] != s[M::kKicked] ? 2 : 0;
      break;
    case 2:
      n[M::kRang] = 1;
      n[M::kSender] = 3;
      break;
    default:
      n[M::kKicked] = s[M::kSaw];
      n[M::kSender] = 0;
  }
  to->Add(n);
}

struct Mirrored {
  // Rules to leave out.
  bool no_renewal = false;  // before the look that lowers
  bool renewal_behind_look = false;
  bool conductor_only_renews = false;  // and does not look
  bool lower_without_latch = false;    // the look is not the one that lowers
  bool busy_is_left = false;  // the conductor finds the latch held, and goes

  static constexpr int kAll = 3;  // messages
  // UpdateMirror, by either thread; each holds the latch from kLook on.
  enum {
    kIdle,
    kLock,
    kLook,
    kRenew,
    kLookAgain,
    kRaise,
    kLower,
    kAsk,  // the kernel, by the thread in the outer set
    kAsleep,
    kRead,
    kEnd,
  };
  enum {
    kSender,  // 0: post, 1: look at the bell, 2: kick, 3: note it
    kPosted,
    kSaw,
    kBell,  // its generation
    kKicked,
    kRang,  // the conductor has an edge of the bell
    kConductor,
    kOuter,
    kLatch,
    kRaised,
    kTaken,
    kSize,
  };
  using State = std::array<std::uint8_t, kSize>;

  State First() const {
    State s{};
    s[kOuter] = kLock;
    s[kBell] = 1;
    return s;
  }
  bool Done(const State& s) const { return s[kOuter] == kEnd; }

  static bool Has(const State& s) { return s[kPosted] > s[kTaken]; }

  // `who`: kConductor or kOuter; `after`: what it does behind the update.
  void Update(const State& s, int who, int after, Next<State>* to) const {
    State n = s;
    const bool rang = who == kConductor;
    const auto leave = [&] {
      n[kLatch] = 0;
      n[who] = static_cast<std::uint8_t>(after);
    };
    switch (s[who]) {
      case kLock:
        // (The conductor does not sleep here: a timer has it try again.)
        if (s[kLatch] != 0) {
          if (!rang || !busy_is_left) return;
          n[who] = kIdle;
          break;
        }
        n[kLatch] = 1;
        n[who] = kLook;
        break;
      case kLook:
        if (rang && conductor_only_renews) {
          n[who] = kRenew;
        } else if (Has(s)) {
          s[kRaised] ? leave() : void(n[who] = kRaise);
        } else if (!rang && !s[kRaised]) {
          leave();
        } else {
          n[who] = no_renewal            ? kLower
                   : renewal_behind_look ? kLookAgain
                                         : kRenew;
        }
        break;
      case kRenew:
        n[kBell] = static_cast<std::uint8_t>(s[kBell] + 1);
        if (rang && conductor_only_renews) {
          leave();
        } else {
          n[who] = renewal_behind_look ? kLower : kLookAgain;
        }
        break;
      case kLookAgain:
        n[who] = Has(s)                ? (s[kRaised] ? kLower : kRaise)
                 : renewal_behind_look ? kRenew
                                       : kLower;
        // (It stays raised.)
        if (Has(s) && s[kRaised]) leave();
        if (lower_without_latch && n[who] == kLower) n[kLatch] = 0;
        break;
      case kRaise:
        n[kRaised] = 1;
        leave();
        break;
      default:  // kLower
        n[kRaised] = 0;
        if (lower_without_latch) {
          n[who] = static_cast<std::uint8_t>(after);
        } else {
          leave();
        }
    }
    to->Add(n);
  }

  void Steps(const State& s, Next<State>* to) const {
    Send<Mirrored>(s, to);
    if (s[kConductor] != kIdle) {
      Update(s, kConductor, kIdle, to);
    } else if (s[kRang] != 0) {
      State n = s;
      n[kRang] = 0;
      n[kConductor] = kLock;
      to->Add(n);
    }
    State n = s;
    switch (s[kOuter]) {
      case kAsk:
        n[kOuter] = s[kRaised] ? kRead : kAsleep;
        to->Add(n);
        break;
      case kAsleep:
        if (!s[kRaised]) return;
        n[kOuter] = kRead;
        to->Add(n);
        break;
      case kRead:
        n[kTaken] = s[kPosted];
        n[kOuter] = n[kTaken] == kAll ? kEnd : kLock;
        to->Add(n);
        break;
      case kEnd:
        return;
      default:
        Update(s, kOuter, kAsk, to);
    }
  }
};

// A set that is mirrored already gets into an outer set by edges.  The program
// takes nothing, so all that it hears are edges: one comes behind the last
// message.
struct EdgesLater {
  // Rules to leave out.
  bool no_walk = false;          // HearEdges: over all sets
  bool walk_before = false;      // ... before the conductor knows of edges
  bool walk_only_looks = false;  // UpdateMirror(false): no new generation
  bool no_edge = false;          // what is raised is not raised again

  static constexpr int kAll = 3;  // messages
  enum { kIdle, kLock, kRenew, kLook, kLookNew, kRaise };
  enum {
    kSender,  // as in Mirrored
    kPosted,
    kSaw,
    kBell,
    kKicked,
    kRang,  // the conductor has an edge of the bell
    kConductor,
    kProgram,  // UpdateMirror; kIdle between
    kStage,    // 0: flag, 1: walk, 2: ADD, 3: asleep, 4: over
    kKnown,    // edges_outside
    kLatch,
    kRaised,
    kEdge,  // the outer set has one
    kArmed,
    kSize,
  };
  using State = std::array<std::uint8_t, kSize>;

  State First() const {
    State s{};
    s[kBell] = 1;
    return s;
  }
  bool Done(const State& s) const { return s[kStage] == 4; }

  void Update(const State& s, int who, bool rang, Next<State>* to) const {
    State n = s;
    const bool edge = rang && s[kKnown] != 0;
    const auto leave = [&] {
      n[kLatch] = 0;
      n[who] = kIdle;
    };
    switch (s[who]) {
      case kLock:
        if (s[kLatch] != 0) return;
        n[kLatch] = 1;
        n[who] = edge ? kRenew : kLook;
        break;
      case kLook:
        if (s[kPosted] > 0) {
          s[kRaised] != 0 ? leave() : void(n[who] = kRaise);
        } else {
          rang ? void(n[who] = kRenew) : leave();
        }
        break;
      case kRenew:
        n[kBell] = static_cast<std::uint8_t>(s[kBell] + 1);
        n[who] = kLookNew;
        break;
      case kLookNew:
        s[kPosted] > 0 ? void(n[who] = kRaise) : leave();
        break;
      default:  // kRaise
        if (s[kRaised] == 0 || !no_edge) n[kEdge] = s[kArmed];
        n[kRaised] = 1;
        leave();
    }
    to->Add(n);
  }

  void Steps(const State& s, Next<State>* to) const {
    Send<EdgesLater>(s, to);
    State n = s;
    if (s[kConductor] != kIdle) {
      Update(s, kConductor, true, to);
    } else if (s[kRang] != 0) {
      n[kRang] = 0;
      n[kConductor] = kLock;
      to->Add(n);
    }
    if (s[kProgram] != kIdle) {
      return Update(s, kProgram, s[kStage] == 2 && !walk_only_looks, to);
    }
    n = s;
    switch (s[kStage]) {
      case 0:
        n[kStage] = 1;
        if (!walk_before) n[kKnown] = 1;
        break;
      case 1:
        if (!no_walk) n[kProgram] = kLock;
        n[kStage] = 2;
        break;
      case 2:
        n[kKnown] = n[kArmed] = 1;
        n[kEdge] = s[kRaised];
        n[kStage] = 3;
        break;
      case 3:
        if (s[kEdge] == 0) return;
        n[kEdge] = 0;
        s[kPosted] == kAll ? n[kStage] = 4 : n[kProgram] = kLock;
        break;
      default:
        return;
    }
    to->Add(n);
  }
};

// A stream leaves its lane with bytes that it has read from TCP: the mode says
// that first, then its registration is the kernel's.  Its set has another lane,
// on which nothing comes.
struct Leaves {
  bool no_kick = false;      // a rule to leave out
  bool kick_before = false;  // ... the registration is the kernel's

  enum { kOnLane, kBetween, kTooEarly, kInKernel, kOver };
  enum { kLeaver, kPosted, kRang, kConductor, kOuter, kRaised, kSize };
  using State = std::array<std::uint8_t, kSize>;

  State First() const { return {}; }
  bool Done(const State& s) const { return s[kOuter] == 2; }

  // What UpdateMirror finds: by the lane, or by the kernel's registration.
  static bool Has(const State& s) {
    return s[kPosted] != 0 &&
           (s[kLeaver] == kOnLane || s[kLeaver] >= kInKernel);
  }

  void Steps(const State& s, Next<State>* to) const {
    State n = s;
    if (s[kPosted] == 0 && s[kLeaver] == kOnLane) {
      n[kPosted] = n[kRang] = 1;
      to->Add(n);
    }
    n = s;
    switch (s[kLeaver]) {
      case kOnLane:
        if (s[kPosted] == 0) break;
        n[kLeaver] = kBetween;
        to->Add(n);
        break;
      case kBetween:
        n[kLeaver] = kick_before ? kTooEarly : kInKernel;
        if (kick_before) n[kRang] = 1;
        to->Add(n);
        break;
      case kTooEarly:
        n[kLeaver] = kInKernel;
        to->Add(n);
        break;
      case kInKernel:
        n[kLeaver] = kOver;
        if (!no_kick && !kick_before) n[kRang] = 1;
        to->Add(n);
        break;
      default:
        break;
    }
    // Each update is one step: the latch is held.
    n = s;
    if (s[kConductor] != 0) {
      n[kRaised] = Has(s);
      n[kConductor] = 0;
      to->Add(n);
    } else if (s[kRang] != 0) {
      n[kRang] = 0;
      n[kConductor] = 1;
      to->Add(n);
    }
    n = s;
    if (s[kOuter] == 0) {
      n[kRaised] = Has(s);
      n[kOuter] = 1;
      to->Add(n);
    } else if (s[kOuter] == 1 && s[kRaised] != 0) {
      // It reads, or finds nothing yet and asks again.
      n[kOuter] = Has(s) ? 2 : 0;
      to->Add(n);
    }
  }
};

TEST(MirrorModel, NoWakeUpIsLost) { EXPECT_GT(Search<Mirrored>::Run({}), 0); }

TEST(MirrorModel, EachRuleIsNeeded) {
  EXPECT_EQ(Search<Mirrored>::Run({.no_renewal = true}), 0);
  EXPECT_EQ(Search<Mirrored>::Run({.renewal_behind_look = true}), 0);
  EXPECT_EQ(Search<Mirrored>::Run({.conductor_only_renews = true}), 0);
  EXPECT_EQ(Search<Mirrored>::Run({.lower_without_latch = true}), 0);
  EXPECT_EQ(Search<Mirrored>::Run({.busy_is_left = true}), 0);
}

TEST(MirrorModel, EdgesThatComeLater) {
  EXPECT_GT(Search<EdgesLater>::Run({}), 0);
  EXPECT_EQ(Search<EdgesLater>::Run({.no_walk = true}), 0);
  EXPECT_EQ(Search<EdgesLater>::Run({.walk_before = true}), 0);
  EXPECT_EQ(Search<EdgesLater>::Run({.walk_only_looks = true}), 0);
  EXPECT_EQ(Search<EdgesLater>::Run({.no_edge = true}), 0);
}

TEST(MirrorModel, UnreadBytesOfOneThatLeaves) {
  EXPECT_GT(Search<Leaves>::Run({}), 0);
  EXPECT_EQ(Search<Leaves>::Run({.no_kick = true}), 0);
  EXPECT_EQ(Search<Leaves>::Run({.kick_before = true}), 0);
}

}  // namespace
}  // namespace rcsock
