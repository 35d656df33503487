// What rcsock.h has beyond POSIX, and a program that makes plain calls too.

#include <arpa/inet.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <rcsock/rcsock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string>
#include <thread>
#include <vector>

namespace {

// In a guest (rdma_test.sh), the device's.
const char* Address() {
  const char* rdma = std::getenv("RDMA_IP");
  return rdma != nullptr ? rdma : "127.0.0.1";
}
bool Rdma() { return std::getenv("RDMA_IP") != nullptr; }

class ControlTest : public testing::Test {
 protected:
  void SetUp() override {
    listener_ = rcs_socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = inet_addr(Address());
    ASSERT_EQ(rcs_bind(listener_, reinterpret_cast<sockaddr*>(&address),
                       sizeof address),
              0);
    ASSERT_EQ(rcs_listen(listener_, 5), 0);
  }

  void Connect() {
    sockaddr_in address{};
    socklen_t size = sizeof address;
    ASSERT_EQ(rcs_getsockname(listener_, reinterpret_cast<sockaddr*>(&address),
                              &size),
              0);
    one_ = rcs_socket(AF_INET, SOCK_STREAM, 0);
    ASSERT_EQ(rcs_connect(one_, reinterpret_cast<sockaddr*>(&address), size),
              0);
    other_ = rcs_accept(listener_, nullptr, nullptr);
    ASSERT_GE(other_, 0);
  }

  void TearDown() override {
    for (int fd : {one_, other_, listener_}) {
      if (fd >= 0) {
        EXPECT_EQ(rcs_close(fd), 0);
      }
    }
  }

  void PingPong() {
    char byte = 'x';
    ASSERT_EQ(rcs_send(one_, &byte, 1, 0), 1);
    ASSERT_EQ(rcs_recv(other_, &byte, 1, 0), 1);
    ASSERT_EQ(rcs_send(other_, &byte, 1, 0), 1);
    ASSERT_EQ(rcs_recv(one_, &byte, 1, 0), 1);
  }

  // Until both are on a lane; false after 20 s.
  bool Promoted() {
    const time_t end = time(nullptr) + 20;
    const int lane = Rdma() ? RCS_RDMA : RCS_SHM;
    while (rcs_get_lane(one_) != lane || rcs_get_lane(other_) != lane) {
      PingPong();
      if (HasFatalFailure() || time(nullptr) > end) return false;
    }
    return true;
  }

  // Until neither looks for one any more.
  void Settle() {
    for (int i = 0; i < 2000; ++i) PingPong();
  }

  int listener_ = -1;
  int one_ = -1;
  int other_ = -1;
};

// (Descriptors that are none: ErrorsTest.OwnCalls.)
TEST_F(ControlTest, WrongArguments) {
  EXPECT_EQ(rcs_promote(listener_), -1);
  EXPECT_EQ(errno, ENOTCONN);
  EXPECT_EQ(rcs_get_stream_info(listener_, nullptr, 8), -1);
  EXPECT_EQ(errno, EFAULT);
  EXPECT_EQ(rcs_set_policy(listener_, 77), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(rcs_register_buffer(nullptr, 8), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(rcs_version(), RCSOCK_VERSION);
}

TEST_F(ControlTest, LaneReasonAndCounts) {
  Connect();
  EXPECT_EQ(rcs_get_lane(one_), RCS_TCP);
  EXPECT_STREQ(rcs_get_reason(one_), "short_lived");
  ASSERT_TRUE(Promoted());
  EXPECT_STREQ(rcs_get_reason(one_), "none");
  rcs_stream_info before{};
  ASSERT_EQ(rcs_get_stream_info(one_, &before, sizeof before),
            static_cast<int>(sizeof before));
  PingPong();
  rcs_stream_info info{};
  ASSERT_EQ(rcs_get_stream_info(one_, &info, sizeof info),
            static_cast<int>(sizeof info));
  EXPECT_EQ(info.lane, RCS_SHM);
  EXPECT_EQ(info.tx_bytes, before.tx_bytes + 1);
  EXPECT_EQ(info.lane_tx_bytes, before.lane_tx_bytes + 1);
  EXPECT_EQ(info.rx_bytes, before.rx_bytes + 1);
  EXPECT_LT(info.lane_tx_bytes, info.tx_bytes);
  // A caller that knows less of it gets less.
  rcs_stream_info part{};
  part.policy = 77;
  EXPECT_EQ(rcs_get_stream_info(one_, &part, 4), 4);
  EXPECT_EQ(part.lane, RCS_SHM);
  EXPECT_EQ(part.policy, 77);
  rcs_process_info process{};
  ASSERT_EQ(rcs_get_process_info(&process, sizeof process),
            static_cast<int>(sizeof process));
  EXPECT_GE(process.promoted, 2u);
  EXPECT_GE(process.lanes[RCS_SHM].tx_bytes, 2u);
}

TEST_F(ControlTest, DemoteAndPromote) {
  Connect();
  ASSERT_TRUE(Promoted());
  ASSERT_EQ(rcs_demote(one_, 5000), 0) << std::strerror(errno);
  EXPECT_EQ(rcs_get_lane(one_), RCS_TCP);
  EXPECT_STREQ(rcs_get_reason(one_), "policy");
  PingPong();
  rcs_stream_info info{};
  ASSERT_GT(rcs_get_stream_info(one_, &info, sizeof info), 0);
  EXPECT_EQ(info.demotions, 1u);
  ASSERT_EQ(rcs_promote(one_), 0) << std::strerror(errno);
  ASSERT_EQ(rcs_promote(other_), 0) << std::strerror(errno);
  EXPECT_TRUE(Promoted()) << rcs_get_reason(one_);
}

TEST_F(ControlTest, PolicyTcp) {
  ASSERT_EQ(rcs_set_policy(listener_, RCS_POLICY_TCP), 0);
  Connect();
  EXPECT_EQ(rcs_get_policy(other_), RCS_POLICY_TCP);
  EXPECT_EQ(rcs_get_policy(one_), RCS_POLICY_AUTO);
  Settle();
  EXPECT_EQ(rcs_get_lane(one_), RCS_TCP);
  EXPECT_STREQ(rcs_get_reason(other_), "policy");
  EXPECT_EQ(rcs_promote(other_), -1);
  EXPECT_EQ(errno, EPERM);
  ASSERT_EQ(rcs_set_policy(other_, RCS_POLICY_AUTO), 0);
  ASSERT_EQ(rcs_promote(other_), 0) << rcs_get_reason(other_);
  ASSERT_EQ(rcs_promote(one_), 0) << rcs_get_reason(one_);
  EXPECT_TRUE(Promoted()) << rcs_get_reason(one_) << rcs_get_reason(other_);
  // And back, from a lane.
  ASSERT_EQ(rcs_set_policy(one_, RCS_POLICY_TCP), 0);
  EXPECT_EQ(rcs_get_lane(one_), RCS_TCP);
  PingPong();
}

TEST_F(ControlTest, PolicyEager) {
  ASSERT_EQ(rcs_set_policy(listener_, RCS_POLICY_EAGER), 0);
  Connect();
  ASSERT_EQ(rcs_set_policy(one_, RCS_POLICY_EAGER), 0);
  for (int i = 0; i < 2; ++i) PingPong();
  // Two calls each way are too few for the default; so these looked early.
  EXPECT_NE(std::string(rcs_get_reason(one_)), "short_lived");
  EXPECT_TRUE(Promoted());
}

// Bytes that plain calls have moved are noticed before the stream would leave
// TCP: it stays there, where all calls see the same bytes.
TEST_F(ControlTest, PlainCallsFirst) {
  Connect();
  char text[8] = "plain";
  ASSERT_EQ(::write(one_, text, 6), 6);
  ASSERT_EQ(rcs_read(other_, text, 6), 6);
  const time_t end = time(nullptr) + 20;
  while (std::string(rcs_get_reason(one_)) != "pinned_syscall" &&
         time(nullptr) <= end) {
    PingPong();
  }
  EXPECT_STREQ(rcs_get_reason(one_), "pinned_syscall");
  Settle();
  EXPECT_EQ(rcs_get_lane(one_), RCS_TCP);
  ASSERT_EQ(::write(one_, text, 6), 6);
  ASSERT_EQ(::read(other_, text, 6), 6);
  EXPECT_STREQ(text, "plain");
}

// O_NONBLOCK and time-outs may be set by plain calls.
TEST_F(ControlTest, PlainOptions) {
  Connect();
  ASSERT_TRUE(Promoted());
  char byte;
  ASSERT_EQ(::fcntl(one_, F_SETFL, O_NONBLOCK), 0);
  EXPECT_EQ(rcs_recv(one_, &byte, 1, 0), -1);
  EXPECT_EQ(errno, EAGAIN);
  sockaddr_in name{};
  socklen_t size = sizeof name;
  EXPECT_EQ(::getpeername(one_, reinterpret_cast<sockaddr*>(&name), &size), 0);
}

// fork() is plain here, and followed all the same.
TEST_F(ControlTest, Fork) {
  Connect();
  ASSERT_TRUE(Promoted());
  const pid_t child = ::fork();
  if (child == 0) {
    char byte = 0;
    const bool ok = rcs_recv(other_, &byte, 1, 0) == 1 && byte == 'f' &&
                    rcs_send(other_, &byte, 1, 0) == 1;
    ::_exit(ok ? 0 : 1);
  }
  char byte = 'f';
  ASSERT_EQ(rcs_send(one_, &byte, 1, 0), 1);
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  ASSERT_EQ(rcs_recv(one_, &byte, 1, 0), 1);
  EXPECT_EQ(byte, 'f');
}

// The child finds memory named or not, and the list of it whole and free.
TEST_F(ControlTest, ForkBesideRegistering) {
  std::vector<char> memory(1 << 16);
  std::atomic<bool> over{false};
  std::thread other([&] {
    while (!over.load()) {
      EXPECT_EQ(rcs_register_buffer(memory.data(), memory.size()), 0);
      EXPECT_EQ(rcs_unregister_buffer(memory.data(), memory.size()), 0);
    }
  });
  for (int i = 0; i < 300; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      const auto name = [&] {
        return rcs_register_buffer(memory.data(), memory.size());
      };
      const auto forget = [&] {
        return rcs_unregister_buffer(memory.data(), memory.size());
      };
      const bool was = forget() == 0 || errno == ENOENT;
      const bool again =
          name() == 0 && name() == -1 && errno == EEXIST && forget() == 0;
      ::_exit(was && again ? 0 : 1);
    }
    int status = -1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0) << i;
  }
  over.store(true);
  other.join();
}

// What the engine opens for itself stays out of the program's numbers.
TEST_F(ControlTest, LowNumbersAreThePrograms) {
  Connect();
  const int before = ::dup(0);
  ::close(before);
  ASSERT_TRUE(Promoted());
  const int after = ::dup(0);
  EXPECT_EQ(after, before);
  ::close(after);
}

// Bytes sent from registered memory, which is used again as soon as it may be.
class RegisteredTest : public ControlTest {
 protected:
  void Fill(int round) {
    for (std::size_t i = 0; i < from_.size(); ++i) {
      from_[i] = static_cast<char>(static_cast<std::size_t>(round) * 7 +
                                   i * 13 + i / 251);
    }
  }
  void SetUp() override {
    ControlTest::SetUp();
    ASSERT_EQ(rcs_register_buffer(from_.data(), from_.size()), 0);
  }
  // Sends it, and looks at what comes; what is kept of it in *sent.
  void SendOne(int round, rcs_sent* sent) {
    Fill(round);
    const std::vector<char> copy = from_;
    std::thread send([&] {
      const ssize_t n =
          rcs_send_registered(one_, from_.data(), from_.size(), 0, sent);
      EXPECT_EQ(n, static_cast<ssize_t>(from_.size())) << std::strerror(errno);
    });
    std::vector<char> got(from_.size());
    ASSERT_EQ(rcs_recv(other_, got.data(), got.size(), MSG_WAITALL),
              static_cast<ssize_t>(got.size()));
    send.join();
    ASSERT_EQ(got, copy) << round;
  }
  bool Done(rcs_sent* sent) {
    const time_t end = time(nullptr) + 20;
    int done;
    while ((done = rcs_sent_done(one_, sent, 1)) == 0) {
      if (time(nullptr) > end) return false;
    }
    return done == 1;
  }
  std::vector<char> from_ = std::vector<char>(1'000'000);
};

TEST_F(RegisteredTest, Registered) {
  Connect();
  rcs_sent sent{};
  // On TCP: copied, and done.
  SendOne(1, &sent);
  EXPECT_EQ(rcs_sent_done(one_, &sent, 0), 1);
  EXPECT_EQ(sent.copied, 1u);
  ASSERT_TRUE(Promoted()) << rcs_get_reason(one_);
  int pending = 0;
  for (int round = 2; round < 30; ++round) {
    SendOne(round, &sent);
    if (HasFatalFailure()) return;
    pending += sent.lane != 0;
    ASSERT_TRUE(Done(&sent));
  }
  // On shared memory it is copied; an RDMA device reads it.
  EXPECT_EQ(pending, Rdma() ? 28 : 0);
  // Taken by the peer, and said so: nothing was copied.
  if (Rdma()) {
    SendOne(30, &sent);
    ASSERT_EQ(rcs_shutdown(other_, SHUT_WR), 0);
    char byte;
    ASSERT_EQ(rcs_recv(one_, &byte, 1, 0), 0);
    ASSERT_TRUE(Done(&sent));
  }
  EXPECT_EQ(rcs_unregister_buffer(from_.data(), from_.size()), 0);
  EXPECT_EQ(rcs_send_registered(one_, from_.data(), 10, 0, &sent), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(rcs_send_registered(one_, from_.data(), 10, 0, nullptr), -1);
  EXPECT_EQ(errno, EFAULT);
}

// Whatever the lane is, and whichever way the bytes came.
TEST_F(ControlTest, RecvRegistered) {
  Connect();
  ASSERT_TRUE(Promoted()) << rcs_get_reason(one_);
  std::vector<char> from(1'000'000), to(1'100'000, '-');
  for (std::size_t i = 0; i < from.size(); ++i) {
    from[i] = static_cast<char>(i * 7 + i / 255);
  }
  ASSERT_EQ(rcs_register_buffer(to.data(), to.size()), 0);
  for (const int flags : {0, static_cast<int>(MSG_WAITALL)}) {
    for (int round = 0; round < 10; ++round) {
      std::size_t got = 0;
      std::thread send([&] {
        std::size_t sent = 0;
        while (sent < from.size()) {
          const ssize_t n =
              rcs_send(one_, from.data() + sent, from.size() - sent, 0);
          ASSERT_GT(n, 0) << std::strerror(errno);
          sent += static_cast<std::size_t>(n);
        }
      });
      while (got < from.size()) {
        const ssize_t n = rcs_recv_registered(other_, to.data() + got,
                                              from.size() - got, flags);
        ASSERT_GT(n, 0) << std::strerror(errno);
        got += static_cast<std::size_t>(n);
      }
      send.join();
      ASSERT_EQ(std::memcmp(to.data(), from.data(), from.size()), 0) << round;
      std::fill(to.begin(), to.end(), '-');
    }
  }
  EXPECT_EQ(rcs_recv_registered(other_, from.data(), 10, 0), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(rcs_recv_registered(other_, to.data(), to.size() + 1, 0), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(rcs_recv_registered(other_, nullptr, 10, 0), -1);
  EXPECT_EQ(errno, EFAULT);
  EXPECT_EQ(rcs_unregister_buffer(to.data(), to.size()), 0);
}

TEST_F(ControlTest, DirectPlacement) {
  Connect();
  ASSERT_TRUE(Promoted()) << rcs_get_reason(one_);
  std::vector<char> from(100'000, 'f'), to(100'000, 't');
  rcs_exposure where{};
  if (!Rdma()) {
    EXPECT_EQ(rcs_expose(other_, to.data(), to.size(), &where), -1);
    EXPECT_EQ(errno, ESTALE);
    where = {1000, 1000, 1, 1};
    EXPECT_EQ(rcs_place(one_, &where, 0, from.data(), 10), -1);
    EXPECT_EQ(errno, ESTALE);
    EXPECT_EQ(rcs_placed(one_, &where, 1), -1);
    EXPECT_EQ(errno, ESTALE);
  } else {
    ASSERT_EQ(rcs_expose(other_, to.data(), to.size(), &where), 0);
    EXPECT_EQ(rcs_place(one_, &where, 0, from.data(), 10), -1);
    EXPECT_EQ(errno, ENOBUFS);
    ASSERT_EQ(rcs_register_buffer(from.data(), from.size()), 0);
    const std::int64_t ticket =
        rcs_place(one_, &where, 10, from.data(), from.size() - 10);
    ASSERT_GT(ticket, 0) << std::strerror(errno);
    PingPong();
    EXPECT_EQ(std::string(to.data(), 10), std::string(10, 't'));
    EXPECT_TRUE(std::equal(to.begin() + 10, to.end(), from.begin() + 10));
    int there;
    const time_t end = time(nullptr) + 20;
    while ((there = rcs_placed(one_, &where, ticket)) == 0 &&
           time(nullptr) < end) {
    }
    EXPECT_EQ(there, 1);
    ASSERT_EQ(rcs_hide(other_, &where), 0);
    ASSERT_EQ(rcs_unregister_buffer(from.data(), from.size()), 0);
  }
  EXPECT_EQ(rcs_place(one_, &where, 1, from.data(), where.length), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(rcs_place(one_, &where, ~0ull, from.data(), 2), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(rcs_place(one_, nullptr, 0, from.data(), 2), -1);
  EXPECT_EQ(errno, EFAULT);
  EXPECT_EQ(rcs_placed(one_, &where, 0), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(rcs_expose(other_, to.data(), 0, &where), -1);
  EXPECT_EQ(errno, EINVAL);
}

// In a guest, where the link can be cut while TCP to the own address goes on.
class CutTest : public RegisteredTest {};

TEST_F(CutTest, RegisteredBytesGoOnOverTcp) {
  const char* guest = std::getenv("IN_GUEST");
  if (!Rdma() || guest == nullptr || *guest == '\0') GTEST_SKIP();
  Connect();
  ASSERT_TRUE(Promoted()) << rcs_get_reason(one_);
  rcs_sent sent{};
  SendOne(1, &sent);
  ASSERT_TRUE(Done(&sent));
  ASSERT_EQ(std::system("ip link set net0 down"), 0);
  SendOne(2, &sent);
  ASSERT_TRUE(Done(&sent));
  EXPECT_EQ(rcs_get_lane(one_), RCS_TCP);
  SendOne(3, &sent);
  EXPECT_EQ(sent.lane, 0u);
  EXPECT_EQ(rcs_unregister_buffer(from_.data(), from_.size()), 0);
}

}  // namespace
