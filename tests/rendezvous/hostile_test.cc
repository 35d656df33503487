// Peers that lie, flood, die and run out of things.
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/un.h>

#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "lib/base/config.h"
#include "lib/base/foreign_fd.h"
#include "lib/lane/shm/bells.h"
#include "lib/rendezvous/address.h"
#include "lib/rendezvous/wire.h"
#include "tests/base/lingering.h"
#include "tests/rendezvous/util.h"

namespace rcsock::rendezvous {
namespace {

using base::Reason;

bool ClosedByPeer(int fd) {
  char bytes[kMaxPacket];
  for (;;) {
    const ssize_t n = ::recv(fd, bytes, sizeof bytes, 0);
    if (n == 0 || (n < 0 && errno == ECONNRESET)) return true;
    if (n < 0) return false;
  }
}

Hello GoodHello(const Tuple& tuple, std::uint8_t uuid_byte) {
  auto hello = NewMessage<Hello>();
  std::memset(hello.uuid, uuid_byte, sizeof hello.uuid);
  std::memcpy(hello.tuple, &tuple, sizeof hello.tuple);
  hello.role = 1;  // the acceptor
  return hello;
}

TEST(Hostile, NonsenseAtTheName) {
  ExpectSuccess(Spawn([] {
    Conductor* conductor = GetConductor();
    const TcpPair pair = MakeTcpPair();
    const Tuple tuple = TupleOf(pair.connector);
    const std::size_t before = OpenFds().size();
    for (int kind = 0; kind < 6; ++kind) {
      auto c = ConnectorSeeker(pair.connector);
      auto s = AcceptorSeeker(pair.acceptor);
      c->Start(conductor);
      const int fd = Knock(tuple);
      Hello hello = GoodHello(tuple, 7);
      char bytes[4096] = {};
      switch (kind) {
        case 0:  // not a message
          std::memset(bytes, 0xa5, sizeof bytes);
          ::send(fd, bytes, 60, 0);
          break;
        case 1:  // longer than any
          ::send(fd, bytes, sizeof bytes, 0);
          break;
        case 2:  // another connection's
          hello.tuple[0] ^= 1;
          ::send(fd, &hello, sizeof hello, 0);
          break;
        case 3:  // my own role
          hello.role = 0;
          ::send(fd, &hello, sizeof hello, 0);
          break;
        case 4: {  // with descriptors
          int fds[kMaxFds];
          for (int& each : fds) each = fd;
          const int r = SendPacket(fd, &hello, sizeof hello, fds, kMaxFds);
          // Refused, until it is known whose process knocks.
          ASSERT_TRUE(r == 0 || r == -EPERM) << r;
          if (r != 0) ::shutdown(fd, SHUT_WR);
          break;
        }
        case 5:  // not a byte
          ::shutdown(fd, SHUT_WR);
          break;
      }
      EXPECT_TRUE(ClosedByPeer(fd)) << kind;
      ::close(fd);
      // The binder goes on waiting for its true peer.
      s->Start(conductor);
      EXPECT_TRUE(c->Wait()) << kind << base::ReasonKey(c->failed);
      EXPECT_TRUE(s->Wait()) << kind;
      conductor->ReturnLane(c, std::move(c->lane));
      conductor->ReturnLane(s, std::move(s->lane));
    }
    Drain(conductor);
    // The one link and its memory are all that is new.
    EXPECT_LT(OpenFds().size(), before + 16);
  }));
}

TEST(Hostile, OtherVersion) {
  ExpectSuccess(Spawn([] {
    const TcpPair pair = MakeTcpPair();
    auto c = ConnectorSeeker(pair.connector);
    c->Start(GetConductor());
    const int fd = Knock(TupleOf(pair.connector));
    Hello hello = GoodHello(TupleOf(pair.connector), 7);
    hello.header.version = kVersion + 1;
    ::send(fd, &hello, sizeof hello, 0);
    EXPECT_FALSE(c->Wait());
    EXPECT_EQ(c->failed, Reason::kPeerVersion);
    EXPECT_TRUE(c->final);
  }));
}

// Random records, sound headers among them, to both sides of a link.
TEST(Hostile, NonsenseOnTheLink) {
  ExpectSuccess(Spawn([] {
    Conductor* conductor = GetConductor();
    const TcpPair pair = MakeTcpPair();
    const Tuple tuple = TupleOf(pair.connector);
    std::mt19937 random(20261121);
    std::size_t settled = 0;
    for (int round = 0; round < 400; ++round) {
      // Behind too many closes that wait for a thread, no search begins.
      EXPECT_TRUE(Eventually([] { return !base::ClosesPileUp(); }));
      const bool victim_decides = round % 2 == 0;
      auto c = ConnectorSeeker(pair.connector);
      c->Start(conductor);
      const int fd = Knock(tuple);
      const Hello hello = GoodHello(tuple, victim_decides ? 0xff : 0);
      ::send(fd, &hello, sizeof hello, 0);
      const int memory =
          ::memfd_create("rcsock-test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
      const int bell = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
      if (round % 4 < 2) {
        EXPECT_EQ(::ftruncate(memory, 1 << 20), 0);
        ::fcntl(memory, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW);
      }
      const int messages = 1 + static_cast<int>(random() % 6);
      for (int i = 0; i < messages; ++i) {
        std::uint8_t bytes[kMaxPacket];
        for (auto& byte : bytes) {
          byte = static_cast<std::uint8_t>(random() % 3 ? 0 : random());
        }
        constexpr std::size_t kSizes[] = {
            sizeof(LinkMsg),    sizeof(LinkAck),  sizeof(BellMsg),
            sizeof(SegmentMsg), sizeof(OpenMsg),  sizeof(OpenedMsg),
            sizeof(RejectMsg),  sizeof(ReadyMsg), sizeof(ClosedMsg),
            sizeof(RungMsg),    sizeof(MemoryMsg)};
        constexpr std::size_t kRung = std::size(kSizes) - 2;
        const std::size_t kind = random() % std::size(kSizes);
        const std::size_t length = kSizes[kind];
        if (random() % 8 != 0) {
          Header header{kMagic, kVersion,
                        kind == kRung       ? Type::kRung
                        : kind == kRung + 1 ? Type::kMemory
                                            : static_cast<Type>(kind + 2),
                        static_cast<std::uint16_t>(length)};
          std::memcpy(bytes, &header, sizeof header);
        }
        int fds[kMaxFds];
        for (int& each : fds) each = random() % 2 ? memory : bell;
        const int count = static_cast<int>(random() % 4);
        SendPacket(fd, bytes, length, fds, count);
      }
      ::shutdown(fd, SHUT_WR);
      EXPECT_FALSE(c->Wait());
      EXPECT_TRUE(ClosedByPeer(fd));
      ::close(fd);
      ::close(memory);
      ::close(bell);
      Drain(conductor);
      EXPECT_TRUE(conductor->Links().empty());
      // Whatever a round leaves behind would add up.
      if (round == 20) settled = OpenFds().size();
    }
    // Other threads make the closes.
    EXPECT_TRUE(Eventually([&] { return OpenFds().size() <= settled + 2; }))
        << OpenFds().size();
    auto c = ConnectorSeeker(pair.connector);
    auto s = AcceptorSeeker(pair.acceptor);
    c->Start(conductor);
    s->Start(conductor);
    EXPECT_TRUE(c->Wait());
    EXPECT_TRUE(s->Wait());
  }));
}

// What comes next on a link; with its descriptors.
template <typename Message>
bool Next(int fd, Message* message) {
  Packet packet;
  Received got = Received::kNothing;
  Eventually([&] {
    got = Receive(fd, &packet);
    return got != Received::kNothing;
  });
  return got == Received::kPacket && packet.Read(message);
}

// A user that is named (RCSOCK_PEERS) claims to be a process of our own that
// we know, takes part in a stream, and then is not told of another.
TEST(Hostile, ANamedUserIsNotOneOfUs) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root";
  const auto pairs = MakeTcpPairs(3);
  Barrier barrier;
  const pid_t other = Spawn([&] {
    ASSERT_EQ(::setresuid(65534, 65534, 65534), 0);
    ASSERT_TRUE(barrier.Meet(0));
    const Tuple tuple = TupleOf(pairs[1].connector);
    const int fd = Knock(tuple);
    Hello theirs;
    ASSERT_TRUE(Next(fd, &theirs));
    Hello hello = GoodHello(tuple, 0);
    std::memcpy(hello.uuid, theirs.uuid, sizeof hello.uuid);
    ASSERT_EQ(SendPacket(fd, &hello, sizeof hello, nullptr, 0), 0);
    // A link of its own, not the one with the process of that name.
    LinkMsg link;
    ASSERT_TRUE(Next(fd, &link));
    const auto bells = lane::shm::Bells::Create();
    const int page = bells->SharePage();
    const auto ack = NewMessage<LinkAck>();
    ASSERT_EQ(SendPacket(fd, &ack, sizeof ack, &page, 1), 0);
    SegmentMsg segment;
    ASSERT_TRUE(Next(fd, &segment));
    OpenMsg open;
    ASSERT_TRUE(Next(fd, &open));
    auto opened = NewMessage<OpenedMsg>();
    auto ready = NewMessage<ReadyMsg>();
    opened.index = ready.index = open.index;
    opened.epoch = ready.epoch = open.epoch;
    opened.claim.number = static_cast<std::uint32_t>(pairs[1].acceptor);
    opened.claim.traffic.acked = UINT64_MAX;
    ASSERT_EQ(SendPacket(fd, &opened, sizeof opened, nullptr, 0), 0);
    ASSERT_EQ(SendPacket(fd, &ready, sizeof ready, nullptr, 0), 0);
    ReadyMsg theirs_ready;
    ASSERT_TRUE(Next(fd, &theirs_ready));
    ASSERT_TRUE(barrier.Meet(0));
    // An offer would have come before the name was there to knock at.
    const int again = Knock(TupleOf(pairs[2].connector));
    ASSERT_TRUE(Next(again, &theirs));
    Packet packet;
    EXPECT_EQ(Receive(fd, &packet), Received::kNothing);
    EXPECT_TRUE(barrier.Meet(0));
  });
  const pid_t victim = Spawn([&] {
    ::setenv("RCSOCK_PEERS", "65534", 1);
    base::LoadConfig();
    Conductor* conductor = GetConductor();
    // A link with a process of our uid, which both ends know: this one.
    auto c = ConnectorSeeker(pairs[0].connector);
    auto s = AcceptorSeeker(pairs[0].acceptor);
    c->Start(conductor);
    s->Start(conductor);
    ASSERT_TRUE(c->Wait() && s->Wait());
    EXPECT_TRUE(c->authenticated && s->authenticated);
    auto second = ConnectorSeeker(pairs[1].connector);
    ASSERT_TRUE(barrier.Meet(1));
    ASSERT_TRUE(second->Seek(conductor)) << base::ReasonKey(second->failed);
    EXPECT_FALSE(second->authenticated);
    EXPECT_EQ(conductor->Links().size(), 3u);
    ASSERT_TRUE(barrier.Meet(1));
    auto third = ConnectorSeeker(pairs[2].connector);
    third->Start(conductor);
    EXPECT_TRUE(barrier.Meet(1));
    conductor->Cancel(third.get());
  });
  ExpectSuccess(other);
  ExpectSuccess(victim);
}

// A user that is named gets no eventfd of ours, which he could empty; and his,
// whose counter is full and which blocks, is not written to.  He is rung by
// messages, also where he does not read them.
TEST(Hostile, ANamedUserHoldsUpNobody) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root";
  constexpr int kKicks = 2000;
  const TcpPair pair = MakeTcpPair();
  Barrier barrier;
  const pid_t other = Spawn([&] {
    ASSERT_EQ(::setresuid(65534, 65534, 65534), 0);
    ASSERT_TRUE(barrier.Meet(0));
    const Tuple tuple = TupleOf(pair.connector);
    const int fd = Knock(tuple);
    Packet packet;
    auto next = [&](auto* message) {
      Received got = Received::kNothing;
      Eventually([&] {
        packet = Packet();
        got = Receive(fd, &packet);
        return got != Received::kNothing;
      });
      return got == Received::kPacket && packet.Read(message);
    };
    Hello theirs;
    ASSERT_TRUE(next(&theirs));
    const Hello hello = GoodHello(tuple, 0xff);
    ASSERT_EQ(SendPacket(fd, &hello, sizeof hello, nullptr, 0), 0);
    LinkMsg link;
    ASSERT_TRUE(next(&link));
    EXPECT_EQ(link.bells, 0u);
    EXPECT_EQ(packet.fd_count, 2);
    const auto memory = lane::shm::Link::Map(packet.TakeFd(0));
    ASSERT_NE(memory, nullptr);
    ASSERT_TRUE(memory->SetPeerBellPage(packet.TakeFd(1)));
    const auto bells = lane::shm::Bells::Create();
    const int bell = bells->EnsureBell(0);
    const std::uint64_t full = UINT64_MAX - 1;
    ASSERT_EQ(::write(bell, &full, sizeof full), 8);
    ASSERT_EQ(::fcntl(bell, F_SETFL, 0), 0);
    auto ack = NewMessage<LinkAck>();
    ack.bells = 1;
    const int fds[] = {bells->SharePage(), bell};
    ASSERT_EQ(SendPacket(fd, &ack, sizeof ack, fds, 2), 0);
    SegmentMsg segment;
    ASSERT_TRUE(next(&segment));
    ASSERT_TRUE(memory->MapSegment(packet.TakeFd(0)));
    OpenMsg open;
    ASSERT_TRUE(next(&open));
    auto opened = NewMessage<OpenedMsg>();
    auto ready = NewMessage<ReadyMsg>();
    opened.index = ready.index = open.index;
    opened.epoch = ready.epoch = open.epoch;
    opened.claim.number = static_cast<std::uint32_t>(pair.acceptor);
    opened.claim.traffic.acked = UINT64_MAX;
    ASSERT_EQ(SendPacket(fd, &opened, sizeof opened, nullptr, 0), 0);
    const auto lane = memory->OpenLane(static_cast<int>(open.index));
    ASSERT_NE(lane, nullptr);
    lane->SetNotify(lane::kNotifyRxPoller | lane::kNotifyRxBits, 0);
    bells->Arm(0);
    ASSERT_EQ(SendPacket(fd, &ready, sizeof ready, nullptr, 0), 0);
    ReadyMsg theirs_ready;
    ASSERT_TRUE(next(&theirs_ready));
    // Every message has a generation of its own to kick for.
    bool all = true;
    for (int i = 0; i < kKicks && all; ++i) {
      all = Eventually([&] { return lane->Peek() == lane::Head::kData; });
      if (!all) break;
      bells->Renew(0);
      EXPECT_EQ(ReceiveAll(lane.get(), 1), "x");
      lane->Credit();
    }
    EXPECT_TRUE(all);
    // Wakes a victim that has been blocked, for its own verdict.
    std::uint64_t count;
    EXPECT_EQ(::read(bell, &count, sizeof count), 8);
    EXPECT_EQ(count, full);
    EXPECT_TRUE(barrier.Meet(0));
    int rung = 0;
    for (packet = Packet(); Receive(fd, &packet) == Received::kPacket;
         packet = Packet()) {
      RungMsg message;
      ASSERT_TRUE(packet.Read(&message));
      ++rung;
    }
    // The socket's room, and what is said of the rest.
    EXPECT_GT(rung, 0);
    EXPECT_LT(rung, kKicks);
    EXPECT_EQ(memory->TakeRung(), 1u);
    EXPECT_TRUE(barrier.Meet(0));
  });
  const pid_t victim = Spawn([&] {
    ::setenv("RCSOCK_PEERS", "65534", 1);
    base::LoadConfig();
    Conductor* conductor = GetConductor();
    auto c = ConnectorSeeker(pair.connector);
    ASSERT_TRUE(barrier.Meet(1));
    ASSERT_TRUE(c->Seek(conductor)) << base::ReasonKey(c->failed);
    for (int i = 0; i < kKicks; ++i) SendAll(c->lane.get(), "x", 1);
    EXPECT_TRUE(barrier.Meet(1));
    EXPECT_EQ(c->lane->State(), Reason::kNone);
    EXPECT_TRUE(barrier.Meet(1));
  });
  ExpectSuccess(other);
  ExpectSuccess(victim);
}

// All abstract names of rcsock's that this network namespace has.
std::vector<std::string> AllNames() {
  std::vector<std::string> names;
  std::ifstream file("/proc/net/unix");
  for (std::string line; std::getline(file, line);) {
    const std::size_t at = line.find("@rcsock/1/");
    if (at != std::string::npos) names.push_back(line.substr(at + 1));
  }
  return names;
}

// Another user sends files whose last close waits to every name that there is:
// a fork does not wait for the conductor, and the true peer is met.  Both with
// what the kernel refuses by itself, and where it refuses nothing.
TEST(Hostile, AStrangersFilesHoldUpNobody) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root";
  constexpr int kLinger = 8;
  for (const bool old_kernel : {false, true}) {
    const TcpPair pair = MakeTcpPair();
    Barrier barrier;
    const pid_t stranger = Spawn([&] {
      ASSERT_EQ(::setresuid(23456, 23456, 23456), 0);
      ASSERT_TRUE(barrier.Meet(0));
      int sent = 0;
      std::size_t tried = 0;
      std::vector<Lingering> sockets;
      // (The binder may not be at its name yet.)
      for (int look = 0; look < 50 && (tried == 0 || (old_kernel && sent == 0));
           ++look) {
        for (const std::string& text : AllNames()) {
          sockaddr_un name{};
          name.sun_family = AF_UNIX;
          text.copy(name.sun_path + 1, sizeof name.sun_path - 1);
          const auto length = static_cast<socklen_t>(
              offsetof(sockaddr_un, sun_path) + 1 + text.size());
          sockets.emplace_back(kLinger);
          const int fd = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0);
          if (::connect(fd, reinterpret_cast<sockaddr*>(&name), length) == 0) {
            ++tried;
            sent += sockets.back().SendTo(fd);
          }
          ::close(fd);
        }
        ::usleep(10'000);
      }
      EXPECT_TRUE(sent > 0 || !old_kernel);
      EXPECT_TRUE(barrier.Meet(0));
      EXPECT_TRUE(barrier.Meet(0));
    });
    const pid_t victim = Spawn([&] {
      base::PretendFilesCannotBeRefused(old_kernel);
      Conductor* conductor = GetConductor();
      auto c = ConnectorSeeker(pair.connector);
      c->Start(conductor);
      ASSERT_TRUE(barrier.Meet(1));
      ASSERT_TRUE(barrier.Meet(1));
      const auto before = Clock::now();
      Drain(conductor);
      Conductor::ForkPrepare();
      Conductor::ForkParent();
      EXPECT_LT(Clock::now() - before, std::chrono::seconds(kLinger / 2));
      auto s = AcceptorSeeker(pair.acceptor);
      s->Start(conductor);
      const bool met = c->Wait() && s->Wait();
      EXPECT_LT(Clock::now() - before, std::chrono::seconds(kLinger / 2));
      // (Where the stranger took long the binder had given up by then.)
      EXPECT_TRUE(met || Met(conductor, c, s));
      EXPECT_TRUE(barrier.Meet(1));
    });
    ExpectSuccess(stranger);
    ExpectSuccess(victim);
    CloseBoth(pair);
  }
}

// Visitors of our own uid that say nothing, one after the other.
TEST(Hostile, WhoSaysNothingIsNotWaitedFor) {
  ExpectSuccess(Spawn([] {
    Conductor* conductor = GetConductor();
    const TcpPair pair = MakeTcpPair();
    const Tuple tuple = TupleOf(pair.connector);
    auto c = ConnectorSeeker(pair.connector);
    c->Start(conductor);
    std::vector<int> silent;
    for (int i = 0; i < 6; ++i) silent.push_back(Knock(tuple));
    auto s = AcceptorSeeker(pair.acceptor);
    s->Start(conductor);
    EXPECT_TRUE(c->Wait()) << base::ReasonKey(c->failed);
    EXPECT_TRUE(s->Wait()) << base::ReasonKey(s->failed);
    for (const int fd : silent) ::close(fd);
  }));
}

enum class Step { kOtherAdopts, kOtherOpens, kRunning };

// The peer is killed at one step of the way; the survivor hears of it.
void KillAt(Step step) {
  const TcpPair pair = MakeTcpPair();
  Barrier barrier;
  const pid_t victim = Spawn([&] {
    auto s = AcceptorSeeker(pair.acceptor);
    auto die = [] { ::kill(::getpid(), SIGKILL); };
    if (step == Step::kOtherAdopts) s->on_adopt = die;
    if (step == Step::kOtherOpens) s->on_open = die;
    s->Meet(GetConductor());
    barrier.Meet(0);
    die();
  });
  const pid_t survivor = Spawn([&] {
    auto c = ConnectorSeeker(pair.connector);
    Conductor* conductor = GetConductor();
    const bool met = c->Meet(conductor);
    if (met && step == Step::kRunning) barrier.Meet(1);
    const auto before = Clock::now();
    if (met) {
      EXPECT_NE(step, Step::kOtherAdopts);
      EXPECT_TRUE(c->WaitLost());
      EXPECT_EQ(c->lost, Reason::kPeerGone);
      EXPECT_EQ(c->lane->State(), Reason::kPeerGone);
      conductor->ReturnLane(c, std::move(c->lane));
    } else {
      // A process that is ending has lost its descriptors before anything else
      // tells that it ends.
      EXPECT_TRUE(c->failed == Reason::kPeerGone ||
                  c->failed == Reason::kNotProven)
          << base::ReasonKey(c->failed);
      EXPECT_FALSE(c->final);
    }
    EXPECT_LT(Clock::now() - before, milliseconds(1500));
    EXPECT_TRUE(Eventually([&] { return conductor->Links().empty(); }));
  });
  ExpectKilled(victim);
  ExpectSuccess(survivor);
}

TEST(Death, WhileAdopting) {
  for (int i = 0; i < 6; ++i) KillAt(Step::kOtherAdopts);
}
TEST(Death, WhileOpening) {
  for (int i = 0; i < 6; ++i) KillAt(Step::kOtherOpens);
}
TEST(Death, WithALane) {
  for (int i = 0; i < 6; ++i) KillAt(Step::kRunning);
}

// The peer says HELLO, lower or higher than ours, and is gone.
TEST(Death, AfterHello) {
  for (int uuid : {0, 0xff}) {
    ExpectSuccess(Spawn([uuid] {
      const TcpPair pair = MakeTcpPair();
      const Tuple tuple = TupleOf(pair.connector);
      auto c = ConnectorSeeker(pair.connector);
      Conductor* conductor = GetConductor();
      const auto before = Clock::now();
      c->Start(conductor);
      const int fd = Knock(tuple);
      Hello hello;
      EXPECT_EQ(::recv(fd, &hello, sizeof hello, 0),
                static_cast<ssize_t>(sizeof hello));
      hello = GoodHello(tuple, static_cast<std::uint8_t>(uuid));
      ::send(fd, &hello, sizeof hello, 0);
      ::close(fd);
      EXPECT_FALSE(c->Wait());
      EXPECT_EQ(c->failed, Reason::kPeerGone);
      EXPECT_LT(Clock::now() - before, milliseconds(900));
    }));
  }
}

TEST(Scarcity, NoDescriptorsForTheConductor) {
  ExpectSuccess(Spawn([] {
    const int top = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    rlimit limit{static_cast<rlim_t>(top) + 1, 4096};
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
    Reason why;
    EXPECT_EQ(Conductor::Get(&why), nullptr);
    EXPECT_EQ(why, Reason::kNoFds);
    limit.rlim_cur = 4096;
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
    // Not at once, so that a process in need is left alone for a while.
    EXPECT_TRUE(Eventually([&] { return Conductor::Get(&why) != nullptr; }));
  }));
}

TEST(Scarcity, NoDescriptorsForASeeker) {
  ExpectSuccess(Spawn([] {
    Conductor* conductor = GetConductor();
    const auto pairs = MakeTcpPairs(2);
    rlimit before{};
    ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
    // Below every free number, after however many descriptors.
    for (int room = 0; room < 12; ++room) {
      std::vector<int> fillers;
      rlimit limit{256, before.rlim_max};
      ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
      for (;;) {
        const int fd = ::fcntl(0, F_DUPFD_CLOEXEC, 0);
        if (fd < 0) break;
        fillers.push_back(fd);
      }
      for (int i = 0; i < room; ++i) {
        ::close(fillers.back());
        fillers.pop_back();
      }
      auto c = ConnectorSeeker(pairs[0].connector);
      auto s = AcceptorSeeker(pairs[0].acceptor);
      c->Start(conductor);
      s->Start(conductor);
      const bool c_open = c->Wait();
      const bool s_open = s->Wait();
      EXPECT_EQ(c_open, s_open) << room;
      if (room == 0) {
        EXPECT_EQ(c->failed, Reason::kNoFds);
      }
      for (int fd : fillers) ::close(fd);
      if (c_open) conductor->ReturnLane(c, std::move(c->lane));
      if (s_open) conductor->ReturnLane(s, std::move(s->lane));
    }
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
    auto c = ConnectorSeeker(pairs[1].connector);
    auto s = AcceptorSeeker(pairs[1].acceptor);
    c->Start(conductor);
    s->Start(conductor);
    EXPECT_TRUE(c->Wait()) << base::ReasonKey(c->failed);
    EXPECT_TRUE(s->Wait()) << base::ReasonKey(s->failed);
  }));
}

}  // namespace
}  // namespace rcsock::rendezvous
