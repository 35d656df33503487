#include "lib/lane/shm/shm_lane.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <random>
#include <thread>
#include <vector>

#include "lib/base/barrier.h"
#include "lib/lane/shm/memory.h"
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

// The short ways: a message goes whole or not at all, and whatever lies there
// is read in order, by pieces of any length.
void GoesWhole(std::array<std::uint64_t, 2> rings) {
  auto pair = ShmPair::Make(5, rings);
  auto& from = static_cast<shm::ShmLane&>(pair->end(0));
  auto& to = static_cast<shm::ShmLane&>(pair->end(1));
  std::mt19937 random(1);
  std::vector<unsigned char> bytes(20'000);
  std::vector<unsigned char> out(20'000);
  unsigned char next = 0;
  unsigned char expected = 0;
  std::uint64_t sent = 0;
  std::uint64_t read = 0;
  int whole = 0;
  for (int i = 0; i < 20'000; ++i) {
    const std::size_t longest = random() % 2 != 0 ? 200 : 17'000;
    const std::size_t length = 1 + random() % longest;
    for (std::size_t k = 0; k < length; ++k) {
      bytes[k] = static_cast<unsigned char>(next + k);
    }
    std::size_t n = random() % 8 == 0 ? 0
                    : length <= shm::kInlineMax
                        ? from.PostQuick(bytes.data(), length)
                        : from.PostRecord(bytes.data(), length);
    if (n == 0) {
      iovec iov{bytes.data(), length};
      n = from.Post(&iov, 1, 0, length);
    } else {
      ASSERT_EQ(n, length);
      ++whole;
    }
    next = static_cast<unsigned char>(next + n);
    sent += n;
    // Mostly at once; now and then much is left.
    const bool drain = random() % 16 != 0 && i % 1000 < 900;
    while (drain && read < sent) {
      const std::size_t most = 1 + random() % (2 * longest);
      const std::size_t got =
          to.ReadQuick(out.data(), std::min(most, out.size()));
      ASSERT_NE(got, 0u);
      for (std::size_t k = 0; k < got; ++k) ASSERT_EQ(out[k], expected++);
      read += got;
      // (Credit goes along with a message of the other direction.)
      if (random() % 2 == 0) {
        // (Not a constant: the compiler would warn of copies of more than one
        // byte, which are not made.)
        std::size_t one = 1;
        asm("" : "+r"(one));
        unsigned char byte[shm::kInlineMax] = {1};
        if (to.PostQuick(byte, one) == 1) {
          ASSERT_EQ(from.ReadQuick(byte, one), 1u);
        }
      }
    }
  }
  EXPECT_EQ(to.State(), base::Reason::kNone);
  EXPECT_GT(whole, 5'000);
}

TEST(ShmQuick, AMessageGoesWholeOrNotAtAll) {
  GoesWhole({0, 0});
  GoesWhole({16 * 1024, 0});
}

// The line of the next message is hinted at while each has been consumed before
// the next one is sent.
TEST(ShmQuick, HintsAtTheLineThatTheNextMessageGoesTo) {
  auto pair = ShmPair::Make();
  auto& one = static_cast<shm::ShmLane&>(pair->end(0));
  auto& other = static_cast<shm::ShmLane&>(pair->end(1));
  std::atomic<const void*> hint{&hint};
  one.KeepHint(&hint);
  unsigned char next = 0;
  std::size_t length = 1;
  asm("" : "+r"(length));  // (as above)
  const auto send = [&](shm::ShmLane& from) {
    const unsigned char bytes[shm::kInlineMax] = {++next};
    ASSERT_EQ(from.PostQuick(bytes, length), length);
  };
  const auto take = [&](shm::ShmLane& to, unsigned char expected) {
    unsigned char bytes[shm::kInlineMax];
    ASSERT_EQ(to.ReadQuick(bytes, length), length);
    ASSERT_EQ(bytes[0], expected);
  };
  const auto answer = [&] {
    send(other);
    take(one, next);
  };
  const auto hinted = [&] { return hint.load() != &hint; };
  for (int i = 0; i < 5; ++i) {
    send(one);
    const auto* line = static_cast<const shm::Slot*>(hint.load());
    ASSERT_TRUE(hinted());
    EXPECT_EQ(static_cast<unsigned char>(line->payload[0]), next);
    take(other, next);
    answer();
  }
  // Pairs: the first of each is at that line as well.
  for (int i = 0; i < 5; ++i) {
    send(one);
    EXPECT_EQ(hinted(), i == 0);
    send(one);
    EXPECT_FALSE(hinted());
    take(other, next - 1);
    take(other, next);
    answer();
  }
  send(one);
  EXPECT_FALSE(hinted());
  take(other, next);
  answer();
  send(one);
  EXPECT_TRUE(hinted());
  take(other, next);
  answer();
  // Nor at a line that is written to only after the bytes of a long one.
  const std::array<char, 2 * shm::kInlineMax> record{};
  ASSERT_EQ(one.PostRecord(record.data(), record.size()), record.size());
  EXPECT_FALSE(hinted());
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

bool Asleep(pid_t thread) {
  char name[64];
  std::snprintf(name, sizeof name, "/proc/self/task/%d/stat",
                static_cast<int>(thread));
  std::FILE* file = std::fopen(name, "r");
  if (file == nullptr) return false;
  char state = 0;
  const bool read = std::fscanf(file, "%*d (%*[^)]) %c", &state) == 1;
  std::fclose(file);
  return read && state == 'S';
}

// A sender whose message is not to be seen yet when it looks for the wish, and
// who does not see that either, wakes nobody.
TEST(ShmSleep, OneThatIsNotWokenLooksAgain) {
  base::InitBarriers();
  if (!base::barriers.processes) GTEST_SKIP() << "no membarrier";
  constexpr int kIndex = 5;
  auto pair = ShmPair::Make(kIndex);
  void* memory = shm::MapMemory(pair->segment_fd(), sizeof(shm::Segment), true);
  ASSERT_NE(memory, nullptr);
  shm::HotMemory& hot =
      shm::HotOf(static_cast<shm::Segment*>(memory), 0)[kIndex];
  Lane& to = pair->end(1);
  // (One that is found asleep may be past its nap, if this thread was off its
  // CPU meanwhile: its fence lies behind it, so nobody would miss its wish.)
  int looked = 0;
  for (int i = 0; i < 50 && looked < 5; ++i) {
    std::atomic<pid_t> thread{0};
    int result = 0;
    std::thread sleeper([&, token = to.SleepToken(false)] {
      const timespec limit{0, 100'000'000};
      thread = ::gettid();
      result = to.SleepRx(token, &limit);
    });
    while (((hot.control[0].sleepers | hot.control[1].sleepers) &
            shm::kRxSleeper) == 0 ||
           !Asleep(thread)) {
      std::this_thread::yield();
    }
    for (auto& control : hot.control) control.sleepers &= ~shm::kRxSleeper;
    char byte = 'x';
    iovec iov{&byte, 1};
    EXPECT_EQ(pair->end(0).Post(&iov, 1, 0, 1), 1u);
    sleeper.join();
    EXPECT_TRUE(result == -EAGAIN || result == -ETIMEDOUT) << result;
    if (result == -EAGAIN) ++looked;
    EXPECT_EQ(to.Read(&iov, 1, 0, 1, false), 1u);
  }
  EXPECT_EQ(looked, 5);
  shm::UnmapMemory(memory, sizeof(shm::Segment));
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
