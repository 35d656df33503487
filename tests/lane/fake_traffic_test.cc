// What traffic costs: requests, doorbells, credit and wake-ups.

#include <gtest/gtest.h>
#include <sys/uio.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <ctime>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "lib/base/clock.h"
#include "tests/lane/fake_ends.h"

namespace rcsock::lane::test {
namespace {

class Traffic : public FakeEnds {
 protected:
  void SetUp() override {
    pace_ = rdma::kSoftwarePace;
    FakeEnds::SetUp();
  }
};

// Up to 64 bytes take one request, and are kept until they are credited.
TEST_P(Traffic, ShortDataOniWARPIsOneRequest) {
  if (!GetParam()) GTEST_SKIP();
  made_.verbs->Hold(true);
  const auto requests = [this] { return made_.verbs->counts().requests; };
  std::string all;
  for (const std::size_t size : {1, 60, 61, 64, 65, 3}) {
    const int before = requests();
    const std::string bytes(size, static_cast<char>('a' + size % 26));
    iovec iov{const_cast<char*>(bytes.data()), size};
    ASSERT_EQ(lane_->Post(&iov, 1, 0, size), size);
    EXPECT_EQ(requests() - before, size <= rdma::kSendData ? 1 : 2) << size;
    all += bytes;
  }
  std::string kept(all.size(), 0);
  EXPECT_EQ(lane_->CopyUnacked(0, kept.data(), kept.size()), all.size());
  EXPECT_EQ(kept, all);
  made_.verbs->Hold(false);
  made_.pair->Pump();
  std::string got(all.size() + 1, 0);
  iovec iov{got.data(), got.size()};
  EXPECT_EQ(peer_->Read(&iov, 1, 0, got.size(), true), all.size());
  EXPECT_EQ(peer_->Readable(), all.size());
  EXPECT_EQ(peer_->Read(&iov, 1, 0, got.size(), false), all.size());
  got.pop_back();
  EXPECT_EQ(got, all);
}

// It takes no request of its own.
TEST_P(Traffic, CreditGoesAlong) {
  const auto requests = [this] { return made_.verbs->counts().requests; };
  std::vector<char> sink(1000);
  iovec iov{sink.data(), sink.size()};
  for (const std::size_t size : {10, 64, 65, 1000}) {
    ASSERT_EQ(Post(lane_, 100), 100u);
    made_.pair->Pump();
    ASSERT_EQ(peer_->Read(&iov, 1, 0, sink.size(), false), 100u);
    EXPECT_EQ(lane_->Acked(), lane_->Posted() - 100) << "it is lazy";
    const int before = requests();
    ASSERT_EQ(Post(peer_, size), size);
    EXPECT_EQ(requests() - before, GetParam() && size > rdma::kSendData ? 2 : 1)
        << size;
    // Nobody has drained yet.
    EXPECT_EQ(lane_->Acked(), lane_->Posted());
    ASSERT_EQ(lane_->Read(&iov, 1, 0, sink.size(), false), size);
    EXPECT_EQ(std::string(sink.data(), size), std::string(size, 'b'));
  }
}

// The lane has ended, but what the peer had said before that it has read, it
// has read: nobody need have looked for it by then.
TEST_P(Traffic, CreditFromBeforeTheEndCounts) {
  std::vector<char> sink(1000);
  iovec iov{sink.data(), sink.size()};
  for (const bool answers : {false, true}) {
    Again();
    ASSERT_EQ(Post(lane_, 100), 100u);
    ASSERT_EQ(Post(lane_, 50), 50u);
    made_.pair->Pump();
    ASSERT_EQ(peer_->Read(&iov, 1, 0, 100, false), 100u);
    if (answers) {
      ASSERT_EQ(Post(peer_, 10), 10u);
    } else {
      peer_->Credit();
    }
    lane_->Lost(base::Reason::kPeerGone);
    lane_->Freeze();
    EXPECT_EQ(lane_->Acked(), 100u) << answers;
    EXPECT_EQ(lane_->CopyUnacked(100, sink.data(), sink.size()), 50u);
  }
}

// Until it is drained, this end may send as much as its queue holds.
TEST_P(Traffic, CreditThatGoesAlongIsReadRightLater) {
  std::vector<char> sink(10'000);
  iovec iov{sink.data(), sink.size()};
  int most = 0;
  for (int round = 0; round < 20; ++round) {
    ASSERT_EQ(Post(lane_, 9000), 9000u);
    ASSERT_EQ(peer_->Read(&iov, 1, 0, sink.size(), false), 9000u);
    ASSERT_EQ(Post(peer_, 100), 100u);
    const std::uint64_t landed = lane_->landed_messages();
    int sent = 0;
    for (; lane_->landed_messages() == landed; ++sent) {
      ASSERT_EQ(Post(lane_, 9000), 9000u);
      ASSERT_EQ(peer_->Read(&iov, 1, 0, sink.size(), false), 9000u);
    }
    most = std::max(most, sent);
    ASSERT_EQ(lane_->State(), base::Reason::kNone);
    ASSERT_EQ(lane_->Read(&iov, 1, 0, sink.size(), false), 100u);
    made_.pair->Pump();
    EXPECT_LE(lane_->credit_seen(), peer_->published());
  }
  EXPECT_GT(most, GetParam() ? 32 : 64);
}

// Where the immediate has no room for it, it takes a request, but no doorbell
// of its own while there are answers; and only the last one before it would
// takes it along.
TEST_P(Traffic, CreditGoesAlongWithFewLongAnswers) {
  if (GetParam()) GTEST_SKIP();
  constexpr std::size_t kBlock = 1024 * 1024;
  const std::uint32_t half = rdma::RingBytes(kBlock) / 2;
  const MuchPinned pinned;
  for (const std::uint32_t size : {131'072u, 160'000u, 200'000u}) {
    Close();
    Open(kBlock);
    std::vector<char> sink(size);
    iovec iov{sink.data(), size};
    const auto before = made_.verbs->counts();
    constexpr int kRounds = 100;
    for (int i = 0; i < kRounds; ++i) {
      ASSERT_EQ(Post(lane_, size), size);
      ASSERT_EQ(peer_->Read(&iov, 1, 0, size, false), size);
      ASSERT_EQ(Post(peer_, size), size);
      ASSERT_EQ(lane_->Read(&iov, 1, 0, size, false), size);
    }
    const auto after = made_.verbs->counts();
    const int messages = 2 * kRounds;
    EXPECT_EQ(after.posts - before.posts, messages) << size;
    // (half / size messages fit before it is due.)
    const int credits = after.requests - before.requests - messages;
    EXPECT_GE(credits, 2) << size;
    EXPECT_LE(credits, messages / static_cast<int>(half / size)) << size;
  }
}

// Whatever goes to and fro, however late, and however much of the credit goes
// along with it: an end that finds no room, and then only sleeps, is woken when
// its peer has read all that there is.
TEST_P(Traffic, WhoFindsNoRoomIsWokenByWhoReadsAll) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    std::mt19937 random(seed);
    rdma::QpLane* const ends[] = {lane_, peer_};
    std::optional<std::uint32_t> sleeps[2];  // its token
    std::vector<char> sink(70'000);
    int woken = 0;
    // An end that finds no room takes its token, looks, and sleeps.
    const auto look = [&](unsigned end) {
      const std::uint32_t token = ends[end]->SleepToken(true);
      if (sleeps[end] == token) return;
      woken += sleeps[end].has_value();
      sleeps[end].reset();
      if (ends[end]->Writable() == 0) sleeps[end] = token;
    };
    for (int step = 0; step < 1000; ++step) {
      made_.verbs->Hold(true);
      const unsigned end = random() % 2;
      const std::size_t size =
          1 + random() % (random() % 2 == 0 ? 200 : 40'000);
      if (random() % 2 == 0) {
        if (!sleeps[end]) Post(ends[end], size);
        look(end);
      } else {
        iovec iov{sink.data(), sink.size()};
        ends[end]->Read(&iov, 1, 0, random() % 2 == 0 ? size : sink.size(),
                        false);
      }
      made_.verbs->Deliver(random() % 3);
      if (random() % 8 != 0) continue;
      made_.verbs->Hold(false);
      made_.pair->Pump();
      for (const unsigned i : {0u, 1u}) {
        look(i);
        ASSERT_TRUE(!sleeps[i] || ends[1 - i]->Readable() != 0)
            << "end " << i << " sleeps for ever: seed " << seed << ", step "
            << step;
      }
    }
    made_.verbs->Hold(false);
    EXPECT_GT(woken, 5);
    Again();
  }
}

TEST_P(Traffic, SmallSendsJoinWhileTheWindowIsFull) {
  made_.pair->side[0].flusher.reset();
  made_.pair->side[0].domain->SetFlushTimer([](void*) {}, nullptr);
  made_.verbs->Hold(true);
  const int before = made_.verbs->counts().posts;
  for (int i = 0; i < 150; ++i) {
    char byte = static_cast<char>(i);
    iovec iov{&byte, 1};
    ASSERT_EQ(lane_->Post(&iov, 1, 0, 1), 1u) << i;
  }
  EXPECT_LT(made_.verbs->counts().posts - before, 12);
  made_.verbs->Hold(false);
  made_.pair->Pump();
  char got[150];
  iovec iov{got, sizeof(got)};
  ASSERT_EQ(peer_->Read(&iov, 1, 0, sizeof(got), false), 150u);
  for (int i = 0; i < 150; ++i) EXPECT_EQ(got[i], static_cast<char>(i));
}

// A thread that is now and then interrupted sends on in a burst; one that has
// something else to do between its sends, or pauses, has no message waiting.
TEST_P(Traffic, ABurstOutlastsAFewShortGaps) {
  base::InitClock();
  made_.pair->side[0].flusher.reset();
  made_.pair->side[0].domain->SetFlushTimer([](void*) {}, nullptr);
  std::size_t posted = 0;
  const auto post_behind = [&](std::uint64_t gap_us) {
    const std::uint64_t start = base::Ticks();
    while (base::Ticks() - start < gap_us * base::ticks_per_us) {
    }
    posted += Post(lane_, 1);
  };
  const auto read_all = [&] {
    made_.pair->side[0].domain->FlushDeferred();
    made_.pair->Pump();
    std::string sink(posted, 0);
    iovec iov{sink.data(), sink.size()};
    EXPECT_EQ(peer_->Read(&iov, 1, 0, posted, false), posted);
    peer_->Credit();
    made_.pair->Pump();
    posted = 0;
  };
  int kept = 0;
  for (int round = 0; round < 50; ++round) {
    for (int i = 0; i < 40; ++i) post_behind(0);
    // (Or this thread has lost its processor just now.)
    if (!lane_->Quiet()) {
      post_behind(20);
      if (!lane_->Quiet()) ++kept;
    }
    post_behind(1'000);
    EXPECT_TRUE(lane_->Quiet());
    read_all();
  }
  EXPECT_GT(kept, 0);
  for (int i = 0; i < 40; ++i) post_behind(0);
  for (int i = 0; i < 40; ++i) post_behind(20);
  EXPECT_TRUE(lane_->Quiet());
  read_all();
}

TEST_P(Traffic, RepliesNeverWait) {
  made_.pair->side[0].flusher.reset();
  made_.pair->side[0].domain->SetFlushTimer([](void*) {}, nullptr);
  char byte = 0;
  iovec iov{&byte, 1};
  for (int i = 0; i < 200; ++i) {
    // No pump, and no completion is looked at: it must have gone.
    ASSERT_EQ(lane_->Post(&iov, 1, 0, 1), 1u);
    ASSERT_TRUE(lane_->Quiet());
    ASSERT_EQ(peer_->Read(&iov, 1, 0, 1, false), 1u);
    ASSERT_EQ(peer_->Post(&iov, 1, 0, 1), 1u);
    peer_->Flush();
    ASSERT_EQ(lane_->Read(&iov, 1, 0, 1, false), 1u);
  }
}

// Arming is a system call on software devices: none for who won't sleep.
TEST_P(Traffic, WhatComesAmidTheArmingEndsTheSleep) {
  char byte;
  iovec iov{&byte, 1};
  const timespec limit{10, 0};
  for (int i = 0; i < 10; ++i) {
    made_.verbs->Hold(true);
    Post(peer_, 1);
    const int before = made_.verbs->counts().arms;
    made_.verbs->DeliverOnArm(2);
    ASSERT_NE(lane_->SleepRx(lane_->SleepToken(false), &limit), -ETIMEDOUT);
    ASSERT_EQ(made_.verbs->counts().arms - before, 1) << i;
    made_.verbs->Hold(false);
    EXPECT_EQ(lane_->Read(&iov, 1, 0, 1, false), 1u);
  }
  // Its own completions are not what it waits for.
  constexpr std::size_t kSize = 9000;
  constexpr int kCount = 6;
  made_.verbs->Hold(true);
  for (int k = 0; k < kCount; ++k) ASSERT_EQ(Post(lane_, kSize), kSize);
  const int before = made_.verbs->counts().arms;
  made_.verbs->DeliverOnArm(2 * kCount);
  std::thread other([&] {
    while (made_.verbs->counts().arms == before) std::this_thread::yield();
    made_.verbs->Hold(false);
    Post(peer_, 1);
  });
  // (What has come before the thread sleeps is -EAGAIN.)
  EXPECT_NE(lane_->SleepRx(lane_->SleepToken(false), &limit), -ETIMEDOUT);
  other.join();
  EXPECT_EQ(made_.verbs->counts().arms - before, 1);
  EXPECT_EQ(lane_->Read(&iov, 1, 0, 1, false), 1u);
  std::vector<char> sink(kCount * kSize);
  iov = {sink.data(), sink.size()};
  EXPECT_EQ(peer_->Read(&iov, 1, 0, sink.size(), false), sink.size());
}

// The end of a send is no answer.  And each event costs one fetch.
TEST_P(Traffic, OnlyWhatThePeerSendsEndsASleep) {
  RdmaSide& side = made_.pair->side[0];
  const auto counts = [this] { return made_.verbs->counts(); };
  lane_->SetNotify(kNotifyRxPoller, RdmaSide::kBell);
  Completion completion;
  for (int round = 0; round < 10; ++round) {
    while (side.poller.Poll(&completion, 1) != 0) {
    }
    side.poller.Arm();
    const FakeVerbs::Counts before = counts();
    // Enough of them for a completion each.
    for (int i = 0; i < 6; ++i) EXPECT_EQ(Post(lane_, 9000), 9000u);
    EXPECT_EQ(counts().events - before.events, 0) << round;
    std::vector<char> sink(54'000);
    iovec iov{sink.data(), sink.size()};
    ASSERT_EQ(peer_->Read(&iov, 1, 0, sink.size(), false), sink.size());
    const FakeVerbs::Counts asleep = counts();
    EXPECT_EQ(Post(peer_, 1), 1u);
    EXPECT_EQ(counts().events - asleep.events, 1) << round;
    EXPECT_EQ(side.poller.Poll(&completion, 1), 1);
    side.poller.Disarm();
    EXPECT_LE(counts().fetches - before.fetches, 2) << round;
    ASSERT_EQ(lane_->Read(&iov, 1, 0, 1, false), 1u);
    peer_->Credit();
    lane_->Credit();
    made_.pair->Pump();
  }
}

// But for who waits for room in the send queue, also if he comes when others
// sleep already.
TEST_P(Traffic, ASendEndsTheSleepOfWhoFindsTheQueueFull) {
  RdmaSide& side = made_.pair->side[0];
  lane_->SetNotify(kNotifyTxPoller, RdmaSide::kBell);
  Completion completion;
  while (side.poller.Poll(&completion, 1) != 0) {
  }
  made_.verbs->Hold(true);
  side.poller.Arm();
  // Credit words: they take room in the queue, and no credit of the peer's.
  const int before = made_.verbs->counts().events;
  for (int i = 0; i < 100; ++i) lane_->Nudge();
  EXPECT_EQ(Post(lane_, 1), 0u);
  EXPECT_EQ(made_.verbs->counts().events, before);
  made_.verbs->Hold(false);
  EXPECT_EQ(made_.verbs->counts().events, before + 1);
  EXPECT_EQ(side.poller.Poll(&completion, 1), 1);
  EXPECT_NE(completion.flags & kCompletionTx, 0u);
  side.poller.Disarm();
  EXPECT_EQ(Post(lane_, 1), 1u);
}

// Nothing would wake it: so it does not sleep, and its stream goes to TCP.
TEST_P(Traffic, ADeviceThatDoesNotArmLosesItsLanes) {
  made_.verbs->RefuseArms();
  const timespec limit{10, 0};
  EXPECT_NE(lane_->SleepRx(lane_->SleepToken(false), &limit), -ETIMEDOUT);
  EXPECT_EQ(lane_->State(), base::Reason::kLaneError);
}

TEST_P(Traffic, WhoSleepsOrWaitsForTheTimerFlushes) {
  made_.pair->side[0].flusher.reset();
  std::atomic<int> asked{0};
  made_.pair->side[0].domain->SetFlushTimer(
      [](void* count) { ++*static_cast<std::atomic<int>*>(count); }, &asked);
  const timespec brief{0, 1'000};
  for (const int way : {0, 1, 2, 3}) {
    made_.verbs->Hold(true);
    for (int i = 0; i < 20; ++i) Post(lane_, 1);
    ASSERT_FALSE(lane_->Quiet());
    EXPECT_EQ(asked, 1);
    switch (way) {
      case 0:
        lane_->SleepRx(lane_->SleepToken(false), &brief);
        break;
      case 1:
        lane_->SleepTx(lane_->SleepToken(true), &brief);
        break;
      case 2:
        lane_->source()->Arm();
        lane_->source()->Disarm(false);
        break;
      default:
        made_.pair->side[0].domain->FlushDeferred();
    }
    EXPECT_TRUE(lane_->Quiet()) << way;
    made_.verbs->Hold(false);
    std::string sink(100, 0);
    iovec iov{sink.data(), sink.size()};
    EXPECT_EQ(peer_->Read(&iov, 1, 0, 100, false), 20u);
    made_.pair->side[0].domain->FlushDeferred();
    asked = 0;
  }
}

TEST_P(Traffic, LightTrafficCostsNoWakeUps) {
  char byte = 0;
  iovec iov{&byte, 1};
  for (int i = 0; i < 2000; ++i) {
    lane_->Post(&iov, 1, 0, 1);
    made_.pair->Pump();
    peer_->Read(&iov, 1, 0, 1, false);
    peer_->Post(&iov, 1, 0, 1);
    made_.pair->Pump();
    lane_->Read(&iov, 1, 0, 1, false);
  }
  EXPECT_LT(peer_->wakes_sent(), 10u);
}

INSTANTIATE_TEST_SUITE_P(Ib, Traffic, testing::Values(false));
INSTANTIATE_TEST_SUITE_P(Iwarp, Traffic, testing::Values(true));

}  // namespace
}  // namespace rcsock::lane::test
