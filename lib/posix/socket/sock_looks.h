#ifndef RCSOCK_LIB_POSIX_SOCKET_SOCK_LOOKS_H_
#define RCSOCK_LIB_POSIX_SOCKET_SOCK_LOOKS_H_

#include <poll.h>

#include <cstddef>
#include <cstdint>

#include "lib/posix/socket/sock.h"

namespace rcsock::posix {

// Looks at what a stream is ready for, and the sleep of a thread that waits for
// input of one stream alone.
//
// A view of its Sock, without a state.  Any thread may call it, and holds no
// latch of the stream, unless a method says otherwise.
class Looks {
 public:
  explicit Looks(Sock* sock) : sock_(sock) {}

  // In the result of Readiness, if `events` asks for it: the ring itself has
  // something to read, and nothing in the stash comes before that.  A look at
  // the ring alone finds it.
  static constexpr std::uint32_t kInRing = 1u << 16;
  // Returns those of `events`, and of POLLERR and POLLHUP, that hold now.
  // `number` must be this stream's, or -1 if the caller keeps the stream by a
  // reference.  If the engine does not have the stream, or `number` is another
  // stream's, sets *plain and returns 0.  `drained`: the caller has just
  // drained source().  May take an end, and watch for room.
  std::uint32_t Readiness(int number, std::uint32_t events, bool* plain,
                          bool drained = false) {
    const std::uint32_t ready =
        EngineReadiness(sock_, number, events, plain, drained);
    if (sock_->Completions() && !*plain) [[unlikely]]
      return ready | POLLERR;
    return ready;
  }
  // Returns what Readiness would, for a stream on a lane.  Returns kNotLooked
  // if only Readiness can tell.  Requires a Critical.
  static constexpr int kNotLooked = -1;
  int QuickLook(int number, int events, bool drained);
  // Returns whether the ring of a working lane has all that the stream can
  // report: nothing comes before it, and this end has not shut down.  False
  // means that the caller asks Readiness.  Requires a Critical.
  bool RingTellsAll();
  // Returns whether data lies in the ring of a working lane, so that Readiness
  // would return POLLIN and nothing else.  False means that the caller asks
  // Readiness.  Requires a Critical.
  bool HasInput();
  // Returns whether the stream is on a lane that takes more.  If `number` is
  // not -1, it must be this stream's.  If `lane` is not null, it must be this
  // stream's lane.  Requires a Critical.
  bool HasRoom(int number, const lane::Lane* lane) {
    return HasRoom(sock_, number, lane);
  }
  // Returns whether the lane's next message is no data, so that it may be the
  // peer's end.
  bool EndNext();
  // As EndNext, for a caller that holds the rx_latch.
  bool EndNextLatched() const;
  // If EndNext, takes the peer's end, and makes the edge that follows from it.
  void TakeEnd();
  // As TakeEnd.  If TCP has closed the anchor, takes that end, too, and returns
  // true.
  bool TakeTcpEnd();
  // Returns whether the end, or urgent data, follows what TCP has.  Requires
  // the rx_latch.
  bool TcpEndsNext() const;
  // Returns what FIONREAD says of a stream that the engine has, or in kUnread.
  // Requires both latches.
  std::size_t ReadableLatched();
  // Returns whether an error comes behind the bytes of ReadAhead, or a
  // completion of MSG_ZEROCOPY waits in the error queue.
  bool HasError() {
    return sock_->Completions() || sock_->read_ahead().Failed();
  }
  // Returns whether the stream is on a lane, and this end has not shut down.
  // Then a thread that waits for input may take the peer's end for input, and
  // finds the end when it reads.  Otherwise the peer's end ends the connection,
  // and EPOLLHUP comes with it.  The caller may hold any latch.
  bool TellsInputAlone() const {
    return sock_->input_alone_.load(std::memory_order_acquire);
  }
  // Sleeps where a read of the stream would sleep, so that the peer wakes this
  // thread directly.  Requires a caller that waits for input here alone.
  // Returns true after input may have come, or after the deadline; 0: no
  // deadline.  Also returns true after a handler has run since the caller read
  // tls_signals.any as `signals`.  Returns false, without a sleep, if the
  // stream is not on a lane in full.
  bool SleepForInput(int number, std::uint64_t deadline_ns,
                     std::uint32_t signals);
  // Tells this thread's SpinAccount what the stream has sent.
  void CountForPoll();

 private:
  // Static, so that a caller passes the stream and not the address of a view.
  static bool HasRoom(Sock* sock, int number, const lane::Lane* lane);
  static std::uint32_t EngineReadiness(Sock* sock, int number,
                                       std::uint32_t events, bool* plain,
                                       bool drained);
  // The parts of EngineReadiness.  RingReadinessLatched tells what the ring
  // alone tells.  It sets *fast if the lane works, and the next message is no
  // end, and *end if that may be an end.
  static std::uint32_t RingReadinessLatched(Sock* sock, std::uint32_t events,
                                            bool drained, bool* fast, bool* end)
      RC_REQUIRES(sock->rx_latch);
  static std::uint32_t WholeReadinessLatched(Sock* sock, std::uint32_t events)
      RC_REQUIRES(sock->tx_latch, sock->rx_latch);

  Sock* const sock_;
};

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_SOCKET_SOCK_LOOKS_H_
