#include "lib/posix/socket/sock_notice.h"

#include "lib/base/barrier.h"
#include "lib/lane/shm/shm_lane.h"
#include "lib/posix/socket/sock.h"
#include "lib/posix/thread/bell_shares.h"

namespace rcsock::posix {

using rendezvous::Conductor;

namespace {

// What a lane is told for the switch, with the conductor's bell.
constexpr std::uint32_t kOfSwitch =
    lane::kNotifyRxPoller | lane::kNotifyRxBits | lane::kNotifyTxPoller;

}  // namespace

std::shared_ptr<lane::shm::Link> LaneNotice::Join(
    std::shared_ptr<lane::shm::Link> link, int index) {
  link_.swap(link);
  index_ = index;
  link_->SetCookie(index, sock_);
  return link;
}

std::shared_ptr<lane::shm::Link> LaneNotice::TakeLink() {
  latches_.AssertHeld();
  lane_ = nullptr;
  return std::move(link_);
}

void LaneNotice::Begin(lane::Lane* lane) {
  latches_.AssertHeld();
  lane_ = lane;
  source_.store(lane->source(), std::memory_order_release);
}

void LaneNotice::End() {
  latches_.AssertHeld();
  WantSource(false);
  source_.store(nullptr, std::memory_order_release);
  bits_.store(0);
  lane_ = nullptr;
}

lane::shm::ShmLane* LaneNotice::Shm() const {
  return lane_ != nullptr && lane_->kind() == lane::Kind::kShm
             ? static_cast<lane::shm::ShmLane*>(lane_)
             : nullptr;
}

void LaneNotice::WantSource(bool wanted) {
  lane::Source* source = source_.load(std::memory_order_relaxed);
  if (source == nullptr || wanted == source_wanted_) return;
  source_wanted_ = wanted;
  if (Conductor* conductor = Conductor::IfRunning()) {
    conductor->SourceWanted(source, wanted ? 1 : -1);
  }
}

// During the switch each message rings the conductor's bell, and the conductor
// passes it on to all who wait for the stream.  So a sender that does not see
// the next wish yet wakes them nevertheless, and that wish needs no heavy
// fence, which would interrupt all processors, for each stream that comes on a
// lane.  KickPollers needs the full one: a thread in EnterPoll counts itself,
// then looks at the bell (PollsModel, kicks_before).
void LaneNotice::Tell(std::uint32_t bits, int bell) {
  latches_.AssertHeld();
  const bool rings_all = bits_.load(std::memory_order_relaxed) == kOfSwitch &&
                         bell_.load(std::memory_order_relaxed) == 0;
  bell_.store(bell, std::memory_order_relaxed);
  // A thread that sees the wish and sleeps on the stream's bell sees which
  // bell.
  bits_.store(bits, std::memory_order_release);
  if (lane_ == nullptr) return;
  WantSource(bits != 0 && bell == 0);
  lane::shm::ShmLane* const shm = Shm();
  if (shm != nullptr && rings_all) {
    shm->Wish(bits, bell);
    base::FullFence();
  } else {
    lane_->SetNotify(bits, bell);
  }
}

void LaneNotice::Wish(std::uint32_t bits) {
  latches_.AssertHeld();
  lane::shm::ShmLane* const shm = Shm();
  if (shm == nullptr) return;
  bits_.store(bits, std::memory_order_relaxed);
  shm->Wish(bits, bell());
}

void LaneNotice::EnterPoll(int bell) {
  polls_.fetch_add(1, std::memory_order_seq_cst);
  // A thread that takes the wish back looks at polls_ after that.
  if (bits_.load(std::memory_order_seq_cst) != 0) return;
  Latched latched(sock_);
  latches_.AssertHeld();
  if (lane_ == nullptr || !sock_->OnLane() || bits() != 0) return;
  // The lane has rung no bell until now, so no thread sleeps on another bell.
  // A thread that drains a source rings for all its lanes.
  Tell(lane::kNotifyRxPoller | lane::kNotifyTxPoller,
       Shm() != nullptr ? bell : kPollBell);
}

void LaneNotice::KickPollers() {
  if (polls_.load(std::memory_order_seq_cst) == 0) return;
  if (Conductor* conductor = Conductor::IfRunning()) {
    conductor->bells()->Kick(kPollBell);
  }
}

void LaneNotice::OnForkChild() {
  latches_.AssertUnshared();
  polls_.store(0, std::memory_order_relaxed);
  source_.store(nullptr);
  lane_ = nullptr;
  source_wanted_ = false;
}

}  // namespace rcsock::posix
