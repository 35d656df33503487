#ifndef RCSOCK_LIB_POSIX_SOCKET_SOCK_SETTLE_H_
#define RCSOCK_LIB_POSIX_SOCKET_SOCK_SETTLE_H_

#include <cstdint>
#include <memory>

#include "lib/base/latch_pair.h"
#include "lib/base/paired.h"
#include "lib/lane/lane.h"

namespace rcsock::rendezvous {
class Conductor;
}

namespace rcsock::posix {

class Sock;

// What the conductor does with a stream that has left its lane, or has ended.
// It gives the lane back, and then gives the anchor to the kernel, or ends the
// stream.  Threads may still sleep on such a lane.  Then the lane is parked
// until they have woken.
//
// A part of its Sock.  Any thread may call it, and holds no latch of the
// stream, unless a method says otherwise.
class Settling {
 public:
  // `latches`: the stream's.
  Settling(Sock* sock, const base::LatchPair& latches)
      : sock_(sock), latches_(latches) {}

  // Has the conductor settle the stream, unless that is arranged.  Requires
  // both latches.
  void Post();
  // Settles the stream.  Post has the conductor's thread call this.
  void Settle();
  // The stream needs its lane no more.  Requires both latches.
  void LaneIsFree();
  // Returns the parked lane, or null.  Requires either latch.
  lane::Lane* parked() const { return parked_.get(); }
  // Takes the parked lane, for the end of the object.  Requires both latches.
  std::unique_ptr<lane::Lane> TakeParked();

  // Forgets all but the parked lane, for another connection.
  void Reset() {
    latches_.AssertUnshared();
    wait_ms_ = 1;
    posted_ = free_ = false;
  }
  // In the child of a fork: the lanes are the parent's, and nothing of them is
  // touched here.
  void OnForkChild();

 private:
  // The parts of Settle.  GiveLaneBack returns false if threads sleep on two
  // lanes; then Settle is called again.  TakeLane returns null if the lane is
  // parked, since threads sleep on it.  TakeLane requires both latches.
  bool GiveLaneBack(rendezvous::Conductor* conductor);
  std::unique_ptr<lane::Lane> TakeLane(bool slept_on);
  // Gives the parked lane back.  Returns false if threads still sleep on that
  // lane, and wakes them.
  bool Unpark();
  void UnparkLater(std::uint32_t ms);

  Sock* const sock_;
  const base::LatchPair latches_;
  base::Paired<std::unique_ptr<lane::Lane>> parked_;
  std::uint32_t wait_ms_ RC_GUARDED_BY_BOTH(latches_.tx, latches_.rx) = 1;
  bool posted_ RC_GUARDED_BY_BOTH(latches_.tx, latches_.rx) = false;
  bool free_ RC_GUARDED_BY_BOTH(latches_.tx, latches_.rx) = false;
};

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_SOCKET_SOCK_SETTLE_H_
