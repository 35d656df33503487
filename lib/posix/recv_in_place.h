#ifndef RCSOCK_LIB_POSIX_RECV_IN_PLACE_H_
#define RCSOCK_LIB_POSIX_RECV_IN_PLACE_H_

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>

#include "lib/lane/rdma/target.h"

namespace rcsock::posix {

class Sock;

// One receiving call whose memory the peer's device may write to while the call
// waits.  It lives in the frame of the call, so that cancellation ends it too.
// A handler that interrupts the wait may jump out of the call: the wrapper of
// handlers ends it first (TakeBackMemory).
//
// Threads: the one that makes the call.
class RecvInPlace {
 public:
  static constexpr std::size_t kLeast = lane::rdma::kLeastTarget;

  explicit RecvInPlace(Sock* sock) : sock_(sock) {}
  ~RecvInPlace() {
    if (lane_ != 0) [[unlikely]]
      End();
  }
  RecvInPlace(const RecvInPlace&) = delete;
  RecvInPlace& operator=(const RecvInPlace&) = delete;

  // The call is about to wait for the next of `left` bytes, which belong to
  // `first` and what follows it.  `all`: it returns when all are there.  The rx
  // latch is held.
  void Begin(const iovec* first, std::size_t left, bool all) {
    if (left >= kLeast) [[unlikely]]
      Open(first, left, all);
  }
  // The peer's send that has brought what has been read goes on in this memory.
  // The rx latch is held.
  bool GoesOn() { return lane_ != 0 && StillGoesOn(); }
  // Behind it nothing writes to the memory any more.  No latch is held.
  void End();

 private:
  [[gnu::cold, gnu::noinline]] void Open(const iovec* first, std::size_t left,
                                         bool all);
  [[gnu::cold, gnu::noinline]] bool StillGoesOn();
  void EndLatched();

  Sock* const sock_;
  std::uint32_t lane_ = 0;  // its serial number; 0: none has the memory
  unsigned forks_ = 0;
  lane::rdma::Window window_;
};

// What the innermost call of this thread has lent is its own again.
void TakeBackMemory();

// Whether this thread's calls are within RecvRegistered.  Returns whether they
// were.  A handler begins outside, since it may jump away.
bool SetRegistered(bool registered);

// While it lives, this thread's calls may receive in registered memory whoever
// has called them (rcs_recv_registered).
class RecvRegistered {
 public:
  RecvRegistered();
  ~RecvRegistered();
  RecvRegistered(const RecvRegistered&) = delete;
  RecvRegistered& operator=(const RecvRegistered&) = delete;

 private:
  const bool outer_;
};

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_RECV_IN_PLACE_H_
