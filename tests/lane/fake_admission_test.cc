// What a device has room for.

#include <gtest/gtest.h>

#include <cerrno>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "lib/base/pin_count.h"
#include "lib/lane/rdma/refusal.h"
#include "tests/lane/fake_pair.h"

namespace rcsock::lane::test {
namespace {

TEST(Admission, EndsWhereTheDeviceDoes) {
  FakeVerbs::Options options;
  options.max_cqe = 20;
  FakeVerbs verbs(options);
  RdmaSide side;
  verbs::Error error;
  base::Reason why = base::Reason::kNone;
  side.domain = rdma::Domain::Make(verbs.context(), &side.board, &error);
  ASSERT_NE(side.domain, nullptr);
  EXPECT_EQ(side.domain->CreateLane(verbs.NewId(), 2, &why, &error), nullptr);
  EXPECT_EQ(why, base::Reason::kDeviceFull);
}

// A send queue that would never have room for a Post.
TEST(Admission, NoLaneOnAShortSendQueue) {
  for (const int depth : {0, 40, 47, 48, 64}) {
    FakeVerbs::Options options;
    options.max_qp_wr = depth;
    FakePair made = MakeFakePair(options, rdma::kBlockMin);
    ASSERT_EQ(made.pair != nullptr, depth >= 48) << depth;
    if (made.pair == nullptr) continue;
    // Each is answered, and nobody looks for the ends of sends.
    char byte = 'x';
    iovec iov{&byte, 1};
    for (int i = 0; i < 1000; ++i) {
      const int from = i % 2;
      ASSERT_EQ(made.pair->end(from).Post(&iov, 1, 0, 1), 1u) << i;
      ASSERT_EQ(made.pair->end(1 - from).Read(&iov, 1, 0, 1, false), 1u) << i;
    }
  }
}

TEST(Admission, ManyLanesGetMoreQueues) {
  FakeVerbs::Options options;
  options.max_cqe = 4096;
  FakeVerbs verbs(options);
  {
    RdmaSide side;
    verbs::Error error;
    base::Reason why = base::Reason::kNone;
    side.domain = rdma::Domain::Make(verbs.context(), &side.board, &error);
    std::vector<std::unique_ptr<rdma::RdmaLane>> lanes;
    for (int i = 0; i < 200; ++i) {
      lanes.push_back(side.domain->CreateLane(verbs.NewId(), 2, &why, &error));
      ASSERT_NE(lanes.back(), nullptr) << i;
    }
    EXPECT_EQ(side.domain->counts().lanes, 200u);
    EXPECT_EQ(side.domain->counts().pinned, 200 * rdma::kBlockMin);
    // In another order than they came in.
    for (int i = 0; i < 200; i += 3) lanes[i].reset();
    lanes.clear();
    EXPECT_EQ(side.domain->counts().lanes, 0u);
    EXPECT_EQ(side.domain->counts().pinned, 0u);
  }
  EXPECT_EQ(verbs.counts().objects, 0);
}

// Pollers do not all interrupt the same CPU.
TEST(Admission, PollersUseAllVectors) {
  FakeVerbs::Options options;
  options.vectors = 3;
  FakeVerbs verbs(options);
  RdmaSide side;
  verbs::Error error;
  base::Reason why = base::Reason::kNone;
  side.domain = rdma::Domain::Make(verbs.context(), &side.board, &error);
  std::vector<std::unique_ptr<rdma::RdmaLane>> lanes;
  for (int bell = 0; bell < 4; ++bell) {
    lanes.push_back(side.domain->CreateLane(verbs.NewId(), bell, &why, &error));
    ASSERT_NE(lanes.back(), nullptr) << bell;
  }
  EXPECT_EQ(verbs.counts().vectors, (std::set<int>{0, 1, 2}));
}

// A thread for which no queue can be made shares another's.
TEST(Admission, ShareQueuesWhereNoMoreCanBeMade) {
  FakeVerbs::Options options;
  options.max_cqs = 2;
  FakeVerbs verbs(options);
  {
    RdmaSide side;
    verbs::Error error;
    base::Reason why = base::Reason::kNone;
    side.domain = rdma::Domain::Make(verbs.context(), &side.board, &error);
    std::vector<std::unique_ptr<rdma::RdmaLane>> lanes;
    for (int bell = 2; bell < 10; ++bell) {
      lanes.push_back(
          side.domain->CreateLane(verbs.NewId(), bell, &why, &error));
      ASSERT_NE(lanes.back(), nullptr) << bell;
    }
    EXPECT_NE(lanes[0]->source(), lanes[1]->source());
    for (int i = 2; i < 8; ++i) {
      EXPECT_TRUE(lanes[i]->source() == lanes[0]->source() ||
                  lanes[i]->source() == lanes[1]->source());
    }
    // Four each: there is room for no more.
    EXPECT_EQ(side.domain->CreateLane(verbs.NewId(), 10, &why, &error),
              nullptr);
    EXPECT_EQ(why, base::Reason::kDeviceFull);
    EXPECT_EQ(error.code, ENOMEM);
  }
  EXPECT_EQ(verbs.counts().objects, 0);
}

// Whether or not it says so beforehand.
TEST(Admission, WithoutSharedReceiveQueues) {
  for (const bool claims : {true, false}) {
    for (const bool iwarp : {true, false}) {
      FakeVerbs::Options options;
      options.iwarp = iwarp;
      options.max_srq_wr = 0;
      options.claims_srqs = claims;
      FakeVerbs verbs(options);
      {
        RdmaSide side;
        verbs::Error error;
        base::Reason why = base::Reason::kNone;
        side.domain = rdma::Domain::Make(verbs.context(), &side.board, &error);
        const std::uint64_t before = side.domain->counts().pinned;
        std::vector<std::unique_ptr<rdma::RdmaLane>> lanes;
        for (int i = 0; i < 100; ++i) {
          lanes.push_back(
              side.domain->CreateLane(verbs.NewId(), 2, &why, &error));
          ASSERT_NE(lanes.back(), nullptr) << i << ": " << error.call;
        }
        // With the mirror, which is as large as the ring.
        const std::uint64_t each =
            (side.domain->counts().pinned - before) / lanes.size();
        const std::size_t block =
            iwarp ? rdma::kBlockMinIwarp : rdma::kBlockMin;
        EXPECT_LE(each + block, 32 * 1024u);
        lanes.clear();
        EXPECT_EQ(side.domain->counts().pinned, before);
      }
      EXPECT_EQ(verbs.counts().objects, 0);
    }
  }
}

// On iWARP receives have buffers, which the lanes of a poller share: as many
// as there are lanes for, so that one alone pins no more than its part either.
TEST(Admission, AnIdleLanePinsAtMost32KiB) {
  for (const bool iwarp : {true, false}) {
    FakeVerbs::Options options;
    options.iwarp = iwarp;
    FakeVerbs verbs(options);
    RdmaSide side;
    verbs::Error error;
    base::Reason why = base::Reason::kNone;
    side.domain = rdma::Domain::Make(verbs.context(), &side.board, &error);
    const std::size_t mirror = iwarp ? rdma::kBlockMinIwarp : rdma::kBlockMin;
    std::vector<std::unique_ptr<rdma::RdmaLane>> lanes;
    for (int i = 1; i <= 100; ++i) {
      lanes.push_back(side.domain->CreateLane(verbs.NewId(), 2, &why, &error));
      ASSERT_NE(lanes.back(), nullptr) << i << ": " << error.call;
      EXPECT_LE(side.domain->counts().pinned + i * mirror, i * 32 * 1024u) << i;
    }
    // Lanes that come and go add nothing.
    const std::uint64_t most = side.domain->counts().pinned;
    lanes.resize(50);
    for (int i = 50; i < 100; ++i) {
      lanes.push_back(side.domain->CreateLane(verbs.NewId(), 2, &why, &error));
    }
    EXPECT_EQ(side.domain->counts().pinned, most);
  }
}

// What an HCA's provider allocates counts, and is not counted for good.
TEST(Admission, QueuesCountAsPinned) {
  for (const bool software : {false, true}) {
    const std::uint64_t before = base::PinCount::Total();
    FakeVerbs::Options options;
    options.software = software;
    FakeVerbs verbs(options);
    {
      RdmaSide side;
      verbs::Error error;
      base::Reason why = base::Reason::kNone;
      side.domain = rdma::Domain::Make(verbs.context(), &side.board, &error);
      auto lane = side.domain->CreateLane(verbs.NewId(), 2, &why, &error);
      const std::uint64_t one = base::PinCount::Total();
      auto other = side.domain->CreateLane(verbs.NewId(), 2, &why, &error);
      const std::uint64_t each = rdma::kBlockMin + (software ? 0 : 64 * 1024);
      EXPECT_EQ(base::PinCount::Total() - one, each);
      // The CQ for 4 lanes and the SRQ that feeds it.
      EXPECT_EQ(one - before - each, software ? 0u : 72 * 1024);
      lane.reset();
      EXPECT_EQ(base::PinCount::Total(), one);
    }
    EXPECT_EQ(base::PinCount::Total(), before);
  }
}

// What is refused for another reason than its inline size is refused once.
TEST(Admission, NoMoreQueuePairs) {
  for (const auto& [code, expected] :
       {std::pair{EAGAIN, base::Reason::kDeviceFull},
        std::pair{ENOMEM, base::Reason::kDeviceFull},
        std::pair{EIO, base::Reason::kRdmaError}}) {
    FakeVerbs::Options options;
    options.qp_error = code;
    FakeVerbs verbs(options);
    RdmaSide side;
    verbs::Error error;
    base::Reason why = base::Reason::kNone;
    side.domain = rdma::Domain::Make(verbs.context(), &side.board, &error);
    EXPECT_EQ(side.domain->CreateLane(verbs.NewId(), 2, &why, &error), nullptr);
    EXPECT_EQ(why, expected);
    EXPECT_EQ(error.code, code);
    EXPECT_EQ(verbs.counts().refused_qps, 1) << code;
  }
}

// ENOMEM is the limit of locked memory only where the process is near it.
TEST(Admission, LockedMemoryOrTheDevice) {
  constexpr std::size_t kMib = 1 << 20;
  EXPECT_FALSE(
      rdma::MayBeMemlock("VmLck: 0 kB\nVmPin:\t       0 kB\n", 8 * kMib));
  EXPECT_FALSE(rdma::MayBeMemlock("a\nVmPin:\t    6000 kB\nb", 8 * kMib));
  EXPECT_TRUE(rdma::MayBeMemlock("a\nVmPin:\t    7500 kB\nb", 8 * kMib));
  EXPECT_TRUE(rdma::MayBeMemlock("a\nVmPin:\t    8192 kB\nb", 8 * kMib));
  EXPECT_FALSE(rdma::MayBeMemlock("a\nVmPin:\t    8196 kB\nb", 8 * kMib));
  EXPECT_TRUE(rdma::MayBeMemlock("a\nVmPin:\t       0 kB\nb", 65536));
  EXPECT_TRUE(rdma::MayBeMemlock("", 8 * kMib));
  verbs::Error error{"mmap", ENOMEM, {}};
  EXPECT_EQ(rdma::ReasonOf(error), base::Reason::kNoMemory);
}

// siw's limit is found by asking; the second QP asks for what it is.
TEST(Admission, InlineSizeIsAskedForOnce) {
  FakeVerbs::Options options;
  options.inline_max = 80;
  FakeVerbs verbs(options);
  RdmaSide side;
  verbs::Error error;
  base::Reason why = base::Reason::kNone;
  side.domain = rdma::Domain::Make(verbs.context(), &side.board, &error);
  const auto first = side.domain->CreateLane(verbs.NewId(), 2, &why, &error);
  const int refused = verbs.counts().refused_qps;
  EXPECT_GT(refused, 0);
  const auto second = side.domain->CreateLane(verbs.NewId(), 2, &why, &error);
  EXPECT_NE(second, nullptr);
  EXPECT_EQ(verbs.counts().refused_qps, refused);
}

}  // namespace
}  // namespace rcsock::lane::test
