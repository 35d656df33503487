// A lane whose two ends are not of one connection: two honest streams, each
// with a TCP connection of its own to a plain peer.  Two network namespaces, or
// address translation, give two connections the same four numbers; a lane that
// is not authenticated may then come up between them.  Neither plain peer may
// ever see a byte that its own application's peer has not written.

#include <gtest/gtest.h>

#include <string>

#include "tests/stream/sim_world.h"

namespace rcsock::stream {
namespace {

class Twins {
 public:
  Twins(std::uint64_t seed, bool authenticated) : link_(64, 64) {
    rng_ = seed * 0x9e3779b97f4a7c15u + 1;
    for (int i = 0; i < 8; ++i) Below(2);
    link_.auto_land = link_.auto_credit = true;
    for (int i = 0; i < 2; ++i) {
      anchor_[i] = SimAnchor(&tcp_[i], 0);
      lane_[i] = lane::sim::SimLane(&link_, i);
      stream_[i].Adopt(0, 0);
    }
    Nonce nonce[2];
    nonce[0].fill(0x11);
    nonce[1].fill(0x22);
    // Some have a history before the lane comes.
    for (std::uint64_t i = Below(60); i > 0; --i) Step();
    for (int i = 0; i < 2; ++i) {
      stream_[i].LaneUp(&lane_[i], 1, nonce[i], nonce[1 - i],
                        authenticated || i == 0, authenticated ? 0 : 16);
    }
  }

  // False: a plain peer, or an application, has got what is not its own.
  bool Run() {
    for (int i = 0; i < 300; ++i) {
      Step();
      for (int k = 0; k < 2; ++k) {
        if (!written_[k].starts_with(seen_[k]) ||
            !plain_[k].starts_with(read_[k])) {
          return false;
        }
      }
    }
    return true;
  }

 private:
  std::uint64_t Below(std::uint64_t n) {
    rng_ ^= rng_ << 13;
    rng_ ^= rng_ >> 7;
    rng_ ^= rng_ << 17;
    return (rng_ >> 11) % n;
  }
  std::string Text() {
    std::string text(1 + Below(20), '\0');
    for (char& c : text) c = static_cast<char>(Below(256));
    return text;
  }

  void Step() {
    const int i = static_cast<int>(Below(2));
    switch (Below(5)) {
      case 0: {  // the application writes
        std::string text = Text();
        iovec iov{text.data(), text.size()};
        const ssize_t n = stream_[i].Write(&iov, 1, text.size());
        if (n > 0) written_[i].append(text, 0, static_cast<std::size_t>(n));
        break;
      }
      case 1: {  // the application reads
        char bytes[64];
        iovec iov{bytes, sizeof bytes};
        const ssize_t n = stream_[i].Read(&iov, 1, sizeof bytes, false);
        if (n > 0) read_[i].append(bytes, static_cast<std::size_t>(n));
        break;
      }
      case 2: {  // the plain peer writes
        const std::string text = Text();
        tcp_[i].pipe[1].bytes += text;
        plain_[i] += text;
        break;
      }
      case 3:  // the plain peer reads
        seen_[i] += tcp_[i].pipe[0].bytes;
        tcp_[i].pipe[0].bytes.clear();
        break;
      default:
        if (Below(8) == 0) stream_[i].Timer();
        stream_[i].Progress();
        stream_[i].TakeChanges();
    }
  }

  std::uint64_t rng_ = 1;
  lane::sim::SimLink link_;
  SimTcp tcp_[2];
  SimAnchor anchor_[2];
  lane::sim::SimLane lane_[2];
  Stream stream_[2]{{Role::kConnector, &anchor_[0], Limits{64}},
                    {Role::kAcceptor, &anchor_[1], Limits{64}}};
  std::string written_[2];  // by the application
  std::string seen_[2];     // of it, by its plain peer
  std::string plain_[2];    // by the plain peer
  std::string read_[2];     // of it, by the application
};

TEST(TwinTest, NeitherPlainPeerSeesAForeignByte) {
  for (std::uint64_t seed = 1; seed <= 20'000; ++seed) {
    Twins twins(seed, false);
    ASSERT_TRUE(twins.Run()) << "seed " << seed;
  }
}

// Whoever calls such a lane authenticated breaks it: the rendezvous must have
// the proof (docs/rendezvous.md).
TEST(TwinTest, IsWhatTheRendezvousMustKeepOut) {
  int wrong = 0;
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    Twins twins(seed, true);
    if (!twins.Run()) ++wrong;
  }
  EXPECT_GT(wrong, 0);
}

}  // namespace
}  // namespace rcsock::stream
