// A model of threads that sleep in poll(): the rules of Polling::Sleep.

#include <gtest/gtest.h>

#include <array>
#include <cstdint>

#include "tests/base/model.h"

namespace rcsock {
namespace {

// --- Threads that sleep in poll() for one stream

// The rules of Polling::Sleep, LaneNotice::EnterPoll and LaneNotice::Set: each
// thread has a bell of its own, which the stream gets from the first of them;
// somebody may give it another one meanwhile (a registration in an epoll set).
// What tells of that is the poll bell, which is in the set of each and which
// nobody has to arm.  Who finds a message takes it, so both threads must find
// one. Naps, generations and the sender's store buffer are as in Hands.
struct Polls {
  bool own_bell_only = false;        // not the one that the stream rings
  bool no_look_at_the_bell = false;  // bells_still
  bool counted_late = false;         // the count, behind that
  bool look_before_arm = false;
  bool nobody_kicked = false;   // Set: KickPollers
  bool kicks_before = false;    // ... before the stream has the other bell
  bool no_heavy_fence = false;  // Arm
  bool nap_without_end = false;
  // A situation: thread 0's last sleep was longer than a nap.
  bool slept_long = false;

  enum {
    kLook,
    kBell,
    kCount,
    kRing,
    kArm,
    kStill,
    kLookAgain,
    kAsleep,
    kDisarm,
    kDiscount,
    kEnd,
  };
  enum { kPost, kAsk, kAskArmed, kKick };
  enum { kChange, kKickPollers, kOver };
  // 0: the stream rings none.
  enum { kPollBell = 1, kOwn, kOther = kOwn + 2, kBells };
  enum {
    kAt,
    kHeld = kAt + 2,  // the bell that is armed
    kSet = kHeld + 2,
    kEdge = kSet + 2,
    kNaps = kEdge + 2,
    kNapped = kNaps + 2,
    kRings = kNapped + 2,
    kSleepers,
    kArmed,
    kFresh = kArmed + kBells,
    kOld = kFresh + kBells,  // the generation that the sender has seen
    kSender,
    kSees,  // the bell
    kMover,
    kPosted,
    kLanded,
    kTaken,
    kSize,
  };
  using State = std::array<std::uint8_t, kSize>;

  State First() const {
    State s{};
    if (kicks_before) s[kMover] = kKickPollers;
    s[kNapped] = slept_long ? 1 : 0;
    return s;
  }
  bool Done(const State& s) const {
    return s[kAt] == kEnd && s[kAt + 1] == kEnd;
  }

  static void Renew(State* s, int bell) {
    (*s)[kFresh + bell] = (*s)[kArmed + bell] != 0;
    if ((*s)[kSender] == kKick && (*s)[kSees] == bell) (*s)[kOld] = 1;
  }
  static void Kick(State* s, int bell) {
    for (int i = 0; i < 2; ++i) {
      if (((*s)[kSet + i] & 1 << bell) != 0) (*s)[kEdge + i] = 1;
    }
  }

  void Step(int i, State s, Next<State>* to) const {
    std::uint8_t& at = s[kAt + i];
    const bool more = s[kTaken] < s[kLanded];
    const int held = s[kHeld + i];
    switch (at) {
      case kLook:
        at = kBell;
        if (more) {
          ++s[kTaken];
          at = kEnd;
        }
        break;
      case kBell: {
        const int bell = own_bell_only ? kOwn + i : s[kRings];
        s[kHeld + i] = static_cast<std::uint8_t>(bell);
        s[kSet + i] =
            static_cast<std::uint8_t>(s[kSet + i] | 1 << bell | 1 << kPollBell);
        s[kNaps + i] = s[kNapped + i] == 0;
        at = counted_late ? kRing : kCount;
        break;
      }
      case kCount:
        ++s[kSleepers];
        at = counted_late ? kLookAgain : kRing;
        break;
      case kRing:
        if (s[kRings] == 0) {
          s[kRings] = static_cast<std::uint8_t>(kOwn + i);
          s[kLanded] = s[kPosted];  // TellLane
        }
        at = look_before_arm ? kStill : kArm;
        break;
      case kArm:
        ++s[kArmed + held];
        Renew(&s, held);
        if (s[kNaps + i] == 0 && !no_heavy_fence) s[kLanded] = s[kPosted];
        at = look_before_arm ? kAsleep : kStill;
        break;
      case kStill:
        at = counted_late ? kCount : kLookAgain;
        if (s[kRings] != held && !no_look_at_the_bell && !own_bell_only) {
          at = counted_late ? kLook : look_before_arm ? kDiscount : kDisarm;
          if (counted_late) --s[kArmed + held];
        }
        break;
      case kLookAgain:
        at = more              ? look_before_arm ? kDiscount : kDisarm
             : look_before_arm ? kArm
                               : kAsleep;
        break;
      case kAsleep:
        if (s[kEdge + i] == 0) break;
        s[kEdge + i] = 0;
        s[kNapped + i] = 0;
        at = kDisarm;
        break;
      case kDisarm:
        --s[kArmed + held];
        Renew(&s, held);
        at = kDiscount;
        break;
      case kDiscount:
        --s[kSleepers];
        s[kHeld + i] = s[kNaps + i] = 0;
        at = kLook;
        break;
      default:
        break;
    }
    to->Add(s);
  }

  void Steps(const State& from, Next<State>* to) const {
    for (int i = 0; i < 2; ++i) {
      Step(i, from, to);
      if (from[kAt + i] == kAsleep && from[kNaps + i] != 0 &&
          !nap_without_end) {
        State s = from;
        s[kNapped + i] = 1;
        s[kAt + i] = kDisarm;
        to->Add(s);
      }
    }
    State s = from;
    if (s[kLanded] != s[kPosted]) {
      ++s[kLanded];
      to->Add(s);
      s = from;
    }
    switch (s[kMover]) {
      case kChange:
        s[kRings] = kOther;
        s[kLanded] = s[kPosted];  // TellLane
        s[kMover] = nobody_kicked || kicks_before ? kOver : kKickPollers;
        break;
      case kKickPollers:
        if (s[kSleepers] != 0) Kick(&s, kPollBell);
        s[kMover] = kicks_before ? kChange : kOver;
        break;
      default:
        break;
    }
    to->Add(s);
    s = from;
    const int bell = s[kSees];
    switch (s[kSender]) {
      case kPost:
        if (s[kPosted] == 2) break;
        ++s[kPosted];
        s[kSender] = kAsk;
        break;
      case kAsk:
        s[kSees] = s[kRings];
        s[kSender] = s[kRings] != 0 ? kAskArmed : kPost;
        break;
      case kAskArmed:
        s[kSender] =
            s[kArmed + bell] == 0 || s[kFresh + bell] == 0 ? kPost : kKick;
        if (s[kSender] == kPost) s[kSees] = 0;
        break;
      case kKick:
        s[kLanded] = s[kPosted];
        Kick(&s, bell);
        if (s[kOld] == 0) s[kFresh + bell] = 0;
        s[kSender] = kPost;
        s[kOld] = s[kSees] = 0;
        break;
      default:
        break;
    }
    to->Add(s);
  }
};

TEST(PollsModel, NobodyWaitsForEver) {
  EXPECT_FALSE(Hangs(Polls{}));
  EXPECT_FALSE(Hangs(Polls{.slept_long = true}));
}
TEST(PollsModel, SleepsByTheBellThatTheStreamRings) {
  EXPECT_TRUE(Hangs(Polls{.own_bell_only = true}));
}
TEST(PollsModel, LooksWhetherItIsStillThatBell) {
  EXPECT_TRUE(Hangs(Polls{.no_look_at_the_bell = true}));
}
TEST(PollsModel, CountedThenLooksAtTheBell) {
  EXPECT_TRUE(Hangs(Polls{.counted_late = true}));
}
TEST(PollsModel, AnotherBellThenTheSleepersAreAsked) {
  EXPECT_TRUE(Hangs(Polls{.nobody_kicked = true}));
  EXPECT_TRUE(Hangs(Polls{.kicks_before = true}));
}
TEST(PollsModel, ArmThenLookThenSleep) {
  EXPECT_TRUE(Hangs(Polls{.look_before_arm = true}));
}
TEST(PollsModel, WhoSleepsForGoodHasFenced) {
  EXPECT_TRUE(Hangs(Polls{.no_heavy_fence = true}));
  EXPECT_TRUE(Hangs(Polls{.no_heavy_fence = true, .slept_long = true}));
}
TEST(PollsModel, ANapEnds) {
  EXPECT_TRUE(Hangs(Polls{.nap_without_end = true}));
}

}  // namespace
}  // namespace rcsock
