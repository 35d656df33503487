#include <cerrno>
#include <ctime>
#include <random>
#include <vector>

#include "tests/lane/shm_pair.h"

namespace rcsock::lane::test {
namespace {

INSTANTIATE_TEST_SUITE_P(Shm, LaneConformance,
                         testing::Values(+[]() -> std::unique_ptr<LanePair> {
                           return ShmPair::Make();
                         }));
// The smallest rings there are: only one side asks for them.
INSTANTIATE_TEST_SUITE_P(ShmSmall, LaneConformance,
                         testing::Values(+[]() -> std::unique_ptr<LanePair> {
                           return ShmPair::Make(5, {0, 16 * 1024});
                         }));

TEST(ShmRing, TheSmallerOfBothBoundsHoldsInBothDirections) {
  const auto rings = [](std::uint64_t a, std::uint64_t b) {
    auto pair = ShmPair::Make(5, {a, b});
    std::vector<std::size_t> all;
    for (int i = 0; i < 2; ++i) {
      all.push_back(pair->end(i).TxRegion().length);
      all.push_back(pair->end(i).RxRegion().length);
    }
    for (std::size_t one : all) EXPECT_EQ(one, all.front());
    return all.front();
  };
  constexpr std::size_t kK = 1024;
  EXPECT_EQ(rings(0, 0), 256 * kK);
  EXPECT_EQ(rings(64 * kK, 0), 64 * kK);
  EXPECT_EQ(rings(0, 64 * kK), 64 * kK);
  EXPECT_EQ(rings(128 * kK, 32 * kK), 32 * kK);
  EXPECT_EQ(rings(100 * kK, 0), 64 * kK) << "down to a power of two";
  EXPECT_EQ(rings(1, 0), 16 * kK);
  EXPECT_EQ(rings(1ull << 40, 0), 256 * kK);
}

// A thread finds the ring full and is on its way to sleep when credit comes,
// which another thread (a timer, a poll) hears of first.
TEST(ShmSleep, CreditThatAnotherThreadTakesIsNotSleptThrough) {
  auto pair = ShmPair::Make();
  Lane& from = pair->end(0);
  std::vector<char> bytes(1 << 20, 'x');
  iovec iov{bytes.data(), bytes.size()};
  const std::size_t posted = from.Post(&iov, 1, 0, bytes.size());
  const std::uint32_t token = from.SleepToken(true);
  ASSERT_EQ(from.Writable(), 0u);
  // The latch is free here.
  std::vector<char> out(posted);
  iovec to{out.data(), out.size()};
  EXPECT_EQ(pair->end(1).Read(&to, 1, 0, posted, false), posted);
  EXPECT_GT(from.Writable(), 0u);
  const timespec limit{2, 0};
  EXPECT_EQ(from.SleepTx(token, &limit), -EAGAIN);
}

TEST(ShmRing, NothingBeyondTheBoundIsTouched) {
  auto pair = ShmPair::Make(5, {0, 32 * 1024});
  Lane& from = pair->end(0);
  std::vector<char> bytes(1 << 20, 'x');
  iovec iov{bytes.data(), bytes.size()};
  const std::size_t posted = from.Post(&iov, 1, 0, bytes.size());
  EXPECT_EQ(posted, 32u * 1024);
  const auto* ring = static_cast<const std::byte*>(from.TxRegion().base);
  EXPECT_EQ(ring[32 * 1024 - 1], std::byte{'x'});
  for (std::size_t i = 32 * 1024; i < 256 * 1024; ++i) {
    ASSERT_EQ(ring[i], std::byte{0}) << i;
  }
  // Round and round.
  std::size_t sent = posted;
  std::size_t read = 0;
  while (read < 4 * bytes.size()) {
    std::vector<char> out(20'000);
    iovec to{out.data(), out.size()};
    const std::size_t n = pair->end(1).Read(&to, 1, 0, out.size(), false);
    ASSERT_NE(n, 0u);
    for (std::size_t i = 0; i < n; ++i) ASSERT_EQ(out[i], 'x');
    read += n;
    sent += from.Post(&iov, 1, 0, bytes.size());
    ASSERT_LE(sent - read, 32u * 1024);
  }
}

// However few lines a read looks at: what is read is what has landed, in
// whatever slots it is.
TEST(ShmRing, AReadTakesAllThatHasLanded) {
  auto pair = ShmPair::Make();
  std::mt19937 random(1);
  const std::vector<char> bytes(2000, 'x');
  std::vector<char> out(100'000);
  std::size_t landed[2] = {};
  for (int step = 0; step < 200'000; ++step) {
    const int end = static_cast<int>(random() % 2);
    if (random() % 2 == 0) {
      iovec to{out.data(), out.size()};
      ASSERT_EQ(pair->end(end).Read(&to, 1, 0, out.size(), false), landed[end])
          << step;
      landed[end] = 0;
      continue;
    }
    for (unsigned left = 1 + random() % 3; left > 0; --left) {
      const std::size_t length =
          random() % 8 == 0 ? 1 + random() % 2000 : 1 + random() % 100;
      iovec from{const_cast<char*>(bytes.data()), length};
      landed[1 - end] += pair->end(end).Post(&from, 1, 0, length);
    }
  }
}

}  // namespace
}  // namespace rcsock::lane::test
