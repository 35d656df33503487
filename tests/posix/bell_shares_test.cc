#include "lib/posix/thread/bell_shares.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <set>
#include <thread>

#include "lib/lane/bell_cpu.h"
#include "lib/lane/poller.h"
#include "lib/lane/shm/layout.h"

namespace rcsock::posix {
namespace {

constexpr int kOwn = lane::kBells - lane::shm::kSetBells;

class BellSharesTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before_), 0);
    ForgetBells();
  }
  void TearDown() override {
    ::setrlimit(RLIMIT_NOFILE, &before_);
    ForgetBells();
  }
  // False: the machine's own limit is lower.
  bool Allow(rlim_t descriptors) {
    if (before_.rlim_max < descriptors) return false;
    const rlimit limit{descriptors, before_.rlim_max};
    return ::setrlimit(RLIMIT_NOFILE, &limit) == 0;
  }

 private:
  rlimit before_{};
};

// A completion queue is to interrupt where its thread runs.
TEST_F(BellSharesTest, TheCpuOfWhoTakesOneIsKnown) {
  cpu_set_t allowed;
  ASSERT_EQ(::sched_getaffinity(0, sizeof allowed, &allowed), 0);
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(static_cast<std::size_t>(cpu), &allowed)) continue;
    std::thread([cpu] {
      cpu_set_t one;
      CPU_ZERO(&one);
      CPU_SET(static_cast<std::size_t>(cpu), &one);
      ASSERT_EQ(::sched_setaffinity(0, sizeof one, &one), 0);
      EXPECT_EQ(lane::BellCpu(QueueOfThread()), cpu);
      GiveQueueOfThread();
      const int of_thread = TakeBell(true);
      EXPECT_EQ(lane::BellCpu(of_thread), cpu);
      // The conductor may take a set's bell, so the bell gets the CPU of the
      // thread that uses the stream.
      const int of_set = TakeBell(false);
      EXPECT_EQ(lane::BellCpu(of_set), -1);
      lane::ShareBellCpu(of_set, of_thread);
      EXPECT_EQ(lane::BellCpu(of_set), cpu);
      lane::ShareBellCpu(of_set, -1);
      EXPECT_EQ(lane::BellCpu(of_set), cpu) << "the first one stays";
      GiveBell(of_set);
      GiveBell(of_thread);
    }).join();
  }
  EXPECT_EQ(lane::BellCpu(-1), -1);
  EXPECT_EQ(lane::BellCpu(lane::kBells), -1);
}

TEST_F(BellSharesTest, EachHasOneOfItsOwnAsLongAsThereAreAny) {
  if (!Allow(32 * kOwn)) GTEST_SKIP() << "RLIMIT_NOFILE";
  std::set<int> taken;
  for (int i = 0; i < kOwn; ++i) {
    const int bell = TakeBell(i % 3 == 0);
    EXPECT_GE(bell, lane::shm::kSetBells);
    EXPECT_LT(bell, lane::kBells);
    EXPECT_TRUE(taken.insert(bell).second) << bell;
  }
  // Then two have one, of each.
  std::set<int> shared;
  for (int i = 0; i < kOwn; ++i) shared.insert(TakeBell(false));
  EXPECT_EQ(shared, taken);
}

TEST_F(BellSharesTest, AThreadHasAQueueUntilItEnds) {
  const int mine = QueueOfThread();
  EXPECT_EQ(QueueOfThread(), mine);
  const auto other = [] {
    int queue = 0;
    std::thread([&] {
      queue = QueueOfThread();
      GiveQueueOfThread();  // as ThreadEnds
    }).join();
    return queue;
  };
  const int first = other();
  EXPECT_NE(first, mine);
  EXPECT_EQ(other(), first);
  GiveQueueOfThread();
  EXPECT_EQ(other(), mine);
}

TEST_F(BellSharesTest, WhatIsGivenBackIsTakenFirst) {
  if (!Allow(32 * kOwn)) GTEST_SKIP() << "RLIMIT_NOFILE";
  EXPECT_EQ(TakeBell(false), lane::shm::kSetBells);
  const int second = TakeBell(false);
  TakeBell(false);
  EXPECT_EQ(TakeBell(true), lane::kBells - 1) << "from the last one down";
  GiveBell(second);
  EXPECT_EQ(TakeBell(false), second);
}

TEST_F(BellSharesTest, FewWhereDescriptorsAreScarce) {
  ASSERT_TRUE(Allow(64));
  std::set<int> taken;
  for (int i = 0; i < kOwn; ++i) taken.insert(TakeBell(i % 2 == 0));
  EXPECT_EQ(taken.size(), 6u);
}

TEST_F(BellSharesTest, ThatOfNobodyIsNotGivenBack) {
  ASSERT_TRUE(Allow(64));
  GiveBell(0);
  GiveBell(1);
  GiveBell(-1);
  GiveBell(lane::kBells);
  EXPECT_EQ(TakeBell(false), lane::shm::kSetBells);
}

}  // namespace
}  // namespace rcsock::posix
