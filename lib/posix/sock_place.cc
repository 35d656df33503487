// Direct placement: the device of one end writes to memory of the other end,
// while both are on an RDMA lane.  The lane knows how.  This file checks,
// before and after, that the stream is still on that lane.

#include <cerrno>

#include "lib/lane/rdma/qp_lane.h"
#include "lib/posix/sock.h"
#include "lib/posix/thread/signals.h"

namespace rcsock::posix {

// Requires either latch.  Returns the working RDMA lane `epoch`, or any such
// lane for 0.  Returns null if the stream is not on it.
lane::Lane* Sock::PlacingLane(std::uint32_t epoch) {
  if (mode() != Mode::kEngine || lane_ == nullptr ||
      lane_kind_ != lane::Kind::kRdma || (epoch != 0 && epoch != lane_epoch_)) {
    return nullptr;
  }
  return lane_->State() == base::Reason::kNone ? lane_.get() : nullptr;
}

int Sock::Expose(void* at, std::size_t length, std::uint32_t* epoch,
                 std::uint32_t* key) {
  Latched latched(this);
  lane::Lane* const lane = PlacingLane(0);
  *epoch = lane_epoch_;
  return lane == nullptr ? ESTALE : -lane->Expose(at, length, key);
}

void Sock::Hide(std::uint32_t epoch, std::uint32_t key) {
  Latched latched(this);
  // A lane that has failed still has its registrations.
  if (lane_ != nullptr && lane_epoch_ == epoch) lane_->Hide(key);
}

std::int64_t Sock::Place(std::uint32_t epoch, const void* from,
                         std::size_t length, std::uint64_t to,
                         std::uint32_t key) {
  Critical critical;
  tx_latch.lock();
  lane::Lane* const lane = PlacingLane(epoch);
  const std::int64_t ticket = lane == nullptr || !stream_->FastTx()
                                  ? -ESTALE
                                  : lane->Place(from, length, to, key);
  tx_latch.unlock();
  return ticket == 0 ? -EAGAIN : ticket;
}

int Sock::Placed(std::uint32_t epoch, std::int64_t ticket) {
  Critical critical;
  tx_latch.lock();
  lane::Lane* lane = PlacingLane(epoch);
  int result = -ESTALE;
  if (lane != nullptr) {
    result = lane->Placed(ticket) ? 1 : 0;
    // Placed may have fetched the lane's end.
    if (result == 0 && PlacingLane(epoch) == nullptr) result = -ESTALE;
  }
  tx_latch.unlock();
  return result;
}

ssize_t Sock::SendDirect(int fd, const void* from, std::size_t length) {
  const iovec iov{const_cast<void*>(from), length};
  Critical critical;
  const base::LatchGuard hold(tx_latch);
  if (!IsAt(fd) || PlacingLane(0) == nullptr || !stream_->FastTx()) return -1;
  const ssize_t n = stream_->Write(&iov, 1, length);
  if (n <= 0) return n == -EAGAIN ? 0 : -1;
  lane_tx_ += static_cast<std::uint64_t>(n);
  return n;
}

lane::rdma::QpLane* Sock::ReceivingLane() {
  lane::Lane* const lane = PlacingLane(0);
  return lane != nullptr && stream_->FastRx()
             ? static_cast<lane::rdma::QpLane*>(lane)
             : nullptr;
}

lane::rdma::QpLane* Sock::LaneOfSerial(std::uint32_t serial) {
  for (lane::Lane* lane : {lane_.get(), parked_.get()}) {
    if (lane == nullptr || lane->kind() != lane::Kind::kRdma) continue;
    auto* const found = static_cast<lane::rdma::QpLane*>(lane);
    if (found->serial() == serial) return found;
  }
  return nullptr;
}

}  // namespace rcsock::posix
