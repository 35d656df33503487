// A model of threads that sleep on rdma lanes: the rules of rdma::Sleepers.

#include <gtest/gtest.h>

#include <array>
#include <cstdint>

#include "tests/base/model.h"

namespace rcsock {
namespace {

// --- Threads on lanes that have one completion queue between them

// The rules of lane::rdma::Sleepers and of RdmaPoller's arming: one thread, the
// leader, sleeps on the queue's channel in an epoll set of its own, the others
// on their lanes' words.  Lane 0 is nobody's: of a sleeper that has given up
// (its bit may have stayed).  Lane i is thread i's.
struct Leader {
  // Rules to leave out.
  bool no_drain = false;            // Lead: armed, then drained
  bool no_poll_again = false;       // DrainLocked: armed, then polled once more
  bool no_ask_again = false;        // DrainIfAsked: whether another has asked
  bool look_before_said = false;    // Lead: kAsleep, then the word
  bool look_before_bit = false;     // Sleep: the bit, then leader_
  bool silent_resigns = false;      // PassOn by who has led
  bool bits_before_resign = false;  // ... whose ticket has gone by then
  bool first_bit_only = false;      // PassOn: until somebody has been woken
  bool no_nudge = false;            // PassOn: the word of who is about to sleep
  bool word_after_wake = false;     // Wake: the word, then who sleeps
  bool one_set = false;             // TakeSet: alone with it
  bool disarms_twice = false;  // Led: the arm that WakeLocal has taken back
  // Situations.
  bool fetches = false;   // a provider whose events are fetched, each
  bool stale = false;     // lane 0 has its bit
  bool gives_up = false;  // thread 1 may, at any time
  bool changes = false;   // lane 1 changes: WakeLocal
  bool both_hear = true;  // else only lane 2 ever has a message

  static constexpr int kThreads = 2;
  static constexpr int kLanes = kThreads + 1;
  static constexpr int kOther = 0;  // the thread that calls WakeLocal
  enum {
    kToken,
    kLook,
    kSeen,
    kAskLeader,
    kBit,
    kAskAgain,
    kFutex,
    kAsleep,
    kTakeLead,
    kArm,
    kSay,
    kLookAtWord,
    kResign,
    kDisarm,
    kDoze,
    kDozing,
    kLedResign,
    kLedDisarm,
    // Drain
    kAsk,
    kTry,
    kUnask,
    kPoll,
    kTellWord,
    kTellBit,
    kTellFutex,
    kTellLeader,
    kFetch,
    kArmQueue,
    kUnlock,
    // PassOn
    kPass,
    kPassBit,
    kPassWord,
    kPassFutex,
    kReturn,
    kEnd,
    // WakeLocal
    kChange,
    kLocalWord,
    kLocalBit,
    kLocalFutex,
    kLocalResign,
    kLocalDisarm,
    kLocalKick,
  };
  // Of each thread, the one that calls WakeLocal too.
  enum {
    kAt,
    kBack,
    kMask,
    kIsToken,
    kIsSeen,
    kSet,
    kGone,
    kOldBits,
    kOfThread
  };
  enum {
    kWord = kOfThread * (kThreads + 1),  // changes; of each lane
    kNudge = kWord + kLanes,
    kLeader = kNudge + kLanes,  // a thread
    kLeaderAsleep,
    kBits,
    kLanded,
    kChanged,
    kPosted,
    kQueue,
    kQueueArmed,    // the device's
    kThoughtArmed,  // the poller's
    kFired,
    kEventDue,
    kEvents,
    kChannelEdges,  // in which sets
    kKickEdges,
    kSetsTaken,
    kArmed,
    kLatch,
    kAsked,
    kSize,
  };
  using State = std::array<std::uint8_t, kSize>;
  static std::uint8_t& Of(State& s, int thread, int what) {
    return s[static_cast<std::size_t>(thread * kOfThread + what)];
  }
  static std::uint8_t Bit(int i) { return static_cast<std::uint8_t>(1 << i); }

  State First() const {
    State s{};
    Of(s, kOther, kAt) = changes ? kChange : kEnd;
    if (stale) s[kBits] = Bit(0);
    if (!both_hear) s[kPosted] = Bit(1);
    s[kPosted] |= Bit(0);
    return s;
  }
  bool Done(const State& s) const {
    State at = s;
    for (int i = 0; i <= kThreads; ++i) {
      if (Of(at, i, kAt) != kEnd) return false;
    }
    return true;
  }

  static void WakeFutex(State* s, int lane) {
    if (lane != 0 && Of(*s, lane, kAt) == kAsleep) Of(*s, lane, kAt) = kSeen;
  }
  static void Kick(State* s) { (*s)[kKickEdges] = 3; }
  static bool Resigns(State* s, int thread) {
    if ((*s)[kLeader] != thread) return false;
    (*s)[kLeader] = 0;
    (*s)[kLeaderAsleep] = 0;
    return true;
  }
  void TakeSet(State* s, int thread) const {
    const int set = !one_set && ((*s)[kSetsTaken] & 1) != 0 ? 1 : 0;
    Of(*s, thread, kSet) = static_cast<std::uint8_t>(set);
    (*s)[kSetsTaken] |= Bit(set);
  }
  static void PutSet(State* s, int thread) {
    (*s)[kSetsTaken] &= static_cast<std::uint8_t>(~Bit(Of(*s, thread, kSet)));
  }
  static int Lowest(unsigned mask) {
    int i = 0;
    while ((mask >> i & 1) == 0) ++i;
    return i;
  }

  void Step(int i, State s, Next<State>* to) const {
    std::uint8_t& at = Of(s, i, kAt);
    std::uint8_t& mask = Of(s, i, kMask);
    const std::uint8_t token = s[kWord + i];
    const auto seen = static_cast<std::uint8_t>(token * 16 + s[kNudge + i]);
    const int lane = mask != 0 ? Lowest(mask) : 0;
    const auto without = [](std::uint8_t bits, int one) {
      return static_cast<std::uint8_t>(bits & ~Bit(one));
    };
    switch (at) {
      case kToken:
        Of(s, i, kIsToken) = token;
        at = kLook;
        break;
      case kLook:
        at = ((s[kLanded] | s[kChanged]) & Bit(i)) != 0 ? kEnd : kSeen;
        break;
      case kSeen:
        Of(s, i, kIsSeen) = seen;
        at = token != Of(s, i, kIsToken) ? kPass : kAskLeader;
        break;
      case kAskLeader:
        at = s[kLeader] == 0 ? kTakeLead : look_before_bit ? kAskAgain : kBit;
        break;
      case kBit:
        s[kBits] |= Bit(i);
        at = look_before_bit ? kFutex : kAskAgain;
        break;
      case kAskAgain:
        at = s[kLeader] == 0 ? kSeen : look_before_bit ? kBit : kFutex;
        break;
      case kFutex:
        at = seen == Of(s, i, kIsSeen) ? kAsleep : kSeen;
        break;
      case kTakeLead:
        at = kSeen;
        if (s[kLeader] != 0) break;
        s[kLeader] = static_cast<std::uint8_t>(i);
        TakeSet(&s, i);
        at = kArm;
        break;
      case kArm:
        ++s[kArmed];
        Of(s, i, kBack) = look_before_said ? kLookAtWord : kSay;
        at = kAsk;
        if (no_drain) at = Of(s, i, kBack);
        break;
      case kSay:
        if (s[kLeader] == i) {
          s[kLeaderAsleep] = 1;
          at = look_before_said ? kDoze : kLookAtWord;
        } else {  // WakeLocal has resigned, and disarmed
          PutSet(&s, i);
          at = kSeen;
        }
        break;
      case kLookAtWord:
        at = token != Of(s, i, kIsToken) ? kResign
             : look_before_said          ? kSay
                                         : kDoze;
        if (at == kResign) PutSet(&s, i);
        break;
      case kResign:
        at = Resigns(&s, i) ? kDisarm : kSeen;
        break;
      case kDisarm:
        --s[kArmed];
        at = kSeen;
        break;
      case kDoze:
      case kDozing: {
        const std::uint8_t set = Bit(Of(s, i, kSet));
        const bool channel = (s[kChannelEdges] & set) != 0 && s[kEvents] != 0;
        const bool kick = (s[kKickEdges] & set) != 0;
        s[kChannelEdges] &= static_cast<std::uint8_t>(~set);
        s[kKickEdges] &= static_cast<std::uint8_t>(~set);
        at = channel || kick ? kLedResign : kDozing;
        if (bits_before_resign) Of(s, i, kOldBits) = s[kBits];
        if (at == kLedResign) PutSet(&s, i);
        break;
      }
      case kLedResign:
        if (!Resigns(&s, i) && !disarms_twice) ++s[kArmed];
        at = kLedDisarm;
        break;
      case kLedDisarm:
        --s[kArmed];
        Of(s, i, kBack) = Of(s, i, kGone) != 0 ? kPass : kSeen;
        at = kAsk;
        break;

      case kAsk:
        s[kAsked] = 1;
        at = kTry;
        break;
      case kTry:
        at = Of(s, i, kBack);
        if (s[kAsked] == 0 || s[kLatch] != 0) break;
        s[kLatch] = 1;
        at = kUnask;
        break;
      case kUnask:
        s[kAsked] = 0;
        at = kPoll;
        break;
      case kPoll:
        mask = s[kQueue];
        s[kQueue] = 0;
        s[kLanded] |= mask;
        if (mask != 0 && s[kThoughtArmed] != 0) {
          s[kThoughtArmed] = 0;
          s[kFired] = fetches ? 1 : 0;
        }
        at = mask == 0 ? kFetch : word_after_wake ? kTellBit : kTellWord;
        break;
      case kTellWord:
        ++s[kWord + lane];
        at = kTellBit;
        if (!word_after_wake) break;
        mask = without(mask, lane);
        at = mask != 0 ? kTellBit : kFetch;
        break;
      case kTellBit:
        at = (s[kBits] & Bit(lane)) != 0 ? kTellFutex : kTellLeader;
        s[kBits] = without(s[kBits], lane);
        break;
      case kTellFutex:
        WakeFutex(&s, lane);
        at = kTellLeader;
        break;
      case kTellLeader:
        if (s[kLeaderAsleep] != 0 && s[kLeader] == lane) Kick(&s);
        if (word_after_wake) {
          at = kTellWord;
          break;
        }
        mask = without(mask, lane);
        at = mask != 0 ? kTellWord : kFetch;
        break;
      case kFetch:
        if (s[kArmed] == 0) {
          at = kUnlock;
          break;
        }
        if (s[kFired] != 0) {
          if (s[kEvents] != 0) s[kThoughtArmed] = s[kFired] = 0;
          s[kEvents] = 0;
        }
        at = kArmQueue;
        break;
      case kArmQueue:
        at = kUnlock;
        if (s[kThoughtArmed] != 0 || s[kFired] != 0) break;
        s[kQueueArmed] = s[kThoughtArmed] = 1;
        if (!no_poll_again) at = kPoll;
        break;
      case kUnlock:
        s[kLatch] = 0;
        at = kTry;
        if (no_ask_again) at = Of(s, i, kBack);
        break;

      case kPass:
        mask = s[kLeader] != 0      ? std::uint8_t{0}
               : bits_before_resign ? Of(s, i, kOldBits)
                                    : s[kBits];
        at = silent_resigns && i != kOther ? kReturn : kPassBit;
        break;
      case kPassBit:
        if (mask == 0) {
          at = kReturn;
        } else if ((s[kBits] & Bit(lane)) == 0) {
          mask = without(mask, lane);
        } else {
          s[kBits] = without(s[kBits], lane);
          at = no_nudge ? kPassFutex : kPassWord;
        }
        break;
      case kPassWord:
        ++s[kNudge + lane];
        at = kPassFutex;
        break;
      case kPassFutex: {
        const bool sleeps = lane != 0 && Of(s, lane, kAt) == kAsleep;
        WakeFutex(&s, lane);
        mask = sleeps || first_bit_only ? 0 : without(mask, lane);
        at = kPassBit;
        break;
      }
      case kReturn:
        mask = 0;
        at = i == kOther || Of(s, i, kGone) != 0 ? kEnd : kToken;
        break;

      case kChange:
        s[kChanged] = Bit(1);
        at = kLocalWord;
        break;
      case kLocalWord:
        ++s[kWord + 1];
        at = kLocalBit;
        break;
      case kLocalBit:
        s[kBits] = without(s[kBits], 1);
        at = kLocalFutex;
        break;
      case kLocalFutex:
        WakeFutex(&s, 1);
        at = kLocalResign;
        break;
      case kLocalResign:
        at = Resigns(&s, 1) ? kLocalDisarm : kPass;
        break;
      case kLocalDisarm:
        --s[kArmed];
        at = kLocalKick;
        break;
      case kLocalKick:
        Kick(&s);
        at = kPass;
        break;
      default:
        break;
    }
    to->Add(s);
  }

  void Steps(const State& from, Next<State>* to) const {
    for (int i = 0; i <= kThreads; ++i) Step(i, from, to);
    State s = from;
    // Who gives up does so by its time-out, in its sleep.
    std::uint8_t& at = Of(s, 1, kAt);
    if (gives_up && Of(s, 1, kGone) == 0 &&
        (at == kAsleep || at == kDoze || at == kDozing)) {
      Of(s, 1, kGone) = 1;
      if (bits_before_resign) Of(s, 1, kOldBits) = s[kBits];
      if (at != kAsleep) PutSet(&s, 1);
      at = at == kAsleep ? kPass : kLedResign;
      to->Add(s);
    }
    for (int lane = 1; lane < kLanes; ++lane) {
      if ((from[kPosted] & Bit(lane)) != 0) continue;
      s = from;
      s[kPosted] |= Bit(lane);
      s[kQueue] |= Bit(lane);
      if (s[kQueueArmed] != 0) s[kEventDue] = 1;
      s[kQueueArmed] = 0;
      to->Add(s);
    }
    if (from[kEventDue] != 0) {
      s = from;
      s[kEventDue] = 0;
      s[kEvents] = 1;
      s[kChannelEdges] = 3;
      to->Add(s);
    }
  }
};

TEST(LeaderModel, NobodyWaitsForEver) {
  for (const bool fetches : {false, true}) {
    EXPECT_FALSE(Hangs(Leader{.fetches = fetches}));
    EXPECT_FALSE(Hangs(Leader{.fetches = fetches,
                              .stale = true,
                              .gives_up = true,
                              .both_hear = false}));
  }
  EXPECT_FALSE(Hangs(Leader{.changes = true, .both_hear = false}));
}
TEST(LeaderModel, ArmThenDrainThenSleep) {
  EXPECT_TRUE(Hangs(Leader{.no_drain = true}));
  EXPECT_TRUE(Hangs(Leader{.no_poll_again = true}));
}
TEST(LeaderModel, WhoDrainsLooksWhetherAnotherHasAsked) {
  EXPECT_TRUE(Hangs(Leader{.no_ask_again = true}));
}
TEST(LeaderModel, SaidToBeAsleepThenTheWordIsLookedAt) {
  EXPECT_TRUE(Hangs(Leader{.look_before_said = true}));
}
TEST(LeaderModel, TheBitThenWhoLeads) {
  EXPECT_TRUE(Hangs(
      Leader{.look_before_bit = true, .gives_up = true, .both_hear = false}));
}
TEST(LeaderModel, WhoLeavesPassesOn) {
  EXPECT_TRUE(Hangs(
      Leader{.silent_resigns = true, .gives_up = true, .both_hear = false}));
  EXPECT_TRUE(Hangs(Leader{
      .bits_before_resign = true, .gives_up = true, .both_hear = false}));
}
TEST(LeaderModel, PassedOnUntilSomebodyIsWoken) {
  EXPECT_TRUE(Hangs(Leader{.first_bit_only = true,
                           .stale = true,
                           .gives_up = true,
                           .both_hear = false}));
  EXPECT_TRUE(
      Hangs(Leader{.no_nudge = true, .gives_up = true, .both_hear = false}));
}
TEST(LeaderModel, TheWordThenWhoSleeps) {
  EXPECT_TRUE(Hangs(Leader{.word_after_wake = true}));
}
TEST(LeaderModel, ASetForEachLeader) {
  EXPECT_TRUE(
      Hangs(Leader{.one_set = true, .changes = true, .both_hear = false}));
}
TEST(LeaderModel, ArmsAgainWhatWakeLocalHasDisarmed) {
  EXPECT_TRUE(Hangs(Leader{.disarms_twice = true, .changes = true}));
}

}  // namespace
}  // namespace rcsock
