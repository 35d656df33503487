// Rings that grow: when, how far, and what a peer may say of them.

#include <gtest/gtest.h>
#include <sys/uio.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "lib/base/config.h"
#include "tests/lane/fake_ends.h"

namespace rcsock::lane::test {
namespace {

using ring::Encode;
using ring::Kind;

// Sends `all` bytes from the lane to its peer, as much at a time as there is
// room for, and checks them.
class Growing : public FakeEnds {
 protected:
  void SetUp() override {
    fds_ = OpenFds();
    pace_ = rdma::kSoftwarePace;
    Make(rdma::kBlockMin, 256 * 1024);
  }
  void Stream(std::size_t all, std::size_t piece) {
    std::size_t sent = lane_->Posted();
    std::size_t read = sent;
    const std::size_t end = sent + all;
    std::vector<char> bytes(piece);
    while (read < end) {
      const std::size_t want = std::min(piece, end - sent);
      for (std::size_t i = 0; i < want; ++i) bytes[i] = Byte(sent + i);
      iovec iov{bytes.data(), want};
      sent += lane_->Post(&iov, 1, 0, want);
      made_.pair->Pump();
      // What is not credited can be had again, out of whichever ring.
      const std::uint64_t from = lane_->Acked();
      std::vector<char> copy(lane_->Posted() - from);
      ASSERT_EQ(lane_->CopyUnacked(from, copy.data(), copy.size()),
                copy.size());
      for (std::size_t i = 0; i < copy.size(); i += 7) {
        ASSERT_EQ(copy[i], Byte(from + i));
      }
      iovec out{bytes.data(), piece};
      const std::size_t n = peer_->Read(&out, 1, 0, piece, false);
      for (std::size_t i = 0; i < n; ++i) ASSERT_EQ(bytes[i], Byte(read + i));
      read += n;
      made_.pair->Pump();
    }
  }
  static char Byte(std::size_t at) {
    return static_cast<char>(at * 31 + (at >> 9));
  }
  void Fill(std::size_t bytes) {
    std::vector<char> some(bytes, 'x');
    iovec iov{some.data(), bytes};
    lane_->Post(&iov, 1, 0, bytes);
  }
  std::uint64_t Pinned(int i) {
    return made_.pair->side[i].domain->counts().pinned;
  }
};

TEST_P(Growing, UnderBulkToTheLimitAndNotBeyond) {
  const std::uint64_t sender = Pinned(0);
  const std::uint64_t receiver = Pinned(1);
  Stream(3'000'000, 60'000);
  EXPECT_EQ(Pinned(0), sender + 256 * 1024) << "the old mirrors are gone";
  EXPECT_EQ(Pinned(1), receiver + 256 * 1024) << "the old rings are gone";
  EXPECT_EQ(lane_->State(), base::Reason::kNone);
  EXPECT_GT(lane_->Writable(), 200'000u);
}

// Many lanes share what may be under way: the ring of one that sends short
// messages stays smaller.
TEST_P(Growing, LessWhereManyLanesAreLarge) {
  made_.pair.reset();
  made_ = {};
  const MuchPinned pinned;
  ASSERT_NO_FATAL_FAILURE(Make(rdma::kBlockMin, 1024 * 1024));
  const auto ring = [this] {
    return peer_->RxRegion().length - rdma::RingBytes(rdma::kBlockMin);
  };
  RdmaSide& receiver = made_.pair->side[1];
  receiver.domain->SetRingBytes(rdma::kMany, rdma::kMany);
  verbs::Error error;
  base::Reason why = base::Reason::kNone;
  auto other = receiver.domain->CreateLane(made_.verbs->NewId(),
                                           RdmaSide::kBell, &why, &error);
  ASSERT_NE(other, nullptr);
  // A sender that is always ahead, as far as there is room.
  std::vector<char> bytes(rdma::kBlockMax);
  const auto bulk = [&](std::size_t piece) {
    for (int i = 0; i < 100; ++i) {
      iovec iov{bytes.data(), piece};
      while (lane_->Post(&iov, 1, 0, piece) == piece) {
      }
      made_.pair->Pump();
      iov.iov_len = bytes.size();
      while (peer_->Read(&iov, 1, 0, bytes.size(), false) != 0) {
      }
      made_.pair->Pump();
    }
  };
  bulk(60'000);
  EXPECT_EQ(ring(), 256 * 1024u);
  // Long messages need it even so.
  bulk(200'000);
  EXPECT_EQ(ring(), 1024 * 1024u);
  EXPECT_EQ(lane_->State(), base::Reason::kNone);
  other.reset();
}

TEST_P(Growing, ToTheSmallerBoundOfBothEnds) {
  for (const std::size_t sender : {32, 64}) {
    made_.pair.reset();
    made_ = {};
    ASSERT_NO_FATAL_FAILURE(Make(rdma::kBlockMin, 256 * 1024, sender * 1024));
    const std::uint64_t idle[2] = {Pinned(0), Pinned(1)};
    Stream(1'000'000, 60'000);
    EXPECT_EQ(Pinned(0), idle[0] + sender * 1024);
    EXPECT_EQ(Pinned(1), idle[1] + sender * 1024) << "no more than is used";
    EXPECT_EQ(peer_->RxRegion().length - rdma::RingBytes(rdma::kBlockMin),
              sender * 1024);
    std::swap(lane_, peer_);
    Stream(1'000'000, 60'000);
    EXPECT_EQ(Pinned(0), idle[0] + 2 * sender * 1024);
    EXPECT_EQ(Pinned(1), idle[1] + 2 * sender * 1024);
    EXPECT_EQ(lane_->State(), base::Reason::kNone);
  }
}

// What a peer says of its ring makes us pin as much: the limits hold from the
// first offer on.
TEST_P(Growing, ALargeFirstRingIsWithinTheLimits) {
  made_.pair.reset();
  made_ = {};
  FakeVerbs::Options options;
  options.iwarp = GetParam();
  FakeVerbs verbs(options);
  RdmaSide side;
  verbs::Error error;
  base::Reason why = base::Reason::kNone;
  side.domain = rdma::Domain::Make(verbs.context(), &side.board, &error);
  ASSERT_NE(side.domain, nullptr);
  side.domain->SetRingBytes(rdma::kBlockMin, 64 * 1024);
  for (const std::size_t block : {64 * 1024, 128 * 1024}) {
    auto lane =
        side.domain->CreateLane(verbs.NewId(), RdmaSide::kBell, &why, &error);
    ASSERT_NE(lane, nullptr);
    rdma::Offer offer = lane->offer();
    offer.bytes = rdma::RingBytes(block);
    const std::uint64_t before = side.domain->counts().pinned;
    lane->SetPeer(offer);
    if (block == 64 * 1024) {
      EXPECT_EQ(lane->State(), base::Reason::kNone);
      EXPECT_EQ(side.domain->counts().pinned, before + block);
    } else {
      EXPECT_EQ(lane->State(), base::Reason::kNoMemory);
      EXPECT_EQ(side.domain->counts().pinned, before);
    }
  }
}

TEST_P(Growing, NotForLightTraffic) {
  const std::uint64_t before = Pinned(1);
  Stream(100'000, 200);
  EXPECT_EQ(Pinned(1), before);
}

TEST_P(Growing, ForgedOffersOfARing) {
  struct {
    std::uint64_t address;
    std::uint32_t key;
    std::uint32_t bytes;
  } forged[] = {
      {0, 1, 65'536},
      {0x10008, 1, 65'536},
      {~std::uint64_t{4095}, 1, 65'536},
      {0x10000, 1, 0},
      {0x10000, 1, 4096},
      {0x10000, 1, 65'537},
      {0x10000, 1, 2 * rdma::kBlockMax},
      {0x10000, 1, 0xffffffff},
  };
  for (const auto& offer : forged) {
    base_ = reinterpret_cast<std::uintptr_t>(lane_->RxRegion().base) -
            rdma::kRingAt;
    key_ = static_cast<std::uint32_t>(lane_->RxRegion().key);
    ASSERT_TRUE(WriteWord(base_ + rdma::kRingOfferAt, offer.address));
    ASSERT_TRUE(WriteWord(base_ + rdma::kRingOfferAt + 8,
                          offer.key | std::uint64_t{offer.bytes} << 32));
    Say(Encode({Kind::kCredit, ring::kFlagRing, 0}));
    lane_->Writable();
    ExpectDead(std::to_string(offer.bytes).c_str());
    Close();
    SetUp();
  }
  // One that is well formed and leads nowhere: the write fails, and the lane.
  base_ =
      reinterpret_cast<std::uintptr_t>(lane_->RxRegion().base) - rdma::kRingAt;
  key_ = static_cast<std::uint32_t>(lane_->RxRegion().key);
  ASSERT_TRUE(WriteWord(base_ + rdma::kRingOfferAt, 0x10000));
  ASSERT_TRUE(WriteWord(base_ + rdma::kRingOfferAt + 8,
                        9999 | std::uint64_t{65'536} << 32));
  Say(Encode({Kind::kCredit, ring::kFlagRing, 0}));
  Fill(100);
  made_.pair->side[0].domain->FlushDeferred();
  lane_->source()->Drain();
  EXPECT_EQ(lane_->State(), base::Reason::kLaneError);
  char copy[100];
  EXPECT_EQ(lane_->CopyUnacked(lane_->Posted() - 100, copy, 100), 100u);
}

TEST_P(Growing, ARingThatWasNotOffered) {
  base_ =
      reinterpret_cast<std::uintptr_t>(lane_->RxRegion().base) - rdma::kRingAt;
  Say(Encode({Kind::kData, ring::kFlagRing, 100}));
  ExpectDead("no such ring");
}

INSTANTIATE_TEST_SUITE_P(Ib, Growing, testing::Values(false));
INSTANTIATE_TEST_SUITE_P(Iwarp, Growing, testing::Values(true));

}  // namespace
}  // namespace rcsock::lane::test
