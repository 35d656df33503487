// What a peer of an RDMA lane may do without harm to anybody but itself.

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/uio.h>

#include <cerrno>
#include <cstdint>
#include <ctime>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "tests/lane/fake_ends.h"

namespace rcsock::lane::test {
namespace {

using ring::Encode;
using ring::Kind;

class Hostile : public FakeEnds {};

TEST_P(Hostile, ForgedImmediates) {
  const std::uint32_t forged[] = {
      0,
      ~0u,
      Encode({Kind::kNone, 0, 10}),
      Encode({static_cast<Kind>(5), 0, 10}),
      Encode({static_cast<Kind>(7), 0, 10}),
      Encode({Kind::kData, 0, 0}),
      Encode({Kind::kData, ring::kFlagInline, GetParam() ? 65u : 8u}),
      Encode(ring::WithCredit({Kind::kData, 0, 8}, 200)),
      Encode({Kind::kData, 0, ring::kMaxLength}),
      Encode({Kind::kData, 0, 64 * 1024}),
      Encode({Kind::kCtl, 0, 8}),
      Encode({Kind::kCtl, ring::kFlagInline, 0}),
      Encode({Kind::kCtl, ring::kFlagInline, 57}),
      Encode({Kind::kSetup, ring::kFlagInline, 32}),  // a second one
      Encode({Kind::kSetup, 0, 32}),
  };
  for (const std::uint32_t bits : forged) {
    Say(bits);
    ExpectDead(std::to_string(bits).c_str());
    Again();
  }
}

// What a SEND carries before its immediate.
TEST_P(Hostile, ForgedSends) {
  if (!GetParam()) GTEST_SKIP() << "no SEND comes there";
  const struct {
    std::size_t bytes;
    std::uint32_t imm;
  } forged[] = {
      {8, Encode({Kind::kData, ring::kFlagInline, 7})},
      {8, Encode({Kind::kData, ring::kFlagInline, 9})},
      {8, Encode({Kind::kData, ring::kFlagInline, 0})},
      {8, Encode({Kind::kData, 0, 8})},
      {8, Encode({Kind::kData, ring::kFlagRewind, 8})},
      {8, Encode({Kind::kData, ring::kFlagInline | ring::kFlagRing, 8})},
      {8, Encode({Kind::kData, ring::kFlagInline, ring::kMaxLength})},
      {8, Encode({Kind::kCredit, 0, 0})},
      {8, Encode({Kind::kCredit, ring::kFlagInline, 8})},
      {8, Encode({Kind::kCtl, ring::kFlagInline, 9})},
      {8, Encode({Kind::kCtl, ring::kFlagInline | ring::kFlagRewind, 8})},
      {57, Encode({Kind::kCtl, ring::kFlagInline, 57})},
      {32, Encode({Kind::kSetup, ring::kFlagInline, 32})},  // a second one
      {0, 0},
      {8, 0},
      {0, Encode({Kind::kData, ring::kFlagInline, 8})},
      {0, Encode({Kind::kCtl, ring::kFlagInline, 8})},
  };
  for (const auto& one : forged) {
    ASSERT_TRUE(Send(one.bytes, one.imm));
    ExpectDead(std::to_string(one.imm).c_str());
    Again();
  }
  for (const std::size_t length : {0, 1, 3}) {
    ASSERT_TRUE(made_.verbs->Send(made_.id[1], std::string(length, 0)));
    lane_->source()->Drain();
    EXPECT_NE(lane_->State(), base::Reason::kNone) << length;
    Again();
  }
  // The device takes no more than the buffer has room for.
  EXPECT_FALSE(Send(rdma::kSendData + rdma::kSendCredit + 1,
                    Encode({Kind::kData, ring::kFlagInline, 65})));
  EXPECT_EQ(lane_->State(), base::Reason::kNone);
  // Messages beyond the credit, and what is left of them can be read.
  std::size_t sent = 0;
  while (lane_->State() == base::Reason::kNone && sent < 100) {
    ASSERT_TRUE(Send(64, Encode({Kind::kData, ring::kFlagInline, 64})));
    lane_->source()->Drain();
    ++sent;
  }
  EXPECT_LE(sent, rdma::kMessages + 1);
  EXPECT_EQ(lane_->State(), base::Reason::kProtocol);
  std::string sink(64 * rdma::kMessages, 0);
  iovec iov{sink.data(), sink.size()};
  EXPECT_EQ(lane_->Read(&iov, 1, 0, sink.size(), false), (sent - 1) * 64);
  EXPECT_EQ(sink.substr(0, 65), std::string(64, 's') + 's');
}

TEST_P(Hostile, ForgedCreditThatGoesAlong) {
  const std::uint8_t in_slot = GetParam() ? ring::kFlagInline : 0;
  const ring::Imm data{Kind::kData, in_slot, 8};
  const auto send = [this](std::size_t credit_bytes, std::uint64_t credit,
                           ring::Imm imm) {
    if (!GetParam()) return Say(Encode(ring::WithCredit(imm, credit)));
    imm.flags |= ring::kFlagCredit;
    const std::uint32_t wire = htonl(static_cast<std::uint32_t>(credit));
    const std::uint32_t bits = htonl(Encode(imm));
    std::string bytes(imm.length, 's');
    bytes.append(reinterpret_cast<const char*>(&wire), credit_bytes);
    bytes.append(reinterpret_cast<const char*>(&bits), sizeof(bits));
    EXPECT_TRUE(made_.verbs->Send(made_.id[1], bytes));
    lane_->source()->Drain();
  };
  for (const std::uint64_t beyond : {1ull, 2ull, 100ull, 200ull}) {
    send(4, lane_->sent_messages() + beyond, data);
    ExpectDead("beyond");
    Again();
  }
  if (GetParam()) {
    for (const std::uint64_t beyond : {1ull << 31, 0xffff'0000ull}) {
      send(4, lane_->sent_messages() + beyond, data);
      ExpectDead("far beyond");
      Again();
    }
    for (const std::size_t bytes : {0, 1, 3}) {
      send(bytes, 0, {Kind::kData, in_slot, 0});
      ExpectDead("no credit there");
      Again();
    }
  }
  send(4, 0, {Kind::kCtl, ring::kFlagInline, 8});
  ExpectDead("none goes along with a control message");
  Again();
  // Going back; and an honest one before that.
  for (int i = 0; i < 3; ++i) Post(lane_, 10);
  send(4, lane_->sent_messages() - 1, data);
  EXPECT_EQ(lane_->State(), base::Reason::kNone);
  EXPECT_EQ(lane_->Acked(), 20u);
  send(4, lane_->sent_messages() - 2, data);
  ExpectDead("back");
}

TEST_P(Hostile, MoreMessagesThanCredit) {
  for (std::uint32_t i = 0; i < rdma::kMessages + 1; ++i) {
    EXPECT_EQ(lane_->State(), base::Reason::kNone) << i;
    Say(Encode({Kind::kCtl, ring::kFlagInline, 8}));
    lane_->source()->Drain();
    if (lane_->State() != base::Reason::kNone) {
      EXPECT_GE(i, rdma::kMessages - 2) << "READY was one";
      break;
    }
  }
  EXPECT_EQ(lane_->State(), base::Reason::kProtocol);
  // What it had credit for can still be read.
  char message[64];
  for (std::uint32_t i = 0; i + 2 < rdma::kMessages; ++i) {
    EXPECT_EQ(lane_->ReadCtl(message, sizeof(message)), 8u);
  }
}

TEST_P(Hostile, WakeUpsForNothing) {
  for (int i = 0; i < 40 && lane_->State() == base::Reason::kNone; ++i) {
    Say(Encode({Kind::kCredit, 0, 0}));
  }
  ExpectDead("wake-ups");
}

TEST_P(Hostile, ForgedCredit) {
  const auto beyond = [this] { return lane_->sent_messages() + 1; };
  std::uint64_t forged[] = {beyond(), beyond() + 1000, rdma::kConsumedMask,
                            std::numeric_limits<std::uint64_t>::max()};
  for (const std::uint64_t word : forged) {
    ASSERT_TRUE(WriteWord(base_, word));
    ExpectDead(std::to_string(word).c_str());
    Again();
  }
}

// siw puts the bytes of a word there as TCP brings them.
TEST_P(Hostile, CreditThatComesInTwoParts) {
  std::vector<char> sink(1000);
  const auto read = [&](std::size_t bytes) {
    iovec iov{sink.data(), bytes};
    EXPECT_EQ(peer_->Read(&iov, 1, 0, bytes, false), bytes);
  };
  // READY was one.
  while (lane_->sent_messages() < 250) {
    ASSERT_EQ(Post(lane_, 10), 10u);
    made_.pair->side[0].domain->FlushDeferred();
    read(10);
  }
  peer_->Credit();
  made_.pair->Pump();
  EXPECT_EQ(lane_->Acked(), lane_->Posted());
  const std::uint64_t before = lane_->Acked();
  while (lane_->sent_messages() < 260) {
    ASSERT_EQ(Post(lane_, 10), 10u);
    made_.pair->side[0].domain->FlushDeferred();
  }
  const std::uint64_t consumed = 260;
  ASSERT_TRUE(made_.verbs->Write(made_.id[1], base_, key_, &consumed, 1));
  EXPECT_LT(lane_->credit_seen(), 250u) << "half of it";
  EXPECT_EQ(lane_->Acked(), before);
  EXPECT_GT(lane_->Writable(), 0u);
  const timespec brief{0, 1'000'000};
  EXPECT_EQ(lane_->SleepTx(lane_->SleepToken(true), &brief), -ETIMEDOUT);
  EXPECT_EQ(lane_->State(), base::Reason::kNone);
  ASSERT_TRUE(WriteWord(base_, consumed));
  EXPECT_EQ(lane_->Acked(), lane_->Posted());
  EXPECT_EQ(lane_->State(), base::Reason::kNone);
}

// The same from a peer that means it: nobody waits in a circle.
TEST_P(Hostile, CreditThatGoesBackIsNone) {
  for (int i = 0; i < 20; ++i) Post(lane_, 10);
  made_.pair->Pump();
  std::vector<char> sink(1000);
  iovec iov{sink.data(), sink.size()};
  peer_->Read(&iov, 1, 0, sink.size(), false);
  made_.pair->Pump();
  lane_->Writable();
  const std::uint64_t acked = lane_->Acked();
  ASSERT_TRUE(WriteWord(base_, 1));
  EXPECT_EQ(lane_->Acked(), acked);
  const timespec brief{0, 1'000'000};
  EXPECT_EQ(lane_->SleepTx(lane_->SleepToken(true), &brief), -ETIMEDOUT);
  EXPECT_EQ(lane_->State(), base::Reason::kNone);
}

// No writes to one place are in order, so an older credit word may be there in
// the end.  What a wake-up told, it told by itself.
TEST_P(Hostile, AnOlderWordBehindAWakeUp) {
  while (Post(lane_, 1000) != 0) {
  }
  ASSERT_EQ(lane_->Writable(), 0u);
  const std::uint64_t before = lane_->Acked();
  std::vector<char> sink(100'000);
  iovec iov{sink.data(), sink.size()};
  const std::uint32_t wakes = peer_->wakes_sent();
  ASSERT_GT(peer_->Read(&iov, 1, 0, sink.size(), false), 0u);
  ASSERT_GT(peer_->wakes_sent(), wakes);
  ASSERT_TRUE(WriteWord(base_, 1));
  made_.pair->Pump();
  EXPECT_GT(lane_->Acked(), before);
  EXPECT_GT(lane_->Writable(), 0u);
  EXPECT_EQ(lane_->State(), base::Reason::kNone);
}

// Where nothing more is sent, nothing is written over the older word.  A sender
// that asks over TCP what has been read hears of it.
TEST_P(Hostile, AnOlderWordForWhoAsks) {
  for (int i = 0; i < 5; ++i) ASSERT_EQ(Post(lane_, 1000), 1000u);
  made_.pair->side[0].domain->FlushDeferred();
  made_.pair->Pump();
  std::vector<char> sink(100'000);
  iovec iov{sink.data(), sink.size()};
  ASSERT_EQ(peer_->Read(&iov, 1, 0, sink.size(), false), 5000u);
  peer_->Credit();
  ASSERT_TRUE(WriteWord(base_, 1));
  lane_->source()->Drain();
  ASSERT_LT(lane_->Acked(), lane_->Posted()) << "the test tests nothing";
  peer_->Credit();
  lane_->source()->Drain();
  ASSERT_LT(lane_->Acked(), lane_->Posted());
  const std::uint32_t wakes = peer_->wakes_sent();
  for (int i = 0; i < 20; ++i) peer_->AssureCredit();
  EXPECT_EQ(peer_->wakes_sent(), wakes + 1) << "a wake-up for each question";
  made_.pair->Pump();
  EXPECT_EQ(lane_->Acked(), lane_->Posted());
  EXPECT_EQ(lane_->State(), base::Reason::kNone);
}

TEST_P(Hostile, CreditThatNeverComes) {
  std::size_t posted = 0;
  while (Post(lane_, 1000) != 0) ++posted;
  EXPECT_GT(posted, 10u);
  EXPECT_EQ(lane_->Writable(), 0u);
  int controls = 0;
  while (lane_->PostCtl("x", 1)) ++controls;
  EXPECT_LE(controls, static_cast<int>(rdma::kMessages));
  EXPECT_EQ(lane_->State(), base::Reason::kNone);
  const timespec brief{0, 1'000'000};
  EXPECT_EQ(lane_->SleepTx(lane_->SleepToken(true), &brief), -ETIMEDOUT);
  std::string all(lane_->Posted(), 0);
  EXPECT_EQ(lane_->CopyUnacked(0, all.data(), all.size()), all.size());
}

TEST_P(Hostile, CannotWriteElsewhere) {
  // Its own ring and the credit word, to the last byte; not behind them, and
  // not what we send from.
  const std::uint64_t end = base_ + rdma::kRingAt + lane_->RxRegion().length;
  EXPECT_TRUE(WriteWord(end - 8, 1));
  EXPECT_FALSE(WriteWord(end - 4, 1));
  EXPECT_FALSE(WriteWord(base_ - 8, 1));
  const Region tx = lane_->TxRegion();
  const std::uint64_t word = 1;
  EXPECT_FALSE(made_.verbs->Write(
      made_.id[1], reinterpret_cast<std::uintptr_t>(tx.base),
      static_cast<std::uint32_t>(tx.key), &word, sizeof(word)));
}

TEST_P(Hostile, AnotherKindOfReceive) {
  if (GetParam()) GTEST_SKIP() << "a SEND is what comes there";
  made_.verbs->Immediate(made_.id[1], Encode({Kind::kData, 0, 10}), true);
  lane_->source()->Drain();
  EXPECT_NE(lane_->State(), base::Reason::kNone);
}

TEST_P(Hostile, BytesThatArriveAfterFreezeAreNotTaken) {
  Post(peer_, 100);
  made_.pair->Pump();
  lane_->Freeze();
  for (int i = 0; i < 10; ++i) Say(Encode({Kind::kData, 0, 10}));
  char bytes[400];
  iovec iov{bytes, sizeof(bytes)};
  EXPECT_EQ(lane_->Read(&iov, 1, 0, sizeof(bytes), false), 100u);
  EXPECT_EQ(lane_->Peek(), Head::kEmpty);
}

// The receive queue is that of other lanes, too: what has come for a lane that
// goes, and nobody has looked at, is posted again.
TEST_P(Hostile, ALaneThatGoesTakesNoReceivesWithIt) {
  const std::uint64_t landed = lane_->landed_messages();
  for (int i = 0; i < 5; ++i) ASSERT_EQ(Post(peer_, 100), 100u);
  ASSERT_EQ(lane_->landed_messages(), landed) << "nobody has looked";
  Close();
}

INSTANTIATE_TEST_SUITE_P(Ib, Hostile, testing::Values(false));
INSTANTIATE_TEST_SUITE_P(Iwarp, Hostile, testing::Values(true));

// Who has recorded a handshake, and sends it again, cannot say READY: what it
// carries is made of what the other end has just said.
TEST(Ready, WithoutItsProofThereIsNoLane) {
  for (const bool right : {true, false}) {
    FakeVerbs verbs({});
    RdmaSide sides[2];
    rdma_cm_id* ids[2];
    verbs::Error error;
    base::Reason why = base::Reason::kNone;
    rdma::ReadyMac macs[2];
    macs[0].fill(1);
    macs[1].fill(2);
    for (int i = 0; i < 2; ++i) {
      ids[i] = verbs.NewId();
      sides[i].domain =
          rdma::Domain::Make(verbs.context(), &sides[i].board, &error);
      ASSERT_NE(sides[i].domain, nullptr);
      sides[i].domain->SetRingBytes(rdma::RingBytes(rdma::kBlockMin),
                                    rdma::RingBytes(rdma::kBlockMin));
      sides[i].lane =
          sides[i].domain->CreateLane(ids[i], RdmaSide::kBell, &why, &error);
      ASSERT_NE(sides[i].lane, nullptr);
      sides[i].lane->SetReadyMacs(macs[i], macs[1 - i]);
    }
    // The last byte alone.
    if (!right) macs[0][15] ^= 1;
    sides[0].lane->SetReadyMacs(macs[0], macs[1]);
    verbs.Connect(ids[0], ids[1]);
    sides[0].lane->SetPeer(sides[1].lane->offer());
    ASSERT_TRUE(sides[0].lane->SendReady());
    bool ready = false;
    for (int i = 0;
         i < 2000 && !ready && sides[1].lane->State() == base::Reason::kNone;
         ++i) {
      ready = sides[1].lane->PeerReady();
      ::usleep(500);
    }
    EXPECT_EQ(ready, right);
    EXPECT_EQ(sides[1].lane->State(),
              right ? base::Reason::kNone : base::Reason::kPeerKey);
    for (RdmaSide& side : sides) side.lane.reset();
  }
}

TEST(Offer, RefusesNonsense) {
  rdma::Offer good{};
  good.address = 0x10000 + 64;
  good.credit = 0x10000;
  good.key = 7;
  good.bytes = rdma::RingBytes(rdma::kBlockMin);
  good.messages = rdma::kMessages;
  const auto decodes = [](const rdma::Offer& offer) {
    std::uint8_t bytes[rdma::kOfferSize];
    rdma::EncodeOffer(offer, bytes);
    rdma::Offer out;
    return rdma::DecodeOffer(bytes, &out) && out.address == offer.address &&
           out.credit == offer.credit && out.key == offer.key &&
           out.bytes == offer.bytes;
  };
  EXPECT_TRUE(decodes(good));
  const auto refuse = [&](auto change) {
    rdma::Offer offer = good;
    change(&offer);
    EXPECT_FALSE(decodes(offer));
  };
  refuse([](rdma::Offer* o) { o->address = 0; });
  refuse([](rdma::Offer* o) { o->address += 8; });
  refuse([](rdma::Offer* o) { o->address = ~std::uint64_t{63}; });
  refuse([](rdma::Offer* o) { o->credit = 0; });
  refuse([](rdma::Offer* o) { o->credit += 4; });
  refuse([](rdma::Offer* o) { o->credit = ~std::uint64_t{7}; });
  refuse([](rdma::Offer* o) { o->bytes = 0; });
  refuse([](rdma::Offer* o) { o->bytes -= 64; });
  refuse([](rdma::Offer* o) { o->bytes = 0xffffffff; });
  refuse(
      [](rdma::Offer* o) { o->bytes = rdma::RingBytes(2 * rdma::kBlockMax); });
  refuse([](rdma::Offer* o) { o->messages = 0; });
  refuse([](rdma::Offer* o) { o->messages = 64; });
  std::uint8_t bytes[rdma::kOfferSize];
  rdma::EncodeOffer(good, bytes);
  rdma::Offer out;
  EXPECT_TRUE(rdma::DecodeOffer(bytes, &out));
  EXPECT_EQ(out.most_ring, 0);
  good.most_ring = 16;
  rdma::EncodeOffer(good, bytes);
  EXPECT_TRUE(rdma::DecodeOffer(bytes, &out));
  EXPECT_EQ(out.most_ring, 16);
  bytes[rdma::kOfferSize - 1] = 1;
  EXPECT_FALSE(rdma::DecodeOffer(bytes, &out));
}

}  // namespace
}  // namespace rcsock::lane::test
