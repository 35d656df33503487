// The paper model of speed: the lane's own code on a device whose time is
// counted, not spent.  Both ends spin.

#include <gtest/gtest.h>

#include <cstdio>
#include <memory>
#include <vector>

#include "lib/lane/rdma/target.h"
#include "lib/lane/rdma/user_memory.h"
#include "tests/lane/fake_ends.h"
#include "tests/lane/fake_pair.h"

namespace rcsock::lane::test {
namespace {

// What an end pays for a look that finds nothing, and for a call.
constexpr double kLook = 40;
constexpr double kCall = 60;
// The receiver's copies, so that its credit leaves when it would.
constexpr std::size_t kChunk = 4096;

struct Outcome {
  double ns = 0;
  int requests = 0;
};

class Model {
 public:
  Model(const FakeVerbs::Time& time, const rdma::Pace& pace, bool infiniband,
        bool own_receives = false)
      : time_(time) {
    FakeVerbs::Options options;
    options.timed = true;
    options.infiniband = infiniband;
    if (own_receives) options.max_srq_wr = 0;
    verbs_ = std::make_unique<FakeVerbs>(options);
    verbs_->SetTime(time);
    verbs::Error error;
    base::Reason why = base::Reason::kNone;
    rdma_cm_id* id[2];
    for (int i = 0; i < 2; ++i) {
      side_[i].domain =
          rdma::Domain::Make(verbs_->context(), &side_[i].board, &error);
      side_[i].domain->SetRingBytes(1 << 20, 1 << 20);
      side_[i].domain->SetPace(pace);
      id[i] = verbs_->NewId();
      side_[i].lane =
          side_[i].domain->CreateLane(id[i], RdmaSide::kBell, &why, &error);
      side_[i].lane->SetCookie(&side_[i].cookie);
      // (Nothing waits in it that a timer would have to send.)
    }
    verbs_->Connect(id[0], id[1]);
    side_[0].lane->SetPeer(side_[1].lane->offer());
    for (const int i : {0, 1, 0, 1}) {
      side_[i].lane->PeerReady();
      side_[i].lane->SendReady();
      verbs_->Advance(now_ += 1e6);
    }
    for (const int i : {0, 1}) {
      EXPECT_TRUE(side_[i].lane->PeerReady());
      side_[i].lane->Peek();
    }
    verbs_->Advance(now_ += 1e6);
  }

  // One end sends so many messages, the other reads them all.
  Outcome Stream(std::size_t size, int messages) {
    std::vector<char> from(size, 'x');
    std::vector<char> to(kChunk);
    const int before = verbs_->counts().requests;
    const double begun = now_;
    double sender = now_;
    double receiver = now_;
    std::size_t sent = 0;
    std::size_t got = 0;
    const std::size_t all = size * static_cast<std::size_t>(messages);
    while (got < all && side_[0].lane->State() == base::Reason::kNone) {
      const bool sends = sent < all && sender <= receiver;
      double& clock = sends ? sender : receiver;
      verbs_->Advance(clock);
      verbs_->SetNow(clock);
      std::size_t n;
      if (sends) {
        iovec iov{from.data(), size};
        const std::size_t at = sent % size;
        n = side_[0].lane->Post(&iov, 1, at, size - at);
        sent += n;
      } else {
        iovec iov{to.data(), to.size()};
        n = side_[1].lane->Read(&iov, 1, 0, to.size(), false);
        got += n;
      }
      clock = verbs_->now() + (n == 0 ? kLook : own_);
      if (n != 0 && sends) clock += kCall;
      if (n != 0 && !sends) clock += static_cast<double>(n) / time_.copy;
    }
    now_ = receiver + 1e6;
    verbs_->Advance(now_);
    EXPECT_EQ(side_[0].lane->State(), base::Reason::kNone);
    return {receiver - begun, verbs_->counts().requests - before};
  }

  // The time of so many round trips of one message each way, both ends of which
  // spin.
  double Trips(std::size_t size, int trips) {
    std::vector<char> bytes(size, 'x');
    const iovec iov{bytes.data(), size};
    const double begun = now_;
    for (int i = 0; i < 2 * trips; ++i) {
      // So that looks come at any time behind the message.
      FakeVerbs::Time time = time_;
      time.one_way += i % 97;
      verbs_->SetTime(time);
      verbs_->SetNow(now_);
      EXPECT_EQ(side_[i % 2].lane->Post(&iov, 1, 0, size), size);
      now_ = verbs_->now() + own_;
      while (true) {
        verbs_->Advance(now_);
        verbs_->SetNow(now_);
        const std::size_t n =
            side_[1 - i % 2].lane->Read(&iov, 1, 0, size, false);
        now_ = verbs_->now() + (n == 0 ? kLook : own_);
        if (n != 0) break;
      }
    }
    verbs_->SetTime(time_);
    return now_ - begun;
  }
  // Each end's own time for a call that has sent or taken something.
  void SetOwn(double ns) { own_ = ns; }

  // What a receiver in place pays: to open a target, and to close it, in all
  // and for each page of 4 KiB.
  struct Registering {
    double open = 0;
    double open_page = 0;
    double close = 0;
    double close_page = 0;
    double Open(std::size_t bytes) const {
      return open + open_page * static_cast<double>(bytes) / 4096;
    }
    double Close(std::size_t bytes) const {
      return close + close_page * static_cast<double>(bytes) / 4096;
    }
  };
  // As Stream, but the receiver takes whole messages (MSG_WAITALL).  With
  // `registering` it lends its memory while it waits.
  struct Placed {
    double ns = 0;
    double copied = 0;  // bytes of the receiver's, of all
    double cpu = 0;     // ... and what it has spent on copies and memory
  };
  Placed Whole(std::size_t size, int messages, bool registered,
               const Registering* registering) {
    std::vector<char> from(size, 'x');
    std::vector<char> to(size);
    std::shared_ptr<rdma::UserMemory> memory;
    if (registered) {
      EXPECT_EQ(rdma::UserMemory::Add(from.data(), from.size()), 0);
      memory = rdma::UserMemory::Find(from.data(), from.size());
    }
    side_[0].qp_lane().SendFrom(memory);
    rdma::QpLane& lane = side_[1].qp_lane();
    rdma::Window window;
    Placed sum;
    const double begun = now_;
    double sender = now_;
    double receiver = now_;
    std::size_t sent = 0;
    std::size_t got = 0;
    std::size_t opened = 0;
    const std::size_t all = size * static_cast<std::size_t>(messages);
    if (registering != nullptr) sender += 1e6;  // the receiver waits already
    const double first = sender;
    while (got < all && lane.State() == base::Reason::kNone) {
      const bool sends = sent < all && sender <= receiver;
      double& clock = sends ? sender : receiver;
      verbs_->Advance(clock);
      verbs_->SetNow(clock);
      if (sends) {
        iovec iov{from.data(), size};
        const std::size_t at = sent % size;
        const std::size_t n = side_[0].lane->Post(&iov, 1, at, size - at);
        sent += n;
        clock = verbs_->now() + (n == 0 ? kLook : kCall);
        continue;
      }
      const std::size_t at = got % size;
      iovec iov{to.data() + at, registering != nullptr
                                    ? size - at
                                    : std::min(kChunk, size - at)};
      const std::size_t left = size - at;
      if (registering != nullptr && !lane.TargetOpen() &&
          left >= rdma::kLeastTarget &&
          lane.OpenTarget(reinterpret_cast<std::byte*>(iov.iov_base), left,
                          false, &window)) {
        // (What lands while it is registered is in the ring.)
        const double cost =
            registering->Open(std::min(left, rdma::kMostTarget));
        sum.cpu += cost;
        clock = verbs_->now() + cost;
        opened = std::min(left, rdma::kMostTarget);
        continue;
      }
      const std::uint64_t kept = rdma::InPlaceBytes();
      const std::size_t n = lane.Read(&iov, 1, 0, iov.iov_len, false);
      const auto copied = static_cast<double>(
          n - static_cast<std::size_t>(rdma::InPlaceBytes() - kept));
      got += n;
      double cost = copied / time_.copy;
      if (lane.TargetOpen() && lane.TargetIsOver()) {
        lane.CloseTarget(&window);
        cost += registering->Close(opened);
      }
      sum.copied += copied;
      sum.cpu += cost;
      clock = verbs_->now() + cost + (n == 0 ? kLook : kCall);
    }
    if (lane.TargetOpen()) lane.CloseTarget(&window);
    now_ = receiver + 1e6;
    verbs_->Advance(now_);
    side_[0].qp_lane().SendFrom(nullptr);
    lane.Credit();
    verbs_->Advance(now_ += 1e6);
    EXPECT_EQ(side_[0].lane->Acked(), side_[0].lane->Posted());
    if (registered) {
      memory.reset();
      EXPECT_EQ(rdma::UserMemory::Remove(from.data(), from.size()), 0);
    }
    EXPECT_EQ(side_[0].lane->State(), base::Reason::kNone);
    sum.ns = receiver - (registering != nullptr ? first : begun);
    sum.copied /= static_cast<double>(all);
    sum.cpu /= messages;
    return sum;
  }

  FakeVerbs::Counts counts() const { return verbs_->counts(); }

 private:
  const MuchPinned pinned_;
  const FakeVerbs::Time time_;
  std::unique_ptr<FakeVerbs> verbs_;
  RdmaSide side_[2];
  double now_ = 0;
  double own_ = 0;
};

// Bytes for each nanosecond.
double Rate(const FakeVerbs::Time& time, const rdma::Pace& pace) {
  constexpr std::size_t kSize = 1 << 20;
  Model model(time, pace, false);
  model.Stream(kSize, 4);
  return 32.0 * kSize / model.Stream(kSize, 32).ns;
}

double Latency(const FakeVerbs::Time& time, const rdma::Pace& pace,
               std::size_t size) {
  Model model(time, pace, false);
  model.Stream(size, 1);
  return model.Stream(size, 1).ns;
}

// As it was before there was a model.
constexpr rdma::Pace kLongRecords = {256 * 1024, 64 * 1024, 4,    8,
                                     2,          true,      1000, false};

std::vector<FakeVerbs::Time> Links() {
  std::vector<FakeVerbs::Time> times;
  for (const double gigabits : {100.0, 200.0, 400.0}) {
    FakeVerbs::Time time;
    time.link = gigabits / 8;
    times.push_back(time);
  }
  return times;
}

// A stream goes at the speed of the slower of the link and one copy: both ends
// copy at once, and the credit is back in time.
TEST(Pace, AStreamGoesAtTheSpeedOfOneCopy) {
  for (const FakeVerbs::Time& time : Links()) {
    const double most = std::min(time.link, time.copy);
    const double rate = Rate(time, rdma::kHardwarePace);
    const double before = Rate(time, kLongRecords);
    std::printf("%3.0f Gb/s: %5.2f B/ns, of %5.2f; records of 256 KiB: %5.2f\n",
                time.link * 8, rate, most, before);
    EXPECT_GT(rate, 0.94 * most);
  }
}

// A message is there soon after its last byte has been copied: the first
// record, its way, and the last one's copy come on top of the slower copy.
TEST(Pace, ALongMessageIsNotHeldByItsCopy) {
  for (const FakeVerbs::Time& time : Links()) {
    for (const std::size_t size : {64, 256, 1024}) {
      const std::size_t bytes = size * 1024;
      const double now = Latency(time, rdma::kHardwarePace, bytes);
      const double before = Latency(time, kLongRecords, bytes);
      const double copy =
          static_cast<double>(bytes) / std::min(time.link, time.copy);
      std::printf(
          "%3.0f Gb/s, %4zu KiB: %6.1f us, copy %6.1f; records of 256 KiB: "
          "%6.1f\n",
          time.link * 8, size, now / 1000, copy / 1000, before / 1000);
      const double record = rdma::kHardwarePace.record;
      const double asked =
          bytes / record * (time.doorbell + time.request) + 2 * time.one_way;
      EXPECT_LT(now, copy + asked + 2.5 * record / time.copy);
      EXPECT_LT(now, before);
    }
  }
}

// Every small send leaves at once while the device may have it: the thread may
// compute afterwards, and nobody else looks.
TEST(Pace, NoSmallSendWaitsWhileThereIsCredit) {
  FakeVerbs::Time time;
  Model model(time, rdma::kHardwarePace, false);
  const int before = model.counts().writes;
  model.Stream(64, 24);
  EXPECT_EQ(model.counts().writes - before, 24);
}

// On InfiniBand a long message is a WRITE that switches may route adaptively.
TEST(Pace, OnlyInfiniBandSplitsAMessage) {
  for (const bool infiniband : {false, true}) {
    FakeVerbs::Time time;
    Model model(time, rdma::kHardwarePace, infiniband);
    model.Stream(4 * 1024, 8);
    EXPECT_EQ(model.counts().empty, 0);
    model.Stream(256 * 1024, 4);
    EXPECT_EQ(model.counts().empty, infiniband ? 32 : 0);
  }
}

// Assumed of a driver that pins ordinary pages.
constexpr Model::Registering kRegisters = {20'000, 150, 10'000, 50};
// Assumed of a memory window on memory that is registered for good.
constexpr Model::Registering kWindow = {300, 0, 2000, 0};

// A receiver that lends its memory copies nothing, and neither does a sender
// from registered memory: both together go at the speed of the link.
TEST(InPlace, BothEndsWithoutACopy) {
  std::printf(
      "Gb/s, KiB, sender: B/ns and receiver's us for a message: ring, "
      "registered for the call, window\n");
  for (FakeVerbs::Time time : Links()) {
    for (const bool registered : {false, true}) {
      time.sender_copies = !registered;
      for (const std::size_t kib : {256, 1024, 4096, 16384, 65536}) {
        const std::size_t size = kib << 10;
        const std::size_t mib = kib >> 10;
        const int messages = mib <= 1 ? 32 : mib == 4 ? 8 : 2;
        const auto run = [&](const Model::Registering* registering) {
          Model model(time, rdma::kHardwarePace, false);
          model.Stream(1 << 20, 4);
          return model.Whole(size, messages, registered, registering);
        };
        const auto rate = [&](const Model::Placed& one) {
          return static_cast<double>(size) * messages / one.ns;
        };
        const Model::Placed ring = run(nullptr);
        const Model::Placed call = run(&kRegisters);
        const Model::Placed window = run(&kWindow);
        std::printf(
            "in place %3.0f %5zu %s: %5.2f %7.1f | %5.2f %7.1f %3.0f%% | %5.2f "
            "%7.1f %3.0f%%\n",
            time.link * 8, kib, registered ? "registered" : "plain     ",
            rate(ring), ring.cpu / 1000, rate(call), call.cpu / 1000,
            100 * call.copied, rate(window), window.cpu / 1000,
            100 * window.copied);
        const double most =
            registered ? time.link : std::min(time.link, time.copy);
        if (mib >= 1) {
          EXPECT_GT(rate(window), rate(ring));
        } else {
          // Hardly a byte waits for its call: why none lends less by itself.
          EXPECT_GT(call.copied, 0.9);
          EXPECT_GT(call.cpu, ring.cpu);
        }
        if (mib == 16) {
          EXPECT_GT(rate(window), 0.85 * most);
        }
        if (mib >= 4) {
          EXPECT_LT(call.cpu, ring.cpu);
        }
        if (registered && mib >= 4 && time.link > 20) {
          EXPECT_GT(rate(call), 1.1 * rate(ring));
        }
      }
    }
  }
}

// What the provider's locks cost small messages, and which ways to have fewer
// are worth it.
TEST(Pace, Locks) {
  constexpr std::size_t kSize = 8;
  constexpr int kTrips = 97 * 20;
  // As tests/bench/paper.py assumes.
  constexpr double kOwn = 150;
  constexpr double kLock = 20;
  struct Way {
    const char* name;
    bool lane_domains, shared_domains, unlocked_polls, own_receives;
  };
  double now_ns = 0;
  for (const Way& way : {
           Way{"now", false, false, false, false},
           Way{"polls without a lock", false, false, true, false},
           Way{"a thread domain for each lane", true, false, false, false},
           Way{"a thread domain for each shared receive queue", false, true,
               false, false},
           Way{"receive queues of their own", false, false, false, true},
           Way{"all of these", true, false, true, true},
       }) {
    FakeVerbs::Time time;
    time.lock = kLock;
    time.lane_domains = way.lane_domains;
    time.shared_domains = way.shared_domains;
    time.unlocked_polls = way.unlocked_polls;
    Model model(time, rdma::kHardwarePace, false, way.own_receives);
    model.SetOwn(kOwn);
    model.Trips(kSize, 97);
    const FakeVerbs::Counts before = model.counts();
    const double ns = model.Trips(kSize, kTrips) / (2 * kTrips);
    const FakeVerbs::Counts after = model.counts();
    const auto each = [&](int FakeVerbs::Counts::*count) {
      return static_cast<double>(after.*count - before.*count) / (2 * kTrips);
    };
    if (now_ns == 0) now_ns = ns;
    const double rate = 4000 / model.Stream(kSize, 4000).ns * 1000;
    std::printf(
        "locks, %s: %.2f %.2f %.2f %.2f, receives posted %.3f, %.0f ns a way, "
        "%.2f a us\n",
        way.name, each(&FakeVerbs::Counts::send_locks),
        each(&FakeVerbs::Counts::register_locks),
        each(&FakeVerbs::Counts::cq_locks),
        each(&FakeVerbs::Counts::receive_locks),
        each(&FakeVerbs::Counts::receive_posts), ns, rate);
    // One request, one doorbell and one completion, whatever is done.
    EXPECT_NEAR(each(&FakeVerbs::Counts::posts), 1, 0.01);
    EXPECT_LE(ns, now_ns);
    // docs/paper.md leaves them all for this.
    EXPECT_GT(ns, 0.93 * now_ns) << way.name;
  }
}

// For who chooses the figures of kHardwarePace.
TEST(Pace, Table) {
  const FakeVerbs::Time time = Links()[1];
  std::printf("record KiB, credit 1/n, B/ns, us for 64 KiB, for 1 MiB\n");
  for (const std::uint32_t record : {16, 32, 64, 128, 256}) {
    for (const std::uint32_t part : {2, 4, 8}) {
      const rdma::Pace pace = {record * 1024, record * 1024, 24,  24,
                               part,          false,         100, true};
      const double rate = Rate(time, pace);
      std::printf("%4u %2u %6.2f %6.1f %6.1f\n", record, part, rate,
                  Latency(time, pace, 64 * 1024) / 1000,
                  Latency(time, pace, 1024 * 1024) / 1000);
      EXPECT_GT(rate, 0);
    }
  }
}

}  // namespace
}  // namespace rcsock::lane::test
