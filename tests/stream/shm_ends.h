#ifndef RCSOCK_TESTS_STREAM_SHM_ENDS_H_
#define RCSOCK_TESTS_STREAM_SHM_ENDS_H_

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <memory>
#include <new>
#include <utility>

#include "lib/lane/shm/link.h"
#include "tests/stream/walk_ends.h"

namespace rcsock::stream {

// Two Streams over the real shared-memory lane and a simulated TCP connection.
class ShmEnds : public WalkEnds {
 protected:
  void SetUp() override {
    link_[0] = lane::shm::Link::Create();
    ASSERT_NE(link_[0], nullptr);
    link_[1] = lane::shm::Link::Map(base::UniqueFd(dup(link_[0]->page_fd())));
    ASSERT_NE(link_[1], nullptr);
    base::UniqueFd segment = link_[0]->AddSegment();
    ASSERT_TRUE(segment.ok());
    ASSERT_TRUE(link_[1]->MapSegment(std::move(segment)));
    tcp_.rng = 88172645463325252u;
    tcp_.capacity = 5000;
    for (Stream& s : stream_) s.Adopt(0, 0);
  }
  void Up() override {
    if (lane_[0] || lane_[1]) return;
    ++epoch_;
    link_[0]->Scrub(0);
    Nonce nonce[2];
    for (int i = 0; i < 2; ++i) {
      nonce[i].fill(static_cast<std::uint8_t>(epoch_ + 7u * i));
    }
    for (int i = 0; i < 2; ++i) {
      lane_[i] = link_[i]->OpenLane(0);
      ASSERT_NE(lane_[i], nullptr);
    }
    for (int i = 0; i < 2; ++i) {
      stream_[i].LaneUp(lane_[i].get(), epoch_, nonce[i], nonce[1 - i], true);
    }
  }
  // New memory and new streams.
  void StartOver() {
    for (int i = 0; i < 2; ++i) {
      stream_[i].~Stream();
      new (&stream_[i]) Stream(i == 0 ? Role::kConnector : Role::kAcceptor,
                               &anchor_[i], Limits{});
      lane_[i].reset();
      written_[i] = read_[i] = 0;
      waited_[i] = 0;
    }
    const std::uint64_t rng = tcp_.rng;
    tcp_ = SimTcp();
    SetUp();
    tcp_.rng = rng;
  }

  std::shared_ptr<lane::shm::Link> link_[2];
};

}  // namespace rcsock::stream

#endif  // RCSOCK_TESTS_STREAM_SHM_ENDS_H_
