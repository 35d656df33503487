// What has been posted and may not have arrived.

#include <gtest/gtest.h>
#include <sys/uio.h>

#include <cstdint>
#include <string>

#include "tests/stream/two_ends.h"

namespace rcsock::stream {
namespace {

// Promoted; the lane is one to another host, and the owner of end 0 has posted
// `posted` on it past the Stream, after so many bytes in an earlier stream.
class OwnPostTest : public PairTest {
 protected:
  void Begin(std::uint64_t earlier, const std::string& posted, bool lands) {
    quick_.tx = earlier;
    world_.lane[0] = lane::sim::SimLane(&world_.link, 0, lane::Kind::kRdma);
    S(0) = Stream(Role::kConnector, &world_.anchor[0], Limits{}, &quick_);
    S(0).Adopt(0, 0);
    Promote();
    world_.link.auto_land = world_.link.auto_credit = lands;
    const iovec out{const_cast<char*>(posted.data()), posted.size()};
    quick_.tx += world_.lane[0].Post(&out, 1, 0, posted.size());
  }
  Quick quick_;
};

TEST_F(OwnPostTest, ResetWaitsForIt) {
  Begin(0, "abcd", false);
  S(0).Close(true);
  EXPECT_TRUE(S(0).AwaitsLanding());
  EXPECT_FALSE(S(0).TakeChanges() & kFinished);
  S(0).Hurry();
  EXPECT_TRUE(S(0).TakeChanges() & kFinished);
}

TEST_F(OwnPostTest, ResetWaitsForNothingElse) {
  Begin(7, "abcd", true);
  EXPECT_EQ(Get(1), "abcd");
  S(0).Close(true);
  EXPECT_FALSE(S(0).AwaitsLanding());
  EXPECT_TRUE(S(0).TakeChanges() & kFinished);
}

TEST_F(PairTest, ProbesAreSilentOnceAllHasLanded) {
  Promote();
  world_.link.auto_credit = false;
  EXPECT_EQ(Put(0, "posted"), 6);
  EXPECT_TRUE(
      S(0).Probe());  // credit has come since the last: nothing is asked
  EXPECT_TRUE(S(0).Probe());
  Go();  // PROBE and LANDED
  EXPECT_FALSE(S(0).Probe());
  EXPECT_EQ(world_.tcp.pipe[0].bytes.size(), 0u);
  EXPECT_TRUE(S(0).FastTx());
  EXPECT_EQ(Get(1), "posted");
}

TEST_F(PairTest, ALaneThatLosesWithoutAWordIsGivenUp) {
  Promote();
  world_.link.auto_land = false;  // what is posted stays on the way
  EXPECT_EQ(Put(0, "lost"), 4);
  for (int round = 0; round < 8 && S(0).FastTx(); ++round) {
    EXPECT_TRUE(S(0).Probe());
    Go();
  }
  EXPECT_FALSE(S(0).FastTx());
  EXPECT_EQ(S(0).why_left(), base::Reason::kLaneStalled);
  EXPECT_EQ(Get(1), "lost");
}

// (SIOCOUTQ in a loop: each question is one of its own.)
TEST_F(PairTest, AskingAllTheTimeDoesNotHideIt) {
  Promote();
  world_.link.auto_land = false;
  EXPECT_EQ(Put(0, "lost"), 4);
  for (int round = 0; round < 8 && S(0).FastTx(); ++round) {
    S(0).Probe();
    S(0).AskLanded();
    Go();
    S(0).AskLanded();
  }
  EXPECT_FALSE(S(0).FastTx());
  EXPECT_EQ(S(0).why_left(), base::Reason::kLaneStalled);
}

// One frame each way at most, which changes nothing, and none once an end is
// named or while one waits.
TEST_F(PairTest, AHeartbeatSaysNothing) {
  Promote();
  EXPECT_EQ(Put(0, "before"), 6);
  S(0).Beat();
  EXPECT_EQ(world_.tcp.pipe[0].bytes.size(), sizeof(FrameBytes));
  Go();
  EXPECT_EQ(world_.tcp.pipe[0].bytes.size(), 0u);
  EXPECT_EQ(world_.tcp.pipe[1].bytes.size(), 0u);
  EXPECT_TRUE(S(0).FastTx());
  EXPECT_EQ(Put(0, " and after"), 10);
  EXPECT_EQ(Get(1), "before and after");
  S(1).ShutdownWrite();
  Go();
  const std::size_t sent = world_.tcp.pipe[1].bytes.size();
  S(0).Beat();
  S(1).Beat();
  EXPECT_EQ(world_.tcp.pipe[0].bytes.size(), 0u);
  EXPECT_EQ(world_.tcp.pipe[1].bytes.size(), sent);
}

TEST_F(PairTest, AnAnswerBeyondWhatWasPostedIsHostile) {
  Promote();
  FrameBytes bytes = Encode(Frame{FrameKind::kLanded, 0, 1, 1000});
  world_.tcp.pipe[1].bytes.append(reinterpret_cast<char*>(bytes.data()), 16);
  Go();
  EXPECT_TRUE(changes_[0] & kMustReset);
}

}  // namespace
}  // namespace rcsock::stream
