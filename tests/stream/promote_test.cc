// The switch to a lane: who proposes to whom, and by what proof.

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <string>

#include "tests/stream/two_ends.h"

namespace rcsock::stream {
namespace {

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

// On shared memory the connecting end proposes before it has a byte.
class AheadTest : public PairTest {
 protected:
  AheadTest() {
    world_.link.outlives = true;
    Up();
  }
  // C has proposed, and S has agreed.  C does not know it yet.
  void Agree() {
    S(0).Progress();
    EXPECT_EQ(S(0).tx(), Tx::kProp);
    world_.link.auto_land = false;
    S(1).Progress();
    EXPECT_EQ(S(1).rx(), Rx::kArm);
    EXPECT_EQ(S(1).tx(), Tx::kStg);
  }
  // C sends a byte with which the COMMIT begins that S waits for.
  void SaysWhatLooksLikeCommit() {
    const std::string first(1, static_cast<char>(World::NonceOf(1)[0]));
    EXPECT_EQ(Put(0, first), 1);
    EXPECT_EQ(Get(1), first);
    BothAreRaw();
  }
  void BothAreRaw() {
    for (int i = 0; i < 2; ++i) {
      S(i).Progress();
      EXPECT_EQ(S(i).tx(), Tx::kRaw) << i;
      EXPECT_EQ(S(i).rx(), Rx::kRaw) << i;
      EXPECT_FALSE(S(i).Failed()) << i;
    }
  }
};

TEST_F(AheadTest, NoByteWaitsForTheSwitch) {
  Go();
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(S(i).FastTx() && S(i).FastRx()) << i;
  EXPECT_EQ(S(0).tx_off() + S(1).tx_off(), 0u);
  EXPECT_EQ(Put(0, "x"), 1);
  EXPECT_EQ(Get(1), "x");
}

// COMMIT and GOT go in one piece, since SWITCH comes right behind ACCEPT.
TEST_F(AheadTest, FourSteps) {
  S(0).Progress();  // PROPOSE
  S(1).Progress();  // ACCEPT, SWITCH
  EXPECT_EQ(world_.tcp.pipe[1].bytes.size(), 0u);
  S(0).Progress();  // COMMIT, GOT
  EXPECT_EQ(world_.tcp.pipe[0].bytes.size(), 2 * kFrameSize);
  S(1).Progress();  // COMMIT
  EXPECT_TRUE(S(1).FastTx() && S(1).FastRx());
  S(0).Progress();
  EXPECT_TRUE(S(0).FastTx() && S(0).FastRx());
}

TEST_F(AheadTest, ForgoesBeforeBytesThatLookLikeCommit) {
  Agree();
  S(0).Timer();
  SaysWhatLooksLikeCommit();
}

TEST_F(AheadTest, ForgoesBeforeThePeerHasRead) {
  S(0).Progress();
  S(0).Timer();
  SaysWhatLooksLikeCommit();
}

// S need not wait for a byte to be on TCP again.
TEST_F(AheadTest, WhatWasStagedGoesRaw) {
  Agree();
  EXPECT_EQ(Put(1, "hello"), 5);
  S(0).Timer();
  BothAreRaw();
  EXPECT_EQ(Get(0), "hello");
}

TEST_F(AheadTest, BothGiveUp) {
  Agree();
  S(1).Demote(base::Reason::kPolicy);
  S(0).Timer();
  SaysWhatLooksLikeCommit();
}

// Nothing has changed on TCP, so its reset is the application's.
TEST_F(AheadTest, AResetIsAReset) {
  S(0).Progress();
  Reset(1);
  EXPECT_EQ(Get(0), "error " + std::to_string(ECONNRESET));
}

// S has agreed, and C has read that and not answered.
TEST_F(AheadTest, AResetBehindAcceptIsAReset) {
  Agree();
  Reset(1);
  world_.link.ring[1].LandAll();
  EXPECT_EQ(Get(0), "error " + std::to_string(ECONNRESET));
}

// C has answered, so the kernel's reset alone might be of the answer's making.
TEST_F(AheadTest, AResetBehindCommitIsAReset) {
  Agree();
  world_.link.ring[1].LandAll();
  S(0).Progress();
  EXPECT_EQ(S(0).tx(), Tx::kComm);
  Reset(1);
  EXPECT_EQ(Get(0), "error " + std::to_string(ECONNRESET));
}

// The peer was killed between ACCEPT and SWITCH.  Its kernel resets the
// connection, since COMMIT and RAW are unread.
TEST_F(AheadTest, AResetBehindCommitAndRawIsAnEndOfAKilledPeer) {
  Agree();
  EXPECT_TRUE(world_.link.ring[1].Land());
  S(0).Progress();
  EXPECT_EQ(S(0).tx(), Tx::kComm);
  S(0).Timer();
  EXPECT_EQ(S(0).tx(), Tx::kRaw);
  world_.Kill(1, true);
  world_.tcp.pipe[1].fin = false;
  world_.tcp.pipe[1].rst = true;
  EXPECT_EQ(Get(0), "");
}

// The peer's kernel has dropped what it had not sent, since COMMIT was unread.
TEST_F(AheadTest, BytesBeforeTheSwitchAreMissed) {
  StartOver();
  EXPECT_EQ(Put(1, "abcd"), 4);
  world_.link.outlives = true;
  Up();
  Agree();
  const std::string sent = world_.tcp.pipe[1].bytes;
  world_.link.ring[1].LandAll();
  world_.tcp.pipe[1].bytes.clear();  // under way yet
  S(0).Progress();
  EXPECT_EQ(S(0).tx(), Tx::kComm);
  world_.Kill(1, false);
  world_.tcp.pipe[1].fin = false;
  world_.tcp.pipe[1].rst = true;
  world_.tcp.pipe[1].bytes = sent.substr(0, 2);
  EXPECT_EQ(Get(0), "ab");
  // The link has noticed, and nobody has told the stream.
  world_.link.state[0] = base::Reason::kPeerGone;
  EXPECT_EQ(Get(0), "error " + std::to_string(ECONNRESET));
}

TEST_F(AheadTest, NotOnceItsProcessEnds) {
  S(0).EndSoon();
  Go();
  EXPECT_EQ(S(0).tx(), Tx::kRaw);
  BothAreRaw();
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
    Arrange(&world, ring, 60'000);
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
