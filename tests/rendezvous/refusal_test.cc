// Peers that are none, or are not let in.

#include <poll.h>
#include <sys/mman.h>
#include <sys/un.h>

#include <atomic>
#include <cstring>
#include <memory>

#include "tests/rendezvous/util.h"

namespace rcsock::rendezvous {
namespace {

using base::Reason;

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
  auto* finals = static_cast<std::atomic<int>*>(
      ::mmap(nullptr, sizeof(std::atomic<int>), PROT_READ | PROT_WRITE,
             MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  auto run = [finals](std::shared_ptr<TestSeeker> seeker) {
    EXPECT_FALSE(seeker->Seek(GetConductor()));
    EXPECT_EQ(seeker->failed, Reason::kPeerUid);
    *finals += seeker->final;
  };
  const pid_t a = Spawn([&] { run(ConnectorSeeker(pair.connector)); });
  const pid_t b = Spawn([&] {
    ASSERT_EQ(::setresuid(65534, 65534, 65534), 0);
    run(AcceptorSeeker(pair.acceptor));
  });
  ExpectSuccess(a);
  ExpectSuccess(b);
  // Whoever finds the name taken knows that the other end is another user's.
  // Whoever has it knows only that another user has knocked.
  EXPECT_EQ(*finals, 1);
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
