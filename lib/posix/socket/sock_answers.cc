#include "lib/posix/socket/sock_answers.h"

#include <linux/sockios.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>

#include "lib/posix/socket/sock.h"
#include "lib/posix/socket/sock_looks.h"

namespace rcsock::posix {

// The anchor's own end comes when both ends have said theirs, and have read
// all.
std::uint8_t Answers::TcpState(std::uint8_t anchors) const {
  anchors == TCP_CLOSE ? static_cast<void>(Looks(sock_).TakeTcpEnd())
                       : Looks(sock_).TakeEnd();
  Latched latched(sock_);
  if (sock_->engine() == nullptr) {
    return anchors;
  }
  const stream::Stream& stream = *sock_->engine();
  const bool own = stream.Shut();
  if (stream.Gone()) return TCP_CLOSE;
  if (stream.PeerEnded()) return own ? TCP_CLOSE : TCP_CLOSE_WAIT;
  if (own && anchors == TCP_ESTABLISHED) {
    return stream.FinSent() ? TCP_FIN_WAIT2 : TCP_FIN_WAIT1;
  }
  return anchors;
}

int Answers::TakeError() const {
  Latched latched(sock_);
  int error = 0;
  if (sock_->engine() != nullptr) {
    error = sock_->engine()->TakeError();
    if (error != 0) {
      sock_->engine()->Progress();
      sock_->HandleChanges();
    }
  } else if (sock_->mode() == Mode::kUnread) {
    error = sock_->read_ahead().TakeErrorLatched();
  }
  return error;
}

bool Answers::Readable(int* bytes) const {
  Latched latched(sock_);
  const bool mine =
      sock_->mode() == Mode::kUnread || sock_->engine() != nullptr;
  if (mine) {
    *bytes = static_cast<int>(
        std::min<std::size_t>(Looks(sock_).ReadableLatched(), INT_MAX));
  }
  return mine;
}

bool Answers::HasReadAhead() const {
  Latched latched(sock_);
  return sock_->mode() == Mode::kUnread ? sock_->read_ahead().Held().size() > 0
         : sock_->engine() != nullptr   ? sock_->engine()->Readable() > 0
                                        : false;
}

bool Answers::Unsent(bool not_sent, int* bytes) const {
  Latched latched(sock_);
  // Before the switch the kernel has all bytes, but for those that wait for the
  // switch.
  if (sock_->engine() == nullptr || sock_->lane() == nullptr ||
      (sock_->engine()->tx() == stream::Tx::kRaw &&
       sock_->engine()->Unacked() == 0)) {
    return false;
  }
  const bool shm = sock_->lane()->kind() == lane::Kind::kShm;
  // A lane to another host gives credit when the sender needs it, not when the
  // bytes have come.
  if (!shm && !not_sent) {
    sock_->engine()->AskLanded();
    sock_->HandleChanges();
  }
  std::uint64_t n = sock_->engine()->Unacked();
  if (sock_->engine()->tx() != stream::Tx::kLane) {
    // What went to TCP before the switch, and frames.
    int queued = 0;
    ::syscall(SYS_ioctl, sock_->fd(), not_sent ? SIOCOUTQNSD : SIOCOUTQ,
              &queued);
    n += static_cast<std::uint64_t>(std::max(queued, 0));
  } else {
    // Bytes in shared memory are where the peer's kernel would have them, read
    // or not, so TCP would count them no more.  If the ring has no room, TCP
    // would still have some bytes here.
    const bool there = shm && sock_->lane()->Writable() > 0;
    if (there || not_sent) n = 0;
  }
  *bytes = static_cast<int>(std::min<std::uint64_t>(n, INT_MAX));
  return true;
}

}  // namespace rcsock::posix
