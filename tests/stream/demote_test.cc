// The way back to TCP, and what has not been read by then.

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/uio.h>

#include <cstdint>
#include <string>

#include "tests/stream/two_ends.h"

namespace rcsock::stream {
namespace {

TEST_F(PairTest, DemotionKeepsOrderAcrossStashAndTcp) {
  Promote();
  Put(0, "abc");
  S(1).Demote(base::Reason::kPolicy);
  Go();
  EXPECT_EQ(Put(0, "def"), 3);
  EXPECT_EQ(S(1).Readable(), 3u);
  EXPECT_EQ(Get(1), "abcdef");
  EXPECT_EQ(Put(1, "back"), 4);
  EXPECT_EQ(Get(0), "back");
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(changes_[i] & kSettled);
    S(i).ReleaseLane();
    EXPECT_TRUE(S(i).Idle());
  }
}

// The peer of an end whose lane has failed leaves because it is told to.
TEST_F(PairTest, AFailureStaysOneWhenThePeerAnswers) {
  Promote();
  S(0).Demote(base::Reason::kLaneError);
  Go();
  EXPECT_EQ(S(0).why_left(), base::Reason::kLaneError);
  EXPECT_EQ(S(1).why_left(), base::Reason::kPeerDemoted);
}

// ... but not one that leaves by itself, and is seen to before it is heard.
TEST_F(PairTest, ALaneThatThePeerHasLeftHasNotFailed) {
  Promote();
  S(1).Demote(base::Reason::kPolicy);
  S(0).Demote(base::Reason::kLaneError);
  Go();
  EXPECT_EQ(S(0).why_left(), base::Reason::kPeerDemoted);
  EXPECT_EQ(S(1).why_left(), base::Reason::kPolicy);
}

TEST_F(PairTest, DemotionThatLeavesPutsUnreadBytesBackOnTcp) {
  Promote();
  Put(0, "abc");
  S(1).Demote(base::Reason::kPinnedFork, true);
  Go();
  EXPECT_EQ(S(1).Readable(), 0u);
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(changes_[i] & kSettled);
    S(i).ReleaseLane();
    EXPECT_TRUE(S(i).Idle());
  }
  S(1).Progress();
  EXPECT_EQ(world_.tcp.pipe[0].bytes, "abc");
  EXPECT_EQ(Get(1), "abc");
}

// ... but they have been shown, and can be read until they are there.
class LeftToThePeerTest : public PairTest {
 protected:
  // The peer of end 1 leaves, and end 1 knows it, and has not answered yet.
  void Leave() {
    Promote();
    EXPECT_EQ(Put(0, "abcdef"), 6);
    EXPECT_EQ(Get(1, true), "abcdef");
    S(0).Demote(base::Reason::kPinnedFork, true);
    S(1).Progress();
    changes_[1] |= S(1).TakeChanges();
    EXPECT_FALSE(S(1).FastRx());
  }
  std::string Take(int i, std::size_t most) {
    std::string bytes(most, ' ');
    iovec iov{bytes.data(), most};
    const ssize_t n = S(i).Read(&iov, 1, most, false);
    return n < 0 ? "error" : bytes.substr(0, static_cast<std::size_t>(n));
  }
};

TEST_F(LeftToThePeerTest, AreReadOnceAndDroppedWhereTheyComeAgain) {
  Leave();
  EXPECT_EQ(S(1).Readable(), 6u);
  EXPECT_EQ(Get(1, true), "abcdef");
  EXPECT_EQ(Take(1, 4), "abcd");
  EXPECT_EQ(S(1).Readable(), 2u);
  EXPECT_TRUE(S(1).Readiness() & POLLIN);
  EXPECT_FALSE(S(1).AtKernel());
  Go();
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(changes_[i] & kSettled);
    S(i).ReleaseLane();
    EXPECT_TRUE(S(i).Idle());
  }
  EXPECT_EQ(world_.tcp.pipe[0].bytes, "ef");
  EXPECT_EQ(Get(1), "ef");
  // The next lane's proof covers what was dropped.
  world_.link.Reset();
  Up(2);
  EXPECT_EQ(Put(0, "x"), 1);
  Go();
  EXPECT_EQ(Get(1), "x");
  EXPECT_TRUE(S(0).FastTx() && S(1).FastTx());
}

TEST_F(LeftToThePeerTest, AllReadAndClosedIsNoReset) {
  Leave();
  EXPECT_EQ(Get(1), "abcdef");
  EXPECT_FALSE(S(1).Untaken());
  S(1).Close(false);
  changes_[1] |= S(1).TakeChanges();
  // Its close would reset what is to come.
  EXPECT_FALSE(changes_[1] & kFinished);
  Go();
  EXPECT_TRUE(changes_[1] & kFinished);
  EXPECT_FALSE(changes_[1] & kMustReset);
  EXPECT_EQ(world_.tcp.pipe[0].bytes, "");
}

TEST_F(LeftToThePeerTest, PartlyReadAndClosedIsAReset) {
  Leave();
  EXPECT_EQ(Take(1, 4), "abcd");
  EXPECT_TRUE(S(1).Untaken());
  S(1).Close(false);
  EXPECT_TRUE(S(1).TakeChanges() & kMustReset);
}

TEST_F(LeftToThePeerTest, ByOneThatDiesHalfWay) {
  for (const int came : {0, 1, 3}) {
    StartOver();
    Leave();
    EXPECT_EQ(Take(1, 4), "abcd");
    S(0).Progress();
    std::string& pipe = world_.tcp.pipe[0].bytes;
    ASSERT_EQ(pipe.substr(pipe.size() - 6), "abcdef");
    pipe.resize(pipe.size() - 6 + static_cast<std::size_t>(came));
    world_.Kill(0, false);
    S(1).Progress();
    EXPECT_EQ(Get(1), "ef") << came;
    EXPECT_EQ(Get(1), "") << came;
  }
}

TEST_F(LeftToThePeerTest, AreBeforeWhatIsSentByTcp) {
  Leave();
  EXPECT_EQ(Take(1, 1), "a");
  S(0).Progress();
  EXPECT_EQ(Put(0, "ghi"), 3);
  EXPECT_EQ(Get(1, true), "bcdef");
  EXPECT_EQ(Get(1), "bcdef");
  Go();
  EXPECT_EQ(Get(1), "ghi");
}

// R has agreed to a lane, and leaves: P hears of it without its timer.
TEST_F(PairTest, WhoLeavesWhatItHasJustAgreedToSaysSo) {
  Up();
  EXPECT_EQ(Put(0, "x"), 1);
  S(1).Progress();  // ACCEPT
  EXPECT_EQ(S(1).rx(), Rx::kArm);
  S(1).Demote(base::Reason::kPinnedFork, true);
  Go();
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(S(i).tx(), Tx::kRaw);
    EXPECT_EQ(S(i).rx(), Rx::kRaw);
    S(i).ReleaseLane();
  }
  EXPECT_EQ(Get(1), "x");
}

TEST_F(PairTest, BytesLeftToAPeerThatDiesAreItsLastWords) {
  Promote();
  Put(0, "abc");
  world_.Kill(0, false);
  S(1).Demote(base::Reason::kPinnedFork, true);
  Go();
  EXPECT_EQ(S(1).Readable(), 3u);
  S(1).ReleaseLane();
  EXPECT_TRUE(S(1).OnlyStash());
  EXPECT_EQ(S(1).TakeStash().size(), 3u);
}

// Bytes that were read ahead of the application are in no kernel's queue: only
// the peer can put them there again.
class HandBackTest : public PairTest {
 protected:
  void PromoteUnread() {
    EXPECT_EQ(Put(0, "raw "), 4);
    Up();
    EXPECT_EQ(Put(0, "ring"), 4);
    Go();
    ASSERT_TRUE(S(0).FastTx() && S(1).FastTx());
    EXPECT_EQ(S(1).Readable(), 8u);
    EXPECT_EQ(Get(1, true), "raw ring");
  }
  void Settle() {
    for (int i = 0; i < 2; ++i) {
      EXPECT_TRUE(changes_[i] & kSettled) << i;
      S(i).ReleaseLane();
      EXPECT_TRUE(S(i).Idle()) << i;
    }
  }
};

TEST_F(HandBackTest, WhatWasReadAheadGoesBackOnTcp) {
  PromoteUnread();
  S(1).Demote(base::Reason::kPinnedExec, true);
  Go();
  Settle();
  EXPECT_EQ(world_.tcp.pipe[0].bytes, "raw ring");
  EXPECT_EQ(Get(1), "raw ring");
  // The next lane's proof covers bytes that went twice.
  world_.link.Reset();
  Up(2);
  EXPECT_EQ(Put(0, "x"), 1);
  Go();
  EXPECT_EQ(Get(1), "x");
  EXPECT_TRUE(S(0).FastTx() && S(1).FastTx());
}

TEST_F(HandBackTest, PartlyReadAndBothLeave) {
  PromoteUnread();
  EXPECT_EQ(Put(1, "other"), 5);
  char some[2];
  iovec iov{some, 2};
  EXPECT_EQ(S(1).Read(&iov, 1, 2, false), 2);
  S(0).Demote(base::Reason::kPinnedExec, true);
  S(1).Demote(base::Reason::kPinnedExec, true);
  Go();
  Settle();
  EXPECT_EQ(world_.tcp.pipe[0].bytes, "w ring");
  EXPECT_EQ(world_.tcp.pipe[1].bytes, "other");
}

TEST_F(HandBackTest, WhoeverLeavesFirst) {
  PromoteUnread();
  S(0).Demote(base::Reason::kStarved, true);
  Go();
  Settle();
  EXPECT_EQ(world_.tcp.pipe[0].bytes, "raw ring");
}

TEST_F(HandBackTest, ALaneThatFails) {
  PromoteUnread();
  for (auto& state : world_.link.state) state = base::Reason::kLaneError;
  Go();
  Settle();
  EXPECT_EQ(world_.tcp.pipe[0].bytes, "raw ring");
}

TEST_F(HandBackTest, APeerThatDiesLeavesThemHere) {
  PromoteUnread();
  world_.Kill(0, false);
  S(1).Demote(base::Reason::kPinnedExec, true);
  Go();
  EXPECT_EQ(Get(1), "raw ring");
  EXPECT_EQ(Get(1), "");
}

TEST_F(HandBackTest, BehindOwnFinTheyStay) {
  PromoteUnread();
  S(1).ShutdownWrite();
  S(1).Demote(base::Reason::kPinnedExec, true);
  Go();
  EXPECT_EQ(Get(1), "raw ring");
}

TEST_F(HandBackTest, TheEndComesBehindThem) {
  PromoteUnread();
  S(0).ShutdownWrite();
  Go();
  S(1).Demote(base::Reason::kPinnedExec, true);
  Go();
  EXPECT_EQ(world_.tcp.pipe[0].bytes, "raw ring");
  EXPECT_TRUE(world_.tcp.kshut[0]);
  EXPECT_EQ(Get(1), "raw ring");
  EXPECT_EQ(Get(1), "");
}

// What it hands back must be what lies before our X, no more and no less.
TEST_F(HandBackTest, AnythingElseHandedBackIsHostile) {
  for (const std::uint64_t offset : {4u, 5u, 1000u}) {
    StartOver();
    PromoteUnread();
    const FrameBytes bytes = Encode(Frame{FrameKind::kBack, 0, 1, offset});
    world_.tcp.pipe[1].bytes.append(reinterpret_cast<const char*>(bytes.data()),
                                    16);
    Go();
    EXPECT_TRUE(changes_[0] & kMustReset) << offset;
  }
}

TEST_F(HandBackTest, LaneDownMustNameWhereTheyBegin) {
  PromoteUnread();
  for (const Frame& frame : {Frame{FrameKind::kBack, 0, 1, 2},
                             Frame{FrameKind::kLaneDown, 0, 1, 3}}) {
    const FrameBytes bytes = Encode(frame);
    world_.tcp.pipe[1].bytes.append(reinterpret_cast<const char*>(bytes.data()),
                                    16);
    if (frame.kind == FrameKind::kBack) world_.tcp.pipe[1].bytes += "w ";
  }
  Go();
  EXPECT_TRUE(changes_[0] & kMustReset);
}

TEST_F(PairTest, UnreadBytesOfAPeekGrowWhileTcpBringsMore) {
  Promote();
  Put(0, "abc");
  S(1).Demote(base::Reason::kPolicy);
  Go();
  EXPECT_EQ(Get(1, true), "abc");
  Put(0, "def");
  EXPECT_EQ(Get(1, true), "abcdef");
}

TEST_F(PairTest, LaneDownBeyondWhatWasSentIsHostile) {
  Promote();
  FrameBytes bytes = Encode(Frame{FrameKind::kLaneDown, 0, 1, 1000});
  world_.tcp.pipe[1].bytes.append(reinterpret_cast<char*>(bytes.data()), 16);
  Go();
  EXPECT_TRUE(changes_[0] & kMustReset);
  EXPECT_EQ(Get(0), "error 104");
}

}  // namespace
}  // namespace rcsock::stream
