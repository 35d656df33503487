#include "lib/posix/socket/sock_taken.h"

#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "lib/posix/sharing/unread.h"
#include "lib/posix/socket/sock.h"
#include "lib/posix/socket/sock_plain.h"
#include "lib/posix/socket/sock_route.h"
#include "lib/posix/sys/identity.h"

namespace rcsock::posix {

Placement::Taken::Taken(Sock* sock, int fd)
    : sock_(sock), fd_(fd), process_(OwnPid()) {}

Placement::Taken::~Taken() {
  if (!kept_) return;
  const int saved = errno;
  sock_->LeaveCall(entered_);
  // A child of fork has the table's reference alone.
  if (process_ == OwnPid()) sock_->Unref();
  errno = saved;
}

// A stream that cannot be adopted now is counted, too (unlike KernelHold): what
// keeps it on TCP may be over at any moment.
bool Placement::Taken::Begin() {
  int least = 1;
  socklen_t size = sizeof least;
  kept_ = sock_->TryRef();
  if (!kept_) return false;
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

void Placement::Taken::Deliver(std::size_t bytes) {
  const auto n = static_cast<ssize_t>(bytes);
  if (Route(sock_).Kernels()) {
    Route(sock_).Received(n);
    return;
  }
  Sock::InKernel(sock_).Received(n);
}

bool Placement::Taken::GiveBack(const iovec* pieces, int count) {
  // A handler has forked: the parent has these bytes.
  if (process_ != OwnPid()) return true;
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

}  // namespace rcsock::posix
