// rsocket's writes into the peer's memory.

#include <gtest/gtest.h>
#include <rcsock/rcsock.h>
#include <rcsock/rsocket.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <thread>
#include <vector>

#include "tests/capi/rsocket_pair.h"

namespace {

TEST_F(RsocketTest, WritesOnALane) {
  Connect(4);
  // From TCP to the lane while it writes, then on the lane.
  WriteAndLook();
  ASSERT_TRUE(Promoted()) << rcs_get_reason(one_);
  WriteAndLook();
  // (What comes too late for a mapping may end an RDMA lane.)
  if (!Rdma()) {
    EXPECT_EQ(rcs_get_lane(one_), RCS_SHM) << rcs_get_reason(one_);
  }
}

TEST_F(RsocketTest, WritesAreDirectOnALane) {
  Connect(4);
  ASSERT_TRUE(Promoted()) << rcs_get_reason(one_);
  std::vector<unsigned char> memory(300'000), from(memory.size());
  ASSERT_TRUE(MapUntilDirect(&memory));
  const std::uint64_t before = Sent();
  for (int round = 1; round < 40; ++round) {
    std::fill(from.begin(), from.end(), static_cast<unsigned char>(round));
    ASSERT_EQ(riowrite(one_, from.data(), from.size(), 0, 0), from.size());
    // The last of several wins.
    from[7] = 99;
    ASSERT_EQ(riowrite(one_, from.data() + 7, 1, 7, 0), 1u);
    Sync();
    ASSERT_EQ(memory, from) << round;
  }
  EXPECT_LT(Sent() - before, from.size());
}

// A lane is left before anybody has asked whether what was placed is there:
// what the peer's program has made of it since stays.
TEST_F(RsocketTest, WritesComeOnce) {
  Connect(4);
  ASSERT_TRUE(Promoted()) << rcs_get_reason(one_);
  std::vector<unsigned char> memory(100'000);
  ASSERT_TRUE(MapUntilDirect(&memory));
  // Before it is freed: the device may still write there.
  const Unmapped at_the_end{this, &memory};
  Sync();
  constexpr int kRounds = 4;
  int rounds = 0;
  for (unsigned char round = 100; rounds < kRounds; ++round) {
    SCOPED_TRACE(int{round});
    // (A lane may be lost at any time; then it is the stream that has written.)
    ASSERT_LT(round, 100 + 5 * kRounds);
    const std::vector<unsigned char> from(memory.size(), round);
    const std::uint64_t before = Sent();
    ASSERT_EQ(riowrite(one_, from.data(), from.size(), 0, 0), from.size());
    if (Sent() - before < from.size()) {
      ++rounds;
      const time_t end = std::time(nullptr) + 20;
      volatile unsigned char* const last = &memory.back();
      while (*last != round && std::time(nullptr) < end) ::sched_yield();
      ASSERT_EQ(*last, round);
      std::fill(memory.begin(), memory.end(), 1);
      ASSERT_EQ(rcs_demote(one_, -1), 0) << std::strerror(errno);
      Sync();
      EXPECT_EQ(memory, std::vector<unsigned char>(memory.size(), 1));
      // And the next one comes, by whichever way, with the last of its bytes.
      ASSERT_EQ(riowrite(one_, from.data(), from.size(), 0, 0), from.size());
    }
    Sync();
    EXPECT_EQ(memory, from);
    ASSERT_EQ(rcs_promote(one_), 0) << std::strerror(errno);
    ASSERT_TRUE(Promoted()) << rcs_get_reason(one_);
    ASSERT_EQ(riounmap(other_, memory.data(), memory.size()), 0);
    ASSERT_TRUE(MapUntilDirect(&memory));
    Sync();
  }
}

// In a guest, where the link can be cut: TCP to the own address goes on.
class CutTest : public RsocketTest {
 protected:
  // With `silent`, nobody calls anything after that.
  void CutAndLook(bool silent) {
    const char* guest = std::getenv("IN_GUEST");
    if (!Rdma() || guest == nullptr || *guest == '\0') GTEST_SKIP();
    Connect(4);
    ASSERT_TRUE(Promoted()) << rcs_get_reason(one_);
    std::vector<unsigned char> memory(300'000), from(memory.size());
    ASSERT_TRUE(MapUntilDirect(&memory));
    Sync();
    ASSERT_EQ(std::system("ip link set net0 down"), 0);
    std::fill(from.begin(), from.end(), static_cast<unsigned char>(7));
    ASSERT_EQ(riowrite(one_, from.data(), from.size(), 0, 0), from.size());
    if (!silent) {
      // What is sent later is read later.
      Sync();
      ASSERT_EQ(memory, from);
    } else {
      const time_t end = std::time(nullptr) + 20;
      volatile unsigned char* const last = &memory.back();
      while (*last != 7 && std::time(nullptr) < end) ::sched_yield();
      Sync();
      ASSERT_EQ(memory, from);
    }
    EXPECT_EQ(rcs_get_lane(one_), RCS_TCP);
  }
};

TEST_F(CutTest, WritesComeBeforeWhatIsSentLater) { CutAndLook(false); }
TEST_F(CutTest, WritesComeUnasked) { CutAndLook(true); }

TEST_F(RsocketTest, WritesOverTcp) {
  Connect(4, RCS_POLICY_TCP);
  WriteAndLook();
  EXPECT_EQ(rcs_get_lane(one_), RCS_TCP);
}

TEST_F(RsocketTest, MapsAreCounted) {
  Connect(2);
  char memory[300];
  EXPECT_EQ(riomap(other_, memory, 100, PROT_WRITE, 0, 0), 0);
  EXPECT_EQ(riomap(other_, memory + 100, 100, PROT_WRITE, 0, 50), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(riomap(other_, memory + 100, 100, PROT_WRITE, 0, -1),
            static_cast<off_t>(reinterpret_cast<std::uintptr_t>(memory + 100)));
  EXPECT_EQ(riomap(other_, memory + 200, 100, PROT_WRITE, 0, 500), -1);
  EXPECT_EQ(errno, ENOBUFS);
  EXPECT_EQ(riomap(other_, memory, 100, PROT_EXEC, 0, 0), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(riomap(-1, memory, 100, PROT_WRITE, 0, 0), -1);
  EXPECT_EQ(errno, EBADF);
}

// The thread that takes what the peer writes into our memory holds latches most
// of the time.
TEST_F(RsocketTest, AChildOfForkFindsNoLatchTaken) {
  Connect(1, RCS_POLICY_TCP);
  std::vector<unsigned char> memory(1 << 20);
  ASSERT_EQ(riomap(other_, memory.data(), memory.size(), PROT_WRITE, 0, 0), 0);
  Sync();
  std::atomic<bool> done{false};
  std::thread writer([&] {
    std::vector<unsigned char> from(65536, 1);
    while (!done) {
      EXPECT_EQ(riowrite(one_, from.data(), from.size(), 0, 0), from.size());
    }
  });
  for (int i = 0; i < 40; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(10);
      rclose(other_);
      ::_exit(0);
    }
    int status = -1;
    ::waitpid(child, &status, 0);
    ASSERT_EQ(status, 0) << "child " << i;
  }
  done = true;
  writer.join();
  EXPECT_EQ(riounmap(other_, memory.data(), memory.size()), 0);
}

}  // namespace
