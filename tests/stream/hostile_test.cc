// One real Stream against a peer that owns both the lane and the TCP connection
// and sends what it likes: random bytes, well-formed nonsense, mutated good
// messages.  It must neither crash nor hang (sanitizers watch), and once the
// peer's end of TCP is closed it must come to an end.

#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/stream/sim_world.h"

namespace rcsock::stream {
namespace {

class Hostile {
 public:
  explicit Hostile(std::uint64_t seed)
      : link_(64, 64),
        anchor_(&tcp_, 0),
        lane_(&link_, 0),
        evil_(&link_, 1),
        role_(seed % 2 == 0 ? Role::kConnector : Role::kAcceptor),
        stream_(role_, &anchor_, Limits{64}) {
    tcp_.rng = seed * 0x9e3779b97f4a7c15u + 1;
    tcp_.capacity = 4096;
    link_.auto_land = true;
    link_.auto_credit = Below(2) == 0;
    mine_.fill(0x11);
    peers_.fill(0x22);
    for (int i = 0; i < 8; ++i) Below(2);
    patience_ = Below(16);
    stream_.Adopt(0, 0);
  }

  void Run() {
    for (int i = 0; i < 300; ++i) {
      Step();
      Look();
      // Whatever it does, memory stays bounded.
      ASSERT_LE(StreamTestAccess::Stashed(stream_), 200u * 1024);
      ASSERT_LE(StreamTestAccess::Queued(stream_), 16u * 1024);
      ASSERT_LE(stream_.rx_off(), 1u << 20);
    }
    tcp_.pipe[1].fin = true;
    for (int i = 0; i < 200; ++i) {
      stream_.Progress();
      Look();
      std::uint8_t bytes[64];
      iovec iov{bytes, sizeof bytes};
      ssize_t n = stream_.Read(&iov, 1, sizeof bytes, false);
      tcp_.pipe[0].bytes.clear();
      if (n == 0 || (n < 0 && n != -EAGAIN)) {
        ended_ = true;
        break;
      }
    }
    if (!finished_) {
      EXPECT_TRUE(ended_) << "tx " << static_cast<int>(stream_.tx()) << " rx "
                          << static_cast<int>(stream_.rx());
    }
    if (!finished_) stream_.Close(Below(2) == 0);
    stream_.Progress();
    Look();
    EXPECT_TRUE(finished_);
  }

  int deep() const { return deep_; }

 private:
  std::uint64_t Below(std::uint64_t n) { return (tcp_.Random() >> 11) % n; }

  void ToTcp(const void* bytes, std::size_t n) {
    if (tcp_.pipe[1].bytes.size() < 4096) {
      tcp_.pipe[1].bytes.append(static_cast<const char*>(bytes), n);
    }
  }
  std::uint64_t SomeOffset() {
    switch (Below(6)) {
      case 0:
        return stream_.tx_off();
      case 1:
        return stream_.rx_off() + StreamTestAccess::Stashed(stream_);
      case 2:
        return stream_.tx_off() + Below(5) - 2;
      case 3:
        return Below(100);
      case 4:
        return ~0ull - Below(3);
      default:
        return stream_.rx_off() + Below(9) - 4;
    }
  }

  // What an honest peer would say here.
  void Sensible() {
    const bool c = role_ == Role::kConnector;
    const std::uint64_t in =
        stream_.rx_off() + StreamTestAccess::Stashed(stream_);
    Ctl ctl;
    ctl.epoch = epoch_;
    ctl.offset = in;
    if (stream_.tx() == Tx::kProp) {
      ctl.kind = CtlKind::kAccept;
      ctl.mac = TailMac(c ? mine_ : peers_, c ? peers_ : mine_, epoch_, x_,
                        nullptr, 0);
    } else if (stream_.tx() == Tx::kComm && stream_.rx() == Rx::kRaw) {
      ctl.kind = CtlKind::kSwitch;
    } else if (stream_.tx() == Tx::kRaw && stream_.rx() == Rx::kRaw &&
               StreamTestAccess::HasLane(stream_) && Below(4) == 0) {
      ctl.kind = CtlKind::kPropose;
    } else {
      if (stream_.rx() == Rx::kArm || stream_.rx() == Rx::kArmF) {
        ToTcp(mine_.data(), mine_.size());
      } else if (stream_.tx() == Tx::kStg) {
        FrameBytes got = Encode(Frame{FrameKind::kGot, 0, epoch_, 0});
        ToTcp(got.data(), got.size());
      }
      stream_.Progress();
      return;
    }
    CtlBytes bytes = Encode(ctl);
    evil_.PostCtl(bytes.data(), bytes.size());
    stream_.Progress();
  }

  void Step() {
    if (Below(16) > patience_) {
      Act(Below(16));
    } else {
      static constexpr int kMild[] = {0, 2, 12, 15};
      if (Below(3) == 0) {
        Act(kMild[Below(4)]);
      } else {
        Sensible();
      }
    }
    if (stream_.tx() == Tx::kProp && last_ != Tx::kProp) x_ = before_;
    last_ = stream_.tx();
    before_ = stream_.tx_off();
    if (stream_.tx() == Tx::kLane || stream_.FastRx()) ++deep_;
  }

  void Act(std::uint64_t what) {
    switch (what) {
      case 0:
      case 1: {
        std::uint8_t bytes[32] = {};
        iovec iov{bytes, 1 + Below(32)};
        stream_.Write(&iov, 1, iov.iov_len);
        break;
      }
      case 2: {
        std::uint8_t bytes[32];
        iovec iov{bytes, 1 + Below(32)};
        stream_.Read(&iov, 1, iov.iov_len, Below(2) == 0);
        break;
      }
      case 3: {
        std::uint8_t bytes[40];
        std::size_t n = 1 + Below(40);
        for (std::size_t i = 0; i < n; ++i)
          bytes[i] = static_cast<std::uint8_t>(Below(256));
        if (Below(2) == 0) {
          evil_.PostCtl(bytes, n);
        } else {
          ToTcp(bytes, n);
        }
        break;
      }
      case 4:
      case 5: {
        Ctl ctl;
        ctl.kind = static_cast<CtlKind>(1 + Below(4));
        ctl.flags =
            ctl.kind == CtlKind::kPropose && Below(2) == 0 ? kCtlFlip : 0;
        ctl.epoch = Below(8) == 0 ? 7 : epoch_;
        ctl.offset = SomeOffset();
        ctl.tail = static_cast<std::uint8_t>(Below(4) == 0 ? Below(65) : 0);
        const bool c = role_ == Role::kConnector;
        ctl.mac = TailMac(c ? mine_ : peers_, c ? peers_ : mine_, epoch_,
                          stream_.tx_off(), nullptr, 0);
        if (stream_.tx() == Tx::kProp && Below(2) == 0) {
          // A good ACCEPT, to get deeper.
          ctl.kind = CtlKind::kAccept;
          ctl.flags = 0;
          ctl.mac = TailMac(c ? mine_ : peers_, c ? peers_ : mine_, epoch_, x_,
                            nullptr, 0);
          ctl.tail = 0;
          ctl.epoch = epoch_;
        }
        CtlBytes bytes = Encode(ctl);
        if (Below(6) == 0) bytes[Below(kCtlSize)] ^= 1 << Below(8);
        evil_.PostCtl(bytes.data(), bytes.size());
        break;
      }
      case 6:
      case 7:
      case 8: {
        Frame frame;
        frame.kind = static_cast<FrameKind>(1 + Below(11));
        frame.epoch = Below(12) == 0 ? 7 : epoch_;
        frame.offset = SomeOffset();
        if (frame.kind == FrameKind::kFin && Below(2) == 0)
          frame.flags = kFrameClosed;
        FrameBytes bytes = Encode(frame);
        if (Below(12) == 0) bytes[Below(kFrameSize)] ^= 1 << Below(8);
        if (stream_.rx() != Rx::kRaw || Below(4) == 0)
          ToTcp(bytes.data(), bytes.size());
        if (frame.kind == FrameKind::kBack && Below(4) != 0) {
          const std::string back(Below(64), 'b');
          ToTcp(back.data(), back.size());
        }
        break;
      }
      case 9: {
        Nonce commit = CommitOf(mine_, Below(2) == 0);
        if (Below(8) == 0) commit[Below(16)] ^= 4;
        if (stream_.rx() != Rx::kRaw || Below(4) == 0)
          ToTcp(commit.data(), 1 + Below(16));
        if (stream_.rx() != Rx::kRaw || Below(8) == 0) ToTcp(commit.data(), 16);
        break;
      }
      case 10: {
        std::uint8_t bytes[20] = {};
        iovec iov{bytes, 1 + Below(20)};
        evil_.Post(&iov, 1, 0, iov.iov_len);
        break;
      }
      case 11:
        if (evil_.Peek() == lane::Head::kData)
          evil_.Read(nullptr, 0, 0, Below(40), false);
        std::uint8_t ctl[56];
        evil_.ReadCtl(ctl, sizeof ctl);
        break;
      case 12:
        LaneUp();
        break;
      case 13:
        if (Below(10) == 0) stream_.Timer();
        if (Below(10) == 0) stream_.Demote(base::Reason::kPolicy);
        if (Below(40) == 0) stream_.ShutdownWrite();
        if (Below(60) == 0) stream_.Close(Below(2) == 0);
        break;
      default:
        tcp_.pipe[0].bytes.clear();
        stream_.Progress();
        break;
    }
  }

  void LaneUp() {
    if (StreamTestAccess::HasLane(stream_) || finished_) return;
    if (stream_.tx() != Tx::kRaw || stream_.rx() != Rx::kRaw) return;
    ++epoch_;
    link_.Reset();
    stream_.LaneUp(&lane_, epoch_, mine_, peers_, true,
                   epoch_ % 4 == 3 ? std::uint8_t{16} : std::uint8_t{0});
  }

  void Look() {
    std::uint32_t changes = stream_.TakeChanges();
    if ((changes & kSettled) != 0) stream_.ReleaseLane();
    changes |= stream_.TakeChanges();
    if ((changes & kFinished) != 0) finished_ = true;
    stream_.Readiness();
    stream_.Readable();
    stream_.Unacked();
  }

  SimTcp tcp_;
  lane::sim::SimLink link_;
  SimAnchor anchor_;
  lane::sim::SimLane lane_;
  lane::sim::SimLane evil_;
  Role role_;
  Stream stream_;
  Nonce mine_;
  Nonce peers_;
  std::uint64_t patience_ = 0;
  std::uint32_t epoch_ = 0;
  std::uint64_t x_ = 0;
  std::uint64_t before_ = 0;
  Tx last_ = Tx::kRaw;
  bool ended_ = false;
  bool finished_ = false;
  int deep_ = 0;
};

TEST(HostileTest, NeitherCrashesNorHangs) {
  const char* env = std::getenv("RCSOCK_SEED");
  const std::uint64_t first = env ? std::strtoull(env, nullptr, 0) : 1;
  const std::uint64_t count = env ? 1 : 20000;
  long deep = 0;
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    Hostile hostile(seed);
    hostile.Run();
    ASSERT_FALSE(HasFailure()) << "RCSOCK_SEED=" << seed;
    deep += hostile.deep();
  }
  std::printf("%ld steps in promoted states\n", deep);
  if (count > 1) {
    EXPECT_GT(deep, 1000);
  }
}

// The peer reads nothing of TCP, and asks again and again what has landed.
TEST(HostileTest, ProbesFillNoMemory) {
  SimTcp tcp;
  lane::sim::SimLink link(4096, 64);
  link.auto_land = link.auto_credit = true;
  SimAnchor anchors[2] = {SimAnchor(&tcp, 0), SimAnchor(&tcp, 1)};
  lane::sim::SimLane lanes[2] = {lane::sim::SimLane(&link, 0),
                                 lane::sim::SimLane(&link, 1)};
  Stream c(Role::kConnector, &anchors[0], Limits{64});
  Stream s(Role::kAcceptor, &anchors[1], Limits{64});
  Nonce nonces[2] = {};
  nonces[1].fill(0x22);
  c.Adopt(0, 0);
  s.Adopt(0, 0);
  c.LaneUp(&lanes[0], 1, nonces[0], nonces[1], true);
  s.LaneUp(&lanes[1], 1, nonces[1], nonces[0], true);
  char byte = 'x';
  const iovec iov{&byte, 1};
  ASSERT_EQ(c.Write(&iov, 1, 1), 1);
  for (int i = 0; i < 8; ++i) {
    c.Progress();
    s.Progress();
    c.TakeChanges();
    s.TakeChanges();
    s.Read(&iov, 1, 1, false);
  }
  ASSERT_TRUE(c.FastTx() && s.FastTx());
  tcp.capacity = tcp.pipe[1].bytes.size();
  const FrameBytes probe = Encode(Frame{FrameKind::kProbe, 0, 1, c.tx_off()});
  for (int i = 0; i < 10'000; ++i) {
    tcp.pipe[0].bytes.append(reinterpret_cast<const char*>(probe.data()),
                             probe.size());
    s.Progress();
    ASSERT_TRUE(tcp.pipe[0].bytes.empty());
  }
  EXPECT_FALSE(StreamTestAccess::Failed(s));
  EXPECT_GT(StreamTestAccess::Queued(s), 0u);
  EXPECT_LE(StreamTestAccess::Queued(s), 8192u);
  // It is a stream still, and answers again once the old answers are gone.
  tcp.capacity = 1 << 20;
  s.Progress();
  tcp.pipe[1].bytes.clear();
  tcp.pipe[0].bytes.append(reinterpret_cast<const char*>(probe.data()),
                           probe.size());
  s.Progress();
  EXPECT_EQ(tcp.pipe[1].bytes.size(), probe.size());
}

// Frames that move nothing: a peer that sends them without end loses the
// stream, one that sends some does not.
TEST(HostileTest, FramesThatMoveNothingHaveARate) {
  for (const int count : {50, 5000}) {
    SimTcp tcp;
    lane::sim::SimLink link(64, 64);
    link.auto_land = link.auto_credit = true;
    SimAnchor anchor[2] = {{&tcp, 0}, {&tcp, 1}};
    lane::sim::SimLane lane[2] = {{&link, 0}, {&link, 1}};
    Stream ends[2] = {{Role::kConnector, &anchor[0], Limits{64}},
                      {Role::kAcceptor, &anchor[1], Limits{64}}};
    Nonce nonce[2];
    nonce[0].fill(1);
    nonce[1].fill(2);
    for (int i = 0; i < 2; ++i) {
      ends[i].Adopt(0, 0);
      ends[i].LaneUp(&lane[i], 1, nonce[i], nonce[1 - i], true, 0);
    }
    char x = 'x';
    iovec iov{&x, 1};
    ends[0].Write(&iov, 1, 1);
    for (int k = 0; k < 8; ++k) {
      for (Stream& end : ends) end.Progress();
    }
    ASSERT_EQ(ends[1].rx(), Rx::kFrames);
    const FrameBytes ping = Encode(Frame{FrameKind::kPing, 0, 1, 0});
    for (int i = 0; i < count; ++i) {
      tcp.pipe[0].bytes.append(reinterpret_cast<const char*>(ping.data()),
                               ping.size());
      ends[1].Progress();
    }
    EXPECT_EQ(StreamTestAccess::Failed(ends[1]), count > 64) << count;
  }
}

// TCP that always has more.
class Flood final : public Anchor {
 public:
  ssize_t Send(const iovec*, int) override { return -EAGAIN; }
  ssize_t Recv(void* to, std::size_t n) override {
    std::memset(to, 'A', n);
    return static_cast<ssize_t>(n);
  }
  ssize_t RecvV(const iovec* iov, int, bool) override {
    return Recv(iov->iov_base, iov->iov_len);
  }
  int ShutdownWrite() override { return 0; }
};

// What a peer says of far away makes nobody read ahead without a bound, and
// leaves no one awake for it.  One message of each kind, with each kind of
// offset, and what stands behind it.
TEST(HostileTest, ReadsAheadNoMoreThanItMay) {
  constexpr std::size_t kLimit = 1 << 20;
  for (int kind = 1; kind <= 5; ++kind) {
    for (const std::uint64_t offset :
         {std::uint64_t{0}, std::uint64_t{1000}, std::uint64_t{kLimit},
          std::uint64_t{kLimit + 1}, std::uint64_t{1} << 40,
          ~std::uint64_t{0}}) {
      for (const bool frames : {false, true}) {
        Flood tcp;
        lane::sim::SimLink link(4096, 256);
        link.auto_land = link.auto_credit = true;
        lane::sim::SimLane mine(&link, 0);
        lane::sim::SimLane evil(&link, 1);
        Stream s(Role::kAcceptor, &tcp, Limits{kLimit});
        s.Adopt(0, 0);
        Nonce a;
        Nonce b;
        a.fill(1);
        b.fill(2);
        s.LaneUp(&mine, 1, a, b, frames, frames ? 0 : 16);
        Ctl ctl;
        ctl.kind = static_cast<CtlKind>(kind);
        ctl.epoch = 1;
        ctl.tail = kind == 1 ? 64 : 0;
        ctl.offset = offset;
        const CtlBytes bytes = Encode(ctl);
        evil.PostCtl(bytes.data(), bytes.size());
        char x = 'x';
        iovec iov{&x, 1};
        evil.Post(&iov, 1, 0, 1);
        int awake = 0;
        for (int i = 0; i < 400; ++i) {
          s.Progress();
          s.TakeChanges();
          ASSERT_LE(StreamTestAccess::Stashed(s), kLimit + kFrameSize + 2)
              << kind << " " << offset;
          if (s.WantsAnchorRead()) ++awake;
        }
        EXPECT_LT(awake, 400) << kind << " " << offset;
      }
    }
  }
}

}  // namespace
}  // namespace rcsock::stream
