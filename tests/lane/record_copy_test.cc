#include "lib/lane/shm/record_copy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>

namespace rcsock::lane::shm {
namespace {

// Costs of the two ways; what a sender that goes by RecordCopy makes of them.
struct Costs {
  std::uint32_t plain;
  std::uint32_t streamed;

  // Of `pieces`, as many were copied by the dearer way.
  int Dear(RecordCopy* copy, int pieces) const {
    int dear = 0;
    for (int i = 0; i < pieces; ++i) {
      const bool stream = copy->streams() != copy->tries();
      const std::uint32_t cost = stream ? streamed : plain;
      if (cost > std::min(plain, streamed)) ++dear;
      copy->Took(cost);
    }
    return dear;
  }
};

// As measured: see record_copy.h.
constexpr Costs kCore{329, 240};
constexpr Costs kCache{1'250, 220};
constexpr Costs kApart{4'800, 220};

constexpr int kTry = 24;

TEST(RecordCopy, StaysPlainWithinACore) {
  RecordCopy copy(RecordCopy::kBulk);
  kCore.Dear(&copy, 20'000);
  EXPECT_FALSE(copy.streams());
}

TEST(RecordCopy, StreamsBetweenCores) {
  for (const Costs& costs : {kCache, kApart}) {
    RecordCopy copy(RecordCopy::kBulk);
    EXPECT_EQ(costs.Dear(&copy, 60), 32);
    EXPECT_TRUE(copy.streams());
    // Ever fewer tries: behind 32, 64 and so on up to 8,192 pieces.
    EXPECT_LE(costs.Dear(&copy, 16'384), 9 * kTry);
    EXPECT_LE(costs.Dear(&copy, 81'920), 10 * kTry);
    EXPECT_TRUE(copy.streams());
  }
}

TEST(RecordCopy, StreamsAMessageByItselfOnlyWhereItGoesFar) {
  for (const Costs& costs : {kCore, kCache}) {
    RecordCopy copy(RecordCopy::kAlone);
    costs.Dear(&copy, 20'000);
    EXPECT_FALSE(copy.streams());
  }
  RecordCopy copy(RecordCopy::kAlone);
  kApart.Dear(&copy, 20'000);
  EXPECT_TRUE(copy.streams());
  kCache.Dear(&copy, 20'000);
  EXPECT_FALSE(copy.streams());
}

TEST(RecordCopy, FollowsTheTwoEndsAsTheyMove) {
  RecordCopy copy(RecordCopy::kBulk);
  for (int i = 0; i < 5; ++i) {
    kApart.Dear(&copy, 20'000);
    EXPECT_TRUE(copy.streams()) << i;
    kCore.Dear(&copy, 20'000);
    EXPECT_FALSE(copy.streams()) << i;
    kCache.Dear(&copy, 20'000);
    EXPECT_TRUE(copy.streams()) << i;
    kApart.Dear(&copy, 20'000);
    EXPECT_TRUE(copy.streams()) << i;
    kCore.Dear(&copy, 20'000);
    EXPECT_FALSE(copy.streams()) << i;
  }
}

TEST(RecordCopy, IsNotMovedByAccidents) {
  // A piece now and then takes very long: the thread was off its CPU.
  for (const Costs& costs : {kCore, kApart}) {
    RecordCopy copy(RecordCopy::kBulk);
    costs.Dear(&copy, 1'000);
    const bool streams = copy.streams();
    for (int i = 0; i < 100'000; ++i) {
      const bool stream = copy.streams() != copy.tries();
      copy.Took(i % 97 == 0 ? 1u << 26 : stream ? costs.streamed : costs.plain);
      ASSERT_EQ(copy.streams(), streams) << i;
    }
  }
}

}  // namespace
}  // namespace rcsock::lane::shm
