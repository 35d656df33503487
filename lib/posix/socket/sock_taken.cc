#include "lib/posix/socket/sock_taken.h"

#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "lib/lane/rdma/qp_lane.h"
#include "lib/posix/sharing/unread.h"
#include "lib/posix/socket/sock.h"
#include "lib/posix/socket/sock_plain.h"
#include "lib/posix/socket/sock_route.h"
#include "lib/posix/sys/identity.h"
#include "lib/posix/thread/signals.h"

namespace rcsock::posix {
namespace {

// Fewer bytes are not worth a copy of their own.
constexpr std::size_t kLeastPiece = 16 * 1024;

}  // namespace

Placement::Kept::Kept(Sock* sock, int fd)
    : sock_(sock), fd_(fd), process_(OwnPid()) {}

Placement::Kept::~Kept() {
  if (!kept_) return;
  const int saved = errno;
  // A child of fork has the table's reference alone.
  if (InOwner()) sock_->Unref();
  errno = saved;
}

bool Placement::Kept::Keep() {
  kept_ = sock_->TryRef();
  return kept_;
}

bool Placement::Kept::InOwner() const { return process_ == OwnPid(); }

Placement::Taken::~Taken() {
  if (!kept()) return;
  const int saved = errno;
  sock_->LeaveCall(entered_);
  errno = saved;
}

// A stream that cannot be adopted now is counted, too (unlike KernelHold): what
// keeps it on TCP may be over at any moment.
bool Placement::Taken::Begin() {
  int least = 1;
  socklen_t size = sizeof least;
  if (!Keep()) return false;
  entered_ = sock_->calls().Enter();
  // seq_cst: pairs with TakeFromKernelLatched, as InKernel::May does.
  return sock_->mode(std::memory_order_seq_cst) == Mode::kPlain &&
         sock_->IsAt(fd_) && sock_->holders().Sole() &&
         ::syscall(SYS_getsockopt, fd_, SOL_SOCKET, SO_RCVLOWAT, &least,
                   &size) == 0 &&
         least <= 1;
}

ssize_t Placement::Taken::Take(std::byte* to, std::size_t length) {
  if (!sock_->IsAt(fd_)) {
    errno = EAGAIN;
    return -1;
  }
  return ::syscall(SYS_recvfrom, fd_, to, length, MSG_DONTWAIT, nullptr,
                   nullptr);
}

std::size_t Placement::Taken::Deliver(std::size_t bytes) {
  const auto n = static_cast<ssize_t>(bytes);
  if (Route(sock_).Kernels()) {
    Route(sock_).Received(n);
  } else {
    Sock::InKernel(sock_).Received(n);
  }
  return bytes;
}

bool Placement::Taken::GiveBack(const iovec* pieces, int count) {
  // A handler has forked: the parent has these bytes.
  if (!InOwner()) return true;
  sock_->search_.Cancel();
  const Latched latched(sock_);
  // The program has closed the number meanwhile. Another may be the stream's.
  const int number = sock_->IsAt(fd_) ? fd_ : sock_->fd();
  if (number < 0) return true;
  Unread& unread = sock_->read_ahead_.Held();
  // An error that another thread has kept comes behind these bytes.
  const bool has = sock_->mode() == Mode::kUnread;
  const int error = has ? unread.TakeError() : 0;
  const bool made = unread.Make(pieces, count, SocketInode(number), 0, error);
  if (has && !made) {
    sock_->SetUnread(false);
  } else if (!has && made) {
    sock_->SetUnread(true);
  }
  return made;
}

lane::rdma::QpLane* Placement::Seen::Lane() const {
  sock_->rx_latch.AssertHeld();
  if (!sock_->IsAt(fd_)) return nullptr;
  lane::rdma::QpLane* const lane = Placement(sock_).ReceivingLane();
  return lane != nullptr && lane->serial() == lane_ &&
                 sock_->stream_->rx_off() == next_
             ? lane
             : nullptr;
}

bool Placement::Seen::Begin() {
  if (!Keep()) return false;
  const Critical critical;
  const base::LatchGuard hold(sock_->rx_latch);
  const lane::rdma::QpLane* const lane = Placement(sock_).ReceivingLane();
  if (lane == nullptr) return false;
  lane_ = lane->serial();
  next_ = sock_->stream_->rx_off();
  piece_ = kLeastPiece;
  return true;
}

ssize_t Placement::Seen::Take(std::byte* to, std::size_t length) {
  const Critical critical;
  const base::LatchGuard hold(sock_->rx_latch);
  lane::rdma::QpLane* const lane = Lane();
  const std::size_t n =
      lane == nullptr ? 0 : lane->CopyAhead(ahead_, to, length);
  if (n == 0) {
    errno = EAGAIN;
    return -1;
  }
  ahead_ += n;
  piece_ = std::max(kLeastPiece, lane->RxRegion().length / 4);
  return static_cast<ssize_t>(n);
}

std::size_t Placement::Seen::Deliver(std::size_t bytes) {
  const Critical critical;
  const base::LatchGuard hold(sock_->rx_latch);
  if (Lane() == nullptr) return 0;
  const ssize_t n = sock_->stream_->Read(nullptr, 0, bytes, false);
  if (n <= 0) return 0;
  const auto taken = static_cast<std::size_t>(n);
  sock_->lane_rx_ += taken;
  next_ += taken;
  ahead_ -= taken;
  return taken;
}

}  // namespace rcsock::posix
