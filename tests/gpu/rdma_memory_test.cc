// Memory of a GPU that an RDMA device reads and writes.

#include <sys/mman.h>

#include <algorithm>
#include <chrono>

#include "tests/gpu/streams.h"

namespace gpu_test {
namespace {

constexpr std::size_t kSize = 1'000'000;

class RdmaMemoryTest : public StreamTest {
 protected:
  static void CanExport(int can) {
    Gpu::Get().Call<void(int)>("fake_cuda_dmabuf")(can);
  }
  void SendOne(const Buffer& from, std::size_t size, unsigned seed,
               rcs_sent* sent) {
    const auto bytes = Pattern(size, seed);
    Gpu::Get().Put(from.at(), bytes);
    std::thread send([&] {
      EXPECT_EQ(rcs_send_registered(one_, from.at(), size, 0, sent),
                static_cast<ssize_t>(size))
          << std::strerror(errno);
    });
    EXPECT_EQ(Receive(size), bytes);
    send.join();
  }
};
INSTANTIATE_TEST_SUITE_P(, RdmaMemoryTest, testing::Values(Path::kLane),
                         [](const auto&) { return "Lane"; });

TEST_P(RdmaMemoryTest, DeviceReadsIt) {
  const Buffer from(kSize);
  rcs_sent sent{};
  for (unsigned seed = 1; seed < 10; ++seed) {
    SendOne(from, kSize, seed, &sent);
    EXPECT_NE(sent.lane, 0u);
    AwaitDone(&sent);
  }
}

TEST_P(RdmaMemoryTest, CopiedWhereItCannotBeExported) {
  if (Gpu::Get().real()) GTEST_SKIP();
  CanExport(0);
  {
    const Buffer from(kSize);
    rcs_sent sent{};
    SendOne(from, kSize, 11, &sent);
    EXPECT_EQ(sent.lane, 0u);
    EXPECT_EQ(sent.copied, 1u);
  }
  CanExport(1);
}

// As where the kernel has a module that knows the GPU's memory by its address.
TEST_P(RdmaMemoryTest, DeviceReadsItByItsAddress) {
  if (Gpu::Get().real()) GTEST_SKIP();
  CanExport(0);
  ::setenv("FAKE_CUDA_PLAIN", "1", 1);
  {
    const Buffer from(kSize), to(kSize);
    ::unsetenv("FAKE_CUDA_PLAIN");
    rcs_sent sent{};
    SendOne(from, kSize, 18, &sent);
    EXPECT_NE(sent.lane, 0u);
    AwaitDone(&sent);
    rcs_exposure where{};
    ASSERT_EQ(rcs_expose(other_, to.at(), kSize, &where), 0)
        << std::strerror(errno);
    ASSERT_GT(rcs_place(one_, &where, 0, from.at(), kSize), 0);
    PingPong();
    EXPECT_EQ(Gpu::Get().Take(to.at(), kSize), Pattern(kSize, 18));
    EXPECT_EQ(rcs_hide(other_, &where), 0);
  }
  CanExport(1);
}

// What the peer has not taken goes over TCP, from the GPU's memory.
TEST_P(RdmaMemoryTest, LeavesTheLaneWithUntakenBytes) {
  const Buffer from(kSize);
  const auto bytes = Pattern(kSize, 12);
  Gpu::Get().Put(from.at(), bytes);
  rcs_sent sent{};
  const ssize_t n =
      rcs_send_registered(one_, from.at(), kSize, MSG_DONTWAIT, &sent);
  ASSERT_GT(n, 0);
  std::thread leave([&] { EXPECT_EQ(rcs_demote(one_, 20'000), 0); });
  const auto size = static_cast<std::size_t>(n);
  EXPECT_EQ(Receive(size), std::vector<char>(bytes.begin(), bytes.begin() + n));
  leave.join();
  EXPECT_EQ(rcs_get_lane(one_), RCS_TCP);
  AwaitDone(&sent);
}

// What was in slots ahead of the stream comes again, by TCP.
TEST_P(RdmaMemoryTest, LeavesTheLaneAmidAReceive) {
  if (Gpu::Get().real()) GTEST_SKIP();
  const auto delay = Gpu::Get().Call<void(unsigned)>("fake_cuda_delay");
  const Buffer to(4 * kSize);
  for (unsigned turn = 0; turn < 6; ++turn) {
    ASSERT_TRUE(Promoted());
    const auto bytes = Pattern(4 * kSize, 20 + turn);
    delay(2000);
    std::thread send([&] {
      EXPECT_EQ(rcs_send(one_, bytes.data(), bytes.size(), 0),
                static_cast<ssize_t>(bytes.size()));
    });
    std::thread leave([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(5 + 7 * turn));
      rcs_demote(turn % 2 == 0 ? one_ : other_, 20'000);
    });
    EXPECT_EQ(rcs_recv_registered(other_, to.at(), bytes.size(), MSG_WAITALL),
              static_cast<ssize_t>(bytes.size()));
    send.join();
    leave.join();
    delay(0);
    ASSERT_TRUE(Gpu::Get().Take(to.at(), bytes.size()) == bytes) << turn;
  }
}

// What the peer has not taken may be gone with the memory: then the stream
// ends. No wrong byte comes.
TEST_P(RdmaMemoryTest, FreedWithUntakenBytes) {
  if (Gpu::Get().real()) GTEST_SKIP();
  Buffer from(kSize);
  const auto bytes = Pattern(kSize, 15);
  Gpu::Get().Put(from.at(), bytes);
  rcs_sent sent{};
  const ssize_t n =
      rcs_send_registered(one_, from.at(), kSize, MSG_DONTWAIT, &sent);
  ASSERT_GT(n, 0);
  Gpu::Get().Free(from.at());
  // A stream that has ended is not waited for.
  std::thread leave([&] { EXPECT_EQ(rcs_demote(one_, 20'000), 0); });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  std::vector<char> got(static_cast<std::size_t>(n));
  std::size_t done = 0;
  ssize_t part = 0;
  while (done < got.size() && (part = rcs_recv(other_, got.data() + done,
                                               got.size() - done, 0)) > 0) {
    done += static_cast<std::size_t>(part);
  }
  EXPECT_TRUE(std::equal(got.begin(),
                         got.begin() + static_cast<std::ptrdiff_t>(done),
                         bytes.begin()));
  leave.join();
  const time_t end = time(nullptr) + 20;
  while (rcs_unregister_buffer(from.at(), kSize) != 0 && errno == EBUSY &&
         time(nullptr) < end) {
  }
  from.Forget();
}

TEST_P(RdmaMemoryTest, PlacedFromGpuToGpu) {
  const Buffer from(kSize);
  char* const to = Gpu::Get().Alloc(kSize);
  const auto bytes = Pattern(kSize, 13);
  Gpu::Get().Put(from.at(), bytes);
  Gpu::Get().Put(to, Pattern(kSize, 0));
  rcs_exposure where{};
  ASSERT_EQ(rcs_expose(other_, to, kSize, &where), 0) << std::strerror(errno);
  const std::int64_t ticket =
      rcs_place(one_, &where, 10, from.at(), kSize - 10);
  ASSERT_GT(ticket, 0) << std::strerror(errno);
  PingPong();
  auto expected = Pattern(kSize, 0);
  std::copy(bytes.begin(), bytes.end() - 10, expected.begin() + 10);
  EXPECT_EQ(Gpu::Get().Take(to, kSize), expected);
  const time_t end = time(nullptr) + 20;
  while (rcs_placed(one_, &where, ticket) == 0 && time(nullptr) < end) {
  }
  EXPECT_EQ(rcs_placed(one_, &where, ticket), 1);
  // So few bytes would go inline from host memory.
  const std::int64_t few = rcs_place(one_, &where, 0, from.at(), 8);
  ASSERT_GT(few, 0) << std::strerror(errno);
  PingPong();
  EXPECT_EQ(Gpu::Get().Take(to, 8),
            std::vector<char>(bytes.begin(), bytes.begin() + 8));
  EXPECT_EQ(rcs_hide(other_, &where), 0);
  Gpu::Get().Free(to);
}

TEST_P(RdmaMemoryTest, PlacesNothingOfFreedMemory) {
  Buffer from(kSize);
  std::vector<char> to(kSize);
  rcs_sent sent{};
  SendOne(from, kSize, 14, &sent);
  AwaitDone(&sent);
  rcs_exposure where{};
  ASSERT_EQ(rcs_expose(other_, to.data(), kSize, &where), 0);
  Gpu::Get().Free(from.at());
  EXPECT_EQ(rcs_place(one_, &where, 0, from.at(), kSize), -1);
  EXPECT_EQ(errno, EFAULT);
  EXPECT_EQ(rcs_unregister_buffer(from.at(), kSize), 0);
  from.Forget();
}

// A key of memory that has gone says nothing of what the program maps there
// later.
TEST_P(RdmaMemoryTest, HostMemoryWhereAGpusWas) {
  if (Gpu::Get().real()) GTEST_SKIP();
  Buffer gone(kSize);
  rcs_sent sent{};
  SendOne(gone, kSize, 16, &sent);
  AwaitDone(&sent);
  const Buffer from(kSize);
  const auto bytes = Pattern(kSize, 17);
  Gpu::Get().Put(from.at(), bytes);
  Gpu::Get().Free(gone.at());
  void* const to =
      ::mmap(gone.at(), kSize, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
  ASSERT_EQ(to, gone.at()) << std::strerror(errno);
  rcs_exposure where{};
  ASSERT_EQ(rcs_expose(other_, to, kSize, &where), 0) << std::strerror(errno);
  ASSERT_GT(rcs_place(one_, &where, 0, from.at(), kSize), 0);
  PingPong();
  EXPECT_EQ(std::memcmp(to, bytes.data(), kSize), 0);
  EXPECT_EQ(rcs_hide(other_, &where), 0);
  EXPECT_EQ(rcs_unregister_buffer(gone.at(), kSize), 0);
  gone.Forget();
  ::munmap(to, kSize);
}

TEST_P(RdmaMemoryTest, NotExposedWhereTheGpuDoesNotOrderWrites) {
  if (Gpu::Get().real()) GTEST_SKIP();
  const auto ordering = Gpu::Get().Call<void(int)>("fake_cuda_ordering");
  char* const to = Gpu::Get().Alloc(kSize);
  rcs_exposure where{};
  ordering(0);
  EXPECT_EQ(rcs_expose(other_, to, kSize, &where), -1);
  EXPECT_EQ(errno, EOPNOTSUPP);
  ordering(100);
  EXPECT_EQ(rcs_expose(other_, to, kSize, &where), 0);
  Gpu::Get().Free(to);
}

}  // namespace
}  // namespace gpu_test
