#ifndef RCSOCK_LIB_POSIX_SOCKET_SOCK_HOLD_H_
#define RCSOCK_LIB_POSIX_SOCKET_SOCK_HOLD_H_

#include <sys/types.h>
#include <sys/uio.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "lib/posix/socket/call_wait.h"
#include "lib/posix/socket/io_result.h"

namespace rcsock::posix {

class Sock;

// Lets a send of a stream on TCP wait a little for the lane that is about to
// come.  Also makes way for that lane between the parts of a long send.  A hold
// is one such time.  Each search has one hold at most.
//
// A part of its Sock.  Any thread may call it, and holds no latch of the
// stream, unless a method says otherwise.
class SendGate {
 public:
  explicit SendGate(Sock* sock) : sock_(sock) {}

  // Returns whether a lane in shared memory is about to come, so that a send
  // may wait for it.  The caller may hold any latch.
  bool AwaitsLane() const;
  // Sends what a send may send while it waits.  Returns kRetry if the call goes
  // on as it would without a hold.  *done says how much is already sent.
  [[gnu::noinline]] IoResult Send(int number, const iovec* iov, int count,
                                  std::size_t total, int flags,
                                  std::size_t* done);
  // Waits a moment for that lane, in a poll that asks for room on this stream
  // alone, which TCP may not have yet.  Returns false if a handler has run.
  // May end the hold.
  bool WaitInPoll(std::int64_t timeout_ns);
  // Returns whether a large send does only a part of its work while the lane is
  // awaited.  This holds for a stream that does not block, and that no
  // registration watches for edges.  May begin or end the hold.
  bool SendsParts();

  // The parts of a blocking send on TCP (SendParts).
  static constexpr std::size_t kPart = 256 << 10;
  // Goes on with a blocking send of which `done` bytes have gone, by parts, so
  // that the stream can be adopted between two of them.  `life` and `signals`
  // are what Life and tls_signals.any were when the call began.  `goes_on`
  // waits for room, and says whether the call goes on.  Returns all bytes of
  // the send.
  using GoesOn = bool(int number, short events, std::uint32_t signals,
                      std::uint64_t* left_ns);
  ssize_t SendParts(int number, const iovec* iov, int count, std::size_t total,
                    std::size_t done, int flags, std::uint32_t life,
                    std::uint32_t signals, GoesOn* goes_on);

  // Begins a hold after much has been sent during the search, by a call that
  // has moved kBulkCall bytes or more.  What the service will move is not
  // known, but what this stream has moved is.
  [[gnu::noinline]] void Bulky();
  static constexpr ssize_t kBulkCall = 4096;
  // Ends a hold that Bulky has begun, if its time is over, and no thread has
  // noticed.
  void EndIfOver();
  // The lane has come, of a search that began at `sought_ns`: reports a hold
  // that has ended too early.  The caller may hold both latches.
  void LaneCame(std::uint64_t sought_ns);

  // Wakes threads that wait for the lane: what AwaitsLane returns has changed.
  // The caller may hold any latch.
  void Wake();

  // Forgets the hold, for another connection.
  void Reset() {
    end_ns_.store(0, std::memory_order_relaxed);
    held_ns_.store(0, std::memory_order_relaxed);
    place_.store(0, std::memory_order_relaxed);
  }

 private:
  struct Call;
  static constexpr std::uint64_t kNone = 1;

  bool MayHold(int flags) const;
  // Returns whether the peer has agreed, and only a gap between the calls of
  // this end's threads is awaited.
  bool AwaitsGap(int flags) const;
  IoResult SendAside(int number, const iovec* iov, int count, std::size_t total,
                     int flags, std::size_t* done);
  bool Nudge(Call& call);
  void HoldUntil(Call& call, std::uint64_t start, std::uint64_t end);
  // Returns when the hold ends, and begins it if there was none yet.  Returns
  // kNone if there is none, or none any more.
  std::uint64_t Begin(std::uint64_t now);
  // Ends the hold, and reports what came of it.
  void End();
  // The part of End that needs no latch.  Returns false if there was no hold.
  bool Take();
  void CountHeld(std::uint64_t since_ns);
  // Returns how many bytes of the application TCP has got.
  std::uint64_t GivenToTcp() const;
  // Waits until AwaitsLane changes.  Returns as Sock::SleepOn.
  int AwaitLane(CallWait& wait, std::uint64_t until_ns);
  // Sends at most `most` bytes from `skip` on, as much as TCP has room for.
  // `bytes` of an error is -errno.
  IoResult SendNow(int number, const iovec* iov, int count, std::size_t skip,
                   std::size_t most);

  Sock* const sock_;
  std::atomic<std::uint64_t> end_ns_{0};   // 0: none has begun; kNone: no more
  std::atomic<std::uint32_t> held_ns_{0};  // so far
  // The service that a hold of Bulky is reported for; 0: it was not Bulky's.
  std::atomic<std::uint16_t> place_{0};
};

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_SOCKET_SOCK_HOLD_H_
