// Writes straight into memory that the peer has exposed, on a device in memory.

#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include "lib/base/pin_count.h"
#include "lib/lane/rdma/memory.h"
#include "lib/lane/rdma/user_memory.h"
#include "tests/lane/fake_pair.h"

namespace rcsock::lane::test {
namespace {

using rdma::UserMemory;

class PlaceTest : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    FakeVerbs::Options options;
    options.iwarp = GetParam();
    made_ = MakeFakePair(options, 64 * 1024);
    ASSERT_NE(made_.pair, nullptr);
    ASSERT_EQ(UserMemory::Add(from_.data(), from_.size()), 0);
    for (std::size_t i = 0; i < from_.size(); ++i) {
      from_[i] = static_cast<char>('a' + i % 26);
    }
  }
  void TearDown() override {
    EXPECT_EQ(UserMemory::Remove(from_.data(), from_.size()), 0);
    made_.pair.reset();
    EXPECT_EQ(made_.verbs->counts().objects, 0);
  }
  Lane& one() { return made_.pair->end(0); }
  Lane& other() { return made_.pair->end(1); }
  std::uint64_t At(std::size_t i) const {
    return reinterpret_cast<std::uintptr_t>(to_.data()) + i;
  }
  // Until the lane says so; false: never.
  bool Arrives(std::int64_t ticket) {
    for (int i = 0; i < 1000; ++i) {
      if (one().Placed(ticket)) return true;
    }
    return false;
  }

  FakePair made_;
  std::vector<char> from_ = std::vector<char>(100'000);
  std::vector<char> to_ = std::vector<char>(100'000);
  std::uint32_t key_ = 0;
};

TEST_P(PlaceTest, ArrivesBeforeWhatIsPostedLater) {
  ASSERT_EQ(other().Expose(to_.data(), to_.size(), &key_), 0);
  for (std::size_t length : {1u, 8u, 64u, 300u, 20'000u, 90'000u}) {
    SCOPED_TRACE(length);
    std::fill(to_.begin(), to_.end(), '-');
    const std::int64_t ticket =
        one().Place(from_.data() + 3, length, At(5), key_);
    ASSERT_GT(ticket, 0);
    char byte = 'x';
    iovec iov{&byte, 1};
    ASSERT_EQ(one().Post(&iov, 1, 0, 1), 1u);
    ASSERT_EQ(other().Peek(), Head::kData);
    ASSERT_EQ(other().Read(&iov, 1, 0, 1, false), 1u);
    EXPECT_EQ(std::string(to_.data() + 5, length),
              std::string(from_.data() + 3, length));
    EXPECT_EQ(to_[4], '-');
    EXPECT_EQ(to_[5 + length], '-');
    EXPECT_TRUE(Arrives(ticket));
  }
}

// The documented loop: do rcs_place while EAGAIN.  The conductor watches
// the source, as for any stream that nobody sleeps on.
TEST_P(PlaceTest, RoomComesToWhoOnlyPlaces) {
  ASSERT_EQ(other().Expose(to_.data(), to_.size(), &key_), 0);
  Source* source = one().source();
  const int set = ::epoll_create1(0);
  epoll_event event{};
  event.events = EPOLLIN | EPOLLET;
  ASSERT_EQ(::epoll_ctl(set, EPOLL_CTL_ADD, source->fd(), &event), 0);
  source->Arm();
  source->Drain();
  bool stuck = false;
  for (int i = 0; i < 400 && !stuck; ++i) {
    int tries = 0;
    while (one().Place(from_.data(), 1, At(0), key_) == 0) {
      if (::epoll_wait(set, &event, 1, 0) == 1) {
        source->Disarm(true);
        source->Arm();
        source->Drain();
      }
      stuck = ++tries > 1000;
      ASSERT_FALSE(stuck) << "at " << i;
    }
  }
  source->Disarm(false);
  ::close(set);
}

TEST_P(PlaceTest, ManyWithoutALook) {
  ASSERT_EQ(other().Expose(to_.data(), to_.size(), &key_), 0);
  std::int64_t last = 0;
  for (int i = 0; i < 5000; ++i) {
    const auto at = static_cast<std::size_t>(i) % to_.size();
    const std::int64_t ticket = one().Place(from_.data() + at, 1, At(at), key_);
    if (ticket == 0) {
      // Room comes with what has arrived.
      ASSERT_TRUE(Arrives(last));
      --i;
      continue;
    }
    ASSERT_GT(ticket, last);
    last = ticket;
  }
  ASSERT_TRUE(Arrives(last));
  EXPECT_EQ(std::string(to_.data(), 5000), std::string(from_.data(), 5000));
  EXPECT_EQ(one().State(), base::Reason::kNone);
}

TEST_P(PlaceTest, NothingElseCanBeReached) {
  ASSERT_EQ(other().Expose(to_.data() + 100, 100, &key_), 0);
  const std::vector<char> before = to_;
  // Not registered.
  EXPECT_EQ(one().Place(to_.data(), 1, At(100), key_), -ENOBUFS);
  EXPECT_EQ(one().Place(from_.data() + 99'999, 2, At(100), key_), -ENOBUFS);
  // One byte beyond what is exposed ends the lane, and is never "there".
  const std::int64_t ticket = one().Place(from_.data(), 101, At(100), key_);
  ASSERT_GT(ticket, 0);
  EXPECT_FALSE(Arrives(ticket));
  EXPECT_NE(one().State(), base::Reason::kNone);
  EXPECT_EQ(to_, before);
  EXPECT_EQ(one().Place(from_.data(), 1, At(100), key_), -ESTALE);
}

// The program's own memory counts with the rings: what does not fit is refused,
// and fits again when something else is taken back.
TEST_P(PlaceTest, WithinTheLimitOfPinnedMemory) {
  const std::uint64_t before = base::PinCount::Total();
  base::PinCount::SetLimit(before + 150'000);
  EXPECT_EQ(other().Expose(to_.data(), to_.size(), &key_), 0);
  EXPECT_EQ(base::PinCount::Total(), before + 100'000);
  std::vector<char> more(60'000);
  std::uint32_t second = 0;
  EXPECT_EQ(other().Expose(more.data(), more.size(), &second), -ENOBUFS);
  // from_ is registered when something is first sent from it.
  EXPECT_EQ(one().Place(from_.data(), 1, At(0), key_), -ENOBUFS);
  EXPECT_EQ(base::PinCount::Total(), before + 100'000);
  other().Hide(key_);
  EXPECT_EQ(base::PinCount::Total(), before);
  EXPECT_EQ(other().Expose(more.data(), more.size(), &second), 0);
  base::PinCount::SetLimit(0);
  EXPECT_EQ(other().Expose(to_.data(), to_.size(), &key_), 0);
  const std::int64_t ticket = one().Place(from_.data(), 1, At(0), key_);
  ASSERT_GT(ticket, 0);
  EXPECT_TRUE(Arrives(ticket));
  // The first who asks what has arrived makes the place for the answer.
  const std::uint64_t sink = GetParam() ? 64 : 0;
  EXPECT_EQ(base::PinCount::Total(), before + 260'000 + sink);
  other().Hide(key_);
  other().Hide(second);
  EXPECT_EQ(base::PinCount::Total(), before + 100'000 + sink);
  EXPECT_EQ(UserMemory::Remove(from_.data(), from_.size()), 0);
  EXPECT_EQ(UserMemory::Add(from_.data(), from_.size()), 0);
}

TEST_P(PlaceTest, HiddenIsHidden) {
  ASSERT_EQ(other().Expose(to_.data(), to_.size(), &key_), 0);
  ASSERT_TRUE(Arrives(one().Place(from_.data(), 10, At(0), key_)));
  const std::vector<char> before = to_;
  other().Hide(key_);
  const std::int64_t ticket = one().Place(from_.data() + 1, 10, At(0), key_);
  EXPECT_FALSE(Arrives(ticket));
  EXPECT_EQ(to_, before);
}

// The stream's own bytes, from where the program has them.
class DirectTest : public PlaceTest {
 protected:
  rdma::QpLane& lane() { return static_cast<rdma::QpLane&>(one()); }
  void SendDirect(std::size_t length) {
    lane().SendFrom(UserMemory::Find(from_.data(), from_.size()));
    iovec iov{from_.data() + 1, length};
    ASSERT_EQ(one().Post(&iov, 1, 0, length), length);
    lane().SendFrom(nullptr);
  }
  std::string Unacked(std::size_t length) {
    std::string bytes(length, '-');
    EXPECT_EQ(one().CopyUnacked(0, bytes.data(), length), length);
    return bytes;
  }
  bool Mirrored(std::size_t length) {
    return std::memcmp(one().TxRegion().base, from_.data() + 1, length) == 0;
  }
};

TEST_P(DirectTest, IsTheProgramsUntilThePeerHasTakenIt) {
  constexpr std::size_t kLength = 30'000;
  SendDirect(kLength);
  EXPECT_FALSE(Mirrored(kLength));
  EXPECT_EQ(UserMemory::Remove(from_.data(), from_.size()), EBUSY);
  const std::int64_t ticket = lane().SentTicket();
  bool copied = true;
  EXPECT_FALSE(lane().SentDone(ticket, one().Posted(), false, &copied));
  // Should it have to go again, it is there.
  EXPECT_EQ(Unacked(kLength), std::string(from_.data() + 1, kLength));
  std::string got(kLength, '-');
  iovec to{got.data(), got.size()};
  ASSERT_EQ(other().Read(&to, 1, 0, kLength, false), kLength);
  EXPECT_EQ(got, std::string(from_.data() + 1, kLength));
  other().Credit();
  EXPECT_TRUE(lane().SentDone(ticket, one().Posted(), false, &copied));
  EXPECT_FALSE(copied);
  EXPECT_EQ(UserMemory::Remove(from_.data(), from_.size()), 0);
  EXPECT_EQ(UserMemory::Add(from_.data(), from_.size()), 0);
}

TEST_P(DirectTest, CopiedWhenItIsWantedBack) {
  constexpr std::size_t kLength = 30'000;
  SendDirect(kLength);
  const std::string sent(from_.data() + 1, kLength);
  const std::int64_t ticket = lane().SentTicket();
  bool copied = false;
  bool done = false;
  for (int i = 0; i < 1000 && !done; ++i) {
    done = lane().SentDone(ticket, one().Posted(), true, &copied);
  }
  ASSERT_TRUE(done);
  EXPECT_TRUE(copied);
  std::fill(from_.begin(), from_.end(), '?');
  EXPECT_EQ(Unacked(kLength), sent);
  std::string got(kLength, '-');
  iovec to{got.data(), got.size()};
  ASSERT_EQ(other().Read(&to, 1, 0, kLength, false), kLength);
  EXPECT_EQ(got, sent);
}

TEST_P(DirectTest, BesideCopiedOnes) {
  // Round the ring several times, in turn.
  std::string all, got;
  for (int i = 0; i < 50; ++i) {
    const std::size_t length = 2000 + static_cast<std::size_t>(i) * 311;
    if (i % 2 == 0) {
      SendDirect(length);
    } else {
      iovec iov{from_.data() + 1, length};
      ASSERT_EQ(one().Post(&iov, 1, 0, length), length);
    }
    all.append(from_.data() + 1, length);
    std::string part(length, '-');
    iovec to{part.data(), part.size()};
    ASSERT_EQ(other().Read(&to, 1, 0, length, false), length);
    got += part;
    other().Credit();
    EXPECT_EQ(one().Acked(), all.size());
  }
  EXPECT_EQ(got, all);
}

INSTANTIATE_TEST_SUITE_P(Devices, DirectTest, testing::Bool(),
                         [](const auto& param) {
                           return param.param ? "Iwarp" : "Rocev2";
                         });

INSTANTIATE_TEST_SUITE_P(Devices, PlaceTest, testing::Bool(),
                         [](const auto& param) {
                           return param.param ? "Iwarp" : "Rocev2";
                         });

TEST(UserMemoryTest, RegionsDoNotOverlap) {
  std::vector<char> bytes(1000);
  char* const at = bytes.data();
  EXPECT_EQ(UserMemory::Add(at + 100, 100), 0);
  EXPECT_EQ(UserMemory::Add(at + 300, 100), 0);
  EXPECT_EQ(UserMemory::Add(at + 100, 100), EEXIST);
  EXPECT_EQ(UserMemory::Add(at + 199, 1), EEXIST);
  EXPECT_EQ(UserMemory::Add(at, 101), EEXIST);
  EXPECT_EQ(UserMemory::Add(at, 1000), EEXIST);
  EXPECT_EQ(UserMemory::Add(at + 200, 100), 0);
  EXPECT_EQ(UserMemory::Add(at, 0), EINVAL);
  EXPECT_EQ(UserMemory::Add(nullptr, 10), EINVAL);
  EXPECT_NE(UserMemory::Find(at + 150, 50), nullptr);
  EXPECT_EQ(UserMemory::Find(at + 150, 51), nullptr);
  EXPECT_EQ(UserMemory::Find(at + 99, 1), nullptr);
  EXPECT_EQ(UserMemory::Remove(at + 100, 99), ENOENT);
  for (int i : {100, 200, 300}) {
    EXPECT_EQ(UserMemory::Remove(at + i, 100), 0);
  }
  EXPECT_EQ(UserMemory::Remove(at + 100, 100), ENOENT);
  EXPECT_EQ(UserMemory::Find(at + 150, 1), nullptr);
}

}  // namespace
}  // namespace rcsock::lane::test
