// Many lanes of one device and their threads: the sleepers have one descriptor
// between them.

#include <algorithm>
#include <atomic>
#include <random>
#include <thread>
#include <vector>

#include "tests/lane/fake_pair.h"

namespace rcsock::lane::test {
namespace {

struct Device {
  bool software;
  bool shared;  // it has shared receive queues
  bool solicits = true;
};

// Two processes, with some lanes between them.
class ManyLanes : public testing::TestWithParam<Device> {
 protected:
  static constexpr int kLanes = 6;

  void SetUp() override {
    FakeVerbs::Options options;
    options.immediate = false;
    options.software = GetParam().software;
    options.solicits = GetParam().solicits;
    if (!GetParam().shared) options.max_srq_wr = 0;
    verbs_ = std::make_unique<FakeVerbs>(options);
    verbs::Error error;
    base::Reason why;
    for (RdmaSide& side : side_) {
      side.domain = rdma::Domain::Make(verbs_->context(), &side.board, &error);
      ASSERT_NE(side.domain, nullptr);
    }
    for (int k = 0; k < kLanes; ++k) {
      rdma_cm_id* id[2];
      for (int i = 0; i < 2; ++i) {
        id[i] = verbs_->NewId();
        lane_[i].push_back(
            side_[i].domain->CreateLane(id[i], RdmaSide::kBell, &why, &error));
        ASSERT_NE(lane_[i].back(), nullptr);
        lane_[i][k]->SetCookie(&side_[i].cookie);
      }
      verbs_->Connect(id[0], id[1]);
      lane_[0][k]->SetPeer(lane_[1][k]->offer());
      for (int i = 0; i < 2; ++i) ASSERT_TRUE(lane_[i][k]->SendReady());
      bool ready[2] = {};
      while (!ready[0] || !ready[1]) {
        for (int i = 0; i < 2; ++i) ready[i] = lane_[i][k]->PeerReady();
        std::this_thread::yield();
      }
    }
    for (RdmaSide& side : side_) {
      side.flusher = std::make_unique<Flusher>(side.domain.get());
    }
  }
  void TearDown() override {
    for (auto& lanes : lane_) lanes.clear();
    for (RdmaSide& side : side_) {
      EXPECT_EQ(side.domain->counts().lanes, 0u);
      EXPECT_EQ(side.domain->counts().pinned, 0u);
      side.flusher.reset();
      side.domain.reset();
    }
    EXPECT_EQ(verbs_->counts().objects, 0);
    EXPECT_EQ(verbs_->counts().overruns, 0);
    EXPECT_EQ(verbs_->counts().starved, 0);
    EXPECT_EQ(verbs_->counts().late_arms, 0);
    EXPECT_EQ(verbs_->counts().lost_events, 0);
  }

  static void Post(Lane& lane, const char* bytes, std::size_t size) {
    std::size_t done = 0;
    while (done < size) {
      const std::uint32_t token = lane.SleepToken(true);
      iovec iov{const_cast<char*>(bytes), size};
      const std::size_t n = lane.Post(&iov, 1, done, size - done);
      done += n;
      if (n == 0) lane.SleepTx(token, nullptr);
    }
  }
  static void Read(Lane& lane, char* bytes, std::size_t size) {
    std::size_t done = 0;
    while (done < size) {
      const std::uint32_t token = lane.SleepToken(false);
      iovec iov{bytes, size};
      const std::size_t n = lane.Read(&iov, 1, done, size - done, false);
      done += n;
      if (n == 0) lane.SleepRx(token, nullptr);
    }
  }

  std::unique_ptr<FakeVerbs> verbs_;
  RdmaSide side_[2];
  std::vector<std::unique_ptr<rdma::RdmaLane>> lane_[2];
};

TEST_P(ManyLanes, EachThreadIsWokenForItsOwn) {
  constexpr int kTurns = 400;
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int k = 0; k < kLanes; ++k) {
    for (int i = 0; i < 2; ++i) {
      threads.emplace_back([&, i, k] {
        Lane& lane = *lane_[i][k];
        for (int turn = 0; turn < kTurns; ++turn) {
          // Sizes from one byte to more than the ring.
          std::vector<char> mine(turn % 50 == k ? 40'000 : 1 + turn % 90,
                                 static_cast<char>(turn + k));
          std::vector<char> got(mine.size());
          if (i == 0) Post(lane, mine.data(), mine.size());
          Read(lane, got.data(), got.size());
          if (got != mine) ++wrong;
          if (i == 1) Post(lane, mine.data(), mine.size());
        }
      });
    }
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST_P(ManyLanes, BothWaysAtOnceWhileOthersLeave) {
  // Half of the sleepers are called off again and again, by time-out and by
  // WakeLocal; the others' bytes must flow.
  constexpr std::size_t kAll = 600'000;
  std::atomic<bool> stop{false};
  std::vector<std::thread> busy;
  std::vector<std::thread> restless;
  for (int k = 0; k < kLanes; ++k) {
    for (int i = 0; i < 2; ++i) {
      Lane& lane = *lane_[i][k];
      if (k % 2 == 0) {
        busy.emplace_back([&lane] {
          const std::vector<char> bytes(kAll, 'x');
          Post(lane, bytes.data(), bytes.size());
        });
        busy.emplace_back([&lane] {
          std::vector<char> bytes(kAll);
          Read(lane, bytes.data(), bytes.size());
        });
        continue;
      }
      restless.emplace_back([&lane, &stop] {
        const timespec brief{0, 50'000};
        while (!stop) {
          lane.SleepRx(lane.SleepToken(false), &brief);
          lane.SleepTx(lane.SleepToken(true), &brief);
        }
      });
      restless.emplace_back([&lane, &stop] {
        while (!stop) {
          lane.WakeLocal();
          std::this_thread::yield();
        }
      });
    }
  }
  for (auto& thread : busy) thread.join();
  stop = true;
  for (auto& thread : restless) thread.join();
}

TEST_P(ManyLanes, TheLastOneOutLeavesNobodyAsleep) {
  // All sleep without a limit; each is woken by one byte, in any order.
  std::mt19937 random(1);
  for (int round = 0; round < 60; ++round) {
    std::vector<std::thread> threads;
    for (int k = 0; k < kLanes; ++k) {
      threads.emplace_back([&, k] {
        char byte;
        Read(*lane_[1][k], &byte, 1);
      });
    }
    std::vector<int> order = {0, 1, 2, 3, 4, 5};
    std::shuffle(order.begin(), order.end(), random);
    for (int k : order) {
      Post(*lane_[0][k], "x", 1);
      if (random() % 2 == 0) std::this_thread::yield();
    }
    for (auto& thread : threads) thread.join();
  }
}

INSTANTIATE_TEST_SUITE_P(Real, ManyLanes, testing::Values(Device{false, true}));
INSTANTIATE_TEST_SUITE_P(Software, ManyLanes,
                         testing::Values(Device{true, true}));
INSTANTIATE_TEST_SUITE_P(RingsForAll, ManyLanes,
                         testing::Values(Device{false, true, false}));
INSTANTIATE_TEST_SUITE_P(Own, ManyLanes, testing::Values(Device{false, false}));

}  // namespace
}  // namespace rcsock::lane::test
