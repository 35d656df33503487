// What a lane does once its 32 bits of a message's number have come round.  (So
// many messages take an hour: the test moves the counters, which are private:
// -fno-access-control.)

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <string>

#include "lib/lane/shm/shm_lane.h"
#include "tests/lane/shm_pair.h"

namespace rcsock::lane::test {
namespace {

using shm::ShmLane;

ShmLane* End(ShmPair* pair, int i) {
  return static_cast<ShmLane*>(&pair->end(i));
}

bool Send(ShmLane* lane, const std::string& text) {
  iovec iov{const_cast<char*>(text.data()), text.size()};
  return lane->Post(&iov, 1, 0, text.size()) == text.size();
}

std::string Receive(ShmLane* lane) {
  char text[256];
  iovec iov{text, sizeof text};
  return {text, lane->Read(&iov, 1, 0, sizeof text, false)};
}

// All has been consumed: `count` more messages of request and reply have gone,
// which use slot 0 only.
void Skip(ShmLane* from, ShmLane* to, std::uint64_t count) {
  ASSERT_EQ(to->rx_.next(), from->tx_.sent());
  from->tx_.OnAllCredited();
  from->tx_.sent_ += count;
  from->tx_.credited_ += count;
  from->tx_.first_ += static_cast<std::uint32_t>(count);
  from->heard_ = from->tx_.sent();
  from->credit_seen_ = from->tx_.sent();
  to->rx_.next_ += count;
  to->rx_.published_ += count;
  to->arrived_ = to->rx_.next_;
  to->quick_next_ = to->rx_.next() << ShmLane::kQuickShift | to->rx_.slot();
  to->hot_->reached[to->side_].messages = to->rx_.next();
  to->own().consumed = to->rx_.next();
}

class Wrap : public testing::Test {
 protected:
  void PingPong(int times) {
    for (int i = 0; i < times; ++i) {
      for (int from : {0, 1}) {
        const std::string text = std::to_string(i) + (from == 0 ? "a" : "b");
        ShmLane* to = End(pair_.get(), 1 - from);
        ASSERT_FALSE(to->RxPending()) << to->rx_.next();
        ASSERT_EQ(to->Peek(), Head::kEmpty) << to->rx_.next();
        ASSERT_EQ(Receive(to), "") << to->rx_.next();
        ASSERT_TRUE(Send(End(pair_.get(), from), text));
        ASSERT_EQ(Receive(to), text) << to->rx_.next();
        ASSERT_EQ(to->State(), base::Reason::kNone);
      }
    }
  }
  // To `left` messages before number `number`, in each direction.
  void SkipTo(std::uint64_t number, std::uint64_t left) {
    for (int from : {0, 1}) {
      ShmLane* lane = End(pair_.get(), from);
      const std::uint64_t sent = lane->tx_.sent();
      Skip(lane, End(pair_.get(), 1 - from), number - left - sent);
    }
  }
  // So many under way at once, in each direction.
  void Burst(int depth) {
    for (int from : {0, 1}) {
      ShmLane* to = End(pair_.get(), 1 - from);
      for (int i = 0; i < depth; ++i) {
        ASSERT_TRUE(Send(End(pair_.get(), from), "x"));
      }
      ASSERT_EQ(Receive(to), std::string(static_cast<std::size_t>(depth), 'x'));
    }
    PingPong(1);
  }
  // Request and reply for two turns of the number and more.
  void ForAges() {
    constexpr std::uint64_t kHalf = std::uint64_t{1} << 31;
    for (std::uint64_t at = kHalf; at <= 6 * kHalf; at += kHalf) {
      SkipTo(at, 200);
      PingPong(400);
    }
  }

  std::unique_ptr<ShmPair> pair_ = ShmPair::Make();
};

TEST_F(Wrap, SlotsThatWereUsedOnceDoNotLookNew) {
  // (As the switch leaves slot 1: what is staged behind PROPOSE.)
  Burst(2);
  ForAges();
}

TEST_F(Wrap, SlotsThatWereNeverUsedDoNotLookNew) {
  PingPong(1);
  ForAges();
}

TEST_F(Wrap, WhatIsUnderWayIsKept) {
  constexpr std::uint64_t kHalf = std::uint64_t{1} << 31;
  for (int depth : {1, 2, 3, 30, 100}) {
    for (int before = 0; before < 110; ++before) {
      pair_ = ShmPair::Make();
      Burst(120);
      SkipTo(kHalf, static_cast<std::uint64_t>(before));
      Burst(depth);
      Burst(depth);
      ASSERT_FALSE(HasFatalFailure()) << depth << ' ' << before;
    }
  }
}

// A burst of always the same length finds its slots in use for ever, and those
// behind them not.
TEST_F(Wrap, Bursts) {
  constexpr std::uint64_t kHalf = std::uint64_t{1} << 31;
  Burst(100);
  for (std::uint64_t at = kHalf; at <= 4 * kHalf; at += kHalf) {
    SkipTo(at, 300);
    for (int i = 0; i < 100; ++i) {
      Burst(5);
      ASSERT_FALSE(HasFatalFailure()) << at << ' ' << i;
    }
  }
}

}  // namespace
}  // namespace rcsock::lane::test
