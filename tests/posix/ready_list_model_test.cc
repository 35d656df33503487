// Models of the list of what is ready in an epoll set: what is put there, and
// when it may leave.

#include <gtest/gtest.h>

#include <array>
#include <cstdint>

#include "tests/base/model.h"

namespace rcsock {
namespace {

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

// --- The same of a stream that each wait looks at directly

// The rules of EpollSet::Tells and Spend, and of Ctl where FoundAnyway says
// that the list is not needed.  What the worker has stored may stay in its
// store buffer until it makes a full fence.
struct OnceDirect {
  bool no_fence = false;           // Ctl: before the sleepers are asked
  bool no_kick = false;            // Ctl
  bool look_before_count = false;  // Wait: sleepers_, then the ring

  enum { kLook, kCount, kLookAgain, kAsleep, kUncount };
  enum { kIdle, kTake, kUnspend, kFence, kAskSleepers, kKickBell };
  enum { kPost, kAskArmed, kRing };
  enum {
    kWaiter,
    kWorker,
    kSender,
    kIsSpent,
    kUnspends,  // in the store buffer
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
  static void Reach(State* s) {
    if ((*s)[kUnspends] != 0) (*s)[kIsSpent] = (*s)[kUnspends] = 0;
  }

  void Steps(const State& from, Next<State>* to) const {
    State s = from;
    // By itself, some time; nobody may count on it to be soon, but it is not
    // for ever: a hang is where all is still and it has.
    if (s[kUnspends] != 0) {
      Reach(&s);
      to->Add(s);
    }

    s = from;
    const bool tells = s[kTaken] < s[kPosted] && s[kIsSpent] == 0;
    switch (s[kWaiter]) {
      case kLook:
        if (tells) {
          s[kIsSpent] = s[kEvent] = 1;
        } else {
          s[kWaiter] = look_before_count ? kLookAgain : kCount;
        }
        break;
      case kCount:
        s[kSleepers] = 1;
        s[kWaiter] = look_before_count ? kAsleep : kLookAgain;
        break;
      case kLookAgain:
        s[kWaiter] = tells ? kUncount : look_before_count ? kCount : kAsleep;
        break;
      case kAsleep:
        if (s[kEdge] == 0) break;
        s[kEdge] = 0;
        s[kWaiter] = kUncount;
        break;
      case kUncount:
        s[kSleepers] = 0;
        s[kWaiter] = kLook;
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
        s[kWorker] = kUnspend;
        break;
      case kUnspend:
        s[kUnspends] = 1;
        s[kWorker] = no_fence ? kAskSleepers : kFence;
        break;
      case kFence:
        Reach(&s);
        s[kWorker] = kAskSleepers;
        break;
      case kAskSleepers:
        s[kWorker] = s[kSleepers] != 0 && !no_kick ? kKickBell : kIdle;
        break;
      case kKickBell:
        Reach(&s);  // (a system call)
        s[kEdge] = 1;
        s[kWorker] = kIdle;
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

TEST(OnceDirectModel, NobodyWaitsForEver) { EXPECT_FALSE(Hangs(OnceDirect{})); }
TEST(OnceDirectModel, UnspentThenTheSleepersAreAsked) {
  EXPECT_TRUE(Hangs(OnceDirect{.no_fence = true}));
  EXPECT_TRUE(Hangs(OnceDirect{.no_kick = true}));
}
TEST(OnceDirectModel, CountedThenLooks) {
  EXPECT_TRUE(Hangs(OnceDirect{.look_before_count = true}));
}

// --- Bytes that a stream has beside its ring

// A stream whose ring is looked at in every wait, and its stash, which is read
// first and which only the ready list knows of (EpollSet::Collect).  A switch
// fills the stash meanwhile (Sock::Wake, Registrations::Ready).  One thread
// waits, and takes one byte for each report.
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
// tests/posix/switch_backlog.
TEST(StashModel, StaysOnTheListWhileItHasAStash) {
  EXPECT_TRUE(Hangs(Stash{.leaves_the_list = true}));
}
TEST(StashModel, FilledThenListedThenTheSleepersAreAsked) {
  EXPECT_TRUE(Hangs(Stash{.listed_before_filled = true}));
  EXPECT_TRUE(Hangs(Stash{.asked_before_listed = true}));
}

}  // namespace
}  // namespace rcsock
