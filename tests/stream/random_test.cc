// Long random schedules over what the exhaustive search leaves out: TCP buffers
// of a few bytes, partial frames, stash limits, tiny rings, late credit, peeks,
// close, RST, many epochs.

#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/stream/sim_world.h"

namespace rcsock::stream {
namespace {

class RandomWorld {
 public:
  explicit RandomWorld(std::uint64_t seed)
      : link_(4 + seed % 61, 1 + seed / 7 % 32),
        anchor_{SimAnchor(&tcp_, 0), SimAnchor(&tcp_, 1)},
        lane_{lane::sim::SimLane(&link_, 0), lane::sim::SimLane(&link_, 1)},
        stream_{Stream(Role::kConnector, &anchor_[0],
                       Limits{1 + static_cast<std::size_t>(seed / 3 % 80)}),
                Stream(Role::kAcceptor, &anchor_[1],
                       Limits{1 + static_cast<std::size_t>(seed / 5 % 80)})} {
    tcp_.rng = seed * 0x9e3779b97f4a7c15u + 1;
    for (int i = 0; i < 8; ++i) Random();
    tcp_.capacity = Below(3) == 0 ? 1 + Below(24) : 16 + Below(400);
    link_.auto_land = Below(2) == 0;
    link_.auto_credit = Below(2) == 0;
    ends_ = seed % 4 != 0;  // a quarter of the runs closes or kills nothing
    for (int i = 0; i < 2; ++i) stream_[i].Adopt(0, 0);
  }

  void Run(int steps) {
    for (int i = 0; i < steps && error_ == nullptr; ++i) Step(i);
    if (error_ != nullptr) return;
    // Everything that is owed must come, under a fair schedule.
    for (int i = 0; i < 20000 && error_ == nullptr; ++i) {
      bool done = true;
      for (int end = 0; end < 2; ++end) {
        App& a = app_[end];
        if (!a.alive) continue;
        if (!a.shut && !a.closed && i == 0) {
          a.shut = true;
          stream_[end].ShutdownWrite();
          Look(end);
        }
        link_.ring[1 - end].LandAll();
        if (!Dead()) link_.ring[end].ReturnCredit();
        if (stream_[end].tx() == Tx::kProp || stream_[end].tx() == Tx::kComm) {
          if (i % 64 == 63) stream_[end].Timer();
        }
        stream_[end].Progress();
        Look(end);
        if (a.alive && !a.closed) DoRead(end);
        done = done && (!a.alive || (a.end && (!Peer(end).alive || Shut(end))));
      }
      if (done) break;
    }
    if (error_ == nullptr) Judge();
  }

  // For the report of a failing seed.
  std::string Describe() const {
    std::string text;
    for (int i = 0; i < 2; ++i) {
      const Stream& s = stream_[i];
      const App& a = app_[i];
      text += std::string(1, "CS"[i]) + "[tx " +
              std::to_string(static_cast<int>(s.tx())) + " rx " +
              std::to_string(static_cast<int>(s.rx())) + " off " +
              std::to_string(s.tx_off()) + "/" + std::to_string(s.rx_off()) +
              " wrote " + std::to_string(a.written) + " read " +
              std::to_string(a.read) + (a.alive ? "" : " gone") +
              (a.closed ? " closed" : "") + (a.shut ? " shut" : "") +
              (a.end ? " end" : "") +
              (StreamTestAccess::TcpEnded(s) ? " eof" : "") +
              (StreamTestAccess::KernelShut(s) ? " kshut" : "") +
              (StreamTestAccess::HasLane(s) ? " lane" : "") +
              (StreamTestAccess::Frozen(s) ? " frozen" : "") + " queued " +
              std::to_string(StreamTestAccess::Queued(s)) + " stashed " +
              std::to_string(StreamTestAccess::Stashed(s)) + " pipe " +
              std::to_string(tcp_.pipe[i].bytes.size()) +
              (tcp_.pipe[i].fin ? " fin" : "") + "] ";
    }
    return text;
  }
  const char* error() const { return error_; }
  int promotions() const { return promotions_; }
  int epochs() const { return static_cast<int>(epoch_); }

 private:
  struct App {
    bool alive = true;
    bool shut = false;
    bool closed = false;
    bool end = false;         // EOF or an error was read
    bool clean_end = false;   // ... EOF
    bool went_clean = false;  // closed, and nothing of it was reset
    std::uint64_t written = 0;
    std::uint64_t read = 0;
  };

  std::uint64_t Random() { return tcp_.Random(); }
  std::uint64_t Below(std::uint64_t n) { return (Random() >> 11) % n; }
  static std::uint8_t ByteOf(int end, std::uint64_t index) {
    return static_cast<std::uint8_t>((index * 0x9e3779b97f4a7c15u >> 56) + end);
  }
  static Nonce NonceOf(int end, std::uint64_t epoch) {
    Nonce nonce;
    for (std::size_t i = 0; i < nonce.size(); ++i) {
      nonce[i] = ByteOf(end, epoch * 1000 + i);
    }
    return nonce;
  }
  bool Dead() const {
    return link_.state[0] != base::Reason::kNone ||
           link_.state[1] != base::Reason::kNone;
  }

  void Step(int at) {
    const int i = static_cast<int>(Below(2));
    App& a = app_[i];
    Stream& s = stream_[i];
    if (!a.alive) return;
    switch (Below(24)) {
      case 0:
      case 1:
      case 2:
      case 3:
        if (!a.closed) DoWrite(i);
        break;
      case 4:
      case 5:
      case 6:
        if (!a.closed) DoRead(i);
        break;
      case 7:
      case 8:
      case 9:
      case 10:
        s.Progress();
        break;
      case 11:
      case 12:
      case 13:
        for (std::uint64_t n = 1 + Below(3); n != 0; --n)
          link_.ring[1 - i].Land();
        if (Below(2) == 0) s.Progress();
        break;
      case 14:
      case 15:
        if (!Dead()) link_.ring[i].ReturnCredit();
        break;
      case 16:
      case 17:
        LaneUp(i);
        break;
      case 18:
        if (Below(12) == 0 && (s.tx() == Tx::kProp || s.tx() == Tx::kComm))
          s.Timer();
        break;
      case 19:
        if (Below(8) == 0) {
          s.Demote(base::Reason::kPolicy,
                   StreamTestAccess::HasLane(s) && Below(2) == 0);
        }
        break;
      case 20:
        if (Below(12) == 0 && StreamTestAccess::HasLane(s)) {
          std::uint64_t who = 1 + Below(3);
          for (int e = 0; e < 2; ++e) {
            if ((who >> e & 1) != 0) link_.state[e] = base::Reason::kLaneError;
          }
          if (Below(2) == 0) {
            link_.ring[0].DropInFlight();
            link_.ring[1].DropInFlight();
          }
        }
        break;
      case 21:
        if (at > 600 && Below(30) == 0 && !a.shut && !a.closed) {
          a.shut = true;
          s.ShutdownWrite();
        }
        break;
      case 22:
        if (ends_ && at > 600 && Below(40) == 0 && !a.closed) {
          a.closed = true;
          s.Close(Below(4) == 0 || s.Readable() != 0);
        }
        break;
      case 23:
        if (ends_ && at > 600 && Below(60) == 0) {
          Gone(i, Below(2) == 0);
          return;
        }
        break;
    }
    Look(i);
  }

  void LaneUp(int i) {
    if (pending_ == 1 << i) {
      pending_ = 0;
    } else {
      if (pending_ != 0) return;
      for (int e = 0; e < 2; ++e) {
        const Stream& s = stream_[e];
        if (!app_[e].alive || app_[e].shut || app_[e].closed ||
            s.tx() != Tx::kRaw || s.rx() != Rx::kRaw ||
            StreamTestAccess::HasLane(s) || StreamTestAccess::TcpEnded(s)) {
          return;
        }
      }
      ++epoch_;
      link_.Reset();
      pending_ = 1 << (1 - i);
    }
    // Every third lane is one whose peer must prove itself (rule 2).
    const auto min_tail =
        static_cast<std::uint8_t>(epoch_ % 3 == 0 ? 1 + epoch_ / 3 % 16 : 0);
    stream_[i].LaneUp(&lane_[i], epoch_, NonceOf(i, epoch_),
                      NonceOf(1 - i, epoch_),
                      i == 0 || (epoch_ % 2 == 0 && min_tail == 0), min_tail);
  }

  void DoWrite(int i) {
    App& a = app_[i];
    std::uint8_t bytes[100];
    std::size_t n = 1 + Below(Below(4) == 0 ? 100 : 12);
    for (std::size_t k = 0; k < n; ++k) bytes[k] = ByteOf(i, a.written + k);
    std::size_t cut = Below(n + 1);
    iovec iov[2] = {{bytes, cut}, {bytes + cut, n - cut}};
    ssize_t r = stream_[i].Write(iov, 2, n);
    if (r > static_cast<ssize_t>(n)) error_ = "wrote more than was asked";
    if (r > 0) {
      if (a.shut) error_ = "a write after shutdown";
      a.written += static_cast<std::uint64_t>(r);
    } else if (r != -EAGAIN && !a.shut && !Peer(i).closed && Peer(i).alive) {
      error_ = "a write failed although the peer lives";
    }
  }

  void DoRead(int i) {
    App& a = app_[i];
    std::uint8_t bytes[100];
    std::size_t n = 1 + Below(100);
    std::size_t cut = Below(n + 1);
    iovec iov[2] = {{bytes, cut}, {bytes + cut, n - cut}};
    const bool peek = Below(4) == 0;
    ssize_t r = stream_[i].Read(iov, 2, n, peek);
    if (r == -EAGAIN) return;
    if (r <= 0) {
      a.end = true;
      a.clean_end = r == 0;
      const bool peer_ended = !Peer(i).alive || Peer(i).closed;
      if (r < 0 && !peer_ended)
        error_ = "a read failed although the peer lives";
      if (r == 0 && !peer_ended &&
          (!Peer(i).shut || a.read != Peer(i).written)) {
        error_ = "EOF before the end";
      }
      return;
    }
    if (a.end && a.clean_end) error_ = "bytes after EOF";
    for (ssize_t k = 0; k < r; ++k) {
      if (bytes[k] != ByteOf(1 - i, a.read + static_cast<std::uint64_t>(k))) {
        error_ = "a byte is lost, repeated, or not the application's";
      }
    }
    if (!peek) a.read += static_cast<std::uint64_t>(r);
    if (a.read > Peer(i).written) error_ = "more than was written";
  }

  // The process is gone, or its owner has closed the anchor.
  void Gone(int i, bool reset) {
    App& a = app_[i];
    a.alive = false;
    tcp_.dead[i] = true;
    SimPipe& in = tcp_.pipe[1 - i];
    SimPipe& out = tcp_.pipe[i];
    if (reset || !in.bytes.empty()) {
      out.rst = true;
      a.went_clean = false;
    } else {
      out.fin = true;
    }
    tcp_.kshut[i] = true;
    in.bytes.clear();
    if (pending_ != 0) pending_ = 0;
    link_.ring[i].LandAll();
    link_.ring[1 - i].DropInFlight();
  }

  void Look(int i) {
    App& a = app_[i];
    if (!a.alive) return;
    std::uint32_t changes = stream_[i].TakeChanges();
    if ((changes & kPromotedTx) != 0) ++promotions_;
    if ((changes & kSettled) != 0) {
      stream_[i].ReleaseLane();
    }
    changes |= stream_[i].TakeChanges();
    if (StreamTestAccess::Failed(stream_[i]) && Peer(i).alive) {
      error_ = "one honest end takes the other for hostile";
    }
    if ((changes & kFinished) != 0) {
      if (!a.closed) error_ = "finished before close";
      a.went_clean = (changes & kMustReset) == 0;
      Gone(i, (changes & kMustReset) != 0);
    }
    if (tcp_.error != nullptr && app_[0].alive && app_[1].alive) {
      error_ = tcp_.error;
    }
  }

  // Both directions of its TCP have ended.
  bool Shut(int i) const {
    return StreamTestAccess::KernelShut(stream_[i]) &&
           StreamTestAccess::TcpEnded(stream_[i]);
  }
  App& Peer(int i) { return app_[1 - i]; }

  void Judge() {
    for (int i = 0; i < 2; ++i) {
      App& a = app_[i];
      App& p = app_[1 - i];
      if (!a.alive) continue;
      if (a.closed) {
        error_ = "WEDGED: a closed stream never finishes";
      } else if (!a.end) {
        error_ = "WEDGED: the end never comes";
      } else if (p.alive && !p.closed && a.read != p.written) {
        error_ = "WEDGED: bytes never come";
      } else if (p.went_clean && a.clean_end && a.read != p.written) {
        error_ = "bytes written before close() are lost";
      } else if (p.alive && !p.closed && !Shut(i)) {
        error_ = "WEDGED: both have shut down, but TCP has not";
      }
    }
  }

  SimTcp tcp_;
  lane::sim::SimLink link_;
  SimAnchor anchor_[2];
  lane::sim::SimLane lane_[2];
  Stream stream_[2];
  App app_[2];
  std::uint32_t epoch_ = 0;
  int pending_ = 0;  // who has not seen this epoch's lane yet: 1 << end
  int promotions_ = 0;
  bool ends_ = false;
  const char* error_ = nullptr;
};

TEST(RandomTest, EveryByteOnceAndInOrder) {
  const char* first_env = std::getenv("RCSOCK_SEED");
  const char* count_env = std::getenv("RCSOCK_SEEDS");
  const std::uint64_t first =
      first_env ? std::strtoull(first_env, nullptr, 0) : 1;
  const std::uint64_t count = count_env   ? std::strtoull(count_env, nullptr, 0)
                              : first_env ? 1
                                          : 6000;
  long promotions = 0;
  long epochs = 0;
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    RandomWorld world(seed);
    world.Run(4000);
    ASSERT_EQ(world.error(), nullptr)
        << world.error() << "; RCSOCK_SEED=" << seed << "\n"
        << world.Describe();
    promotions += world.promotions();
    epochs += world.epochs();
  }
  std::printf("%ld epochs, %ld promotions of a direction\n", epochs,
              promotions);
  // A schedule that never promotes tests nothing.
  if (count > 100) {
    EXPECT_GT(promotions, static_cast<long>(count));
  }
}

}  // namespace
}  // namespace rcsock::stream
