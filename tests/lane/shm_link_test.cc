#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <set>
#include <thread>
#include <vector>

#include "lib/lane/shm/layout.h"
#include "lib/lane/shm/memory.h"
#include "tests/lane/shm_pair.h"

namespace rcsock::lane::test {
namespace {

using shm::Bells;
using shm::Link;

TEST(Memory, IsSealedAndChecked) {
  base::UniqueFd fd = shm::CreateMemory("test", 8192);
  ASSERT_TRUE(fd.ok());
  EXPECT_TRUE(shm::CheckMemory(fd.get(), 8192));
  EXPECT_FALSE(shm::CheckMemory(fd.get(), 4096));
  EXPECT_NE(::ftruncate(fd.get(), 4096), 0);
  EXPECT_NE(::ftruncate(fd.get(), 16384), 0);
  base::UniqueFd open(::memfd_create("unsealed", MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(open.get(), 8192), 0);
  EXPECT_FALSE(shm::CheckMemory(open.get(), 8192));
  EXPECT_FALSE(shm::CheckMemory(0, 8192));
  EXPECT_FALSE(shm::CheckMemory(-1, 8192));
}

TEST(Bells, PageCannotBeWrittenByOthers) {
  auto bells = Bells::Create();
  ASSERT_NE(bells, nullptr);
  EXPECT_EQ(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED,
                   bells->page_fd(), 0),
            MAP_FAILED);
  bells->Arm(3);
  EXPECT_TRUE(bells->Armed(3)) << "our own mapping still writes";
  bells->Arm(3);
  bells->Disarm(3);
  EXPECT_TRUE(bells->Armed(3)) << "one sleeper is left";
  bells->Disarm(3);
  EXPECT_FALSE(bells->Armed(3));
  bells->Disarm(3);
  EXPECT_FALSE(bells->Armed(3));
}

TEST(Bells, FullCounterDoesNotStopAKick) {
  auto bells = Bells::Create();
  ASSERT_NE(bells, nullptr);
  const int fd = bells->EnsureBell(1);
  EXPECT_EQ(bells->EnsureBell(1), fd);
  const std::uint64_t full = ~std::uint64_t{0} - 1;
  ASSERT_EQ(::write(fd, &full, sizeof(full)), 8);
  bells->Kick(1);
  std::uint64_t count = 0;
  ASSERT_EQ(::read(fd, &count, sizeof(count)), 8);
  EXPECT_EQ(count, 1u);
}

std::uint64_t Kicks(int fd) {
  std::uint64_t count = 0;
  return ::read(fd, &count, sizeof(count)) == 8 ? count : 0;
}

TEST(Link, KicksOnceAGenerationAndRelaysUnknownBells) {
  auto pair = ShmPair::Make();
  Bells& bells = pair->bells(1);
  const iovec iov{const_cast<char*>("x"), 1};
  pair->end(1).SetNotify(kNotifyRxPoller, 2);
  bells.Arm(2);
  for (int i = 0; i < 3; ++i) pair->end(0).Post(&iov, 1, 0, 1);
  EXPECT_EQ(Kicks(bells.bell_fd(2)), 1u);
  bells.Arm(2);
  for (int i = 0; i < 3; ++i) pair->end(0).Post(&iov, 1, 0, 1);
  EXPECT_EQ(Kicks(bells.bell_fd(2)), 1u) << "a second sleeper, a new kick";
  bells.Disarm(2);
  bells.Disarm(2);
  pair->end(0).Post(&iov, 1, 0, 1);
  EXPECT_EQ(Kicks(bells.bell_fd(2)), 0u);
  // The peer has not been given the eventfd of bell 5.
  bells.EnsureBell(5);
  pair->end(1).SetNotify(kNotifyRxPoller, 5);
  bells.Arm(5);
  pair->end(0).Post(&iov, 1, 0, 1);
  EXPECT_EQ(Kicks(bells.bell_fd(5)), 0u);
  EXPECT_EQ(Kicks(bells.bell_fd(0)), 1u);
  bells.Disarm(5);
}

TEST(Link, TakesOnlyEventFds) {
  auto pair = ShmPair::Make();
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  pair->link(0).SetPeerBell(5, base::UniqueFd(ends[1]));
  base::UniqueFd read_end(ends[0]);
  char byte;
  EXPECT_EQ(::read(read_end.get(), &byte, 1), 0) << "the other end is closed";
  pair->link(0).SetPeerBell(-1, base::UniqueFd());
  pair->link(0).SetPeerBell(8, base::UniqueFd());
}

TEST(Link, OpensEachStreamOnce) {
  auto pair = ShmPair::Make();
  Link& link = pair->link(0);
  EXPECT_EQ(link.OpenLane(5), nullptr);
  EXPECT_EQ(link.OpenLane(-1), nullptr);
  EXPECT_EQ(link.OpenLane(64), nullptr);
  EXPECT_EQ(link.OpenLane(1 << 30), nullptr);
  auto lane = link.OpenLane(63);
  ASSERT_NE(lane, nullptr);
  lane.reset();
  EXPECT_NE(link.OpenLane(63), nullptr);
  base::UniqueFd more = link.AddSegment();
  EXPECT_TRUE(more.ok());
  EXPECT_EQ(link.segments(), 2);
  EXPECT_NE(link.OpenLane(64), nullptr);
  EXPECT_FALSE(pair->link(1).AddSegment().ok()) << "side 1 makes none";
  EXPECT_FALSE(pair->link(1).MapSegment(Dup(pair->link(0).page_fd())));
  EXPECT_TRUE(pair->link(1).MapSegment(std::move(more)));
  EXPECT_EQ(Link::Map(Dup(pair->segment_fd())), nullptr);
}

TEST(Link, ScrubbedStreamIsAsNew) {
  auto pair = ShmPair::Make();
  char bytes[1000] = {};
  const iovec iov{bytes, sizeof(bytes)};
  for (int life = 0; life < 3; ++life) {
    for (int i = 0; i < 2; ++i) {
      Lane& lane = pair->end(i);
      EXPECT_EQ(lane.Peek(), Head::kEmpty) << life;
      EXPECT_EQ(lane.Acked(), 0u);
    }
    for (int i = 0; i < 2; ++i) {
      Lane& lane = pair->end(i);
      lane.SetNotify(kNotifyRxBits, 2);
      while (lane.Post(&iov, 1, 0, 1 + life * 999 / 2) != 0) {
      }
    }
    pair->end(0).Read(nullptr, 0, 0, 3000, false);
    pair->end(0).Credit();
    for (int i = 0; i < 2; ++i) pair->lane(i).reset();
    pair->link(0).Scrub(5);
    for (int i = 0; i < 2; ++i) pair->lane(i) = pair->link(i).OpenLane(5);
  }
}

TEST(Link, ScrubbedStreamIsAsNewBehindAPeerThatHadItAlone) {
  auto pair = ShmPair::Make();
  pair->link(0).Scrub(6);
  pair->link(1).OpenLane(6).reset();
  pair->link(0).Scrub(6);
  const std::unique_ptr<Lane> lane = pair->link(0).OpenLane(6);
  const std::unique_ptr<Lane> peers = pair->link(1).OpenLane(6);
  EXPECT_EQ(lane->PeerLeft(), Lane::Left::kNot);
  EXPECT_EQ(peers->PeerLeft(), Lane::Left::kNot);
}

TEST(Link, LaneOutlivesItsLink) {
  auto pair = ShmPair::Make();
  static_cast<shm::ShmPoller*>(pair->poller(0))->RemoveLink(&pair->link(0));
  pair->link_ptr(0).reset();
  const iovec iov{const_cast<char*>("still"), 5};
  EXPECT_EQ(pair->end(0).Post(&iov, 1, 0, 5), 5u);
  EXPECT_EQ(pair->end(1).Readable(), 5u);
}

TEST(Link, DrainNeverDropsWhatDoesNotFit) {
  auto pair = ShmPair::Make(0);
  for (int i = 0; i < 2; ++i) pair->lane(i).reset();
  base::UniqueFd second = pair->link(0).AddSegment();
  ASSERT_TRUE(pair->link(1).MapSegment(std::move(second)));
  constexpr int kStreams = 128;
  std::vector<std::unique_ptr<Lane>> tx, rx;
  std::vector<char> cookies(kStreams);
  const iovec iov{const_cast<char*>("x"), 1};
  for (int i = 0; i < kStreams; ++i) {
    tx.push_back(pair->link(0).OpenLane(i));
    rx.push_back(pair->link(1).OpenLane(i));
    pair->link(1).SetCookie(i, &cookies[i]);
    rx.back()->SetNotify(kNotifyRxBits, 2);
    ASSERT_EQ(tx.back()->Post(&iov, 1, 0, 1), 1u);
  }
  std::set<void*> seen;
  Completion out[7];
  while (const int n = pair->link(1).Drain(2, out, 7)) {
    for (int i = 0; i < n; ++i) EXPECT_TRUE(seen.insert(out[i].cookie).second);
    ASSERT_LE(n, 7);
  }
  EXPECT_EQ(seen.size(), cookies.size());
  // Busy streams do not starve the others: each comes once in a round, though
  // the first ones are ready again all the time.
  seen.clear();
  for (auto& lane : tx) lane->Post(&iov, 1, 0, 1);
  for (int call = 0; call < kStreams / 7 + 2; ++call) {
    const int n = pair->link(1).Drain(2, out, 7);
    for (int i = 0; i < n; ++i) seen.insert(out[i].cookie);
    for (int i = 0; i < 10; ++i) tx[i]->Post(&iov, 1, 0, 1);
  }
  EXPECT_EQ(seen.size(), cookies.size());
}

// Segments in several words of the summary, and what one call of Drain takes
// together; from each place that it may begin at.
TEST(Link, DrainFindsEachOfManySegments) {
  auto pair = ShmPair::Make(0);
  for (int i = 0; i < 2; ++i) pair->lane(i).reset();
  constexpr int kSegments = 140;
  while (pair->link(0).segments() < kSegments) {
    ASSERT_TRUE(pair->link(1).MapSegment(pair->link(0).AddSegment()));
  }
  std::vector<int> streams;
  for (int segment = 0; segment < kSegments;
       segment += segment % 64 < 40 ? 3 : 1) {
    streams.push_back(segment * shm::kSegmentStreams + segment % 64);
  }
  std::vector<std::unique_ptr<Lane>> tx, rx;
  std::vector<char> cookies(streams.size());
  for (std::size_t k = 0; k < streams.size(); ++k) {
    tx.push_back(pair->link(0).OpenLane(streams[k]));
    rx.push_back(pair->link(1).OpenLane(streams[k]));
    pair->link(1).SetCookie(streams[k], &cookies[k]);
    for (int which = 0; which < 2; ++which) {
      pair->link(1).SetBeside(streams[k], which, &cookies[k]);
    }
    rx.back()->SetNotify(kNotifyRxBits, 2);
  }
  const iovec iov{const_cast<char*>("x"), 1};
  Completion out[64];
  for (std::size_t round = 0; round < streams.size(); ++round) {
    for (auto& lane : tx) ASSERT_EQ(lane->Post(&iov, 1, 0, 1), 1u);
    std::set<void*> seen;
    const int most = 1 + static_cast<int>(round % 64);
    while (const int n = pair->link(1).Drain(2, out, most)) {
      for (int i = 0; i < n; ++i) {
        ASSERT_TRUE(seen.insert(out[i].cookie).second);
      }
    }
    ASSERT_EQ(seen.size(), streams.size()) << round;
    for (auto& lane : rx) ASSERT_EQ(lane->Read(nullptr, 0, 0, 1, false), 1u);
    // The next begins behind this one.
    ASSERT_EQ(tx[round]->Post(&iov, 1, 0, 1), 1u);
    ASSERT_EQ(pair->link(1).Drain(2, out, 1), 1);
    EXPECT_EQ(out[0].cookie, &cookies[round]);
    ASSERT_EQ(rx[round]->Read(nullptr, 0, 0, 1, false), 1u);
  }
}

TEST(Link, KillTellsThePollerOfEachLane) {
  auto pair = ShmPair::Make();
  pair->link(0).Kill(base::Reason::kPeerGone);
  pair->link(0).Kill(base::Reason::kProtocol);
  EXPECT_EQ(pair->end(0).State(), base::Reason::kPeerGone)
      << "the first counts";
  pair->end(0).SetNotify(kNotifyRxPoller, 2);
  Completion out[4];
  EXPECT_EQ(pair->link(0).Drain(0, out, 4), 1) << "bell 0: none was named";
  EXPECT_NE(out[0].flags & kCompletionError, 0u);
}

TEST(ShmPoller, LinksComeAndGoBesidePoll) {
  auto pair = ShmPair::Make();
  auto* poller = static_cast<shm::ShmPoller*>(pair->poller(1));
  pair->end(1).SetNotify(kNotifyRxBits, 2);
  std::atomic<bool> stop{false};
  std::thread other([&] {
    while (!stop) {
      auto link = std::shared_ptr<Link>(Link::Create());
      poller->AddLink(link);
      poller->RemoveLink(link.get());
    }
  });
  const iovec iov{const_cast<char*>("x"), 1};
  int seen = 0;
  for (int i = 0; i < 2000; ++i) {
    ASSERT_EQ(pair->end(0).Post(&iov, 1, 0, 1), 1u);
    Completion out[4];
    seen += poller->Poll(out, 4);
    ASSERT_EQ(pair->end(1).Read(nullptr, 0, 0, 1, false), 1u);
  }
  stop = true;
  other.join();
  EXPECT_EQ(seen, 2000);
}

}  // namespace
}  // namespace rcsock::lane::test
