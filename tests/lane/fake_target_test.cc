// Bytes that go straight into the memory of a receiving call, on a device in
// memory.

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "lib/base/guard.h"
#include "lib/lane/rdma/target.h"
#include "lib/lane/rdma/user_memory.h"
#include "tests/lane/fake_pair.h"

namespace rcsock::lane::test {
namespace {

using rdma::QpLane;
using rdma::UserMemory;
using rdma::Window;

constexpr std::size_t kBytes = 512 * 1024;
constexpr std::size_t kMargin = 64;

struct Kind {
  const char* name;
  bool iwarp;
  bool infiniband;
  bool unordered;
  std::uint32_t inline_max;
};

class TargetTest : public testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    FakeVerbs::Options options;
    options.iwarp = GetParam().iwarp;
    options.infiniband = GetParam().infiniband;
    options.unordered = GetParam().unordered;
    options.inline_max = GetParam().inline_max;
    options.reuses_keys = true;
    made_ = MakeFakePair(options, 256 * 1024);
    ASSERT_NE(made_.pair, nullptr);
    from_.resize(2 * kBytes);
    for (std::size_t i = 0; i < from_.size(); ++i) {
      from_[i] = static_cast<char>('a' + i % 26 + i / 4096 % 7);
    }
    to_.assign(kBytes + 2 * kMargin, '-');
  }
  void TearDown() override {
    window_.Close();
    made_.pair.reset();
    EXPECT_EQ(made_.verbs->counts().objects, 0);
  }
  QpLane& one() { return made_.pair->side[0].qp_lane(); }
  QpLane& other() { return made_.pair->side[1].qp_lane(); }
  std::byte* To() { return reinterpret_cast<std::byte*>(to_.data() + kMargin); }
  bool Open(bool exact, std::size_t length = kBytes) {
    return other().OpenTarget(To(), length, exact, &window_);
  }
  std::size_t Send(std::size_t at, std::size_t length) {
    iovec iov{from_.data() + at, length};
    return one().Post(&iov, 1, 0, length);
  }
  // Into the target from its byte `at` on.
  std::size_t Read(std::size_t at, std::size_t length) {
    iovec iov{To() + at, length};
    return other().Read(&iov, 1, 0, length, false);
  }
  // As both ends take turns.
  void SendAndRead(std::size_t length, std::size_t each) {
    std::size_t sent = 0;
    std::size_t got = 0;
    for (int i = 0; i < 10'000 && got < length; ++i) {
      if (sent < length) sent += Send(sent, std::min(each, length - sent));
      got += Read(got, length - got);
    }
    ASSERT_EQ(got, length);
  }
  void ExpectSame(std::size_t length) {
    EXPECT_EQ(std::memcmp(To(), from_.data(), length), 0);
    for (std::size_t i = 0; i < kMargin; ++i) {
      EXPECT_EQ(to_[i], '-');
      EXPECT_EQ(to_[to_.size() - 1 - i], '-');
    }
  }
  static std::uint64_t InPlace() { return rdma::InPlaceBytes(); }

  FakePair made_;
  Window window_;
  std::vector<char> from_;
  std::vector<char> to_;
};

TEST_P(TargetTest, AMessageLandsInPlace) {
  const std::uint64_t before = InPlace();
  ASSERT_TRUE(Open(true));
  EXPECT_FALSE(other().TargetGoesOn() && other().Readable() != 0);
  ASSERT_EQ(Send(0, 100'000), 100'000u);
  EXPECT_EQ(other().Readable(), 100'000u);
  EXPECT_TRUE(other().TargetGoesOn());
  EXPECT_EQ(Read(0, kBytes), 100'000u);
  EXPECT_FALSE(other().TargetGoesOn()) << "the send has ended";
  EXPECT_EQ(InPlace() - before, 100'000u);
  other().CloseTarget(&window_);
  ExpectSame(100'000);
  // The next goes into the ring.
  ASSERT_EQ(Send(100'000, 50'000), 50'000u);
  EXPECT_EQ(Read(100'000, kBytes), 50'000u);
  EXPECT_EQ(InPlace() - before, 100'000u);
  ExpectSame(150'000);
}

TEST_P(TargetTest, MoreThanTheRingHolds) {
  const std::uint64_t before = InPlace();
  ASSERT_TRUE(Open(true));
  SendAndRead(kBytes, kBytes);
  EXPECT_EQ(InPlace() - before, kBytes);
  other().CloseTarget(&window_);
  ExpectSame(kBytes);
  EXPECT_EQ(one().State(), base::Reason::kNone);
}

// What was sent before the target was seen comes first.  An exact one is void.
TEST_P(TargetTest, WhatIsUnderWayComesFirst) {
  for (const bool exact : {true, false}) {
    SCOPED_TRACE(exact);
    const std::uint64_t before = InPlace();
    made_.verbs->Hold(true);
    ASSERT_EQ(Send(0, 20'000), 20'000u);
    ASSERT_TRUE(Open(exact));
    made_.verbs->Hold(false);
    ASSERT_EQ(Send(20'000, 100'000), 100'000u);
    EXPECT_EQ(Read(0, 20'000), 20'000u);
    EXPECT_FALSE(other().TargetGoesOn());
    EXPECT_EQ(Read(20'000, kBytes), 100'000u);
    EXPECT_EQ(InPlace() - before, exact ? 0u : 100'000u);
    other().CloseTarget(&window_);
    ExpectSame(120'000);
  }
  EXPECT_EQ(one().State(), base::Reason::kNone);
}

TEST_P(TargetTest, AnExactOneNeedsAllToBeRead) {
  ASSERT_EQ(Send(0, 1), 1u);
  ASSERT_TRUE(other().Arrived());
  EXPECT_FALSE(Open(true));
  EXPECT_EQ(Read(0, 1), 1u);
  ASSERT_TRUE(Open(true));
  EXPECT_FALSE(Open(true)) << "one at a time";
}

// ... but one that is not exact, for what comes behind that.
TEST_P(TargetTest, BehindWhatIsUnread) {
  const std::uint64_t before = InPlace();
  ASSERT_EQ(Send(0, 150'000), 150'000u);
  EXPECT_EQ(Read(0, 50'000), 50'000u);
  ASSERT_TRUE(
      other().OpenTarget(To() + 50'000, kBytes - 50'000, false, &window_));
  ASSERT_EQ(Send(150'000, 60'000), 60'000u);
  EXPECT_EQ(Read(50'000, 120'000), 120'000u);
  ASSERT_EQ(Send(210'000, 60'000), 60'000u);
  EXPECT_EQ(Read(170'000, kBytes), 100'000u);
  EXPECT_EQ(InPlace() - before, 120'000u);
  other().CloseTarget(&window_);
  ExpectSame(270'000);
  // Too little would be left.
  ASSERT_EQ(Send(0, 100'000), 100'000u);
  EXPECT_FALSE(Open(false, 300'000));
}

TEST_P(TargetTest, ShortOnesGoIntoTheRing) {
  const std::uint64_t before = InPlace();
  ASSERT_TRUE(Open(true));
  ASSERT_EQ(Send(0, 700), 700u);
  ASSERT_EQ(Send(700, 100'000), 100'000u);
  EXPECT_EQ(Read(0, kBytes), 100'700u);
  EXPECT_EQ(InPlace() - before, 0u) << "it was void";
  other().CloseTarget(&window_);
  ASSERT_TRUE(Open(false));
  SendAndRead(50'000, 700);
  EXPECT_EQ(InPlace() - before, 0u);
  other().CloseTarget(&window_);
  ExpectSame(50'000);
}

// Registered memory at both ends: nobody copies.
TEST_P(TargetTest, FromRegisteredMemory) {
  ASSERT_EQ(UserMemory::Add(from_.data(), from_.size()), 0);
  auto memory = UserMemory::Find(from_.data(), from_.size());
  ASSERT_NE(memory, nullptr);
  const std::uint64_t before = InPlace();
  one().SendFrom(memory);
  ASSERT_TRUE(Open(false));
  SendAndRead(kBytes, kBytes);
  one().SendFrom(nullptr);
  memory.reset();
  EXPECT_EQ(InPlace() - before, kBytes);
  other().CloseTarget(&window_);
  other().Credit();
  bool copied = true;
  EXPECT_TRUE(
      one().SentDone(one().SentTicket(), one().Posted(), false, &copied));
  EXPECT_FALSE(copied);
  ExpectSame(kBytes);
  EXPECT_EQ(one().Acked(), one().Posted());
  EXPECT_EQ(UserMemory::Remove(from_.data(), from_.size()), 0);
}

// Another thread's call, a peek and a drop find the same bytes.
TEST_P(TargetTest, AnotherReaderTakesThem) {
  ASSERT_TRUE(Open(false));
  ASSERT_EQ(Send(0, 60'000), 60'000u);
  std::string bytes(60'000, '.');
  iovec iov{bytes.data(), bytes.size()};
  EXPECT_EQ(other().Read(&iov, 1, 0, bytes.size(), true), 60'000u);
  EXPECT_EQ(bytes, std::string(from_.data(), 60'000));
  bytes.assign(bytes.size(), '.');
  iov.iov_len = 20'001;
  EXPECT_EQ(other().Read(&iov, 1, 0, 20'001, false), 20'001u);
  EXPECT_EQ(bytes.substr(0, 20'001), std::string(from_.data(), 20'001));
  EXPECT_EQ(other().Read(nullptr, 0, 0, 9'999, false), 9'999u);
  // What is left is not lost with the target.
  other().CloseTarget(&window_);
  std::memset(To(), '-', kBytes);
  iov = {bytes.data(), bytes.size()};
  EXPECT_EQ(other().Read(&iov, 1, 0, bytes.size(), false), 30'000u);
  EXPECT_EQ(bytes.substr(0, 30'000),
            std::string(from_.data() + 30'000, 30'000));
  EXPECT_EQ(other().State(), base::Reason::kNone);
}

TEST_P(TargetTest, AWithdrawnOneIsNotUsed) {
  const std::uint64_t before = InPlace();
  for (const bool exact : {true, false}) {
    ASSERT_TRUE(Open(exact));
    other().CloseTarget(&window_);
    std::fill(to_.begin(), to_.end(), '-');
    ASSERT_EQ(Send(0, 100'000), 100'000u);
    EXPECT_EQ(std::string(to_.data(), to_.size()),
              std::string(to_.size(), '-'));
    EXPECT_EQ(Read(0, kBytes), 100'000u);
    ExpectSame(100'000);
  }
  EXPECT_EQ(InPlace() - before, 0u);
  EXPECT_EQ(one().State(), base::Reason::kNone);
  EXPECT_EQ(other().State(), base::Reason::kNone);
}

// Amid a stream: the sender goes on by the ring.
TEST_P(TargetTest, WithdrawnUnderTraffic) {
  ASSERT_TRUE(Open(false));
  ASSERT_EQ(Send(0, 100'000), 100'000u);
  EXPECT_EQ(Read(0, 50'000), 50'000u);
  other().CloseTarget(&window_);
  ASSERT_EQ(Send(100'000, 60'000), 60'000u);
  EXPECT_EQ(Read(50'000, kBytes), 110'000u);
  ExpectSame(160'000);
  EXPECT_EQ(one().State(), base::Reason::kNone);
  EXPECT_EQ(other().State(), base::Reason::kNone);
}

// A write that is later than any patience is refused: then the lane ends, the
// bytes are still the sender's, and the memory is as the program has left it.
TEST_P(TargetTest, TooLateIsTheLanesEnd) {
  ASSERT_TRUE(Open(true));
  made_.verbs->Hold(true);
  ASSERT_EQ(Send(0, 50'000), 50'000u);
  other().CloseTarget(&window_);
  std::fill(to_.begin(), to_.end(), '-');
  made_.verbs->Hold(false);
  one().source()->Drain();
  other().source()->Drain();
  EXPECT_NE(one().State(), base::Reason::kNone);
  EXPECT_EQ(std::string(to_.data(), to_.size()), std::string(to_.size(), '-'));
  EXPECT_EQ(Read(0, kBytes), 0u);
  std::string copy(50'000, '.');
  EXPECT_EQ(one().CopyUnacked(0, copy.data(), copy.size()), copy.size());
  EXPECT_EQ(copy, std::string(from_.data(), copy.size()));
}

// A write to a target that is on its way when its call ends comes to no memory
// that is lent later: not by this lane, nor by another one of the process.
TEST_P(TargetTest, TooLateForTheNextTarget) {
  ASSERT_TRUE(Open(false));
  ASSERT_EQ(Send(0, 20'000), 20'000u);
  ASSERT_EQ(Read(0, 20'000), 20'000u);
  made_.verbs->Hold(true);
  ASSERT_EQ(Send(20'000, 50'000), 50'000u);
  const std::uint32_t key = window_.key();
  other().CloseTarget(&window_);
  EXPECT_FALSE(Open(false)) << "the peer may still use the last one";
  verbs::Error error;
  const verbs::Pd pd = verbs::AllocPd(made_.verbs->context(), &error);
  Window others;
  ASSERT_TRUE(others.Open(made_.pair->side[1].domain, pd.get(), To(), kBytes));
  EXPECT_NE(others.key(), key);
  std::fill(to_.begin(), to_.end(), '-');
  made_.verbs->Hold(false);
  one().source()->Drain();
  other().source()->Drain();
  EXPECT_NE(one().State(), base::Reason::kNone);
  EXPECT_EQ(std::count(to_.begin(), to_.end(), '-'), std::ssize(to_));
  std::string copy(50'000, '.');
  EXPECT_EQ(one().CopyUnacked(20'000, copy.data(), copy.size()), copy.size());
  EXPECT_EQ(copy, std::string(from_.data() + 20'000, copy.size()));
}

// ... and when it cannot be on its way any more, there is a next one.
TEST_P(TargetTest, TheNextTargetBehindAWithdrawal) {
  ASSERT_TRUE(Open(true));
  other().CloseTarget(&window_);
  EXPECT_FALSE(Open(true));
  ASSERT_EQ(Send(0, 1), 1u);
  EXPECT_EQ(Read(0, 1), 1u);
  constexpr std::size_t kHere = 300'000;
  ASSERT_TRUE(Open(false, kHere));
  other().CloseTarget(&window_);
  SendAndRead(kHere - 1, 100'000);
  EXPECT_FALSE(Open(true));
  ASSERT_EQ(Send(0, 1), 1u);
  EXPECT_EQ(Read(0, 1), 1u);
  const std::uint64_t before = InPlace();
  ASSERT_TRUE(Open(true));
  ASSERT_EQ(Send(0, 100'000), 100'000u);
  EXPECT_EQ(Read(0, kBytes), 100'000u);
  EXPECT_EQ(InPlace() - before, 100'000u);
  other().CloseTarget(&window_);  // it has ended
  ASSERT_TRUE(Open(false));
  other().CloseTarget(&window_);
  EXPECT_EQ(other().State(), base::Reason::kNone);
}

TEST_P(TargetTest, TheLanesEndLeavesWhatHasLanded) {
  ASSERT_TRUE(Open(false));
  ASSERT_EQ(Send(0, 50'000), 50'000u);
  other().Freeze();
  other().CloseTarget(&window_);
  std::memset(To(), '-', kBytes);
  EXPECT_EQ(Read(0, kBytes), 50'000u);
  ExpectSame(50'000);
}

#if RCSOCK_GUARDS
// As lib/posix/thread/signals.cc.
class Guarded {
 public:
  Guarded() {
    struct sigaction action {};
    action.sa_sigaction = [](int, siginfo_t*, void* context) {
      if (!base::FixFault(context)) std::abort();
    };
    action.sa_flags = SA_SIGINFO;
    ::sigaction(SIGSEGV, &action, &before_);
  }
  ~Guarded() { ::sigaction(SIGSEGV, &before_, nullptr); }

 private:
  struct sigaction before_ {};
};

// The program takes its memory away: what lay there is not read, and its sender
// has it.
TEST_P(TargetTest, MemoryThatIsUnmapped) {
  const Guarded guarded;
  constexpr std::size_t kHere = 320 * 1024;
  for (const std::size_t gone : {std::size_t{0}, std::size_t{32 * 1024}}) {
    void* memory = ::mmap(nullptr, kHere, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(memory, MAP_FAILED);
    auto* at = static_cast<std::byte*>(memory);
    ASSERT_TRUE(other().OpenTarget(at, kHere, false, &window_));
    ASSERT_EQ(Send(0, 60'000), 60'000u);
    iovec iov{at, kHere};
    if (gone == 0) {
      EXPECT_EQ(other().Read(&iov, 1, 0, 10'000, false), 10'000u);
    }
    ::munmap(at + gone, kHere - gone);
    iov = {at + 10'000, kHere - 10'000};
    if (gone == 0) {
      EXPECT_EQ(other().Read(&iov, 1, 0, 50'000, false), 0u);
      EXPECT_TRUE(base::TakeFault());
    }
    other().CloseTarget(&window_);
    EXPECT_EQ(other().State(), base::Reason::kLaneError);
    const std::size_t left = Read(0, kBytes);
    EXPECT_EQ(left, gone);
    ExpectSame(left);
    std::string copy(50'000, '.');
    EXPECT_EQ(one().CopyUnacked(10'000 + left, copy.data(), 10'000), 10'000u);
    EXPECT_EQ(copy.substr(0, 10'000),
              std::string(from_.data() + 10'000 + left, 10'000));
    if (gone != 0) ::munmap(at, gone);
    TearDown();
    SetUp();
  }
}
#endif

// --- A peer that does what it likes

TEST_P(TargetTest, PlacedWithoutATarget) {
  const std::uint32_t bits = ring::Encode({ring::Kind::kPlaced, 0, 20'000});
  made_.verbs->Immediate(made_.id[0], bits);
  other().source()->Drain();
  EXPECT_EQ(other().State(), base::Reason::kProtocol);
}

TEST_P(TargetTest, PlacedBeyondTheTarget) {
  ASSERT_TRUE(Open(false, 300'000));
  made_.verbs->Immediate(made_.id[0],
                         ring::Encode({ring::Kind::kPlaced, 0, 300'001}));
  other().source()->Drain();
  EXPECT_EQ(other().State(), base::Reason::kProtocol);
  EXPECT_EQ(Read(0, kBytes), 0u);
}

TEST_P(TargetTest, PlacedBehindTheEnd) {
  ASSERT_TRUE(Open(true));
  for (int i = 0; i < 2; ++i) {
    made_.verbs->Immediate(
        made_.id[0],
        ring::Encode({ring::Kind::kPlaced, ring::kFlagLast, 20'000}));
  }
  other().source()->Drain();
  EXPECT_EQ(other().State(), base::Reason::kProtocol);
  EXPECT_EQ(Read(0, kBytes), 20'000u);
}

// A send that goes on for ever holds up no call for long.
TEST_P(TargetTest, ASendWithoutAnEnd) {
  ASSERT_TRUE(Open(true));
  const std::uint32_t bits = ring::Encode({ring::Kind::kPlaced, 0, 20'000});
  made_.verbs->Immediate(made_.id[0], bits, GetParam().iwarp);
  EXPECT_EQ(Read(0, kBytes), 20'000u);
  EXPECT_TRUE(other().TargetGoesOn());
  ::usleep(110'000);
  made_.verbs->Immediate(made_.id[0], bits, GetParam().iwarp);
  EXPECT_EQ(Read(20'000, kBytes), 20'000u);
  EXPECT_FALSE(other().TargetGoesOn());
  other().CloseTarget(&window_);
  EXPECT_EQ(other().State(), base::Reason::kNone);
}

// Words that are no target, or one that cannot be.
TEST_P(TargetTest, AForgedTargetHarmsItsWriter) {
  const auto base =
      reinterpret_cast<std::uintptr_t>(one().RxRegion().base) - rdma::kRingAt;
  const auto key = static_cast<std::uint32_t>(one().RxRegion().key);
  std::mt19937 random(5);
  for (int i = 0; i < 200; ++i) {
    std::uint64_t words[rdma::kTargetWords];
    for (auto& word : words) word = std::uint64_t{random()} << 32 | random();
    if (i % 2 == 0) {
      rdma::Target target;
      target.address = words[0];
      target.at = i % 4 == 0 ? words[1] >> 1 : one().Posted() + 1;
      target.bytes = static_cast<std::uint32_t>(words[2]);
      const auto encoded = rdma::EncodeTarget(target);
      std::copy(encoded.begin(), encoded.end(), words);
    }
    ASSERT_TRUE(made_.verbs->Write(made_.id[1], base + rdma::kTargetAt, key,
                                   words, sizeof(words)));
    ASSERT_EQ(Send(0, 20'000), 20'000u);
    ASSERT_EQ(Read(0, 20'000), 20'000u);
  }
  EXPECT_EQ(one().State(), base::Reason::kNone);
  // A sound one that names nothing of its writer's ends its own lane.
  rdma::Target target;
  target.address = 4096;
  target.at = one().Posted();
  target.bytes = 1 << 20;
  const auto words = rdma::EncodeTarget(target);
  ASSERT_TRUE(made_.verbs->Write(made_.id[1], base + rdma::kTargetAt, key,
                                 words.data(), sizeof(words)));
  Send(0, 20'000);
  one().source()->Drain();
  EXPECT_NE(one().State(), base::Reason::kNone);
}

// --- At random

TEST_P(TargetTest, AtRandom) {
  std::mt19937 random(GetParam().infiniband ? 3 : 4);
  const auto below = [&](std::size_t n) { return random() % n; };
  ASSERT_EQ(UserMemory::Add(from_.data(), from_.size()), 0);
  auto memory = UserMemory::Find(from_.data(), 1);
  const std::uint64_t before = InPlace();
  std::uint64_t sent = 0;
  std::uint64_t read = 0;
  std::size_t place = 0;   // of the next byte in the target
  std::size_t length = 0;  // of the target; 0: none
  bool held = false;
  for (int step = 0; step < 6000; ++step) {
    switch (below(8)) {
      case 0:
      case 1: {
        const std::size_t at = sent % kBytes;
        const std::size_t n =
            std::min(below(4) == 0 ? below(2000) + 1 : below(200'000) + 1,
                     from_.size() - at);
        one().SendFrom(below(2) == 0 ? memory : nullptr);
        iovec iov{from_.data() + at, n};
        // (Byte i of the stream is byte i % kBytes of one half, or the next.)
        sent += one().Post(&iov, 1, 0, std::min(n, kBytes - at));
        one().SendFrom(nullptr);
        break;
      }
      case 2:
        if (length != 0) break;
        length = below(3) == 0 ? kBytes : below(kBytes) + 1;
        if (!Open(below(2) == 0, length)) length = 0;
        place = 0;
        break;
      case 3:
        if (length == 0 || below(8) != 0) break;
        // (A write that is held longer than any patience ends the lane.)
        made_.verbs->Hold(held = false);
        other().CloseTarget(&window_);
        std::memset(To(), '.', kBytes);
        length = 0;
        break;
      case 4:
        made_.verbs->Hold(held = below(2) == 0);
        break;
      case 5:
        if (held) made_.verbs->Deliver(below(6));
        break;
      default: {
        std::vector<char> elsewhere;
        const bool own = length != 0 && place < length && below(8) != 0;
        std::size_t n = below(150'000) + 1;
        iovec iov{To() + place, std::min(n, length - place)};
        if (!own) {
          elsewhere.resize(n);
          iov = {elsewhere.data(), n};
        }
        const bool peek = below(4) == 0;
        const std::size_t got = other().Read(&iov, 1, 0, iov.iov_len, peek);
        const auto* bytes = static_cast<const char*>(iov.iov_base);
        for (std::size_t i = 0; i < got; ++i) {
          ASSERT_EQ(bytes[i], from_[(read + i) % kBytes]) << step;
        }
        if (peek) break;
        read += got;
        place = std::min(place + got, length);
        if (length != 0 && place == length) {
          made_.verbs->Hold(held = false);
          other().CloseTarget(&window_);
          length = 0;
        }
        break;
      }
    }
    ASSERT_EQ(one().State(), base::Reason::kNone) << step;
    ASSERT_EQ(other().State(), base::Reason::kNone) << step;
    for (std::size_t i = 0; i < kMargin; ++i) {
      ASSERT_EQ(to_[i], '-');
      ASSERT_EQ(to_[to_.size() - 1 - i], '-');
    }
  }
  made_.verbs->Hold(false);
  std::printf("%llu bytes, %llu in place\n",
              static_cast<unsigned long long>(read),
              static_cast<unsigned long long>(InPlace() - before));
  EXPECT_GT(InPlace() - before, read / 100);
  std::vector<char> rest(kBytes);
  while (read < sent) {
    iovec iov{rest.data(), rest.size()};
    const std::size_t got = other().Read(&iov, 1, 0, rest.size(), false);
    ASSERT_GT(got, 0u);
    for (std::size_t i = 0; i < got; ++i) {
      ASSERT_EQ(rest[i], from_[(read + i) % kBytes]);
    }
    read += got;
  }
  other().Credit();
  EXPECT_EQ(one().Acked(), one().Posted());
  memory.reset();
  EXPECT_EQ(UserMemory::Remove(from_.data(), from_.size()), 0);
}

constexpr Kind kKinds[] = {
    {"Roce", false, false, false, 256},
    {"InfiniBand", false, true, true, 256},
    {"Unordered", false, false, true, 256},
    {"NoInline", false, false, true, 0},
    {"Iwarp", true, false, false, 256},
};
std::string NameOf(const testing::TestParamInfo<Kind>& info) {
  return info.param.name;
}
INSTANTIATE_TEST_SUITE_P(Kinds, TargetTest, testing::ValuesIn(kKinds), NameOf);

}  // namespace
}  // namespace rcsock::lane::test
