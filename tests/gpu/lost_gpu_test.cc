// A GPU's memory goes while its bytes are on their way: the call says an errno,
// its stream goes on with the bytes that it has, and no other stream notices.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <set>
#include <string>

#include "tests/gpu/streams.h"

namespace gpu_test {
namespace {

constexpr std::size_t kSize = 8'000'001;
// The memory is lost before all copies have ended, also on a busy machine.
constexpr unsigned kCopyUs = 20'000;

enum class Loss { kFreed, kContext, kReset };

void Break(int result) {
  Gpu::Get().Call<void(int)>("fake_cuda_break")(result);
}
void Delay(unsigned us) {
  Gpu::Get().Call<void(unsigned)>("fake_cuda_delay")(us);
}

// Memory that is lost at some moment.
class Lost {
 public:
  explicit Lost(Loss how) : how_(how) {
    if (how == Loss::kContext) context_ = Gpu::Get().NewContext();
    at_ = Gpu::Get().Alloc(kSize);
    EXPECT_EQ(rcs_register_buffer(at_, kSize), 0) << std::strerror(errno);
  }
  ~Lost() {
    if (loses_.joinable()) loses_.join();
    Break(0);
    const time_t end = time(nullptr) + 20;
    while (rcs_unregister_buffer(at_, kSize) != 0 && errno == EBUSY &&
           time(nullptr) < end) {
    }
    if (how_ == Loss::kReset) Gpu::Get().Free(at_);
    if (how_ == Loss::kContext) {
      // It is still this thread's.
      void* gone;
      Gpu::Get().Call<int(void**)>("cuCtxPopCurrent_v2")(&gone);
    }
  }
  Lost(const Lost&) = delete;
  Lost& operator=(const Lost&) = delete;
  char* at() const { return at_; }
  void LoseSoon() {
    loses_ = std::thread([this] {
      std::this_thread::sleep_for(std::chrono::milliseconds(15));
      Gpu::Get().Bind();
      switch (how_) {
        case Loss::kFreed:
          Gpu::Get().Free(at_);
          break;
        case Loss::kContext:
          Gpu::Get().EndContext(context_);
          break;
        case Loss::kReset:
          Break(214);
          break;
      }
    });
  }
  void Await() { loses_.join(); }
  // What a call says once the memory is lost.
  int error() const { return how_ == Loss::kReset ? EIO : EFAULT; }

 private:
  const Loss how_;
  void* context_ = nullptr;
  char* at_ = nullptr;
  std::thread loses_;
};

class LostGpuTest : public StreamTest {
 protected:
  void SetUp() override {
    if (Gpu::Get().real()) GTEST_SKIP();
    StreamTest::SetUp();
    ASSERT_NO_FATAL_FAILURE(MakeStream(&others_listener_, &near_, &far_));
    for (const int fd : {near_, far_}) {
      timeval limit{20, 0};
      ASSERT_EQ(
          rcs_setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
    }
    others_ = std::thread([this] { Others(); });
    while (turns_ == 0) std::this_thread::yield();
  }
  void TearDown() override {
    if (Gpu::Get().real()) return;
    Break(0);
    Delay(0);
    ends_ = true;
    if (others_.joinable()) others_.join();
    for (const int fd : {near_, far_, others_listener_}) {
      if (fd >= 0) {
        EXPECT_EQ(rcs_close(fd), 0);
      }
    }
    StreamTest::TearDown();
  }
  // Another stream, of host memory.
  void Others() {
    std::vector<char> bytes(5000), got(5000);
    for (; !ends_; ++turns_) {
      std::fill(bytes.begin(), bytes.end(), static_cast<char>(turns_));
      ASSERT_EQ(rcs_send(near_, bytes.data(), bytes.size(), 0), 5000);
      ASSERT_EQ(rcs_recv(far_, got.data(), got.size(), MSG_WAITALL), 5000);
      ASSERT_EQ(got, bytes);
    }
  }
  bool OnDevice() const { return Rdma() && GetParam() == Path::kLane; }

  void SendAndLose(Loss how) {
    Lost from(how);
    const auto bytes = Pattern(kSize, 3);
    Gpu::Get().Put(from.at(), bytes);
    Delay(OnDevice() ? 0 : kCopyUs);
    std::atomic<ssize_t> n{-2};
    rcs_sent sent{};
    std::thread send([&] {
      n = rcs_send_registered(one_, from.at(), kSize, 0, &sent);
      if (n < 0) {
        EXPECT_EQ(errno, from.error());
      }
      // The stream goes on.
      EXPECT_EQ(rcs_send(one_, "end", 3, 0), 3);
      EXPECT_EQ(rcs_shutdown(one_, SHUT_WR), 0);
    });
    from.LoseSoon();
    std::vector<char> got(kSize + 100);
    const ssize_t all = rcs_recv(other_, got.data(), got.size(), MSG_WAITALL);
    send.join();
    from.Await();
    got.resize(static_cast<std::size_t>(std::max<ssize_t>(all, 0)));
    const auto part = static_cast<std::size_t>(std::max<ssize_t>(n, 0));
    auto expected = std::vector<char>(
        bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(part));
    expected.insert(expected.end(), {'e', 'n', 'd'});
    EXPECT_TRUE(got == expected) << got.size() << " " << n;
    // The device may have read all before.
    if (!OnDevice()) {
      EXPECT_LT(part, kSize);
    }
    AwaitDone(&sent);
    EXPECT_EQ(rcs_send_registered(one_, from.at(), 100, 0, &sent), -1);
    EXPECT_EQ(errno, from.error());
  }

  void ReceiveAndLose(Loss how) {
    Lost to(how);
    const auto bytes = Pattern(kSize, 4);
    std::thread send([&] {
      EXPECT_EQ(rcs_send(one_, bytes.data(), kSize, 0),
                static_cast<ssize_t>(kSize));
      EXPECT_EQ(rcs_send(one_, "end", 3, 0), 3);
    });
    Delay(kCopyUs);
    to.LoseSoon();
    ssize_t n = rcs_recv_registered(other_, to.at(), kSize, MSG_WAITALL);
    if (n < 0) {
      EXPECT_EQ(errno, to.error());
    }
    to.Await();
    n = std::max<ssize_t>(n, 0);
    EXPECT_LT(n, static_cast<ssize_t>(kSize));
    EXPECT_EQ(rcs_recv_registered(other_, to.at(), 100, 0), -1);
    EXPECT_EQ(errno, to.error());
    // What is not said to be received is still there.
    const auto got = Receive(kSize - static_cast<std::size_t>(n));
    EXPECT_TRUE(got == std::vector<char>(bytes.begin() + n, bytes.end()));
    EXPECT_EQ(Receive(3), std::vector<char>({'e', 'n', 'd'}));
    send.join();
  }

  // The copy of what comes then is the first that finds the memory lost.
  void WaitAndLose(Loss how) {
    Lost to(how);
    to.LoseSoon();
    std::thread send([&] {
      to.Await();
      EXPECT_EQ(rcs_send(one_, "abc", 3, 0), 3);
    });
    EXPECT_EQ(rcs_recv_registered(other_, to.at(), 100, 0), -1);
    EXPECT_EQ(errno, to.error());
    send.join();
    EXPECT_EQ(Receive(3), std::vector<char>({'a', 'b', 'c'}));
  }

  int others_listener_ = -1;
  int near_ = -1;
  int far_ = -1;
  std::thread others_;
  std::atomic<bool> ends_{false};
  std::atomic<int> turns_{0};
};
INSTANTIATE_TEST_SUITE_P(, LostGpuTest,
                         testing::Values(Path::kTcp, Path::kLane),
                         [](const auto& path) {
                           return path.param == Path::kTcp ? "Tcp" : "Lane";
                         });

TEST_P(LostGpuTest, FreedWhileItIsSent) { SendAndLose(Loss::kFreed); }
TEST_P(LostGpuTest, FreedWhileItReceives) { ReceiveAndLose(Loss::kFreed); }
TEST_P(LostGpuTest, ContextEndsWhileItIsSent) { SendAndLose(Loss::kContext); }
TEST_P(LostGpuTest, ContextEndsWhileItReceives) {
  ReceiveAndLose(Loss::kContext);
}
TEST_P(LostGpuTest, FreedWhileItWaits) { WaitAndLose(Loss::kFreed); }
TEST_P(LostGpuTest, ContextEndsWhileItWaits) { WaitAndLose(Loss::kContext); }
TEST_P(LostGpuTest, ResetWhileItWaits) { WaitAndLose(Loss::kReset); }
TEST_P(LostGpuTest, ResetWhileItIsSent) { SendAndLose(Loss::kReset); }
TEST_P(LostGpuTest, ResetWhileItReceives) { ReceiveAndLose(Loss::kReset); }

// A driver that says nothing of the memory: it counts as the host's, where no
// CPU can read it.
TEST_P(LostGpuTest, RegisteredAfterAReset) {
  char* const at = Gpu::Get().Alloc(kSize);
  Break(214);
  EXPECT_EQ(rcs_register_buffer(at, kSize), 0);
  rcs_sent sent{};
  EXPECT_EQ(rcs_send_registered(one_, at, kSize, 0, &sent), -1);
  EXPECT_EQ(errno, EFAULT);
  ASSERT_EQ(rcs_send(one_, "x", 1, 0), 1);
  EXPECT_EQ(rcs_recv_registered(other_, at, 1, 0), -1);
  EXPECT_EQ(errno, EFAULT);
  EXPECT_EQ(Receive(1), std::vector<char>({'x'}));
  rcs_exposure where{};
  EXPECT_EQ(rcs_expose(other_, at, kSize, &where), -1);
  EXPECT_EQ(errno, OnDevice() ? EFAULT : ESTALE);
  EXPECT_EQ(rcs_unregister_buffer(at, kSize), 0);
  Break(0);
  Gpu::Get().Free(at);
}

}  // namespace
}  // namespace gpu_test
