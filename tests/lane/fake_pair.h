#ifndef RCSOCK_TESTS_LANE_FAKE_PAIR_H_
#define RCSOCK_TESTS_LANE_FAKE_PAIR_H_

#include <memory>

#include "tests/lane/fake_verbs.h"
#include "tests/lane/rdma_pair.h"

namespace rcsock::lane::test {

// Two lanes on a device in memory, which goes with them.
struct FakePair {
  std::unique_ptr<FakeVerbs> verbs;
  rdma_cm_id* id[2] = {};
  std::unique_ptr<RdmaPair> pair;  // null: failed
};

// `most_first`: how large rings may grow for end 0, if not `most`.
inline FakePair MakeFakePair(const FakeVerbs::Options& options,
                             std::size_t ring_bytes, std::size_t most = 0,
                             std::size_t most_first = 0,
                             const rdma::Pace& pace = rdma::kHardwarePace) {
  FakePair made;
  made.verbs = std::make_unique<FakeVerbs>(options);
  auto pair = std::make_unique<RdmaPair>();
  verbs::Error error;
  base::Reason why = base::Reason::kNone;
  for (int i = 0; i < 2; ++i) {
    RdmaSide& side = pair->side[i];
    made.id[i] = made.verbs->NewId();
    side.domain =
        rdma::Domain::Make(made.verbs->context(), &side.board, &error);
    if (side.domain == nullptr) return made;
    const std::size_t bound = i == 0 && most_first != 0 ? most_first : most;
    side.domain->SetRingBytes(ring_bytes, bound == 0 ? ring_bytes : bound);
    side.domain->SetPace(pace);
    side.lane =
        side.domain->CreateLane(made.id[i], RdmaSide::kBell, &why, &error);
    if (side.lane == nullptr) return made;
  }
  made.verbs->Connect(made.id[0], made.id[1]);
  if (options.unordered) {
    pair->idle = [device = made.verbs.get()] { return device->Idle(); };
  }
  if (!pair->Meet()) return made;
  pair->Coalesce();
  made.pair = std::move(pair);
  return made;
}

// As a LanePair.
class OwnedFakePair final : public LanePair {
 public:
  static std::unique_ptr<LanePair> Make(const FakeVerbs::Options& options,
                                        std::size_t ring_bytes,
                                        std::size_t most = 0) {
    auto pair = std::make_unique<OwnedFakePair>();
    pair->made_ = MakeFakePair(options, ring_bytes, most);
    if (pair->made_.pair == nullptr) return nullptr;
    pair->large_ = ring_bytes > 150'000;
    return pair;
  }
  ~OwnedFakePair() override {
    const FakeVerbs::Counts counts = made_.verbs->counts();
    EXPECT_EQ(counts.overruns, 0);
    EXPECT_EQ(counts.starved, 0);
    EXPECT_EQ(counts.late_arms, 0);
    EXPECT_EQ(counts.lost_events, 0);
    made_.pair.reset();
    EXPECT_EQ(made_.verbs->counts().objects, 0);
  }
  Lane& end(int i) override { return made_.pair->end(i); }
  Poller* poller(int i) override { return made_.pair->poller(i); }
  void* cookie(int i) override { return made_.pair->cookie(i); }
  void Kill(int i) override { made_.pair->Kill(i); }
  void Pump() override { made_.pair->Pump(); }
  bool ExactKicks() const override { return false; }
  bool Large() const override { return large_; }

 private:
  bool large_ = true;
  FakePair made_;
};

}  // namespace rcsock::lane::test

#endif  // RCSOCK_TESTS_LANE_FAKE_PAIR_H_
