#ifndef RCSOCK_LIB_POSIX_SOCKET_SOCK_STARVATION_H_
#define RCSOCK_LIB_POSIX_SOCKET_SOCK_STARVATION_H_

#include <cstdint>
#include <utility>

#include "lib/lane/lane.h"

namespace rcsock::posix {

// Finds out whether the receiver of a stream on a lane has stopped reading.
// Such a receiver would hold its sender although the kernel's larger buffers
// still had room.  A program that talks to itself does so, for instance.  Then
// the stream goes back to TCP.
//
// A part of its Sock.  Requires the stream's tx_latch, but for Reset and
// OnForkChild.
class Starvation {
 public:
  // The time between two looks.
  static constexpr std::uint32_t kLookMs = 100;

  // There is no room on `lane`.  Returns whether a look is to be set.
  bool NoRoom(const lane::Lane& lane);
  // A look is set, in kLookMs.
  void Begin(lane::Lane& lane);
  // kNothing: nothing is to be done.  kWake: threads that wait for room are to
  // look.  kWatch: NoRoom, again.  kLeave: the stream is to leave its lane.
  enum class Verdict : std::uint8_t { kNothing, kWake, kWatch, kLeave };
  // Looks.  `lane`: the lane that the stream sends on, or null.  `service`: as
  // Prospect numbers services.
  Verdict Look(lane::Lane* lane, std::uint16_t service);

  // Notes whether the stream leaves its lane because of this.
  void SetLeft(bool left) { left_ = left; }
  // Returns what SetLeft has noted, and forgets it.
  bool TakeLeft() { return std::exchange(left_, false); }

  // Forgets all, for another connection.
  void Reset() { *this = Starvation(); }
  // In the child of a fork: the look is the parent's.
  void OnForkChild() { set_ = false; }

 private:
  Verdict LookLate(lane::Lane* lane, std::uint16_t service);

  bool set_ = false;
  bool left_ = false;
  int late_ = 0;              // looks in a row that found no progress
  std::uint64_t acked_ = 0;   // at the last look
  std::uint64_t posted_ = 0;  // when there was last no room
  std::uint64_t since_ns_ = 0;
};

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_SOCKET_SOCK_STARVATION_H_
