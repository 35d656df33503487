// Two Streams over the real shared-memory lane and a simulated TCP connection:
// bulk both ways, with demotions and new epochs in between.

#include <gtest/gtest.h>

#include <cstdio>

#include "tests/stream/shm_ends.h"

namespace rcsock::stream {
namespace {

class ShmTest : public ShmEnds {};

TEST_F(ShmTest, BulkBothWaysThroughManyEpochs) {
  for (int step = 0; step < 30000 && !HasFatalFailure(); ++step) {
    Step(static_cast<int>(Below(2)), true);
    if (Below(1000) == 0) {
      stream_[Below(2)].Demote(base::Reason::kPolicy);
    }
    if (Below(50) == 0) Up();
  }
  ASSERT_FALSE(HasFatalFailure());
  for (int k = 0;
       k < 100000 && (read_[0] != written_[1] || read_[1] != written_[0]);
       ++k) {
    Step(k & 1, false);
    ASSERT_FALSE(HasFatalFailure());
  }
  EXPECT_EQ(read_[0], written_[1]);
  EXPECT_EQ(read_[1], written_[0]);
  EXPECT_GT(epoch_, 10u);
  EXPECT_GT(promotions_, 10);
  std::printf("%u epochs, %d promotions, %llu bytes\n", epoch_, promotions_,
              static_cast<unsigned long long>(read_[0] + read_[1]));
}

// An end leaves its lane, and the peer writes on, reads nothing of it and is
// killed: the ring has what it wrote.
TEST_F(ShmTest, KilledBehindADemotion) {
  std::uint64_t behind = 0;
  for (int round = 0; round < 400 && !HasFatalFailure(); ++round) {
    StartOver();
    const auto go = [this](int steps) {
      for (int k = 0; k < steps; ++k) Step(static_cast<int>(Below(2)), true);
    };
    for (int k = 0; !stream_[0].FastTx() || !stream_[1].FastTx(); ++k) {
      ASSERT_LT(k, 100000);
      Up();
      Step(k & 1, Below(20) == 0);
      if (HasFatalFailure()) return;
    }
    go(static_cast<int>(Below(20)));
    const int victim = static_cast<int>(Below(2));
    const int survivor = 1 - victim;
    for (std::uint64_t k = Below(4); k > 0; --k) Write(victim);
    stream_[survivor].Demote(base::Reason::kPolicy, Below(2) == 0);
    const std::uint64_t before = written_[victim];
    for (std::uint64_t k = Below(40); k > 0; --k) Write(victim);
    behind += written_[victim] - before;
    // (What was there before may be read meanwhile.)
    for (std::uint64_t k = Below(3); k > 0; --k) Read(survivor);
    tcp_.dead[victim] = tcp_.kshut[victim] = true;
    tcp_.pipe[victim].bytes.clear();
    (Below(2) == 0 ? tcp_.pipe[victim].fin : tcp_.pipe[victim].rst) = true;
    for (int k = 0; k < 3; ++k) stream_[survivor].Progress();
    while (Read(survivor) > 0) {
    }
    ASSERT_EQ(read_[survivor], written_[victim]) << "round " << round;
  }
  EXPECT_GT(behind, 1'000'000u);
}

// One of them leaves the lane, and the victim has come to some step of it, with
// a frame that it has not read: its kernel drops what TCP has had no room for.
TEST_F(ShmTest, KilledWithAFrameUnread) {
  int dropped = 0;
  for (int round = 0; round < 2000 && !HasFatalFailure(); ++round) {
    StartOver();
    for (int k = 0; !stream_[0].FastTx() || !stream_[1].FastTx(); ++k) {
      ASSERT_LT(k, 100000);
      Up();
      Step(k & 1, Below(20) == 0);
      if (HasFatalFailure()) return;
    }
    const int victim = static_cast<int>(Below(2));
    const int survivor = 1 - victim;
    // (What is the application's, and unread, is a reset to TCP, too.)
    for (int k = 0; k < 1000 && read_[victim] != written_[survivor]; ++k) {
      Step(victim, false);
      Step(survivor, false);
    }
    for (std::uint64_t k = Below(10); k > 0; --k) Write(victim);
    stream_[Below(2)].Demote(base::Reason::kPolicy, Below(2) == 0);
    for (std::uint64_t k = Below(12); k > 0; --k) {
      const int end = static_cast<int>(Below(2));
      if (end == victim) {
        Write(victim);
      } else if (Below(4) == 0) {
        Read(survivor);
      }
      stream_[end].Progress();
      if ((stream_[end].TakeChanges() & kSettled) != 0) {
        stream_[end].ReleaseLane();
        lane_[end].reset();
      }
    }
    // (Whoever took the connection over has what TCP has.)
    const bool frame = !tcp_.pipe[survivor].bytes.empty();
    if (lane_[survivor] == nullptr &&
        StreamTestAccess::HandsOver(stream_[survivor]) &&
        StreamTestAccess::Queued(stream_[victim]) != 0) {
      continue;
    }
    tcp_.dead[victim] = tcp_.kshut[victim] = true;
    tcp_.pipe[survivor].bytes.clear();
    if (frame) {
      dropped += tcp_.pipe[victim].bytes.empty() ? 0 : 1;
      tcp_.pipe[victim].bytes.clear();
    }
    (frame ? tcp_.pipe[victim].rst : tcp_.pipe[victim].fin) = true;
    for (int k = 0; k < 3; ++k) stream_[survivor].Progress();
    while (Read(survivor) > 0) {
    }
    ASSERT_EQ(read_[survivor], written_[victim]) << "round " << round;
  }
  EXPECT_GT(dropped, 100);
}

}  // namespace
}  // namespace rcsock::stream
