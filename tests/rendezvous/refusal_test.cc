// Peers that are none, or are not let in.

#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/un.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <thread>

#include "lib/base/config.h"
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

// A thread that is another user's for a moment, by a system call of its own,
// neither presents itself as that user nor takes it for ours.
TEST(Refusal, ThreadOfAnotherUser) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root";
  constexpr uid_t kUser = 23456;
  const auto pairs = MakeTcpPairs(3);
  Barrier barrier;
  const pid_t other = Spawn([&] {
    ASSERT_EQ(::setresuid(kUser, kUser, kUser), 0);
    auto s = AcceptorSeeker(pairs[1].acceptor);
    EXPECT_FALSE(s->Seek(GetConductor()));
    EXPECT_TRUE(barrier.Meet(0));
  });
  const pid_t mixed = Spawn([&] {
    Conductor* conductor = GetConductor();
    // The process has met itself: its threads may take the conductor's place.
    auto c = ConnectorSeeker(pairs[0].connector);
    auto s = AcceptorSeeker(pairs[0].acceptor);
    ASSERT_TRUE(Met(conductor, c, s));
    std::thread([&] {
      ASSERT_EQ(::syscall(SYS_setresuid, -1, kUser, -1), 0);
      auto seeker = ConnectorSeeker(pairs[1].connector);
      EXPECT_FALSE(seeker->Seek(conductor));
      // All three: then only the other threads tell.
      ASSERT_EQ(::syscall(SYS_setresuid, -1, 0, -1), 0);
      ASSERT_EQ(::syscall(SYS_setresuid, kUser, kUser, kUser), 0);
      EXPECT_FALSE(seeker->Seek(conductor));
      // Its streams are the process's all the same.
      auto near = ConnectorSeeker(pairs[2].connector);
      auto far = AcceptorSeeker(pairs[2].acceptor);
      EXPECT_TRUE(Met(conductor, near, far));
    }).join();
    EXPECT_TRUE(barrier.Meet(1));
  });
  ExpectSuccess(other);
  ExpectSuccess(mixed);
}

// In a user namespace all users that have no number there are one.
TEST(Refusal, WhoHasNoNumberHere) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root";
  constexpr uid_t kOutside = 23456;
  const TcpPair pair = MakeTcpPair();
  Barrier ready;
  Barrier mapped;
  const pid_t server = Spawn([&] {
    ASSERT_EQ(::setresuid(kOutside, kOutside, kOutside), 0);
    ASSERT_EQ(::prctl(PR_SET_DUMPABLE, 1), 0);
    ASSERT_EQ(::unshare(CLONE_NEWUSER), 0);
    ASSERT_TRUE(ready.Meet(0));
    ASSERT_TRUE(mapped.Meet(0));
    ASSERT_EQ(::geteuid(), 65534u);
    auto s = AcceptorSeeker(pair.acceptor);
    EXPECT_FALSE(s->Seek(GetConductor()));
    EXPECT_EQ(s->failed, Reason::kPeerUid);
  });
  const pid_t client = Spawn([&] {
    ::setenv("RCSOCK_PEERS", "23456", 1);
    base::LoadConfig();
    ASSERT_TRUE(ready.Meet(1));
    const std::string path = "/proc/" + std::to_string(server) + "/uid_map";
    const int map = ::open(path.c_str(), O_WRONLY);
    const std::string line = "65534 " + std::to_string(kOutside) + " 1";
    ASSERT_EQ(::write(map, line.data(), line.size()),
              static_cast<ssize_t>(line.size()));
    ::close(map);
    ASSERT_EQ(::setresuid(33, 33, 33), 0);
    ASSERT_TRUE(mapped.Meet(1));
    EXPECT_FALSE(ConnectorSeeker(pair.connector)->Seek(GetConductor()));
  });
  ExpectSuccess(server);
  ExpectSuccess(client);
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
