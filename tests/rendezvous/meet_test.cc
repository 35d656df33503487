#include <poll.h>
#include <sys/resource.h>
#include <sys/un.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <set>

#include "lib/base/config.h"
#include "lib/rendezvous/address.h"
#include "tests/rendezvous/util.h"

namespace rcsock::rendezvous {
namespace {

using base::Reason;

// One end of `pair` in a process of its own: opens a lane and uses it.
pid_t SpawnEnd(int fd, stream::Role role, Barrier* barrier) {
  return Spawn([=] {
    auto seeker = std::make_shared<TestSeeker>(fd, role);
    if (!seeker->Meet(GetConductor())) {
      ADD_FAILURE() << base::ReasonKey(seeker->failed);
      return;
    }
    ExchangeNonces(seeker.get());
    EXPECT_TRUE(barrier->Meet(static_cast<int>(role)));
  });
}

TEST(Meet, TwoProcesses) {
  // Who decides is a matter of chance: both ways within a few rounds.
  for (int round = 0; round < 8; ++round) {
    Barrier barrier;
    const TcpPair pair = MakeTcpPair();
    const pid_t a =
        SpawnEnd(pair.connector, stream::Role::kConnector, &barrier);
    const pid_t b = SpawnEnd(pair.acceptor, stream::Role::kAcceptor, &barrier);
    ExpectSuccess(a);
    ExpectSuccess(b);
    // Nothing was said on TCP itself.
    char byte;
    EXPECT_EQ(::recv(pair.connector, &byte, 1, MSG_DONTWAIT), -1);
    EXPECT_EQ(::recv(pair.acceptor, &byte, 1, MSG_DONTWAIT), -1);
    ::close(pair.connector);
    ::close(pair.acceptor);
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
      c->Start(conductor);
      s->Start(conductor);
      ASSERT_TRUE(c->Wait()) << base::ReasonKey(c->failed);
      ASSERT_TRUE(s->Wait()) << base::ReasonKey(s->failed);
      EXPECT_NE(c->link(), s->link());
      EXPECT_EQ(c->epoch, s->epoch);
      EXPECT_EQ(c->mine, s->peers);
      EXPECT_EQ(s->mine, c->peers);
      EXPECT_TRUE(used.insert({c->link().get(), c->index()}).second);
      EXPECT_TRUE(used.insert({s->link().get(), s->index()}).second);
      SendAll(c->lane.get(), "there", 5);
      EXPECT_EQ(ReceiveAll(s->lane.get(), 5), "there");
      SendAll(s->lane.get(), "back", 4);
      EXPECT_EQ(ReceiveAll(c->lane.get(), 4), "back");
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

TEST(Refusal, PlainPeer) {
  ExpectSuccess(Spawn([] {
    Conductor* conductor = GetConductor();
    const TcpPair pair = MakeTcpPair();
    for (bool connector : {true, false}) {
      auto seeker = connector ? ConnectorSeeker(pair.connector)
                              : AcceptorSeeker(pair.acceptor);
      const auto before = Clock::now();
      EXPECT_FALSE(seeker->Seek(conductor));
      EXPECT_EQ(seeker->failed, Reason::kPeerPlain);
      EXPECT_FALSE(seeker->final);
      EXPECT_GE(Clock::now() - before, milliseconds(900));
    }
    // The plain ends were sent nothing.
    for (int fd : {pair.connector, pair.acceptor}) {
      pollfd readable{fd, POLLIN, 0};
      EXPECT_EQ(::poll(&readable, 1, 0), 0);
    }
  }));
}

TEST(Refusal, PlainServerIsRemembered) {
  ExpectSuccess(Spawn([] {
    Conductor* conductor = GetConductor();
    const auto pairs = MakeTcpPairs(2);
    auto first = ConnectorSeeker(pairs[0].connector);
    EXPECT_FALSE(first->Seek(conductor));
    const auto before = Clock::now();
    auto second = ConnectorSeeker(pairs[1].connector);
    EXPECT_FALSE(second->Seek(conductor));
    EXPECT_EQ(second->failed, Reason::kPeerPlain);
    EXPECT_FALSE(second->final);
    EXPECT_LT(Clock::now() - before, milliseconds(500));
    // One that waits for us is found all the same.
    auto server = AcceptorSeeker(pairs[1].acceptor);
    server->Start(conductor);
    Drain(conductor);
    EXPECT_TRUE(second->Seek(conductor)) << base::ReasonKey(second->failed);
    EXPECT_TRUE(server->Wait());
  }));
}

TEST(Refusal, DifferentUid) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root";
  const TcpPair pair = MakeTcpPair();
  auto run = [](std::shared_ptr<TestSeeker> seeker) {
    EXPECT_FALSE(seeker->Seek(GetConductor()));
    EXPECT_EQ(seeker->failed, Reason::kPeerUid);
    EXPECT_TRUE(seeker->final);
  };
  const pid_t a = Spawn([&] { run(ConnectorSeeker(pair.connector)); });
  const pid_t b = Spawn([&] {
    ASSERT_EQ(::setresuid(65534, 65534, 65534), 0);
    run(AcceptorSeeker(pair.acceptor));
  });
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

sockaddr_un NameOf(int fd, stream::Role role, socklen_t* length) {
  sockaddr_storage local;
  sockaddr_storage peer;
  EXPECT_TRUE(TestSeeker(fd, role).Names(&local, &peer));
  Address local_address;
  Address peer_address;
  std::uint16_t local_port;
  std::uint16_t peer_port;
  EXPECT_TRUE(Normalise(local, &local_address, &local_port));
  EXPECT_TRUE(Normalise(peer, &peer_address, &peer_port));
  sockaddr_un name;
  *length = MeetingName(
      MakeTuple(role, local_address, local_port, peer_address, peer_port),
      &name);
  return name;
}

TEST(Refusal, BothEndsComputeTheSameName) {
  const TcpPair pair = MakeTcpPair();
  socklen_t a_length;
  socklen_t b_length;
  const sockaddr_un a =
      NameOf(pair.connector, stream::Role::kConnector, &a_length);
  const sockaddr_un b =
      NameOf(pair.acceptor, stream::Role::kAcceptor, &b_length);
  EXPECT_EQ(a_length, b_length);
  EXPECT_EQ(std::memcmp(&a, &b, a_length), 0);
}

TEST(Refusal, Squatter) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root";
  for (bool listens : {true, false}) {
    const TcpPair pair = MakeTcpPair();
    Barrier barrier;
    const pid_t squatter = Spawn([&] {
      ASSERT_EQ(::setresuid(65534, 65534, 65534), 0);
      socklen_t length;
      const sockaddr_un name =
          NameOf(pair.connector, stream::Role::kConnector, &length);
      const int fd = ::socket(AF_UNIX, SOCK_SEQPACKET, 0);
      ASSERT_EQ(::bind(fd, reinterpret_cast<const sockaddr*>(&name), length),
                0);
      if (listens) {
        ASSERT_EQ(::listen(fd, 5), 0);
      }
      EXPECT_TRUE(barrier.Meet(0));
      EXPECT_TRUE(barrier.Meet(0));
    });
    const pid_t seeker = Spawn([&] {
      EXPECT_TRUE(barrier.Meet(1));
      auto own = ConnectorSeeker(pair.connector);
      EXPECT_FALSE(own->Seek(GetConductor()));
      EXPECT_EQ(own->failed, listens ? Reason::kPeerUid : Reason::kPeerPlain);
      EXPECT_EQ(own->final, listens);
      EXPECT_TRUE(barrier.Meet(1));
    });
    ExpectSuccess(seeker);
    ExpectSuccess(squatter);
  }
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
      socklen_t length;
      const sockaddr_un name =
          NameOf(pair.connector, stream::Role::kConnector, &length);
      const int squatter = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
      ASSERT_EQ(
          ::bind(squatter, reinterpret_cast<const sockaddr*>(&name), length),
          0);
      ASSERT_EQ(::listen(squatter, 5), 0);
      c = ConnectorSeeker(pair.connector);
      s = AcceptorSeeker(pair.acceptor);
      (connector_first ? c : s)->Start(conductor);
      Drain(conductor);  // it is at the name
      (connector_first ? s : c)->Start(conductor);
      ASSERT_TRUE(c->Wait()) << base::ReasonKey(c->failed);
      ASSERT_TRUE(s->Wait()) << base::ReasonKey(s->failed);
      EXPECT_EQ(c->epoch, s->epoch);
      EXPECT_EQ(c->mine, s->peers);
      EXPECT_EQ(s->mine, c->peers);
      SendAll(c->lane.get(), "there", 5);
      EXPECT_EQ(ReceiveAll(s->lane.get(), 5), "there");
      ::close(squatter);
    }
    EXPECT_EQ(conductor->Links().size(), 2u);
  }));
}

class RemoteSeeker : public TestSeeker {
 public:
  using TestSeeker::TestSeeker;
  bool Names(sockaddr_storage* local, sockaddr_storage* peer) override {
    TestSeeker::Names(local, peer);
    sockaddr_in remote{};
    remote.sin_family = AF_INET;
    remote.sin_port = htons(80);
    remote.sin_addr.s_addr = ::inet_addr("192.0.2.1");
    std::memcpy(peer, &remote, sizeof remote);
    return true;
  }
};

TEST(Refusal, PeerOnAnotherHost) {
  ExpectSuccess(Spawn([] {
    const TcpPair pair = MakeTcpPair();
    auto seeker = std::make_shared<RemoteSeeker>(pair.connector,
                                                 stream::Role::kConnector);
    EXPECT_FALSE(seeker->Seek(GetConductor()));
    EXPECT_EQ(seeker->failed, Reason::kNoDevice);
    EXPECT_TRUE(seeker->final);
  }));
}

TEST(Refusal, PeerNeverAdopts) {
  ExpectSuccess(Spawn([] {
    Conductor* conductor = GetConductor();
    const auto pairs = MakeTcpPairs(2);
    auto c = ConnectorSeeker(pairs[0].connector);
    auto s = AcceptorSeeker(pairs[0].acceptor);
    s->never_adopt = true;
    c->Start(conductor);
    s->Start(conductor);
    EXPECT_FALSE(c->Wait());
    EXPECT_FALSE(s->Wait());
    EXPECT_EQ(c->failed, Reason::kBusy);
    EXPECT_EQ(s->failed, Reason::kBusy);
    EXPECT_FALSE(c->final);
    // The link and the number are good for others, and for these two again.
    s->never_adopt = false;
    c->Start(conductor);
    s->Start(conductor);
    EXPECT_TRUE(c->Wait());
    EXPECT_TRUE(s->Wait());
    EXPECT_EQ(conductor->Links().size(), 2u);
  }));
}

// Takes a name and answers nobody.
int Squat(int connector_fd) {
  socklen_t length;
  const sockaddr_un name =
      NameOf(connector_fd, stream::Role::kConnector, &length);
  const int fd = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  EXPECT_EQ(::bind(fd, reinterpret_cast<const sockaddr*>(&name), length), 0);
  EXPECT_EQ(::listen(fd, 5), 0);
  return fd;
}

TEST(Neighbours, NeedNoName) {
  ExpectSuccess(Spawn([] {
    Conductor* conductor = GetConductor();
    const auto pairs = MakeTcpPairs(9);
    for (std::size_t i = 0; i < pairs.size(); ++i) {
      if (i > 0) Squat(pairs[i].connector);
      auto c = ConnectorSeeker(pairs[i].connector);
      auto s = AcceptorSeeker(pairs[i].acceptor);
      const bool connector_first = i % 2 == 0;
      (connector_first ? c : s)->Start(conductor);
      if (i % 3 == 0) Drain(conductor);
      (connector_first ? s : c)->Start(conductor);
      ASSERT_TRUE(c->Wait() && s->Wait())
          << i << " " << base::ReasonKey(c->failed);
      SendAll(c->lane.get(), "there", 5);
      EXPECT_EQ(ReceiveAll(s->lane.get(), 5), "there");
    }
  }));
}

TEST(Neighbours, NeedNoNameBetweenProcesses) {
  const auto pairs = MakeTcpPairs(9);
  for (std::size_t i = 1; i < pairs.size(); ++i) Squat(pairs[i].connector);
  const auto body = [&pairs](bool connects) {
    Conductor* conductor = GetConductor();
    std::vector<std::shared_ptr<TestSeeker>> all;
    for (const TcpPair& pair : pairs) {
      all.push_back(connects ? ConnectorSeeker(pair.connector)
                             : AcceptorSeeker(pair.acceptor));
      ASSERT_TRUE(all.back()->Meet(conductor))
          << all.size() << " " << base::ReasonKey(all.back()->failed);
    }
  };
  Barrier barrier;
  const pid_t one = Spawn([&] {
    body(true);
    barrier.Meet(0);
  });
  const pid_t other = Spawn([&] {
    body(false);
    barrier.Meet(1);
  });
  ExpectSuccess(one);
  ExpectSuccess(other);
}

TEST(Neighbours, OffersAreTakenBack) {
  ExpectSuccess(Spawn([] {
    Conductor* conductor = GetConductor();
    const auto pairs = MakeTcpPairs(2);
    const auto meet = [conductor](const TcpPair& pair) {
      auto c = ConnectorSeeker(pair.connector);
      auto s = AcceptorSeeker(pair.acceptor);
      c->Start(conductor);
      s->Start(conductor);
      EXPECT_TRUE(c->Wait() && s->Wait()) << base::ReasonKey(c->failed);
      const int index = c->index();
      conductor->ReturnLane(c, std::move(c->lane));
      conductor->ReturnLane(s, std::move(s->lane));
      Drain(conductor);
      return index;
    };
    meet(pairs[0]);
    // More than the other side keeps, and than a segment has numbers.
    for (int i = 0; i < 600; ++i) {
      auto seeker = ConnectorSeeker(pairs[1].connector);
      seeker->Start(conductor);
      if (i % 2 == 0) Drain(conductor);
      conductor->Cancel(seeker.get());
      if (i % 4 < 2) Drain(conductor);
    }
    // (Before that is done the other end may still take the last one.)
    Drain(conductor);
    EXPECT_LT(meet(pairs[1]), 64);
    EXPECT_EQ(conductor->Links().size(), 2u);
  }));
}

TEST(Neighbours, AnotherProcessHasIt) {
  const auto pairs = MakeTcpPairs(2);
  Barrier first;
  Barrier second;
  const pid_t wrong = Spawn([&] {
    auto s = AcceptorSeeker(pairs[0].acceptor);
    EXPECT_TRUE(s->Meet(GetConductor()));
    EXPECT_TRUE(first.Meet(0));
    EXPECT_TRUE(first.Meet(0));
  });
  const pid_t right = Spawn([&] {
    EXPECT_TRUE(second.Meet(0));
    auto s = AcceptorSeeker(pairs[1].acceptor);
    EXPECT_TRUE(s->Meet(GetConductor()));
    EXPECT_TRUE(second.Meet(0));
  });
  const pid_t connector = Spawn([&] {
    auto c = ConnectorSeeker(pairs[0].connector);
    EXPECT_TRUE(c->Meet(GetConductor()));
    EXPECT_TRUE(first.Meet(1));
    EXPECT_TRUE(second.Meet(1));
    auto d = ConnectorSeeker(pairs[1].connector);
    EXPECT_TRUE(d->Meet(GetConductor())) << base::ReasonKey(d->failed);
    EXPECT_TRUE(second.Meet(1));
    EXPECT_TRUE(first.Meet(1));
  });
  ExpectSuccess(connector);
  ExpectSuccess(right);
  ExpectSuccess(wrong);
}

bool Stopped(pid_t pid) {
  std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(stat, text);
  const std::size_t end = text.rfind(')');
  return end != std::string::npos && text.substr(end, 3) == ") T";
}

// A process that has stopped is offered so many lanes and no more; the others
// wait at their names.  When it goes on, all of them meet.
TEST(Neighbours, OneThatHasStoppedIsNotFlooded) {
  // (Which of the two decides, and so makes the offers, is as good as a coin.)
  for (int round = 0; round < 4; ++round) {
    const auto pairs = MakeTcpPairs(101);
    Barrier barrier;
    const pid_t stopped = Spawn([&] {
      auto first = AcceptorSeeker(pairs[0].acceptor);
      EXPECT_TRUE(first->Meet(GetConductor()));
      EXPECT_TRUE(barrier.Meet(0));
      EXPECT_TRUE(barrier.Meet(0));  // stopped here
      std::vector<std::shared_ptr<TestSeeker>> all;
      for (std::size_t i = 1; i < pairs.size(); ++i) {
        all.push_back(AcceptorSeeker(pairs[i].acceptor));
        all.back()->Start(GetConductor());
      }
      for (const auto& seeker : all) {
        EXPECT_TRUE(seeker->Wait() || seeker->Meet(GetConductor()))
            << base::ReasonKey(seeker->failed);
      }
      EXPECT_TRUE(barrier.Meet(0));
    });
    const pid_t other = Spawn([&] {
      Conductor* conductor = GetConductor();
      auto first = ConnectorSeeker(pairs[0].connector);
      EXPECT_TRUE(first->Meet(conductor));
      EXPECT_TRUE(barrier.Meet(1));
      ::kill(stopped, SIGSTOP);
      EXPECT_TRUE(Eventually([&] { return Stopped(stopped); }));
      std::vector<std::shared_ptr<TestSeeker>> all;
      for (std::size_t i = 1; i < pairs.size(); ++i) {
        all.push_back(ConnectorSeeker(pairs[i].connector));
        all.back()->Start(conductor);
      }
      Drain(conductor);
      // One segment has 64 numbers: a hundred offers would have made another.
      EXPECT_EQ(first->link()->segments(), 1);
      ::kill(stopped, SIGCONT);
      EXPECT_TRUE(barrier.Meet(1));
      for (const auto& seeker : all) {
        EXPECT_TRUE(seeker->Wait() || seeker->Meet(conductor))
            << base::ReasonKey(seeker->failed);
      }
      EXPECT_TRUE(barrier.Meet(1));
    });
    ExpectSuccess(other);
    ExpectSuccess(stopped);
    for (const TcpPair& pair : pairs) {
      ::close(pair.connector);
      ::close(pair.acceptor);
    }
  }
}

TEST(Refusal, CancelledSeekersAreNotCalled) {
  ExpectSuccess(Spawn([] {
    Conductor* conductor = GetConductor();
    const TcpPair pair = MakeTcpPair();
    const std::size_t before = OpenFds().size();
    for (int i = 0; i < 50; ++i) {
      auto seeker = ConnectorSeeker(pair.connector);
      seeker->Start(conductor);
      if (i % 2 == 0) Drain(conductor);  // let it bind its name
      conductor->Cancel(seeker.get());
      Drain(conductor);
      EXPECT_EQ(seeker->answers(), 0);
      // Handlers that were waiting run once more, with "aborted".
      EXPECT_TRUE(Eventually([&] { return seeker.use_count() == 1; }));
    }
    EXPECT_EQ(OpenFds().size(), before);
    // The name is free, and its holder can be met.
    auto c = ConnectorSeeker(pair.connector);
    auto s = AcceptorSeeker(pair.acceptor);
    c->Start(conductor);
    s->Start(conductor);
    EXPECT_TRUE(c->Wait());
    EXPECT_TRUE(s->Wait());
  }));
}

}  // namespace
}  // namespace rcsock::rendezvous
