#include "lib/posix/socket/recv_in_place.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "lib/base/config.h"
#include "lib/base/no_cancel.h"
#include "lib/lane/rdma/qp_lane.h"
#include "lib/lane/rdma/user_memory.h"
#include "lib/posix/socket/sock.h"
#include "lib/posix/socket/sock_place.h"
#include "lib/posix/sys/identity.h"
#include "lib/posix/thread/signals.h"

namespace rcsock::posix {

namespace {

using base::InPlace;
using lane::rdma::QpLane;
using lane::rdma::UserMemory;

// Each target is registered for its call.  By calculation that pays from this
// length on (tests/lane/fake_time_test).
constexpr std::size_t kLeastAuto = 4 * 1024 * 1024;

// Returns whether `length` bytes at `at` are worth a target, and may be written
// to while the call sleeps.
bool Worth(const QpLane& lane, const void* at, std::size_t length) {
  const InPlace mode = base::GetConfig().in_place;
  if (mode == InPlace::kOff || length < RecvInPlace::kLeast) return false;
  // A handler that is not wrapped may jump out of the call.
  if (OwnFace() == Face::kLibrary && !tls_signals.registered) return false;
  // The memory is registered for the call alone, so the registration cannot
  // mean a later mapping.
  const bool registered =
      tls_signals.registered && UserMemory::Find(at, length) != nullptr;
  if (!registered && (mode == InPlace::kAuto ||
                      !verbs::free_of_forks.load(std::memory_order_relaxed))) {
    return false;
  }
  return mode == InPlace::kAlways || (!lane.software() && length >= kLeastAuto);
}

}  // namespace

RecvRegistered::RecvRegistered()
    : outer_(std::exchange(tls_signals.registered, true)) {}
RecvRegistered::~RecvRegistered() { tls_signals.registered = outer_; }

void RecvInPlace::Open(const iovec* first, std::size_t left, bool all) {
  sock_->rx_latch.AssertHeld();
  QpLane* lane = Placement(sock_).ReceivingLane();
  if (lane_ != 0) {
    // The next piece of the call's memory.
    if (lane == nullptr || lane->serial() != lane_ || !lane->TargetIsOver()) {
      return;
    }
    EndLatched();
  }
  if (lane == nullptr || tls_signals.in_place != nullptr) return;
  const std::size_t length = std::min(first->iov_len, left);
  if (!Worth(*lane, first->iov_base, length) || !lane->TargetIsWorth()) return;
  const int saved = errno;
  const bool open = lane->OpenTarget(static_cast<std::byte*>(first->iov_base),
                                     length, !all, &window_);
  errno = saved;
  if (!open) return;
  lane_ = lane->serial();
  forks_ = verbs::forks.load(std::memory_order_relaxed);
  signal_users.take_back_memory.store(&TakeBackMemory,
                                      std::memory_order_relaxed);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  tls_signals.in_place = this;
}

bool RecvInPlace::StillGoesOn() {
  sock_->rx_latch.AssertHeld();
  QpLane* lane = Placement(sock_).LaneOfSerial(lane_);
  return lane != nullptr && lane->TargetGoesOn();
}

void RecvInPlace::End() {
  const base::NoCancel no_cancel;
  const int saved = errno;
  const Critical critical;
  sock_->rx_latch.lock();
  EndLatched();
  sock_->rx_latch.unlock();
  errno = saved;
}

void RecvInPlace::EndLatched() {
  sock_->rx_latch.AssertHeld();
  if (forks_ != verbs::forks.load(std::memory_order_relaxed)) {
    window_.Abandon();
  } else if (QpLane* lane = Placement(sock_).LaneOfSerial(lane_)) {
    lane->CloseTarget(&window_);
  } else {
    // The lane has gone, with its queue pair.
    window_.Close();
  }
  lane_ = 0;
  tls_signals.in_place = nullptr;
}

void TakeBackMemory() {
  if (auto* const call = static_cast<RecvInPlace*>(tls_signals.in_place)) {
    call->End();
  }
}

}  // namespace rcsock::posix
