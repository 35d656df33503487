// Two ends find each other, whatever processes have them.

#include <poll.h>
#include <sys/resource.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <set>
#include <vector>

#include "lib/base/config.h"
#include "tests/rendezvous/util.h"

namespace rcsock::rendezvous {
namespace {

TEST(Meet, TwoProcesses) {
  // Who decides is a matter of chance: both ways within a few rounds.
  for (int round = 0; round < 8; ++round) {
    MeetInTwoProcesses(MakeTcpPair(), ExchangeNonces);
  }
}

TEST(Meet, OneProcessWithItself) {
  ExpectSuccess(Spawn([] {
    Conductor* conductor = GetConductor();
    std::set<std::pair<const void*, int>> used;
    const auto pairs = MakeTcpPairs(70);  // more than a segment
    std::vector<std::shared_ptr<TestSeeker>> all;
    for (const TcpPair& pair : pairs) {
      auto c = ConnectorSeeker(pair.connector);
      auto s = AcceptorSeeker(pair.acceptor);
      ASSERT_TRUE(Met(conductor, c, s));
      EXPECT_NE(c->link(), s->link());
      ExpectAgree(*c, *s);
      EXPECT_TRUE(used.insert({c->link().get(), c->index()}).second);
      EXPECT_TRUE(used.insert({s->link().get(), s->index()}).second);
      SayThereAndBack(c.get(), s.get());
      all.push_back(c);
      all.push_back(s);
    }
    EXPECT_EQ(conductor->Links().size(), 2u);
  }));
}

TEST(Meet, NumbersAreReusedUnderNewEpochs) {
  ExpectSuccess(Spawn([] {
    Conductor* conductor = GetConductor();
    const TcpPair pair = MakeTcpPair();
    auto c = ConnectorSeeker(pair.connector);
    auto s = AcceptorSeeker(pair.acceptor);
    std::set<std::uint32_t> epochs;
    std::set<int> numbers;
    for (int i = 0; i < 100; ++i) {
      c->Start(conductor);
      s->Start(conductor);
      ASSERT_TRUE(c->Wait() && s->Wait()) << base::ReasonKey(c->failed);
      EXPECT_TRUE(epochs.insert(c->epoch).second);
      numbers.insert(c->index());
      // Bytes of one epoch must not show in the next.
      EXPECT_EQ(c->lane->Peek(), lane::Head::kEmpty);
      EXPECT_EQ(s->lane->Peek(), lane::Head::kEmpty);
      SendAll(c->lane.get(), "unread", 6);
      SendAll(s->lane.get(), "unread", 6);
      conductor->ReturnLane(c, std::move(c->lane));
      conductor->ReturnLane(s, std::move(s->lane));
      // (The next round may need no turn of the conductor's, this one's end
      // does.)
      Drain(conductor);
    }
    EXPECT_LE(numbers.size(), 3u);
  }));
}

TEST(Meet, Prefork) {
  constexpr int kChildren = 4;
  constexpr int kEach = 4;
  sockaddr_in address{};
  const int listener = Listen(&address);
  std::vector<pid_t> children;
  for (int i = 0; i < kChildren; ++i) {
    children.push_back(Spawn([=] {
      Conductor* conductor = GetConductor();
      std::vector<std::shared_ptr<TestSeeker>> mine;
      for (int k = 0; k < kEach; ++k) {
        const int fd = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
        mine.push_back(AcceptorSeeker(fd));
        mine.back()->Start(conductor);
      }
      for (auto& seeker : mine) {
        ASSERT_TRUE(seeker->Wait()) << base::ReasonKey(seeker->failed);
        ExchangeNonces(seeker.get());
      }
      // The client ends first.
      char byte;
      EXPECT_EQ(::recv(mine.back()->fd(), &byte, 1, 0), 0);
    }));
  }
  const pid_t client = Spawn([=] {
    Conductor* conductor = GetConductor();
    std::vector<std::shared_ptr<TestSeeker>> mine;
    for (int k = 0; k < kChildren * kEach; ++k) {
      mine.push_back(ConnectorSeeker(Connect(address)));
      mine.back()->Start(conductor);
    }
    for (auto& seeker : mine) {
      ASSERT_TRUE(seeker->Wait()) << base::ReasonKey(seeker->failed);
      ExchangeNonces(seeker.get());
    }
    EXPECT_EQ(conductor->Links().size(), std::size_t{kChildren});
  });
  ::close(listener);
  ExpectSuccess(client);
  for (pid_t child : children) ExpectSuccess(child);
}

TEST(Meet, ReusePort) {
  constexpr int kServers = 3;
  sockaddr_in address{};
  std::vector<int> listeners;
  for (int i = 0; i < kServers; ++i) {
    listeners.push_back(Listen(&address, true));
  }
  std::vector<pid_t> servers;
  for (int i = 0; i < kServers; ++i) {
    servers.push_back(Spawn([=] {
      for (int k = 0; k < kServers; ++k) {
        if (k != i) ::close(listeners[static_cast<std::size_t>(k)]);
      }
      Conductor* conductor = GetConductor();
      std::vector<std::shared_ptr<TestSeeker>> mine;
      for (;;) {
        const int fd = ::accept4(listeners[static_cast<std::size_t>(i)],
                                 nullptr, nullptr, SOCK_CLOEXEC);
        if (fd < 0) break;
        char mark;
        if (::recv(fd, &mark, 1, 0) != 1 || mark == 'q') break;
        mine.push_back(AcceptorSeeker(fd));
        ASSERT_TRUE(mine.back()->Meet(conductor))
            << base::ReasonKey(mine.back()->failed);
        ExchangeNonces(mine.back().get());
      }
    }));
  }
  for (int fd : listeners) ::close(fd);
  const pid_t client = Spawn([=] {
    Conductor* conductor = GetConductor();
    std::vector<std::shared_ptr<TestSeeker>> mine;
    for (int k = 0; k < 12; ++k) {
      const int fd = Connect(address);
      EXPECT_EQ(::send(fd, "s", 1, 0), 1);
      mine.push_back(ConnectorSeeker(fd));
      ASSERT_TRUE(mine.back()->Meet(conductor))
          << base::ReasonKey(mine.back()->failed);
      ExchangeNonces(mine.back().get());
    }
    // Connections land on listeners by chance: until each has got its end.
    for (;;) {
      const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
      if (::connect(fd, reinterpret_cast<const sockaddr*>(&address),
                    sizeof address) != 0) {
        break;
      }
      ::send(fd, "q", 1, MSG_NOSIGNAL);
    }
  });
  ExpectSuccess(client);
  for (pid_t server : servers) ExpectSuccess(server);
}

TEST(Meet, TwoThousandStreams) {
  constexpr int kStreams = 2000;
  rlimit limit{8192, 8192};
  if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) {
    ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
    ASSERT_GE(limit.rlim_max, 8192u);
  }
  Barrier barrier;
  const auto pairs = MakeTcpPairs(kStreams);
  auto run = [&](bool connector) {
    return Spawn([&, connector] {
      Conductor* conductor = GetConductor();
      const std::size_t before = OpenFds().size();
      std::vector<std::shared_ptr<TestSeeker>> all;
      for (const TcpPair& pair : pairs) {
        all.push_back(connector ? ConnectorSeeker(pair.connector)
                                : AcceptorSeeker(pair.acceptor));
        all.back()->Start(conductor);
      }
      // Only so many wait at a time: the others try again, as streams do.
      const auto give_up = Clock::now() + std::chrono::seconds(30);
      for (auto& seeker : all) {
        while (!seeker->Wait()) {
          ASSERT_FALSE(seeker->final);
          ASSERT_LT(Clock::now(), give_up) << base::ReasonKey(seeker->failed);
          seeker->Start(conductor);
        }
      }
      for (auto& seeker : all) {
        SendAll(seeker->lane.get(), seeker->mine.data(), 16);
      }
      for (auto& seeker : all) {
        const std::string got = ReceiveAll(seeker->lane.get(), 16);
        EXPECT_EQ(std::memcmp(got.data(), seeker->peers.data(), 16), 0);
      }
      EXPECT_EQ(conductor->Links().size(), 1u);
      // One link, not one descriptor per stream.
      EXPECT_LT(OpenFds().size(), before + 20);
      EXPECT_TRUE(barrier.Meet(connector ? 0 : 1));
    });
  };
  const pid_t a = run(true);
  const pid_t b = run(false);
  for (const TcpPair& pair : pairs) {
    ::close(pair.connector);
    ::close(pair.acceptor);
  }
  ExpectSuccess(a);
  ExpectSuccess(b);
}

// Two users that have named each other; and where one has not.
TEST(Meet, UsersThatAreNamed) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root";
  for (const char* named : {"65534", "1,65534", "1", "65534,", "-2", "x"}) {
    SCOPED_TRACE(named);
    const bool met = std::strstr(named, "65534") != nullptr;
    const TcpPair pair = MakeTcpPair();
    auto run = [met](std::shared_ptr<TestSeeker> seeker, const char* peers) {
      ::setenv("RCSOCK_PEERS", peers, 1);
      base::LoadConfig();
      EXPECT_EQ(seeker->Seek(GetConductor()), met)
          << base::ReasonKey(seeker->failed);
      // Rule 2: let in, and no more.
      EXPECT_FALSE(seeker->authenticated);
    };
    const pid_t a = Spawn([&] { run(ConnectorSeeker(pair.connector), named); });
    const pid_t b = Spawn([&] {
      ASSERT_EQ(::setresuid(65534, 65534, 65534), 0);
      run(AcceptorSeeker(pair.acceptor), "0");
    });
    ExpectSuccess(a);
    ExpectSuccess(b);
  }
}

// They have no eventfd of each other's; whoever sleeps is woken all the same,
// each time.
TEST(Meet, UsersThatAreNamedWakeEachOther) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root";
  constexpr int kBell = 3;
  const TcpPair pair = MakeTcpPair();
  auto run = [](std::shared_ptr<TestSeeker> seeker, const char* peers,
                bool begins) {
    ::setenv("RCSOCK_PEERS", peers, 1);
    base::LoadConfig();
    Conductor* conductor = GetConductor();
    lane::shm::Bells* bells = conductor->bells();
    pollfd bell{bells->EnsureBell(kBell), POLLIN, 0};
    conductor->AnnounceBell(kBell);
    ASSERT_TRUE(seeker->Meet(conductor)) << base::ReasonKey(seeker->failed);
    seeker->lane->SetNotify(lane::kNotifyRxPoller, kBell);
    for (int i = 0; i < 1000; ++i) {
      if (begins) SendAll(seeker->lane.get(), "x", 1);
      bells->Arm(kBell);
      while (seeker->lane->Peek() != lane::Head::kData) {
        ASSERT_EQ(::poll(&bell, 1, 10'000), 1) << i;
        lane::shm::EmptyFd(bell.fd);
      }
      bells->Disarm(kBell);
      EXPECT_EQ(ReceiveAll(seeker->lane.get(), 1), "x");
      if (!begins) SendAll(seeker->lane.get(), "x", 1);
    }
  };
  const pid_t a =
      Spawn([&] { run(ConnectorSeeker(pair.connector), "65534", true); });
  const pid_t b = Spawn([&] {
    ASSERT_EQ(::setresuid(65534, 65534, 65534), 0);
    run(AcceptorSeeker(pair.acceptor), "0", false);
  });
  ExpectSuccess(a);
  ExpectSuccess(b);
}

// Both ends are looked for in one process that has met itself: it has no need
// of the name, which somebody else has here and says nothing at.
TEST(Meet, NewServiceOfOneProcess) {
  ExpectSuccess(Spawn([] {
    Conductor* conductor = GetConductor();
    const TcpPair first = MakeTcpPair();
    auto c = ConnectorSeeker(first.connector);
    auto s = AcceptorSeeker(first.acceptor);
    c->Start(conductor);
    s->Start(conductor);
    ASSERT_TRUE(c->Wait() && s->Wait()) << base::ReasonKey(c->failed);
    for (bool connector_first : {true, false}) {
      SCOPED_TRACE(connector_first);
      const TcpPair pair = MakeTcpPair();
      const int squatter = Squat(pair.connector);
      c = ConnectorSeeker(pair.connector);
      s = AcceptorSeeker(pair.acceptor);
      (connector_first ? c : s)->Start(conductor);
      Drain(conductor);  // it is at the name
      (connector_first ? s : c)->Start(conductor);
      ASSERT_TRUE(c->Wait()) << base::ReasonKey(c->failed);
      ASSERT_TRUE(s->Wait()) << base::ReasonKey(s->failed);
      ExpectAgree(*c, *s);
      SayThereAndBack(c.get(), s.get());
      ::close(squatter);
    }
    EXPECT_EQ(conductor->Links().size(), 2u);
  }));
}

}  // namespace
}  // namespace rcsock::rendezvous
