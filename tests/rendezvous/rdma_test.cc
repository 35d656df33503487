// Rendezvous over rdma_cm.  Needs a device: $RDMA_IP is its address (see
// tests/guest).

#include <net/if.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "lib/base/foreign_fd.h"
#include "tests/rendezvous/rdma_util.h"

namespace rcsock::rendezvous {
namespace {

using base::Reason;

TEST_F(RdmaTest, TwoProcesses) {
  for (int round = 0; round < 3; ++round) {
    MeetInTwoProcesses(MakeDevicePair(), UseLane);
  }
}

TEST_F(RdmaTest, OneProcessWithItself) {
  ExpectSuccess(Spawn([] {
    Conductor* conductor = GetConductor();
    for (int i = 0; i < 5; ++i) {
      const TcpPair pair = MakeDevicePair();
      auto c = ConnectorSeeker(pair.connector);
      auto s = AcceptorSeeker(pair.acceptor);
      ASSERT_TRUE(Met(conductor, s, c));
      ExpectAgree(*c, *s);
      EXPECT_FALSE(c->authenticated);
      EXPECT_FALSE(s->authenticated);
      SayThereAndBack(c.get(), s.get());
      conductor->ReturnLane(c, std::move(c->lane));
      conductor->ReturnLane(s, std::move(s->lane));
    }
  }));
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
  const TcpPair other = MakeDevicePair(TcpPortOf(waiting));
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
    ASSERT_TRUE(Met(conductor, s, c));
    SayThereAndBack(c.get(), s.get());
  }));
}

// A host may have the same link-local address on each of its links.
TEST_F(RdmaTest, LinkLocalOnTwoLinks) {
  if (!InGuest()) GTEST_SKIP() << "not in a guest";
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
    ASSERT_TRUE(Met(conductor, s, c));
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
      // Another thread closes what the lanes have left.
      base::AwaitCloses();
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

TEST_F(RdmaTest, ChildOfForkHoldsNothingAndHasItsOwn) {
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
      // It has a conductor again, and a device.
      const TcpPair own = MakeDevicePair();
      auto own_c = ConnectorSeeker(own.connector);
      auto own_s = AcceptorSeeker(own.acceptor);
      own_s->Start(GetConductor());
      own_c->Start(GetConductor());
      EXPECT_TRUE(own_c->Wait() && own_s->Wait())
          << base::ReasonKey(own_c->failed);
      if (::testing::Test::HasFailure()) ::_exit(1);
      SendAll(own_c->lane.get(), "here", 4);
      EXPECT_EQ(ReceiveAll(own_s->lane.get(), 4), "here");
      // Its copy of the lane is not its own to destroy.
      conductor->ReturnLane(c, std::move(c->lane));
      ::_exit(::testing::Test::HasFailure() ? 1 : 0);
    }
    Conductor::ForkParent();
    ExpectSuccess(child);
    SayThereAndBack(c.get(), s.get());
  }));
}

// On iWARP the kernel, as it closes what a process leaves, waits for the answer
// to what that has asked: ten seconds, if it was to come from the same process.
TEST_F(RdmaTest, EndsWhileItAsksItself) {
  Barrier barrier;
  const TcpPair waiting = MakeDevicePair();
  const std::uint16_t port = ServicePortOf(waiting);
  const TcpPair other = MakeDevicePair(TcpPortOf(waiting));
  const pid_t child = Spawn([&] {
    Conductor* conductor = GetConductor();
    auto s = AcceptorSeeker(waiting.acceptor);
    s->Start(conductor);
    // Nobody waits for this one, so it is held for a while each time.
    auto c = ConnectorSeeker(other.connector);
    c->Start(conductor);
    EXPECT_TRUE(Eventually([] { return ConnectingIds() == 2; }));
    Conductor::LeaveRdma();
    EXPECT_TRUE(barrier.Meet(0));
    ::_exit(::testing::Test::HasFailure() ? 1 : 0);
  });
  EXPECT_TRUE(barrier.Meet(1));
  const auto start = Clock::now();
  ExpectSuccess(child);
  EXPECT_LT(Clock::now() - start, milliseconds(5000));
  // And the port is free.
  ExpectSuccess(Spawn([port] {
    RawCm next;
    EXPECT_TRUE(next.Listen(port));
  }));
}

// siw's library cannot use what the kernel places at a certain offset, and then
// nothing that is made later (domain.cc).
TEST_F(RdmaTest, ManyQueuesOfOneProcess) {
  ExpectSuccess(Spawn([] {
    Conductor* conductor = GetConductor();
    const TcpPair pair = MakeDevicePair();
    auto c = ConnectorSeeker(pair.connector);
    auto s = AcceptorSeeker(pair.acceptor);
    s->Start(conductor);
    c->Start(conductor);
    ASSERT_TRUE(c->Wait() && s->Wait()) << base::ReasonKey(c->failed);
    RawCm same;  // librdmacm has one context of a device
    sockaddr_in address = DeviceAddress();
    ASSERT_EQ(verbs::calls.rdma_bind_addr(
                  same.id(), reinterpret_cast<sockaddr*>(&address)),
              0);
    std::vector<verbs::Cq> queues;  // of a page each
    for (int i = 0; i < 300; ++i) {
      verbs::Error error;
      queues.push_back(
          verbs::CreateCq(same.id()->verbs, 1, nullptr, &error, 0));
      ASSERT_NE(queues.back(), nullptr) << i << ": " << error.code;
    }
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

}  // namespace
}  // namespace rcsock::rendezvous
