// What only the driver of this directory does on demand.

#include <poll.h>

#include <algorithm>

#include "tests/gpu/streams.h"

namespace gpu_test {
namespace {

constexpr std::size_t kLarge = 3'000'000;

class DriverFaultsTest : public StreamTest {
 protected:
  void SetUp() override {
    if (Gpu::Get().real()) GTEST_SKIP();
    // An RDMA device would read the memory without a copy.
    if (Rdma()) Gpu::Get().Call<void(int)>("fake_cuda_dmabuf")(0);
    StreamTest::SetUp();
  }
  static void Break(int result) {
    Gpu::Get().Call<void(int)>("fake_cuda_break")(result);
  }
  static void FailCopy(int copies, int result) {
    Gpu::Get().Call<void(int, int)>("fake_cuda_fail_copy")(copies, result);
  }
  static void Delay(unsigned us) {
    Gpu::Get().Call<void(unsigned)>("fake_cuda_delay")(us);
  }
};
// The stream that copies.
INSTANTIATE_TEST_SUITE_P(, DriverFaultsTest,
                         testing::Values(Path::kTcp, Path::kLane),
                         [](const auto& path) {
                           return path.param == Path::kTcp ? "Tcp" : "Lane";
                         });

TEST_P(DriverFaultsTest, CopiesArePinnedAndSeveralAtOnce) {
  {
    const Buffer from(kLarge);
    const auto bytes = Pattern(kLarge, 5);
    Gpu::Get().Put(from.at(), bytes);
    const auto before = Gpu::Get().Counts();
    Delay(2000);
    rcs_sent sent{};
    std::thread send([&] {
      EXPECT_EQ(rcs_send_registered(one_, from.at(), kLarge, 0, &sent),
                static_cast<ssize_t>(kLarge));
    });
    EXPECT_EQ(Receive(kLarge), bytes);
    send.join();
    Delay(0);
    const auto after = Gpu::Get().Counts();
    EXPECT_GT(after.copies, before.copies + 4);
    EXPECT_EQ(after.pageable, 0u);
    EXPECT_GE(after.most_at_once, 2u);
    EXPECT_GT(after.streams, 0u);
  }
  // With the last buffer all that the driver had for rcsock goes.
  EXPECT_EQ(Gpu::Get().Counts().streams, 0u);
  EXPECT_EQ(Gpu::Get().Counts().registered, 0u);
}

TEST_P(DriverFaultsTest, ReceivesCopySeveralAtOnce) {
  const Buffer to(kLarge);
  const auto bytes = Pattern(kLarge, 8);
  // TCP may bring less than a slot at once. A ring is small at first.
  const std::size_t wanted = GetParam() == Path::kLane ? 4 : 2;
  std::size_t most = 0;
  const time_t end = time(nullptr) + 30;
  Delay(5000);
  do {
    (void)Gpu::Get().Counts();
    std::thread send([&] {
      EXPECT_EQ(rcs_send(one_, bytes.data(), kLarge, 0),
                static_cast<ssize_t>(kLarge));
    });
    EXPECT_EQ(rcs_recv_registered(other_, to.at(), kLarge, MSG_WAITALL),
              static_cast<ssize_t>(kLarge));
    send.join();
    ASSERT_TRUE(Gpu::Get().Take(to.at(), kLarge) == bytes);
    const auto counts = Gpu::Get().Counts();
    EXPECT_EQ(counts.pageable, 0u);
    most = counts.most_at_once;
  } while (most < wanted && time(nullptr) < end);
  Delay(0);
  EXPECT_GE(most, wanted);
}

TEST_P(DriverFaultsTest, FailedCopyOfASend) {
  const Buffer from(kLarge);
  const auto bytes = Pattern(kLarge, 6);
  Gpu::Get().Put(from.at(), bytes);
  rcs_sent sent{};
  FailCopy(0, 700);
  EXPECT_EQ(rcs_send_registered(one_, from.at(), kLarge, 0, &sent), -1);
  EXPECT_EQ(errno, EIO);
  EXPECT_EQ(sent.lane, 0u);
  // Behind a part, the part is the result.
  FailCopy(3, 2);
  ssize_t done = 0;
  std::thread send([&] {
    done = rcs_send_registered(one_, from.at(), kLarge, 0, &sent);
    EXPECT_EQ(rcs_shutdown(one_, SHUT_WR), 0);
  });
  const auto got = Receive(kLarge);
  send.join();
  EXPECT_GT(done, 0);
  EXPECT_LT(done, static_cast<ssize_t>(kLarge));
  EXPECT_EQ(got, std::vector<char>(bytes.begin(), bytes.begin() + done));
}

TEST_P(DriverFaultsTest, FailedCopyOfAReceiveLosesNothing) {
  const Buffer to(kLarge);
  const auto bytes = Pattern(200'000, 7);
  std::thread send([&] {
    EXPECT_EQ(rcs_send(one_, bytes.data(), bytes.size(), 0),
              static_cast<ssize_t>(bytes.size()));
  });
  FailCopy(0, 719);
  EXPECT_EQ(rcs_recv_registered(other_, to.at(), bytes.size(), 0), -1);
  EXPECT_EQ(errno, EIO);
  EXPECT_EQ(rcs_recv_registered(other_, to.at(), bytes.size(), MSG_WAITALL),
            static_cast<ssize_t>(bytes.size()));
  send.join();
  EXPECT_EQ(Gpu::Get().Take(to.at(), bytes.size()), bytes);
}

// Whichever copy fails, and however many bytes are on their way behind it: they
// are still there, in order, for any call.
TEST_P(DriverFaultsTest, WhatIsNotCopiedGoesBack) {
  const Buffer to(kLarge);
  const auto bytes = Pattern(kLarge, 9);
  for (int copies = 0; copies < 8; ++copies) {
    std::thread send([&] {
      EXPECT_EQ(rcs_send(one_, bytes.data(), kLarge, 0),
                static_cast<ssize_t>(kLarge));
    });
    Delay(5000);
    FailCopy(copies, 719);
    ssize_t n = rcs_recv_registered(other_, to.at(), kLarge, MSG_WAITALL);
    if (n < 0) {
      EXPECT_EQ(errno, EIO);
      EXPECT_EQ(copies, 0);
      n = 0;
    }
    FailCopy(-1, 0);
    Delay(0);
    if (n == static_cast<ssize_t>(kLarge)) {
      // So many copies there were not. On a lane the call tries once more.
      if (GetParam() == Path::kTcp) {
        EXPECT_GT(copies, 1);
      }
      send.join();
      continue;
    }
    const auto done = static_cast<std::size_t>(n);
    pollfd ready{other_, POLLIN, 0};
    EXPECT_EQ(rcs_poll(&ready, 1, 10'000), 1);
    // In parts, by each kind of call.
    std::vector<char> got = Gpu::Get().Take(to.at(), done);
    const auto take = [&](std::size_t size) {
      if (size == 0) return;  // a recv of nothing waits for something
      const auto part = Receive(size);
      got.insert(got.end(), part.begin(), part.end());
    };
    // (The failed copy may have been of the last few bytes.)
    take(std::min<std::size_t>(kLarge - done, 100'000));
    const std::size_t middle =
        std::min<std::size_t>(kLarge - got.size(), 200'000);
    if (middle != 0) {
      ASSERT_EQ(rcs_recv_registered(other_, to.at(), middle, MSG_WAITALL),
                static_cast<ssize_t>(middle));
      const auto device = Gpu::Get().Take(to.at(), middle);
      got.insert(got.end(), device.begin(), device.end());
    }
    take(kLarge - got.size());
    send.join();
    ASSERT_TRUE(got == bytes) << copies;
    PingPong();
  }
}

// The counts of both ends agree: the stream takes a lane again.
TEST_P(DriverFaultsTest, WhatHasGoneBackIsCountedOnce) {
  if (GetParam() != Path::kLane) GTEST_SKIP();
  const Buffer to(kLarge);
  const auto bytes = Pattern(kLarge, 11);
  for (int turn = 0; turn < 4; ++turn) {
    ASSERT_EQ(rcs_demote(one_, 20'000), 0);
    std::thread send([&] {
      EXPECT_EQ(rcs_send(one_, bytes.data(), kLarge, 0),
                static_cast<ssize_t>(kLarge));
    });
    FailCopy(turn, 719);
    const ssize_t n = rcs_recv_registered(other_, to.at(), kLarge, MSG_WAITALL);
    FailCopy(-1, 0);
    const auto done = static_cast<std::size_t>(std::max<ssize_t>(n, 0));
    auto got = Gpu::Get().Take(to.at(), done);
    const auto rest = Receive(kLarge - done);
    got.insert(got.end(), rest.begin(), rest.end());
    send.join();
    ASSERT_TRUE(got == bytes) << turn;
    ASSERT_TRUE(Promoted()) << rcs_get_reason(one_);
  }
}

TEST_P(DriverFaultsTest, CopyOfAReceiveThatDoesNotEnd) {
  if (GetParam() != Path::kTcp) GTEST_SKIP();
  const Buffer to(kLarge);
  const auto bytes = Pattern(100'000, 10);
  ASSERT_EQ(rcs_send(one_, bytes.data(), bytes.size(), 0), 100'000);
  Delay(11'000'000);
  EXPECT_EQ(rcs_recv_registered(other_, to.at(), 100'000, MSG_WAITALL), -1);
  EXPECT_EQ(errno, ETIMEDOUT);
  Delay(0);
  EXPECT_EQ(Receive(100'000), bytes);
}

TEST_P(DriverFaultsTest, ResetAndEndOfTheDriver) {
  const Buffer memory(100'000);
  rcs_sent sent{};
  const int kCases[][2] = {{4, ENODEV}, {709, EFAULT}, {214, EIO}, {999, EIO}};
  for (const auto& [result, error] : kCases) {
    Break(result);
    EXPECT_EQ(rcs_send_registered(one_, memory.at(), 10, 0, &sent), -1);
    EXPECT_EQ(errno, error) << result;
    EXPECT_EQ(rcs_recv_registered(other_, memory.at(), 10, 0), -1);
    EXPECT_EQ(errno, error) << result;
    PingPong();
    Break(0);
  }
}

}  // namespace
}  // namespace gpu_test
