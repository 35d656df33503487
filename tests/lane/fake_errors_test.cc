// Calls of the data path that fail.

#include <gtest/gtest.h>
#include <sys/uio.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <tuple>

#include "tests/lane/fake_pair.h"

namespace rcsock::lane::test {
namespace {

// IB or (true) iWARP; queues of receives that lanes share, or (true) each its
// own.
class Errors : public testing::TestWithParam<std::tuple<bool, bool>> {
 protected:
  void SetUp() override {
    FakeVerbs::Options options;
    options.iwarp = std::get<0>(GetParam());
    if (std::get<1>(GetParam())) options.max_srq_wr = 0;
    made_ = MakeFakePair(options, 64 << 10);
    ASSERT_NE(made_.pair, nullptr);
    lane_ = made_.pair->side[0].lane.get();
    peer_ = made_.pair->side[1].lane.get();
  }
  void TearDown() override {
    made_.pair.reset();
    EXPECT_EQ(made_.verbs->counts().objects, 0) << "objects are left";
  }
  // So many bytes go, of a sequence in which no place looks like another.
  std::size_t Send(Lane* lane, std::size_t size) {
    std::string bytes(size, 0);
    for (std::size_t i = 0; i < size; ++i) bytes[i] = ByteAt(sent_ + i);
    iovec iov{bytes.data(), size};
    const std::size_t n = lane->Post(&iov, 1, 0, size);
    sent_ += n;
    return n;
  }
  // What there is, which must be what comes next.
  std::size_t Receive(Lane* lane) {
    std::size_t before = got_;
    char bytes[4096];
    iovec iov{bytes, sizeof(bytes)};
    while (const std::size_t n = lane->Read(&iov, 1, 0, sizeof(bytes), false)) {
      for (std::size_t i = 0; i < n; ++i, ++got_) {
        EXPECT_EQ(bytes[i], ByteAt(got_)) << "at " << got_;
        if (bytes[i] != ByteAt(got_)) return 0;
      }
    }
    return got_ - before;
  }
  // Both ends leave the lane, and the sender has what was not received.
  void ExpectTheRest(Lane* from, Lane* to) {
    from->Freeze();
    to->Freeze();
    Receive(to);
    std::string rest(sent_ - got_ + 1, 0);
    EXPECT_EQ(from->CopyUnacked(got_, rest.data(), rest.size()), sent_ - got_);
    for (std::size_t i = got_; i < sent_; ++i) {
      ASSERT_EQ(rest[i - got_], ByteAt(i)) << "at " << i;
    }
  }
  static char ByteAt(std::size_t at) {
    return static_cast<char>((at * 2654435761u) >> 24);
  }

  FakePair made_;
  Lane* lane_ = nullptr;
  Lane* peer_ = nullptr;
  std::size_t sent_ = 0;
  std::size_t got_ = 0;
};

// The provider has taken completions and tells of none.  Later ones are not
// taken for these.
TEST_P(Errors, APollThatFailsPutsNoByteInAnothersPlace) {
  ASSERT_EQ(Send(peer_, 300), 300u);
  ASSERT_EQ(Receive(lane_), 300u);
  made_.verbs->FailPoll(2);
  for (const std::size_t size : {100, 200, 3000, 50}) {
    ASSERT_EQ(Send(peer_, size), size);
  }
  Receive(lane_);
  EXPECT_EQ(lane_->State(), base::Reason::kLaneError);
  EXPECT_EQ(got_, 300u);
  Send(peer_, 70);
  ExpectTheRest(peer_, lane_);
  EXPECT_EQ(got_, 300u) << "taken for what was lost";
}

// ... and new lanes get another queue.
TEST_P(Errors, AQueueWhosePollFailsTakesNoNewLane) {
  RdmaSide& side = made_.pair->side[0];
  verbs::Error error;
  base::Reason why = base::Reason::kNone;
  const auto make = [&] {
    return side.domain->CreateLane(made_.verbs->NewId(), RdmaSide::kBell, &why,
                                   &error);
  };
  const auto before = make();
  made_.verbs->FailPoll(1);
  ASSERT_EQ(Send(peer_, 10), 10u);
  Receive(lane_);
  const int objects = made_.verbs->counts().objects;
  const auto next = make();
  ASSERT_NE(next, nullptr);
  EXPECT_EQ(before->State(), base::Reason::kLaneError);
  EXPECT_EQ(next->State(), base::Reason::kNone);
  EXPECT_GT(made_.verbs->counts().objects, objects + 1) << "a QP, and its CQ";
}

// A chain of requests of which the device takes the first ones.
TEST_P(Errors, APostThatFailsHalfway) {
  for (int after = 0; after < 6; ++after) {
    TearDown();
    sent_ = got_ = 0;
    SetUp();
    ASSERT_EQ(Send(lane_, 1000), 1000u);
    ASSERT_EQ(Receive(peer_), 1000u);
    made_.verbs->RefuseSends(after);
    // Credit goes before data in one chain, and long messages take several.
    for (int i = 0; i < 20; ++i) Send(lane_, 9000);
    Receive(peer_);
    EXPECT_EQ(lane_->State(), base::Reason::kLaneError) << after;
    made_.verbs->RefuseSends(-1);
    ExpectTheRest(lane_, peer_);
  }
}

// A device that takes fewer receives than it is given, now and then.
TEST_P(Errors, ReceivesThatAreTakenLater) {
  for (int i = 0; i < 2000; ++i) {
    if (i % 16 == 0) made_.verbs->RefuseReceives(1);
    ASSERT_EQ(Send(lane_, 20), 20u) << i;
    ASSERT_EQ(Receive(peer_), 20u) << i;
  }
  EXPECT_EQ(lane_->State(), base::Reason::kNone);
  EXPECT_EQ(made_.verbs->counts().starved, 0);
}

INSTANTIATE_TEST_SUITE_P(Device, Errors,
                         testing::Combine(testing::Bool(), testing::Bool()));

}  // namespace
}  // namespace rcsock::lane::test
