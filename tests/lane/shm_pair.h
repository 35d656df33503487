#ifndef RCSOCK_TESTS_LANE_SHM_PAIR_H_
#define RCSOCK_TESTS_LANE_SHM_PAIR_H_

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <memory>
#include <utility>

#include "lib/lane/shm/link.h"
#include "tests/lane/lane_conformance.h"

namespace rcsock::lane::test {

inline base::UniqueFd Dup(int fd) {
  return base::UniqueFd(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
}

// Both sides of a link in one process, each with its own mapping, and one
// stream.
class ShmPair final : public LanePair {
 public:
  // `most_ring`: of each side's; 0: any.
  static std::unique_ptr<ShmPair> Make(
      int index = 5, std::array<std::uint64_t, 2> most_ring = {}) {
    auto pair = std::make_unique<ShmPair>();
    pair->large_ = most_ring[0] == 0 && most_ring[1] == 0;
    pair->link_[0] = shm::Link::Create();
    if (pair->link_[0] == nullptr) return nullptr;
    pair->link_[1] = shm::Link::Map(Dup(pair->link_[0]->page_fd()));
    if (pair->link_[1] == nullptr) return nullptr;
    base::UniqueFd segment = pair->link_[0]->AddSegment();
    pair->segment_fd_ = Dup(segment.get());
    if (!pair->link_[1]->MapSegment(std::move(segment))) return nullptr;
    for (int i = 0; i < 2; ++i) {
      pair->bells_[i] = shm::Bells::Create(most_ring[i]);
      if (pair->bells_[i] == nullptr) return nullptr;
      pair->bells_[i]->EnsureBell(0);
      pair->poller_[i] =
          std::make_unique<shm::ShmPoller>(pair->bells_[i].get(), 2);
      pair->poller_[i]->AddLink(pair->link_[i]);
    }
    for (int i = 0; i < 2; ++i) {
      shm::Link& link = *pair->link_[1 - i];
      if (!link.SetPeerBellPage(Dup(pair->bells_[i]->page_fd()),
                                pair->bells_[1 - i]->most_ring())) {
        return nullptr;
      }
      for (int k : {0, 2})
        link.SetPeerBell(k, Dup(pair->bells_[i]->bell_fd(k)));
    }
    for (int i = 0; i < 2; ++i) {
      pair->lane_[i] = pair->link_[i]->OpenLane(index);
      if (pair->lane_[i] == nullptr) return nullptr;
      pair->link_[i]->SetCookie(index, &pair->cookies_[i]);
    }
    return pair;
  }

  Lane& end(int i) override { return *lane_[i]; }
  Poller* poller(int i) override { return poller_[i].get(); }
  bool Large() const override { return large_; }
  void* cookie(int i) override { return &cookies_[i]; }
  void Kill(int i) override { link_[i]->Kill(base::Reason::kPeerGone); }

  shm::Link& link(int i) { return *link_[i]; }
  shm::Bells& bells(int i) { return *bells_[i]; }
  std::unique_ptr<Lane>& lane(int i) { return lane_[i]; }
  std::shared_ptr<shm::Link>& link_ptr(int i) { return link_[i]; }
  int segment_fd() const { return segment_fd_.get(); }

 private:
  std::unique_ptr<shm::Bells> bells_[2];
  std::shared_ptr<shm::Link> link_[2];
  std::unique_ptr<shm::ShmPoller> poller_[2];
  std::unique_ptr<Lane> lane_[2];
  base::UniqueFd segment_fd_;
  char cookies_[2] = {};
  bool large_ = true;
};

}  // namespace rcsock::lane::test

#endif  // RCSOCK_TESTS_LANE_SHM_PAIR_H_
