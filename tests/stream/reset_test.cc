// Resets, and peers that are killed.

#include <gtest/gtest.h>
#include <poll.h>

#include <cerrno>
#include <string>

#include "tests/stream/two_ends.h"

namespace rcsock::stream {
namespace {

TEST_F(PairTest, KilledPeerWithUnreadBytesGivesResetOnceAfterTheData) {
  Promote();
  Put(1, "words");
  Put(0, "unread");
  world_.link.auto_credit = false;
  world_.Kill(1, false);
  Go();
  EXPECT_EQ(Get(0), "words");
  EXPECT_EQ(Get(0), "error 104");
  EXPECT_EQ(Get(0), "");
  EXPECT_EQ(Put(0, "x"), -EPIPE);
}

// Nothing but the peer's word tells these from a frame that an orderly end
// has left unread.
TEST_F(PairTest, ResetBeforeAnythingWentOverTheLaneTheOtherWay) {
  Promote();
  Reset(0);
  Go();
  EXPECT_EQ(Get(1), "error 104");
  EXPECT_EQ(Get(1), "");
}

TEST_F(PairTest, ResetOnTcpIsNotAnnouncedByAFin) {
  EXPECT_EQ(Put(0, "x"), 1);
  S(0).Close(true);
  Go();
  EXPECT_TRUE(changes_[0] & kMustReset);
  EXPECT_FALSE(world_.tcp.pipe[0].fin);
}

TEST_F(PairTest, ResetAfterAShutdown) {
  Promote();
  S(1).ShutdownWrite();
  Go();
  Reset(0);
  Go();
  EXPECT_EQ(Get(1), "error 104");
}

TEST_F(PairTest, ResetOnTheWayBackToTcp) {
  Promote();
  S(1).Demote(base::Reason::kPolicy);
  Reset(0);
  Go();
  EXPECT_EQ(Get(1), "error 104");
}

TEST_F(PairTest, ResetByAProposerAsSoonAsItHasShownCommit) {
  Up();
  EXPECT_EQ(Put(0, "x"), 1);
  while (S(0).tx() != Tx::kComm) {
    S(0).Progress();
    S(1).Progress();
  }
  Reset(0);
  Go();
  // "x" is delivered by rule 19, or not: a reset may lose it.
  std::string got = Get(1);
  if (got == "x") got = Get(1);
  EXPECT_EQ(got, "error 104");
}

// The other end does not have the lane yet.
TEST_F(PairTest, ResetByAProposerComesBehindWhatItHasStaged) {
  S(0).LaneUp(&world_.lane[0], 1, World::NonceOf(0), World::NonceOf(1), true);
  EXPECT_EQ(Put(0, "words"), 5);
  EXPECT_EQ(S(0).tx(), Tx::kProp);
  Reset(0);
  Go();
  EXPECT_EQ(Get(1), "words");
  EXPECT_EQ(Get(1), "error 104");
}

// ... and where it does, the first to hear of the reset is a frame.
TEST_F(PairTest, ResetThatAFrameOfTheSwitchMeetsComesBehindWhatIsStaged) {
  Up();
  EXPECT_EQ(Put(0, "x"), 1);
  while (S(1).tx() != Tx::kStg) {
    S(0).Progress();
    S(1).Progress();
  }
  EXPECT_EQ(Put(1, "words"), 5);
  Reset(1);
  world_.tcp.budget[0] = 0;  // it comes between a look and GOT
  world_.tcp.resets[0] = true;
  S(0).Progress();
  world_.tcp.budget[0] = -1;
  world_.tcp.pipe[1].rst = false;
  world_.tcp.pipe[1].fin = true;
  EXPECT_EQ(Get(0), "words");
  EXPECT_EQ(Get(0), "error 104");
  EXPECT_EQ(Get(0), "");
}

TEST_F(PairTest, AWordOfResetIsNothingWithoutTheReset) {
  Promote();
  S(0).TellReset();
  EXPECT_EQ(Put(0, "y"), 1);
  Go();
  EXPECT_EQ(Get(1), "y");
  EXPECT_EQ(S(0).ShutdownWrite(), 0);
  Go();
  EXPECT_EQ(Get(1), "");
}

// The peer has closed, and its process ends before it has read our FIN: TCP
// answers that with a reset, which is of our frames' making.
TEST_F(PairTest, AFrameThatIsAnsweredByAResetIsNoError) {
  Promote();
  EXPECT_EQ(Put(1, "all"), 3);
  EXPECT_EQ(Get(0), "all");
  S(1).Close(false);
  Go();
  EXPECT_EQ(Get(0), "");
  world_.tcp.resets[0] = true;
  EXPECT_EQ(S(0).ShutdownWrite(), 0);
  S(0).Progress();
  EXPECT_EQ(S(0).Readiness() & (POLLERR | POLLHUP), POLLHUP);
  EXPECT_EQ(S(0).TakeError(), 0);
  EXPECT_EQ(Get(0), "");
}

// ... and the frame may be the word that we leave the lane, which has ended
// with the peer's process.
TEST_F(PairTest, LeavingTheLaneOfAPeerThatHasEndedIsNoError) {
  Promote();
  EXPECT_EQ(Put(1, "all"), 3);
  EXPECT_EQ(Get(0), "all");
  EXPECT_EQ(Put(0, "too"), 3);
  EXPECT_EQ(Get(1), "too");
  S(1).Close(false);
  Go();
  EXPECT_EQ(Get(0), "");
  world_.tcp.resets[0] = true;
  S(0).Demote(base::Reason::kLaneError);
  EXPECT_EQ(S(0).Readiness() & POLLERR, 0u);
  EXPECT_EQ(S(0).TakeError(), 0);
  EXPECT_EQ(Get(0), "");
}

TEST_F(PairTest, AResetWithAnOffsetIsHostile) {
  Promote();
  FrameBytes bytes = Encode(Frame{FrameKind::kReset, 0, 1, 1});
  world_.tcp.pipe[1].bytes.append(reinterpret_cast<char*>(bytes.data()), 16);
  Go();
  EXPECT_TRUE(changes_[0] & kMustReset);
}

TEST_F(PairTest, KilledPeerThatHadReadAllGivesEof) {
  Promote();
  world_.Kill(1, false);
  Go();
  EXPECT_EQ(Get(0), "");
  // What becomes of a write is now the kernel's to say.
  EXPECT_EQ(S(0).tx(), Tx::kRaw);
  EXPECT_EQ(Put(0, "x"), 1);
  // The answer is a reset, of which the writer is told once.
  EXPECT_EQ(S(0).Readiness() & (POLLERR | POLLHUP), POLLERR | POLLHUP);
  EXPECT_EQ(Get(0), "");
  EXPECT_EQ(S(0).TakeError(), EPIPE);
  EXPECT_EQ(S(0).Readiness() & (POLLERR | POLLHUP), POLLHUP);
  EXPECT_EQ(Put(0, "x"), -EPIPE);
  EXPECT_EQ(Get(0), "");
}

// A peer that is killed with a frame of ours unread: the kernel resets, and it
// is our next frame that hears of it.
TEST_F(PairTest, AFrameThatMeetsTheResetOfAnUnreadFrameIsNoError) {
  Promote();
  world_.link.auto_credit = false;
  world_.Kill(1, false);
  world_.tcp.pipe[1].fin = false;
  world_.tcp.pipe[1].rst = true;
  S(0).Demote(base::Reason::kLaneError);
  Go();
  EXPECT_EQ(S(0).Readiness() & POLLERR, 0u);
  EXPECT_EQ(S(0).TakeError(), 0);
  EXPECT_EQ(Get(0), "");
}

TEST_F(PairTest, AFrameThatMeetsTheResetOfUnreadBytesIsAnError) {
  Promote();
  Put(1, "words");
  Put(0, "unread");
  world_.link.auto_credit = false;
  world_.Kill(1, false);
  world_.tcp.pipe[1].fin = false;
  world_.tcp.pipe[1].rst = true;
  S(0).Demote(base::Reason::kLaneError);
  Go();
  EXPECT_EQ(Get(0), "words");
  EXPECT_EQ(Get(0), "error 104");
  EXPECT_EQ(Get(0), "");
}

// The kernel has given the connection up: its host is gone.
TEST_F(PairTest, UnreadBytesDoNotMakeAResetOfATimeout) {
  Promote();
  Put(0, "unread");
  world_.link.auto_credit = false;
  world_.Kill(1, false);
  world_.tcp.pipe[1].fin = false;
  world_.tcp.pipe[1].rst = true;
  world_.tcp.pipe[1].error = ETIMEDOUT;
  Go();
  EXPECT_EQ(Get(0), "error 110");
  EXPECT_EQ(Get(0), "");
}

TEST_F(PairTest, BytesThatCameBeforeTheResetComeBeforeItsError) {
  EXPECT_EQ(Put(1, "words"), 5);
  Up();
  EXPECT_EQ(Put(0, "x"), 1);
  world_.Kill(1, false);
  world_.tcp.pipe[1].fin = false;
  world_.tcp.pipe[1].rst = true;
  S(0).Timer();  // "x" meets the reset
  EXPECT_EQ(Get(0), "words");
  EXPECT_EQ(Get(0), "error 104");
  EXPECT_EQ(Get(0), "");
}

// What was read ahead is followed by what the kernel has, in one call.
TEST_F(PairTest, AResetBehindWhatWasReadAheadIsToldByTheNextCall) {
  Promote();
  EXPECT_EQ(Put(0, "words"), 5);
  S(1).Demote(base::Reason::kPolicy);
  Go();
  EXPECT_EQ(S(1).rx(), Rx::kRaw);
  world_.tcp.pipe[0].rst = true;
  EXPECT_EQ(Get(1), "words");
  EXPECT_EQ(Get(1), "error 104");
  EXPECT_EQ(Get(1), "");
}

// It has left the lane, and what the peer has put there since never came.
TEST_F(PairTest, AnEndThatWasSaidAndNotReachedIsAReset) {
  Promote();
  S(1).Demote(base::Reason::kPolicy);
  EXPECT_EQ(Put(0, "lost"), 4);
  S(0).ShutdownWrite();
  world_.Kill(0, false);
  Go();
  EXPECT_EQ(Get(1), "error 104");
}

// ... and this end is back on TCP before it has been told to a reader.
TEST_F(PairTest, AResetThatAFrameMeetsKeepsTheStream) {
  Promote();
  S(1).Demote(base::Reason::kPolicy);
  S(0).Progress();
  EXPECT_EQ(Put(0, "words"), 5);
  world_.tcp.budget[1] = 1;  // it comes between LANE_DOWN and RAW
  world_.tcp.resets[1] = true;
  S(1).Progress();
  world_.tcp.budget[1] = -1;
  world_.tcp.resets[1] = false;
  world_.tcp.pipe[0].fin = true;
  Go();
  EXPECT_TRUE(changes_[1] & kSettled);
  S(1).ReleaseLane();
  EXPECT_FALSE(S(1).Idle());
  EXPECT_TRUE(S(1).OnlyStash());
  EXPECT_EQ(S(1).ErrorBehindStash(), ECONNRESET);
  EXPECT_EQ(Get(1), "words");
  EXPECT_EQ(Get(1), "error 104");
}

TEST_F(PairTest, AnErrorThatACallKeepsIsToldByTheNext) {
  Promote();
  Reset(0);
  Go();
  EXPECT_EQ(Get(1), "error 104");
  S(1).KeepError(ECONNRESET);
  EXPECT_EQ(Get(1), "error 104");
  S(1).KeepError(EAGAIN);
  EXPECT_EQ(Get(1), "");
}

// It has said that it leaves the lane, and dies before it has read our answer.
TEST_F(PairTest, KilledOnTheWayBackToTcpWithOurFramesUnread) {
  Promote();
  S(0).Demote(base::Reason::kPolicy);
  S(1).Progress();
  EXPECT_EQ(S(1).tx(), Tx::kRaw);
  world_.Kill(0, false);
  Go();
  EXPECT_EQ(Get(1), "");
  EXPECT_EQ(Get(1), "");
}

// The kernel knows of a reset, and tells it by poll; nobody has read it yet.
class ResetAnchor final : public Anchor {
 public:
  ssize_t Send(const iovec* /*iov*/, int /*count*/) override {
    return -ECONNRESET;
  }
  ssize_t Recv(void* /*to*/, std::size_t /*length*/) override {
    return -ECONNRESET;
  }
  ssize_t RecvV(const iovec* /*iov*/, int /*count*/, bool /*peek*/) override {
    return -ECONNRESET;
  }
  int ShutdownWrite() override { return 0; }
  bool Ended() override { return true; }
};

TEST_F(PairTest, WhatIsWrittenAfterAResetIsNotForTheLane) {
  Up();
  ResetAnchor anchor;
  S(0).Rebind(&world_.lane[0], &anchor);
  EXPECT_EQ(Put(0, "x"), -ECONNRESET);
  EXPECT_EQ(S(0).tx(), Tx::kRaw);
}

}  // namespace
}  // namespace rcsock::stream
