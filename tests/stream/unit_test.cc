// The codec byte by byte, and rules that deserve a name.

#include <gtest/gtest.h>
#include <poll.h>

#include <cerrno>
#include <functional>
#include <utility>

#include "tests/stream/explorer.h"

namespace rcsock::stream {
namespace {

TEST(FramesTest, BytesAreThoseOfTheDocument) {
  FrameBytes bytes = Encode(
      Frame{FrameKind::kFin, kFrameClosed, 0x01020304, 0x1122334455667788});
  const FrameBytes expected = {4,    1,    0x46, 0x52, 4,    3,    2,    1,
                               0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11};
  EXPECT_EQ(bytes, expected);
  Frame frame;
  ASSERT_TRUE(Decode(bytes, &frame));
  EXPECT_EQ(frame.kind, FrameKind::kFin);
  EXPECT_EQ(frame.epoch, 0x01020304u);
  EXPECT_EQ(frame.offset, 0x1122334455667788u);
}

TEST(FramesTest, NonsenseIsNotDecoded) {
  FrameBytes good = Encode(Frame{FrameKind::kGot, 0, 1, 0});
  Frame frame;
  for (int kind : {0, 11, 255}) {
    FrameBytes bytes = good;
    bytes[0] = static_cast<std::uint8_t>(kind);
    EXPECT_FALSE(Decode(bytes, &frame)) << kind;
  }
  FrameBytes flags = good;
  flags[1] = kFrameClosed;  // only FIN has it
  EXPECT_FALSE(Decode(flags, &frame));
  FrameBytes magic = good;
  magic[3] ^= 1;
  EXPECT_FALSE(Decode(magic, &frame));
}

TEST(FramesTest, CtlRoundTripAndChecks) {
  Ctl ctl;
  ctl.kind = CtlKind::kPropose;
  ctl.flags = kCtlFlip;
  ctl.tail = 64;
  ctl.epoch = 9;
  ctl.offset = 1ull << 40;
  ctl.mac.fill(0x5a);
  CtlBytes bytes = Encode(ctl);
  static_assert(kCtlSize <= lane::Lane::kCtlMax);
  Ctl out;
  ASSERT_TRUE(Decode(bytes.data(), bytes.size(), &out));
  EXPECT_EQ(out.tail, 64);
  EXPECT_EQ(out.offset, 1ull << 40);
  EXPECT_EQ(out.mac, ctl.mac);
  EXPECT_FALSE(Decode(bytes.data(), bytes.size() - 1, &out));
  bytes[16] = 65;
  EXPECT_FALSE(Decode(bytes.data(), bytes.size(), &out));
}

TEST(FramesTest, MacDependsOnEverything) {
  Nonce c{}, s{};
  c[0] = 1;
  const std::uint8_t tail[3] = {1, 2, 3};
  Mac mac = TailMac(c, s, 1, 10, tail, 3);
  EXPECT_TRUE(Equal(mac, TailMac(c, s, 1, 10, tail, 3)));
  EXPECT_FALSE(Equal(mac, TailMac(s, c, 1, 10, tail, 3)));
  EXPECT_FALSE(Equal(mac, TailMac(c, s, 2, 10, tail, 3)));
  EXPECT_FALSE(Equal(mac, TailMac(c, s, 1, 11, tail, 3)));
  EXPECT_FALSE(Equal(mac, TailMac(c, s, 1, 10, tail, 2)));
}

TEST(TailTest, KeepsTheLast64) {
  Tail tail;
  std::string all;
  for (int n : {3, 0, 60, 1, 64, 5, 200, 63}) {
    std::string piece;
    for (int i = 0; i < n; ++i) piece += static_cast<char>(all.size() + i);
    all += piece;
    tail.Push(piece.data(), piece.size());
    std::size_t keep = std::min<std::size_t>(64, all.size());
    ASSERT_EQ(tail.size(), keep);
    EXPECT_EQ(
        std::memcmp(tail.Last(keep), all.data() + all.size() - keep, keep), 0);
  }
}

// Two ends with everything arriving at once.
class PairTest : public testing::Test {
 protected:
  PairTest() {
    world_.tcp.units = false;
    world_.tcp.budget[0] = world_.tcp.budget[1] = -1;
    world_.link = lane::sim::SimLink(4096, 64);
    world_.link.auto_land = world_.link.auto_credit = true;
  }
  void Up(std::uint32_t epoch = 1) {
    for (int i = 0; i < 2; ++i) {
      S(i).LaneUp(&world_.lane[i], epoch, World::NonceOf(i),
                  World::NonceOf(1 - i), true);
    }
  }
  void Go() {
    for (int k = 0; k < 8; ++k) {
      for (int i = 0; i < 2; ++i) {
        S(i).Progress();
        changes_[i] |= S(i).TakeChanges();
      }
    }
  }
  void Promote() {
    Up();
    EXPECT_EQ(Put(0, "x"), 1);
    Go();
    EXPECT_EQ(Get(1), "x");
    EXPECT_TRUE(S(0).FastTx() && S(1).FastTx());
  }
  ssize_t Put(int i, const std::string& bytes) {
    iovec iov{const_cast<char*>(bytes.data()), bytes.size()};
    return S(i).Write(&iov, 1, bytes.size());
  }
  // Null byte and errno for an error; "" for EOF.
  std::string Get(int i, bool peek = false) {
    char bytes[256];
    iovec iov{bytes, sizeof bytes};
    ssize_t n = S(i).Read(&iov, 1, sizeof bytes, peek);
    if (n < 0) return "error " + std::to_string(-n);
    return std::string(bytes, static_cast<std::size_t>(n));
  }
  // The application resets its end, as its owner does it.
  void Reset(int i) {
    S(i).Close(true);
    EXPECT_TRUE(S(i).TakeChanges() & kMustReset);
    world_.Kill(i, true);
    world_.tcp.pipe[i].fin = false;
    world_.tcp.pipe[i].rst = true;
  }
  Stream& S(int i) { return world_.stream[i]; }

  Bounds bounds_;
  World world_{&bounds_};
  std::uint32_t changes_[2] = {0, 0};
};

TEST_F(PairTest, PromotesBothDirectionsAndTellsOnce) {
  Promote();
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(changes_[i] & kPromotedTx) << i;
    EXPECT_TRUE(changes_[i] & kPromotedRx) << i;
    EXPECT_EQ(S(i).TakeChanges(), 0u) << i;
    EXPECT_TRUE(S(i).FastRx());
  }
  EXPECT_TRUE(changes_[0] & kTimerOn);
  EXPECT_TRUE(changes_[0] & kTimerOff);
  EXPECT_EQ(Put(1, "hello"), 5);
  EXPECT_EQ(Get(0, true), "hello");
  EXPECT_EQ(Get(0), "hello");
  EXPECT_EQ(world_.tcp.pipe[0].bytes.size() + world_.tcp.pipe[1].bytes.size(),
            0u);
}

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

TEST_F(PairTest, WhatTheOwnerMovesItselfCounts) {
  Quick quick[2];
  const Role roles[] = {Role::kConnector, Role::kAcceptor};
  for (int life = 0; life < 2; ++life) {
    for (int i = 0; i < 2; ++i) {
      quick[i].may_send = quick[i].may_receive = true;
      const std::uint64_t tx = life == 0 ? 0 : S(i).tx_off();
      const std::uint64_t rx = life == 0 ? 0 : S(i).rx_off();
      S(i) = Stream(roles[i], &world_.anchor[i], Limits{}, &quick[i]);
      EXPECT_FALSE(quick[i].may_send || quick[i].may_receive);
      S(i).Adopt(tx, rx);
      EXPECT_EQ(S(i).tx_off(), tx);
      EXPECT_EQ(S(i).rx_off(), rx);
    }
    world_.link.Reset();
    Up(1 + static_cast<std::uint32_t>(life));
    EXPECT_EQ(Put(0, "x"), 1);
    Go();
    EXPECT_EQ(Get(1), "x");
    for (int i = 0; i < 2; ++i) {
      EXPECT_TRUE(quick[i].may_send && quick[i].may_receive);
    }
    const std::uint64_t before = S(0).tx_off();
    const iovec out{const_cast<char*>("abcd"), 4};
    quick[0].tx += world_.lane[0].Post(&out, 1, 0, 4);
    char bytes[4] = {};
    const iovec in{bytes, 3};
    quick[1].rx += world_.lane[1].Read(&in, 1, 0, 3, false);
    EXPECT_EQ(S(0).tx_off(), before + 4);
    EXPECT_EQ(S(1).rx_off(), before + 3);
    // Each end names its offsets to the other here.
    S(1).Demote(base::Reason::kPolicy);
    Go();
    EXPECT_FALSE(quick[1].may_send || quick[1].may_receive);
    EXPECT_EQ(Put(0, "e"), 1);
    EXPECT_EQ(Get(1), "de");
    EXPECT_EQ(S(1).rx_off(), S(0).tx_off());
    for (int i = 0; i < 2; ++i) {
      EXPECT_TRUE(changes_[i] & kSettled);
      S(i).ReleaseLane();
      EXPECT_TRUE(S(i).Idle());
      changes_[i] = 0;
    }
  }
}

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
    world_.~World();
    new (&world_) World(&bounds_);
    world_.tcp.units = false;
    world_.tcp.budget[0] = world_.tcp.budget[1] = -1;
    world_.link = lane::sim::SimLink(4096, 64);
    world_.link.auto_land = world_.link.auto_credit = true;
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
    world_.~World();
    new (&world_) World(&bounds_);
    world_.tcp.units = false;
    world_.tcp.budget[0] = world_.tcp.budget[1] = -1;
    world_.link = lane::sim::SimLink(4096, 64);
    world_.link.auto_land = world_.link.auto_credit = true;
    changes_[0] = 0;
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

TEST_F(PairTest, WrongMacAbortsAndTheByteGoesRaw) {
  Up();
  // The responder has seen other bytes than the proposer sent.
  Nonce wrong{};
  S(1).ReleaseLane();
  S(1).LaneUp(&world_.lane[1], 1, World::NonceOf(1), wrong, true);
  Put(0, "x");
  Go();
  EXPECT_EQ(S(0).tx(), Tx::kRaw);
  EXPECT_EQ(S(0).why_left(), base::Reason::kProtocol);
  EXPECT_EQ(Get(1), "x");
  EXPECT_EQ(S(1).rx(), Rx::kRaw);
}

TEST_F(PairTest, UnprovenLaneWaitsForRawBytesTheOtherEndMustKnow) {
  for (int i = 0; i < 2; ++i) {
    S(i).LaneUp(&world_.lane[i], 1, World::NonceOf(i), World::NonceOf(1 - i),
                i == 0, 16);
  }
  EXPECT_EQ(Put(1, std::string(40, 's')), 40);
  EXPECT_EQ(S(1).tx(), Tx::kRaw);
  EXPECT_EQ(Put(0, std::string(15, 'a')), 15);
  EXPECT_EQ(S(0).tx(), Tx::kRaw);
  EXPECT_EQ(Put(0, "b"), 1);
  EXPECT_EQ(S(0).tx(), Tx::kRaw);
  EXPECT_EQ(Put(0, "c"), 1);
  EXPECT_EQ(S(0).tx(), Tx::kProp);
  Go();
  EXPECT_TRUE(S(0).FastTx() && S(1).FastTx());
  EXPECT_EQ(Get(1), std::string(15, 'a') + "bc");
  EXPECT_EQ(Get(0), std::string(40, 's'));
}

TEST_F(PairTest, AnAnswerThatKnowsTooLittleIsNotShownCommit) {
  // The responder adopted the stream after those bytes had passed, and does not
  // care itself.
  world_.stream[1] = Stream(Role::kAcceptor, &world_.anchor[1], Limits{});
  for (int i = 0; i < 2; ++i) {
    S(i).LaneUp(&world_.lane[i], 1, World::NonceOf(i), World::NonceOf(1 - i),
                i == 0, i == 0 ? 16 : 0);
  }
  EXPECT_EQ(Put(0, std::string(16, 'a')), 16);
  std::string early;
  early.swap(world_.tcp.pipe[0].bytes);
  S(1).Adopt(0, early.size());
  EXPECT_EQ(Put(0, "b"), 1);
  EXPECT_EQ(S(0).tx(), Tx::kProp);
  Go();
  EXPECT_EQ(S(0).tx(), Tx::kRaw);
  EXPECT_EQ(S(0).why_left(), base::Reason::kProtocol);
  EXPECT_EQ(Get(1), "b");
  EXPECT_EQ(world_.tcp.pipe[0].bytes.size(), 0u);
}

TEST_F(PairTest, NothingIsInTheRingBeforeThePeerIsProven) {
  constexpr std::size_t kMost = 64 * 1024;
  for (const std::size_t ring : {std::size_t{4096}, 4 * kMost}) {
    World world(&bounds_);
    world.tcp.units = false;
    world.tcp.budget[0] = world.tcp.budget[1] = -1;
    world.link = lane::sim::SimLink(ring, 60'000);
    world.link.auto_land = world.link.auto_credit = true;
    for (int i = 0; i < 2; ++i) {
      world.stream[i].LaneUp(&world.lane[i], 1, World::NonceOf(i),
                             World::NonceOf(1 - i), i == 0, 16);
    }
    Stream& c = world.stream[0];
    Stream& s = world.stream[1];
    std::string bytes(16 + 2 * kMost, 'x');
    iovec iov{bytes.data(), 16};
    EXPECT_EQ(c.Write(&iov, 1, 16), 16);
    const std::size_t most = std::min(ring, kMost);
    iov.iov_len = bytes.size();
    EXPECT_EQ(c.Write(&iov, 1, iov.iov_len), static_cast<ssize_t>(most));
    EXPECT_EQ(c.tx(), Tx::kProp);
    EXPECT_EQ(c.Write(&iov, 1, iov.iov_len), -EAGAIN);
    EXPECT_EQ(c.Readiness() & POLLOUT, 0u);
    EXPECT_EQ(world.link.ring[0].posted, 0u);
    c.TakeChanges();
    // The answer: all of it goes there before COMMIT is shown.
    s.Progress();
    c.Progress();
    EXPECT_EQ(c.tx(), Tx::kComm);
    EXPECT_EQ(world.link.ring[0].posted, most);
    EXPECT_TRUE(c.TakeChanges() & kTxReady);
    for (int k = 0; k < 4; ++k) {
      s.Progress();
      c.Progress();
    }
    EXPECT_TRUE(c.FastTx() && s.FastTx());
    std::string got(2 * kMost, '\0');
    iovec in{got.data(), got.size()};
    EXPECT_EQ(s.Read(&in, 1, got.size(), false),
              static_cast<ssize_t>(16 + most));
  }
}

TEST_F(PairTest, OneThatTakesNotAllThatIsHeldIsLeft) {
  for (int i = 0; i < 2; ++i) {
    S(i).LaneUp(&world_.lane[i], 1, World::NonceOf(i), World::NonceOf(1 - i),
                i == 0, 16);
  }
  EXPECT_EQ(Put(0, std::string(16, 'a')), 16);
  EXPECT_EQ(Put(0, "0123456789"), 10);
  world_.link.capacity = 4;
  Go();
  EXPECT_EQ(S(0).tx(), Tx::kRaw);
  EXPECT_EQ(S(0).why_left(), base::Reason::kLaneError);
  EXPECT_EQ(Get(1), std::string(16, 'a') + "0123456789");
  EXPECT_EQ(S(1).rx(), Rx::kRaw);
}

// A stranger would learn a byte of the connection from the MAC over it.
TEST_F(PairTest, AnswersNobodyWhoAsksForLessThanProves) {
  S(1).LaneUp(&world_.lane[1], 1, World::NonceOf(1), World::NonceOf(0), false,
              16);
  EXPECT_EQ(Put(0, std::string(40, 'a')), 40);
  Ctl ctl;
  ctl.kind = CtlKind::kPropose;
  ctl.epoch = 1;
  ctl.offset = 40;
  ctl.tail = 15;
  const CtlBytes bytes = Encode(ctl);
  world_.lane[0].PostCtl(bytes.data(), bytes.size());
  EXPECT_EQ(Get(1), std::string(40, 'a'));
  S(1).Progress();
  EXPECT_EQ(S(1).rx(), Rx::kRaw);
  std::uint8_t answer[lane::Lane::kCtlMax];
  ASSERT_EQ(world_.lane[0].ReadCtl(answer, sizeof answer), kCtlSize);
  ASSERT_TRUE(Decode(answer, kCtlSize, &ctl));
  EXPECT_EQ(ctl.kind, CtlKind::kRefuse);
  EXPECT_EQ(world_.lane[0].ReadCtl(answer, sizeof answer), 0u);
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

TEST_F(PairTest, AnAnswerBeyondWhatWasPostedIsHostile) {
  Promote();
  FrameBytes bytes = Encode(Frame{FrameKind::kLanded, 0, 1, 1000});
  world_.tcp.pipe[1].bytes.append(reinterpret_cast<char*>(bytes.data()), 16);
  Go();
  EXPECT_TRUE(changes_[0] & kMustReset);
}

TEST_F(PairTest, ProposalBeyondTheStashIsRefused) {
  world_.stream[1] = Stream(Role::kAcceptor, &world_.anchor[1], Limits{4});
  S(1).Adopt(0, 0);
  EXPECT_EQ(Put(0, "12345678"), 8);
  Up();
  EXPECT_EQ(Put(0, "9"), 1);
  Go();
  EXPECT_EQ(S(0).why_left(), base::Reason::kPeerRefused);
  EXPECT_EQ(S(0).tx(), Tx::kRaw);
  std::string all;
  for (int i = 0; i < 4; ++i) all += Get(1);
  EXPECT_EQ(all.substr(0, 9), "123456789");
}

TEST_F(PairTest, LaneDownBeyondWhatWasSentIsHostile) {
  Promote();
  FrameBytes bytes = Encode(Frame{FrameKind::kLaneDown, 0, 1, 1000});
  world_.tcp.pipe[1].bytes.append(reinterpret_cast<char*>(bytes.data()), 16);
  Go();
  EXPECT_TRUE(changes_[0] & kMustReset);
  EXPECT_EQ(Get(0), "error 104");
}

// Between the two reads that a vector takes behind the stash, the peer acts.
class BetweenReads final : public Anchor {
 public:
  BetweenReads(Anchor* to, Stream* peer) : to_(to), peer_(peer) {}
  ssize_t Send(const iovec* iov, int count) override {
    return to_->Send(iov, count);
  }
  ssize_t Recv(void* to, std::size_t length) override {
    return to_->Recv(to, length);
  }
  ssize_t RecvV(const iovec* iov, int count, bool peek) override {
    if (++reads_ == 2) peer_->Progress();
    return to_->RecvV(iov, count, peek);
  }
  int ShutdownWrite() override { return to_->ShutdownWrite(); }

 private:
  Anchor* to_;
  Stream* peer_;
  int reads_ = 0;
};

TEST_F(PairTest, AVectorThatReachesTheSwitchTakesNothingBehindIt) {
  Put(0, "0123456789abcdefghij");
  std::string& pipe = world_.tcp.pipe[0].bytes;
  const std::string late = pipe.substr(8);
  pipe.resize(8);
  Up();
  EXPECT_EQ(Put(0, "ZYX"), 3);  // proposes: the switch is at 20
  S(1).Progress();
  EXPECT_EQ(S(1).Readable(), 8u);
  pipe = late + pipe;
  BetweenReads anchor(&world_.anchor[1], &S(0));
  S(1).Rebind(&world_.lane[1], &anchor);
  char first[20], second[100];
  const iovec iov[2] = {{first, sizeof first}, {second, sizeof second}};
  EXPECT_EQ(S(1).Read(iov, 2, sizeof first + sizeof second, false), 20);
  EXPECT_EQ(std::string(first, sizeof first), "0123456789abcdefghij");
  Go();
  EXPECT_EQ(Get(1), "ZYX");
  EXPECT_TRUE(S(0).FastTx());
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
  bool Broken() override { return true; }
};

TEST_F(PairTest, WhatIsWrittenAfterAResetIsNotForTheLane) {
  Up();
  ResetAnchor anchor;
  S(0).Rebind(&world_.lane[0], &anchor);
  EXPECT_EQ(Put(0, "x"), -ECONNRESET);
  EXPECT_EQ(S(0).tx(), Tx::kRaw);
}

TEST_F(PairTest, CollisionIsWonByTheConnector) {
  Up();
  Put(1, "from s");
  Put(0, "from c");
  EXPECT_EQ(S(0).tx(), Tx::kProp);
  EXPECT_EQ(S(1).tx(), Tx::kProp);
  Go();
  // S's bytes went raw before X_r, so C must read ahead of SWITCH.
  EXPECT_TRUE(S(0).FastTx() && S(1).FastTx());
  EXPECT_EQ(Get(0), "from s");
  EXPECT_EQ(Get(1), "from c");
}

// What was staged behind a PROPOSE that lost comes over TCP and is read: it is
// nothing that the application leaves, wherever the ring has been looked at
// meanwhile.
class TieTest : public PairTest {
 protected:
  TieTest() {
    Up();
    Put(1, "from s");
    Put(0, "from c");
    EXPECT_EQ(S(0).tx(), Tx::kProp);
    EXPECT_EQ(S(1).tx(), Tx::kProp);
  }
  void EndOfS() {
    EXPECT_EQ(S(1).ShutdownWrite(), 0);
    S(1).Progress();
    EXPECT_EQ(S(1).tx(), Tx::kRaw);
    EXPECT_EQ(Get(0), "from s");
  }
  void CloseC() {
    S(0).Close(false);
    changes_[0] |= S(0).TakeChanges();
    Go();
    EXPECT_FALSE(changes_[0] & kMustReset);
    EXPECT_EQ(Get(1), "from c");
  }
};

TEST_F(TieTest, StagedBytesAreReadOverTcpBeforeTheRingIsLookedAt) {
  EndOfS();
  Go();
  EXPECT_EQ(Get(0), "");
  CloseC();
}

TEST_F(TieTest, StagedBytesAreReadOverTcpBehindALookAtTheRing) {
  S(0).Progress();
  EndOfS();
  Go();
  EXPECT_EQ(Get(0), "");
  CloseC();
}

TEST_F(TieTest, StagedBytesAreReadOverTcpAndTheRingNeverLookedAt) {
  EndOfS();
  CloseC();
}

}  // namespace
}  // namespace rcsock::stream
