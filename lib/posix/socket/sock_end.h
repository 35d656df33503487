#ifndef RCSOCK_LIB_POSIX_SOCKET_SOCK_END_H_
#define RCSOCK_LIB_POSIX_SOCKET_SOCK_END_H_

#include <atomic>
#include <cstdint>

#include "lib/base/latch_pair.h"
#include "lib/posix/socket/sock_closed.h"

namespace rcsock::rendezvous {
class Conductor;
}

namespace rcsock::posix {

class Sock;
struct Successor;

// How a stream ends: its numbers are closed, what it owes is delivered, and the
// connection goes.
//
// A part of its Sock.  Any thread may call it, and holds no latch of the
// stream, unless a method says otherwise.
class Ending {
 public:
  // `latches`: the stream's.
  Ending(Sock* sock, const base::LatchPair& latches)
      : sock_(sock), latches_(latches) {}

  // Returns whether the application has closed the last descriptor.  The caller
  // may hold any latch.
  bool closed() const { return closed_.load(std::memory_order_seq_cst); }

  // Ends the stream, whose last descriptor is `number`.  On return the number
  // is closed, or names what `next` says.  Returns what close or dup2 returns,
  // with errno.  Takes the descriptors' reference.  Requires that `fds` has
  // become 0.  It waits for the peer only where SO_LINGER asks for that.
  int CloseLast(int number, const Successor& next);
  // CloseLast but for the kernel's close and the descriptors' reference, for a
  // stream that has been on TCP, looks for no lane, and is this process's
  // alone, as most that are short.  Returns false if the stream ends in another
  // way: then CloseLast ends it.  Requires a critical section.
  bool EndOnTcp();
  // As EndOnTcp, if `fds` is still 1, and no thread has claimed `number`.  Then
  // it takes the reference, too, and clears the entry.  Requires base::Lone().
  // If it returns false, it has done nothing.
  bool EndLone(int number);
  // Takes the number from a stream that has other numbers.  If fd() was that
  // number, the stream goes on by another one.  May pin a stream that has
  // registrations by that number.  Requires that `fds` no longer counts the
  // number.
  void LoseNumber(int number);
  // Ends the stream after its last descriptor was closed past rcsock.  Takes
  // the descriptors' reference.
  void Vanished();

  // --- Require both latches of the stream
  // The connection is over, or is to end by a reset.
  void SetFinished() {
    latches_.AssertHeld();
    finished_ = true;
  }
  void SetReset() {
    latches_.AssertHeld();
    reset_ = true;
  }
  bool finished() const {
    latches_.AssertHeld();
    return finished_;
  }
  bool resets() const {
    latches_.AssertHeld();
    return reset_;
  }

  // Runs on the conductor's thread, once the connection is over.  Closes what
  // is left of the connection, and takes the reference that CloseLast has left.
  // `reset`: the connection ends by a reset.
  void Finish(bool reset);
  // Returns whether the closed stream has this local port, and is ending.
  bool EndsOn(std::uint16_t port);

  // Forgets all, for another connection.
  void Reset() {
    latches_.AssertUnshared();
    closed_.store(false, std::memory_order_relaxed);
    finished_ = finish_done_ = reset_ = false;
    timer_ = 0;
  }
  // In the child of a fork: the timer is the parent's.
  void OnForkChild();

 private:
  friend class ClosedStreams;
  struct Closing;

  // The parts of CloseLast.  EndCalls takes away what may still use the number,
  // and returns whether the engine has the stream.  The others require both
  // latches of the stream.  EndsNothing returns whether another process holds
  // the connection, and this end owes nothing: then this close ends nothing.
  bool EndCalls(int number, bool sought, rendezvous::Conductor* conductor);
  // Ends a stream for which EndOnTcp has returned false, as any other.
  int CloseInFull(int number, const Successor& next);
  void SetClosed();
  // Requires that the stream is marked as closed.
  bool OnTcpAlone() const;
  bool EndsNothing() const;
  void CloseShared(Closing& closing);
  void CloseKept(Closing& closing);
  void BoundClose(rendezvous::Conductor* conductor);
  int LeaveKept();
  // The rest of the application's close: waits until the connection is over, or
  // for `seconds`, and closes the number.
  void Linger(int number, int seconds);
  void OnLinger();
  // The part of Finish before the reference goes.  Returns whether it is the
  // first Finish.
  bool FinishOnce(bool reset);
  // Closes a number of the connection, in a thread that others wait for.
  void CloseWithoutWaiting(int number) const;

  Sock* const sock_;
  const base::LatchPair latches_;
  std::atomic<bool> closed_{false};
  bool finished_ RC_GUARDED_BY_BOTH(latches_.tx, latches_.rx) = false;
  bool finish_done_ RC_GUARDED_BY_BOTH(latches_.tx, latches_.rx) = false;
  bool reset_ RC_GUARDED_BY_BOTH(latches_.tx, latches_.rx) = false;
  std::uint64_t timer_ RC_GUARDED_BY_BOTH(latches_.tx, latches_.rx) = 0;
  ClosedStreams::Place place_;
};

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_SOCKET_SOCK_END_H_
