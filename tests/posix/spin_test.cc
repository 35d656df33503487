// How long a thread spins: what it loses by that, where others want its CPU.

#include "lib/posix/thread/spin.h"

#include <gtest/gtest.h>

#include <cstdint>

#include "lib/base/clock.h"

namespace rcsock::posix {
namespace {

constexpr std::uint32_t kSpinUs = 100;

struct Outcome {
  double lost = 0;    // part of the time
  double asleep = 0;  // part of the waits that did not spin
  int losses = 0;
};

// A thread that waits each `every_us`, for `for_us` in all; whenever it spins
// while others want the CPU it gets that back after `lost_us`.
Outcome Busy(SpinBudget* budget, std::uint64_t every_us, std::uint64_t lost_us,
             std::uint64_t for_us, std::uint64_t* now_us) {
  Outcome run;
  int waits = 0;
  int held = 0;
  std::uint64_t lost = 0;
  const std::uint64_t begin = *now_us;
  for (; *now_us - begin < for_us; *now_us += every_us) {
    ++waits;
    if (budget->Held(*now_us * base::ticks_per_us)) {
      ++held;
      continue;
    }
    EXPECT_EQ(budget->us, kSpinUs);
    *now_us += lost_us;
    lost += lost_us;
    ++run.losses;
    budget->Lost(lost_us * base::ticks_per_us, *now_us * base::ticks_per_us);
  }
  run.lost = static_cast<double>(lost) / static_cast<double>(*now_us - begin);
  run.asleep = static_cast<double>(held) / waits;
  return run;
}

TEST(Spin, LossesAreASmallPartOfTheTime) {
  // One who works beside it, two, thirty; a machine whose turns are short.
  for (const std::uint64_t lost_us : {200, 3'000, 6'000, 75'000}) {
    for (const std::uint64_t every_us : {20, 1'000, 10'000, 60'000}) {
      SpinBudget budget;
      budget.us = kSpinUs;
      std::uint64_t now_us = 1'000'000;
      const Outcome run = Busy(&budget, every_us, lost_us, 20'000'000, &now_us);
      EXPECT_LT(run.lost, 0.125) << lost_us << " us each " << every_us;
      EXPECT_GT(run.losses, 0);
    }
  }
}

TEST(Spin, AShortLossCostsTwoMilliseconds) {
  SpinBudget budget;
  budget.us = kSpinUs;
  const std::uint64_t now = 1'000'000 * base::ticks_per_us;
  budget.Lost(90 * base::ticks_per_us, now);
  EXPECT_FALSE(budget.Held(now));
  budget.Lost(200 * base::ticks_per_us, now);
  EXPECT_TRUE(budget.Held(now));
  EXPECT_EQ(budget.us, 0u);
  EXPECT_TRUE(budget.Held(now + 1'999 * base::ticks_per_us));
  EXPECT_FALSE(budget.Held(now + 2'000 * base::ticks_per_us));
  EXPECT_EQ(budget.us, kSpinUs);
}

TEST(Spin, SpinsAgainWhenTheOthersHaveGone) {
  SpinBudget budget;
  budget.us = kSpinUs;
  std::uint64_t now_us = 1'000'000;
  Busy(&budget, 100, 75'000, 60'000'000, &now_us);
  // However long it was: two seconds.
  now_us += 2'000'000;
  EXPECT_FALSE(budget.Held(now_us * base::ticks_per_us));
  EXPECT_EQ(budget.us, kSpinUs);
  // And what is long past makes the next hold no longer.
  now_us += 60'000'000;
  budget.Lost(200 * base::ticks_per_us, now_us * base::ticks_per_us);
  EXPECT_TRUE(budget.Held(now_us * base::ticks_per_us));
  EXPECT_FALSE(budget.Held((now_us + 2'000) * base::ticks_per_us));
}

TEST(Spin, AStoppedMachineSaysNothing) {
  SpinBudget budget;
  budget.us = kSpinUs;
  const std::uint64_t now = 1'000'000'000 * base::ticks_per_us;
  budget.Lost(600'000'000 * base::ticks_per_us, now);
  EXPECT_TRUE(budget.Held(now));
  EXPECT_FALSE(budget.Held(now + 2'000'000 * base::ticks_per_us));
}

void GiveWayTwice(SpinBudget* budget, std::uint64_t now) {
  budget->Yielded(5 * base::ticks_per_us, now);
  budget->Yielded(5 * base::ticks_per_us, now);
}

TEST(Spin, OneYieldThatTakesLongSaysNothing) {
  SpinBudget budget;
  budget.us = kSpinUs;
  const std::uint64_t now = 1'000'000 * base::ticks_per_us;
  for (int i = 0; i < 10; ++i) {
    budget.Yielded(5 * base::ticks_per_us, now);
    EXPECT_FALSE(budget.Held(now));
    budget.Yielded(base::ticks_per_us, now);
    EXPECT_FALSE(budget.Held(now));
  }
}

// How often a spin of this thread yields, if each yield takes so long.
int YieldsOfASpin(std::uint64_t yield_us) {
  int yields = 0;
  Spinner spin;
  while (spin.Go([&] {
    ++yields;
    const std::uint64_t until = base::Ticks() + yield_us * base::ticks_per_us;
    while (base::Ticks() < until) base::CpuRelax();
  })) {
  }
  return yields;
}

TEST(Spin, YieldsThatGiveWayAreTwoInASlice) {
  const SpinBudget before = base::tls_spin;
  int first = 0;
  // A thread that has lost its CPU meanwhile makes none.
  for (int i = 0; i < 1'000 && first != 2; ++i) {
    base::tls_spin = {};
    // Longer than any spin of a busy machine.
    base::tls_spin.Begin(10'000'000, false);
    first = YieldsOfASpin(5);
    EXPECT_LE(first, 1);
    first += YieldsOfASpin(5);
  }
  EXPECT_EQ(first, 2);
  EXPECT_TRUE(base::tls_spin.held);
  // Until the kernel has forgotten these.
  int yields = 0;
  for (int i = 0; i < 20; ++i) yields += YieldsOfASpin(5);
  if (base::Ticks() < base::tls_spin.hold_end) {
    EXPECT_EQ(yields, 0);
  }
  base::tls_spin = before;
}

TEST(Spin, GivingWayHoldsForASlice) {
  SpinBudget budget;
  budget.us = kSpinUs;
  const std::uint64_t now = 1'000'000 * base::ticks_per_us;
  GiveWayTwice(&budget, now);
  EXPECT_EQ(budget.us, 0u);
  EXPECT_TRUE(budget.Held(now + 3'999 * base::ticks_per_us));
  EXPECT_FALSE(budget.Held(now + 4'000 * base::ticks_per_us));
  EXPECT_EQ(budget.us, kSpinUs);
  // It is no loss: the next loss is the first one.
  budget.Lost(200 * base::ticks_per_us, now + 5'000 * base::ticks_per_us);
  EXPECT_FALSE(budget.Held(now + 7'000 * base::ticks_per_us));
  // Nor does it make a loss of long ago a recent one.
  GiveWayTwice(&budget, now + 1'000'000 * base::ticks_per_us);
  EXPECT_FALSE(budget.Held(now + 1'004'000 * base::ticks_per_us));
  budget.Lost(200 * base::ticks_per_us, now + 1'005'000 * base::ticks_per_us);
  EXPECT_FALSE(budget.Held(now + 1'007'000 * base::ticks_per_us));
}

TEST(Spin, AThreadThatGivesWaySpendsWhatItHasAndNoMore) {
  SpinBudget budget;
  budget.Begin(kSpinUs, true);
  std::uint64_t now = 1'000'000 * base::ticks_per_us;
  int spins = 0;
  for (int i = 0; i < 1'000; ++i) {
    budget.Held(now);
    if (budget.us != 0) {
      ++spins;
      GiveWayTwice(&budget, now);
      budget.Spun(12 * base::ticks_per_us, false, kSpinUs);
    }
    now += 5'000 * base::ticks_per_us;
  }
  EXPECT_LT(spins, 50);
}

}  // namespace
}  // namespace rcsock::posix
