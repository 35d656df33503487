// A model of threads that sleep in one epoll set: who takes an edge of its
// bell, and who hands on.

#include <gtest/gtest.h>

#include <array>
#include <cstdint>

#include "tests/posix/model.h"

namespace rcsock {
namespace {

// The rules of EpollSet::Wait, HandOn and NothingBehind, and of Bells and
// LinkState::Ring.  The kernel gives an edge of the bell to one of those who
// sleep in the set, whichever it likes; a sender kicks once a generation.  Who
// takes a message is busy for ever, so each must find another thread.
//
// With naps a message may stay in its sender's store buffer until the sender
// enters the kernel, or a heavy fence empties it, which who arms for a nap does
// not make; and all have streams in user space from the beginning.
struct Hands {
  bool no_renewal = false;      // NothingBehind: their generation
  bool no_look_behind = false;  // NothingBehind, after that
  bool no_hand_on = false;      // Wait: on leaving
  bool counted_late = false;    // Stranger: counted, then HasUser
  bool look_before_arm = false;
  bool no_heavy_fence = false;     // Arm, Renew
  bool nap_without_end = false;    // Wait: KernelWait's time
  bool naps_with_an_edge = false;  // Sleep: nobody has looked behind it
  bool no_new_generation = false;  // Deepen: ... and its fence
  // Situations.
  bool naps = false;
  bool leaves = false;  // thread 0 may, with something of the kernel's

  static constexpr int kThreads = 3;
  enum {
    kCount,
    kMaySleep,
    kOutside,
    kLook,
    kSleeper,
    kArm,
    kLookAgain,
    kAsleep,
    kDisarm,
    kNoSleeper,
    kLeavesWork,
    kBehind,
    kLookBehind,
    kLeave,
    kEnd,
  };
  enum { kPost, kAsk, kKick, kUser = 0, kUserKick, kOver };
  enum {
    kAt,
    kOwes = kAt + kThreads,
    kRang = kOwes + kThreads,
    kUnlooked = kRang + kThreads,
    kSender = kUnlooked + kThreads,
    kMover,
    kUsers,
    kStrangers,
    kSleepers,
    kArmed,
    kFresh,  // nobody has kicked for this generation
    kOld,    // the one that the sender has seen is over
    kEdge,
    kPosted,
    kLanded,  // of these, what others see
    kTaken,
    kNaps,
    kGoes = kNaps + kThreads,
    kSize = kGoes + kThreads,
  };
  using State = std::array<std::uint8_t, kSize>;

  State First() const {
    State s{};
    if (naps) {
      s[kUsers] = 1;
      s[kMover] = kOver;
      for (int i = 0; i < kThreads; ++i) s[kAt + i] = kLook;
    }
    return s;
  }
  bool Done(const State& s) const {
    for (int i = 0; i < kThreads; ++i) {
      if (s[kAt + i] != kEnd) return false;
    }
    return true;
  }

  static void Renew(State* s) { (*s)[kFresh] = (*s)[kOld] = 1; }
  void Fence(State* s) const {
    if (!no_heavy_fence) (*s)[kLanded] = (*s)[kPosted];
  }

  void Step(int i, State s, Next<State>* to) const {
    std::uint8_t& at = s[kAt + i];
    const bool more = s[kTaken] < s[kLanded];
    switch (at) {
      case kCount:
        if (counted_late && s[kUsers] != 0) {
          at = kLook;
          break;
        }
        at = kMaySleep;
        if (!counted_late) ++s[kStrangers];
        break;
      case kMaySleep:
        at = kOutside;
        if (counted_late) {
          ++s[kStrangers];
        } else if (s[kUsers] != 0) {
          --s[kStrangers];
          at = kLook;
        }
        break;
      case kOutside:
        if (s[kEdge] == 0) break;
        s[kEdge] = 0;
        --s[kStrangers];
        at = kLook;
        s[kOwes + i] = s[kUnlooked + i] = 1;
        break;
      case kLook:
        at = kSleeper;
        if (more) {
          ++s[kTaken];
          at = kLeavesWork;
        }
        break;
      case kSleeper:
        s[kNaps + i] = naps && (s[kUnlooked + i] == 0 || s[kSleepers] == 0 ||
                                naps_with_an_edge);
        ++s[kSleepers];
        s[kOwes + i] = !naps;  // (to strangers, of whom there are none then)
        at = look_before_arm ? kLookAgain : kArm;
        break;
      case kArm:
        ++s[kArmed];
        Renew(&s);
        if (s[kNaps + i] == 0) Fence(&s);
        at = look_before_arm ? kAsleep : kLookAgain;
        break;
      case kLookAgain:
        s[kRang + i] = s[kUnlooked + i] = 0;
        at = look_before_arm && !more ? kArm : more ? kDisarm : kAsleep;
        if (look_before_arm && more) at = kNoSleeper;
        break;
      case kAsleep:
        if (s[kEdge] == 0) break;
        s[kEdge] = 0;
        s[kRang + i] = 1;
        at = kDisarm;
        break;
      case kDisarm:
        --s[kArmed];
        Renew(&s);
        at = kNoSleeper;
        break;
      case kNoSleeper:
        --s[kSleepers];
        s[kUnlooked + i] = s[kRang + i];
        at = s[kGoes + i] == 0       ? kLook
             : s[kUnlooked + i] != 0 ? kBehind
                                     : kLeave;
        break;
      case kLeavesWork:  // each message is another stream's
        if (more && s[kSleepers] != 0) {
          s[kEdge] = 1;
          s[kUnlooked + i] = 0;
        }
        at = s[kUnlooked + i] != 0 ? kBehind : kLeave;
        break;
      case kBehind:
        if (s[kSleepers] != 0 && !no_renewal) {
          Renew(&s);
          Fence(&s);
        }
        s[kUnlooked + i] = s[kSleepers] != 0;
        at = s[kSleepers] != 0 ? kLookBehind : kLeave;
        break;
      case kLookBehind:
        s[kUnlooked + i] = more && !no_look_behind;
        at = kLeave;
        break;
      case kLeave:
        if (!no_hand_on && (s[kUnlooked + i] != 0
                                ? s[kSleepers] + s[kStrangers] != 0
                                : s[kOwes + i] != 0 && s[kSleepers] == 0 &&
                                      s[kStrangers] != 0 && s[kUsers] != 0)) {
          s[kEdge] = 1;
        }
        at = kEnd;
        break;
      default:
        break;
    }
    to->Add(s);
  }

  void Steps(const State& from, Next<State>* to) const {
    for (int i = 0; i < kThreads; ++i) Step(i, from, to);
    for (int i = 0; i < kThreads; ++i) {
      if (from[kAt + i] != kAsleep) continue;
      State s = from;
      if (s[kNaps + i] != 0 && !nap_without_end) {  // Deepen
        s[kNaps + i] = 0;
        if (!no_new_generation) {
          Renew(&s);
          Fence(&s);
        }
        s[kAt + i] = kLookAgain;
        to->Add(s);
      }
      s = from;
      if (leaves && i == 0) {
        s[kGoes + i] = 1;
        s[kAt + i] = kDisarm;
        to->Add(s);
        s[kRang + i] = s[kEdge];
        s[kEdge] = 0;
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
      case kUser:
        s[kUsers] = 1;
        s[kMover] = kUserKick;
        break;
      case kUserKick:
        s[kEdge] = 1;
        s[kMover] = kOver;
        break;
      default:
        break;
    }
    to->Add(s);
    s = from;
    switch (s[kSender]) {
      case kPost:
        if (s[kUsers] == 0 || s[kPosted] == kThreads) break;
        ++s[kPosted];
        if (!naps) ++s[kLanded];
        s[kSender] = kAsk;
        break;
      case kAsk:
        s[kOld] = 0;
        s[kSender] = s[kArmed] == 0 || s[kFresh] == 0 ? kPost : kKick;
        break;
      case kKick:
        s[kLanded] = s[kPosted];
        s[kEdge] = 1;
        if (s[kOld] == 0) s[kFresh] = 0;
        s[kSender] = kPost;
        break;
      default:
        break;
    }
    to->Add(s);
  }
};

// tests/posix/waiters, epoll_threads_of_one_set.
TEST(HandsModel, NobodyWaitsForEver) {
  EXPECT_FALSE(Hangs(Hands{}));
  EXPECT_FALSE(Hangs(Hands{.naps = true}));
  EXPECT_FALSE(Hangs(Hands{.naps = true, .leaves = true}));
}
TEST(HandsModel, WhoSleepsForGoodHasFenced) {
  EXPECT_TRUE(Hangs(Hands{.no_heavy_fence = true, .naps = true}));
  EXPECT_TRUE(Hangs(Hands{.no_new_generation = true, .naps = true}));
}
TEST(HandsModel, ANapEnds) {
  EXPECT_TRUE(Hangs(Hands{.nap_without_end = true, .naps = true}));
}
TEST(HandsModel, WhoHasAnEdgeDoesNotNapBesideSleepers) {
  EXPECT_TRUE(
      Hangs(Hands{.naps_with_an_edge = true, .naps = true, .leaves = true}));
}
TEST(HandsModel, WhoTakesAnEdgeRenewsForThoseWhoSleep) {
  EXPECT_TRUE(Hangs(Hands{.no_renewal = true}));
}
TEST(HandsModel, WhoHasRenewedLooks) {
  EXPECT_TRUE(Hangs(Hands{.no_look_behind = true}));
}
TEST(HandsModel, WhoLeavesHandsOn) {
  EXPECT_TRUE(Hangs(Hands{.no_hand_on = true}));
}
TEST(HandsModel, CountedThenLooks) {
  EXPECT_TRUE(Hangs(Hands{.counted_late = true}));
}
TEST(HandsModel, ArmThenLookThenSleep) {
  EXPECT_TRUE(Hangs(Hands{.look_before_arm = true}));
}

}  // namespace
}  // namespace rcsock
