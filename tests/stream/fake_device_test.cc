// Two Streams over RDMA lanes of a device that does what the specification
// allows, at random but by a seed: writes that are late or overtake others,
// queue pairs that fail with what is under way, ends that hear of it later, and
// shared receives that come back late or never.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lib/lane/rdma/target.h"
#include "tests/lane/fake_pair.h"
#include "tests/stream/walk_ends.h"

namespace rcsock::stream {
namespace {

using lane::test::FakeVerbs;
using lane::test::RdmaSide;

struct Kind {
  const char* name;
  bool iwarp;
  bool infiniband;
  bool shared;   // it has shared receive queues
  bool reports;  // ... and LAST_WQE_REACHED
  bool software;
  std::uint32_t inline_max;
};

class FakeDevice : public WalkEnds, public testing::WithParamInterface<Kind> {
 protected:
  void SetUp() override {
    FakeVerbs::Options options;
    options.iwarp = GetParam().iwarp;
    options.infiniband = GetParam().infiniband;
    options.software = GetParam().software;
    options.inline_max = GetParam().inline_max;
    options.unordered = !GetParam().iwarp;
    options.late_flushes = true;
    if (GetParam().software) options.fetches = 0;
    options.reports_last_wqe = GetParam().reports;
    if (!GetParam().shared) options.max_srq_wr = 0;
    verbs_ = std::make_unique<FakeVerbs>(options);
    verbs::Error error;
    for (RdmaSide& side : side_) {
      side.domain =
          lane::rdma::Domain::Make(verbs_->context(), &side.board, &error);
      ASSERT_NE(side.domain, nullptr);
      side.flusher = std::make_unique<lane::test::Flusher>(side.domain.get());
    }
    tcp_.rng = 88172645463325252u;
    tcp_.capacity = 5000;
    for (Stream& s : stream_) s.Adopt(0, 0);
  }
  void TearDown() override {
    for (int i : {0, 1}) CloseTarget(i);
    for (auto& lane : lane_) lane.reset();
    for (RdmaSide& side : side_) {
      side.flusher.reset();
      side.domain.reset();
    }
    const FakeVerbs::Counts counts = verbs_->counts();
    EXPECT_EQ(counts.objects, 0);
    EXPECT_EQ(counts.starved, 0);
    EXPECT_EQ(counts.overruns, 0);
  }
  lane::rdma::RdmaLane& Lane(int i) {
    return static_cast<lane::rdma::RdmaLane&>(*lane_[i]);
  }
  void Up() override {
    if (lane_[0] || lane_[1]) return;
    ++epoch_;
    verbs::Error error;
    base::Reason why = base::Reason::kNone;
    Nonce nonce[2];
    for (int i = 0; i < 2; ++i) {
      nonce[i].fill(static_cast<std::uint8_t>(epoch_ + 7u * i));
      id_[i] = verbs_->NewId();
      lane_[i] =
          side_[i].domain->CreateLane(id_[i], RdmaSide::kBell, &why, &error);
      ASSERT_NE(lane_[i], nullptr) << error.call << " " << error.code;
      Lane(i).SetCookie(&side_[i].cookie);
    }
    verbs_->Hold(false);
    verbs_->Connect(id_[0], id_[1]);
    for (int i : {0, 1}) Lane(i).Connected();
    Lane(0).SetPeer(Lane(1).offer());
    for (int i : {0, 1}) ASSERT_TRUE(Lane(i).SendReady());
    for (int i : {1, 0}) ASSERT_TRUE(Lane(i).PeerReady());
    verbs_->Hold(true);
    for (int i = 0; i < 2; ++i) {
      stream_[i].LaneUp(lane_[i].get(), epoch_, nonce[i], nonce[1 - i], true);
      hears_[i] = 0;
    }
  }
  // As the conductor.
  void Return(int i) override {
    Lane(i).Freeze();
    CloseTarget(i);
    // (Or not within the time that it is waited for.)
    if (GetParam().reports && Below(4) != 0) verbs_->Flush();
    ibv_async_event event;
    while (verbs_->NextEvent(&event)) {
      if (event.event_type != IBV_EVENT_QP_LAST_WQE_REACHED) continue;
      for (int k = 0; k < 2; ++k) {
        if (lane_[k] && id_[k]->qp == event.element.qp) {
          Lane(k).LastWqeReached();
        }
      }
    }
    lane_[i].reset();
    // rdma_cm tells the peer some time later.
    if (lane_[1 - i]) hears_[1 - i] = 1 + static_cast<int>(Below(300));
  }
  // The call that receives into its target, or another one.
  ssize_t Read(int i) override {
    Receiver& call = call_[i];
    if (call.length == 0 && lane_[i] && stream_[i].FastRx() && Below(30) == 0) {
      call.length = 1 + Below(call.bytes.size());
      call.place = 0;
      if (!Qp(i).OpenTarget(reinterpret_cast<std::byte*>(call.bytes.data()),
                            call.length, Below(2) == 0, &call.window)) {
        call.length = 0;
      }
    }
    if (call.length == 0 || Below(10) == 0) return WalkEnds::Read(i);
    const ssize_t n = ReadTo(i, call.bytes.data() + call.place,
                             1 + Below(call.length - call.place));
    if (n > 0) call.place += static_cast<std::size_t>(n);
    if (call.place == call.length || Below(40) == 0) {
      // What is later than a withdrawal waits ends the lane.
      if (Below(4) != 0) verbs_->Deliver(1000);
      CloseTarget(i);
    }
    return n;
  }
  void CloseTarget(int i) {
    Receiver& call = call_[i];
    if (call.length == 0) return;
    Qp(i).CloseTarget(&call.window);
    std::fill(call.bytes.begin(), call.bytes.end(), '-');
    call.length = 0;
  }
  lane::rdma::QpLane& Qp(int i) {
    return static_cast<lane::rdma::QpLane&>(*lane_[i]);
  }
  void Fault() {
    const int i = static_cast<int>(Below(2));
    if (!lane_[0] || !lane_[1]) return;
    switch (Below(4)) {
      case 0:
        stream_[i].Demote(base::Reason::kPolicy, Below(2) == 0);
        break;
      case 1:
        // The device fails it; whatever is under way is lost.
        verbs_->Fail(id_[i]);
        ++failures_;
        break;
      case 2:
        Lane(i).Lost(base::Reason::kDeviceLost);
        ++failures_;
        break;
      default:
        break;
    }
  }
  void Tick() {
    verbs_->Deliver(Below(6));
    for (int i = 0; i < 2; ++i) {
      if (hears_[i] == 0 || --hears_[i] != 0 || !lane_[i]) continue;
      Lane(i).Lost(base::Reason::kPeerGone);
    }
  }

  std::unique_ptr<FakeVerbs> verbs_;
  RdmaSide side_[2];
  rdma_cm_id* id_[2] = {};
  int hears_[2] = {};
  struct Receiver {
    std::vector<std::uint8_t> bytes = std::vector<std::uint8_t>(300'000);
    std::size_t length = 0;
    std::size_t place = 0;
    lane::rdma::Window window;
  } call_[2];
  int failures_ = 0;
};

TEST_P(FakeDevice, NothingIsLostWhateverItDoes) {
  const std::uint64_t in_place = lane::rdma::InPlaceBytes();
  for (int step = 0; step < 20'000 && !HasFailure(); ++step) {
    Tick();
    Step(static_cast<int>(Below(2)), Below(4) != 0);
    if (Below(400) == 0) Fault();
    if (Below(50) == 0) Up();
  }
  ASSERT_FALSE(HasFailure());
  for (int k = 0;
       k < 100'000 && (read_[0] != written_[1] || read_[1] != written_[0]);
       ++k) {
    Tick();
    Step(k & 1, false);
    ASSERT_FALSE(HasFailure());
  }
  EXPECT_EQ(read_[0], written_[1]);
  EXPECT_EQ(read_[1], written_[0]);
  EXPECT_GT(promotions_, 10);
  EXPECT_GT(failures_, 5);
  const std::uint64_t placed = lane::rdma::InPlaceBytes() - in_place;
  EXPECT_GT(placed, 100'000u);
  const FakeVerbs::Counts counts = verbs_->counts();
  if (!GetParam().iwarp) {
    EXPECT_GT(counts.overtaken, 10);
  }
  if (GetParam().shared && !GetParam().reports) {
    EXPECT_GT(counts.queues, 2) << "worn queues are replaced";
  }
  std::printf(
      "%u epochs, %d promotions, %d failures, %llu bytes, %llu in place, %d "
      "writes overtaken, %d receives lost\n",
      epoch_, promotions_, failures_,
      static_cast<unsigned long long>(read_[0] + read_[1]),
      static_cast<unsigned long long>(placed), counts.overtaken,
      counts.lost_receives);
}

constexpr Kind kKinds[] = {
    {"Roce", false, false, true, true, false, 220},
    {"InfiniBand", false, true, true, true, false, 220},
    {"NeverReports", false, false, true, false, false, 220},
    {"NoInline", false, false, true, true, false, 0},
    {"OwnReceives", false, false, false, false, false, 220},
    {"Software", false, false, true, true, true, 220},
    {"Iwarp", true, false, true, true, false, 220},
    {"IwarpOwnReceives", true, false, false, false, false, 64},
};
std::string NameOf(const testing::TestParamInfo<Kind>& info) {
  return info.param.name;
}
INSTANTIATE_TEST_SUITE_P(Kinds, FakeDevice, testing::ValuesIn(kKinds), NameOf);

}  // namespace
}  // namespace rcsock::stream
