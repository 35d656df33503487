// A peer that scribbles over everything it can reach, while the honest end
// works: no crash, no access out of bounds (run it with --config=asan), no
// endless loop.

#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <random>
#include <thread>

#include "lib/lane/shm/layout.h"
#include "tests/lane/shm_pair.h"

namespace rcsock::lane::test {
namespace {

using shm::LinkPage;
using shm::Segment;
using shm::StreamMemory;

constexpr int kIndex = 3;

template <typename T>
T* MapAgain(int fd) {
  void* at =
      ::mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  return at == MAP_FAILED ? nullptr : static_cast<T*>(at);
}

class ShmHostile : public testing::Test {
 protected:
  void SetUp() override {
    Connect();
    ASSERT_NE(stream_.hot, nullptr);
  }
  void TearDown() override { Disconnect(); }

  void Connect() {
    pair_ = ShmPair::Make(kIndex);
    ASSERT_NE(pair_, nullptr);
    segment_ = MapAgain<Segment>(pair_->segment_fd());
    ASSERT_NE(segment_, nullptr);
    page_ = MapAgain<LinkPage>(pair_->link(0).page_fd());
    ASSERT_NE(page_, nullptr);
    stream_ = shm::StreamOf(segment_, segment_->hot, kIndex);
  }
  void Disconnect() {
    pair_.reset();
    ::munmap(segment_, sizeof(Segment));
    ::munmap(page_, sizeof(LinkPage));
  }

  static void Scribble(void* at, std::size_t size, std::mt19937_64& random,
                       int words) {
    auto* all = static_cast<std::atomic<std::uint32_t>*>(at);
    for (int i = 0; i < words; ++i) {
      all[random() % (size / 4)].store(static_cast<std::uint32_t>(random()),
                                       std::memory_order_relaxed);
    }
  }

  // One call of everything, with guarded buffers of exactly the size given.
  static void UseEverything(ShmPair& pair, std::mt19937_64& random) {
    Lane& lane = pair.end(0);
    const std::size_t size = 1 + random() % 40'000;
    const std::unique_ptr<char[]> buffer(new char[size]);
    iovec iov{buffer.get(), size};
    switch (random() % 12) {
      case 0:
      case 1:
        ASSERT_LE(lane.Post(&iov, 1, 0, size), size);
        break;
      case 2:
        lane.PostCtl(buffer.get(), std::min<std::size_t>(size, Lane::kCtlMax));
        break;
      case 3:
        lane.Writable();
        break;
      case 4: {
        const std::uint64_t acked = lane.Acked();
        ASSERT_LE(acked, lane.Posted());
        ASSERT_LE(lane.CopyUnacked(acked, buffer.get(), size), size);
        break;
      }
      case 5:
      case 6:
        lane.Peek();
        ASSERT_LE(lane.Read(&iov, 1, 0, size, random() % 4 == 0), size);
        break;
      case 7: {
        char message[Lane::kCtlMax];
        const std::size_t most = random() % (sizeof(message) + 1);
        ASSERT_LE(lane.ReadCtl(message, most), most);
        break;
      }
      case 8:
        ASSERT_LE(lane.Readable(), std::size_t{shm::kRecordMax} * shm::kSlots);
        lane.Arrived();
        lane.RxPending();
        lane.Credit();
        break;
      case 9:
        lane.SetNotify(static_cast<std::uint32_t>(random()),
                       static_cast<int>(random()));
        break;
      case 10: {
        Completion out[16];
        const int capacity = static_cast<int>(random() % 17);
        const int n = pair.poller(0)->Poll(out, capacity);
        ASSERT_LE(n, capacity);
        for (int i = 0; i < n; ++i) ASSERT_EQ(out[i].cookie, pair.cookie(0));
        break;
      }
      case 11: {
        const timespec brief{0, 20'000};
        if (random() % 2 == 0) {
          lane.SleepRx(lane.SleepToken(false), &brief);
        } else {
          lane.SleepTx(lane.SleepToken(true), &brief);
        }
        break;
      }
    }
  }

  std::unique_ptr<ShmPair> pair_;
  Segment* segment_ = nullptr;
  LinkPage* page_ = nullptr;
  StreamMemory stream_;
};

// The peer moves our sleeping threads to a word of its own, and ends: they hear
// of it.
TEST_F(ShmHostile, MovesSleepersToAnotherWord) {
  for (const bool tx : {false, true}) {
    Lane& lane = pair_->end(0);
    std::atomic<bool> over{false};
    std::thread sleeper([&] {
      while (lane.State() == base::Reason::kNone) {
        const std::uint32_t token = lane.SleepToken(tx);
        if (tx) {
          lane.SleepTx(token, nullptr);
        } else {
          lane.SleepRx(token, nullptr);
        }
      }
      over = true;
    });
    auto& line = stream_.futex[0];
    auto& from = tx ? line.tx : line.rx;
    auto& to = segment_->futex[kIndex + 1][1].rx;
    long moved = 0;
    for (int i = 0; i < 20'000 && moved == 0; ++i) {
      moved = ::syscall(SYS_futex, &from, FUTEX_CMP_REQUEUE, 0, 1 << 20, &to,
                        from.load());
      if (moved < 0) moved = 0;
      ::usleep(100);
    }
    EXPECT_EQ(moved, 1);
    pair_->Kill(0);
    sleeper.join();
    EXPECT_TRUE(over);
    if (!tx) {
      Disconnect();
      Connect();
    }
  }
}

#if !defined(__SANITIZE_THREAD__)  // the races are the point
TEST_F(ShmHostile, ScribblesOverAllOfIt) {
  std::atomic<bool> stop{false};
  std::mt19937_64 random(1);
  int dead = 0;
  for (int life = 0; life < 60; ++life) {
    if (life != 0) Connect();
    stop = false;
    std::thread scribbler([&, life] {
      std::mt19937_64 noise(life);
      while (!stop) {
        Scribble(stream_.hot, sizeof(*stream_.hot), noise, 40);
        Scribble(stream_.more, sizeof(segment_->slots[0]), noise, 200);
        Scribble(stream_.bytes, sizeof(segment_->bytes[0]), noise, 20);
        Scribble(page_->summary, sizeof(page_->summary), noise, 20);
        Scribble(page_->ready, sizeof(page_->ready), noise, 20);
        // Slots that look new: nearly right, so that checks further in are met.
        const std::uint32_t n = noise() % 40;
        shm::Slot& slot = stream_.slot(noise() % 2 == 0 ? n : 0, 1);
        slot.credit.store(noise() % 8);
        slot.head.store(
            std::uint64_t{n + 1} << 32 |
            ring::Encode({static_cast<ring::Kind>(1 + noise() % 2),
                          static_cast<std::uint8_t>(noise() % 3),
                          static_cast<std::uint32_t>(
                              noise() % (noise() % 2 == 0 ? 60 : 17'000))}));
        stream_.hot->control[1].consumed.store(noise() % 8);
      }
    });
    for (int i = 0; i < 400; ++i) {
      UseEverything(*pair_, random);
      if (HasFatalFailure()) break;
      if (i == 350) pair_->end(0).Freeze();
      if (i == 370) pair_->end(0).Thaw();
    }
    if (pair_->end(0).State() != base::Reason::kNone) ++dead;
    stop = true;
    scribbler.join();
    if (HasFatalFailure()) return;
    if (life != 59) Disconnect();
  }
  EXPECT_GT(dead, 0);
}
#endif

TEST_F(ShmHostile, FalseCreditEndsTheLaneOnly) {
  iovec iov{const_cast<char*>("abc"), 3};
  pair_->end(0).Post(&iov, 1, 0, 3);
  stream_.hot->control[1].consumed = 2;
  EXPECT_EQ(pair_->end(0).Writable(), 0u);
  EXPECT_EQ(pair_->end(0).State(), base::Reason::kProtocol);
  EXPECT_EQ(pair_->end(0).Post(&iov, 1, 0, 3), 0u);
  EXPECT_FALSE(pair_->link(0).dead());
}

TEST_F(ShmHostile, FalseCreditInAMessageEndsTheLaneOnly) {
  iovec iov{const_cast<char*>("abc"), 3};
  pair_->end(0).Post(&iov, 1, 0, 3);
  pair_->end(1).Post(&iov, 1, 0, 3);
  stream_.slot(0, 1).credit = 2;
  char got[100];
  iovec to{got, sizeof(got)};
  EXPECT_EQ(pair_->end(0).Read(&to, 1, 0, sizeof(got), false), 3u);
  pair_->end(0).Post(&iov, 1, 0, 3);
  EXPECT_EQ(pair_->end(0).State(), base::Reason::kProtocol);
  EXPECT_EQ(pair_->end(0).Post(&iov, 1, 0, 3), 0u);
  EXPECT_FALSE(pair_->link(0).dead());
}

TEST_F(ShmHostile, FalseReachEndsTheLaneOnly) {
  iovec iov{const_cast<char*>("abc"), 3};
  pair_->end(0).Post(&iov, 1, 0, 3);
  stream_.hot->reached[1].messages = 2;
  EXPECT_EQ(pair_->end(0).Acked(), 0u);
  EXPECT_EQ(pair_->end(0).State(), base::Reason::kProtocol);
  EXPECT_EQ(pair_->end(0).Post(&iov, 1, 0, 3), 0u);
  EXPECT_FALSE(pair_->link(0).dead());
}

TEST_F(ShmHostile, MalformedMessageEndsTheLane) {
  for (const ring::Imm imm :
       {ring::Imm{ring::Kind::kData, 0, 16 * 1024 + 1},
        ring::Imm{ring::Kind::kCtl, 0, 8},
        ring::Imm{ring::Kind::kCtl, 1, Lane::kCtlMax + 1},
        ring::Imm{ring::Kind::kData, 1, shm::kInlineMax + 1},
        ring::Imm{ring::Kind::kNone, 1, 8},
        ring::Imm{ring::Kind::kCredit, 1, 8}}) {
    iovec iov{const_cast<char*>("abc"), 3};
    pair_->end(1).Post(&iov, 1, 0, 3);
    stream_.hot->control[1].more = 1;
    stream_.slot(1, 1).head = std::uint64_t{2} << 32 | ring::Encode(imm);
    char got[100];
    iovec to{got, sizeof(got)};
    EXPECT_EQ(pair_->end(0).Readable(), 3u);
    EXPECT_EQ(pair_->end(0).Read(&to, 1, 0, sizeof(got), false), 3u);
    EXPECT_EQ(pair_->end(0).State(), base::Reason::kProtocol);
    EXPECT_EQ(pair_->end(0).Peek(), Head::kDead);
    EXPECT_EQ(pair_->end(0).Read(&to, 1, 0, sizeof(got), false), 0u);
    Disconnect();
    Connect();
  }
}

TEST_F(ShmHostile, WhatWasLatchedCannotBeTakenBack) {
  iovec iov{const_cast<char*>("abc"), 3};
  pair_->end(1).Post(&iov, 1, 0, 3);
  pair_->end(0).Freeze();
  stream_.slot(0, 1).head = 0;
  EXPECT_EQ(pair_->end(0).Peek(), Head::kDead);
  EXPECT_EQ(pair_->end(0).State(), base::Reason::kProtocol);
}

// What comes behind the latch is checked as ever, and is what was there when
// the lane was thawed.
TEST_F(ShmHostile, AThawedLaneTakesWhatIsThereAndNoMore) {
  Lane& lane = pair_->end(0);
  iovec iov{const_cast<char*>("abc"), 3};
  EXPECT_FALSE(lane.Thaw());
  pair_->end(1).Post(&iov, 1, 0, 3);
  lane.Freeze();
  pair_->end(1).Post(&iov, 1, 0, 3);
  pair_->end(1).Post(&iov, 1, 0, 2);
  EXPECT_EQ(lane.Readable(), 3u);
  EXPECT_TRUE(lane.Thaw());
  EXPECT_EQ(lane.Readable(), 8u);
  pair_->end(1).Post(&iov, 1, 0, 3);
  EXPECT_EQ(lane.Readable(), 8u);
  char got[100];
  iovec to{got, sizeof(got)};
  EXPECT_EQ(lane.Read(&to, 1, 0, sizeof(got), false), 8u);
  EXPECT_EQ(lane.Read(&to, 1, 0, sizeof(got), false), 0u);
  // A peer that is not dead at all, and lies.
  EXPECT_TRUE(lane.Thaw());
  EXPECT_EQ(lane.Readable(), 3u);
  pair_->end(1).Post(&iov, 1, 0, 3);
  stream_.slot(4, 1).head =
      std::uint64_t{5} << 32 |
      ring::Encode({ring::Kind::kData, 0, shm::kRecordMax + 1});
  EXPECT_TRUE(lane.Thaw());
  EXPECT_EQ(lane.Read(&to, 1, 0, sizeof(got), false), 3u);
  EXPECT_EQ(lane.State(), base::Reason::kProtocol);
  EXPECT_FALSE(lane.Thaw());
  EXPECT_EQ(lane.Peek(), Head::kDead);
}

TEST_F(ShmHostile, AllBitsSetYieldOnlyWhatIsOpen) {
  for (int bell = 0; bell < shm::kBells; ++bell) {
    for (auto& words : page_->ready[0][bell].words) {
      for (auto& word : words) word = ~std::uint64_t{0};
    }
    for (auto& words : page_->summary[0][bell].words) {
      for (auto& word : words) word = ~std::uint64_t{0};
    }
  }
  Completion out[64];
  ASSERT_EQ(pair_->link(0).Drain(2, out, 64), 1);
  EXPECT_EQ(out[0].cookie, pair_->cookie(0));
  EXPECT_EQ(pair_->link(0).Drain(2, out, 64), 0);
}

}  // namespace
}  // namespace rcsock::lane::test
