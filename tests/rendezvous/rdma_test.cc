// Rendezvous over rdma_cm.  Needs a device: $RDMA_IP is its address (see
// tests/guest).

#include <net/if.h>
#include <sys/prctl.h>

#include <fstream>

#include "tests/rendezvous/rdma_util.h"

namespace rcsock::rendezvous {
namespace {

using base::Reason;

void UseLane(TestSeeker* seeker) {
  EXPECT_EQ(seeker->lane->kind(), lane::Kind::kRdma);
  ExchangeNonces(seeker);
}

pid_t SpawnEnd(int fd, stream::Role role, Barrier* barrier) {
  return Spawn([=] {
    auto seeker = std::make_shared<TestSeeker>(fd, role);
    if (!seeker->Meet(GetConductor())) {
      ADD_FAILURE() << base::ReasonKey(seeker->failed);
      return;
    }
    UseLane(seeker.get());
    EXPECT_TRUE(barrier->Meet(static_cast<int>(role)));
  });
}

TEST_F(RdmaTest, TwoProcesses) {
  for (int round = 0; round < 3; ++round) {
    Barrier barrier;
    const TcpPair pair = MakeDevicePair();
    const pid_t a =
        SpawnEnd(pair.connector, stream::Role::kConnector, &barrier);
    const pid_t b = SpawnEnd(pair.acceptor, stream::Role::kAcceptor, &barrier);
    ExpectSuccess(a);
    ExpectSuccess(b);
    char byte;
    EXPECT_EQ(::recv(pair.connector, &byte, 1, MSG_DONTWAIT), -1);
    EXPECT_EQ(::recv(pair.acceptor, &byte, 1, MSG_DONTWAIT), -1);
    ::close(pair.connector);
    ::close(pair.acceptor);
  }
}

TEST_F(RdmaTest, OneProcessWithItself) {
  ExpectSuccess(Spawn([] {
    Conductor* conductor = GetConductor();
    for (int i = 0; i < 5; ++i) {
      const TcpPair pair = MakeDevicePair();
      auto c = ConnectorSeeker(pair.connector);
      auto s = AcceptorSeeker(pair.acceptor);
      s->Start(conductor);
      c->Start(conductor);
      ASSERT_TRUE(c->Wait()) << base::ReasonKey(c->failed);
      ASSERT_TRUE(s->Wait()) << base::ReasonKey(s->failed);
      EXPECT_EQ(c->epoch, s->epoch);
      EXPECT_EQ(c->mine, s->peers);
      EXPECT_EQ(s->mine, c->peers);
      EXPECT_FALSE(c->authenticated);
      EXPECT_FALSE(s->authenticated);
      SendAll(c->lane.get(), "there", 5);
      EXPECT_EQ(ReceiveAll(s->lane.get(), 5), "there");
      SendAll(s->lane.get(), "back", 4);
      EXPECT_EQ(ReceiveAll(c->lane.get(), 4), "back");
      conductor->ReturnLane(c, std::move(c->lane));
      conductor->ReturnLane(s, std::move(s->lane));
    }
  }));
}

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

// The process that holds the port dies; another takes it over.
TEST_F(RdmaTest, AnotherTakesTheDirectoryOver) {
  const TcpPair first = MakeDevicePair();
  sockaddr_in address{};
  socklen_t length = sizeof address;
  ::getsockname(first.acceptor, reinterpret_cast<sockaddr*>(&address), &length);
  const TcpPair second = MakeDevicePair(ntohs(address.sin_port));
  const TcpPair third = MakeDevicePair(ntohs(address.sin_port));
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

TEST_F(RdmaTest, PlainServer) {
  ExpectSuccess(Spawn([] {
    Conductor* conductor = GetConductor();
    const TcpPair pair = MakeDevicePair();
    auto c = ConnectorSeeker(pair.connector);
    const auto start = Clock::now();
    EXPECT_FALSE(c->Seek(conductor));
    EXPECT_EQ(c->failed, Reason::kPeerPlain);
    EXPECT_FALSE(c->final);
    // Nothing was said on TCP.
    char byte;
    EXPECT_EQ(::recv(pair.acceptor, &byte, 1, MSG_DONTWAIT), -1);
    EXPECT_EQ(errno, EAGAIN);
    // Again, while that is remembered.
    EXPECT_FALSE(c->Seek(conductor));
    EXPECT_EQ(c->failed, Reason::kPeerPlain);
    EXPECT_LT(Clock::now() - start, milliseconds(6000));
  }));
}

// The server is one of ours, but its end of this connection looks for nobody.
TEST_F(RdmaTest, NobodyWaits) {
  Barrier barrier;
  const TcpPair waiting = MakeDevicePair();
  sockaddr_in address{};
  socklen_t length = sizeof address;
  ::getsockname(waiting.acceptor, reinterpret_cast<sockaddr*>(&address),
                &length);
  const TcpPair other = MakeDevicePair(ntohs(address.sin_port));
  const pid_t server = Spawn([&] {
    auto s = AcceptorSeeker(waiting.acceptor);
    EXPECT_FALSE(s->Seek(GetConductor()));
    EXPECT_EQ(s->failed, Reason::kPeerPlain);
    EXPECT_TRUE(barrier.Meet(0));
    EXPECT_TRUE(barrier.Meet(0));
  });
  const pid_t client = Spawn([&] {
    EXPECT_TRUE(barrier.Meet(1));  // the port is held
    auto c = ConnectorSeeker(other.connector);
    EXPECT_FALSE(c->Seek(GetConductor()));
    EXPECT_EQ(c->failed, Reason::kTimeout);
    EXPECT_TRUE(barrier.Meet(1));
  });
  ExpectSuccess(client);
  ExpectSuccess(server);
}

// --- Keys

std::string WriteKey(const char* name, char fill) {
  const std::string path =
      std::string(::testing::TempDir()) + "/rcsock_key_" + name;
  std::ofstream(path) << std::string(40, fill);
  return path;
}

void UseKey(const std::string& path) {
  if (!path.empty()) ::setenv("RCSOCK_KEY_FILE", path.c_str(), 1);
  base::LoadConfig();
}

void MeetWithKeys(const std::string& c_key, const std::string& s_key,
                  bool success) {
  Barrier barrier;
  const TcpPair pair = MakeDevicePair();
  const pid_t server = Spawn([&] {
    UseKey(s_key);
    auto s = AcceptorSeeker(pair.acceptor);
    if (success) {
      ASSERT_TRUE(s->Meet(GetConductor())) << base::ReasonKey(s->failed);
      EXPECT_TRUE(s->authenticated);
      UseLane(s.get());
    } else {
      s->Start(GetConductor());
      s->Wait();
      EXPECT_EQ(s->failed, Reason::kPeerPlain);
    }
    EXPECT_TRUE(barrier.Meet(0));
  });
  const pid_t client = Spawn([&] {
    UseKey(c_key);
    auto c = ConnectorSeeker(pair.connector);
    if (success) {
      ASSERT_TRUE(c->Meet(GetConductor())) << base::ReasonKey(c->failed);
      EXPECT_TRUE(c->authenticated);
      UseLane(c.get());
    } else {
      c->Meet(GetConductor());
      EXPECT_EQ(c->lane, nullptr);
      EXPECT_EQ(c->failed, Reason::kPeerKey);
      EXPECT_TRUE(c->final);
    }
    EXPECT_TRUE(barrier.Meet(1));
  });
  ExpectSuccess(client);
  ExpectSuccess(server);
}

TEST_F(RdmaTest, SameKey) {
  const std::string key = WriteKey("a", 'a');
  MeetWithKeys(key, key, true);
}
TEST_F(RdmaTest, DifferentKeys) {
  MeetWithKeys(WriteKey("a", 'a'), WriteKey("b", 'b'), false);
}
TEST_F(RdmaTest, OnlyTheConnectorHasAKey) {
  MeetWithKeys(WriteKey("a", 'a'), "", false);
}
TEST_F(RdmaTest, OnlyTheAcceptorHasAKey) {
  MeetWithKeys("", WriteKey("a", 'a'), false);
}

TEST_F(RdmaTest, AKeyThatCannotBeReadMeansNoRdma) {
  ::setenv("RCSOCK_KEY_FILE", "/nonexistent", 1);
  base::LoadConfig();
  EXPECT_FALSE(base::GetConfig().rdma);
  ::unsetenv("RCSOCK_KEY_FILE");
}

// --- Addresses

TEST_F(RdmaTest, Ipv6) {
  const char* text = std::getenv("RDMA_IP6");
  if (text == nullptr || *text == '\0') GTEST_SKIP() << "no IPv6 address";
  ExpectSuccess(Spawn([text] {
    sockaddr_in6 address{};
    address.sin6_family = AF_INET6;
    ASSERT_EQ(::inet_pton(AF_INET6, text, &address.sin6_addr), 1);
    const int listener = ::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    socklen_t length = sizeof address;
    auto* any = reinterpret_cast<sockaddr*>(&address);
    ASSERT_EQ(::bind(listener, any, length), 0) << errno;
    ASSERT_EQ(::listen(listener, 5), 0);
    ASSERT_EQ(::getsockname(listener, any, &length), 0);
    const int connector = ::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ASSERT_EQ(::connect(connector, any, length), 0);
    const int acceptor = ::accept(listener, nullptr, nullptr);
    Conductor* conductor = GetConductor();
    auto c = ConnectorSeeker(connector);
    auto s = AcceptorSeeker(acceptor);
    s->Start(conductor);
    c->Start(conductor);
    ASSERT_TRUE(c->Wait()) << base::ReasonKey(c->failed);
    ASSERT_TRUE(s->Wait()) << base::ReasonKey(s->failed);
    SendAll(c->lane.get(), "there", 5);
    EXPECT_EQ(ReceiveAll(s->lane.get(), 5), "there");
  }));
}

// A host may have the same link-local address on each of its links.
TEST_F(RdmaTest, LinkLocalOnTwoLinks) {
  if (std::getenv("IN_GUEST") == nullptr) GTEST_SKIP() << "not in a guest";
  if (OnIwarp()) GTEST_SKIP() << "siw listens for all links";
  ExpectSuccess(Spawn([] {
    ASSERT_EQ(
        std::system("ip link add link0 type dummy && ip link set link0 up && "
                    "ip addr add fe80::77/64 dev $RDMA_NETDEV nodad && "
                    "ip addr add fe80::77/64 dev link0 nodad && "
                    "rdma link add rxe7 type rxe netdev link0"),
        0);
    Conductor* conductor = GetConductor();
    const char* const links[] = {std::getenv("RDMA_NETDEV"), "link0"};
    for (const char* link : links) {
      SCOPED_TRACE(link);
      sockaddr_in6 address{};
      address.sin6_family = AF_INET6;
      ASSERT_EQ(::inet_pton(AF_INET6, "fe80::77", &address.sin6_addr), 1);
      address.sin6_scope_id = ::if_nametoindex(link);
      const int listener = ::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
      socklen_t length = sizeof address;
      auto* any = reinterpret_cast<sockaddr*>(&address);
      ASSERT_EQ(::bind(listener, any, length), 0) << errno;
      ASSERT_EQ(::listen(listener, 5), 0);
      ASSERT_EQ(::getsockname(listener, any, &length), 0);
      const int connector = ::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
      ASSERT_EQ(::connect(connector, any, length), 0) << errno;
      auto c = ConnectorSeeker(connector);
      auto s = AcceptorSeeker(::accept(listener, nullptr, nullptr));
      s->Start(conductor);
      EXPECT_TRUE(c->Meet(conductor)) << base::ReasonKey(c->failed);
      EXPECT_TRUE(s->Wait()) << base::ReasonKey(s->failed);
      // Nobody has it twice.
      conductor->ReturnLane(c, std::move(c->lane));
      conductor->ReturnLane(s, std::move(s->lane));
    }
    EXPECT_EQ(std::system("rdma link del rxe7; ip link del link0"), 0);
  }));
}

// A server that has bound such a port no longer may.
TEST_F(RdmaTest, PortBelow1024) {
  ExpectSuccess(Spawn([] {
    Conductor* conductor = GetConductor();
    const TcpPair pair = MakeDevicePair(700);
    auto c = ConnectorSeeker(pair.connector);
    auto s = AcceptorSeeker(pair.acceptor);
    s->Start(conductor);
    c->Start(conductor);
    ASSERT_TRUE(c->Wait()) << base::ReasonKey(c->failed);
    ASSERT_TRUE(s->Wait()) << base::ReasonKey(s->failed);
    RawCm probe;
    EXPECT_TRUE(OnIwarp() || probe.Listen(700)) << "bound after all";
  }));
}

// --- Ends

TEST_F(RdmaTest, PeerIsKilled) {
  Barrier barrier;
  const TcpPair pair = MakeDevicePair();
  const pid_t victim = Spawn([&] {
    auto s = AcceptorSeeker(pair.acceptor);
    ASSERT_TRUE(s->Meet(GetConductor())) << base::ReasonKey(s->failed);
    UseLane(s.get());
    barrier.Meet(0);
    ::pause();
  });
  const pid_t survivor = Spawn([&] {
    auto c = ConnectorSeeker(pair.connector);
    ASSERT_TRUE(c->Meet(GetConductor())) << base::ReasonKey(c->failed);
    UseLane(c.get());
    barrier.Meet(1);
    ::kill(victim, SIGKILL);
    EXPECT_TRUE(c->WaitLost());
    EXPECT_EQ(c->lost, Reason::kPeerGone);
    EXPECT_NE(c->lane->State(), Reason::kNone);
    Conductor::IfRunning()->ReturnLane(c, std::move(c->lane));
  });
  ExpectSuccess(survivor);
  ExpectKilled(victim);
}

TEST_F(RdmaTest, NothingLeaks) {
  ExpectSuccess(Spawn([] {
    Conductor* conductor = GetConductor();
    std::map<std::string, int> before;
    std::size_t fds = 0;
    const auto sockets = [] {
      int count = 0;
      for (const auto& [fd, what] : OpenFds()) {
        if (what.find("socket") == 0) ++count;
      }
      return count;
    };
    const int sockets_before = sockets();
    for (int round = 0; round < 3; ++round) {
      for (int i = 0; i < 8; ++i) {
        const TcpPair pair = MakeDevicePair();
        auto c = ConnectorSeeker(pair.connector);
        auto s = AcceptorSeeker(pair.acceptor);
        if (i == 7) c->never_adopt = true;
        s->Start(conductor);
        if (i == 5) {  // given up midway
          c->Start(conductor);
          conductor->Cancel(c.get());
          conductor->Cancel(s.get());
        } else if (i == 6) {  // nobody connects
          s->Wait();
        } else {
          c->Start(conductor);
          EXPECT_EQ(c->Wait(), i != 7) << base::ReasonKey(c->failed);
          EXPECT_EQ(s->Wait(), i != 7) << base::ReasonKey(s->failed);
          if (i == 7) {
            // Or the other end, which waits equally long, was faster.
            EXPECT_TRUE(c->failed == Reason::kBusy ||
                        c->failed == Reason::kPeerRefused)
                << base::ReasonKey(c->failed);
          }
        }
        conductor->ReturnLane(c, std::move(c->lane));
        conductor->ReturnLane(s, std::move(s->lane));
        ::close(pair.connector);
        ::close(pair.acceptor);
      }
      Drain(conductor);
      // The directory of each port stays for some seconds.
      const int listeners = sockets();
      const auto open = OpenFds();
      for (const char* kind : {"qp", "cq", "pd", "mr"}) {
        const int count = Resources(kind);
        if (round == 1) {
          before[kind] = count;
        } else if (round == 2) {
          // What an iWARP id leaves behind goes with its handshake.
          EXPECT_TRUE(Eventually(
              [&] { return Resources(kind) <= before[kind]; }, 15'000))
              << kind << " " << Resources(kind) << " > " << before[kind];
        }
      }
      const std::size_t others =
          open.size() - static_cast<std::size_t>(listeners);
      if (round == 1) fds = others;
      if (round == 2) {
        EXPECT_LE(others, fds);
        EXPECT_GT(listeners, sockets_before);
        EXPECT_TRUE(
            Eventually([&] { return sockets() <= sockets_before; }, 15'000))
            << sockets() << " > " << sockets_before;
      }
    }
  }));
}

TEST_F(RdmaTest, StopEndsLanes) {
  ExpectSuccess(Spawn([] {
    std::size_t fds = 0;
    for (int round = 0; round < 3; ++round) {
      Conductor* conductor = GetConductor();
      const TcpPair pair = MakeDevicePair();
      auto c = ConnectorSeeker(pair.connector);
      auto s = AcceptorSeeker(pair.acceptor);
      s->Start(conductor);
      ASSERT_TRUE(c->Meet(conductor)) << base::ReasonKey(c->failed);
      ASSERT_TRUE(s->Wait()) << base::ReasonKey(s->failed);
      auto waiting = AcceptorSeeker(pair.acceptor);
      waiting->Start(conductor);
      Conductor::Stop();
      EXPECT_TRUE(c->WaitLost());
      EXPECT_TRUE(s->WaitLost());
      EXPECT_EQ(c->lost, Reason::kNoThread);
      EXPECT_NE(c->lane->State(), Reason::kNone);
      EXPECT_FALSE(waiting->Wait());
      EXPECT_EQ(waiting->failed, Reason::kNoThread);
      conductor->ReturnLane(c, std::move(c->lane));
      conductor->ReturnLane(s, std::move(s->lane));
      ::close(pair.connector);
      ::close(pair.acceptor);
      const std::size_t now = OpenFds().size();
      if (round > 0) {
        // A source whose device has gone keeps an eventfd: threads may sleep on
        // it.
        EXPECT_LE(now, fds + 1);
      }
      fds = now;
      EXPECT_TRUE(Eventually([] { return Resources("qp") <= 1; }));
    }
  }));
}

TEST_F(RdmaTest, ChildOfForkHoldsNothing) {
  ExpectSuccess(Spawn([] {
    Conductor* conductor = GetConductor();
    const TcpPair pair = MakeDevicePair();
    auto c = ConnectorSeeker(pair.connector);
    auto s = AcceptorSeeker(pair.acceptor);
    s->Start(conductor);
    c->Start(conductor);
    ASSERT_TRUE(c->Wait() && s->Wait()) << base::ReasonKey(c->failed);
    Conductor::ForkPrepare();
    const pid_t child = ::fork();
    if (child == 0) {
      Conductor::ForkChild();
      for (const auto& [fd, what] : OpenFds()) {
        EXPECT_EQ(what.find("infiniband"), std::string::npos)
            << fd << " " << what;
      }
      // It has a conductor again, but no device.
      auto again = ConnectorSeeker(pair.connector);
      EXPECT_FALSE(again->Seek(GetConductor()));
      EXPECT_EQ(again->failed, Reason::kNoRdmaLibrary);
      // Its copy of the lane is not its own to destroy.
      conductor->ReturnLane(c, std::move(c->lane));
      ::_exit(::testing::Test::HasFailure() ? 1 : 0);
    }
    Conductor::ForkParent();
    ExpectSuccess(child);
    SendAll(c->lane.get(), "there", 5);
    EXPECT_EQ(ReceiveAll(s->lane.get(), 5), "there");
  }));
}

TEST_F(RdmaTest, MoreThanConnectAtOnce) {
  ExpectSuccess(Spawn([] {
    Conductor* conductor = GetConductor();
    std::vector<std::shared_ptr<TestSeeker>> all;
    for (int i = 0; i < 24; ++i) {
      const TcpPair pair = MakeDevicePair();
      all.push_back(AcceptorSeeker(pair.acceptor));
      all.push_back(ConnectorSeeker(pair.connector));
    }
    for (auto& seeker : all) seeker->Start(conductor);
    for (auto& seeker : all) {
      EXPECT_TRUE(seeker->Wait()) << base::ReasonKey(seeker->failed);
    }
  }));
}

// --- What happens to the network

// `guestctl` does things to the guest that a test must not do to a host.
bool Guest(const char* command) {
  return std::system((std::string("guestctl ") + command).c_str()) == 0;
}

TEST_F(RdmaTest, BlackHole) {
  if (std::getenv("IN_GUEST") == nullptr) GTEST_SKIP() << "not in a guest";
  if (!OnIwarp()) GTEST_SKIP() << "rxe's own host is beyond any filter";
  ExpectSuccess(Spawn([] {
    Conductor* conductor = GetConductor();
    const TcpPair pair = MakeDevicePair();
    auto s = AcceptorSeeker(pair.acceptor);
    s->Start(conductor);
    Drain(conductor);
    ASSERT_TRUE(Guest("cut rdma"));
    auto c = ConnectorSeeker(pair.connector);
    const auto start = Clock::now();
    c->Start(conductor);
    // Nothing else waits for it.
    while (c->answers() == 0 && Clock::now() - start < milliseconds(10'000)) {
      const auto before = Clock::now();
      Drain(conductor);
      EXPECT_LT(Clock::now() - before, milliseconds(300));
      ::usleep(10'000);
    }
    EXPECT_EQ(c->failed, Reason::kRdmaTimeout) << base::ReasonKey(c->failed);
    EXPECT_LT(Clock::now() - start, milliseconds(4000));
    s->Wait();
    EXPECT_TRUE(Guest("mend"));
    // Once a pause is over.
    const auto mended = Clock::now();
    bool met = false;
    while (!met && Clock::now() - mended < milliseconds(20'000)) {
      s->Start(conductor);
      met = c->Seek(conductor);
    }
    EXPECT_TRUE(met) << base::ReasonKey(c->failed);
    EXPECT_TRUE(s->Wait()) << base::ReasonKey(s->failed);
  }));
}

// An end of a connection to a host of which nothing is heard by RDMA.
class SilentSeeker : public TestSeeker {
 public:
  explicit SilentSeeker(int fd) : TestSeeker(fd, stream::Role::kConnector) {}
  bool Names(sockaddr_storage* local, sockaddr_storage* peer) override {
    if (!TestSeeker::Names(local, peer)) return false;
    ::inet_pton(AF_INET, "10.77.0.99",
                &reinterpret_cast<sockaddr_in*>(peer)->sin_addr);
    return true;
  }
};

// Those that stood in line for it do not each take their turn in vain, and
// others' turns come.
TEST_F(RdmaTest, HostThatDoesNotAnswer) {
  if (std::getenv("IN_GUEST") == nullptr) GTEST_SKIP() << "not in a guest";
  ExpectSuccess(Spawn([] {
    ASSERT_EQ(std::system("ip neigh replace 10.77.0.99 lladdr "
                          "02:00:0a:4d:00:99 dev $RDMA_NETDEV"),
              0);
    Conductor* conductor = GetConductor();
    // One service, so that what is learnt of one is known of the others.
    sockaddr_in address = DeviceAddress();
    const int listener = Listen(&address, true);
    std::vector<std::shared_ptr<SilentSeeker>> silent;
    for (int i = 0; i < 48; ++i) {
      silent.push_back(std::make_shared<SilentSeeker>(Connect(address)));
      ::close(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
    }
    const auto start = Clock::now();
    for (auto& one : silent) one->Start(conductor);
    Drain(conductor);
    const TcpPair pair = MakeDevicePair();
    auto c = ConnectorSeeker(pair.connector);
    auto s = AcceptorSeeker(pair.acceptor);
    s->Start(conductor);
    EXPECT_TRUE(c->Seek(conductor)) << base::ReasonKey(c->failed);
    EXPECT_TRUE(s->Wait()) << base::ReasonKey(s->failed);
    // A handshake in vain takes three seconds, and there are 16 at a time.
    EXPECT_LT(Clock::now() - start, milliseconds(6000));
    for (auto& one : silent) {
      EXPECT_FALSE(one->Wait());
      EXPECT_EQ(one->failed, Reason::kRdmaTimeout)
          << base::ReasonKey(one->failed);
    }
    EXPECT_LT(Clock::now() - start, milliseconds(6000));
    // From now on one finds out for all.
    const auto again = Clock::now();
    for (auto& one : silent) one->Start(conductor);
    for (auto& one : silent) EXPECT_FALSE(one->Wait());
    EXPECT_LT(Clock::now() - again, milliseconds(2900));
  }));
}

// A filter that lets the probe through, and then swallows what the kernel sends
// inside rdma_connect.
TEST_F(RdmaTest, ConnectThatBlocks) {
  if (std::getenv("IN_GUEST") == nullptr) GTEST_SKIP() << "not in a guest";
  if (!OnIwarp()) GTEST_SKIP() << "rxe's rdma_connect does not block";
  ExpectSuccess(Spawn([] {
    const int before = Resources("cm_id");
    Conductor* conductor = GetConductor();
    ASSERT_TRUE(Guest("cut rdma-connect"));
    std::vector<TcpPair> pairs;
    std::vector<std::shared_ptr<TestSeeker>> cs;
    std::vector<std::shared_ptr<TestSeeker>> ss;
    // More than may block at a time.
    for (int i = 0; i < 6; ++i) {
      pairs.push_back(MakeDevicePair());
      cs.push_back(ConnectorSeeker(pairs[i].connector));
      ss.push_back(AcceptorSeeker(pairs[i].acceptor));
      ss[i]->Start(conductor);
      cs[i]->Start(conductor);
    }
    const auto blocked = [] {
      return std::system("test $(ss -Htn state syn-sent | wc -l) -ge 4") == 0;
    };
    const auto limit = Clock::now() + milliseconds(30'000);
    while (!blocked() && Clock::now() < limit) ::usleep(10'000);
    ASSERT_TRUE(blocked());

    // Other streams' lanes go on meanwhile, and a fork.
    ::setenv("RCSOCK_LANES", "shm", 1);
    base::LoadConfig();
    const TcpPair local = MakeDevicePair();
    auto shm_c = ConnectorSeeker(local.connector);
    auto shm_s = AcceptorSeeker(local.acceptor);
    shm_s->Start(conductor);
    shm_c->Start(conductor);
    EXPECT_TRUE(shm_c->Wait()) << base::ReasonKey(shm_c->failed);
    EXPECT_TRUE(shm_s->Wait()) << base::ReasonKey(shm_s->failed);
    Conductor::ForkPrepare();
    const pid_t child = ::fork();
    if (child == 0) {
      Conductor::ForkChild();
      ::_exit(0);
    }
    Conductor::ForkParent();
    ExpectSuccess(child);
    ::setenv("RCSOCK_LANES", "rdma", 1);
    base::LoadConfig();
    for (auto& c : cs) {
      EXPECT_FALSE(c->Wait());
      EXPECT_EQ(c->failed, Reason::kRdmaTimeout) << base::ReasonKey(c->failed);
    }
    EXPECT_TRUE(blocked());  // nobody has waited for it
    // As many as there may be hang: the next is not even tried.
    EXPECT_FALSE(cs[0]->Seek(conductor));
    EXPECT_EQ(cs[0]->failed, Reason::kRdmaTimeout);
    ASSERT_TRUE(Guest("mend"));
    for (auto& s : ss) s->Wait();
    // Once the kernel has tried again.
    const auto mended = Clock::now() + milliseconds(100'000);
    bool met = false;
    while (!met && Clock::now() < mended) {
      ss[1]->Start(conductor);
      met = cs[1]->Seek(conductor);
    }
    EXPECT_TRUE(met) << base::ReasonKey(cs[1]->failed);
    EXPECT_TRUE(ss[1]->Wait()) << base::ReasonKey(ss[1]->failed);
    // Nothing is left of those that nobody wanted any more: two listeners, the
    // device's own, and both ends of one lane.
    while (Resources("cm_id") - before > 5 && Clock::now() < mended) {
      ::usleep(10'000);
    }
    EXPECT_LE(Resources("cm_id") - before, 5);
    // To end while one hangs takes no time.
    ASSERT_TRUE(Guest("cut rdma-connect"));
    ss[2]->Start(conductor);
    cs[2]->Start(conductor);
    const auto again = Clock::now() + milliseconds(30'000);
    const char* one = "test $(ss -Htn state syn-sent | wc -l) -ge 1";
    while (std::system(one) != 0 && Clock::now() < again) ::usleep(10'000);
    Conductor::Stop();
    EXPECT_EQ(std::system(one), 0);
    EXPECT_TRUE(Guest("mend"));
  }));
}

TEST_F(RdmaTest, DeviceGoesAndComesBack) {
  if (std::getenv("IN_GUEST") == nullptr) GTEST_SKIP() << "not in a guest";
  ExpectSuccess(Spawn([] {
    Conductor* conductor = GetConductor();
    for (int round = 0; round < 2; ++round) {
      const TcpPair pair = MakeDevicePair();
      auto c = ConnectorSeeker(pair.connector);
      auto s = AcceptorSeeker(pair.acceptor);
      s->Start(conductor);
      c->Start(conductor);
      ASSERT_TRUE(c->Wait()) << base::ReasonKey(c->failed);
      ASSERT_TRUE(s->Wait()) << base::ReasonKey(s->failed);
      // rxe's cannot go while its context is open: whoever has the lanes gives
      // them back, and the context is closed with the last one.
      const pid_t remover = ::fork();
      if (remover == 0) {
        ::execlp("guestctl", "guestctl", "device", "del", nullptr);
        ::_exit(1);
      }
      ASSERT_TRUE(c->WaitLost());
      ASSERT_TRUE(s->WaitLost());
      // siw ends its connections first.
      EXPECT_TRUE(c->lost == Reason::kDeviceLost ||
                  (OnIwarp() && c->lost == Reason::kPeerGone))
          << base::ReasonKey(c->lost);
      c->lost = s->lost = Reason::kNone;
      conductor->ReturnLane(c, std::move(c->lane));
      conductor->ReturnLane(s, std::move(s->lane));
      ExpectSuccess(remover);
      auto none = ConnectorSeeker(pair.connector);
      EXPECT_FALSE(none->Seek(conductor));
      EXPECT_TRUE(none->failed == Reason::kNoRoute ||
                  none->failed == Reason::kNoDevice)
          << base::ReasonKey(none->failed);
      ASSERT_TRUE(Guest("device add"));
    }
  }));
}

// Whoever destroys an iWARP id waits for the end of its handshake; but of that
// nothing is heard any more.
TEST_F(RdmaTest, DeviceGoesAmidAHandshake) {
  if (std::getenv("IN_GUEST") == nullptr) GTEST_SKIP() << "not in a guest";
  if (!OnIwarp()) GTEST_SKIP() << "RoCE's ids do not wait";
  ExpectSuccess(Spawn([] {
    Conductor* conductor = GetConductor();
    // Takes the connection, and says nothing.
    sockaddr_in silent = DeviceAddress(base::GetConfig().rdma_port);
    const int listener = Listen(&silent, true);
    const TcpPair pair = MakeDevicePair();
    auto c = ConnectorSeeker(pair.connector);
    EXPECT_FALSE(c->Seek(conductor));
    EXPECT_EQ(c->failed, Reason::kRdmaTimeout) << base::ReasonKey(c->failed);
    const auto uses_device = [] {
      for (const auto& [fd, what] : OpenFds()) {
        if (what.find("infiniband/uverbs") != std::string::npos) return true;
      }
      return false;
    };
    EXPECT_TRUE(uses_device());
    ASSERT_TRUE(Guest("device del"));
    EXPECT_TRUE(Eventually([&] { return !uses_device(); }, 20'000));
    ::close(listener);
    ASSERT_TRUE(Guest("device add"));
    auto s = AcceptorSeeker(pair.acceptor);
    s->Start(conductor);
    EXPECT_TRUE(c->Meet(conductor)) << base::ReasonKey(c->failed);
    EXPECT_TRUE(s->Wait()) << base::ReasonKey(s->failed);
  }));
}

// The device goes while this process only listens.
TEST_F(RdmaTest, DeviceOfAListenerGoesAndComesBack) {
  if (std::getenv("IN_GUEST") == nullptr) GTEST_SKIP() << "not in a guest";
  ExpectSuccess(Spawn([] {
    Conductor* conductor = GetConductor();
    const TcpPair pair = MakeDevicePair();
    auto s = AcceptorSeeker(pair.acceptor);
    s->Start(conductor);
    Drain(conductor);
    ASSERT_TRUE(Guest("device del"));
    ASSERT_TRUE(Guest("device add"));
    EXPECT_FALSE(s->Wait());
    auto c = ConnectorSeeker(pair.connector);
    s->Start(conductor);
    c->Start(conductor);
    EXPECT_TRUE(c->Wait()) << base::ReasonKey(c->failed);
    EXPECT_TRUE(s->Wait()) << base::ReasonKey(s->failed);
  }));
}

// A device has the name that an administrator gives it, and may get it while it
// is in use: what is loaded for it by its name is then loaded otherwise, and
// nothing is found by a name that was seen before.
class Renamed : public RdmaTest {
 protected:
  void TearDown() override {
    if (renamed_) {
      EXPECT_TRUE(Rename(kOther, device_));
    }
  }
  bool Rename(const std::string& from, const std::string& to) {
    renamed_ = to == kOther;
    return std::system(("rdma dev set " + from + " name " + to).c_str()) == 0;
  }
  void Meet(Conductor* conductor) {
    const TcpPair pair = MakeDevicePair();
    auto c = ConnectorSeeker(pair.connector);
    auto s = AcceptorSeeker(pair.acceptor);
    s->Start(conductor);
    c->Start(conductor);
    ASSERT_TRUE(c->Wait()) << base::ReasonKey(c->failed);
    ASSERT_TRUE(s->Wait()) << base::ReasonKey(s->failed);
    EXPECT_EQ(c->lane->kind(), lane::Kind::kRdma);
    SendAll(c->lane.get(), "there", 5);
    EXPECT_EQ(ReceiveAll(s->lane.get(), 5), "there");
    SendAll(s->lane.get(), "back", 4);
    EXPECT_EQ(ReceiveAll(c->lane.get(), 4), "back");
    conductor->ReturnLane(c, std::move(c->lane));
    conductor->ReturnLane(s, std::move(s->lane));
  }

  static constexpr const char* kOther = "storage_net7";
  const std::string device_ = std::getenv("RDMA_DEV") ?: "";
  bool renamed_ = false;
};

TEST_F(Renamed, BeforeItIsUsed) {
  if (std::getenv("IN_GUEST") == nullptr) GTEST_SKIP() << "not in a guest";
  ASSERT_TRUE(Rename(device_, kOther));
  ExpectSuccess(Spawn([this] { Meet(GetConductor()); }));
}

TEST_F(Renamed, WhileItIsInUse) {
  if (std::getenv("IN_GUEST") == nullptr) GTEST_SKIP() << "not in a guest";
  Barrier barrier;
  const pid_t other = Spawn([&] {
    EXPECT_TRUE(barrier.Meet(1));
    Meet(GetConductor());
  });
  const pid_t user = Spawn([&] {
    Conductor* conductor = GetConductor();
    const TcpPair pair = MakeDevicePair();
    auto c = ConnectorSeeker(pair.connector);
    auto s = AcceptorSeeker(pair.acceptor);
    s->Start(conductor);
    c->Start(conductor);
    ASSERT_TRUE(c->Wait()) << base::ReasonKey(c->failed);
    ASSERT_TRUE(s->Wait()) << base::ReasonKey(s->failed);
    ASSERT_TRUE(Rename(device_, kOther));
    // The lane that there is, and one more.
    SendAll(c->lane.get(), "still", 5);
    EXPECT_EQ(ReceiveAll(s->lane.get(), 5), "still");
    Meet(conductor);
    EXPECT_TRUE(barrier.Meet(0));
    conductor->ReturnLane(c, std::move(c->lane));
    conductor->ReturnLane(s, std::move(s->lane));
  });
  renamed_ = true;
  ExpectSuccess(user);
  ExpectSuccess(other);
}

// A process of another user holds the port.
TEST_F(RdmaTest, ForeignHolder) {
  if (::geteuid() != 0) GTEST_SKIP() << "not root";
  const TcpPair pair = MakeDevicePair();
  sockaddr_in address{};
  socklen_t length = sizeof address;
  ::getsockname(pair.acceptor, reinterpret_cast<sockaddr*>(&address), &length);
  const TcpPair other = MakeDevicePair(ntohs(address.sin_port));
  Barrier held;
  const pid_t holder = Spawn([&] {
    ASSERT_EQ(::setgid(65534), 0);
    ASSERT_EQ(::setuid(65534), 0);
    auto s = AcceptorSeeker(pair.acceptor);
    EXPECT_FALSE(s->Seek(GetConductor()));
    EXPECT_EQ(s->failed, Reason::kPeerPlain) << base::ReasonKey(s->failed);
    EXPECT_TRUE(held.Meet(0));
    EXPECT_TRUE(held.Meet(0));
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

}  // namespace
}  // namespace rcsock::rendezvous
