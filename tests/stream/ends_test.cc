// Orderly ends: shutdown and close.

#include <gtest/gtest.h>
#include <poll.h>

#include <cerrno>
#include <cstdint>
#include <functional>
#include <utility>

#include "tests/stream/two_ends.h"

namespace rcsock::stream {
namespace {

TEST_F(PairTest, ShutdownAndCloseOnTheLane) {
  Promote();
  Put(0, "last");
  EXPECT_EQ(S(0).ShutdownWrite(), 0);
  EXPECT_EQ(Put(0, "no"), -EPIPE);
  Go();
  EXPECT_EQ(S(1).Readiness() & (POLLIN | POLLRDHUP), POLLIN | POLLRDHUP);
  EXPECT_EQ(Get(1), "last");
  EXPECT_EQ(Get(1), "");
  EXPECT_EQ(Put(1, "reply"), 5);  // half-close: the other way goes on
  EXPECT_EQ(Get(0), "reply");
  S(1).Close(false);
  Go();
  EXPECT_EQ(Get(0), "");
  S(0).Close(false);
  Go();
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(changes_[i] & kFinished) << i;
    EXPECT_FALSE(changes_[i] & kMustReset) << i;
  }
}

// The peer's application keeps its end: that is no reason to keep ours.
TEST_F(PairTest, AClosedStreamIsOverOnceThePeerHasReadEverything) {
  Promote();
  world_.link.auto_credit = false;
  EXPECT_EQ(Put(0, "request"), 7);
  EXPECT_EQ(Get(1), "request");
  EXPECT_EQ(Put(1, "answer"), 6);
  S(1).Close(false);
  Go();
  EXPECT_FALSE(changes_[1] & kFinished);
  EXPECT_EQ(Get(0), "answer");
  Go();
  EXPECT_TRUE(changes_[1] & kFinished);
  EXPECT_FALSE(changes_[1] & kMustReset);
  world_.tcp.dead[1] = true;
  Go();
  EXPECT_EQ(Get(0), "");
  EXPECT_EQ(S(0).Readiness() & (POLLIN | POLLRDHUP | POLLHUP | POLLERR),
            static_cast<unsigned>(POLLIN | POLLRDHUP));
  EXPECT_EQ(Put(0, "x"), 1);  // the answer to which is a reset
  EXPECT_EQ(Put(0, "x"), -EPIPE);
  EXPECT_EQ(S(0).Readiness() & POLLHUP, static_cast<unsigned>(POLLHUP));
}

// The peer's RAW is still to come, and would be answered by a reset.
TEST_F(PairTest, AClosedStreamThatLeavesItsLaneAwaitsTheAnswer) {
  Promote();
  S(0).Close(false);
  S(1).Progress();  // ACK
  S(1).Demote(base::Reason::kLaneError, false);
  S(0).Progress();
  EXPECT_FALSE(S(0).TakeChanges() & kFinished);
  S(1).Progress();
  S(0).Progress();
  const std::uint32_t changes = S(0).TakeChanges();
  EXPECT_TRUE(changes & kFinished);
  EXPECT_FALSE(changes & kMustReset);
}

// As where a process exits before its device has sent the credit.
TEST_F(PairTest, WhatHasBeenAcknowledgedIsReadWhereItsCreditIsLost) {
  Promote();
  world_.link.auto_credit = false;
  EXPECT_EQ(Put(0, "request"), 7);
  const std::uint64_t credited = world_.lane[0].Acked();
  S(0).ShutdownWrite();
  Go();
  EXPECT_EQ(Get(1), "request");
  EXPECT_EQ(Get(1), "");
  Go();
  world_.link.ring[0].acked = credited;
  world_.Kill(1, false);
  Go();
  EXPECT_EQ(Get(0), "");
  EXPECT_EQ(S(0).TakeError(), 0);
}

// It has read all and closes; the ACK ends it before its device has sent the
// last credit.
TEST_F(PairTest, WhatAClosedPeerSaysHasLandedIsReadWhereItsCreditIsLost) {
  Promote();
  world_.link.auto_credit = false;
  EXPECT_EQ(Put(0, "request"), 7);
  EXPECT_EQ(Get(1), "request");
  const std::uint64_t credited = world_.lane[0].Acked();
  S(1).Close(false);
  // (FIN is here first.)
  world_.link.ring[0].acked = credited;
  S(0).Progress();
  S(1).Progress();
  const std::uint32_t changes = S(1).TakeChanges();
  EXPECT_TRUE(changes & kFinished);
  EXPECT_FALSE(changes & kMustReset);
  world_.link.ring[0].acked = credited;
  world_.tcp.dead[1] = true;
  Go();
  EXPECT_EQ(S(0).Readiness() & (POLLIN | POLLRDHUP | POLLHUP | POLLERR),
            static_cast<unsigned>(POLLIN | POLLRDHUP));
  EXPECT_EQ(Put(0, "x"), 1);
  EXPECT_EQ(Put(0, "x"), -EPIPE);
  EXPECT_EQ(Get(0), "");
}

TEST_F(PairTest, DataForAClosedStreamIsAnsweredByReset) {
  Promote();
  S(1).Close(false);
  Put(0, "nobody");
  Go();
  EXPECT_TRUE(changes_[1] & kFinished);
  EXPECT_TRUE(changes_[1] & kMustReset);
}

// Something comes just after a look at what there is.
class LateLane final : public lane::sim::SimLane {
 public:
  using SimLane::SimLane;
  std::size_t Readable() override {
    const std::size_t n = SimLane::Readable();
    if (after_look) std::exchange(after_look, nullptr)();
    return n;
  }
  std::function<void()> after_look;
};

// Its writer must not take it for read: there is no answer to that.
TEST_F(PairTest, WhatComesAsAClosedStreamIsOverIsNotRead) {
  LateLane late(&world_.link, 1);
  S(0).LaneUp(&world_.lane[0], 1, World::NonceOf(0), World::NonceOf(1), true);
  S(1).LaneUp(&late, 1, World::NonceOf(1), World::NonceOf(0), true);
  EXPECT_EQ(Put(0, "x"), 1);
  Go();
  EXPECT_EQ(Get(1), "x");
  S(1).Close(false);
  S(0).Progress();  // the end is seen, and said so
  EXPECT_EQ(Get(0), "");
  late.after_look = [this] { EXPECT_EQ(Put(0, "y"), 1); };
  S(1).Progress();
  EXPECT_EQ(late.after_look, nullptr);
  EXPECT_TRUE(S(1).TakeChanges() & kFinished);
  world_.tcp.dead[1] = true;
  Go();
  EXPECT_EQ(S(0).Readiness() & POLLHUP, static_cast<unsigned>(POLLHUP));
  EXPECT_EQ(S(0).TakeError(), EPIPE);
}

}  // namespace
}  // namespace rcsock::stream
