// A blocking send of many bytes, on a stream that may get a lane.  In the
// kernel, one call would stay until all bytes are sent.  The stream could not
// be adopted meanwhile, and would never leave TCP.

#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>

#include "lib/posix/socket/sock.h"
#include "lib/posix/socket/sock_plain.h"
#include "lib/posix/sys/iov_rest.h"
#include "lib/posix/thread/signals.h"

namespace rcsock::posix {

static bool MayCall(const Sock::InKernel& in, int number) {
  return in.May(number, Mode::kPlain) || in.May(number, Mode::kUnread);
}

ssize_t SendGate::SendParts(int number, const iovec* iov, int count,
                            std::size_t total, std::size_t done, int flags,
                            std::uint32_t life, std::uint32_t signals,
                            GoesOn* goes_on) {
  const LaterPart later(signals);
  const int saved = errno;
  // SO_SNDTIMEO is for the whole call, as in the kernel, but for the first
  // part.
  std::uint64_t left_ns = sock_->snd_timeout_ns.load(std::memory_order_relaxed);
  std::uint64_t* const limit = left_ns != 0 ? &left_ns : nullptr;
  bool vain = false;  // there was no room where `goes_on` said so
  // A number that was closed meanwhile may be another connection's.
  while (done < total && sock_->calls().Life() == life) {
    if (sock_->lane_state().Wanted(LaneState::kWeak)) {
      const IoResult held =
          Send(number, iov, count, total, flags | Sock::kLater, &done);
      if (!held.retry()) return held.bytes;
    }
    if (sock_->mode() == Mode::kEngine) {
      IoResult result = sock_->EngineSend(number, iov, count, total,
                                          flags | Sock::kLater, &done);
      if (result.closed_in_use()) {
        result =
            sock_->SendLeft(iov, count, total, flags | Sock::kLater, &done);
      }
      if (result.gone()) break;
      if (!result.retry()) return result.bytes;
      continue;
    }
    // As in the kernel, a handler that has run ends the call where it would
    // sleep.  What finds room still goes.
    const bool over = tls_signals.any != signals;
    if (!over && !goes_on(number, POLLOUT, signals, limit)) break;
    IovRest part(iov, count);
    part.Limit(done, kPart);
    Sock::InKernel in(sock_);
    if (!MayCall(in, number) || sock_->calls().Life() != life) {
      if (sock_->mode() == Mode::kEngine) continue;
      break;
    }
    // Another thread may have taken the room.  But `goes_on` does not sleep for
    // O_NONBLOCK, which may have been set past rcsock, nor for what poll()
    // reports until it is read.  Then the kernel is asked to sleep, or not, as
    // it would.
    const int sleepless = vain && !over ? 0 : MSG_DONTWAIT;
    const ssize_t n = in.Sent(sock_->SendRest(number, part.iov(), part.count(),
                                              0, flags | sleepless));
    if (n > 0) {
      done += static_cast<std::size_t>(n);
      vain = false;
    } else if (errno != EAGAIN || vain || over) {
      break;
    } else {
      vain = true;
    }
  }
  errno = saved;
  return static_cast<ssize_t>(done);
}

}  // namespace rcsock::posix
