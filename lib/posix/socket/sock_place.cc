#include "lib/posix/socket/sock_place.h"

#include <sys/uio.h>

#include <cerrno>

#include "lib/lane/rdma/qp_lane.h"
#include "lib/posix/socket/sock.h"
#include "lib/posix/thread/signals.h"

namespace rcsock::posix {

lane::Lane* Placement::LaneOf(std::uint32_t epoch) const {
  lane::Lane* const lane = sock_->lane();
  if (sock_->mode() != Mode::kEngine || lane == nullptr ||
      lane->kind() != lane::Kind::kRdma ||
      (epoch != 0 && epoch != sock_->lane_epoch_)) {
    return nullptr;
  }
  return lane->State() == base::Reason::kNone ? lane : nullptr;
}

int Placement::Expose(void* at, std::size_t length, std::uint32_t* epoch,
                      std::uint32_t* key) {
  Latched latched(sock_);
  lane::Lane* const lane = LaneOf(0);
  *epoch = sock_->lane_epoch_;
  return lane == nullptr ? ESTALE : -lane->Expose(at, length, key);
}

void Placement::Hide(std::uint32_t epoch, std::uint32_t key) {
  Latched latched(sock_);
  // A lane that has failed still has its registrations.
  if (sock_->lane_ != nullptr && sock_->lane_epoch_ == epoch)
    sock_->lane_->Hide(key);
}

std::int64_t Placement::Place(std::uint32_t epoch, const void* from,
                              std::size_t length, std::uint64_t to,
                              std::uint32_t key) {
  Critical critical;
  sock_->tx_latch.lock();
  lane::Lane* const lane = LaneOf(epoch);
  const std::int64_t ticket = lane == nullptr || !sock_->stream_->FastTx()
                                  ? -ESTALE
                                  : lane->Place(from, length, to, key);
  sock_->tx_latch.unlock();
  return ticket == 0 ? -EAGAIN : ticket;
}

int Placement::Placed(std::uint32_t epoch, std::int64_t ticket) {
  Critical critical;
  sock_->tx_latch.lock();
  lane::Lane* lane = LaneOf(epoch);
  int result = -ESTALE;
  if (lane != nullptr) {
    result = lane->Placed(ticket) ? 1 : 0;
    // Placed may have fetched the lane's end.
    if (result == 0 && LaneOf(epoch) == nullptr) result = -ESTALE;
  }
  sock_->tx_latch.unlock();
  return result;
}

ssize_t Placement::SendDirect(int fd, const void* from, std::size_t length) {
  const iovec iov{const_cast<void*>(from), length};
  Critical critical;
  const base::LatchGuard hold(sock_->tx_latch);
  if (!sock_->IsAt(fd) || LaneOf(0) == nullptr || !sock_->stream_->FastTx()) {
    return -1;
  }
  const ssize_t n = sock_->stream_->Write(&iov, 1, length);
  if (n <= 0) return n == -EAGAIN ? 0 : -1;
  sock_->lane_tx_ += static_cast<std::uint64_t>(n);
  return n;
}

lane::rdma::QpLane* Placement::ReceivingLane() {
  sock_->rx_latch.AssertHeld();
  lane::Lane* const lane = LaneOf(0);
  return lane != nullptr && sock_->stream_->FastRx()
             ? static_cast<lane::rdma::QpLane*>(lane)
             : nullptr;
}

lane::rdma::QpLane* Placement::LaneOfSerial(std::uint32_t serial) {
  sock_->rx_latch.AssertHeld();
  for (lane::Lane* lane : {sock_->lane_.get(), sock_->settling().parked()}) {
    if (lane == nullptr || lane->kind() != lane::Kind::kRdma) continue;
    auto* const found = static_cast<lane::rdma::QpLane*>(lane);
    if (found->serial() == serial) return found;
  }
  return nullptr;
}

}  // namespace rcsock::posix
