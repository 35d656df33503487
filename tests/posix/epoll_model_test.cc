// Models of threads that wait in one epoll set: the rules of EpollSet.

#include <gtest/gtest.h>

#include <array>
#include <cstdint>

#include "tests/posix/model.h"

namespace rcsock {
namespace {

// --- Threads that sleep in one epoll set

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

// tests/posix/threads, epoll_threads_of_one_set.
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

// --- A registration with EPOLLONESHOT, armed again as a byte comes

// The rules of EpollSet::Collect, DrainPoller and Ctl: one thread waits,
// another takes one byte for each report and arms the registration again.
struct Once {
  bool link_before_unspend = false;  // Ctl
  bool no_link = false;
  bool ask_before_link = false;    // KickSleepers
  bool look_before_count = false;  // Wait: sleepers_, then the list

  enum {
    kDrain,
    kTakeOff,
    kSpent,
    kReady,
    kCount,
    kLookList,
    kLookBits,
    kAsleep,
    kUncount
  };
  enum { kIdle, kTake, kUnspend, kLink, kAskSleepers, kKickBell };
  enum { kPost, kMark, kAskArmed, kRing };
  enum {
    kWaiter,
    kWorker,
    kSender,
    kBits,
    kListed,
    kIsSpent,
    kEvent,
    kSleepers,
    kEdge,
    kPosted,
    kTaken,
    kSize,
  };
  using State = std::array<std::uint8_t, kSize>;
  static constexpr int kAll = 3;

  State First() const { return {}; }
  bool Done(const State& s) const { return s[kTaken] == kAll; }

  void Steps(const State& from, Next<State>* to) const {
    State s = from;
    switch (s[kWaiter]) {
      case kDrain:
        if (s[kBits] != 0) s[kListed] = 1;
        s[kBits] = 0;
        s[kWaiter] = kTakeOff;
        break;
      case kTakeOff:
        s[kWaiter] = s[kListed] != 0     ? kSpent
                     : look_before_count ? kLookList
                                         : kCount;
        s[kListed] = 0;
        break;
      case kSpent:
        s[kWaiter] = s[kIsSpent] != 0 ? kDrain : kReady;
        break;
      case kReady:
        if (s[kTaken] < s[kPosted]) s[kIsSpent] = s[kEvent] = 1;
        s[kWaiter] = kDrain;
        break;
      case kCount:
        s[kSleepers] = 1;
        s[kWaiter] = look_before_count ? kAsleep : kLookList;
        break;
      case kLookList:
        s[kWaiter] = s[kListed] != 0 ? kUncount : kLookBits;
        break;
      case kLookBits:
        s[kWaiter] = s[kBits] != 0       ? kUncount
                     : look_before_count ? kCount
                                         : kAsleep;
        break;
      case kAsleep:
        if (s[kEdge] == 0) break;
        s[kEdge] = 0;
        s[kWaiter] = kUncount;
        break;
      case kUncount:
        s[kSleepers] = 0;
        s[kWaiter] = kDrain;
        break;
      default:
        break;
    }
    to->Add(s);

    s = from;
    switch (s[kWorker]) {
      case kIdle:
        if (s[kEvent] == 0) break;
        s[kEvent] = 0;
        s[kWorker] = kTake;
        break;
      case kTake:
        ++s[kTaken];
        s[kWorker] = link_before_unspend ? kLink : kUnspend;
        break;
      case kUnspend:
        s[kIsSpent] = 0;
        s[kWorker] = link_before_unspend || ask_before_link ? kAskSleepers
                     : no_link                              ? kIdle
                                                            : kLink;
        break;
      case kLink:
        s[kListed] = 1;
        s[kWorker] = link_before_unspend ? kUnspend
                     : ask_before_link   ? kIdle
                                         : kAskSleepers;
        break;
      case kAskSleepers:
        s[kWorker] = s[kSleepers] != 0 ? kKickBell
                     : ask_before_link ? kLink
                                       : kIdle;
        break;
      case kKickBell:
        s[kEdge] = 1;
        s[kWorker] = ask_before_link ? kLink : kIdle;
        break;
      default:
        break;
    }
    to->Add(s);

    s = from;
    switch (s[kSender]) {
      case kPost:
        if (s[kPosted] == kAll) break;
        ++s[kPosted];
        s[kSender] = kMark;
        break;
      case kMark:
        s[kBits] = 1;
        s[kSender] = kAskArmed;
        break;
      case kAskArmed:
        s[kSender] = s[kSleepers] != 0 ? kRing : kPost;
        break;
      case kRing:
        s[kEdge] = 1;
        s[kSender] = kPost;
        break;
      default:
        break;
    }
    to->Add(s);
  }
};

TEST(OnceModel, NobodyWaitsForEver) { EXPECT_FALSE(Hangs(Once{})); }
TEST(OnceModel, UnspentThenListed) {
  EXPECT_TRUE(Hangs(Once{.link_before_unspend = true}));
  EXPECT_TRUE(Hangs(Once{.no_link = true}));
}
TEST(OnceModel, ListedThenTheSleepersAreAsked) {
  EXPECT_TRUE(Hangs(Once{.ask_before_link = true}));
}
TEST(OnceModel, CountedThenLooks) {
  EXPECT_TRUE(Hangs(Once{.look_before_count = true}));
}

// --- Bytes that a stream has beside its ring

// A stream whose ring is looked at in every wait, and its stash, which is read
// first and which only the ready list knows of (EpollSet::Collect).  A switch
// fills the stash meanwhile (WakeRx, InterestsReady).  One thread waits, and
// takes one byte for each report.
struct Stash {
  bool leaves_the_list = false;  // though its ring is empty
  bool listed_before_filled = false;
  bool asked_before_listed = false;  // KickSleepers

  enum {
    kRing,
    kTakeOff,
    kHolds,
    kCount,
    kLookList,
    kLookRing,
    kAsleep,
    kUncount
  };
  enum { kFill, kList, kAskSleepers, kKickBell, kOver };
  enum { kPost, kAskArmed, kRingBell };
  enum {
    kWaiter,
    kSwitch,
    kSender,
    kListed,
    kSleepers,
    kEdge,
    kInRing,
    kInStash,
    kPosted,
    kTaken,
    kSize,
  };
  using State = std::array<std::uint8_t, kSize>;
  static constexpr int kOfRing = 2;
  static constexpr int kOfStash = 2;

  State First() const {
    State s{};
    s[kSwitch] = listed_before_filled  ? kList
                 : asked_before_listed ? kAskSleepers
                                       : kFill;
    return s;
  }
  bool Done(const State& s) const { return s[kTaken] == kOfRing + kOfStash; }
  static void Take(State* s) {
    --(*s)[(*s)[kInStash] != 0 ? kInStash : kInRing];
    ++(*s)[kTaken];
  }

  void Steps(const State& from, Next<State>* to) const {
    State s = from;
    const bool any = s[kInRing] + s[kInStash] != 0;
    switch (s[kWaiter]) {
      case kRing:
        if (s[kInRing] != 0 && s[kListed] == 0) {
          Take(&s);
        } else {
          s[kWaiter] = kTakeOff;
        }
        break;
      case kTakeOff:
        s[kWaiter] = s[kListed] != 0 ? kHolds : kCount;
        s[kListed] = 0;
        break;
      case kHolds:
        s[kWaiter] = kRing;
        if (!any) break;
        if (s[kInStash] != 0 && !leaves_the_list) s[kListed] = 1;
        Take(&s);
        break;
      case kCount:
        s[kSleepers] = 1;
        s[kWaiter] = kLookList;
        break;
      case kLookList:
        s[kWaiter] = s[kListed] != 0 ? kUncount : kLookRing;
        break;
      case kLookRing:
        s[kWaiter] = s[kInRing] != 0 ? kUncount : kAsleep;
        break;
      case kAsleep:
        if (s[kEdge] == 0) break;
        s[kEdge] = 0;
        s[kWaiter] = kUncount;
        break;
      case kUncount:
        s[kSleepers] = 0;
        s[kWaiter] = kRing;
        break;
      default:
        break;
    }
    to->Add(s);

    s = from;
    switch (s[kSwitch]) {
      case kFill:
        s[kInStash] = kOfStash;
        s[kSwitch] = listed_before_filled ? kAskSleepers : kList;
        break;
      case kList:
        s[kListed] = 1;
        s[kSwitch] = listed_before_filled  ? kFill
                     : asked_before_listed ? kOver
                                           : kAskSleepers;
        break;
      case kAskSleepers:
        s[kSwitch] = s[kSleepers] != 0     ? kKickBell
                     : asked_before_listed ? kFill
                                           : kOver;
        break;
      case kKickBell:
        s[kEdge] = 1;
        s[kSwitch] = asked_before_listed ? kFill : kOver;
        break;
      default:
        break;
    }
    to->Add(s);

    s = from;
    switch (s[kSender]) {
      case kPost:
        if (s[kPosted] == kOfRing) break;
        ++s[kPosted];
        ++s[kInRing];
        s[kSender] = kAskArmed;
        break;
      case kAskArmed:
        s[kSender] = s[kSleepers] != 0 ? kRingBell : kPost;
        break;
      case kRingBell:
        s[kEdge] = 1;
        s[kSender] = kPost;
        break;
      default:
        break;
    }
    to->Add(s);
  }
};

TEST(StashModel, NobodyWaitsForEver) { EXPECT_FALSE(Hangs(Stash{})); }
// tests/posix/backlog.
TEST(StashModel, StaysOnTheListWhileItHasAStash) {
  EXPECT_TRUE(Hangs(Stash{.leaves_the_list = true}));
}
TEST(StashModel, FilledThenListedThenTheSleepersAreAsked) {
  EXPECT_TRUE(Hangs(Stash{.listed_before_filled = true}));
  EXPECT_TRUE(Hangs(Stash{.asked_before_listed = true}));
}

}  // namespace
}  // namespace rcsock
