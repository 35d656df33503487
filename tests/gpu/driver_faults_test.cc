// What only the driver of this directory does on demand.

#include "tests/gpu/streams.h"

namespace gpu_test {
namespace {

constexpr std::size_t kLarge = 3'000'000;

class DriverFaultsTest : public StreamTest {
 protected:
  void SetUp() override {
    if (Gpu::Get().real()) GTEST_SKIP();
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

TEST_P(DriverFaultsTest, ResetAndEndOfTheDriver) {
  const Buffer memory(100'000);
  rcs_sent sent{};
  const int kCases[][2] = {{4, ENODEV}, {709, ENODEV}, {214, EIO}, {999, EIO}};
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
