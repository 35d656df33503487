// What RC_DCHECK and the ranks of latches find, where they are on.

#include "lib/base/dcheck.h"

#include <gtest/gtest.h>

#include "lib/base/held_latches.h"
#include "lib/base/latch.h"

namespace rcsock::base {
namespace {

class Dcheck : public testing::Test {
 protected:
  void SetUp() override {
    testing::FLAGS_gtest_death_test_style = "threadsafe";
    if (!RC_DCHECK_IS_ON) GTEST_SKIP() << "not in this build";
  }
  Latch wait_{LatchRank::kWait};
  Latch tx_{LatchRank::kTx};
  Latch rx_{LatchRank::kRx};
  Latch plain_;
};

TEST_F(Dcheck, SaysWhatDoesNotHold) {
  const int one = 1;
  RC_DCHECK(one == 1);
  EXPECT_DEATH(RC_DCHECK(one == 2),
               "dcheck_test.cc:[0-9]+: not true: one == 2");
}

TEST_F(Dcheck, OrderOfLatches) {
  {
    const LatchGuard wait(wait_);
    const LatchGuard tx(tx_);
    const LatchGuard rx(rx_);
    const LatchGuard plain(plain_);
  }
  EXPECT_DEATH(
      {
        const LatchGuard rx(rx_);
        const LatchGuard tx(tx_);
      },
      "not true");
  // Two of one rank, too.
  EXPECT_DEATH(
      {
        Latch other(LatchRank::kTx);
        const LatchGuard one(tx_);
        const LatchGuard two(other);
      },
      "not true");
}

TEST_F(Dcheck, OneThatIsTriedMayBeOutOfOrder) {
  const LatchGuard rx(rx_);
  ASSERT_TRUE(tx_.try_lock());
  tx_.unlock();
}

TEST_F(Dcheck, LatchOfItsOwn) {
  EXPECT_DEATH(
      {
        plain_.lock();
        plain_.lock();
      },
      "not true");
  EXPECT_DEATH(plain_.AssertHeld(), "not true");
  EXPECT_DEATH(plain_.unlock(), "not true");
}

TEST_F(Dcheck, NoLatchIsHeldAsleep) {
  CheckMaySleep();
  EXPECT_DEATH(
      {
        const LatchGuard tx(tx_);
        CheckMaySleep();
      },
      "not true");
}

TEST_F(Dcheck, ResetForgetsTheHolder) {
  tx_.LockForFork();
  tx_.UnlockAfterFork(true);
  CheckMaySleep();
  const LatchGuard again(tx_);
}

}  // namespace
}  // namespace rcsock::base
