// A blocking send of many bytes, on a stream that may get a lane.  In the
// kernel, one call would stay until all bytes are sent.  The stream could not
// be adopted meanwhile, and would never leave TCP.

#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>

#include "lib/posix/socket/sock.h"
#include "lib/posix/socket/sock_plain.h"
#include "lib/posix/thread/signals.h"

namespace rcsock::posix {

bool Sock::MayPlain(const InKernel& in, int fd) const {
  return in.May(fd, Mode::kPlain) || in.May(fd, Mode::kUnread);
}

ssize_t Sock::SendParts(int fd, const iovec& whole, std::size_t done, int flags,
                        std::uint32_t life, std::uint32_t signals,
                        GoesOn* goes_on) {
  const std::size_t total = whole.iov_len;
  const LaterPart later(signals);
  const int saved = errno;
  // A number that was closed meanwhile may be another connection's.
  while (done < total && Life() == life) {
    if (lane_state_.Wanted(LaneState::kWeak)) {
      const IoResult held =
          send_gate_.Send(fd, &whole, 1, total, flags | kLater, &done);
      if (!held.retry()) return held.bytes;
    }
    if (mode() == Mode::kEngine) {
      IoResult result = EngineSend(fd, &whole, 1, total, flags | kLater, &done);
      if (result.closed_in_use()) {
        result = SendLeft(&whole, 1, total, flags | kLater, &done);
      }
      if (result.gone()) break;
      if (!result.retry()) return result.bytes;
      continue;
    }
    // As in the kernel, a handler that has run ends a call that has sent.
    if (tls_signals.any != signals || !goes_on(fd, POLLOUT, signals)) {
      break;
    }
    const iovec part{static_cast<char*>(whole.iov_base) + done,
                     std::min(total - done, kSendPart)};
    InKernel in(this);
    if (!MayPlain(in, fd) || Life() != life) {
      if (mode() == Mode::kEngine) continue;
      break;
    }
    const ssize_t n = in.Sent(SendRest(fd, &part, 1, 0, flags | MSG_DONTWAIT));
    if (n > 0) {
      done += static_cast<std::size_t>(n);
    } else if (errno != EAGAIN) {
      break;
    }
  }
  errno = saved;
  return static_cast<ssize_t>(done);
}

}  // namespace rcsock::posix
