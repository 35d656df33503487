// Offers of a device's memory: one word decides how much of an offer was taken,
// whatever the peer writes there.

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <random>

#include "lib/lane/shm/layout.h"
#include "lib/lane/shm/shm_lane.h"
#include "tests/lane/shm_pair.h"

namespace rcsock::lane::test {
namespace {

using shm::OfferWord;
using shm::SeenOffer;
using shm::Segment;
using shm::ShmLane;

constexpr int kIndex = 3;

// Memory whose driver opens whatever it is told to.
class FakeMemory final : public gpu::Memory {
 public:
  struct Opened final : gpu::Import {
    void End() override {}
    const void* At(std::uint64_t, std::uint64_t) const override { return this; }
  };
  int Check(const void*, std::size_t) const override { return 0; }
  std::shared_ptr<gpu::HostPages> Pin(std::byte*, std::size_t) override {
    return nullptr;
  }
  const void* context() const override { return this; }
  void BeforeSharing(const void*) const override {}
  int Export(const void*, std::size_t, base::UniqueFd*,
             std::uint64_t*) const override {
    return EOPNOTSUPP;
  }
  int Pass(const void*, std::size_t, gpu::Passed*) override { return 0; }
  int Descriptor(const void*, base::UniqueFd*) override { return EOPNOTSUPP; }
  bool IsOpen(const gpu::Passed&) const override { return false; }
  std::shared_ptr<gpu::Import> Open(const gpu::Passed&, int) override {
    ++opens;
    return opens_none ? nullptr : std::make_shared<Opened>();
  }
  bool OrdersWrites() const override { return true; }
  int opens = 0;
  bool opens_none = false;

 protected:
  gpu::Pipe* Take(int*) override { return nullptr; }
  void Return(gpu::Pipe*) override {}
};

class ShmOffer : public testing::Test {
 protected:
  void SetUp() override { Connect(); }
  void TearDown() override { Disconnect(); }
  void Connect() {
    pair_ = ShmPair::Make(kIndex);
    ASSERT_NE(pair_, nullptr);
    void* const at = ::mmap(nullptr, sizeof(Segment), PROT_READ | PROT_WRITE,
                            MAP_SHARED, pair_->segment_fd(), 0);
    ASSERT_NE(at, MAP_FAILED);
    segment_ = static_cast<Segment*>(at);
    for (int i = 0; i < 2; ++i) pair_->link(i).PassMemory();
  }
  void Disconnect() {
    pair_.reset();
    ::munmap(segment_, sizeof(Segment));
  }
  ShmLane& sender() { return static_cast<ShmLane&>(pair_->end(0)); }
  ShmLane& receiver() { return static_cast<ShmLane&>(pair_->end(1)); }
  // What the peer of the sender can write.
  std::atomic<std::uint64_t>& Word() {
    return segment_->hot[kIndex].control[0].offer;
  }
  static std::size_t Post(ShmLane& lane, std::size_t bytes) {
    static char from[300'000];
    const iovec iov{from, bytes};
    return lane.Post(&iov, 1, 0, bytes);
  }
  static std::size_t Read(ShmLane& lane, std::size_t bytes) {
    return lane.Read(nullptr, 0, 0, bytes, false);
  }
  static gpu::Passed Bytes(std::uint64_t length) {
    gpu::Passed what{};
    what.id = 7;
    what.offset = 100;
    what.length = length;
    return what;
  }
  // Both ends are ready, and the ring is empty.
  void Offer(std::uint64_t length) {
    ASSERT_TRUE(receiver().TakeOffers(memory_));
    ASSERT_TRUE(sender().PeerTakesOffers());
    ASSERT_TRUE(sender().BeginFill());
    ASSERT_TRUE(sender().Offer(Bytes(length)));
  }

  FakeMemory memory_;
  std::unique_ptr<ShmPair> pair_;
  Segment* segment_ = nullptr;
};

TEST_F(ShmOffer, CountsWhatWasTakenAtBothEnds) {
  ASSERT_EQ(Post(sender(), 1000), 1000u);
  ASSERT_EQ(Read(receiver(), 1000), 1000u);
  Offer(5000);
  SeenOffer seen;
  ASSERT_TRUE(receiver().SeeOffer(&seen));
  EXPECT_EQ(seen.what.offset, 100u);
  EXPECT_EQ(seen.what.length, 5000u);
  EXPECT_TRUE(receiver().TakeOffered(&seen.word, 2000));
  EXPECT_TRUE(receiver().TakeOffered(&seen.word, 500));
  EXPECT_EQ(sender().OfferTaken(), 2500u);
  EXPECT_EQ(sender().Withdraw(), 2500u);
  EXPECT_EQ(sender().Withdraw(), 0u);
  EXPECT_EQ(sender().offer_sent(), 2500u);
  EXPECT_EQ(sender().Posted(), 3500u);
  EXPECT_EQ(sender().Acked(), 3500u);
  // The copy that ends now does not count.
  EXPECT_FALSE(receiver().TakeOffered(&seen.word, 500));
  EXPECT_FALSE(receiver().SeeOffer(&seen));
  EXPECT_TRUE(sender().EndFill());
  for (const std::size_t n : {std::size_t{40}, std::size_t{9000}}) {
    ASSERT_EQ(Post(sender(), n), n);
    EXPECT_EQ(Read(receiver(), n), n);
  }
  EXPECT_EQ(sender().Acked(), 3500u + 9040u);
}

TEST_F(ShmOffer, NothingElseIsSentMeanwhile) {
  Offer(5000);
  for (const std::size_t n : {1, 48, 112, 113, 5000, 200'000}) {
    EXPECT_EQ(Post(sender(), n), 0u) << n;
    EXPECT_EQ(sender().PostRecord("", n), 0u) << n;
  }
  EXPECT_EQ(sender().Writable(), 0u);
  EXPECT_EQ(sender().Withdraw(), 0u);
  EXPECT_TRUE(sender().EndFill());
  EXPECT_EQ(Post(sender(), 48), 48u);
  EXPECT_EQ(Post(sender(), 5000), 5000u);
}

TEST_F(ShmOffer, OnlyBehindAllThatWasSent) {
  ASSERT_EQ(Post(sender(), 1000), 1000u);
  ASSERT_TRUE(receiver().TakeOffers(memory_));
  ASSERT_TRUE(sender().BeginFill());
  EXPECT_FALSE(sender().Offer(Bytes(5000)));
  ASSERT_EQ(Read(receiver(), 999), 999u);
  EXPECT_FALSE(sender().Offer(Bytes(5000)));
  ASSERT_EQ(Read(receiver(), 1), 1u);
  EXPECT_TRUE(sender().Offer(Bytes(5000)));
  // A control message may come behind it: then the offer ends soon.
  ASSERT_TRUE(sender().PostCtl("x", 1));
  SeenOffer seen;
  EXPECT_FALSE(receiver().SeeOffer(&seen));
}

TEST_F(ShmOffer, AnOldCopyIsNoCopyOfTheNextOffer) {
  Offer(5000);
  SeenOffer seen;
  ASSERT_TRUE(receiver().SeeOffer(&seen));
  EXPECT_EQ(sender().Withdraw(), 0u);
  ASSERT_TRUE(sender().Offer(Bytes(5000)));
  EXPECT_FALSE(receiver().TakeOffered(&seen.word, 10));
  EXPECT_EQ(sender().Withdraw(), 0u);
}

TEST_F(ShmOffer, OnlyIfBothEndsPass) {
  Disconnect();
  pair_ = ShmPair::Make(kIndex);
  ASSERT_NE(pair_, nullptr);
  segment_ = static_cast<Segment*>(::mmap(nullptr, sizeof(Segment),
                                          PROT_READ | PROT_WRITE, MAP_SHARED,
                                          pair_->segment_fd(), 0));
  EXPECT_FALSE(receiver().TakeOffers(memory_));
  EXPECT_FALSE(sender().PeerTakesOffers());
  pair_->link(1).PassMemory();
  EXPECT_TRUE(receiver().TakeOffers(memory_));
  EXPECT_FALSE(sender().PeerTakesOffers());
  pair_->link(0).PassMemory();
  EXPECT_TRUE(sender().PeerTakesOffers());
  receiver().TakeNoOffers();
  EXPECT_FALSE(sender().PeerTakesOffers());
}

TEST_F(ShmOffer, NoMoreOffersOnceTheDriverHasRefused) {
  Offer(5000);
  memory_.opens_none = true;
  EXPECT_EQ(receiver().imports()->Find(&memory_, Bytes(1), -1), nullptr);
  receiver().TakeNoOffers();
  EXPECT_FALSE(receiver().TakeOffers(memory_));
}

TEST_F(ShmOffer, KeepsTheLastFewOpen) {
  ASSERT_TRUE(receiver().TakeOffers(memory_));
  gpu::Passed what = Bytes(10);
  for (int turn = 0; turn < 3; ++turn) {
    for (int i = 0; i < 4; ++i) {
      what.handle[0] = std::byte(i);
      ASSERT_NE(receiver().imports()->Find(&memory_, what, -1), nullptr);
    }
  }
  EXPECT_EQ(memory_.opens, 4);
  // The handle is another allocation's by now.
  ++what.id;
  ASSERT_NE(receiver().imports()->Find(&memory_, what, -1), nullptr);
  EXPECT_EQ(memory_.opens, 5);
  EXPECT_TRUE(receiver().HasPages());
  receiver().EndPages();
  EXPECT_FALSE(receiver().HasPages());
}

// All allocations of a process that go by descriptor have one handle.
TEST_F(ShmOffer, KeepsTheLastFewOpenByDescriptor) {
  ASSERT_TRUE(receiver().TakeOffers(memory_));
  gpu::Passed what = Bytes(10);
  what.way = gpu::Passed::kByDescriptor;
  for (int turn = 0; turn < 3; ++turn) {
    for (std::uint64_t id = 1; id <= 4; ++id) {
      what.id = id;
      ASSERT_NE(receiver().imports()->Find(&memory_, what, -1), nullptr);
    }
  }
  EXPECT_EQ(memory_.opens, 4);
}

// What a peer sends and never offers is bounded.
TEST(Memories, TheLastFew) {
  shm::Memories receiver;
  constexpr std::uint64_t kMost = shm::Memories::kMost;
  int file = -1;
  for (std::uint64_t id = 1; id <= 3 * kMost; ++id) {
    file = ::memfd_create("memory", 0);
    receiver.Put(id, base::ForeignFd(file));
    for (std::uint64_t other = 0; other <= id; ++other) {
      const bool kept = other != 0 && other + kMost > id;
      EXPECT_EQ(receiver.Find(other) != nullptr, kept) << other << " of " << id;
    }
  }
  receiver.Drop(3 * kMost);
  base::AwaitCloses();
  EXPECT_EQ(receiver.Find(3 * kMost), nullptr);
  EXPECT_EQ(::fcntl(file, F_GETFD), -1);
  EXPECT_NE(receiver.Find(3 * kMost - 1), nullptr);
}

// A lane sends a descriptor again once its peer cannot have it any more.
TEST(Memories, SentOnce) {
  shm::SentMemories sent;
  EXPECT_FALSE(sent.Has(0));
  for (std::uint64_t id = 1; id < 10; ++id) {
    EXPECT_FALSE(sent.Has(id));
    sent.Add(id);
    for (std::uint64_t other = 1; other <= id; ++other) {
      EXPECT_EQ(sent.Has(other), other + 4 > id) << other << " of " << id;
    }
  }
  sent.Forget(8);
  EXPECT_FALSE(sent.Has(8));
  EXPECT_TRUE(sent.Has(9));
}

// Of any other file the receiver keeps nothing. It knows that something came,
// so it does not wait for more.
TEST(Memories, OnlyWhatADriverMayGive) {
  shm::Memories receiver;
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const int files[] = {ends[0], ends[1], ::open("/dev/null", O_RDWR),
                       ::open("/", O_RDONLY),
                       ::socket(AF_INET, SOCK_STREAM, 0)};
  std::uint64_t id = 0;
  for (const int file : files) {
    receiver.Put(++id, base::ForeignFd(file));
    const auto found = receiver.Find(id);
    ASSERT_NE(found, nullptr);
    EXPECT_FALSE(found->ok());
  }
  base::AwaitCloses();
  for (const int file : files) EXPECT_EQ(::fcntl(file, F_GETFD), -1);
}

// The sender believes no count beyond its offer, and ends the lane.
TEST_F(ShmOffer, WordsThatThePeerMakesUp) {
  const OfferWord words[] = {{true, 1, 5001},  // more than was offered
                             {true, 1, OfferWord::kMost - 1},  //
                             {true, 2, 10},                    // another offer
                             {false, 1, 10},  // only the sender closes it
                             {true, 0, 10}};
  for (const OfferWord& word : words) {
    Disconnect();
    Connect();
    Offer(5000);
    Word().store(word.Encode());
    EXPECT_EQ(sender().Withdraw(), 0u) << word.taken;
    EXPECT_EQ(sender().offer_sent(), 0u);
    EXPECT_EQ(sender().Posted(), 0u);
    EXPECT_EQ(sender().State(), base::Reason::kProtocol);
  }
}

TEST_F(ShmOffer, LengthsThatThePeerMakesUp) {
  Offer(5000);
  SeenOffer seen;
  for (const std::uint64_t length :
       {std::uint64_t{0}, OfferWord::kMost, ~std::uint64_t{0}}) {
    const gpu::Passed what = Bytes(length);
    std::memcpy(segment_->bytes[kIndex][0], &what, sizeof what);
    EXPECT_FALSE(receiver().SeeOffer(&seen)) << length;
  }
  const gpu::Passed what = Bytes(5000);
  std::memcpy(segment_->bytes[kIndex][0], &what, sizeof what);
  Word().store(OfferWord{true, 1, 5000}.Encode());
  EXPECT_FALSE(receiver().SeeOffer(&seen));
  Word().store(OfferWord{true, 1, 4999}.Encode());
  EXPECT_TRUE(receiver().SeeOffer(&seen));
}

TEST_F(ShmOffer, AnyWord) {
  std::mt19937_64 random(1);
  for (int turn = 0; turn < 300; ++turn) {
    Disconnect();
    Connect();
    Offer(5000);
    std::uint64_t word = Word().load();
    word ^= std::uint64_t{1} << random() % 64;
    if (turn % 2 == 0) word = random();
    Word().store(word);
    SeenOffer seen;
    if (receiver().SeeOffer(&seen)) receiver().TakeOffered(&seen.word, 1);
    EXPECT_LE(sender().Withdraw(), 5000u);
    sender().EndFill();
    EXPECT_EQ(sender().Posted(), sender().Acked());
  }
}

}  // namespace
}  // namespace rcsock::lane::test
