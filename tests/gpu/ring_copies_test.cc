// A GPU's copies straight into the rings of shared memory and out of them.

#include <algorithm>
#include <atomic>
#include <chrono>

#include "tests/gpu/streams.h"

namespace gpu_test {
namespace {

constexpr std::size_t kSize = 3'000'001;

class RingCopiesTest : public StreamTest {
 protected:
  void SetUp() override {
    if (Gpu::Get().real()) GTEST_SKIP();
    StreamTest::SetUp();
  }
  void TearDown() override {
    FailCall(nullptr, 0, 0);
    Delay(0);
    StreamTest::TearDown();
  }
  static void FailCall(const char* name, int calls, int result) {
    Gpu::Get().Call<void(const char*, int, int)>("fake_cuda_fail_call")(
        name, calls, result);
  }
  static void Delay(unsigned us) {
    Gpu::Get().Call<void(unsigned)>("fake_cuda_delay")(us);
  }
  // Sends and receives all, from and to GPU memory, both ends in one go.
  void Transfer(const Buffer& from, const Buffer& to, unsigned seed) {
    const auto bytes = Pattern(kSize, seed);
    Gpu::Get().Put(from.at(), bytes);
    std::thread send([&] {
      rcs_sent sent{};
      EXPECT_EQ(rcs_send_registered(one_, from.at(), kSize, 0, &sent),
                static_cast<ssize_t>(kSize))
          << std::strerror(errno);
    });
    EXPECT_EQ(rcs_recv_registered(other_, to.at(), kSize, MSG_WAITALL),
              static_cast<ssize_t>(kSize))
        << std::strerror(errno);
    send.join();
    EXPECT_EQ(Gpu::Get().Take(to.at(), kSize), bytes);
  }
  // A driver that does not tell an allocation's number no longer has it.
  static bool Told(int error) { return error == EIO || error == EFAULT; }
  static std::size_t Small() { return Gpu::Get().Counts().small; }
};
INSTANTIATE_TEST_SUITE_P(, RingCopiesTest, testing::Values(Path::kLane),
                         [](const auto&) { return "Lane"; });

TEST_P(RingCopiesTest, MostBytesTouchNoSlot) {
  {
    const Buffer from(kSize), to(kSize);
    const auto before = Gpu::Get().Counts();
    for (unsigned seed = 1; seed < 6; ++seed) Transfer(from, to, seed);
    const auto after = Gpu::Get().Counts();
    // Both ends' copies count. What waits for room goes through a slot.
    EXPECT_GT(after.small - before.small, 6 * kSize);
    EXPECT_EQ(after.pageable, before.pageable);
    EXPECT_GE(after.most_at_once, 2u);
    EXPECT_EQ(after.twice, 0u);
  }
  // With the last buffer the driver has let go of the rings.
  EXPECT_EQ(Gpu::Get().Counts().registered, 0u);
  EXPECT_EQ(Gpu::Get().Counts().streams, 0u);
}

TEST_P(RingCopiesTest, InOrderWithSmallMessages) {
  const Buffer from(kSize), to(kSize);
  const auto bytes = Pattern(200'000, 2);
  Gpu::Get().Put(from.at(), bytes);
  for (int turn = 0; turn < 20; ++turn) {
    std::thread send([&] {
      rcs_sent sent{};
      EXPECT_EQ(rcs_send(one_, "before", 6, 0), 6);
      EXPECT_EQ(rcs_send_registered(one_, from.at(), 200'000, 0, &sent),
                200'000);
      EXPECT_EQ(rcs_send(one_, "behind", 6, 0), 6);
    });
    EXPECT_EQ(rcs_recv_registered(other_, to.at(), 200'012, MSG_WAITALL),
              200'012);
    send.join();
    const auto got = Gpu::Get().Take(to.at(), 200'012);
    EXPECT_EQ(std::memcmp(got.data(), "before", 6), 0);
    EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), got.begin() + 6));
    EXPECT_EQ(std::memcmp(got.data() + 200'006, "behind", 6), 0);
  }
}

TEST_P(RingCopiesTest, BySlotsIfTheDriverPinsNoRing) {
  FailCall("cuMemHostRegister_v2", 0, 801);
  const Buffer from(kSize), to(kSize);
  const std::size_t before = Small();
  Transfer(from, to, 3);
  EXPECT_EQ(Small(), before);
}

// The peer gives the pages back once it hears of the lane's end.
TEST_P(RingCopiesTest, RingsAreLetGoWithTheLane) {
  const Buffer from(kSize), to(kSize);
  Transfer(from, to, 4);
  ASSERT_EQ(rcs_demote(one_, 20'000), 0);
  // The slots of two pipes are left.
  const time_t end = time(nullptr) + 20;
  while (Gpu::Get().Counts().registered > 2 && time(nullptr) < end) {
    PingPong();
  }
  EXPECT_LE(Gpu::Get().Counts().registered, 2u);
  Transfer(from, to, 5);
}

TEST_P(RingCopiesTest, LeavesTheLaneAmidCopies) {
  const Buffer from(kSize), to(kSize);
  for (unsigned turn = 0; turn < 4; ++turn) {
    ASSERT_TRUE(Promoted());
    Delay(3000);
    std::thread leave([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(10 + 7 * turn));
      rcs_demote(turn % 2 == 0 ? one_ : other_, 20'000);
    });
    Transfer(from, to, 6 + turn);
    leave.join();
    Delay(0);
  }
}

// What other threads send meanwhile waits for room, and loses nothing.
TEST_P(RingCopiesTest, OtherThreadsSendMeanwhile) {
  const Buffer from(kSize);
  Gpu::Get().Put(from.at(), std::vector<char>(kSize, 'g'));
  const std::vector<char> plain(40'000, 'p');
  constexpr std::size_t kPlain = 50 * 40'000;
  Delay(500);
  std::thread device([&] {
    rcs_sent sent{};
    EXPECT_EQ(rcs_send_registered(one_, from.at(), kSize, 0, &sent),
              static_cast<ssize_t>(kSize));
  });
  std::thread host([&] {
    for (std::size_t done = 0; done < kPlain; done += plain.size()) {
      EXPECT_EQ(rcs_send(one_, plain.data(), plain.size(), 0), 40'000);
    }
  });
  const auto got = Receive(kSize + kPlain);
  device.join();
  host.join();
  EXPECT_EQ(std::count(got.begin(), got.end(), 'g'),
            static_cast<std::ptrdiff_t>(kSize));
  EXPECT_EQ(std::count(got.begin(), got.end(), 'p'),
            static_cast<std::ptrdiff_t>(kPlain));
}

// Whatever call fails, and whenever: what is said to be sent arrives, what is
// not said to be received is still there, and the stream goes on.
TEST_P(RingCopiesTest, EachCallFails) {
  constexpr std::size_t kSome = 400'000;
  const char* const kCalls[] = {"cuCtxPushCurrent_v2",  "cuPointerGetAttribute",
                                "cuMemcpyDtoHAsync_v2", "cuMemcpyHtoDAsync_v2",
                                "cuEventRecord",        "cuEventQuery",
                                "cuMemHostRegister_v2", "cuMemHostUnregister",
                                "cuStreamCreate",       "cuEventCreate"};
  const Buffer from(kSome), to(kSome);
  const auto bytes = Pattern(kSome, 9);
  Gpu::Get().Put(from.at(), bytes);
  for (const char* call : kCalls) {
    for (const int behind : {0, 1, 2, 3, 5, 9, 14, 25}) {
      ASSERT_TRUE(Promoted());
      FailCall(call, behind, 999);
      std::atomic<ssize_t> sent_bytes{-2};
      std::thread send([&] {
        rcs_sent sent{};
        ssize_t n = rcs_send_registered(one_, from.at(), kSome, 0, &sent);
        if (n < 0) {
          EXPECT_TRUE(Told(errno)) << call << behind;
          n = 0;
        }
        sent_bytes = n;
        EXPECT_EQ(rcs_send(one_, "end", 3, 0), 3);
      });
      ssize_t got = rcs_recv_registered(other_, to.at(), 100'000, 0);
      if (got < 0) {
        EXPECT_TRUE(Told(errno)) << call << behind;
        got = 0;
      }
      std::vector<char> all;
      // Ends with the mark: no pattern has it at these places.
      while (sent_bytes < 0 || all.size() + static_cast<std::size_t>(got) <
                                   static_cast<std::size_t>(sent_bytes) + 3) {
        char part[4096];
        const ssize_t n = rcs_recv(other_, part, sizeof part, MSG_DONTWAIT);
        if (n > 0) all.insert(all.end(), part, part + n);
      }
      send.join();
      FailCall(nullptr, 0, 0);
      const auto first =
          Gpu::Get().Take(to.at(), static_cast<std::size_t>(got));
      all.insert(all.begin(), first.begin(), first.end());
      auto expected =
          std::vector<char>(bytes.begin(), bytes.begin() + sent_bytes);
      expected.insert(expected.end(), {'e', 'n', 'd'});
      ASSERT_EQ(all, expected) << call << behind;
    }
  }
}

// A copy that has begun goes on, whatever the driver says of its event.
TEST_P(RingCopiesTest, WithoutEvents) {
  const Buffer from(kSize), to(kSize);
  Transfer(from, to, 30);
  FailCall("cuEventRecord", 0, 999);
  Delay(1000);
  Transfer(from, to, 31);
}

TEST_P(RingCopiesTest, MemoryFreedWhileItIsSent) {
  Buffer from(kSize);
  const auto bytes = Pattern(kSize, 10);
  Gpu::Get().Put(from.at(), bytes);
  Delay(3000);
  ssize_t sent_bytes = 0;
  std::thread send([&] {
    rcs_sent sent{};
    sent_bytes = rcs_send_registered(one_, from.at(), kSize, 0, &sent);
    EXPECT_EQ(rcs_shutdown(one_, SHUT_WR), 0);
  });
  std::thread free([&] {
    Gpu::Get().Bind();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    Gpu::Get().Free(from.at());
  });
  const auto got = Receive(kSize);
  send.join();
  free.join();
  ASSERT_GE(sent_bytes, 0);
  EXPECT_LT(sent_bytes, static_cast<ssize_t>(kSize));
  EXPECT_EQ(got, std::vector<char>(bytes.begin(), bytes.begin() + sent_bytes));
  EXPECT_EQ(rcs_unregister_buffer(from.at(), kSize), 0);
  from.Forget();
}

// The device may still write to the ring, so the stream leaves that lane.
TEST_P(RingCopiesTest, CopyThatDoesNotEnd) {
  const Buffer from(kSize);
  rcs_stream_info before{};
  ASSERT_GT(rcs_get_stream_info(one_, &before, sizeof before), 0);
  Delay(11'000'000);
  rcs_sent sent{};
  EXPECT_EQ(rcs_send_registered(one_, from.at(), 60'000, 0, &sent), -1);
  EXPECT_EQ(errno, ETIMEDOUT);
  Delay(0);
  for (int i = 0; i < 100; ++i) PingPong();
  rcs_stream_info info{};
  ASSERT_GT(rcs_get_stream_info(one_, &info, sizeof info), 0);
  EXPECT_NE(info.lane_id, before.lane_id) << info.reason;
  // Another lane does not get that ring.
  const Buffer to(kSize);
  ASSERT_TRUE(Promoted());
  Transfer(from, to, 11);
}

// The stream comes back from each, though no such lane is ever given back.
TEST_P(RingCopiesTest, CopiesThatDoNotEndOnTwoLanes) {
  const Buffer from(kSize);
  for (int turn = 0; turn < 2; ++turn) {
    ASSERT_TRUE(Promoted()) << turn;
    Delay(11'000'000);
    rcs_sent sent{};
    EXPECT_EQ(rcs_send_registered(one_, from.at(), 60'000, 0, &sent), -1);
    EXPECT_EQ(errno, ETIMEDOUT);
    Delay(0);
  }
  const Buffer to(kSize);
  ASSERT_TRUE(Promoted());
  Transfer(from, to, 32);
}

// The device may still read from the ring, and write what it reads to the
// program's memory.  So the ring keeps these bytes, and they come another way.
TEST_P(RingCopiesTest, CopyOutThatDoesNotEnd) {
  const Buffer to(kSize);
  rcs_stream_info before{};
  ASSERT_GT(rcs_get_stream_info(other_, &before, sizeof before), 0);
  const auto bytes = Pattern(60'000, 12);
  ASSERT_EQ(rcs_send(one_, bytes.data(), bytes.size(), 0), 60'000);
  Delay(11'000'000);
  EXPECT_EQ(rcs_recv_registered(other_, to.at(), 60'000, MSG_WAITALL), -1);
  EXPECT_EQ(errno, ETIMEDOUT);
  Delay(0);
  EXPECT_EQ(Receive(60'000), bytes);
  for (int i = 0; i < 100; ++i) PingPong();
  rcs_stream_info info{};
  ASSERT_GT(rcs_get_stream_info(other_, &info, sizeof info), 0);
  EXPECT_NE(info.lane_id, before.lane_id) << info.reason;
}

}  // namespace
}  // namespace gpu_test
