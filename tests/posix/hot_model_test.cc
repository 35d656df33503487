// A model of the hot streams of a large epoll set: who marks, who looks.

#include <gtest/gtest.h>

#include <array>
#include <cstdint>

#include "tests/base/model.h"

namespace rcsock {
namespace {

// --- A hot stream of a large set, which has marks made for it or not

// The rules of EpollSet::Heat, Cool and DrainPoller: while the stream is looked
// at directly its sender may be told to make no mark; before nobody looks any
// more it is told to make them, and there is a fence of all processes between
// that and the last look.  One thread waits, and changes all this between two
// looks.  A message may stay in its sender's store buffer until a mark, a kick
// or the heavy fence.
//
// With `moves` the registration goes to another large set meanwhile, whose bell
// is the same and where another thread waits; it finds the wish made, by a
// thread that has not come to its fence.  (What is marked is listed there by
// whoever takes the mark.)
struct Hot {
  bool no_wish = false;     // Cool: marks again
  bool no_fence = false;    // ... behind the wish
  bool late_fence = false;  // ... but before the list is looked at
  bool not_listed = false;  // DropDirect: MakeReady
  bool not_ready = false;   // Cool: Registrations::Ready, where it has moved
  bool moves = false;

  static constexpr int kAll = 3;      // messages
  static constexpr int kChanges = 4;  // at most: heated, unmarked, cooled
  enum {
    kLook,
    kList,
    kBits,
    kFence,
    kDrop,
    kLateFence,
    kArm,
    kLookAgain,
    kAsleep,
    kDisarm,
  };
  enum { kPost, kAsk, kMark, kAskArmed, kKick };
  enum { kStays, kGone, kListedThere, kNotified, kOver };
  enum {
    kAt,
    kChanged,
    kDirect,
    kListed,
    kThere,  // the other set's thread
    kThereListed,
    kThereEdge,
    kMover,
    kWish,  // marks
    kBit,
    kArmed,  // of two
    kFresh,
    kOld,
    kEdge,
    kSender,
    kPosted,
    kLanded,
    kTaken,
    kSize,
  };
  using State = std::array<std::uint8_t, kSize>;

  State First() const {
    State s{};
    s[kDirect] = 1;
    s[kThere] = moves ? kList : kAsleep;
    return s;
  }
  bool Done(const State& s) const { return s[kTaken] == kAll; }
  static void Renew(State* s) { (*s)[kFresh] = (*s)[kOld] = 1; }
  bool Here(const State& s) const { return s[kMover] == kStays; }

  // The thread of the set.
  void Wait(const State& from, Next<State>* to) const {
    State s = from;
    const bool more = s[kTaken] < s[kLanded];
    switch (s[kAt]) {
      case kLook:
        if (s[kDirect] != 0 && more) {
          ++s[kTaken];
        } else {
          s[kAt] = kList;
        }
        break;
      case kList:
        s[kAt] = kBits;
        if (s[kListed] == 0) break;
        s[kListed] = 0;
        if (!more) break;
        ++s[kTaken];
        s[kListed] = 1;
        s[kAt] = kLook;
        break;
      case kBits:
        s[kAt] = kArm;
        if (s[kBit] == 0) break;
        s[kBit] = 0;
        if (!Here(s)) {
          s[kThereListed] = s[kMover] >= kListedThere;
          if (s[kThere] == kAsleep) s[kThereEdge] = s[kThereListed];
        } else if (s[kDirect] == 0) {
          s[kListed] = 1;
          s[kAt] = kList;
        }
        break;
      case kFence:
        s[kLanded] = s[kPosted];
        s[kAt] = kDrop;
        break;
      case kDrop:
        if (Here(s)) {
          s[kDirect] = 0;
          s[kListed] = !not_listed;
        } else if (s[kMover] >= kListedThere && !not_ready) {
          s[kThereListed] = 1;
          s[kThereEdge] = 1;
        }
        s[kAt] = late_fence ? kLateFence : kLook;
        break;
      case kLateFence:
        // The look came before.
        s[kListed] = s[kListed] != 0 && more;
        s[kLanded] = s[kPosted];
        s[kAt] = kLook;
        break;
      case kArm:
        ++s[kArmed];
        Renew(&s);
        s[kLanded] = s[kPosted];
        s[kAt] = kLookAgain;
        break;
      case kLookAgain:
        s[kAt] = (s[kDirect] != 0 && more) || s[kListed] != 0 || s[kBit] != 0
                     ? kDisarm
                     : kAsleep;
        break;
      case kAsleep:
        if (s[kEdge] == 0) break;
        s[kEdge] = 0;
        s[kAt] = kDisarm;
        break;
      case kDisarm:
        --s[kArmed];
        Renew(&s);
        s[kAt] = kLook;
        break;
      default:
        break;
    }
    to->Add(s);
    if (from[kAt] != kLook || from[kChanged] == kChanges || !Here(from)) return;
    s = from;
    ++s[kChanged];
    if (s[kDirect] == 0) {
      s[kDirect] = 1;
      to->Add(s);
      return;
    }
    if (s[kWish] != 0) {
      s[kWish] = 0;
      to->Add(s);
      s = from;
      ++s[kChanged];
    }
    s[kWish] = !no_wish;
    s[kAt] = no_fence || late_fence || from[kWish] != 0 ? kDrop : kFence;
    to->Add(s);
  }

  // The other set's, and who registers it there.
  void Elsewhere(const State& from, Next<State>* to) const {
    State s = from;
    const bool more = s[kTaken] < s[kLanded];
    switch (s[kThere]) {
      case kList:
        s[kThere] = kBits;
        if (s[kThereListed] == 0) break;
        s[kThereListed] = 0;
        if (!more) break;
        ++s[kTaken];
        s[kThereListed] = 1;
        s[kThere] = kList;
        break;
      case kBits:
        s[kThere] = kArm;
        if (s[kBit] == 0) break;
        s[kBit] = 0;
        if (Here(s)) {
          if (s[kDirect] == 0) s[kListed] = s[kEdge] = 1;
        } else if (s[kMover] >= kListedThere) {
          s[kThereListed] = 1;
          s[kThere] = kList;
        }
        break;
      case kArm:
        ++s[kArmed];
        Renew(&s);
        s[kLanded] = s[kPosted];
        s[kThere] = kLookAgain;
        break;
      case kLookAgain:
        s[kThere] = s[kThereListed] != 0 || s[kBit] != 0 ? kDisarm : kAsleep;
        break;
      case kAsleep:
        if (s[kThereEdge] == 0) break;
        s[kThereEdge] = 0;
        s[kThere] = kDisarm;
        break;
      case kDisarm:
        --s[kArmed];
        Renew(&s);
        s[kThere] = kList;
        break;
      default:
        break;
    }
    to->Add(s);
    s = from;
    switch (s[kMover]) {
      case kStays:
        if (!moves) return;
        s[kDirect] = s[kListed] = 0;
        s[kMover] = kGone;
        break;
      case kGone:
        s[kThereListed] = 1;
        s[kMover] = kListedThere;
        break;
      case kListedThere:  // KickSleepers
        s[kThereEdge] = 1;
        s[kMover] = kNotified;
        break;
      case kNotified:  // InterestsNotify
        s[kMover] = kOver;
        if (s[kWish] != 0) break;
        s[kWish] = 1;
        s[kLanded] = s[kPosted];
        s[kThereListed] = s[kThereEdge] = 1;
        break;
      default:
        break;
    }
    to->Add(s);
  }

  void Steps(const State& from, Next<State>* to) const {
    Wait(from, to);
    if (moves) Elsewhere(from, to);
    State s = from;
    if (s[kLanded] != s[kPosted]) {
      ++s[kLanded];
      to->Add(s);
      s = from;
    }
    switch (s[kSender]) {
      case kPost:
        if (s[kPosted] == kAll) break;
        ++s[kPosted];
        s[kSender] = kAsk;
        break;
      case kAsk:
        s[kSender] = s[kWish] != 0 ? kMark : kAskArmed;
        break;
      case kMark:
        s[kLanded] = s[kPosted];
        s[kBit] = 1;
        s[kSender] = kAskArmed;
        break;
      case kAskArmed:
        s[kOld] = 0;
        s[kSender] = s[kArmed] == 0 || s[kFresh] == 0 ? kPost : kKick;
        break;
      case kKick:
        s[kLanded] = s[kPosted];
        s[kEdge] = s[kThereEdge] = 1;
        if (s[kOld] == 0) s[kFresh] = 0;
        s[kSender] = kPost;
        break;
      default:
        break;
    }
    to->Add(s);
  }
};

TEST(HotModel, NobodyWaitsForEver) {
  EXPECT_FALSE(Hangs(Hot{}));
  EXPECT_FALSE(Hangs(Hot{.moves = true}));
}
// tests/posix/hot_sets.
TEST(HotModel, WhoIsLookedAtNoMoreIsMarked) {
  EXPECT_TRUE(Hangs(Hot{.no_wish = true}));
}
TEST(HotModel, TheWishThenTheFenceThenTheLook) {
  EXPECT_TRUE(Hangs(Hot{.no_fence = true}));
  EXPECT_TRUE(Hangs(Hot{.late_fence = true}));
  EXPECT_TRUE(Hangs(Hot{.not_listed = true}));
}
TEST(HotModel, WhoHasMovedIsLookedAtBehindTheFence) {
  EXPECT_TRUE(Hangs(Hot{.not_ready = true, .moves = true}));
}

}  // namespace
}  // namespace rcsock
