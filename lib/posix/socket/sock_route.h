#ifndef RCSOCK_LIB_POSIX_SOCKET_SOCK_ROUTE_H_
#define RCSOCK_LIB_POSIX_SOCKET_SOCK_ROUTE_H_

#include <sys/types.h>

#include <cstdint>

#include "lib/posix/socket/sock.h"

namespace rcsock::posix {

// Tells whether the kernel or the engine carries out a call of a stream, and
// whether rcsock carries out the stream's requests of io_uring.
//
// A view of its Sock, without a state.  Any thread may call it, with or without
// a latch of the stream.  Without one an answer may be over at any moment.
class Route {
 public:
  explicit Route(Sock* sock) : sock_(sock) {}

  // Returns what carries out a call whose flags do not matter.  kKernels: the
  // kernel alone, see Kernels.  kPlain: the kernel, if InKernel::May agrees.
  // kWanted: neither is certain, since the engine has the stream or a lane is
  // awaited.
  LaneState::Call WhoseCall() const {
    return sock_->mode() == Mode::kPlain ? sock_->lane_state().ForCall()
                                         : LaneState::Call::kWanted;
  }
  // Returns whether a lane may take what is sent next, even if none has it now.
  bool MayTakeLane() const {
    return sock_->mode() == Mode::kEngine ||
           sock_->lane_state().MayTakeLane(LaneState::kWeak);
  }
  // Returns whether rcsock carries out the requests of io_uring on the stream.
  // After kMostOnTcp calls on TCP without a lane, the kernel does.
  bool MayBeCarried() const {
    constexpr std::uint32_t kMostOnTcp = 4096;
    return MayTakeLane() && (sock_->mode() == Mode::kEngine ||
                             sock_->calls().count() < kMostOnTcp);
  }
  // Returns whether the engine has the stream, or a search is under way.
  bool Engaged() const {
    return sock_->mode() == Mode::kEngine || sock_->lane_state().Seeking();
  }
  // Returns whether no lane will ever come, and nothing is left over from one.
  // Then a call goes to the kernel, and Sent or Received gets its result.
  bool Kernels() const {
    return sock_->lane_state().Never(LaneState::kWeak) &&
           sock_->mode() == Mode::kPlain;
  }
  // Sent and Received count `n` bytes of such a call, and return `n`.
  ssize_t Sent(ssize_t n) const { return Count(PlainCalls::kTx, n); }
  ssize_t Received(ssize_t n) const { return Count(PlainCalls::kRx, n); }

 private:
  // For the statistics alone.  The object may already be another connection.
  ssize_t Count(PlainCalls::Way way, ssize_t n) const {
    if (n > 0 && sock_->lane_state().Never(LaneState::kWeak)) {
      sock_->calls().AddAbout(way, static_cast<std::uint64_t>(n));
    }
    return n;
  }

  Sock* const sock_;
};

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_SOCKET_SOCK_ROUTE_H_
