// Two Streams over the real shared-memory lane and a simulated TCP connection:
// bulk both ways, with demotions and new epochs in between.

#include <gtest/gtest.h>

#include <memory>

#include "lib/lane/shm/link.h"
#include "tests/stream/sim_world.h"

namespace rcsock::stream {
namespace {

using lane::shm::Link;

class ShmTest : public testing::Test {
 protected:
  void SetUp() override {
    link_[0] = Link::Create();
    ASSERT_NE(link_[0], nullptr);
    link_[1] = Link::Map(base::UniqueFd(dup(link_[0]->page_fd())));
    ASSERT_NE(link_[1], nullptr);
    base::UniqueFd segment = link_[0]->AddSegment();
    ASSERT_TRUE(segment.ok());
    ASSERT_TRUE(link_[1]->MapSegment(std::move(segment)));
    tcp_.rng = 88172645463325252u;
    tcp_.capacity = 5000;
    for (Stream& s : stream_) s.Adopt(0, 0);
  }
  void Up() {
    if (lane_[0] || lane_[1]) return;
    ++epoch_;
    link_[0]->Scrub(0);
    Nonce nonce[2];
    for (int i = 0; i < 2; ++i) {
      nonce[i].fill(static_cast<std::uint8_t>(epoch_ + 7u * i));
    }
    for (int i = 0; i < 2; ++i) {
      lane_[i] = link_[i]->OpenLane(0);
      ASSERT_NE(lane_[i], nullptr);
    }
    for (int i = 0; i < 2; ++i) {
      stream_[i].LaneUp(lane_[i].get(), epoch_, nonce[i], nonce[1 - i], true);
    }
  }
  static std::uint8_t ByteOf(int end, std::uint64_t at) {
    return static_cast<std::uint8_t>((at * 0x9e3779b97f4a7c15u >> 56) + end);
  }
  std::uint64_t Below(std::uint64_t n) { return (tcp_.Random() >> 11) % n; }

  std::vector<std::uint8_t> Some() {
    return std::vector<std::uint8_t>(1 + Below(Below(3) == 0 ? 100000 : 200));
  }
  void Write(int i) {
    std::vector<std::uint8_t> bytes = Some();
    iovec iov{bytes.data(), bytes.size()};
    for (std::size_t k = 0; k < bytes.size(); ++k) {
      bytes[k] = ByteOf(i, written_[i] + k);
    }
    const ssize_t n = stream_[i].Write(&iov, 1, bytes.size());
    if (n > 0) written_[i] += static_cast<std::uint64_t>(n);
    ASSERT_TRUE(n > 0 || n == -EAGAIN) << n;
  }
  ssize_t Read(int i) {
    std::vector<std::uint8_t> bytes = Some();
    iovec iov{bytes.data(), bytes.size()};
    const ssize_t n = stream_[i].Read(&iov, 1, bytes.size(), false);
    for (ssize_t k = 0; k < n; ++k) {
      if (bytes[k] == ByteOf(1 - i, read_[i] + k)) continue;
      ADD_FAILURE() << "byte " << read_[i] + k;
      break;
    }
    if (n > 0) read_[i] += static_cast<std::uint64_t>(n);
    return n;
  }
  // New memory and new streams.
  void StartOver() {
    for (int i = 0; i < 2; ++i) {
      stream_[i].~Stream();
      new (&stream_[i]) Stream(i == 0 ? Role::kConnector : Role::kAcceptor,
                               &anchor_[i], Limits{});
      lane_[i].reset();
      written_[i] = read_[i] = 0;
      waited_[i] = 0;
    }
    const std::uint64_t rng = tcp_.rng;
    tcp_ = SimTcp();
    SetUp();
    tcp_.rng = rng;
  }

  void Step(int i, bool write) {
    Stream& s = stream_[i];
    if (write) Write(i);
    if (HasFatalFailure()) return;
    const ssize_t n = Read(i);
    ASSERT_TRUE(n > 0 || n == -EAGAIN) << n;
    if (Below(3) == 0 || !write) s.Progress();
    // The owner's timer T: it alone resolves a proposal whose answer was lost.
    if (++waited_[i] == 2000 || s.tx() == Tx::kRaw || s.tx() == Tx::kLane) {
      if (waited_[i] == 2000) s.Timer();
      waited_[i] = 0;
    }
    std::uint32_t changes = s.TakeChanges();
    if ((changes & kPromotedTx) != 0) ++promotions_;
    if ((changes & kSettled) != 0) {
      s.ReleaseLane();
      lane_[i].reset();
    }
  }

  std::unique_ptr<Link> link_[2];
  SimTcp tcp_;
  SimAnchor anchor_[2] = {SimAnchor(&tcp_, 0), SimAnchor(&tcp_, 1)};
  std::unique_ptr<lane::Lane> lane_[2];
  Stream stream_[2] = {Stream(Role::kConnector, &anchor_[0], Limits{}),
                       Stream(Role::kAcceptor, &anchor_[1], Limits{})};
  std::uint32_t epoch_ = 0;
  std::uint64_t written_[2] = {0, 0};
  std::uint64_t read_[2] = {0, 0};
  int promotions_ = 0;
  int waited_[2] = {0, 0};
};

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
