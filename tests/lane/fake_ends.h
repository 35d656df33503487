#ifndef RCSOCK_TESTS_LANE_FAKE_ENDS_H_
#define RCSOCK_TESTS_LANE_FAKE_ENDS_H_

#include <arpa/inet.h>
#include <dirent.h>
#include <gtest/gtest.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "lib/base/config.h"
#include "tests/lane/fake_pair.h"

namespace rcsock::lane::test {

inline int OpenFds() {
  int count = 0;
  DIR* directory = ::opendir("/proc/self/fd");
  while (::readdir(directory) != nullptr) ++count;
  ::closedir(directory);
  return count;
}

// More than RLIMIT_MEMLOCK is where tests run.
class MuchPinned {
 public:
  MuchPinned() { Set("64M"); }
  ~MuchPinned() { Set("0"); }
  MuchPinned(const MuchPinned&) = delete;
  MuchPinned& operator=(const MuchPinned&) = delete;

 private:
  static void Set(const char* bytes) {
    ::setenv("RCSOCK_MAX_PINNED", bytes, 1);
    base::LoadConfig();
    ::unsetenv("RCSOCK_MAX_PINNED");
  }
};

// On a device in memory, of IB or (true) iWARP.  Lane 0 is the one under test;
// its peer is lane 1, or whoever writes in its name.
class FakeEnds : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    fds_ = OpenFds();
    Open();
  }
  void TearDown() override {
    Close();
    EXPECT_EQ(OpenFds(), fds_) << "descriptors are left";
  }
  void Open(std::size_t block = 64 * 1024) { Make(block); }
  // As MakeFakePair.
  void Make(std::size_t block, std::size_t most = 0,
            std::size_t most_first = 0) {
    FakeVerbs::Options options;
    options.iwarp = GetParam();
    made_ = MakeFakePair(options, block, most, most_first, pace_);
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

  // Of devices in software, where a test counts on that.
  rdma::Pace pace_ = rdma::kHardwarePace;
  int fds_ = 0;
  FakePair made_;
  rdma::QpLane* lane_ = nullptr;
  rdma::QpLane* peer_ = nullptr;
  std::uint64_t base_ = 0;  // of the receive block
  std::uint32_t key_ = 0;
};

}  // namespace rcsock::lane::test

#endif  // RCSOCK_TESTS_LANE_FAKE_ENDS_H_
