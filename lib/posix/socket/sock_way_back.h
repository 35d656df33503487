#ifndef RCSOCK_LIB_POSIX_SOCKET_SOCK_WAY_BACK_H_
#define RCSOCK_LIB_POSIX_SOCKET_SOCK_WAY_BACK_H_

#include <cstdint>

#include "lib/base/latch_pair.h"
#include "lib/base/paired.h"
#include "lib/base/reason.h"

namespace rcsock::posix {

class Sock;

// How this process takes a stream off its lane, and binds the stream to TCP.
//
// A part of its Sock.  Any thread may call it, and holds no latch of the
// stream, unless a method says otherwise.  The waits are bounded: a peer that
// does not answer keeps the stream on its lane.
class WayBack {
 public:
  // `latches`: the stream's.
  WayBack(Sock* sock, const base::LatchPair& latches)
      : sock_(sock), latches_(latches) {}

  // Takes the stream off its lane, and pins it, so that no lane comes again:
  // before fdopen, for instance.  Waits until the kernel has the stream, but
  // for bytes that were read ahead (ReadAhead).  Returns false if the peer
  // did not answer in time.  Tells other holders that no lane may come.
  //
  // If the caller pins several streams, LeaveDeadline gives one deadline for
  // all; behind it Pin looks once at each stream.  Deadline 0: a time of this
  // stream's own.
  bool Pin(base::Reason reason, std::uint64_t deadline_ns = 0);
  // As Pin, but tells no other holder.  What comes next is still counted: a
  // process that holds the connection alone may later have a lane again.
  bool PinHere(base::Reason reason, std::uint64_t deadline_ns);
  // As Pin, for an option that accepted sockets inherit.
  void PinByOption();
  // As Pin, but takes one step, and does not wait for the peer.
  void PinSoon(base::Reason reason);
  // As Pin, but pins nothing, and tells no other holder.  `pause_ns`: the
  // longest between two looks.
  bool ToPlain(base::Reason reason, std::uint64_t deadline_ns = 0,
               std::uint32_t pause_ns = 10'000'000);
  // Takes one step of ToPlain, without a wait.  Returns whether the kernel has
  // the stream.
  bool Step(base::Reason reason);
  // Has the conductor take one step of ToPlain.  The caller is a child that
  // borrows this process's memory, but not its descriptors.
  void AskFromBorrowed();

  // The stream is shut down here, or ended by the peer, and is pinned. Requires
  // both latches of the stream.
  void HalfClosed();
  bool IsHalfClosed() const;
  // As IsHalfClosed.  Requires either latch.
  bool half_closed() const { return half_closed_; }

  // Returns why a stream leaves that still awaits its lane.  Requires both
  // latches of the stream.
  base::Reason why() const;

  // Forgets all, for another connection.
  void Reset() {
    latches_.AssertUnshared();
    half_closed_.Write(latches_.tx, latches_.rx) = false;
    since_ns_ = 0;
    why_ = base::Reason::kNone;
  }

 private:
  bool AwaitsLane(base::Reason reason);
  bool Stuck() const;

  Sock* const sock_;
  const base::LatchPair latches_;
  base::Paired<bool> half_closed_;
  // Since when AwaitsLane has the stream leave, and why.
  std::uint64_t since_ns_ RC_GUARDED_BY_BOTH(latches_.tx, latches_.rx) = 0;
  base::Reason why_ RC_GUARDED_BY_BOTH(latches_.tx,
                                       latches_.rx) = base::Reason::kNone;
};

// Returns the time until which peers may answer a Pin that begins now.
std::uint64_t LeaveDeadline();

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_SOCKET_SOCK_WAY_BACK_H_
