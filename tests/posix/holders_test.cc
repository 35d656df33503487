// The table of connections that several processes hold, when it is full.
#include "lib/posix/sharing/holders.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <set>

namespace rcsock::posix {
namespace {

constexpr int kAll = 1 << 17;

TEST(HoldersTest, AFullTableRefusesAndWhatIsLetGoIsFoundAgain) {
  std::set<int> numbers;
  for (int i = 0; i < kAll; ++i) {
    const int number = MakeHolding();
    ASSERT_GE(number, 0) << i;
    ASSERT_TRUE(numbers.insert(number).second) << number;
  }
  EXPECT_EQ(FindHolding(kAll), nullptr);
  EXPECT_EQ(FindHolding(-1), nullptr);
  EXPECT_EQ(MakeHolding(), -1);

  // Let go by two holders of which one is another process.
  constexpr int kFree = kAll / 2 + 7;
  Holding* const one = FindHolding(kFree);
  one->tx = 5;
  one->count.fetch_add(1);
  EXPECT_FALSE(one->Alone());
  const pid_t child = ::fork();
  if (child == 0) {
    FindHolding(kFree)->Leave();
    ::_exit(0);
  }
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_TRUE(one->Alone());
  one->Leave();
  EXPECT_EQ(one->count.load(), 0u);

  // One with the mark is free only once the last has left.
  constexpr int kSpoilt = 3;
  Holding* const other = FindHolding(kSpoilt);
  other->count.fetch_or(Holding::kSpoilt);
  EXPECT_FALSE(other->Alone());
  other->Leave();
  EXPECT_EQ(other->count.load(), 0u);
  // So with all marks.  One whose holders are not all counted is never ended
  // by the last that is.
  other->count.store(2 | Holding::kMarks);
  other->Leave();
  EXPECT_FALSE(other->OfOne());
  other->count.fetch_and(~Holding::kUncounted);
  EXPECT_TRUE(other->OfOne());
  other->count.fetch_or(Holding::kUncounted);
  other->Leave();
  EXPECT_EQ(other->count.load(), 0u);

  // No call looks through all of a full table, but all of it is looked at.
  std::set<int> found;
  for (int i = 0; i < 2 * kAll / 512; ++i) {
    if (const int number = MakeHolding(); number >= 0) found.insert(number);
  }
  EXPECT_EQ(found, (std::set<int>{kFree, kSpoilt}));
  EXPECT_EQ(one->tx.load(), 0u);
  EXPECT_TRUE(one->Alone());
  EXPECT_EQ(MakeHolding(), -1);
}

TEST(HoldersTest, HiddenCopiesAreTheirOwnersBusiness) {
  // The table may be full: the test before this one fills it.
  Holding one{};
  one.count = 1;
  ASSERT_TRUE(one.Hide());
  EXPECT_TRUE(one.AloneIs(true));
  EXPECT_FALSE(one.AloneIs(false));
  EXPECT_FALSE(one.Alone());
  EXPECT_FALSE(one.OfOne());
  EXPECT_TRUE(one.OfSeveral());
  one.Use();
  EXPECT_FALSE(one.AloneIs(true));
  EXPECT_TRUE(one.OfSeveral());
  one.Leave();
  EXPECT_TRUE(one.Alone());
  // A copy outlives its owner, and then is the only one.
  ASSERT_TRUE(one.Hide());
  one.Leave();
  EXPECT_NE(one.count.load(), 0u);
  one.Use();
  EXPECT_TRUE(one.Alone());
  one.count.fetch_or(Holding::kSpoilt);
  ASSERT_TRUE(one.Hide());
  one.Leave();
  one.Unhide();
  EXPECT_EQ(one.count.load(), 0u);
  EXPECT_FALSE(one.Hide());
  // There is room for some thousand copies.
  one.count = 1;
  for (std::uint32_t i = 0; i < Holding::kMostHidden; ++i) {
    ASSERT_EQ(one.MayHideMore(), i < Holding::kMostHidden - 64);
    ASSERT_TRUE(one.Hide());
  }
  EXPECT_FALSE(one.Hide());
  EXPECT_TRUE(one.AloneIs(true));
  EXPECT_EQ(one.count.load() & Holding::kMarks, 0u);
}

}  // namespace
}  // namespace rcsock::posix
