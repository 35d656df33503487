// Models of calls that sleep on a stream: the rules of ShmLane (SleepTx,
// SleepRx, PublishCredit, AfterPublish), Sock::SleepOn and Sock::OnStarved.

#include <gtest/gtest.h>

#include <array>
#include <cstdint>

#include "tests/base/model.h"

namespace rcsock {
namespace {

// --- A writer that waits for room

struct Room {
  // Rules to leave out.
  bool heard_without_bump = false;  // LookForCredit by another thread
  bool no_look = false;             // SleepTx: credit after the wish
  bool look_before_wish = false;
  bool bit_after_bump = false;  // PublishCredit: takes the wish away too late
  bool timer_tells_nobody = false;  // OnStarved, where there is some room
  bool no_timer_again = false;      // ... and where the reader has moved
  // The reader may stop for ever; then the timer must help.
  bool pauses = false;
  int all = 7;  // messages to be written

  static constexpr int kRing = 4;   // messages
  static constexpr int kDue = 1;    // credit is published for so many
  static constexpr int kWorth = 3;  // and a wake-up is worth it
  enum {
    kTry,
    kWatch,
    kToken,
    kLook,
    kWish,
    kLookAgain,
    kSleep,
    kAsleep,
    kEnd,
    kTake = 0,
    kPublish,
    kAsk,
    kClear,
    kBump,
    kWake,
  };
  enum {
    kWriter,
    kReader,
    kPosted,
    kTaken,
    kCredit,
    kSeen,
    kWord,
    kHeld,
    kBit,
    kUntold,
    kPaused,
    kTimer,
    kPostedThen,
    kTakenThen,
    kDemoted,
    kOther,
    kSize,
  };
  using State = std::array<std::uint8_t, kSize>;

  State First() const { return {}; }
  bool Done(const State& s) const { return s[kWriter] == kEnd; }

  // The latch is the writer's up to its wish, but between two steps of kTry.
  static bool Latched(const State& s) {
    return s[kWriter] >= kWatch && s[kWriter] <= kLook;
  }
  static void Wakes(State* s) {
    if ((*s)[kWriter] == kAsleep) (*s)[kWriter] = kTry;
  }
  void Hear(State* s, bool bump) const {
    if ((*s)[kCredit] <= (*s)[kSeen]) return;
    (*s)[kSeen] = (*s)[kCredit];
    if (bump) ++(*s)[kWord];
  }
  static bool HasRoom(const State& s) { return s[kPosted] - s[kSeen] < kRing; }

  void Steps(const State& from, Next<State>* to) const {
    State s = from;
    switch (s[kWriter]) {
      case kTry:
        Hear(&s, true);
        if (s[kDemoted] != 0) {
          s[kWriter] = kEnd;
        } else if (!HasRoom(s)) {
          s[kWriter] = kWatch;
        } else if (++s[kPosted] == all) {
          s[kWriter] = kEnd;
        }
        break;
      case kWatch:
        s[kPostedThen] = s[kPosted];
        if (pauses && s[kTimer] == 0) {
          s[kTimer] = 1;
          s[kTakenThen] = s[kTaken];
        }
        s[kWriter] = kToken;
        break;
      case kToken:
        s[kHeld] = s[kWord];
        s[kWriter] = kLook;
        break;
      case kLook:
        Hear(&s, true);
        s[kWriter] = HasRoom(s) ? kTry : look_before_wish ? kLookAgain : kWish;
        break;
      case kWish:
        s[kBit] = 1;
        s[kWriter] = no_look || look_before_wish ? kSleep : kLookAgain;
        break;
      case kLookAgain:
        s[kWriter] = s[kCredit] > s[kSeen] ? kTry
                     : look_before_wish    ? kWish
                                           : kSleep;
        break;
      case kSleep:
        s[kWriter] = s[kWord] != s[kHeld] ? kTry : kAsleep;
        break;
      default:
        break;
    }
    to->Add(s);

    s = from;
    const bool more = s[kTaken] < s[kPosted];
    switch (s[kReader]) {
      case kTake:
        if (s[kPaused] != 0 || !more) break;
        ++s[kTaken];
        ++s[kUntold];
        if (s[kTaken] - s[kCredit] >= kDue) s[kReader] = kPublish;
        break;
      case kPublish:
        s[kCredit] = s[kTaken];
        s[kReader] = kAsk;
        break;
      case kAsk:
        s[kReader] = s[kBit] == 0 || (s[kUntold] < kWorth && more) ? kTake
                     : bit_after_bump                              ? kBump
                                                                   : kClear;
        break;
      case kClear:
        s[kUntold] = 0;
        s[kBit] = 0;
        s[kReader] = bit_after_bump ? kTake : kBump;
        break;
      case kBump:
        ++s[kWord];
        s[kReader] = kWake;
        break;
      case kWake:
        Wakes(&s);
        s[kReader] = bit_after_bump ? kClear : kTake;
        break;
    }
    to->Add(s);
    if (pauses && from[kReader] == kTake && from[kPaused] == 0) {
      s = from;
      s[kPaused] = 1;
      to->Add(s);
    }

    // Another thread of the writer's process takes news of credit (poll, or
    // the timer below).
    if (!Latched(from) && from[kOther] < 1 && from[kCredit] > from[kSeen]) {
      s = from;
      ++s[kOther];
      Hear(&s, !heard_without_bump);
      to->Add(s);
    }
    if (from[kTimer] != 0 && !Latched(from)) {
      s = from;
      s[kTimer] = 0;
      Hear(&s, true);
      if (HasRoom(s)) {
        if (s[kPosted] == s[kPostedThen] && !timer_tells_nobody) {
          ++s[kWord];
          Wakes(&s);
        }
      } else if (s[kTaken] != s[kTakenThen]) {
        if (!no_timer_again) s[kTimer] = 1;
        s[kPostedThen] = s[kPosted];
        s[kTakenThen] = s[kTaken];
      } else {
        s[kDemoted] = 1;
        ++s[kWord];
        Wakes(&s);
      }
      to->Add(s);
    }
  }
};

TEST(RoomModel, NobodyWaitsForEver) {
  EXPECT_FALSE(Hangs(Room{}));
  EXPECT_FALSE(Hangs(Room{.pauses = true}));
}
TEST(RoomModel, NewsThatAnotherThreadTakes) {
  EXPECT_TRUE(Hangs(Room{.heard_without_bump = true}));
}
TEST(RoomModel, WishThenLookThenSleep) {
  EXPECT_TRUE(Hangs(Room{.no_look = true}));
  EXPECT_TRUE(Hangs(Room{.look_before_wish = true}));
}
TEST(RoomModel, TheWishIsTakenAwayBeforeTheBump) {
  EXPECT_TRUE(Hangs(Room{.bit_after_bump = true, .all = 9}));
}
// tests/posix/full_rings, reader_pauses and both_write.
TEST(RoomModel, LittleRoomIsToldThoughTheReaderPauses) {
  EXPECT_TRUE(Hangs(Room{.timer_tells_nobody = true, .pauses = true}));
}
TEST(RoomModel, TheTimerRunsWhileSomebodyMayWait) {
  EXPECT_TRUE(Hangs(Room{.no_timer_again = true, .pauses = true}));
}

// --- Readers that wait for a message, or for the stream to change

struct Input {
  bool no_look = false;          // SleepRx: the slot after the wish
  bool bit_after_bump = false;   // AfterPublish
  bool pin_after_look = false;   // SleepOn
  bool ask_before_bump = false;  // WakeRx: the count before the word
  // Two readers, as many messages; or one, and the stream changes instead.
  bool changes = false;

  enum { kLook, kPin, kAgain, kWish, kLookAgain, kSleep, kAsleep, kEnd };
  enum { kPost, kAsk, kClear, kBump, kWake, kChange, kSeqBump, kPins, kOver };
  enum {
    kReader,
    kHeldWord = kReader + 2,
    kHeldSeq = kHeldWord + 2,
    kSender = kHeldSeq + 2,
    kPosted,
    kTaken,
    kWord,
    kSeq,
    kBit,
    kPinned,
    kChanged,
    kSize,
  };
  using State = std::array<std::uint8_t, kSize>;

  State First() const {
    State s{};
    if (changes) {
      s[kReader + 1] = kEnd;
      s[kSender] = ask_before_bump ? kPins : kChange;
    }
    return s;
  }
  bool Done(const State& s) const {
    return s[kReader] == kEnd && s[kReader + 1] == kEnd;
  }
  static void Wakes(State* s) {
    for (int i = 0; i < 2; ++i) {
      if ((*s)[kReader + i] != kAsleep) continue;
      (*s)[kReader + i] = kLook;
      --(*s)[kPinned];
    }
  }

  void Steps(const State& from, Next<State>* to) const {
    for (int i = 0; i < 2; ++i) {
      State s = from;
      std::uint8_t& at = s[kReader + i];
      switch (at) {
        case kLook:  // under the latch, with what was read before
          s[kHeldSeq + i] = s[kSeq];
          s[kHeldWord + i] = s[kWord];
          if (s[kChanged] != 0) {
            at = kEnd;
          } else if (s[kTaken] < s[kPosted]) {
            ++s[kTaken];
            at = kEnd;
          } else {
            at = pin_after_look ? kAgain : kPin;
          }
          break;
        case kPin:
          ++s[kPinned];
          at = pin_after_look ? kWish : kAgain;
          break;
        case kAgain:
          if (s[kSeq] != s[kHeldSeq + i]) {
            if (!pin_after_look) --s[kPinned];
            at = kLook;
          } else {
            at = pin_after_look ? kPin : kWish;
          }
          break;
        case kWish:
          s[kBit] = 1;
          at = no_look ? kSleep : kLookAgain;
          break;
        case kLookAgain:
          at = kSleep;
          if (s[kTaken] < s[kPosted]) {
            --s[kPinned];
            at = kLook;
          }
          break;
        case kSleep:
          at = kAsleep;
          if (s[kWord] != s[kHeldWord + i]) {
            --s[kPinned];
            at = kLook;
          }
          break;
        default:
          break;
      }
      to->Add(s);
    }
    State s = from;
    std::uint8_t& at = s[kSender];
    switch (at) {
      case kPost:
        if (s[kPosted] == 2) break;
        ++s[kPosted];
        at = kAsk;
        break;
      case kAsk:
        at = s[kBit] == 0 ? kPost : bit_after_bump ? kBump : kClear;
        break;
      case kClear:
        s[kBit] = 0;
        at = bit_after_bump ? kPost : kBump;
        break;
      case kBump:
        ++s[kWord];
        at = kWake;
        break;
      case kWake:
        Wakes(&s);
        at = changes          ? ask_before_bump ? kChange : kOver
             : bit_after_bump ? kClear
                              : kPost;
        break;
      case kChange:
        s[kChanged] = 1;
        at = kSeqBump;
        break;
      case kSeqBump:
        ++s[kSeq];
        at = ask_before_bump ? kOver : kPins;
        break;
      case kPins:
        at = s[kPinned] != 0 ? kBump : ask_before_bump ? kChange : kOver;
        break;
      default:
        break;
    }
    to->Add(s);
  }
};

TEST(InputModel, NobodyWaitsForEver) {
  EXPECT_FALSE(Hangs(Input{}));
  EXPECT_FALSE(Hangs(Input{.changes = true}));
}
TEST(InputModel, WishThenLookThenSleep) {
  EXPECT_TRUE(Hangs(Input{.no_look = true}));
}
TEST(InputModel, TheWishIsTakenAwayBeforeTheBump) {
  EXPECT_TRUE(Hangs(Input{.bit_after_bump = true}));
}
TEST(InputModel, CountedBeforeTheLastLook) {
  EXPECT_TRUE(Hangs(Input{.pin_after_look = true, .changes = true}));
}
TEST(InputModel, ChangedBeforeTheCountIsLookedAt) {
  EXPECT_TRUE(Hangs(Input{.ask_before_bump = true, .changes = true}));
}

// --- A stream whose lane rings another bell from now on (LaneNotice::Tell)

// A message comes while the bell of a set takes the place of the conductor's.
// The sender may look at the wish before its message is visible.  Nobody fences
// or looks behind the new wish.
struct NewBell {
  // Rules to leave out.
  bool rang_none = false;  // the lane has rung the conductor's bell until now
  bool kept = false;       // the conductor passes on what rings its bell

  enum { kNone, kConductors, kSets };  // wishes
  enum { kLoad, kPublish, kRing, kSent };
  enum { kWish, kTold };
  enum { kArm, kLook, kSleep, kFound };
  enum { kSender, kSeen, kVisible, kTeller, kNow, kSleeper, kWoken, kRung };
  using State = std::array<std::uint8_t, 8>;

  State First() const {
    State s{};
    s[kNow] = rang_none ? kNone : kConductors;
    return s;
  }
  bool Done(const State& s) const {
    return s[kSender] == kSent && s[kTeller] == kTold && s[kSleeper] == kFound;
  }
  // A heavy fence: what the sender has posted is visible.
  static void Fence(State* s) {
    if ((*s)[kSender] == kPublish) (*s)[kVisible] = 1;
  }

  void Steps(const State& s, Next<State>* next) const {
    State to = s;
    switch (s[kSender]) {
      case kLoad:
        to[kSeen] = s[kNow];
        to[kSender] = kPublish;
        next->Add(to);
        break;
      case kPublish:
        to[kVisible] = 1;
        to[kSender] = kRing;
        next->Add(to);
        break;
      case kRing:
        if (s[kSeen] == kConductors) to[kRung] = 1;
        if (s[kSeen] == kSets) to[kWoken] = 1;
        to[kSender] = kSent;
        next->Add(to);
        break;
    }
    to = s;
    if (s[kTeller] == kWish) {
      to[kNow] = kSets;
      to[kTeller] = kTold;
      next->Add(to);
    }
    to = s;
    if (s[kRung] != 0 && !kept) {
      to[kRung] = 0;
      to[kWoken] = 1;
      next->Add(to);
    }
    to = s;
    switch (s[kSleeper]) {
      case kArm:
        to[kWoken] = 0;
        Fence(&to);
        to[kSleeper] = kLook;
        next->Add(to);
        break;
      case kLook:
        to[kSleeper] = s[kVisible] != 0 ? kFound : kSleep;
        next->Add(to);
        break;
      case kSleep:
        if (s[kWoken] == 0) break;
        to[kSleeper] = kArm;
        next->Add(to);
        break;
    }
  }
};

TEST(NewBell, NoMessageIsMissed) { EXPECT_FALSE(Hangs(NewBell{})); }
TEST(NewBell, TheConductorsBellHasBeenRungBefore) {
  EXPECT_TRUE(Hangs(NewBell{.rang_none = true}));
}
TEST(NewBell, TheConductorPassesOnWhatRingsItsBell) {
  EXPECT_TRUE(Hangs(NewBell{.kept = true}));
}

}  // namespace
}  // namespace rcsock
