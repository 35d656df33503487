// What a lane over RDMA does once the 32 bits of a credit that goes along on
// iWARP, and the 16 of the wake-ups, have come round.  (So many messages take
// an hour: the test moves the counters, which are private:
// -fno-access-control.)

#include <gtest/gtest.h>
#include <sys/uio.h>

#include <algorithm>
#include <cstdint>
#include <string>

#include "tests/lane/fake_ends.h"

namespace rcsock::lane::test {
namespace {

using rdma::QpLane;

// All has been consumed: `count` more messages have gone, and `wakes` wake-ups
// for them.
void Skip(QpLane* from, QpLane* to, std::uint64_t count, std::uint32_t wakes) {
  ASSERT_EQ(count % 64, 0u) << "what is kept by number stays where it is";
  ASSERT_EQ(to->rx_.next(), from->tx_->sent());
  from->tx_->OnAllCredited();
  from->tx_->sent_ += count;
  from->tx_->credited_ += count;
  from->tx_->first_ += static_cast<std::uint32_t>(count);
  const std::uint64_t sent = from->tx_->sent();
  from->sent_for_wakes_ = sent;
  from->credit_seen_ = sent;
  from->carried_ = sent;
  from->wakes_seen_ += wakes;
  from->wakes_drained_ = static_cast<std::uint16_t>(to->wakes_sent_ + wakes);
  from->CreditWord() = std::uint64_t{from->wakes_drained_} << rdma::kWakeShift |
                       (sent & rdma::kConsumedMask);
  to->wakes_sent_ += wakes;
  to->rx_.next_ = sent;
  to->quick_next_ = sent;
  to->consumed_ = sent;
  to->landed_ = sent;
  to->published_ = sent;
  to->told_ = sent;
  to->published_bytes_ = to->told_bytes_ = to->bytes_before_[sent % 64].load();
}

class FakeWrap : public FakeEnds {
 protected:
  bool Send(QpLane* lane, const std::string& text) {
    iovec iov{const_cast<char*>(text.data()), text.size()};
    return lane->Post(&iov, 1, 0, text.size()) == text.size();
  }
  std::string Receive(QpLane* lane, std::size_t length) {
    std::string text(length, 0);
    iovec iov{text.data(), length};
    text.resize(lane->Read(&iov, 1, 0, length, false));
    return text;
  }
  // Both have all, and know it.
  void SkipTo(std::uint64_t number) {
    const std::uint64_t at = std::max(lane_->tx_->sent(), peer_->tx_->sent());
    const std::uint64_t count = (number - at) & ~std::uint64_t{63};
    Skip(lane_, peer_, count, 0xfff0);
    Skip(peer_, lane_, count, 0xfff0);
  }
  void Sound() {
    ASSERT_EQ(lane_->State(), base::Reason::kNone) << lane_->tx_->sent();
    ASSERT_EQ(peer_->State(), base::Reason::kNone) << peer_->tx_->sent();
  }
};

constexpr std::uint64_t kRound = std::uint64_t{1} << 32;

TEST_P(FakeWrap, RequestsAndReplies) {
  for (const std::size_t size : {10, 64, 65, 1000}) {
    Again();
    SkipTo(kRound - 128);
    for (int i = 0; i < 400; ++i) {
      const std::string text = std::to_string(i) + std::string(size, 'x');
      for (QpLane* from : {lane_, peer_}) {
        QpLane* to = from == lane_ ? peer_ : lane_;
        ASSERT_EQ(to->Peek(), Head::kEmpty);
        ASSERT_TRUE(Send(from, text));
        ASSERT_EQ(Receive(to, text.size() + 1), text);
        ASSERT_NO_FATAL_FAILURE(Sound());
      }
    }
    EXPECT_GT(lane_->tx_->sent(), kRound);
    EXPECT_GT(lane_->Acked(), 0u);
  }
}

// The sender runs out of room again and again, and is woken.
TEST_P(FakeWrap, OneWay) {
  Again();
  SkipTo(kRound - 1024);
  std::string sent;
  std::string got;
  for (int i = 0; i < 4000; ++i) {
    const std::string text = std::to_string(i) + ",";
    while (!Send(lane_, text)) {
      const std::string some = Receive(peer_, 1 << 16);
      ASSERT_FALSE(some.empty()) << "neither room nor bytes";
      got += some;
      ASSERT_NO_FATAL_FAILURE(Sound());
    }
    sent += text;
    // Nothing is put together.
    lane_->Flush();
  }
  while (got.size() < sent.size()) {
    made_.pair->Pump();
    const std::string some = Receive(peer_, 1 << 16);
    ASSERT_FALSE(some.empty());
    got += some;
  }
  EXPECT_EQ(got, sent);
  EXPECT_GT(lane_->tx_->sent(), kRound);
  EXPECT_GT(peer_->wakes_sent(), 0x10000u);
  peer_->Credit();
  made_.pair->Pump();
  EXPECT_EQ(lane_->Acked(), lane_->Posted());
}

INSTANTIATE_TEST_SUITE_P(Devices, FakeWrap, testing::Bool());

}  // namespace
}  // namespace rcsock::lane::test
