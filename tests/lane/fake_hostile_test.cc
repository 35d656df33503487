// What a peer of an RDMA lane may do without harm to anybody but itself; and
// what the lane promises about its use of the device.

#include <arpa/inet.h>
#include <dirent.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "lib/base/config.h"
#include "tests/lane/fake_pair.h"

namespace rcsock::lane::test {
namespace {

using ring::Encode;
using ring::Kind;

int OpenFds() {
  int count = 0;
  DIR* directory = ::opendir("/proc/self/fd");
  while (::readdir(directory) != nullptr) ++count;
  ::closedir(directory);
  return count;
}

// Lane 0 is the one under test; its peer is lane 1, or whoever writes in its
// name.
class Hostile : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    fds_ = OpenFds();
    Open();
  }
  void TearDown() override {
    Close();
    EXPECT_EQ(OpenFds(), fds_) << "descriptors are left";
  }
  void Open(std::size_t block = 64 * 1024) {
    FakeVerbs::Options options;
    options.iwarp = GetParam();
    made_ = MakeFakePair(options, block);
    ASSERT_NE(made_.pair, nullptr);
    lane_ = &made_.pair->side[0].qp_lane();
    peer_ = &made_.pair->side[1].qp_lane();
    base_ = reinterpret_cast<std::uintptr_t>(lane_->RxRegion().base) -
            rdma::kRingAt;
    key_ = static_cast<std::uint32_t>(lane_->RxRegion().key);
  }
  void Close() {
    if (made_.verbs == nullptr) return;
    made_.pair.reset();
    EXPECT_EQ(made_.verbs->counts().objects, 0) << "objects are left";
    EXPECT_EQ(made_.verbs->counts().lost_receives, 0);
    made_.verbs.reset();
  }
  void Again() {
    Close();
    Open();
  }
  void Say(std::uint32_t bits) {
    const ring::Imm imm = ring::Decode(bits);
    const bool in_slot = (imm.flags & ring::kFlagInline) != 0;
    if (GetParam() && in_slot && imm.length <= rdma::kSendData) {
      Send(imm.length, bits);
      return;
    }
    made_.verbs->Immediate(made_.id[1], bits);
    lane_->source()->Drain();
  }
  bool Send(std::size_t length, std::uint32_t bits) {
    std::string bytes(length, 's');
    const std::uint32_t wire = htonl(bits);
    bytes.append(reinterpret_cast<const char*>(&wire), sizeof(wire));
    const bool sent = made_.verbs->Send(made_.id[1], bytes);
    lane_->source()->Drain();
    return sent;
  }
  bool WriteWord(std::uint64_t at, std::uint64_t word) {
    return made_.verbs->Write(made_.id[1], at, key_, &word, sizeof(word));
  }
  void ExpectDead(const char* why) {
    // Whatever the application does next.
    char bytes[100];
    iovec iov{bytes, sizeof(bytes)};
    for (int i = 0; i < 50; ++i) {
      lane_->Peek();
      lane_->Read(&iov, 1, 0, sizeof(bytes), i % 2 == 0);
      lane_->ReadCtl(bytes, sizeof(bytes));
      lane_->Readable();
      lane_->Arrived();
      lane_->Writable();
    }
    EXPECT_EQ(lane_->State(), base::Reason::kProtocol) << why;
    EXPECT_EQ(lane_->Peek(), Head::kDead) << why;
    EXPECT_EQ(lane_->Post(&iov, 1, 0, 10), 0u) << why;
    EXPECT_FALSE(lane_->PostCtl("x", 1)) << why;
  }
  std::size_t Post(Lane* lane, std::size_t size) {
    std::string bytes(size, 'b');
    iovec iov{bytes.data(), size};
    return lane->Post(&iov, 1, 0, size);
  }

  int fds_ = 0;
  FakePair made_;
  rdma::QpLane* lane_ = nullptr;
  rdma::QpLane* peer_ = nullptr;
  std::uint64_t base_ = 0;  // of the receive block
  std::uint32_t key_ = 0;
};

TEST_P(Hostile, ForgedImmediates) {
  const std::uint32_t forged[] = {
      0,
      ~0u,
      Encode({Kind::kNone, 0, 10}),
      Encode({static_cast<Kind>(5), 0, 10}),
      Encode({static_cast<Kind>(7), 0, 10}),
      Encode({Kind::kData, 0, 0}),
      Encode({Kind::kData, ring::kFlagInline, GetParam() ? 65u : 8u}),
      Encode(ring::WithCredit({Kind::kData, 0, 8}, 200)),
      Encode({Kind::kData, 0, ring::kMaxLength}),
      Encode({Kind::kData, 0, 64 * 1024}),
      Encode({Kind::kCtl, 0, 8}),
      Encode({Kind::kCtl, ring::kFlagInline, 0}),
      Encode({Kind::kCtl, ring::kFlagInline, 57}),
      Encode({Kind::kSetup, ring::kFlagInline, 32}),  // a second one
      Encode({Kind::kSetup, 0, 32}),
  };
  for (const std::uint32_t bits : forged) {
    Say(bits);
    ExpectDead(std::to_string(bits).c_str());
    Again();
  }
}

// What a SEND carries before its immediate.
TEST_P(Hostile, ForgedSends) {
  if (!GetParam()) GTEST_SKIP() << "no SEND comes there";
  const struct {
    std::size_t bytes;
    std::uint32_t imm;
  } forged[] = {
      {8, Encode({Kind::kData, ring::kFlagInline, 7})},
      {8, Encode({Kind::kData, ring::kFlagInline, 9})},
      {8, Encode({Kind::kData, ring::kFlagInline, 0})},
      {8, Encode({Kind::kData, 0, 8})},
      {8, Encode({Kind::kData, ring::kFlagRewind, 8})},
      {8, Encode({Kind::kData, ring::kFlagInline | ring::kFlagRing, 8})},
      {8, Encode({Kind::kData, ring::kFlagInline, ring::kMaxLength})},
      {8, Encode({Kind::kCredit, 0, 0})},
      {8, Encode({Kind::kCredit, ring::kFlagInline, 8})},
      {8, Encode({Kind::kCtl, ring::kFlagInline, 9})},
      {8, Encode({Kind::kCtl, ring::kFlagInline | ring::kFlagRewind, 8})},
      {57, Encode({Kind::kCtl, ring::kFlagInline, 57})},
      {32, Encode({Kind::kSetup, ring::kFlagInline, 32})},  // a second one
      {0, 0},
      {8, 0},
      {0, Encode({Kind::kData, ring::kFlagInline, 8})},
      {0, Encode({Kind::kCtl, ring::kFlagInline, 8})},
  };
  for (const auto& one : forged) {
    ASSERT_TRUE(Send(one.bytes, one.imm));
    ExpectDead(std::to_string(one.imm).c_str());
    Again();
  }
  for (const std::size_t length : {0, 1, 3}) {
    ASSERT_TRUE(made_.verbs->Send(made_.id[1], std::string(length, 0)));
    lane_->source()->Drain();
    EXPECT_NE(lane_->State(), base::Reason::kNone) << length;
    Again();
  }
  // The device takes no more than the buffer has room for.
  EXPECT_FALSE(Send(rdma::kSendData + rdma::kSendCredit + 1,
                    Encode({Kind::kData, ring::kFlagInline, 65})));
  EXPECT_EQ(lane_->State(), base::Reason::kNone);
  // Messages beyond the credit, and what is left of them can be read.
  std::size_t sent = 0;
  while (lane_->State() == base::Reason::kNone && sent < 100) {
    ASSERT_TRUE(Send(64, Encode({Kind::kData, ring::kFlagInline, 64})));
    lane_->source()->Drain();
    ++sent;
  }
  EXPECT_LE(sent, rdma::kMessages + 1);
  EXPECT_EQ(lane_->State(), base::Reason::kProtocol);
  std::string sink(64 * rdma::kMessages, 0);
  iovec iov{sink.data(), sink.size()};
  EXPECT_EQ(lane_->Read(&iov, 1, 0, sink.size(), false), (sent - 1) * 64);
  EXPECT_EQ(sink.substr(0, 65), std::string(64, 's') + 's');
}

// Up to 64 bytes take one request, and are kept until they are credited.
TEST_P(Hostile, ShortDataOniWARPIsOneRequest) {
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
TEST_P(Hostile, CreditGoesAlong) {
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
TEST_P(Hostile, CreditFromBeforeTheEndCounts) {
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
TEST_P(Hostile, CreditThatGoesAlongIsReadRightLater) {
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
TEST_P(Hostile, CreditGoesAlongWithFewLongAnswers) {
  if (GetParam()) GTEST_SKIP();
  constexpr std::size_t kBlock = 1024 * 1024;
  const std::uint32_t half = rdma::RingBytes(kBlock) / 2;
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
TEST_P(Hostile, WhoFindsNoRoomIsWokenByWhoReadsAll) {
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

TEST_P(Hostile, ForgedCreditThatGoesAlong) {
  const std::uint8_t in_slot = GetParam() ? ring::kFlagInline : 0;
  const ring::Imm data{Kind::kData, in_slot, 8};
  const auto send = [this](std::size_t credit_bytes, std::uint64_t credit,
                           ring::Imm imm) {
    if (!GetParam()) return Say(Encode(ring::WithCredit(imm, credit)));
    imm.flags |= ring::kFlagCredit;
    const std::uint32_t wire = htonl(static_cast<std::uint32_t>(credit));
    const std::uint32_t bits = htonl(Encode(imm));
    std::string bytes(imm.length, 's');
    bytes.append(reinterpret_cast<const char*>(&wire), credit_bytes);
    bytes.append(reinterpret_cast<const char*>(&bits), sizeof(bits));
    EXPECT_TRUE(made_.verbs->Send(made_.id[1], bytes));
    lane_->source()->Drain();
  };
  for (const std::uint64_t beyond : {1ull, 2ull, 100ull, 200ull}) {
    send(4, lane_->sent_messages() + beyond, data);
    ExpectDead("beyond");
    Again();
  }
  if (GetParam()) {
    for (const std::uint64_t beyond : {1ull << 31, 0xffff'0000ull}) {
      send(4, lane_->sent_messages() + beyond, data);
      ExpectDead("far beyond");
      Again();
    }
    for (const std::size_t bytes : {0, 1, 3}) {
      send(bytes, 0, {Kind::kData, in_slot, 0});
      ExpectDead("no credit there");
      Again();
    }
  }
  send(4, 0, {Kind::kCtl, ring::kFlagInline, 8});
  ExpectDead("none goes along with a control message");
  Again();
  // Going back; and an honest one before that.
  for (int i = 0; i < 3; ++i) Post(lane_, 10);
  send(4, lane_->sent_messages() - 1, data);
  EXPECT_EQ(lane_->State(), base::Reason::kNone);
  EXPECT_EQ(lane_->Acked(), 20u);
  send(4, lane_->sent_messages() - 2, data);
  ExpectDead("back");
}

TEST_P(Hostile, MoreMessagesThanCredit) {
  for (std::uint32_t i = 0; i < rdma::kMessages + 1; ++i) {
    EXPECT_EQ(lane_->State(), base::Reason::kNone) << i;
    Say(Encode({Kind::kCtl, ring::kFlagInline, 8}));
    lane_->source()->Drain();
    if (lane_->State() != base::Reason::kNone) {
      EXPECT_GE(i, rdma::kMessages - 2) << "READY was one";
      break;
    }
  }
  EXPECT_EQ(lane_->State(), base::Reason::kProtocol);
  // What it had credit for can still be read.
  char message[64];
  for (std::uint32_t i = 0; i + 2 < rdma::kMessages; ++i) {
    EXPECT_EQ(lane_->ReadCtl(message, sizeof(message)), 8u);
  }
}

TEST_P(Hostile, WakeUpsForNothing) {
  for (int i = 0; i < 40 && lane_->State() == base::Reason::kNone; ++i) {
    Say(Encode({Kind::kCredit, 0, 0}));
  }
  ExpectDead("wake-ups");
}

TEST_P(Hostile, ForgedCredit) {
  const auto beyond = [this] { return lane_->sent_messages() + 1; };
  std::uint64_t forged[] = {beyond(), beyond() + 1000, rdma::kConsumedMask,
                            std::numeric_limits<std::uint64_t>::max()};
  for (const std::uint64_t word : forged) {
    ASSERT_TRUE(WriteWord(base_, word));
    ExpectDead(std::to_string(word).c_str());
    Again();
  }
}

// siw puts the bytes of a word there as TCP brings them.
TEST_P(Hostile, CreditThatComesInTwoParts) {
  std::vector<char> sink(1000);
  const auto read = [&](std::size_t bytes) {
    iovec iov{sink.data(), bytes};
    EXPECT_EQ(peer_->Read(&iov, 1, 0, bytes, false), bytes);
  };
  // READY was one.
  while (lane_->sent_messages() < 250) {
    ASSERT_EQ(Post(lane_, 10), 10u);
    made_.pair->side[0].domain->FlushDeferred();
    read(10);
  }
  peer_->Credit();
  made_.pair->Pump();
  EXPECT_EQ(lane_->Acked(), lane_->Posted());
  const std::uint64_t before = lane_->Acked();
  while (lane_->sent_messages() < 260) {
    ASSERT_EQ(Post(lane_, 10), 10u);
    made_.pair->side[0].domain->FlushDeferred();
  }
  const std::uint64_t consumed = 260;
  ASSERT_TRUE(made_.verbs->Write(made_.id[1], base_, key_, &consumed, 1));
  EXPECT_LT(lane_->credit_seen(), 250u) << "half of it";
  EXPECT_EQ(lane_->Acked(), before);
  EXPECT_GT(lane_->Writable(), 0u);
  const timespec brief{0, 1'000'000};
  EXPECT_EQ(lane_->SleepTx(lane_->SleepToken(true), &brief), -ETIMEDOUT);
  EXPECT_EQ(lane_->State(), base::Reason::kNone);
  ASSERT_TRUE(WriteWord(base_, consumed));
  EXPECT_EQ(lane_->Acked(), lane_->Posted());
  EXPECT_EQ(lane_->State(), base::Reason::kNone);
}

// The same from a peer that means it: nobody waits in a circle.
TEST_P(Hostile, CreditThatGoesBackIsNone) {
  for (int i = 0; i < 20; ++i) Post(lane_, 10);
  made_.pair->Pump();
  std::vector<char> sink(1000);
  iovec iov{sink.data(), sink.size()};
  peer_->Read(&iov, 1, 0, sink.size(), false);
  made_.pair->Pump();
  lane_->Writable();
  const std::uint64_t acked = lane_->Acked();
  ASSERT_TRUE(WriteWord(base_, 1));
  EXPECT_EQ(lane_->Acked(), acked);
  const timespec brief{0, 1'000'000};
  EXPECT_EQ(lane_->SleepTx(lane_->SleepToken(true), &brief), -ETIMEDOUT);
  EXPECT_EQ(lane_->State(), base::Reason::kNone);
}

TEST_P(Hostile, CreditThatNeverComes) {
  std::size_t posted = 0;
  while (Post(lane_, 1000) != 0) ++posted;
  EXPECT_GT(posted, 10u);
  EXPECT_EQ(lane_->Writable(), 0u);
  int controls = 0;
  while (lane_->PostCtl("x", 1)) ++controls;
  EXPECT_LE(controls, static_cast<int>(rdma::kMessages));
  EXPECT_EQ(lane_->State(), base::Reason::kNone);
  const timespec brief{0, 1'000'000};
  EXPECT_EQ(lane_->SleepTx(lane_->SleepToken(true), &brief), -ETIMEDOUT);
  std::string all(lane_->Posted(), 0);
  EXPECT_EQ(lane_->CopyUnacked(0, all.data(), all.size()), all.size());
}

TEST_P(Hostile, CannotWriteElsewhere) {
  // Its own ring and the credit word, to the last byte; not behind them, and
  // not what we send from.
  const std::uint64_t end = base_ + rdma::kRingAt + lane_->RxRegion().length;
  EXPECT_TRUE(WriteWord(end - 8, 1));
  EXPECT_FALSE(WriteWord(end - 4, 1));
  EXPECT_FALSE(WriteWord(base_ - 8, 1));
  const Region tx = lane_->TxRegion();
  const std::uint64_t word = 1;
  EXPECT_FALSE(made_.verbs->Write(
      made_.id[1], reinterpret_cast<std::uintptr_t>(tx.base),
      static_cast<std::uint32_t>(tx.key), &word, sizeof(word)));
}

TEST_P(Hostile, AnotherKindOfReceive) {
  if (GetParam()) GTEST_SKIP() << "a SEND is what comes there";
  made_.verbs->Immediate(made_.id[1], Encode({Kind::kData, 0, 10}), true);
  lane_->source()->Drain();
  EXPECT_NE(lane_->State(), base::Reason::kNone);
}

TEST_P(Hostile, BytesThatArriveAfterFreezeAreNotTaken) {
  Post(peer_, 100);
  made_.pair->Pump();
  lane_->Freeze();
  for (int i = 0; i < 10; ++i) Say(Encode({Kind::kData, 0, 10}));
  char bytes[400];
  iovec iov{bytes, sizeof(bytes)};
  EXPECT_EQ(lane_->Read(&iov, 1, 0, sizeof(bytes), false), 100u);
  EXPECT_EQ(lane_->Peek(), Head::kEmpty);
}

// The receive queue is that of other lanes, too: what has come for a lane that
// goes, and nobody has looked at, is posted again.
TEST_P(Hostile, ALaneThatGoesTakesNoReceivesWithIt) {
  const std::uint64_t landed = lane_->landed_messages();
  for (int i = 0; i < 5; ++i) ASSERT_EQ(Post(peer_, 100), 100u);
  ASSERT_EQ(lane_->landed_messages(), landed) << "nobody has looked";
  Close();
}

TEST_P(Hostile, SmallSendsJoinWhileTheWindowIsFull) {
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

TEST_P(Hostile, RepliesNeverWait) {
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

TEST_P(Hostile, WhoSleepsOrWaitsForTheTimerFlushes) {
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

// Sends `all` bytes from the lane to its peer, as much at a time as there is
// room for, and checks them.
class Growing : public Hostile {
 protected:
  void SetUp() override {
    fds_ = OpenFds();
    FakeVerbs::Options options;
    options.iwarp = GetParam();
    made_ = MakeFakePair(options, rdma::kBlockMin, 256 * 1024);
    ASSERT_NE(made_.pair, nullptr);
    lane_ = &made_.pair->side[0].qp_lane();
    peer_ = &made_.pair->side[1].qp_lane();
  }
  void Stream(std::size_t all, std::size_t piece) {
    std::size_t sent = lane_->Posted();
    std::size_t read = sent;
    const std::size_t end = sent + all;
    std::vector<char> bytes(piece);
    while (read < end) {
      const std::size_t want = std::min(piece, end - sent);
      for (std::size_t i = 0; i < want; ++i) bytes[i] = Byte(sent + i);
      iovec iov{bytes.data(), want};
      sent += lane_->Post(&iov, 1, 0, want);
      made_.pair->Pump();
      // What is not credited can be had again, out of whichever ring.
      const std::uint64_t from = lane_->Acked();
      std::vector<char> copy(lane_->Posted() - from);
      ASSERT_EQ(lane_->CopyUnacked(from, copy.data(), copy.size()),
                copy.size());
      for (std::size_t i = 0; i < copy.size(); i += 7) {
        ASSERT_EQ(copy[i], Byte(from + i));
      }
      iovec out{bytes.data(), piece};
      const std::size_t n = peer_->Read(&out, 1, 0, piece, false);
      for (std::size_t i = 0; i < n; ++i) ASSERT_EQ(bytes[i], Byte(read + i));
      read += n;
      made_.pair->Pump();
    }
  }
  static char Byte(std::size_t at) {
    return static_cast<char>(at * 31 + (at >> 9));
  }
  void Fill(std::size_t bytes) {
    std::vector<char> some(bytes, 'x');
    iovec iov{some.data(), bytes};
    lane_->Post(&iov, 1, 0, bytes);
  }
  std::uint64_t Pinned(int i) {
    return made_.pair->side[i].domain->counts().pinned;
  }
};

TEST_P(Growing, UnderBulkToTheLimitAndNotBeyond) {
  const std::uint64_t sender = Pinned(0);
  const std::uint64_t receiver = Pinned(1);
  Stream(3'000'000, 60'000);
  EXPECT_EQ(Pinned(0), sender + 256 * 1024) << "the old mirrors are gone";
  EXPECT_EQ(Pinned(1), receiver + 256 * 1024) << "the old rings are gone";
  EXPECT_EQ(lane_->State(), base::Reason::kNone);
  EXPECT_GT(lane_->Writable(), 200'000u);
}

// Many lanes share what may be under way: the ring of one that sends short
// messages stays smaller.
TEST_P(Growing, LessWhereManyLanesAreLarge) {
  made_.pair.reset();
  made_ = {};
  // More than RLIMIT_MEMLOCK is where tests run.
  struct MaxPinned {
    MaxPinned() { Set("64M"); }
    ~MaxPinned() { Set("0"); }
    static void Set(const char* bytes) {
      ::setenv("RCSOCK_MAX_PINNED", bytes, 1);
      base::LoadConfig();
      ::unsetenv("RCSOCK_MAX_PINNED");
    }
  };
  const MaxPinned pinned;
  FakeVerbs::Options options;
  options.iwarp = GetParam();
  made_ = MakeFakePair(options, rdma::kBlockMin, 1024 * 1024);
  ASSERT_NE(made_.pair, nullptr);
  lane_ = &made_.pair->side[0].qp_lane();
  peer_ = &made_.pair->side[1].qp_lane();
  const auto ring = [this] {
    return peer_->RxRegion().length - rdma::RingBytes(rdma::kBlockMin);
  };
  RdmaSide& receiver = made_.pair->side[1];
  receiver.domain->SetRingBytes(rdma::kMany, rdma::kMany);
  verbs::Error error;
  base::Reason why = base::Reason::kNone;
  auto other = receiver.domain->CreateLane(made_.verbs->NewId(),
                                           RdmaSide::kBell, &why, &error);
  ASSERT_NE(other, nullptr);
  // A sender that is always ahead, as far as there is room.
  std::vector<char> bytes(rdma::kBlockMax);
  const auto bulk = [&](std::size_t piece) {
    for (int i = 0; i < 100; ++i) {
      iovec iov{bytes.data(), piece};
      while (lane_->Post(&iov, 1, 0, piece) == piece) {
      }
      made_.pair->Pump();
      iov.iov_len = bytes.size();
      while (peer_->Read(&iov, 1, 0, bytes.size(), false) != 0) {
      }
      made_.pair->Pump();
    }
  };
  bulk(60'000);
  EXPECT_EQ(ring(), 256 * 1024u);
  // Long messages need it even so.
  bulk(200'000);
  EXPECT_EQ(ring(), 1024 * 1024u);
  EXPECT_EQ(lane_->State(), base::Reason::kNone);
  other.reset();
}

TEST_P(Growing, ToTheSmallerBoundOfBothEnds) {
  for (const std::size_t sender : {32, 64}) {
    made_.pair.reset();
    made_ = {};
    FakeVerbs::Options options;
    options.iwarp = GetParam();
    made_ = MakeFakePair(options, rdma::kBlockMin, 256 * 1024, sender * 1024);
    ASSERT_NE(made_.pair, nullptr);
    lane_ = &made_.pair->side[0].qp_lane();
    peer_ = &made_.pair->side[1].qp_lane();
    const std::uint64_t idle[2] = {Pinned(0), Pinned(1)};
    Stream(1'000'000, 60'000);
    EXPECT_EQ(Pinned(0), idle[0] + sender * 1024);
    EXPECT_EQ(Pinned(1), idle[1] + sender * 1024) << "no more than is used";
    EXPECT_EQ(peer_->RxRegion().length - rdma::RingBytes(rdma::kBlockMin),
              sender * 1024);
    std::swap(lane_, peer_);
    Stream(1'000'000, 60'000);
    EXPECT_EQ(Pinned(0), idle[0] + 2 * sender * 1024);
    EXPECT_EQ(Pinned(1), idle[1] + 2 * sender * 1024);
    EXPECT_EQ(lane_->State(), base::Reason::kNone);
  }
}

// What a peer says of its ring makes us pin as much: the limits hold from the
// first offer on.
TEST_P(Growing, ALargeFirstRingIsWithinTheLimits) {
  made_.pair.reset();
  made_ = {};
  FakeVerbs::Options options;
  options.iwarp = GetParam();
  FakeVerbs verbs(options);
  RdmaSide side;
  verbs::Error error;
  base::Reason why = base::Reason::kNone;
  side.domain = rdma::Domain::Make(verbs.context(), &side.board, &error);
  ASSERT_NE(side.domain, nullptr);
  side.domain->SetRingBytes(rdma::kBlockMin, 64 * 1024);
  for (const std::size_t block : {64 * 1024, 128 * 1024}) {
    auto lane =
        side.domain->CreateLane(verbs.NewId(), RdmaSide::kBell, &why, &error);
    ASSERT_NE(lane, nullptr);
    rdma::Offer offer = lane->offer();
    offer.bytes = rdma::RingBytes(block);
    const std::uint64_t before = side.domain->counts().pinned;
    lane->SetPeer(offer);
    if (block == 64 * 1024) {
      EXPECT_EQ(lane->State(), base::Reason::kNone);
      EXPECT_EQ(side.domain->counts().pinned, before + block);
    } else {
      EXPECT_EQ(lane->State(), base::Reason::kNoMemory);
      EXPECT_EQ(side.domain->counts().pinned, before);
    }
  }
}

TEST_P(Growing, NotForLightTraffic) {
  const std::uint64_t before = Pinned(1);
  Stream(100'000, 200);
  EXPECT_EQ(Pinned(1), before);
}

TEST_P(Growing, ForgedOffersOfARing) {
  struct {
    std::uint64_t address;
    std::uint32_t key;
    std::uint32_t bytes;
  } forged[] = {
      {0, 1, 65'536},
      {0x10008, 1, 65'536},
      {~std::uint64_t{4095}, 1, 65'536},
      {0x10000, 1, 0},
      {0x10000, 1, 4096},
      {0x10000, 1, 65'537},
      {0x10000, 1, 2 * rdma::kBlockMax},
      {0x10000, 1, 0xffffffff},
  };
  for (const auto& offer : forged) {
    base_ = reinterpret_cast<std::uintptr_t>(lane_->RxRegion().base) -
            rdma::kRingAt;
    key_ = static_cast<std::uint32_t>(lane_->RxRegion().key);
    ASSERT_TRUE(WriteWord(base_ + rdma::kRingOfferAt, offer.address));
    ASSERT_TRUE(WriteWord(base_ + rdma::kRingOfferAt + 8,
                          offer.key | std::uint64_t{offer.bytes} << 32));
    Say(Encode({Kind::kCredit, ring::kFlagRing, 0}));
    lane_->Writable();
    ExpectDead(std::to_string(offer.bytes).c_str());
    Close();
    SetUp();
  }
  // One that is well formed and leads nowhere: the write fails, and the lane.
  base_ =
      reinterpret_cast<std::uintptr_t>(lane_->RxRegion().base) - rdma::kRingAt;
  key_ = static_cast<std::uint32_t>(lane_->RxRegion().key);
  ASSERT_TRUE(WriteWord(base_ + rdma::kRingOfferAt, 0x10000));
  ASSERT_TRUE(WriteWord(base_ + rdma::kRingOfferAt + 8,
                        9999 | std::uint64_t{65'536} << 32));
  Say(Encode({Kind::kCredit, ring::kFlagRing, 0}));
  Fill(100);
  made_.pair->side[0].domain->FlushDeferred();
  lane_->source()->Drain();
  EXPECT_EQ(lane_->State(), base::Reason::kLaneError);
  char copy[100];
  EXPECT_EQ(lane_->CopyUnacked(lane_->Posted() - 100, copy, 100), 100u);
}

TEST_P(Growing, ARingThatWasNotOffered) {
  base_ =
      reinterpret_cast<std::uintptr_t>(lane_->RxRegion().base) - rdma::kRingAt;
  Say(Encode({Kind::kData, ring::kFlagRing, 100}));
  ExpectDead("no such ring");
}

TEST_P(Hostile, LightTrafficCostsNoWakeUps) {
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

INSTANTIATE_TEST_SUITE_P(Ib, Hostile, testing::Values(false));
INSTANTIATE_TEST_SUITE_P(Iwarp, Hostile, testing::Values(true));
INSTANTIATE_TEST_SUITE_P(Ib, Growing, testing::Values(false));
INSTANTIATE_TEST_SUITE_P(Iwarp, Growing, testing::Values(true));

TEST(Offer, RefusesNonsense) {
  rdma::Offer good{};
  good.address = 0x10000 + 64;
  good.credit = 0x10000;
  good.key = 7;
  good.bytes = rdma::RingBytes(rdma::kBlockMin);
  good.messages = rdma::kMessages;
  const auto decodes = [](const rdma::Offer& offer) {
    std::uint8_t bytes[rdma::kOfferSize];
    rdma::EncodeOffer(offer, bytes);
    rdma::Offer out;
    return rdma::DecodeOffer(bytes, &out) && out.address == offer.address &&
           out.credit == offer.credit && out.key == offer.key &&
           out.bytes == offer.bytes;
  };
  EXPECT_TRUE(decodes(good));
  const auto refuse = [&](auto change) {
    rdma::Offer offer = good;
    change(&offer);
    EXPECT_FALSE(decodes(offer));
  };
  refuse([](rdma::Offer* o) { o->address = 0; });
  refuse([](rdma::Offer* o) { o->address += 8; });
  refuse([](rdma::Offer* o) { o->address = ~std::uint64_t{63}; });
  refuse([](rdma::Offer* o) { o->credit = 0; });
  refuse([](rdma::Offer* o) { o->credit += 4; });
  refuse([](rdma::Offer* o) { o->credit = ~std::uint64_t{7}; });
  refuse([](rdma::Offer* o) { o->bytes = 0; });
  refuse([](rdma::Offer* o) { o->bytes -= 64; });
  refuse([](rdma::Offer* o) { o->bytes = 0xffffffff; });
  refuse(
      [](rdma::Offer* o) { o->bytes = rdma::RingBytes(2 * rdma::kBlockMax); });
  refuse([](rdma::Offer* o) { o->messages = 0; });
  refuse([](rdma::Offer* o) { o->messages = 64; });
  std::uint8_t bytes[rdma::kOfferSize];
  rdma::EncodeOffer(good, bytes);
  rdma::Offer out;
  EXPECT_TRUE(rdma::DecodeOffer(bytes, &out));
  EXPECT_EQ(out.most_ring, 0);
  good.most_ring = 16;
  rdma::EncodeOffer(good, bytes);
  EXPECT_TRUE(rdma::DecodeOffer(bytes, &out));
  EXPECT_EQ(out.most_ring, 16);
  bytes[rdma::kOfferSize - 1] = 1;
  EXPECT_FALSE(rdma::DecodeOffer(bytes, &out));
}

TEST(Admission, EndsWhereTheDeviceDoes) {
  FakeVerbs::Options options;
  options.max_cqe = 20;
  FakeVerbs verbs(options);
  RdmaSide side;
  verbs::Error error;
  base::Reason why = base::Reason::kNone;
  side.domain = rdma::Domain::Make(verbs.context(), &side.board, &error);
  ASSERT_NE(side.domain, nullptr);
  EXPECT_EQ(side.domain->CreateLane(verbs.NewId(), 2, &why, &error), nullptr);
  EXPECT_EQ(why, base::Reason::kTooMany);
}

TEST(Admission, ManyLanesGetMoreQueues) {
  FakeVerbs::Options options;
  options.max_cqe = 4096;
  FakeVerbs verbs(options);
  {
    RdmaSide side;
    verbs::Error error;
    base::Reason why = base::Reason::kNone;
    side.domain = rdma::Domain::Make(verbs.context(), &side.board, &error);
    std::vector<std::unique_ptr<rdma::RdmaLane>> lanes;
    for (int i = 0; i < 200; ++i) {
      lanes.push_back(side.domain->CreateLane(verbs.NewId(), 2, &why, &error));
      ASSERT_NE(lanes.back(), nullptr) << i;
    }
    EXPECT_EQ(side.domain->counts().lanes, 200u);
    EXPECT_EQ(side.domain->counts().pinned, 200 * rdma::kBlockMin);
    // In another order than they came in.
    for (int i = 0; i < 200; i += 3) lanes[i].reset();
    lanes.clear();
    EXPECT_EQ(side.domain->counts().lanes, 0u);
    EXPECT_EQ(side.domain->counts().pinned, 0u);
  }
  EXPECT_EQ(verbs.counts().objects, 0);
}

// Whether or not it says so beforehand.
TEST(Admission, WithoutSharedReceiveQueues) {
  for (const bool claims : {true, false}) {
    for (const bool iwarp : {true, false}) {
      FakeVerbs::Options options;
      options.iwarp = iwarp;
      options.max_srq_wr = 0;
      options.claims_srqs = claims;
      FakeVerbs verbs(options);
      {
        RdmaSide side;
        verbs::Error error;
        base::Reason why = base::Reason::kNone;
        side.domain = rdma::Domain::Make(verbs.context(), &side.board, &error);
        const std::uint64_t before = side.domain->counts().pinned;
        std::vector<std::unique_ptr<rdma::RdmaLane>> lanes;
        for (int i = 0; i < 100; ++i) {
          lanes.push_back(
              side.domain->CreateLane(verbs.NewId(), 2, &why, &error));
          ASSERT_NE(lanes.back(), nullptr) << i << ": " << error.call;
        }
        // With the mirror, which is as large as the ring.
        const std::uint64_t each =
            (side.domain->counts().pinned - before) / lanes.size();
        const std::size_t block =
            iwarp ? rdma::kBlockMinIwarp : rdma::kBlockMin;
        EXPECT_LE(each + block, 32 * 1024u);
        lanes.clear();
        EXPECT_EQ(side.domain->counts().pinned, before);
      }
      EXPECT_EQ(verbs.counts().objects, 0);
    }
  }
}

// What is refused for another reason than its inline size is refused once.
TEST(Admission, NoMoreQueuePairs) {
  for (const auto& [code, expected] :
       {std::pair{EAGAIN, base::Reason::kTooMany},
        std::pair{ENOMEM, base::Reason::kMemlock},
        std::pair{EIO, base::Reason::kRdmaError}}) {
    FakeVerbs::Options options;
    options.qp_error = code;
    FakeVerbs verbs(options);
    RdmaSide side;
    verbs::Error error;
    base::Reason why = base::Reason::kNone;
    side.domain = rdma::Domain::Make(verbs.context(), &side.board, &error);
    EXPECT_EQ(side.domain->CreateLane(verbs.NewId(), 2, &why, &error), nullptr);
    EXPECT_EQ(why, expected);
    EXPECT_EQ(error.code, code);
    EXPECT_EQ(verbs.counts().refused_qps, 1) << code;
  }
}

// siw's limit is found by asking; the second QP asks for what it is.
TEST(Admission, InlineSizeIsAskedForOnce) {
  FakeVerbs::Options options;
  options.inline_max = 80;
  FakeVerbs verbs(options);
  RdmaSide side;
  verbs::Error error;
  base::Reason why = base::Reason::kNone;
  side.domain = rdma::Domain::Make(verbs.context(), &side.board, &error);
  const auto first = side.domain->CreateLane(verbs.NewId(), 2, &why, &error);
  const int refused = verbs.counts().refused_qps;
  EXPECT_GT(refused, 0);
  const auto second = side.domain->CreateLane(verbs.NewId(), 2, &why, &error);
  EXPECT_NE(second, nullptr);
  EXPECT_EQ(verbs.counts().refused_qps, refused);
}

}  // namespace
}  // namespace rcsock::lane::test
