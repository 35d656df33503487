#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "tests/ring/ring_driver.h"

namespace rcsock::ring {
namespace {

using test::Driver;

template <typename D>
void Agree() {
  for (std::uint32_t seed = 1; seed <= 60; ++seed) {
    std::mt19937 random(seed);
    std::vector<std::uint8_t> input(4000);
    for (auto& byte : input) byte = static_cast<std::uint8_t>(random());
    const auto driver = std::make_unique<D>(input.data(), input.size());
    ASSERT_EQ(driver->Run(), "") << "seed " << seed;
  }
}

TEST(Ring, AgreesWithAQueueOfBytes) { Agree<Driver>(); }
TEST(Ring, AgreesOverRdmaToo) { Agree<test::RdmaDriver>(); }

constexpr Geometry kGeometry = Driver::kGeometry;

class TxTest : public testing::Test {
 protected:
  Sent table_[kGeometry.slots];
  Tx tx_{table_, kGeometry};
};

TEST_F(TxTest, SplitsAtTheEndOfTheRing) {
  EXPECT_EQ(tx_.ReserveData(4000).offset, 0u);
  EXPECT_EQ(tx_.ReserveData(4000).offset, 4000u);
  EXPECT_EQ(tx_.ReserveData(4000).offset, 8000u);
  ASSERT_TRUE(tx_.OnCredit(2));
  EXPECT_EQ(tx_.ReserveData(4000).offset, 12000u);
  const Placement tail = tx_.ReserveData(4000);
  EXPECT_EQ(tail.offset, 16000u);
  EXPECT_EQ(tail.length, 384u);
  EXPECT_EQ(tx_.ReserveData(4000).offset, 0u);
}

TEST_F(TxTest, RewindsOnlyWhenAllIsCredited) {
  tx_.ReserveData(100);
  tx_.ReserveCtl(8);
  ASSERT_TRUE(tx_.OnCredit(1));
  EXPECT_EQ(tx_.ReserveData(100).imm.flags, 0);
  ASSERT_TRUE(tx_.OnCredit(3));
  const Placement place = tx_.ReserveData(100);
  EXPECT_EQ(place.imm.flags, kFlagRewind);
  EXPECT_EQ(place.offset, 0u);
}

TEST_F(TxTest, KeepsSlotsForControl) {
  for (std::uint32_t i = 0; i < kGeometry.slots - kCtlSlots; ++i) {
    EXPECT_EQ(tx_.ReserveData(1).length, 1u);
  }
  EXPECT_EQ(tx_.ReserveData(1).length, 0u);
  EXPECT_EQ(tx_.Writable(), 0u);
  for (std::uint32_t i = 0; i < kCtlSlots; ++i) {
    EXPECT_EQ(tx_.ReserveCtl(56).length, 56u);
  }
  EXPECT_EQ(tx_.ReserveCtl(1).length, 0u);
}

TEST_F(TxTest, DoesNotChopBulkIntoLeftovers) {
  for (int i = 0; i < 4; ++i) tx_.ReserveData(4050);
  // 184 bytes are free: enough for a message of 100, no room for a large one.
  EXPECT_EQ(tx_.Writable(), 0u);
  EXPECT_EQ(tx_.ReserveData(5000).length, 0u);
  EXPECT_EQ(tx_.ReserveData(100).length, 100u);
}

// What a device has filled goes where it was claimed, whatever is sent and
// credited between claim and message, and the receiver finds it there.
TEST_F(TxTest, ClaimedBytesGoWhereTheyWereClaimed) {
  std::mt19937 random(1);
  Rx rx(kGeometry);
  const auto take = [&](const Placement& place) {
    ASSERT_TRUE(rx.Accept(Encode(place.imm)));
    if (!rx.in_slot()) {
      EXPECT_EQ(rx.offset(), place.offset);
    }
    rx.Take(rx.left());
  };
  for (int turn = 0; turn < 20'000; ++turn) {
    Filling filling;
    const Stretch one = tx_.Claim(&filling, random() % 9000 + 1);
    const Stretch two = tx_.Claim(&filling, random() % 9000 + 1);
    ASSERT_LE(one.offset + one.length, kGeometry.bytes);
    ASSERT_LE(two.offset + two.length, kGeometry.bytes);
    if (random() % 3 == 0) {
      const Placement small = tx_.ReserveCtl(8);
      if (small.length != 0) take(small);
    }
    if (random() % 3 == 0) {
      ASSERT_TRUE(tx_.OnCredit(rx.next()));
    }
    std::uint32_t at = 0;
    for (const Stretch& part : {one, two}) {
      for (std::uint32_t left = part.length; left != 0;) {
        if (random() % 8 == 0) break;
        at = part.offset + part.length - left;
        const Placement place = tx_.ReserveClaimed(&filling, left);
        if (place.length == 0) break;
        ASSERT_EQ(place.offset, at);
        take(place);
        left -= place.length;
      }
      if (filling.bytes != two.length) break;
    }
    tx_.DropClaims(&filling);
    const Placement next = tx_.ReserveData(random() % 300 + 1);
    if (next.length != 0) take(next);
    if (random() % 2 == 0) {
      ASSERT_TRUE(tx_.OnCredit(rx.next()));
    }
  }
}

TEST(Rx, RefusesNonsense) {
  const Imm bad[] = {
      {Kind::kNone, 0, 10},
      {Kind::kCredit, 0, 10},
      {static_cast<Kind>(7), 0, 10},
      {Kind::kData, 0, 0},
      {Kind::kData, kFlagInline, 0},
      {Kind::kData, kFlagInline, 57},
      {Kind::kData, kFlagInline | kFlagRewind, 10},
      {Kind::kData, 4, 10},
      {Kind::kData, 0, kGeometry.record_max + 1},
      {Kind::kData, 0, kMaxLength},
      {Kind::kCtl, 0, 10},
      {Kind::kCtl, kFlagRewind, 10},
      {Kind::kCtl, kFlagInline, 57},
  };
  for (const Imm& imm : bad) {
    Rx rx(kGeometry);
    EXPECT_FALSE(rx.Accept(Encode(imm)));
    EXPECT_FALSE(rx.active());
    EXPECT_TRUE(rx.Accept(Encode({Kind::kData, 0, 10})));
    EXPECT_EQ(rx.offset(), 0u);
  }
}

TEST(Rx, RefusesAMessageAcrossTheEnd) {
  Rx rx(kGeometry);
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(rx.Accept(Encode({Kind::kData, 0, 4095})));
    rx.Take(4095);
  }
  EXPECT_FALSE(rx.Accept(Encode({Kind::kData, 0, 5})));
  EXPECT_TRUE(rx.Accept(Encode({Kind::kData, 0, 4})));
}

TEST(Rx, CreditIsLazyButNotTooLazy) {
  Rx rx(kGeometry);
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(rx.Accept(Encode({Kind::kData, kFlagInline, 8})));
    rx.Take(8);
    EXPECT_FALSE(rx.CreditDue());
  }
  ASSERT_TRUE(rx.Accept(Encode({Kind::kData, kFlagInline, 8})));
  rx.Take(8);
  EXPECT_TRUE(rx.CreditDue());
  EXPECT_EQ(rx.Publish(), 4u);
  ASSERT_TRUE(rx.Accept(Encode({Kind::kData, 0, 4096})));
  EXPECT_FALSE(rx.Take(4095));
  EXPECT_FALSE(rx.CreditDue());
  EXPECT_TRUE(rx.Take(1));
  EXPECT_TRUE(rx.CreditDue());
}

}  // namespace
}  // namespace rcsock::ring
