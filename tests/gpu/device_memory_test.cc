// Streams from and into memory of a GPU.

#include <sys/wait.h>
#include <unistd.h>

#include "tests/gpu/streams.h"

namespace gpu_test {
namespace {

constexpr std::size_t kLarge = 3'000'001;

class DeviceMemoryTest : public StreamTest {
 protected:
  bool OnDevice() const { return Rdma() && GetParam() == Path::kLane; }
};
INSTANTIATE_TEST_SUITE_P(, DeviceMemoryTest,
                         testing::Values(Path::kTcp, Path::kLane),
                         [](const auto& path) {
                           return path.param == Path::kTcp ? "Tcp" : "Lane";
                         });

TEST_P(DeviceMemoryTest, FromGpuToGpuInOrderWithPlainCalls) {
  const Buffer from(kLarge + 3), to(kLarge + 5);
  for (const std::size_t size :
       {std::size_t{1}, std::size_t{100}, std::size_t{70'000}, kLarge}) {
    const auto bytes = Pattern(size, static_cast<unsigned>(size));
    Gpu::Get().Put(from.at() + 3, bytes);
    rcs_sent sent{};
    std::thread send([&] {
      EXPECT_EQ(rcs_send(one_, "before", 6, 0), 6);
      EXPECT_EQ(rcs_send_registered(one_, from.at() + 3, size, 0, &sent),
                static_cast<ssize_t>(size))
          << std::strerror(errno);
      EXPECT_EQ(rcs_send(one_, "behind", 6, 0), 6);
    });
    EXPECT_EQ(Receive(6), std::vector<char>({'b', 'e', 'f', 'o', 'r', 'e'}));
    EXPECT_EQ(rcs_recv_registered(other_, to.at() + 5, size, MSG_WAITALL),
              static_cast<ssize_t>(size))
        << std::strerror(errno);
    EXPECT_EQ(Receive(6), std::vector<char>({'b', 'e', 'h', 'i', 'n', 'd'}));
    send.join();
    EXPECT_EQ(Gpu::Get().Take(to.at() + 5, size), bytes) << size;
    // What an RDMA device reads itself is needed for longer.
    EXPECT_EQ(sent.lane != 0, OnDevice() && size >= 16 * 1024) << size;
    AwaitDone(&sent);
  }
}

TEST_P(DeviceMemoryTest, PartsAndNonBlockingCalls) {
  constexpr std::size_t kMuch = 32 << 20;
  const Buffer from(kMuch), to(kMuch);
  const auto bytes = Pattern(kMuch, 3);
  Gpu::Get().Put(from.at(), bytes);
  EXPECT_EQ(rcs_recv_registered(other_, to.at(), 10, MSG_DONTWAIT), -1);
  EXPECT_EQ(errno, EAGAIN);
  rcs_sent sent{};
  std::size_t done = 0, got = 0;
  int parts = 0;
  bool waited = false;
  const time_t end = time(nullptr) + 60;
  while (got < kMuch) {
    ASSERT_LT(time(nullptr), end) << done << " " << got;
    ssize_t n = 0;
    if (done < kMuch) {
      n = rcs_send_registered(one_, from.at() + done, kMuch - done,
                              MSG_DONTWAIT, &sent);
      if (n < 0) {
        ASSERT_EQ(errno, EAGAIN);
        waited = true;
      } else {
        done += static_cast<std::size_t>(n);
        ++parts;
      }
    }
    n = rcs_recv_registered(other_, to.at() + got, kMuch - got, MSG_DONTWAIT);
    if (n < 0) {
      ASSERT_EQ(errno, EAGAIN);
    } else {
      got += static_cast<std::size_t>(n);
    }
  }
  EXPECT_GT(parts, 1);
  (void)waited;
  EXPECT_EQ(Gpu::Get().Take(to.at(), kMuch), bytes);
  AwaitDone(&sent);
}

TEST_P(DeviceMemoryTest, ReceivesWhatThereIsAndPeeks) {
  const Buffer to(2000);
  ASSERT_EQ(rcs_send(one_, "abcdef", 6, 0), 6);
  ssize_t n = 0;
  while ((n = rcs_recv_registered(other_, to.at(), 1000, MSG_PEEK)) > 0 &&
         n < 6) {
  }
  EXPECT_EQ(n, 6);
  EXPECT_EQ(rcs_recv_registered(other_, to.at() + 10, 4, 0), 4);
  EXPECT_EQ(rcs_recv_registered(other_, to.at() + 20, 1000, 0), 2);
  EXPECT_EQ(Gpu::Get().Take(to.at() + 10, 4),
            std::vector<char>({'a', 'b', 'c', 'd'}));
  EXPECT_EQ(Gpu::Get().Take(to.at() + 20, 2), std::vector<char>({'e', 'f'}));
  ASSERT_EQ(rcs_shutdown(one_, SHUT_WR), 0);
  EXPECT_EQ(rcs_recv_registered(other_, to.at(), 10, MSG_WAITALL), 0);
}

TEST_P(DeviceMemoryTest, PlainCallsSayEfaultAndLoseNothing) {
  const Buffer memory(kLarge);
  for (const std::size_t size :
       {std::size_t{1}, std::size_t{100}, std::size_t{5000}, kLarge}) {
    EXPECT_EQ(rcs_send(one_, memory.at(), size, 0), -1) << size;
    EXPECT_EQ(errno, EFAULT) << size;
  }
  ASSERT_EQ(rcs_send(one_, "x", 1, 0), 1);
  EXPECT_EQ(rcs_recv(other_, memory.at(), 1, 0), -1);
  EXPECT_EQ(errno, EFAULT);
  EXPECT_EQ(Receive(1), std::vector<char>({'x'}));
}

TEST_P(DeviceMemoryTest, ManagedMemoryIsTheHostsToo) {
  char* const at = Gpu::Get().AllocManaged(200'000);
  const auto bytes = Pattern(100'000, 4);
  std::memcpy(at, bytes.data(), bytes.size());
  ASSERT_EQ(rcs_register_buffer(at, 200'000), 0);
  std::thread send([&] {
    rcs_sent sent{};
    EXPECT_EQ(rcs_send(one_, at, 10, 0), 10);
    EXPECT_EQ(rcs_send_registered(one_, at + 10, bytes.size() - 10, 0, &sent),
              static_cast<ssize_t>(bytes.size() - 10));
    AwaitDone(&sent);
  });
  EXPECT_EQ(
      rcs_recv_registered(other_, at + 100'000, bytes.size(), MSG_WAITALL),
      static_cast<ssize_t>(bytes.size()));
  EXPECT_EQ(std::memcmp(at + 100'000, bytes.data(), bytes.size()), 0);
  send.join();
  EXPECT_EQ(rcs_unregister_buffer(at, 200'000), 0);
  Gpu::Get().Free(at);
}

TEST_P(DeviceMemoryTest, FreedMemoryIsEfaultAndTheStreamGoesOn) {
  Buffer memory(100'000);
  const Buffer fine(100'000);
  rcs_sent sent{};
  // An RDMA device has a key of the memory from then on.
  std::thread send([&] {
    EXPECT_EQ(rcs_send_registered(one_, memory.at(), 100'000, 0, &sent),
              100'000);
  });
  EXPECT_EQ(Receive(100'000).size(), 100'000u);
  send.join();
  AwaitDone(&sent);
  Gpu::Get().Free(memory.at());
  EXPECT_EQ(rcs_send_registered(one_, memory.at(), 100'000, 0, &sent), -1);
  EXPECT_EQ(errno, EFAULT);
  ASSERT_EQ(rcs_send(one_, "x", 1, 0), 1);
  EXPECT_EQ(rcs_recv_registered(other_, memory.at(), 1, 0), -1);
  EXPECT_EQ(errno, EFAULT);
  EXPECT_EQ(rcs_recv_registered(other_, fine.at(), 1, 0), 1);
  // The address may be another allocation's by now.
  char* const again = Gpu::Get().Alloc(100'000);
  if (again == memory.at()) {
    EXPECT_EQ(rcs_send_registered(one_, again, 10, 0, &sent), -1);
    EXPECT_EQ(errno, EFAULT);
  }
  EXPECT_EQ(rcs_unregister_buffer(memory.at(), 100'000), 0);
  Gpu::Get().Free(again);
  memory.Forget();
}

TEST_P(DeviceMemoryTest, ContextThatEnds) {
  void* const context = Gpu::Get().NewContext();
  Buffer memory(100'000);
  rcs_sent sent{};
  ASSERT_EQ(rcs_send_registered(one_, memory.at(), 100, 0, &sent), 100);
  EXPECT_EQ(Receive(100).size(), 100u);
  Gpu::Get().EndContext(context);
  EXPECT_EQ(rcs_send_registered(one_, memory.at(), 100, 0, &sent), -1);
  EXPECT_EQ(errno, EFAULT);
  EXPECT_EQ(rcs_unregister_buffer(memory.at(), 100'000), 0);
  memory.Forget();
  PingPong();
}

TEST_P(DeviceMemoryTest, ChildOfForkHasNoneOfIt) {
  const Buffer memory(100'000);
  rcs_sent sent{};
  const pid_t child = rcs_fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const ssize_t n = rcs_send_registered(one_, memory.at(), 10, 0, &sent);
    rcs_immediate_exit(n == -1 && errno == EINVAL ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(rcs_send_registered(one_, memory.at(), 10, 0, &sent), 10);
  EXPECT_EQ(Receive(10).size(), 10u);
}

TEST_P(DeviceMemoryTest, RegistersWhatIsThere) {
  char* const at = Gpu::Get().Alloc(100'000);
  EXPECT_EQ(rcs_register_buffer(at, std::size_t{1} << 46), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(rcs_register_buffer(at, 100'000), 0);
  EXPECT_EQ(rcs_register_buffer(at + 10, 10), -1);
  EXPECT_EQ(errno, EEXIST);
  EXPECT_EQ(rcs_unregister_buffer(at, 100'000), 0);
  Gpu::Get().Free(at);
}

}  // namespace
}  // namespace gpu_test
