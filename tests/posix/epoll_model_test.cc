// A model of threads that sleep in one epoll set: who takes an edge of its
// bell, and who hands on.

#include <gtest/gtest.h>

#include <array>
#include <cstdint>

#include "tests/base/model.h"

namespace rcsock {
namespace {

// The rules of EpollSet::Wait, HandOn and NothingBehind, and of Bells and
// LinkState::Ring.  The kernel gives an edge of the bell to one of those who
// sleep in the set, whichever it likes; a sender kicks once a generation.  Who
// takes a message is busy for ever, so each must find another thread.
//
// A handler may run above thread 0's wait, at any of its steps that is in no
// critical section, and jump out of it: then this one takes no message any
// more, and the others find theirs all the same.  Or it returns, to a sleep
// that has yet to begin or (EINTR) to a wait that ends.
//
// With naps a message may stay in its sender's store buffer until the sender
// enters the kernel, or a heavy fence empties it, which who arms for a nap does
// not make; and all have streams in user space from the beginning.
struct Hands {
  static constexpr int kThreads = 3;
  bool no_renewal = false;      // NothingBehind: their generation
  bool no_look_behind = false;  // NothingBehind, after that
  bool no_hand_on = false;      // Wait: on leaving
  bool counted_late = false;    // Stranger: counted, then HasUser
  bool look_before_arm = false;
  bool no_heavy_fence = false;     // Arm, Renew
  bool nap_without_end = false;    // Wait: KernelWait's time
  bool naps_with_an_edge = false;  // Sleep: nobody has looked behind it
  bool no_new_generation = false;  // Deepen: ... and its fence
  bool edge_stays = false;         // TakeBack: HandOn
  bool back_without_kick = false;  // Recount: the kick
  bool kick_then_count = false;    // Recount: counted and armed, then that
  bool back_as_stranger = false;   // Recount: whether there is a stream by now
  // Situations.
  bool naps = false;
  bool slept_long = false;  // thread 0 has, and makes no nap
  bool leaves = false;      // thread 0 may, with something of the kernel's
  bool handles = false;     // thread 0 may, once
  int threads = kThreads;

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
    kTold,  // a stranger, by the kernel
    // TakeBack
    kBackStranger,
    kBackDisarm,
    kBackSleeper,
    kBackAsk,
    kBackKick,
    kHandler,
    // Recount
    kAnewKick,
    kAnewStranger,
    kAnewSleeper,
    kAnewArm,
    kAnewAsk,
    kReturn,
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
    // Of thread 0: where the handler has interrupted it, and whether the
    // kernel may have given it an edge or it is counted (tls_signals.wait.set).
    kAbove = kGoes + kThreads,
    kHandled,
    kKnown,
    kSize,
  };
  using State = std::array<std::uint8_t, kSize>;

  State First() const {
    State s{};
    if (naps) {
      s[kUsers] = 1;
      s[kMover] = kOver;
      for (int i = 0; i < threads; ++i) s[kAt + i] = kLook;
    }
    return s;
  }
  bool Done(const State& s) const {
    for (int i = 0; i < threads; ++i) {
      if (s[kAt + i] != kEnd) return false;
    }
    return true;
  }

  static void Renew(State* s) { (*s)[kFresh] = (*s)[kOld] = 1; }
  void Fence(State* s) const {
    if (!no_heavy_fence) (*s)[kLanded] = (*s)[kPosted];
  }

  // Counted, at these places: as a stranger, and as one who has armed.
  static bool AsStranger(std::uint8_t at) {
    return at == kMaySleep || at == kOutside || at == kTold;
  }
  static bool AsSleeper(std::uint8_t at) {
    return at == kLookAgain || at == kAsleep || at == kDisarm;
  }
  static bool Interruptible(std::uint8_t at) {
    return AsStranger(at) || AsSleeper(at) || at == kCount || at == kLook ||
           at == kSleeper || at == kLeavesWork || at == kBehind || at == kLeave;
  }

  void Handle(State s, Next<State>* to) const {
    std::uint8_t& at = s[kAt];
    const std::uint8_t above = s[kAbove];
    const bool stranger = AsStranger(above);
    const bool sleeper = AsSleeper(above);
    const auto anew = static_cast<std::uint8_t>(stranger  ? kAnewStranger
                                                : sleeper ? kAnewSleeper
                                                          : kReturn);
    switch (at) {
      case kBackStranger:
        if (stranger) --s[kStrangers];
        at = sleeper ? kBackDisarm : kBackAsk;
        break;
      case kBackDisarm:
        --s[kArmed];
        Renew(&s);
        at = kBackSleeper;
        break;
      case kBackSleeper:
        --s[kSleepers];
        at = kBackAsk;
        break;
      case kBackAsk:
        at = s[kSleepers] + s[kStrangers] != 0 && !edge_stays ? kBackKick
                                                              : kHandler;
        break;
      case kBackKick:
        s[kEdge] = 1;
        at = kHandler;
        break;
      case kHandler:
        at = kEnd;  // jumps
        to->Add(s);
        at = anew;
        if (anew != kReturn && kick_then_count) at = kAnewKick;
        break;
      case kAnewKick:
        s[kEdge] = 1;
        at = kReturn;
        if (kick_then_count) at = anew;
        break;
      case kAnewStranger:
        ++s[kStrangers];
        at = kAnewAsk;
        break;
      case kAnewSleeper:
        ++s[kSleepers];
        at = kAnewArm;
        break;
      case kAnewArm:
        ++s[kArmed];
        Renew(&s);
        Fence(&s);
        at = kAnewAsk;
        break;
      case kAnewAsk:
        at = back_without_kick || kick_then_count               ? kReturn
             : sleeper || (s[kUsers] != 0 && !back_as_stranger) ? kAnewKick
                                                                : kReturn;
        break;
      case kReturn:
        at = above;
        to->Add(s);
        if (above == kOutside || above == kAsleep) {  // EINTR
          s[kGoes] = 1;
          at = above == kOutside ? kTold : kDisarm;
          break;
        }
        return;
      default:
        return;
    }
    to->Add(s);
  }

  void Step(int i, State s, Next<State>* to) const {
    std::uint8_t& at = s[kAt + i];
    if (i == 0 && handles && s[kHandled] == 0 && Interruptible(at)) {
      State above = s;
      above[kAbove] = at;
      above[kHandled] = 1;
      // (Who has not asked the kernel yet has nothing to take back.)
      above[kAt] = s[kKnown] != 0 ? kBackStranger : kHandler;
      to->Add(above);
    }
    const bool more = s[kTaken] < s[kLanded];
    switch (at) {
      case kCount:
        if (counted_late && s[kUsers] != 0) {
          at = kLook;
          break;
        }
        at = kMaySleep;
        if (i == 0) s[kKnown] = handles;
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
        s[kUnlooked + i] = 1;
        at = kTold;
        break;
      case kTold:
        --s[kStrangers];
        at = s[kGoes + i] != 0 ? kLeave : kLook;
        s[kOwes + i] = s[kUnlooked + i];
        break;
      case kLook:
        at = kSleeper;
        if (more) {
          ++s[kTaken];
          at = kLeavesWork;
        }
        break;
      case kSleeper:
        s[kNaps + i] =
            naps && !(slept_long && i == 0) &&
            (s[kUnlooked + i] == 0 || s[kSleepers] == 0 || naps_with_an_edge);
        ++s[kSleepers];
        if (i == 0) s[kKnown] = handles;
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
    for (int i = 0; i < threads; ++i) Step(i, from, to);
    Handle(from, to);
    for (int i = 0; i < threads; ++i) {
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
        if (s[kUsers] == 0 || s[kPosted] == threads) break;
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

// tests/posix/many_waiters, epoll_threads_of_one_set.
TEST(HandsModel, NobodyWaitsForEver) {
  EXPECT_FALSE(Hangs(Hands{}));
  EXPECT_FALSE(Hangs(Hands{.naps = true}));
  EXPECT_FALSE(Hangs(Hands{.naps = true, .leaves = true}));
  EXPECT_FALSE(Hangs(Hands{.naps = true, .slept_long = true, .leaves = true}));
}
// tests/posix/handler_jumps, siglongjmp_of_waiters; steps,
// siglongjmp_at_each_step. (Two threads: with a third there are too many
// states.)
TEST(HandsModel, AHandlerAboveAWaitJumpsOutOrReturns) {
  for (const bool naps : {false, true}) {
    for (const bool leaves : {false, true}) {
      EXPECT_FALSE(Hangs(Hands{
          .naps = naps, .leaves = leaves, .handles = true, .threads = 2}));
    }
  }
}
TEST(HandsModel, AJumpLeavesNoEdgeBehind) {
  EXPECT_TRUE(Hangs(Hands{.edge_stays = true, .handles = true, .threads = 2}));
  EXPECT_TRUE(Hangs(
      Hands{.edge_stays = true, .naps = true, .handles = true, .threads = 2}));
}
TEST(HandsModel, WhoIsCountedAnewIsKicked) {
  EXPECT_TRUE(
      Hangs(Hands{.back_without_kick = true, .handles = true, .threads = 2}));
}
TEST(HandsModel, CountedAnewThenKicked) {
  EXPECT_TRUE(
      Hangs(Hands{.kick_then_count = true, .handles = true, .threads = 2}));
}
TEST(HandsModel, AStrangerCountedAnewLooksForStreams) {
  EXPECT_TRUE(
      Hangs(Hands{.back_as_stranger = true, .handles = true, .threads = 2}));
}
TEST(HandsModel, WhoSleepsForGoodHasFenced) {
  EXPECT_TRUE(Hangs(Hands{.no_heavy_fence = true, .naps = true}));
  EXPECT_TRUE(
      Hangs(Hands{.no_heavy_fence = true, .naps = true, .slept_long = true}));
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
