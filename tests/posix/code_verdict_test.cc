// Looks at the program's code, and the loader that brings more of it: every
// order in which their steps can come.
#include "lib/posix/lifecycle/code_verdict.h"

#include <cstdint>
#include <string>

#include "gtest/gtest.h"

namespace rcsock::posix {
namespace {

using State = CodeVerdict::State;

// A rule that is left out.
enum class Without {
  kNothing,
  kTicket,     // a look counts although an open came since it read the list
  kLookAgain,  // AfterOpen leaves the look to others
  kTime,       // a look need not wait for an unseen open
  kLoader,     // nor for the loader
  kTakeBack,   // an unseen open does not take the verdict back
};

// A library whose code uses streams is opened by one thread.
struct World {
  explicit World(Without rule) : without(rule) {}

  // --- The conductor: reads the list in one step, the code in the next.
  void Look() {
    const std::uint64_t time = without == Without::kTime ? ~0ull / 2 : now;
    const bool busy = without != Without::kLoader && loading;
    if (verdict.state() == State::kMayUseStreams) return;
    if (looks && verdict.IsStale(ticket) && without != Without::kTicket) {
      looks = false;
    }
    if (!looks) {
      if (verdict.WaitNs(time, busy) != 0) return;
      ticket = verdict.BeginLook();
      listed = mapped;
      looks = true;
      return;
    }
    looks = false;
    if (listed) return verdict.Condemn();
    if (without == Without::kTicket) ticket = verdict.BeginLook();
    verdict.Acquit(ticket, time, busy);
  }

  // --- The thread that opens.  Returns false when it has done all.
  bool OpenSeen() {
    switch (step++) {
      case 0:
        loading = true;
        return true;
      case 1:
        mapped = true;
        loading = false;
        return true;
      default:
        verdict.Opened();
        if (verdict.state() == State::kNone && without != Without::kLookAgain) {
          verdict.Condemn();  // it reads the list, and the library is there
        }
        uses = true;
        return false;
    }
  }
  bool OpenUnseen() {
    switch (step++) {
      case 0:
        if (without == Without::kTakeBack) {
          verdict.Opened();
        } else {
          verdict.UnseenOpen(now);
        }
        return true;
      case 1:
        loading = true;
        return true;
      case 2:
        mapped = true;
        return true;
      case 3:
        loading = false;
        return true;
      default:
        uses = true;
        return false;
    }
  }

  bool Bad() const { return uses && verdict.state() == State::kNone; }

  const Without without;
  CodeVerdict verdict;
  std::uint64_t now = 1;
  bool looks = false, listed = false;
  std::uint64_t ticket = 0;
  int step = 0;
  bool loading = false, mapped = false, uses = false;
};

// Runs `schedule`: l, a step of the look; o, of the thread that opens; t, the
// time of an unseen open passes, once its library is being mapped.
bool Bad(const std::string& schedule, bool seen, bool known, Without without) {
  World world(without);
  if (known) world.verdict.Acquit(world.verdict.BeginLook(), 1, false);
  bool more = true;
  for (const char one : schedule) {
    if (one == 'l') {
      world.Look();
    } else if (one == 't') {
      if (world.step >= 2) world.now += CodeVerdict::kUnseenNs + 1;
    } else if (more) {
      more = seen ? world.OpenSeen() : world.OpenUnseen();
    }
    if (world.Bad()) return true;
  }
  return false;
}

// Every schedule of these steps.
bool Find(bool seen, bool known, Without without, int looks, int opens,
          int times, std::string* at) {
  if (looks + opens + times == 0) return Bad(*at, seen, known, without);
  const auto with = [&](char one, int l, int o, int t) {
    at->push_back(one);
    if (Find(seen, known, without, looks - l, opens - o, times - t, at)) {
      return true;
    }
    at->pop_back();
    return false;
  };
  return (looks > 0 && with('l', 1, 0, 0)) ||
         (opens > 0 && with('o', 0, 1, 0)) || (times > 0 && with('t', 0, 0, 1));
}

std::string Found(bool seen, bool known, Without without) {
  std::string at;
  return Find(seen, known, without, 6, seen ? 3 : 5, seen ? 0 : 1, &at)
             ? at
             : "none";
}

TEST(CodeVerdict, NoLanesBesideALibrary) {
  for (const bool seen : {false, true}) {
    for (const bool known : {false, true}) {
      EXPECT_EQ(Found(seen, known, Without::kNothing), "none") << seen << known;
    }
  }
}

TEST(CodeVerdict, EachRuleIsNeeded) {
  EXPECT_NE(Found(true, false, Without::kTicket), "none");
  EXPECT_NE(Found(true, true, Without::kLookAgain), "none");
  EXPECT_NE(Found(false, false, Without::kTime), "none");
  EXPECT_NE(Found(false, false, Without::kLoader), "none");
  EXPECT_NE(Found(false, true, Without::kTakeBack), "none");
}

// A second unseen open has its own time.
TEST(CodeVerdict, TimeIsExtended) {
  CodeVerdict verdict;
  verdict.UnseenOpen(1);
  verdict.UnseenOpen(1 + CodeVerdict::kUnseenNs / 2);
  EXPECT_NE(verdict.WaitNs(2 + CodeVerdict::kUnseenNs, false), 0u);
  EXPECT_EQ(verdict.WaitNs(2 + 2 * CodeVerdict::kUnseenNs, false), 0u);
}

// A loader that has stopped in its work is asked once a second.
TEST(CodeVerdict, StuckLoader) {
  CodeVerdict verdict;
  std::uint64_t wait = 0;
  for (int i = 0; i < 100; ++i) wait = verdict.WaitNs(1, true);
  EXPECT_GE(wait, 1'000'000'000u);
  EXPECT_LE(wait, 2'000'000'000u);
  EXPECT_EQ(verdict.WaitNs(1, false), 0u);
  EXPECT_LE(verdict.WaitNs(1, true), 10'000'000u);
}

TEST(CodeVerdict, ForGood) {
  CodeVerdict verdict;
  verdict.Condemn();
  EXPECT_TRUE(verdict.Acquit(verdict.BeginLook(), 1, false));
  verdict.UnseenOpen(1);
  EXPECT_EQ(verdict.state(), State::kMayUseStreams);
}

}  // namespace
}  // namespace rcsock::posix
