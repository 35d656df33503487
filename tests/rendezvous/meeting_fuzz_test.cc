// The whole meeting, HELLO to READY, with a peer that knows it, has the other
// end of the connection, and breaks one thing or several on the way.  The
// process lives, its conductor goes on taking turns, an honest pair still
// meets, and nothing is left behind.
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/un.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "lib/lane/shm/bells.h"
#include "lib/lane/shm/layout.h"
#include "lib/rendezvous/wire.h"
#include "tests/base/lingering.h"
#include "tests/rendezvous/util.h"

namespace rcsock::rendezvous {
namespace {

// How far a round has come.
enum Stage { kKnocked, kHello, kLinked, kOpened, kReadied, kLane, kStages };

class Breaker {
 public:
  Breaker(std::uint64_t seed, const Uuid& victims) : random_(seed) {
    // None is broken in some rounds: those come to a lane.
    breaks_ = Below(5);
    for (int i = 0; i < 16; ++i)
      uuid_[i] = static_cast<std::uint8_t>(random_());
    switch (Below(4)) {
      case 0:
        uuid_.fill(0);
        break;
      case 1:
        uuid_.fill(0xff);
        break;
      case 2:
        uuid_ = victims;
        break;
      default:
        break;
    }
    bells_ = lane::shm::Bells::Create();
    bells_->EnsureBell(0);
  }
  ~Breaker() {
    if (fd_ >= 0) ::close(fd_);
    for (const int fd : junk_) ::close(fd);
  }

  // Plays the acceptor of that connection.
  Stage Play(const TcpPair& pair) {
    const Tuple tuple = TupleOf(pair.connector);
    number_ = static_cast<std::uint32_t>(pair.acceptor);
    fd_ = Knock(tuple, Below(8) != 0 ? Named::kByKernel : Named::kNot);
    Hello theirs{};
    if (!Next(&theirs)) return kKnocked;
    auto hello = NewMessage<Hello>();
    std::memcpy(hello.uuid, uuid_.data(), uuid_.size());
    hello.thread = static_cast<std::uint32_t>(::gettid());
    std::memcpy(hello.tuple, &tuple, sizeof hello.tuple);
    hello.role = 1;
    Send(&hello, {});
    const bool decides =
        std::memcmp(uuid_.data(), theirs.uuid, uuid_.size()) < 0;
    return decides ? Decide(tuple) : Follow();
  }

 private:
  std::uint64_t Below(std::uint64_t n) { return random_() % n; }
  bool Break() {
    if (breaks_ == 0 || Below(4) != 0) return false;
    --breaks_;
    return true;
  }

  int Junk() {
    int fd = -1;
    switch (Below(8)) {
      case 0: {
        int ends[2];
        if (::pipe2(ends, O_CLOEXEC) == 0) {
          fd = ends[0];
          junk_.push_back(ends[1]);
        }
        break;
      }
      case 1:
        fd = ::open("/proc/self/status", O_RDONLY | O_CLOEXEC);
        break;
      case 2:
        fd = ::memfd_create("rcsock-fuzz", MFD_CLOEXEC);
        break;
      case 3: {  // sealed, of a size that none has
        fd = ::memfd_create("rcsock-fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        EXPECT_EQ(::ftruncate(fd, static_cast<off_t>(Below(1 << 20))), 0);
        ::fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW);
        break;
      }
      case 4: {  // full, and it blocks
        fd = ::eventfd(0, EFD_CLOEXEC);
        const std::uint64_t full = UINT64_MAX - 1;
        EXPECT_EQ(::write(fd, &full, sizeof full), 8);
        break;
      }
      case 5: {
        Lingering socket(1);
        fd = socket.Take();
        break;
      }
      case 6: {
        int ends[2];
        if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) ==
            0) {
          Lingering socket(1);
          socket.SendTo(ends[0]);
          fd = ends[1];
          junk_.push_back(ends[0]);
        }
        break;
      }
      default:
        return fd_;
    }
    junk_.push_back(fd);
    return fd;
  }

  // One message, or what is made of it.
  template <typename Message>
  void Send(const Message* message, std::vector<int> fds) {
    std::vector<std::uint8_t> bytes(sizeof *message);
    std::memcpy(bytes.data(), message, bytes.size());
    int times = 1;
    while (Break()) {
      switch (Below(9)) {
        case 0:  // a bit, anywhere
        case 1:
          bytes[Below(bytes.size())] ^= 1 << Below(8);
          break;
        case 2:  // extreme values
          std::memset(bytes.data() + Below(bytes.size() - 3),
                      Below(2) ? 0xff : 0, 4);
          break;
        case 3:
          bytes.resize(Below(2 * kMaxPacket));
          break;
        case 4:
          times = Below(2) == 0 ? 0 : static_cast<int>(1 + Below(100));
          break;
        case 5:
          for (std::uint64_t i = 1 + Below(3); i > 0; --i)
            fds.push_back(Junk());
          break;
        case 6:
          if (!fds.empty()) fds[Below(fds.size())] = Junk();
          break;
        case 7:
          if (!fds.empty()) fds.pop_back();
          break;
        default:
          ::shutdown(fd_, Below(2) ? SHUT_WR : SHUT_RDWR);
          break;
      }
      if (bytes.size() < 4) bytes.resize(4);
    }
    fds.resize(std::min<std::size_t>(fds.size(), kMaxFds));
    for (int i = 0; i < times; ++i) {
      SendPacket(fd_, bytes.data(), bytes.size(), fds.data(),
                 static_cast<int>(fds.size()));
    }
    if (Break()) Other();
  }

  // A message of any kind, where it has no place.
  void Other() {
    const auto any = [this](auto message) {
      auto* bytes = reinterpret_cast<std::uint8_t*>(&message);
      for (std::size_t i = sizeof(Header); i < sizeof message; ++i) {
        bytes[i] = static_cast<std::uint8_t>(Below(4) == 0 ? random_() : 0);
      }
      Send(&message, {});
    };
    switch (Below(10)) {
      case 0:
        return any(NewMessage<Hello>());
      case 1:
        return any(NewMessage<LinkMsg>());
      case 2:
        return any(NewMessage<LinkAck>());
      case 3:
        return any(NewMessage<BellMsg>());
      case 4:
        return any(NewMessage<SegmentMsg>());
      case 5:
        return any(NewMessage<OpenMsg>());
      case 6:
        return any(NewMessage<OpenedMsg>());
      case 7:
        return any(NewMessage<ReadyMsg>());
      case 8:
        return any(NewMessage<ClosedMsg>());
      default:
        return any(NewMessage<RungMsg>());
    }
  }

  template <typename Message>
  bool Next(Message* message) {
    for (int i = 0; i < 300; ++i) {
      packet_ = Packet();
      switch (Receive(fd_, &packet_)) {
        case Received::kPacket:
          // (RUNG may come between any two.)
          if (packet_.Read(message)) return true;
          continue;
        case Received::kNothing:
          ::usleep(1000);
          continue;
        default:
          return false;
      }
    }
    return false;
  }

  Claim OurClaim() const {
    Claim claim{};
    claim.number = number_;
    claim.traffic.acked = UINT64_MAX;
    return claim;
  }

  Stage Follow() {
    LinkMsg link;
    if (!Next(&link)) return kHello;
    if (packet_.fd_count >= 1)
      memory_ = lane::shm::Link::Map(packet_.TakeFd(0));
    auto ack = NewMessage<LinkAck>();
    ack.bells = 1;
    Send(&ack, {bells_->SharePage(), bells_->bell_fd(0)});
    SegmentMsg segment;
    if (!Next(&segment)) return kHello;
    if (memory_ != nullptr) memory_->MapSegment(packet_.TakeFd(0));
    OpenMsg open;
    if (!Next(&open)) return kLinked;
    auto opened = NewMessage<OpenedMsg>();
    opened.index = open.index;
    opened.epoch = open.epoch;
    opened.claim = OurClaim();
    Send(&opened, {});
    return Finish(open.index, open.epoch);
  }

  Stage Decide(const Tuple& tuple) {
    memory_ = lane::shm::Link::Create();
    auto link = NewMessage<LinkMsg>();
    link.bells = 1;
    Send(&link, {memory_->page_fd(), bells_->SharePage(), bells_->bell_fd(0)});
    LinkAck ack;
    if (!Next(&ack)) return kHello;
    auto segment = NewMessage<SegmentMsg>();
    const base::UniqueFd rings = memory_->AddSegment();
    Send(&segment, {rings.get()});
    auto open = NewMessage<OpenMsg>();
    open.index = static_cast<std::uint32_t>(Below(64));
    open.epoch = static_cast<std::uint32_t>(random_());
    open.role = 1;
    std::memcpy(open.tuple, &tuple, sizeof open.tuple);
    open.claim = OurClaim();
    Send(&open, {});
    OpenedMsg opened;
    if (!Next(&opened)) return kLinked;
    return Finish(open.index, open.epoch);
  }

  Stage Finish(std::uint32_t index, std::uint32_t epoch) {
    auto ready = NewMessage<ReadyMsg>();
    ready.index = index;
    ready.epoch = epoch;
    ready.proof = static_cast<std::uint32_t>(random_());
    Send(&ready, {});
    ReadyMsg theirs;
    if (!Next(&theirs)) return kOpened;
    // The victim has its lane, or will not get it; what is shared is scribbled
    // over, and the end said, or not.
    if (memory_ != nullptr) Scribble(static_cast<int>(index));
    auto closed = NewMessage<ClosedMsg>();
    closed.index = index;
    closed.epoch = epoch;
    closed.reason = static_cast<std::uint32_t>(random_());
    if (Below(2) == 0) Send(&closed, {});
    return kReadied;
  }

  void Scribble(int index) {
    const auto lane = memory_->OpenLane(index);
    if (lane == nullptr) return;
    char bytes[400] = {};
    iovec iov{bytes, sizeof bytes};
    for (std::uint64_t i = Below(20); i > 0; --i) {
      lane->Post(&iov, 1, 0, 1 + Below(sizeof bytes));
      lane->PostCtl(bytes, Below(lane::Lane::kCtlMax));
      lane->Credit();
      for (char& byte : bytes) byte = static_cast<char>(random_());
    }
  }

  std::mt19937_64 random_;
  std::uint64_t breaks_;
  Uuid uuid_{};
  int fd_ = -1;
  std::uint32_t number_ = 0;
  std::vector<int> junk_;
  Packet packet_;
  std::unique_ptr<lane::shm::Bells> bells_;
  std::shared_ptr<lane::shm::Link> memory_;
};

int Mappings() {
  std::ifstream maps("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);) ++count;
  return count;
}

// The uuid of this process's conductor, from the name where stat asks it.
Uuid OwnUuid(const std::string& before) {
  std::ifstream file("/proc/net/unix");
  Uuid uuid{};
  for (std::string line; std::getline(file, line);) {
    const std::size_t at = line.find(kStatPrefix);
    if (at == std::string::npos) continue;
    const std::string name = line.substr(at + sizeof kStatPrefix - 1);
    if (before.find(name) != std::string::npos || name.size() < 32) continue;
    for (std::size_t i = 0; i < uuid.size(); ++i) {
      uuid[i] = static_cast<std::uint8_t>(
          std::stoul(name.substr(2 * i, 2), nullptr, 16));
    }
  }
  return uuid;
}
std::string AllUnix() {
  std::ifstream file("/proc/net/unix");
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(MeetingFuzz, NothingBreaksAndNothingIsLeft) {
  ExpectSuccess(Spawn([] {
    const char* scale = std::getenv("MEETING_FUZZ_ROUNDS");
    const int rounds = scale != nullptr ? std::atoi(scale) : 600;
    const std::string before = AllUnix();
    Conductor* conductor = GetConductor();
    const Uuid own = OwnUuid(before);
    int reached[kStages] = {};
    std::size_t fds = 0;
    int mappings = 0;
    for (int round = 0; round < rounds; ++round) {
      const TcpPair pair = MakeTcpPair();
      auto c = ConnectorSeeker(pair.connector);
      c->Start(conductor);
      Stage stage;
      {
        Breaker breaker(static_cast<std::uint64_t>(round) + 20261127, own);
        stage = breaker.Play(pair);
        if (round % 16 == 0) Drain(conductor);
      }
      conductor->Cancel(c.get());
      Drain(conductor);
      if (c->lane != nullptr) {
        stage = kLane;
        // What is in the ring is anything.
        char bytes[1000];
        iovec iov{bytes, sizeof bytes};
        for (int i = 0; i < 10; ++i) {
          c->lane->Peek();
          c->lane->Read(&iov, 1, 0, sizeof bytes, i % 2 == 0);
          c->lane->ReadCtl(bytes, sizeof bytes);
          c->lane->Post(&iov, 1, 0, sizeof bytes);
          c->lane->Credit();
          c->lane->Acked();
        }
        conductor->ReturnLane(c, std::move(c->lane));
      }
      ++reached[stage];
      CloseBoth(pair);
      if (round % 50 == 49) {
        const TcpPair honest = MakeTcpPair();
        auto one = ConnectorSeeker(honest.connector);
        auto two = AcceptorSeeker(honest.acceptor);
        ASSERT_TRUE(Met(conductor, one, two)) << round;
        SayThereAndBack(one.get(), two.get());
        conductor->ReturnLane(one, std::move(one->lane));
        conductor->ReturnLane(two, std::move(two->lane));
        CloseBoth(honest);
      }
      if (round == 49) {
        fds = OpenFds().size();
        mappings = Mappings();
      }
    }
    // (Files that linger are still to be closed.)
    EXPECT_TRUE(Eventually([&] { return OpenFds().size() <= fds + 16; }))
        << OpenFds().size() << " for " << fds;
    EXPECT_TRUE(Eventually([&] { return Mappings() <= mappings + 64; }))
        << Mappings() << " for " << mappings;
    std::printf(
        "rounds that came to: HELLO %d, a link %d, OPENED %d, READY %d, "
        "a lane %d; no farther than the name %d\n",
        reached[kHello], reached[kLinked], reached[kOpened], reached[kReadied],
        reached[kLane], reached[kKnocked]);
    // One that never gets anywhere finds nothing.
    EXPECT_GT(reached[kLane], rounds / 8);
    EXPECT_GT(reached[kHello], 0);
    EXPECT_GT(reached[kLinked], 0);
  }));
}

}  // namespace
}  // namespace rcsock::rendezvous
