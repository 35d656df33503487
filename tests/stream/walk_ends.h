#ifndef RCSOCK_TESTS_STREAM_WALK_ENDS_H_
#define RCSOCK_TESTS_STREAM_WALK_ENDS_H_

#include <gtest/gtest.h>

#include <cerrno>
#include <cstdint>
#include <memory>
#include <vector>

#include "tests/stream/sim_world.h"

namespace rcsock::stream {

// Two Streams over the lanes of a derived class and a simulated TCP connection,
// which take steps at random.  Every byte that is read is checked.
class WalkEnds : public testing::Test {
 protected:
  // A lane for both, if neither has one.
  virtual void Up() = 0;
  // The stream has released its lane.
  virtual void Return(int i) { lane_[i].reset(); }

  static std::uint8_t ByteOf(int end, std::uint64_t at) {
    return static_cast<std::uint8_t>((at * 0x9e3779b97f4a7c15u >> 56) + end);
  }
  std::uint64_t Below(std::uint64_t n) { return (tcp_.Random() >> 11) % n; }

  std::vector<std::uint8_t> Some() {
    return std::vector<std::uint8_t>(1 + Below(Below(3) == 0 ? 100000 : 200));
  }
  void Write(int i) {
    std::vector<std::uint8_t> bytes = Some();
    iovec iov{bytes.data(), bytes.size()};
    for (std::size_t k = 0; k < bytes.size(); ++k) {
      bytes[k] = ByteOf(i, written_[i] + k);
    }
    const ssize_t n = stream_[i].Write(&iov, 1, bytes.size());
    if (n > 0) written_[i] += static_cast<std::uint64_t>(n);
    ASSERT_TRUE(n > 0 || n == -EAGAIN) << n;
  }
  virtual ssize_t Read(int i) {
    std::vector<std::uint8_t> bytes = Some();
    return ReadTo(i, bytes.data(), bytes.size());
  }
  ssize_t ReadTo(int i, std::uint8_t* bytes, std::size_t length) {
    iovec iov{bytes, length};
    const ssize_t n = stream_[i].Read(&iov, 1, length, false);
    for (ssize_t k = 0; k < n; ++k) {
      if (bytes[k] == ByteOf(1 - i, read_[i] + k)) continue;
      ADD_FAILURE() << "byte " << read_[i] + k;
      break;
    }
    if (n > 0) read_[i] += static_cast<std::uint64_t>(n);
    return n;
  }
  void Step(int i, bool write) {
    Stream& s = stream_[i];
    if (write) Write(i);
    if (HasFatalFailure()) return;
    const ssize_t n = Read(i);
    ASSERT_TRUE(n > 0 || n == -EAGAIN) << n;
    if (Below(3) == 0 || !write) s.Progress();
    // The owner's timer T: it alone resolves a proposal whose answer was lost.
    if (++waited_[i] == 2000 || s.tx() == Tx::kRaw || s.tx() == Tx::kLane) {
      if (waited_[i] == 2000) s.Timer();
      waited_[i] = 0;
    }
    std::uint32_t changes = s.TakeChanges();
    if ((changes & kPromotedTx) != 0) ++promotions_;
    if ((changes & kSettled) != 0) {
      s.ReleaseLane();
      Return(i);
    }
  }

  SimTcp tcp_;
  SimAnchor anchor_[2] = {SimAnchor(&tcp_, 0), SimAnchor(&tcp_, 1)};
  std::unique_ptr<lane::Lane> lane_[2];
  Stream stream_[2] = {Stream(Role::kConnector, &anchor_[0], Limits{}),
                       Stream(Role::kAcceptor, &anchor_[1], Limits{})};
  std::uint32_t epoch_ = 0;
  std::uint64_t written_[2] = {0, 0};
  std::uint64_t read_[2] = {0, 0};
  int promotions_ = 0;
  int waited_[2] = {0, 0};
};

}  // namespace rcsock::stream

#endif  // RCSOCK_TESTS_STREAM_WALK_ENDS_H_
