// Models of how a child of fork gets a stream that its parent has on a lane
// (lib/posix/sharing/claim.h, on the real class): every interleaving of the
// owner's threads and a child's.

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <utility>

#include "lib/posix/sharing/claim.h"
#include "tests/base/model.h"

namespace rcsock::posix {
namespace {

// The word in a state of the model.
struct Byte {
  constexpr Byte(std::uint32_t value)  // NOLINT: as std::atomic
      : at(static_cast<std::uint8_t>(value)) {}
  std::uint32_t load() const { return at; }
  bool compare_exchange_strong(std::uint32_t& expected, std::uint32_t to) {
    const bool same = at == expected;
    if (same) at = static_cast<std::uint8_t>(to);
    expected = same ? expected : at;
    return same;
  }
  std::uint8_t at;
};
using Word = ClaimOn<Byte>;

// One thread of the owner adopts the stream (TryAdopt) and leaves its lane
// again (LeaveIfAsked, BackToPlain); another one forks (HideFromChild), and
// then closes the stream, which it finds on TCP (Holders::Leave); the child
// uses its copy (UnusedCopy::Reveal).  A state in which the child uses the
// stream while the engine has it moves no more, and so is a hang.
struct Model {
  // Rules to leave out.
  bool looks_first = false;      // TryAdopt: the holders, then Keep
  bool asks_first = false;       // the child: Ask, then Use
  bool gives_first = false;      // BackToPlain: Give, then the mode
  bool fork_looks = true;        // HideFromChild: the mode, behind Keep
  bool fork_keeps_late = false;  // HideFromChild: kept_, then Keep
  bool close_gives = true;       // Holders::Leave: Give
  bool closes = true;            // a close gives what a fork has kept, too
  bool begins_on_lane = true;    // at the fork

  enum {
    kWord,
    kEngine,   // the mode
    kHolders,  // that are counted
    kOwner,
    kFork,
    kChild,
    kKeeps,  // ClaimKeeper::kept_
    kClosed,
    kSize
  };
  using State = std::array<std::uint8_t, kSize>;
  enum { kBegins, kLooks, kOnLane, kSets, kGives, kLeft };
  enum { kForks, kKept, kChecks, kForked };
  enum { kUnborn, kUses, kAsks, kWaits, kInside, kEnds };

  State First() const {
    State state{};
    state[kHolders] = 1;
    state[kEngine] = begins_on_lane ? 1 : 0;
    state[kOwner] = begins_on_lane ? kOnLane : kLeft;
    state[kKeeps] = state[kEngine];
    return state;
  }
  bool Done(const State& state) const {
    return state[kChild] == kEnds && state[kFork] == kForked;
  }
  static void Keep(State& state, Word& word) {
    state[kKeeps] = 1;
    word.Keep();
  }
  // Behind Holders::Leave there is nothing to give.
  static void Give(State& state, Word& word) {
    if (state[kClosed] == 0 && std::exchange(state[kKeeps], 0) != 0) {
      word.Give();
    }
  }
  template <class Act>
  static void On(const State& from, Next<State>* to, int thread, int then,
                 Act&& act) {
    State state = from;
    Word word;
    word.word = Byte(state[kWord]);
    state[thread] = static_cast<std::uint8_t>(then);
    act(state, word);
    state[kWord] = word.word.at;
    to->Add(state);
  }

  void Owner(const State& s, Next<State>* to) const {
    const auto look = [](State& state, Word& word) {
      if (state[kHolders] == 1) return;
      state[kEngine] = 0;
      Give(state, word);
      state[kOwner] = kLeft;
    };
    switch (s[kOwner]) {
      case kLeft:
        // The adoption begins while nobody else seems to have the connection.
        if (s[kHolders] == 1 && s[kChild] != kEnds && s[kClosed] == 0) {
          On(s, to, kOwner, kBegins,
             [](State& state, Word&) { state[kEngine] = 1; });
        }
        break;
      case kBegins:
        if (looks_first) {
          On(s, to, kOwner, kLooks, look);
        } else {
          On(s, to, kOwner, kLooks, Keep);
        }
        break;
      case kLooks:
        if (looks_first) {
          On(s, to, kOwner, kOnLane, Keep);
        } else {
          On(s, to, kOwner, kOnLane, look);
        }
        break;
      case kOnLane:
        // The child's ring, or another reason.
        On(s, to, kOwner, kSets, [](State&, Word&) {});
        break;
      case kSets:
        On(s, to, kOwner, kGives, [this](State& state, Word& word) {
          gives_first ? Give(state, word) : void(state[kEngine] = 0);
        });
        break;
      case kGives:
        On(s, to, kOwner, kLeft, [this](State& state, Word& word) {
          gives_first ? void(state[kEngine] = 0) : Give(state, word);
        });
        break;
      default:
        break;
    }
  }

  void Steps(const State& s, Next<State>* to) const {
    // TryAdopt puts nothing on the connection before it has looked.
    const bool looks = s[kOwner] == kBegins || s[kOwner] == kLooks;
    if (s[kChild] == kInside && s[kEngine] != 0 && !looks) return;
    Owner(s, to);
    if (s[kFork] == kForks && !looks) {
      On(s, to, kFork, kKept, [this](State& state, Word& word) {
        fork_keeps_late ? void(state[kKeeps] = 1) : word.Keep();
      });
    } else if (s[kFork] == kKept) {
      On(s, to, kFork, kChecks, [this](State& state, Word& word) {
        fork_keeps_late ? word.Keep() : void(state[kKeeps] = 1);
      });
    } else if (s[kFork] == kChecks) {
      On(s, to, kFork, kForked, [this](State& state, Word& word) {
        state[kChild] = kUses;
        if (!fork_looks || state[kEngine] != 0) return;
        Give(state, word);
        // No hidden copy, but one more that uses the stream.
        ++state[kHolders];
        state[kChild] = kAsks;
      });
    } else if (closes && s[kFork] == kForked && s[kEngine] == 0 &&
               s[kClosed] == 0) {
      On(s, to, kFork, kForked, [this](State& state, Word& word) {
        if (close_gives) Give(state, word);
        state[kClosed] = 1;
        --state[kHolders];
      });
    }
    const bool asks = s[kChild] == (asks_first ? kUses : kAsks);
    if (s[kChild] == (asks_first ? kAsks : kUses)) {
      On(s, to, kChild, asks_first ? kInside : kAsks,
         [](State& state, Word&) { ++state[kHolders]; });
    } else if (asks || s[kChild] == kWaits) {
      On(s, to, kChild, kWaits, [this](State& state, Word& word) {
        if (word.Ask() == Word::kKernels) {
          state[kChild] = asks_first ? kAsks : kInside;
        }
      });
    } else if (s[kChild] == kInside) {
      On(s, to, kChild, kEnds, [](State&, Word&) {});
    }
  }
};

TEST(ClaimModelTest, TheChildGetsTheStreamAndNoFrameIsAmongItsBytes) {
  EXPECT_FALSE(Hangs(Model{}));
  EXPECT_FALSE(Hangs(Model{.closes = false}));
  EXPECT_FALSE(Hangs(Model{.begins_on_lane = false}));
}

TEST(ClaimModelTest, EachRuleIsNeeded) {
  EXPECT_TRUE(Hangs(Model{.looks_first = true}));
  EXPECT_TRUE(Hangs(Model{.asks_first = true}));
  EXPECT_TRUE(Hangs(Model{.gives_first = true}));
  EXPECT_TRUE(Hangs(
      Model{.fork_looks = false, .closes = false, .begins_on_lane = false}));
  EXPECT_TRUE(Hangs(Model{.fork_keeps_late = true, .closes = false}));
  EXPECT_TRUE(Hangs(Model{.close_gives = false}));
}

}  // namespace
}  // namespace rcsock::posix
