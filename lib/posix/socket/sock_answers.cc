#include "lib/posix/socket/sock_answers.h"

#include <netinet/tcp.h>

#include <algorithm>
#include <climits>

#include "lib/posix/socket/sock.h"

namespace rcsock::posix {

// The anchor's own end comes when both ends have said theirs, and have read
// all.
std::uint8_t Answers::TcpState(std::uint8_t anchors) const {
  anchors == TCP_CLOSE ? static_cast<void>(sock_->TakeTcpEnd())
                       : sock_->TakeEnd();
  Latched latched(sock_);
  if (sock_->mode() != Mode::kEngine || sock_->stream_ == nullptr) {
    return anchors;
  }
  const stream::Stream& stream = *sock_->stream_.get();
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
  if (sock_->mode() == Mode::kEngine && sock_->stream_ != nullptr) {
    error = sock_->stream_->TakeError();
    if (error != 0) {
      sock_->stream_->Progress();
      sock_->HandleChanges();
    }
  } else if (sock_->mode() == Mode::kUnread) {
    error = sock_->TakeKeptLatched();
  }
  return error;
}

bool Answers::Readable(int* bytes) const {
  Latched latched(sock_);
  const bool mine =
      sock_->mode() == Mode::kUnread ||
      (sock_->mode() == Mode::kEngine && sock_->stream_ != nullptr);
  if (mine) {
    *bytes = static_cast<int>(
        std::min<std::size_t>(sock_->ReadableLatched(), INT_MAX));
  }
  return mine;
}

bool Answers::HasReadAhead() const {
  Latched latched(sock_);
  return sock_->mode() == Mode::kUnread ? sock_->read_ahead().Held().size() > 0
         : sock_->mode() == Mode::kEngine && sock_->stream_ != nullptr
             ? sock_->stream_->Readable() > 0
             : false;
}

bool Answers::Unsent(bool not_sent, int* bytes) const {
  Latched latched(sock_);
  // Before the switch the kernel has all bytes, but for those that wait for the
  // switch.
  if (sock_->mode() != Mode::kEngine || sock_->stream_ == nullptr ||
      sock_->lane_ == nullptr ||
      (sock_->stream_->tx() == stream::Tx::kRaw &&
       sock_->stream_->Unacked() == 0)) {
    return false;
  }
  const bool shm = sock_->lane_kind_ == lane::Kind::kShm;
  // A lane to another host gives credit when the sender needs it, not when the
  // bytes have come.
  if (!shm && !not_sent) {
    sock_->stream_->AskLanded();
    sock_->HandleChanges();
  }
  std::uint64_t n = sock_->stream_->Unacked();
  if (sock_->stream_->tx() == stream::Tx::kLane) {
    // What is in shared memory is where the peer's kernel would have it, read
    // or not, so TCP would count it no more.  Without room there, TCP would
    // have some left over here.
    const bool there = shm && sock_->lane_->Writable() > 0;
    if (there || not_sent) n = 0;
  }
  *bytes = static_cast<int>(std::min<std::uint64_t>(n, INT_MAX));
  return true;
}

}  // namespace rcsock::posix
