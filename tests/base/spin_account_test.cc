// What a thread may spin.  Arrivals are simulated: the clock is the test's own.

#include "lib/base/spin_account.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <random>

#include "lib/base/spin_budget.h"

namespace rcsock::base {
namespace {

constexpr std::uint32_t kMostUs = 100;

// Figures of a machine: what TCP costs this end for a message there and back
// beyond what the lane costs, and what a sleep costs both ends.
constexpr double kSavedNs = 3'500;
constexpr double kSleepNs = 9'500;

struct Outcome {
  double spun_ns = 0;     // in all
  double over_tcp = 0;    // CPU time beyond TCP's, for a wait
  double over_sleep = 0;  // CPU time beyond that without spinning, for a wait
  double found = 0;       // part of the waits that did not sleep
};

// A thread that waits `waits` times.  `gap` is how long the next wait lasts in
// nanoseconds, and `asleep` whether the message before had to wake the peer.
Outcome Simulate(int waits, const std::function<double(bool slept)>& gap,
                 const std::function<bool()>& asleep) {
  SpinAccount account;
  Outcome run;
  double cpu = 0;
  bool slept = true;
  std::uint32_t us = kMostUs;
  for (int i = 0; i < waits; ++i) {
    if (asleep()) us = account.AllowedAsleepUs(kMostUs);
    const double length = gap(slept);
    const double limit = us * 1e3;
    slept = length > limit + (us != 0 ? SpinAccount::kLooksNs : 0);
    if (!slept) {
      cpu += length;
      run.found += 1;
      if (length > SpinAccount::kLooksNs) {
        run.spun_ns += length - SpinAccount::kLooksNs;
        account.Found(static_cast<std::int64_t>(length) -
                      SpinAccount::kLooksNs);
      } else {
        account.Quick(1);
      }
      us = account.AllowedUs(kMostUs);
      continue;
    }
    cpu += kSleepNs;
    if (us != 0) {
      cpu += limit + SpinAccount::kLooksNs;
      run.spun_ns += limit;
      account.Missed(static_cast<std::int64_t>(limit));
    }
    account.Slept();
    us = account.AllowedUs(kMostUs);
  }
  run.found /= waits;
  run.over_tcp = cpu / waits - kSavedNs - kSleepNs;
  run.over_sleep = cpu / waits - kSleepNs;
  return run;
}

class Arrivals {
 public:
  explicit Arrivals(double mean_ns) : mean_ns_(mean_ns) {}
  double operator()(bool) {
    return -std::log(1 - uniform_(random_)) * mean_ns_;
  }

 private:
  double mean_ns_;
  std::mt19937_64 random_{7};
  std::uniform_real_distribution<double> uniform_{0, 1};
};

TEST(SpinAccount, NeverCostsMoreThanTcp) {
  // From 100 requests a second to more than a server can answer.
  for (const double rate :
       {100, 2'000, 10'000, 20'000, 50'000, 60'000, 80'000, 120'000, 400'000}) {
    for (const bool asleep : {false, true}) {
      const Outcome run =
          Simulate(200'000, Arrivals(1e9 / rate), [&] { return asleep; });
      EXPECT_LT(run.over_tcp, 100) << rate << " a second, " << asleep;
    }
  }
}

TEST(SpinAccount, AServiceWhosePeersSleepSleeps) {
  for (const double rate : {100, 2'000, 10'000, 20'000}) {
    const Outcome run =
        Simulate(200'000, Arrivals(1e9 / rate), [] { return true; });
    EXPECT_LT(run.over_sleep, kSavedNs / 4) << rate;
    EXPECT_LT(run.found, 0.01) << rate;
  }
}

TEST(SpinAccount, AClosedLoopSpinsForEver) {
  // An answer comes within microseconds from a peer that is awake.  One in a
  // thousand comes late.
  for (const double answer_ns : {800, 3'000, 12'000}) {
    int i = 0;
    const Outcome run = Simulate(
        100'000, [&](bool) { return ++i % 1'000 == 0 ? 500'000.0 : answer_ns; },
        [] { return false; });
    EXPECT_GT(run.found, 0.99) << answer_ns;
  }
}

TEST(SpinAccount, ALoopWhoseEndsBothSleepComesAwake) {
  // The answer takes as long as the peer's wake-up while the peer sleeps.  The
  // peer stays awake behind a try of this end.
  bool awake = false;
  int waits = 0;
  SpinAccount account;
  account.Missed(SpinAccount::kMostNs);  // nothing is left of the beginning
  while (!awake && waits < 10'000) {
    ++waits;
    if (account.AllowedAsleepUs(kMostUs) >= 50) {
      account.Found(50'000);
      awake = account.AllowedUs(kMostUs) >= 50;
    } else {
      account.Slept();
    }
  }
  EXPECT_TRUE(awake);
  EXPECT_LT(waits, 1'000);
}

TEST(SpinAccount, ATryInVainCostsAllThatWasSaved) {
  SpinAccount account;
  EXPECT_EQ(kMostUs, account.AllowedAsleepUs(kMostUs));
  account.Missed(100'000);
  EXPECT_EQ(0u, account.AllowedAsleepUs(kMostUs));
  EXPECT_EQ(0u, account.AllowedUs(kMostUs));
}

TEST(SpinAccount, ACountThatBeginsAnewEarnsNothing) {
  SpinBudget budget;
  budget.Begin(kMostUs, true);
  const int set = 0;
  budget.Count(&set, 7);
  budget.account.Missed(SpinAccount::kMostNs);
  const std::int32_t before = budget.account.credit_ns();
  budget.Count(&set, 0);
  budget.Count(&set, 1);
  EXPECT_EQ(before, budget.account.credit_ns());
  budget.Count(&set, 4);
  EXPECT_EQ(before + 2 * SpinAccount::kQuickNs, budget.account.credit_ns());
}

TEST(SpinAccount, WhatIsSavedHasABound) {
  SpinAccount account;
  for (int i = 0; i < 10'000'000; ++i) account.Slept();
  account.Quick(~0u);
  EXPECT_EQ(SpinAccount::kMostNs, account.credit_ns());
  int misses = 0;
  while (account.AllowedUs(kMostUs) != 0) {
    account.Missed(account.AllowedUs(kMostUs) * 1'000);
    ++misses;
  }
  EXPECT_LT(misses, 20);
}

}  // namespace
}  // namespace rcsock::base
