#ifndef RCSOCK_LIB_POSIX_SOCKET_RECV_IN_PLACE_H_
#define RCSOCK_LIB_POSIX_SOCKET_RECV_IN_PLACE_H_

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>

#include "lib/lane/rdma/target.h"

namespace rcsock::posix {

class Sock;

// One receiving call into whose memory the peer's device may write while the
// call waits.  It lives in the frame of the call, so that cancellation ends it,
// too.  If a handler interrupts the wait, it may jump out of the call.  So the
// wrapper of handlers ends the loan first (TakeBackMemory).
//
// Only the thread of the call uses it.
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
  // `first` and what follows it.  `all`: the call returns when all of them are
  // there.  The caller holds the rx latch.
  void Begin(const iovec* first, std::size_t left, bool all) {
    if (left >= kLeast) [[unlikely]]
      Open(first, left, all);
  }
  // The peer's send that has brought what was read goes on in this memory.  The
  // caller holds the rx latch.
  bool GoesOn() { return lane_ != 0 && StillGoesOn(); }
  // Ends the loan: nothing writes to the memory any more.  The caller holds no
  // latch.
  void End();

 private:
  [[gnu::cold, gnu::noinline]] void Open(const iovec* first, std::size_t left,
                                         bool all);
  [[gnu::cold, gnu::noinline]] bool StillGoesOn();
  void EndLatched();

  Sock* const sock_;
  std::uint32_t lane_ = 0;  // its serial number; 0: no lane has the memory
  unsigned forks_ = 0;
  lane::rdma::Window window_;
};

// Ends what the innermost call of this thread has lent.
void TakeBackMemory();

// While this lives, this thread's calls may receive in registered memory,
// whatever has called them (rcs_recv_registered).
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

#endif  // RCSOCK_LIB_POSIX_SOCKET_RECV_IN_PLACE_H_
