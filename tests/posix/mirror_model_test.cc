// A model of a set of epoll that another one holds: the rules of
// EpollSet::UpdateMirror, of the conductor that hears the bell, and of a thread
// that sleeps in the outer set.

#include <gtest/gtest.h>

#include <array>
#include <cstdint>

#include "tests/base/model.h"

namespace rcsock {
namespace {

struct Mirrored {
  // Rules to leave out.
  bool no_renewal = false;  // before the look that lowers
  bool renewal_behind_look = false;
  bool conductor_only_renews = false;  // and does not look
  bool lower_without_latch = false;    // the look is not the one that lowers

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
    kEdge,
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

  void Send(const State& s, Next<State>* to) const {
    State n = s;
    switch (s[kSender]) {
      case 0:
        if (s[kPosted] == kAll) return;
        ++n[kPosted];
        n[kSender] = 1;
        break;
      case 1:
        n[kSaw] = s[kBell];
        n[kSender] = s[kBell] != s[kKicked] ? 2 : 0;
        break;
      case 2:
        n[kEdge] = 1;
        n[kSender] = 3;
        break;
      default:
        n[kKicked] = s[kSaw];
        n[kSender] = 0;
    }
    to->Add(n);
  }

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
        if (s[kLatch] != 0) return;
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
    Send(s, to);
    if (s[kConductor] != kIdle) {
      Update(s, kConductor, kIdle, to);
    } else if (s[kEdge] != 0) {
      State n = s;
      n[kEdge] = 0;
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

TEST(MirrorModel, NoWakeUpIsLost) { EXPECT_GT(Search<Mirrored>::Run({}), 0); }

TEST(MirrorModel, EachRuleIsNeeded) {
  EXPECT_EQ(Search<Mirrored>::Run({.no_renewal = true}), 0);
  EXPECT_EQ(Search<Mirrored>::Run({.renewal_behind_look = true}), 0);
  EXPECT_EQ(Search<Mirrored>::Run({.conductor_only_renews = true}), 0);
  EXPECT_EQ(Search<Mirrored>::Run({.lower_without_latch = true}), 0);
}

}  // namespace
}  // namespace rcsock
