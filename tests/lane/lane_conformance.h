#ifndef RCSOCK_TESTS_LANE_LANE_CONFORMANCE_H_
#define RCSOCK_TESTS_LANE_LANE_CONFORMANCE_H_
// What every Lane must do.  A lane's test includes this and instantiates it:
//
//   INSTANTIATE_TEST_SUITE_P(Shm, LaneConformance, testing::Values(&MakePair));

#include <poll.h>
#include <sys/epoll.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "lib/base/unique_fd.h"
#include "lib/lane/lane.h"
#include "lib/lane/poller.h"

namespace rcsock::lane::test {

// Two ends of one lane, connected.
class LanePair {
 public:
  virtual ~LanePair() = default;
  virtual Lane& end(int i) = 0;
  // The poller that SetNotify(..., bell()) at that end names; null: none.
  virtual Poller* poller(int i) = 0;
  virtual int bell() const { return 2; }
  virtual void* cookie(int i) = 0;
  // End i learns that its peer has died.
  virtual void Kill(int i) = 0;
  // Whatever makes progress in between (nothing, in shared memory).
  virtual void Pump() {}
  // Whether a fresh lane takes 100,000 bytes without running out of room.
  virtual bool Large() const { return true; }
  // Whether an armed poller is kicked for what it has asked for only.
  virtual bool ExactKicks() const { return true; }
};

using PairFactory = std::unique_ptr<LanePair> (*)();

class LaneConformance : public testing::TestWithParam<PairFactory> {
 protected:
  void SetUp() override {
    pair_ = GetParam()();
    ASSERT_NE(pair_, nullptr);
    a_ = &pair_->end(0);
    b_ = &pair_->end(1);
  }

  static std::uint8_t Pattern(std::uint64_t at) {
    return static_cast<std::uint8_t>(at * 131 + (at >> 8) * 17);
  }
  static std::string Stretch(std::uint64_t from, std::size_t length) {
    std::string bytes(length, 0);
    for (std::size_t i = 0; i < length; ++i) {
      bytes[i] = static_cast<char>(Pattern(from + i));
    }
    return bytes;
  }

  std::size_t Post(Lane& lane, const std::string& bytes) {
    iovec iov{const_cast<char*>(bytes.data()), bytes.size()};
    const std::size_t n = lane.Post(&iov, 1, 0, bytes.size());
    pair_->Pump();
    return n;
  }
  // Posts the next bytes of the pattern; returns how many went.
  std::size_t PostPattern(Lane& lane, std::size_t length) {
    return Post(lane, Stretch(lane.Posted(), length));
  }
  std::string Read(Lane& lane, std::size_t limit, bool peek = false) {
    std::string bytes(limit, 0);
    iovec iov{bytes.data(), bytes.size()};
    bytes.resize(lane.Read(&iov, 1, 0, limit, peek));
    pair_->Pump();
    return bytes;
  }
  std::size_t Fill(Lane& lane) {
    std::size_t all = 0;
    while (const std::size_t n = PostPattern(lane, 100'000)) all += n;
    return all;
  }
  std::string ReadCtl(Lane& lane) {
    char message[Lane::kCtlMax];
    const std::size_t n = lane.ReadCtl(message, sizeof(message));
    return std::string(message, n);
  }
  bool Kicked(int i) {
    // A kick is an edge; a fresh poll() sees the level of an fd never read, so
    // each test looks once.
    pollfd fd{pair_->poller(i)->fd(), POLLIN, 0};
    return ::poll(&fd, 1, 0) == 1;
  }

  std::unique_ptr<LanePair> pair_;
  Lane* a_ = nullptr;
  Lane* b_ = nullptr;
};

TEST_P(LaneConformance, FreshLaneIsEmpty) {
  for (Lane* lane : {a_, b_}) {
    EXPECT_EQ(lane->Peek(), Head::kEmpty);
    EXPECT_EQ(lane->Readable(), 0u);
    EXPECT_EQ(lane->Posted(), 0u);
    EXPECT_EQ(lane->Acked(), 0u);
    EXPECT_GT(lane->Writable(), 0u);
    EXPECT_FALSE(lane->Arrived());
    EXPECT_FALSE(lane->RxPending());
    EXPECT_EQ(lane->State(), base::Reason::kNone);
    EXPECT_EQ(Read(*lane, 10), "");
    EXPECT_EQ(ReadCtl(*lane), "");
  }
}

TEST_P(LaneConformance, BothDirections) {
  EXPECT_EQ(Post(*a_, "hello"), 5u);
  EXPECT_EQ(Post(*b_, "world!"), 6u);
  EXPECT_EQ(Read(*b_, 100), "hello");
  EXPECT_EQ(Read(*a_, 100), "world!");
}

TEST_P(LaneConformance, VectorsSkipAndLimit) {
  char one[] = "0123", two[] = "45", three[] = "6789";
  iovec in[] = {{one, 4}, {nullptr, 0}, {two, 2}, {three, 4}};
  EXPECT_EQ(a_->Post(in, 4, 3, 5), 5u);
  EXPECT_EQ(a_->Post(in, 4, 8, 100), 2u);
  EXPECT_EQ(a_->Post(in, 4, 10, 100), 0u);
  pair_->Pump();
  char x[3] = {}, y[8] = {};
  iovec out[] = {{x, 3}, {nullptr, 0}, {y, 8}};
  EXPECT_EQ(b_->Read(out, 3, 1, 6, false), 6u);
  EXPECT_EQ(std::string(x + 1, 2), "34");
  EXPECT_EQ(std::string(y, 4), "5678");
  EXPECT_EQ(Read(*b_, 10), "9");
}

TEST_P(LaneConformance, PartialReadsAndPeek) {
  for (std::size_t size : {20u, 56u, 57u, 120u, 121u, 3000u, 70'000u}) {
    if (size > 10'000 && !pair_->Large()) break;
    const std::uint64_t start = a_->Posted();
    ASSERT_EQ(PostPattern(*a_, size), size);
    EXPECT_EQ(b_->Readable(), size);
    EXPECT_EQ(Read(*b_, 7), Stretch(start, 7));
    EXPECT_EQ(Read(*b_, size, true), Stretch(start + 7, size - 7));
    EXPECT_EQ(Read(*b_, 5, true), Stretch(start + 7, 5));
    EXPECT_EQ(b_->Readable(), size - 7);
    EXPECT_EQ(b_->Read(nullptr, 0, 0, 4, false), 4u);
    EXPECT_EQ(Read(*b_, 3), Stretch(start + 11, 3));
    EXPECT_EQ(b_->Peek(), Head::kData);
    EXPECT_EQ(Read(*b_, size), Stretch(start + 14, size - 14));
    EXPECT_EQ(b_->Peek(), Head::kEmpty);
    EXPECT_EQ(b_->Readable(), 0u);
  }
}

TEST_P(LaneConformance, ControlKeepsItsPlace) {
  PostPattern(*a_, 10);
  ASSERT_TRUE(a_->PostCtl("one", 3));
  ASSERT_TRUE(a_->PostCtl(std::string(Lane::kCtlMax, 'x').data(), 56));
  PostPattern(*a_, 1000);
  ASSERT_TRUE(a_->PostCtl("end", 3));
  EXPECT_EQ(a_->Posted(), 1010u);
  EXPECT_EQ(b_->Readable(), 10u);
  EXPECT_EQ(ReadCtl(*b_), "");
  EXPECT_EQ(Read(*b_, 5000, true), Stretch(0, 10));
  EXPECT_EQ(Read(*b_, 5000), Stretch(0, 10));
  EXPECT_EQ(b_->Peek(), Head::kCtl);
  EXPECT_EQ(b_->Readable(), 0u);
  EXPECT_EQ(Read(*b_, 5000), "");
  EXPECT_EQ(ReadCtl(*b_), "one");
  EXPECT_EQ(ReadCtl(*b_), std::string(Lane::kCtlMax, 'x'));
  EXPECT_EQ(Read(*b_, 5000), Stretch(10, 1000));
  EXPECT_EQ(ReadCtl(*b_), "end");
  EXPECT_EQ(b_->Peek(), Head::kEmpty);
}

TEST_P(LaneConformance, RefusesImpossibleControl) {
  char big[Lane::kCtlMax + 1] = {};
  EXPECT_FALSE(a_->PostCtl(big, sizeof(big)));
  EXPECT_FALSE(a_->PostCtl(big, 0));
  EXPECT_EQ(b_->Peek(), Head::kEmpty);
}

TEST_P(LaneConformance, FullRingTakesControlAndCreditComesBack) {
  const std::size_t capacity = Fill(*a_);
  EXPECT_EQ(a_->Writable(), 0u);
  EXPECT_TRUE(a_->PostCtl("full", 4));
  EXPECT_EQ(b_->Readable(), capacity);
  EXPECT_EQ(a_->Acked(), 0u);
  EXPECT_EQ(Read(*b_, capacity + 1), Stretch(0, capacity));
  EXPECT_EQ(ReadCtl(*b_), "full");
  b_->Credit();
  pair_->Pump();
  EXPECT_EQ(a_->Acked(), capacity);
  EXPECT_GE(a_->Writable(), capacity / 2);
  // A ring may have grown meanwhile.
  EXPECT_GE(Fill(*a_), capacity);
}

// Of whatever there is no more room for.
TEST_P(LaneConformance, AFullRingIsHalfFull) {
  EXPECT_FALSE(b_->HalfFull());
  PostPattern(*a_, 100);
  EXPECT_FALSE(b_->HalfFull());
  std::size_t all = 100 + Fill(*a_);
  EXPECT_TRUE(b_->HalfFull());
  EXPECT_EQ(Read(*b_, all + 1).size(), all);
  EXPECT_FALSE(b_->HalfFull());
  b_->Credit();
  pair_->Pump();
  for (all = 0; PostPattern(*a_, 1) == 1; ++all) {
  }
  EXPECT_TRUE(b_->HalfFull()) << all << " messages of a byte";
  EXPECT_EQ(Read(*b_, all + 1).size(), all);
  EXPECT_FALSE(b_->HalfFull());
}

// So that a reader that is killed then does not look like one that had not
// read.
TEST_P(LaneConformance, CreditThatIsAskedForBeforeTheReadComesWithIt) {
  for (int round = 1; round <= 3; ++round) {
    PostPattern(*a_, 100);
    PostPattern(*a_, 2000);
    EXPECT_EQ(b_->Readable(), 2100u);
    b_->Credit();
    pair_->Pump();
    EXPECT_EQ(Read(*b_, 3000).size(), 2100u);
    pair_->Pump();
    EXPECT_EQ(a_->Acked(), round * 2100u);
  }
}

TEST_P(LaneConformance, ManySmallMessagesFillItTooAndItRecovers) {
  for (int lap = 0; lap < 5; ++lap) {
    std::size_t posted = 0;
    const std::uint64_t start = a_->Posted();
    while (PostPattern(*a_, 1) == 1) ++posted;
    EXPECT_GT(posted, 10u);
    EXPECT_EQ(a_->Writable(), 0u);
    EXPECT_TRUE(a_->PostCtl("c", 1));
    EXPECT_EQ(Read(*b_, posted + 1), Stretch(start, posted));
    EXPECT_EQ(ReadCtl(*b_), "c");
    EXPECT_GT(a_->Writable(), 0u) << "a starved sender gets credit unasked";
  }
}

TEST_P(LaneConformance, SmallCapacityNeverWedges) {
  // Whatever the sizes, a sender without room gets it once all is consumed, and
  // without Credit() being called.
  std::mt19937 random(11);
  for (int round = 0; round < 60; ++round) {
    const std::size_t size = 1 + random() % (round % 2 == 0 ? 120 : 30'000);
    while (PostPattern(*a_, size) != 0) {
    }
    while (!Read(*b_, 50'000).empty()) {
    }
    ASSERT_GT(a_->Writable(), 0u) << "size " << size;
    ASSERT_EQ(PostPattern(*a_, 1), 1u);
  }
}

TEST_P(LaneConformance, RandomTrafficIsInOrder) {
  std::mt19937 random(5);
  std::uint64_t read[2] = {};
  std::deque<std::pair<std::uint64_t, std::string>> controls[2];  // place, text
  for (int step = 0; step < 6000; ++step) {
    const int from = static_cast<int>(random() % 2);
    Lane& tx = pair_->end(from);
    Lane& rx = pair_->end(1 - from);
    switch (random() % 6) {
      case 0:
        PostPattern(tx, random() % 100);
        break;
      case 1:
        PostPattern(tx, random() % 60'000);
        break;
      case 2: {
        const std::string text = Stretch(random(), 1 + random() % 56);
        if (tx.PostCtl(text.data(), text.size())) {
          controls[from].emplace_back(tx.Posted(), text);
        }
        break;
      }
      default: {
        auto& due = controls[from];
        const std::string got = Read(rx, random() % 80'000);
        ASSERT_EQ(got, Stretch(read[from], got.size()));
        read[from] += got.size();
        ASSERT_TRUE(due.empty() || read[from] <= due.front().first);
        if (rx.Peek() == Head::kCtl) {
          ASSERT_FALSE(due.empty());
          ASSERT_EQ(read[from], due.front().first);
          ASSERT_EQ(ReadCtl(rx), due.front().second);
          due.pop_front();
        }
      }
    }
    ASSERT_LE(tx.Acked(), read[from]);
  }
  EXPECT_GT(read[0], 1'000'000u);
  EXPECT_EQ(a_->State(), base::Reason::kNone);
  EXPECT_EQ(b_->State(), base::Reason::kNone);
}

TEST_P(LaneConformance, UnackedBytesAreKept) {
  std::mt19937 random(9);
  for (int round = 0; round < 30; ++round) {
    for (int i = 0; i < 5; ++i) {
      PostPattern(*a_, random() % 90);
      a_->PostCtl("between", 7);
      PostPattern(*a_, random() % 40'000);
    }
    const std::uint64_t acked = a_->Acked();
    const std::uint64_t posted = a_->Posted();
    std::string out(posted - acked + 10, 0);
    ASSERT_EQ(a_->CopyUnacked(acked, out.data(), out.size()), posted - acked);
    out.resize(posted - acked);
    ASSERT_EQ(out, Stretch(acked, posted - acked));
    for (int i = 0; i < 50; ++i) {
      const std::uint64_t from = acked + random() % (posted - acked + 1);
      const std::size_t want = random() % 3000;
      const std::size_t n = a_->CopyUnacked(from, out.data(), want);
      ASSERT_EQ(n, std::min<std::uint64_t>(want, posted - from));
      ASSERT_EQ(out.substr(0, n), Stretch(from, n));
    }
    if (acked > 0) {
      ASSERT_EQ(a_->CopyUnacked(acked - 1, out.data(), 5), 0u);
    }
    // Consumes some of it, often to the middle of a message.
    std::size_t most = random() % 150'000;
    while (most > 0) {
      const std::size_t n = Read(*b_, most).size();
      most -= n;
      if (n == 0 && ReadCtl(*b_).empty()) break;
    }
  }
  EXPECT_GT(a_->Acked(), 0u);
}

TEST_P(LaneConformance, EveryOffsetOfAPartlyReadMessageIsKept) {
  PostPattern(*a_, 300);
  Read(*b_, 123);
  b_->Credit();
  pair_->Pump();
  EXPECT_EQ(a_->Acked(), 0u);
  for (std::uint64_t from = 0; from < 300; ++from) {
    char out[300];
    ASSERT_EQ(a_->CopyUnacked(from, out, 300), 300 - from);
    ASSERT_EQ(std::string(out, 300 - from), Stretch(from, 300 - from));
  }
}

TEST_P(LaneConformance, ArrivedIsAnEdge) {
  PostPattern(*a_, 10);
  EXPECT_TRUE(b_->Arrived());
  EXPECT_FALSE(b_->Arrived());
  PostPattern(*a_, 10);
  PostPattern(*a_, 10);
  EXPECT_TRUE(b_->Arrived());
  EXPECT_FALSE(b_->Arrived());
  Read(*b_, 25);
  EXPECT_FALSE(b_->Arrived());
  PostPattern(*a_, 2000);
  Read(*b_, 1);
  EXPECT_TRUE(b_->Arrived());
  EXPECT_FALSE(b_->Arrived());
  Read(*b_, 5000);
  a_->PostCtl("x", 1);
  pair_->Pump();
  EXPECT_TRUE(b_->Arrived());
  Fill(*a_);
  EXPECT_TRUE(b_->Arrived());
  EXPECT_FALSE(b_->Arrived());
}

TEST_P(LaneConformance, FreezeLatchesWhatHasLanded) {
  PostPattern(*a_, 100);
  a_->PostCtl("in", 2);
  PostPattern(*a_, 50);
  Read(*b_, 30);
  b_->Freeze();
  PostPattern(*a_, 1000);
  a_->PostCtl("out", 3);
  EXPECT_EQ(b_->Readable(), 70u);
  EXPECT_EQ(Read(*b_, 5000), Stretch(30, 70));
  EXPECT_EQ(ReadCtl(*b_), "in");
  EXPECT_EQ(Read(*b_, 20, true), Stretch(100, 20));
  EXPECT_EQ(Read(*b_, 5000), Stretch(100, 50));
  b_->Freeze();
  EXPECT_EQ(b_->Peek(), Head::kEmpty);
  EXPECT_EQ(Read(*b_, 5000), "");
  EXPECT_EQ(b_->Readable(), 0u);
  EXPECT_FALSE(b_->Arrived());
  EXPECT_EQ(Post(*b_, "no"), 0u) << "a frozen end posts nothing";
  EXPECT_FALSE(b_->PostCtl("no", 2));
  // The other end serves what was not taken.
  char out[1100];
  const std::size_t n = a_->CopyUnacked(150, out, sizeof(out));
  EXPECT_EQ(n, 1000u);
  EXPECT_EQ(std::string(out, n), Stretch(150, n));
}

TEST_P(LaneConformance, DeathLeavesWhatHasLanded) {
  PostPattern(*a_, 100);
  pair_->Kill(1);
  EXPECT_EQ(b_->State(), base::Reason::kPeerGone);
  EXPECT_TRUE(b_->RxPending());
  EXPECT_EQ(b_->Peek(), Head::kData);
  EXPECT_EQ(Read(*b_, 1000), Stretch(0, 100));
  EXPECT_EQ(b_->Peek(), Head::kDead);
  EXPECT_EQ(Post(*b_, "x"), 0u);
  EXPECT_FALSE(b_->PostCtl("x", 1));
  EXPECT_EQ(b_->Writable(), 0u);
}

TEST_P(LaneConformance, SleepersWakeForData) {
  // Ping-pong in which every turn may end in a sleep; a lost wake-up hangs
  // here.
  constexpr int kTurns = 3000;
  auto play = [&](Lane& lane, bool first) {
    for (int turn = 0; turn < kTurns; ++turn) {
      const char mine = static_cast<char>(turn);
      iovec iov{const_cast<char*>(&mine), 1};
      if (first && lane.Post(&iov, 1, 0, 1) != 1) return false;
      for (;;) {
        const std::uint32_t token = lane.SleepToken(false);
        char got;
        iovec to{&got, 1};
        if (lane.Read(&to, 1, 0, 1, false) == 1) {
          if (got != mine) return false;
          break;
        }
        lane.SleepRx(token, nullptr);
      }
      if (!first && lane.Post(&iov, 1, 0, 1) != 1) return false;
    }
    return true;
  };
  bool ok = false;
  std::thread other([&] { ok = play(*b_, false); });
  EXPECT_TRUE(play(*a_, true));
  other.join();
  EXPECT_TRUE(ok);
}

TEST_P(LaneConformance, SleepersWakeForCredit) {
  constexpr std::uint64_t kAll = 20'000'000;
  std::thread writer([&] {
    const std::string bytes(65'536, 'w');
    std::mt19937 random(3);
    std::uint64_t left = kAll;
    while (left > 0) {
      const std::uint32_t token = a_->SleepToken(true);
      iovec iov{const_cast<char*>(bytes.data()), bytes.size()};
      const std::size_t n = a_->Post(
          &iov, 1, 0, std::min<std::uint64_t>(left, 1 + random() % 65'536));
      left -= n;
      if (n == 0) a_->SleepTx(token, nullptr);
    }
  });
  std::uint64_t got = 0;
  std::mt19937 random(4);
  std::vector<char> buffer(65'536);
  while (got < kAll) {
    const std::uint32_t token = b_->SleepToken(false);
    iovec iov{buffer.data(), buffer.size()};
    const std::size_t n = b_->Read(&iov, 1, 0, 1 + random() % 65'536, false);
    got += n;
    if (n == 0) b_->SleepRx(token, nullptr);
  }
  writer.join();
  EXPECT_EQ(got, kAll);
}

TEST_P(LaneConformance, SleepEnds) {
  const timespec brief{0, 1'000'000};
  std::uint32_t token = b_->SleepToken(false);
  EXPECT_EQ(b_->SleepRx(token, &brief), -ETIMEDOUT);
  token = b_->SleepToken(false);
  b_->WakeLocal();
  EXPECT_EQ(b_->SleepRx(token, nullptr), -EAGAIN);
  token = b_->SleepToken(false);
  PostPattern(*a_, 1);
  EXPECT_EQ(b_->SleepRx(token, nullptr), -EAGAIN);
  token = a_->SleepToken(true);
  Fill(*a_);
  EXPECT_EQ(a_->SleepTx(token, &brief), -ETIMEDOUT);
  Read(*b_, 1'000'000);
  EXPECT_EQ(a_->SleepTx(token, nullptr), -EAGAIN);
}

TEST_P(LaneConformance, EverySleeperWakesAtTheEnd) {
  for (const bool kill : {false, true}) {
    if (kill) {
      pair_.reset();
      SetUp();
    }
    Fill(*a_);
    std::atomic<int> returned{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&, i] {
        const std::uint32_t token = a_->SleepToken(i % 2 == 0);
        if (i % 2 == 0) {
          a_->SleepTx(token, nullptr);
        } else {
          a_->SleepRx(token, nullptr);
        }
        ++returned;
      });
    }
    // Each may still be on its way to its sleep: all orders must end well.  A
    // thread that takes its token after the end looks, and does not sleep.
    if (kill) {
      pair_->Kill(0);
    } else {
      a_->Freeze();
    }
    for (auto& thread : threads) thread.join();
    EXPECT_EQ(returned, 4);
  }
}

TEST_P(LaneConformance, ReadyBitsReachThePoller) {
  if (pair_->poller(1) == nullptr) GTEST_SKIP();
  Completion out[8];
  PostPattern(*a_, 10);
  EXPECT_EQ(pair_->poller(1)->Poll(out, 8), 0) << "not asked to";
  b_->SetNotify(kNotifyRxPoller | kNotifyRxBits, pair_->bell());
  PostPattern(*a_, 10);
  PostPattern(*a_, 10);
  ASSERT_EQ(pair_->poller(1)->Poll(out, 8), 1);
  EXPECT_EQ(out[0].cookie, pair_->cookie(1));
  EXPECT_EQ(out[0].flags, kCompletionRx);
  EXPECT_EQ(pair_->poller(1)->Poll(out, 8), 0);
  EXPECT_FALSE(Kicked(1)) << "nobody is armed";
  a_->PostCtl("c", 1);
  pair_->Pump();
  EXPECT_EQ(pair_->poller(1)->Poll(out, 8), 1);
  b_->SetNotify(kNotifyNone, pair_->bell());
  PostPattern(*a_, 10);
  EXPECT_EQ(pair_->poller(1)->Poll(out, 8), 0);
}

TEST_P(LaneConformance, AnArmedPollerIsKicked) {
  if (pair_->poller(1) == nullptr) GTEST_SKIP();
  b_->SetNotify(kNotifyRxPoller, pair_->bell());
  pair_->poller(1)->Arm();
  EXPECT_FALSE(Kicked(1));
  PostPattern(*a_, 10);
  EXPECT_TRUE(Kicked(1));
  pair_->poller(1)->Disarm();
}

TEST_P(LaneConformance, CreditReachesThePoller) {
  if (pair_->poller(0) == nullptr || !pair_->Large()) GTEST_SKIP();
  Completion out[8];
  a_->SetNotify(kNotifyTxPoller, pair_->bell());
  pair_->poller(0)->Arm();
  PostPattern(*a_, 100'000);
  Read(*b_, 100'000);
  b_->Credit();
  EXPECT_EQ(pair_->poller(0)->Poll(out, 8), 0) << "was not starved";
  Fill(*a_);
  if (pair_->ExactKicks()) {
    EXPECT_FALSE(Kicked(0));
  }
  while (!Read(*b_, 50'000).empty()) {
  }
  EXPECT_TRUE(Kicked(0));
  ASSERT_EQ(pair_->poller(0)->Poll(out, 8), 1);
  EXPECT_EQ(out[0].cookie, pair_->cookie(0));
  EXPECT_EQ(out[0].flags, kCompletionTx);
  EXPECT_GT(a_->Writable(), 0u);
  pair_->poller(0)->Disarm();
}

TEST_P(LaneConformance, PollersLoseNoWakeUp) {
  // As SleepersWakeForData, by way of armed pollers and epoll_wait(2).
  if (pair_->poller(0) == nullptr) GTEST_SKIP();
  constexpr int kTurns = 3000;
  auto play = [&](int i) {
    Lane& lane = pair_->end(i);
    Poller& poller = *pair_->poller(i);
    // A poller is watched by edges, and nobody reads its descriptor.
    const base::UniqueFd set(::epoll_create1(EPOLL_CLOEXEC));
    epoll_event event{};
    event.events = EPOLLIN | EPOLLET;
    if (::epoll_ctl(set.get(), EPOLL_CTL_ADD, poller.fd(), &event) != 0) {
      return false;
    }
    lane.SetNotify(kNotifyRxPoller | (i == 0 ? kNotifyRxBits : kNotifyNone),
                   pair_->bell());
    for (int turn = 0; turn < kTurns; ++turn) {
      char byte = static_cast<char>(turn);
      iovec iov{&byte, 1};
      if (i == 0) lane.Post(&iov, 1, 0, 1);
      char got = 0;
      iovec to{&got, 1};
      while (lane.Read(&to, 1, 0, 1, false) == 0) {
        poller.Arm();
        Completion out[4];
        if (poller.Poll(out, 4) == 0 && lane.Peek() == Head::kEmpty) {
          ::epoll_wait(set.get(), &event, 1, -1);
        }
        poller.Disarm();
      }
      if (got != byte) return false;
      if (i == 1) lane.Post(&iov, 1, 0, 1);
    }
    return true;
  };
  bool ok = false;
  std::thread other([&] { ok = play(1); });
  EXPECT_TRUE(play(0));
  other.join();
  EXPECT_TRUE(ok);
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(LaneConformance);

}  // namespace rcsock::lane::test

#endif  // RCSOCK_TESTS_LANE_LANE_CONFORMANCE_H_
