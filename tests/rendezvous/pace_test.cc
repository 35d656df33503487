// Which searches are under way, and which wait in line (lib/rendezvous/pace.h).

#include "lib/rendezvous/pace.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <vector>

namespace rcsock::rendezvous {
namespace {

struct Search {
  bool waits = true;
  bool in_line() const { return waits; }
};
using Searches = Pace<Search>;

constexpr int kPlaces = static_cast<int>(Searches::kPlaces);

class PaceTest : public testing::Test {
 protected:
  void Fill() {
    for (int i = 0; i < kPlaces; ++i) {
      EXPECT_TRUE(pace_.Free(now_));
      busy_.push_back(std::make_shared<Search>());
      pace_.Enter(busy_.back().get(), now_);
    }
    EXPECT_FALSE(pace_.Free(now_));
  }

  Searches pace_;
  Searches::Clock::time_point now_{};
  std::vector<std::shared_ptr<Search>> busy_;
};

TEST_F(PaceTest, APlaceIsFreeAgainWhenItsSearchIsOver) {
  Fill();
  EXPECT_TRUE(pace_.Leave(busy_[1].get()));
  EXPECT_FALSE(pace_.Leave(busy_[1].get()));
  EXPECT_TRUE(pace_.Free(now_));
}

TEST_F(PaceTest, ASearchHasOnePlace) {
  pace_.Enter(nullptr, now_);
  for (int i = 0; i < 2 * kPlaces; ++i) pace_.Enter(nullptr, now_);
  EXPECT_TRUE(pace_.Free(now_));
}

TEST_F(PaceTest, NoPlaceIsHeldForLongerThanTheLimit) {
  Fill();
  EXPECT_EQ(pace_.NextFree(), now_ + Searches::kHold);
  EXPECT_FALSE(pace_.Free(now_ + Searches::kHold / 2));
  EXPECT_TRUE(pace_.Free(now_ + Searches::kHold));
}

TEST_F(PaceTest, APeerMayGiveMorePlacesThanThereAre) {
  Fill();
  const Search more;
  pace_.Enter(&more, now_);
  EXPECT_TRUE(pace_.Leave(busy_[0].get()));
  EXPECT_FALSE(pace_.Free(now_));
  EXPECT_TRUE(pace_.Leave(&more));
  EXPECT_TRUE(pace_.Free(now_));
}

TEST_F(PaceTest, TheLineKeepsItsOrderAndPassesOverThoseThatNoLongerWait) {
  const auto answered = std::make_shared<Search>();
  const auto first = std::make_shared<Search>();
  const auto second = std::make_shared<Search>();
  pace_.Wait(answered);
  pace_.Wait(std::make_shared<Search>());  // it has ended
  pace_.Wait(first);
  pace_.Wait(second);
  answered->waits = false;
  EXPECT_EQ(pace_.Next(), first);
  EXPECT_EQ(pace_.Next(), second);
  EXPECT_EQ(pace_.Next(), nullptr);
  EXPECT_TRUE(pace_.empty());
}

}  // namespace
}  // namespace rcsock::rendezvous
