#ifndef RCSOCK_TESTS_STREAM_TWO_ENDS_H_
#define RCSOCK_TESTS_STREAM_TWO_ENDS_H_

#include <gtest/gtest.h>
#include <sys/uio.h>

#include <cstdint>
#include <new>
#include <string>

#include "tests/stream/explorer.h"

namespace rcsock::stream {

// Two ends with everything arriving at once.
class PairTest : public testing::Test {
 protected:
  PairTest() { Arrange(&world_, 4096, 64); }
  static void Arrange(World* world, std::size_t ring, std::size_t longest) {
    world->tcp.units = false;
    world->tcp.budget[0] = world->tcp.budget[1] = -1;
    world->link = lane::sim::SimLink(ring, longest);
    world->link.auto_land = world->link.auto_credit = true;
  }
  void StartOver() {
    world_.~World();
    new (&world_) World(&bounds_);
    Arrange(&world_, 4096, 64);
    changes_[0] = changes_[1] = 0;
  }
  void Up(std::uint32_t epoch = 1) {
    for (int i = 0; i < 2; ++i) {
      S(i).LaneUp(&world_.lane[i], epoch, World::NonceOf(i),
                  World::NonceOf(1 - i), true);
    }
  }
  void Go() {
    for (int k = 0; k < 8; ++k) {
      for (int i = 0; i < 2; ++i) {
        S(i).Progress();
        changes_[i] |= S(i).TakeChanges();
      }
    }
  }
  void Promote() {
    Up();
    EXPECT_EQ(Put(0, "x"), 1);
    Go();
    EXPECT_EQ(Get(1), "x");
    EXPECT_TRUE(S(0).FastTx() && S(1).FastTx());
  }
  ssize_t Put(int i, const std::string& bytes) {
    iovec iov{const_cast<char*>(bytes.data()), bytes.size()};
    return S(i).Write(&iov, 1, bytes.size());
  }
  // Null byte and errno for an error; "" for EOF.
  std::string Get(int i, bool peek = false) {
    char bytes[256];
    iovec iov{bytes, sizeof bytes};
    ssize_t n = S(i).Read(&iov, 1, sizeof bytes, peek);
    if (n < 0) return "error " + std::to_string(-n);
    return std::string(bytes, static_cast<std::size_t>(n));
  }
  // The application resets its end, as its owner does it.
  void Reset(int i) {
    S(i).Close(true);
    EXPECT_TRUE(S(i).TakeChanges() & kMustReset);
    world_.Kill(i, true);
    world_.tcp.pipe[i].fin = false;
    world_.tcp.pipe[i].rst = true;
  }
  Stream& S(int i) { return world_.stream[i]; }

  Bounds bounds_;
  World world_{&bounds_};
  std::uint32_t changes_[2] = {0, 0};
};

}  // namespace rcsock::stream

#endif  // RCSOCK_TESTS_STREAM_TWO_ENDS_H_
