// Events of completion queues that come late, or never.

#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <sys/uio.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <memory>
#include <thread>

#include "tests/lane/fake_ends.h"

namespace rcsock::lane::test {
namespace {

using std::chrono::milliseconds;

// Longer than EventWatch waits for an event, a few times.
constexpr int kRounds = 60;
constexpr milliseconds kRound{50};

class Events : public FakeEnds {
 protected:
  void SetUp() override {
    FakeEnds::SetUp();
    Watch(lane_->source());
  }
  void TearDown() override {
    if (sleeps_) source_->Disarm(true);
    ::close(set_);
    FakeEnds::TearDown();
  }
  void Watch(Source* source) {
    source_ = source;
    set_ = ::epoll_create1(EPOLL_CLOEXEC);
    epoll_event event{};
    event.events = EPOLLIN | EPOLLET;
    ASSERT_EQ(::epoll_ctl(set_, EPOLL_CTL_ADD, source->fd(), &event), 0);
    Sleep();
  }
  // As a thread that is about to sleep.
  void Sleep() {
    source_->Arm();
    sleeps_ = true;
    while (!source_->DrainToSleep()) {
    }
    Rung(0);
  }
  bool Rung(int ms) {
    epoll_event event{};
    return ::epoll_wait(set_, &event, 1, ms) == 1;
  }
  // One message, which another thread finds, as for a PROBE.
  void PassOne() {
    ASSERT_EQ(Post(peer_, 1), 1u);
    char byte;
    iovec iov{&byte, 1};
    ASSERT_EQ(lane_->Read(&iov, 1, 0, 1, false), 1u);
  }

  Source* source_ = nullptr;
  int set_ = -1;
  bool sleeps_ = false;
};

// A CQ whose event is lost tells nothing any more.  Its lanes end, and others
// get another CQ.
TEST_P(Events, ALostOneEndsTheLanesOfItsQueue) {
  made_.verbs->HoldEvents(true);
  for (int i = 0; i < kRounds && lane_->State() == base::Reason::kNone; ++i) {
    PassOne();
    EXPECT_FALSE(Rung(0));
    std::this_thread::sleep_for(kRound);
  }
  EXPECT_EQ(lane_->State(), base::Reason::kLaneError) << "SLEEPS FOR EVER";
  // (None of them is told later: they go with their queue.)
  RdmaSide& side = made_.pair->side[0];
  const int queues = made_.verbs->counts().queues;
  verbs::Error error;
  base::Reason why = base::Reason::kNone;
  rdma_cm_id* id = made_.verbs->NewId();
  std::unique_ptr<rdma::RdmaLane> next =
      side.domain->CreateLane(id, RdmaSide::kBell, &why, &error);
  ASSERT_NE(next, nullptr);
  EXPECT_GT(made_.verbs->counts().queues, queues) << "a lane on a broken queue";
  next.reset();
  const int objects = made_.verbs->counts().objects;
  side.lane.reset();
  id = made_.verbs->NewId();
  next = side.domain->CreateLane(id, RdmaSide::kBell, &why, &error);
  ASSERT_NE(next, nullptr);
  EXPECT_LT(made_.verbs->counts().objects, objects) << "it stays for ever";
  next.reset();
}

// They are slow, not lost.
TEST_P(Events, LateOnesHarmNothing) {
  for (int i = 0; i < 10; ++i) {
    made_.verbs->HoldEvents(true);
    PassOne();
    std::this_thread::sleep_for(milliseconds(20));
    PassOne();
    made_.verbs->HoldEvents(false);
    EXPECT_TRUE(Rung(1000)) << i;
    source_->Disarm(true);
    Sleep();
  }
  EXPECT_EQ(lane_->State(), base::Reason::kNone);
}

// Where threads look and none sleeps, nobody fetches events for a while.
TEST_P(Events, OnesThatNobodyFetchesAreNotMissed) {
  source_->Disarm(true);
  PassOne();
  std::this_thread::sleep_for(milliseconds(700));
  PassOne();
  Sleep();
  ASSERT_EQ(Post(peer_, 1), 1u);
  EXPECT_TRUE(Rung(1000));
  EXPECT_EQ(lane_->State(), base::Reason::kNone);
}

// A peer's messages that are not solicited ring nothing.  That ends no lane,
// which may be another peer's.
TEST_P(Events, APeerThatSolicitsNothing) {
  made_.pair->Pump();
  bool rung = false;
  char byte;
  iovec iov{&byte, 1};
  for (int i = 0; i < kRounds && !rung; ++i) {
    made_.verbs->Solicit(false);
    ASSERT_EQ(Post(peer_, 1), 1u);
    made_.verbs->Solicit(true);
    rung = Rung(0);
    lane_->Read(&iov, 1, 0, 1, false);
    std::this_thread::sleep_for(kRound);
  }
  EXPECT_TRUE(rung) << "armed for all in the end";
  EXPECT_EQ(lane_->State(), base::Reason::kNone);
}

INSTANTIATE_TEST_SUITE_P(Ib, Events, testing::Values(false));
INSTANTIATE_TEST_SUITE_P(Iwarp, Events, testing::Values(true));

}  // namespace
}  // namespace rcsock::lane::test
