// Who holds the RDMA port of a service, and who is found there.  Needs a
// device: $RDMA_IP is its address (see tests/guest).

#include <fcntl.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "tests/rendezvous/rdma_util.h"

namespace rcsock::rendezvous {
namespace {

using base::Reason;

// Servers that share a port: whoever accepts a connection is found, whichever
// of them holds the RDMA port.
TEST_F(RdmaTest, Prefork) {
  constexpr int kChildren = 3;
  constexpr int kEach = 2;
  sockaddr_in address = DeviceAddress();
  const int listener = Listen(&address);
  Barrier barriers[kChildren];
  std::vector<pid_t> children;
  for (auto& barrier : barriers) {
    children.push_back(Spawn([&] {
      Conductor* conductor = GetConductor();
      std::vector<std::shared_ptr<TestSeeker>> mine;
      for (int k = 0; k < kEach; ++k) {
        const int fd = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
        mine.push_back(AcceptorSeeker(fd));
        ASSERT_TRUE(barrier.Meet(0));
      }
      for (auto& seeker : mine) seeker->Start(conductor);
      for (auto& seeker : mine) {
        if (!seeker->Wait() && !seeker->Meet(conductor)) {
          ADD_FAILURE() << base::ReasonKey(seeker->failed);
          return;
        }
      }
      for (auto& seeker : mine) UseLane(seeker.get());
      EXPECT_TRUE(barrier.Meet(0));
    }));
  }
  const pid_t client = Spawn([&] {
    Conductor* conductor = GetConductor();
    std::vector<std::shared_ptr<TestSeeker>> all;
    for (int i = 0; i < kChildren * kEach; ++i) {
      all.push_back(ConnectorSeeker(Connect(address)));
    }
    // Each child has accepted one, then another: in some order.
    for (int k = 0; k < kEach; ++k) {
      for (auto& barrier : barriers) ASSERT_TRUE(barrier.Meet(1));
    }
    for (auto& seeker : all) seeker->Start(conductor);
    for (auto& seeker : all) {
      if (!seeker->Wait() && !seeker->Meet(conductor)) {
        ADD_FAILURE() << base::ReasonKey(seeker->failed);
        return;
      }
    }
    for (auto& seeker : all) UseLane(seeker.get());
    for (auto& barrier : barriers) EXPECT_TRUE(barrier.Meet(1));
  });
  ExpectSuccess(client);
  for (pid_t child : children) ExpectSuccess(child);
}

// The same with a listener for each, by SO_REUSEPORT: nobody knows beforehand
// who gets which connection, and nothing is inherited.
TEST_F(RdmaTest, ReusePortGroup) {
  constexpr int kMembers = 3;
  constexpr int kConnections = 12;
  sockaddr_in address = DeviceAddress();
  // Keeps the number for them, and gets no connections.
  const int bound = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int one = 1;
  ::setsockopt(bound, SOL_SOCKET, SO_REUSEPORT, &one, sizeof one);
  socklen_t length = sizeof address;
  ASSERT_EQ(::bind(bound, reinterpret_cast<sockaddr*>(&address), length), 0);
  ::getsockname(bound, reinterpret_cast<sockaddr*>(&address), &length);
  Barrier barriers[kMembers];
  std::vector<pid_t> members;
  for (auto& barrier : barriers) {
    members.push_back(Spawn([&] {
      const int listener = Listen(&address, true);
      ASSERT_TRUE(barrier.Meet(0));
      ASSERT_TRUE(barrier.Meet(0));  // all have connected
      ::fcntl(listener, F_SETFL, O_NONBLOCK);
      Conductor* conductor = GetConductor();
      std::vector<std::shared_ptr<TestSeeker>> mine;
      for (;;) {
        const int fd = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
        if (fd < 0) break;
        mine.push_back(AcceptorSeeker(fd));
        mine.back()->Start(conductor);
      }
      EXPECT_EQ(errno, EAGAIN);
      for (auto& seeker : mine) {
        if (!seeker->Wait() && !seeker->Meet(conductor)) {
          ADD_FAILURE() << base::ReasonKey(seeker->failed);
          return;
        }
      }
      for (auto& seeker : mine) UseLane(seeker.get());
      EXPECT_TRUE(barrier.Meet(0));
    }));
  }
  const pid_t client = Spawn([&] {
    for (auto& barrier : barriers) ASSERT_TRUE(barrier.Meet(1));
    std::vector<std::shared_ptr<TestSeeker>> all;
    for (int i = 0; i < kConnections; ++i) {
      all.push_back(ConnectorSeeker(Connect(address)));
    }
    for (auto& barrier : barriers) ASSERT_TRUE(barrier.Meet(1));
    Conductor* conductor = GetConductor();
    for (auto& seeker : all) seeker->Start(conductor);
    for (auto& seeker : all) {
      if (!seeker->Wait() && !seeker->Meet(conductor)) {
        ADD_FAILURE() << base::ReasonKey(seeker->failed);
        return;
      }
    }
    for (auto& seeker : all) UseLane(seeker.get());
    for (auto& barrier : barriers) EXPECT_TRUE(barrier.Meet(1));
  });
  ExpectSuccess(client);
  for (pid_t member : members) ExpectSuccess(member);
  ::close(bound);
}

// The process that holds the port dies; another takes it over.
TEST_F(RdmaTest, AnotherTakesTheDirectoryOver) {
  const TcpPair first = MakeDevicePair();
  const TcpPair second = MakeDevicePair(TcpPortOf(first));
  const TcpPair third = MakeDevicePair(TcpPortOf(first));
  Barrier held;
  const pid_t holder = Spawn([&] {
    auto seeker = AcceptorSeeker(first.acceptor);
    EXPECT_FALSE(seeker->Seek(GetConductor()));
    held.Meet(0);
    ::pause();
  });
  ASSERT_TRUE(held.Meet(1));  // it holds the port
  Barrier met;
  const pid_t server = Spawn([&] {
    auto seeker = AcceptorSeeker(second.acceptor);
    ASSERT_TRUE(seeker->Meet(GetConductor()))
        << base::ReasonKey(seeker->failed);
    UseLane(seeker.get());
    EXPECT_TRUE(met.Meet(0));
    EXPECT_TRUE(met.Meet(0));
    auto late = AcceptorSeeker(third.acceptor);
    ASSERT_TRUE(late->Meet(GetConductor())) << base::ReasonKey(late->failed);
    UseLane(late.get());
    EXPECT_TRUE(met.Meet(0));
  });
  const pid_t client = Spawn([&] {
    auto seeker = ConnectorSeeker(second.connector);
    ASSERT_TRUE(seeker->Meet(GetConductor()))
        << base::ReasonKey(seeker->failed);
    UseLane(seeker.get());
    EXPECT_TRUE(met.Meet(1));
    ::kill(holder, SIGKILL);
    EXPECT_TRUE(met.Meet(1));
    auto late = ConnectorSeeker(third.connector);
    ASSERT_TRUE(late->Meet(GetConductor())) << base::ReasonKey(late->failed);
    UseLane(late.get());
    EXPECT_TRUE(met.Meet(1));
  });
  ExpectSuccess(client);
  ExpectSuccess(server);
  ExpectKilled(holder);
}

// The process that holds the port dies with the REQ in its hands, and the
// kernel answers for it; the connector finds the one that comes after it.
TEST_F(RdmaTest, TheHolderDiesWithTheRequest) {
  const TcpPair pair = MakeDevicePair();
  Barrier held;
  const pid_t holder = Spawn([&] {
    RawCm raw;
    ASSERT_TRUE(raw.Listen(ServicePortOf(pair))) << errno;
    EXPECT_TRUE(held.Meet(0));
    EXPECT_TRUE(raw.Expect(RDMA_CM_EVENT_CONNECT_REQUEST));
    ::raise(SIGKILL);
  });
  ASSERT_TRUE(held.Meet(1));
  const pid_t client = Spawn([&] {
    auto seeker = ConnectorSeeker(pair.connector);
    ASSERT_TRUE(seeker->Meet(GetConductor()))
        << base::ReasonKey(seeker->failed);
    UseLane(seeker.get());
  });
  ExpectKilled(holder);
  const pid_t server = Spawn([&] {
    auto seeker = AcceptorSeeker(pair.acceptor);
    ASSERT_TRUE(seeker->Meet(GetConductor()))
        << base::ReasonKey(seeker->failed);
    UseLane(seeker.get());
  });
  ExpectSuccess(client);
  ExpectSuccess(server);
}

// A process of another user holds the port.  (For as long as this one looks: it
// would give up a port that it has not needed for five seconds, which is how
// long this one waits.)
TEST_F(RdmaTest, ForeignHolder) {
  if (::geteuid() != 0) GTEST_SKIP() << "not root";
  const TcpPair pair = MakeDevicePair();
  const TcpPair other = MakeDevicePair(TcpPortOf(pair));
  Barrier held;
  const pid_t holder = Spawn([&] {
    ASSERT_EQ(::setgid(65534), 0);
    ASSERT_EQ(::setuid(65534), 0);
    Conductor* conductor = GetConductor();
    auto s = AcceptorSeeker(pair.acceptor);
    EXPECT_FALSE(s->Seek(conductor));
    EXPECT_EQ(s->failed, Reason::kPeerPlain) << base::ReasonKey(s->failed);
    std::atomic<bool> needed{true};
    std::thread other_end([&] {
      EXPECT_TRUE(held.Meet(0));
      EXPECT_TRUE(held.Meet(0));
      needed = false;
    });
    while (needed) EXPECT_FALSE(s->Seek(conductor));
    other_end.join();
  });
  const pid_t server = Spawn([&] {
    EXPECT_TRUE(held.Meet(1));
    auto s = AcceptorSeeker(other.acceptor);
    EXPECT_FALSE(s->Seek(GetConductor()));
    EXPECT_EQ(s->failed, Reason::kPeerUid) << base::ReasonKey(s->failed);
    EXPECT_TRUE(held.Meet(1));
  });
  ExpectSuccess(holder);
  ExpectSuccess(server);
}

// siw ends a listener when a connection ends that it has not accepted yet: who
// looks for open ports on this host makes such.  False: it is still there.
bool HaveListenerEnded(std::uint16_t port) {
  const sockaddr_in service = DeviceAddress(port);
  for (int i = 0; i < 1000; ++i) {
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const bool ended =
        ::connect(fd, reinterpret_cast<const sockaddr*>(&service),
                  sizeof service) != 0;
    ::close(fd);
    if (ended) return true;
  }
  return false;
}

TEST_F(RdmaTest, ListenerThatTheKernelEnds) {
  if (!OnIwarp()) GTEST_SKIP() << "not siw";
  ExpectSuccess(Spawn([] {
    Conductor* conductor = GetConductor();
    const TcpPair first = MakeDevicePair();
    const TcpPair second = MakeDevicePair(TcpPortOf(first));
    const auto meet = [&](const TcpPair& pair) {
      auto s = AcceptorSeeker(pair.acceptor);
      auto c = ConnectorSeeker(pair.connector);
      s->Start(conductor);
      ASSERT_TRUE(c->Meet(conductor)) << base::ReasonKey(c->failed);
      ASSERT_TRUE(s->Wait()) << base::ReasonKey(s->failed);
      SayThereAndBack(c.get(), s.get());
      conductor->ReturnLane(c, std::move(c->lane));
      conductor->ReturnLane(s, std::move(s->lane));
    };
    meet(first);
    if (!HaveListenerEnded(ServicePortOf(first))) {
      GTEST_SKIP() << "it has accepted them all";
    }
    meet(second);
  }));
}

// The same of one that has no connection of its own any more, but the port, by
// which those of another process are found.
TEST_F(RdmaTest, HoldersListenerThatTheKernelEnds) {
  if (!OnIwarp()) GTEST_SKIP() << "not siw";
  const TcpPair first = MakeDevicePair();
  const TcpPair second = MakeDevicePair(TcpPortOf(first));
  const auto meet = [](std::shared_ptr<TestSeeker> seeker) {
    ASSERT_TRUE(seeker->Meet(GetConductor()))
        << base::ReasonKey(seeker->failed);
    UseLane(seeker.get());
  };
  Barrier over;
  const pid_t holder = Spawn([&] {
    meet(AcceptorSeeker(first.acceptor));
    EXPECT_TRUE(over.Meet(0));
    EXPECT_TRUE(over.Meet(0));
  });
  Barrier deaf;
  const pid_t client = Spawn([&] {
    meet(ConnectorSeeker(first.connector));
    EXPECT_TRUE(deaf.Meet(0));
    EXPECT_TRUE(deaf.Meet(0));
    meet(ConnectorSeeker(second.connector));
  });
  ASSERT_TRUE(over.Meet(1));
  ASSERT_TRUE(deaf.Meet(1));
  const bool ended = HaveListenerEnded(ServicePortOf(first));
  EXPECT_TRUE(deaf.Meet(1));
  const pid_t server = Spawn([&] { meet(AcceptorSeeker(second.acceptor)); });
  ExpectSuccess(client);
  ExpectSuccess(server);
  EXPECT_TRUE(over.Meet(1));
  ExpectSuccess(holder);
  if (!ended) GTEST_SKIP() << "it has accepted them all";
}

}  // namespace
}  // namespace rcsock::rendezvous
