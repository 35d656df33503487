// Every interleaving of two real Streams within bounds (env: RCSOCK_EXPLORE=
// "bytes epochs kills demotions deaths shutdowns" replaces the default ones).

#include "tests/stream/explorer.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace rcsock::stream {
namespace {

void Check(const Bounds& bounds) {
  Result result = Explore(bounds, true);
  std::printf("%zu states, %zu transitions, %zu quiescent, %zu promoted%s\n",
              result.states, result.transitions, result.quiescent,
              result.promoted, result.complete ? "" : " (not complete)");
  ASSERT_EQ(result.error, nullptr) << result.error;
  EXPECT_TRUE(result.complete);
  EXPECT_GT(result.quiescent, 0u);
  EXPECT_GT(result.promoted, 0u);
}

Bounds Of(int bytes, int epochs, int kills, int demotions, int deaths,
          bool shutdowns) {
  Bounds bounds;
  bounds.bytes = bytes;
  bounds.epochs = epochs;
  bounds.kills = kills;
  bounds.demotions = demotions;
  bounds.deaths = deaths;
  bounds.shutdowns = shutdowns;
  return bounds;
}

TEST(ExplorerTest, OneByteEachWayEverythingAtOnce) {
  Check(Of(1, 1, 1, 1, 1, true));
}

TEST(ExplorerTest, TwoEpochs) { Check(Of(1, 2, 0, 1, 1, true)); }

TEST(ExplorerTest, TwoBytesEachWayDeathAndDemotion) {
  Check(Of(2, 1, 0, 1, 1, false));
}

TEST(ExplorerTest, TwoBytesEachWayAndKill) { Check(Of(2, 1, 1, 0, 1, false)); }

// What has landed goes back to the peer, which may die before it has sent it.
TEST(ExplorerTest, DemotionThatLeavesUnreadBytes) {
  Bounds bounds = Of(2, 1, 1, 1, 0, false);
  bounds.leave = true;
  Check(bounds);
  bounds = Of(1, 1, 0, 1, 1, true);
  bounds.leave = true;
  Check(bounds);
}

TEST(ExplorerTest, DemotionBeforeTheSwitchIsOver) {
  Bounds bounds = Of(1, 1, 0, 1, 1, true);
  bounds.leave = bounds.early = true;
  Check(bounds);
  bounds = Of(2, 1, 1, 1, 0, false);
  bounds.leave = bounds.early = true;
  Check(bounds);
}

// What the application reads of it meanwhile is neither lost, nor unread, when
// it closes.
TEST(ExplorerTest, CloseBehindADemotionThatLeavesUnreadBytes) {
  Bounds bounds = Of(1, 1, 0, 1, 0, true);
  bounds.leave = bounds.closes = true;
  Check(bounds);
}

// What a peer writes before it has heard that the lane is left outlives it in
// shared memory; so does what its kernel drops, as it has a frame unread.
Bounds Outlives(bool leave, bool early, bool shutdowns) {
  Bounds bounds = Of(shutdowns || early ? 1 : 2, 1, 1, 1, 0, shutdowns);
  bounds.outlives = true;
  bounds.leave = leave;
  bounds.early = early;
  return bounds;
}

TEST(ExplorerTest, KilledBehindADemotion) {
  Check(Outlives(false, false, false));
  Check(Outlives(true, false, false));
  Check(Outlives(false, false, true));
}

TEST(ExplorerTest, KilledBehindAnEarlyDemotion) {
  Check(Outlives(false, true, false));
  Check(Outlives(true, true, false));
  Check(Outlives(true, true, true));
}

TEST(ExplorerTest, LateCreditAtTheEnd) {
  Bounds bounds = Of(1, 1, 0, 1, 1, true);
  bounds.ack_lag = true;
  Check(bounds);
}

// The lane's other end is the peer, but has to prove it.
TEST(ExplorerTest, AnUnprovenLane) {
  Bounds bounds = Of(2, 1, 1, 1, 1, false);
  bounds.min_tail = 1;
  Check(bounds);
}

// ... and is not: who holds it credits what he likes and says what he likes,
// and both ends go on over TCP as if there were no lane.
Bounds Stranger(int of) {
  Bounds bounds = Of(2, 1, 1, 0, 1, true);
  bounds.min_tail = 1;
  bounds.stranger_of = of;
  return bounds;
}

TEST(ExplorerTest, AStrangerOnTheLane) {
  for (const int i : {0, 1, 2, 3}) {
    Bounds bounds = Stranger(i % 2);
    bounds.outlives = i >= 2;
    Result result = Explore(bounds, true);
    std::printf("%zu states, %zu transitions\n", result.states,
                result.transitions);
    EXPECT_EQ(result.error, nullptr) << result.error;
    EXPECT_TRUE(result.complete);
    EXPECT_EQ(result.promoted, 0u);
  }
}

// A closed end lets go of its connection although the peer's application keeps
// its own, and the peer has everything then.
TEST(ExplorerTest, CloseWithAPeerThatStays) {
  Bounds bounds = Of(1, 1, 0, 1, 1, true);
  bounds.closes = true;
  Check(bounds);
  bounds = Of(1, 1, 0, 0, 0, false);
  bounds.closes = bounds.ack_lag = true;
  Check(bounds);
}

TEST(ExplorerTest, BoundsOfTheEnvironment) {
  const char* env = std::getenv("RCSOCK_EXPLORE");
  int b[6] = {1, 1, 0, 0, 0, 0};
  if (env != nullptr) {
    ASSERT_EQ(std::sscanf(env, "%d %d %d %d %d %d", &b[0], &b[1], &b[2], &b[3],
                          &b[4], &b[5]),
              6);
  }
  Check(Of(b[0], b[1], b[2], b[3], b[4], b[5] != 0));
}

// The explorer is worth something only if it sees a rule that is missing.
class BrokenRuleTest : public testing::TestWithParam<int> {};

TEST_P(BrokenRuleTest, IsFound) {
  Bounds bounds = Of(2, 1, 1, 1, 1, false);
  bounds.broken = GetParam();
  if (GetParam() == 128) {
    bounds = Of(2, 1, 0, 1, 0, false);
    bounds.broken = 128;
    bounds.leave = true;
  }
  if (GetParam() == 512 || GetParam() == 1024) {
    bounds = Of(2, 1, 0, 1, 0, false);
    bounds.broken = GetParam();
    bounds.leave = true;
  }
  if (GetParam() == 4 || GetParam() == 256) {
    bounds = Stranger(0);
    bounds.broken = GetParam();
  }
  if (GetParam() >= 2048) {
    bounds = Outlives(false, GetParam() >= 16384 || GetParam() == 4096, false);
    bounds.broken = GetParam();
  }
  Result result = Explore(bounds, false);
  EXPECT_NE(result.error, nullptr) << "after " << result.states << " states";
  if (result.error != nullptr) {
    std::printf("%zu states: %s\n", result.states, result.error);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Rules, BrokenRuleTest,
    testing::Values(
        1 /* 11: freeze */, 2 /* 14: own LANE_DOWN before RAW */,
        4 /* 3: nothing in the ring of a stranger */,
        8 /* 9: accept staged bytes only after GOT */, 16 /* 19: last words */,
        32 /* 4: late PROPOSE */, 64 /* 23: the timer */,
        128 /* what is handed back is sent again */,
        256 /* 19: a stranger's words are not the last ones */,
        512 /* what was shown stays shown */,
        1024 /* ... and is dropped when it comes again */,
        2048 /* 18: behind the freeze */,
        4096 /* 18: nor is the ring let go of before TCP has all */,
        8192 /* 13: nothing new goes to TCP before RAW is read */,
        16384 /* 6: bytes that look like a COMMIT that is forgone */));

}  // namespace
}  // namespace rcsock::stream
