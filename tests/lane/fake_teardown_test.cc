// Ends of lanes on a device whose QPs fetch receives of a shared queue ahead of
// messages, and give them back some time after they have gone into error.

#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/lane/fake_pair.h"

namespace rcsock::lane::test {
namespace {

constexpr int kBorne = rdma::SharedReceives::kBorne;

struct Ends {
  std::unique_ptr<rdma::RdmaLane> lane[2];
  rdma_cm_id* id[2] = {};
};

// Two processes between which lanes come and go.
class Teardown : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    options_.iwarp = GetParam();
    options_.late_flushes = true;
  }
  void Start() {
    verbs_ = std::make_unique<FakeVerbs>(options_);
    verbs::Error error;
    for (RdmaSide& side : side_) {
      side.domain = rdma::Domain::Make(verbs_->context(), &side.board, &error);
      ASSERT_NE(side.domain, nullptr);
    }
  }
  void TearDown() override {
    for (RdmaSide& side : side_) {
      EXPECT_EQ(side.domain->counts().lanes, 0u);
      side.domain.reset();
    }
    const FakeVerbs::Counts counts = verbs_->counts();
    EXPECT_EQ(counts.objects, 0);
    EXPECT_EQ(counts.starved, 0);
    EXPECT_EQ(counts.overruns, 0);
  }

  Ends Open() {
    Ends ends;
    verbs::Error error;
    base::Reason why = base::Reason::kNone;
    for (int i = 0; i < 2; ++i) {
      ends.id[i] = verbs_->NewId();
      ends.lane[i] = side_[i].domain->CreateLane(ends.id[i], RdmaSide::kBell,
                                                 &why, &error);
      EXPECT_NE(ends.lane[i], nullptr) << error.call;
      if (ends.lane[i] == nullptr) return ends;
      ends.lane[i]->SetCookie(&side_[i].cookie);
    }
    verbs_->Connect(ends.id[0], ends.id[1]);
    for (auto& lane : ends.lane) lane->Connected();
    ends.lane[0]->SetPeer(ends.lane[1]->offer());
    for (auto& lane : ends.lane) EXPECT_TRUE(lane->SendReady());
    for (int i : {1, 0}) EXPECT_TRUE(ends.lane[i]->PeerReady());
    Peek(ends);
    return ends;
  }
  static void Peek(Ends& ends) {
    for (auto& lane : ends.lane) {
      lane->Peek();
      lane->Credit();
      lane->source()->Drain();
    }
  }
  // As many messages as the credit allows, which is more than a queue has to
  // spare, and all the rest of them behind.
  static void Use(Ends& ends) {
    char byte = 'x';
    iovec iov{&byte, 1};
    for (int round = 0; round < 4; ++round) {
      int sent = 0;
      while (ends.lane[0]->Post(&iov, 1, 0, 1) == 1) ++sent;
      ASSERT_GT(sent, 16);
      std::string got(static_cast<std::size_t>(sent), '\0');
      iovec to{got.data(), got.size()};
      ASSERT_EQ(ends.lane[1]->Read(&to, 1, 0, got.size(), false), got.size());
      Peek(ends);
    }
    ASSERT_EQ(ends.lane[0]->State(), base::Reason::kNone);
  }
  // As the conductor does it: the report, then the end.
  void Close(Ends ends) {
    for (auto& lane : ends.lane) {
      lane->Freeze();
      EXPECT_TRUE(lane->OwesLastWqe());
    }
    verbs_->Flush();
    ibv_async_event event;
    while (verbs_->NextEvent(&event)) {
      ASSERT_EQ(event.event_type, IBV_EVENT_QP_LAST_WQE_REACHED);
      for (int i = 0; i < 2; ++i) {
        if (event.element.qp == ends.id[i]->qp) {
          ends.lane[i]->LastWqeReached();
        }
      }
    }
    for (auto& lane : ends.lane) EXPECT_FALSE(lane->OwesLastWqe());
  }

  FakeVerbs::Options options_;
  std::unique_ptr<FakeVerbs> verbs_;
  RdmaSide side_[2];
};

TEST_P(Teardown, NothingIsLostBehindTheReport) {
  Start();
  for (int i = 0; i < 300; ++i) {
    Ends ends = Open();
    Use(ends);
    Close(std::move(ends));
  }
  EXPECT_EQ(verbs_->counts().lost_receives, 0);
  EXPECT_EQ(verbs_->counts().queues, 2) << "no queue was replaced";
}

// A device that never reports, or whose report is late.
TEST_P(Teardown, AWornQueueIsReplacedOnceItIsEmpty) {
  Start();
  constexpr int kRounds = 5 * kBorne;
  for (int i = 0; i < kRounds; ++i) {
    Ends ends = Open();
    Use(ends);
  }
  EXPECT_GE(verbs_->counts().lost_receives, 2 * kRounds)
      << "the device keeps what it has fetched";
  EXPECT_GT(verbs_->counts().queues, 2);
}

TEST_P(Teardown, AWornQueueTakesNoNewLane) {
  Start();
  Ends stays = Open();
  for (int i = 0; i <= kBorne; ++i) Open();
  // Two more than before: the worn ones have a lane still.
  EXPECT_EQ(verbs_->counts().queues, 2);
  for (int i = 0; i < 3 * kBorne; ++i) {
    Ends ends = Open();
    Use(ends);
    Use(stays);
  }
  EXPECT_GE(verbs_->counts().queues, 4);
  // Their last lane goes; they are replaced, and taken first.
  stays = {};
  const int queues = verbs_->counts().queues;
  Ends next = Open();
  EXPECT_EQ(verbs_->counts().queues, queues + 2);
  Use(next);
}

// More is lost than one receive of each QP, and the device reports the limit.
TEST_P(Teardown, TheLimitOfAQueueIsHeard) {
  options_.fetches = 9;
  Start();
  EXPECT_EQ(verbs_->counts().limits, 0);
  Ends stays = Open();
  EXPECT_EQ(verbs_->counts().limits, 2) << "each queue has a limit";
  ibv_async_event event;
  bool heard = false;
  for (int i = 0; i < kBorne && !heard; ++i) {
    Open();
    while (verbs_->NextEvent(&event)) {
      if (event.event_type != IBV_EVENT_SRQ_LIMIT_REACHED) continue;
      for (RdmaSide& side : side_) side.domain->OnSrqLimit(event.element.srq);
      heard = true;
    }
  }
  ASSERT_TRUE(heard);
  const int queues = verbs_->counts().queues;
  Ends next = Open();
  EXPECT_GT(verbs_->counts().queues, queues);
  Use(next);
}

TEST_P(Teardown, NoRnrTimerOfHalfASecond) {
  Start();
  Ends ends = Open();
  EXPECT_EQ(verbs_->counts().rnr_timers, GetParam() ? 0 : 2);
}

// The queue may be gone for which a flush comes.
TEST_P(Teardown, TheFlushOfAQueueThatWasReplaced) {
  Start();
  for (int i = 0; i <= kBorne; ++i) Open();
  verbs_->LeaveStale(true);
  for (int i = 0; i < 4 * kBorne; ++i) {
    Ends ends = Open();
    Use(ends);
  }
  EXPECT_GT(verbs_->counts().stale, kBorne);
}

// The event of completions that went with their QP: who sleeps is woken for the
// next one.
TEST_P(Teardown, AnEventWhoseCompletionsWentWithTheirQp) {
  Start();
  Ends stays = Open();
  Ends goes = Open();
  Source* source = stays.lane[1]->source();
  ASSERT_EQ(source, goes.lane[1]->source());
  const int set = ::epoll_create1(0);
  epoll_event event{};
  event.events = EPOLLIN | EPOLLET;
  ASSERT_EQ(::epoll_ctl(set, EPOLL_CTL_ADD, source->fd(), &event), 0);
  source->Arm();
  while (!source->DrainToSleep()) {
  }
  ::epoll_wait(set, &event, 1, 0);
  source->Drain();
  ::epoll_wait(set, &event, 1, 0);
  // Now a thread sleeps.  The conductor ends the other lane; what is flushed
  // comes between its last look at the CQ and the end of the QP.
  goes.lane[1]->Freeze();
  bool flushed = false;
  verbs_->OnSend([&] {
    if (!std::exchange(flushed, true)) verbs_->Flush();
  });
  goes.lane[1].reset();
  verbs_->OnSend(nullptr);
  EXPECT_TRUE(flushed);
  ::epoll_wait(set, &event, 1, 0);
  source->Disarm(true);
  source->Arm();
  while (!source->DrainToSleep()) {
  }
  EXPECT_EQ(::epoll_wait(set, &event, 1, 0), 0) << "and sleeps again";
  char byte = 'x';
  iovec iov{&byte, 1};
  ASSERT_EQ(stays.lane[0]->Post(&iov, 1, 0, 1), 1u);
  EXPECT_EQ(::epoll_wait(set, &event, 1, 100), 1) << "LOST WAKE-UP";
  source->Disarm(true);
  ::close(set);
}

// As Microsoft's MANA.
int (*real_arm)(ibv_cq*, int);
TEST_P(Teardown, ADeviceThatKnowsNoSolicitedArming) {
  Start();
  real_arm = verbs_->context()->ops.req_notify_cq;
  verbs_->context()->ops.req_notify_cq = [](ibv_cq* cq, int solicited) {
    return solicited != 0 ? -EOPNOTSUPP : real_arm(cq, 0);
  };
  Ends ends = Open();
  Source* source = ends.lane[1]->source();
  source->Arm();
  while (!source->DrainToSleep()) {
  }
  source->Disarm(false);
  EXPECT_EQ(ends.lane[1]->State(), base::Reason::kNone) << "LANE LOST";
}

// An accepting QP is in RTS from rdma_accept on; its handshake fails.
TEST_P(Teardown, AHandshakeThatFailsBehindRdmaAccept) {
  Start();
  verbs::Error error;
  base::Reason why = base::Reason::kNone;
  for (int i = 0; i < 3; ++i) {
    Ends ends;
    for (int k = 0; k < 2; ++k) {
      ends.id[k] = verbs_->NewId();
      ends.lane[k] = side_[k].domain->CreateLane(ends.id[k], RdmaSide::kBell,
                                                 &why, &error);
      ASSERT_NE(ends.lane[k], nullptr);
      ends.lane[k]->SetCookie(&side_[k].cookie);
    }
    for (auto& lane : ends.lane) lane->MayReceive();
    verbs_->Connect(ends.id[0], ends.id[1]);
    // (rdma_cm has not said ESTABLISHED: no Connected().)
    ends.lane[0]->SetPeer(ends.lane[1]->offer());
    ends.lane[0]->SendReady();
    for (auto& lane : ends.lane) {
      lane->Freeze();
      EXPECT_TRUE(lane->OwesLastWqe()) << "not waited for, and not counted";
    }
  }
  EXPECT_EQ(verbs_->counts().lost_receives, 6);
}

std::string NameOf(const testing::TestParamInfo<bool>& info) {
  return info.param ? "Iwarp" : "Ib";
}
INSTANTIATE_TEST_SUITE_P(Device, Teardown, testing::Bool(), NameOf);

}  // namespace
}  // namespace rcsock::lane::test
