// The end of a lane, and what the two ends tell each other of it.

#include <algorithm>
#include <cstdint>

#include "lib/lane/shm/link_state.h"
#include "lib/lane/shm/shm_lane.h"

namespace rcsock::lane::shm {

void ShmLane::Latch() {
  std::uint32_t imm;
  std::uint64_t landed = rx_.next();
  if (Landed(&rx_, &imm)) {
    do ++landed;
    while (landed - rx_.next() < kSlots && LandedToo(landed - rx_.next()));
  }
  rx_limit_ = std::min(rx_limit_, landed);
}

bool ShmLane::Thaw() {
  // After a breach of the rules nothing in the ring means anything.
  if (!frozen_ ||
      failed_.load(std::memory_order_acquire) != base::Reason::kNone)
    return false;
  rx_limit_ = kNoLimit;
  Latch();
  return true;
}

// Rings bell 0: only the peer's conductor waits for what the control line says.
void ShmLane::RingConductor() {
  if (link_->why_dead() != base::Reason::kNone) return;
  link_->Mark(kReadyRx, 0, index_);
  link_->Ring(0);
}

void ShmLane::TellLeft(Left left) {
  const auto word = static_cast<std::uint32_t>(left);
  if (own().left.exchange(word, std::memory_order_acq_rel) == word) return;
  RingConductor();
}

// TCP orders this word before the bytes: the kernel's lock of the connection is
// taken after the store here, and before the load there.
void ShmLane::Forgo() {
  own().forgoes.store(1, std::memory_order_release);
  RingConductor();
}

Lane::Left ShmLane::PeerLeft() const {
  const std::uint32_t left = peer().left.load(std::memory_order_acquire);
  return left == 0                                         ? Left::kNot
         : left == static_cast<std::uint32_t>(Left::kTold) ? Left::kTold
                                                           : Left::kAll;
}

void ShmLane::Freeze() {
  if (frozen_) return;
  Latch();
  frozen_ = true;
  over_.store(true, std::memory_order_seq_cst);
  WakeLocal();
}

}  // namespace rcsock::lane::shm
