#ifndef RCSOCK_LIB_POSIX_SOCKET_SOCK_STARVATION_H_
#define RCSOCK_LIB_POSIX_SOCKET_SOCK_STARVATION_H_

#include <cstdint>
#include <utility>

#include "lib/base/latch.h"
#include "lib/lane/lane.h"

namespace rcsock::posix {

class Sock;

// Finds out whether the receiver of a stream on a lane has stopped reading.
// Such a receiver would hold its sender although the kernel's larger buffers
// still had room.  A program that talks to itself does so, for instance.  Then
// the stream goes back to TCP.
//
// A part of its Sock.  Requires the stream's tx_latch, but for Reset and
// OnForkChild.
class Starvation {
 public:
  // `tx`: the stream's tx_latch.
  Starvation(Sock* sock, const base::Latch& tx) : sock_(sock), tx_(tx) {}

  // There is no room on the stream's lane.  Sets a look, unless one is set.
  void Watch();

  // Notes whether the stream leaves its lane because of this.
  void SetLeft(bool left) {
    tx_.AssertHeld();
    left_ = left;
  }
  // Returns what SetLeft has noted, and forgets it.
  bool TakeLeft() {
    tx_.AssertHeld();
    return std::exchange(left_, false);
  }
  // The kernel has such a stream from the offset `at` of its sender on.  Judges
  // a little later whether that was of use.
  void JudgeFrom(std::uint64_t at) { JudgeSoon({at, at}); }

  // Forgets all, for another connection.
  void Reset() {
    tx_.AssertUnshared();
    set_ = left_ = false;
    late_ = 0;
    acked_ = posted_ = since_ns_ = 0;
  }
  // In the child of a fork: the look is the parent's.
  void OnForkChild();

 private:
  // kNothing: nothing is to be done.  kWake: threads that wait for room are to
  // look.  kWatch: Watch, again.  kLeave: the stream is to leave its lane.
  enum class Verdict : std::uint8_t { kNothing, kWake, kWatch, kLeave };
  // What the sender has moved since a stream has left its lane.
  struct Left {
    std::uint64_t at;       // offset when the stream left
    std::uint64_t seen_at;  // offset at the last look
    int looks = 0;
  };

  // Carries out the look.  Takes the latches, as Judge does.
  void OnLook();
  // `lane`: the lane that the stream sends on, or null.
  Verdict Look(lane::Lane* lane);
  Verdict LookLate(lane::Lane* lane);
  void JudgeSoon(Left left);
  void Judge(Left left);

  Sock* const sock_;
  const base::Latch& tx_;
  bool set_ RC_GUARDED_BY(tx_) = false;
  bool left_ RC_GUARDED_BY(tx_) = false;
  int late_ RC_GUARDED_BY(tx_) = 0;  // looks in a row without progress
  std::uint64_t acked_ RC_GUARDED_BY(tx_) = 0;   // at the last look
  std::uint64_t posted_ RC_GUARDED_BY(tx_) = 0;  // when there was last no room
  std::uint64_t since_ns_ RC_GUARDED_BY(tx_) = 0;
};

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_SOCKET_SOCK_STARVATION_H_
