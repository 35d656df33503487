#ifndef RCSOCK_LIB_POSIX_SOCKET_SOCK_CLAIM_H_
#define RCSOCK_LIB_POSIX_SOCKET_SOCK_CLAIM_H_

#include <atomic>
#include <cstdint>

#include "lib/posix/fd/file.h"

namespace rcsock::posix {

class Sock;
struct Holding;

// What a process whose engine has a stream owes to the other holders of the
// connection (I-CLAIM-1).  It keeps the Holding's claim word while its engine
// has the stream, and gives the word back behind the mode.  It may leave
// children of fork copies of the stream that are not counted as holders.
//
// A part of its Sock.  Any thread may call it, and holds no latch of the
// stream, unless a method says otherwise.
class ClaimKeeper {
 public:
  explicit ClaimKeeper(Sock* sock) : sock_(sock) {}

  // Returns whether the stream may stay on its lane through a fork.  `forking`:
  // the caller has the latches of a fork.
  bool MayHide(bool forking);
  // Returns whether the child of the fork under way gets an unused copy.
  // `hides`: such a copy is possible (PrepareToHide).  Requires the latches of
  // a fork.
  bool HideFromChild(Holding* all, bool hides);
  // Takes HideFromChild back, or the count of a holder in its place: the fork
  // has failed.
  void Unhide(Holding* all) const;
  // Returns whether this process has made such copies.
  bool made_copies() const { return made_copies_.load(); }
  // Returns whether the engine has the stream, and other processes have the
  // connection.  The caller may hold any latch.
  bool SharesLane() const;

  // The engine is about to take the stream; the kernel has it.  Requires both
  // latches of the stream, as Give does.
  void Keep();
  // The kernel has the stream.  Does nothing if the engine has it, or if this
  // process has not kept the word.
  void Give();
  // Tells the copies that the stream does not come back: they are dead.  The
  // caller may hold any latch.
  void Lose();
  // Takes one step of ToPlain if a child waits for the stream.
  void LeaveIfAsked();
  // Takes the stream to TCP, before its end here, if children have copies.
  // Returns false if the engine still has the stream at the deadline.
  bool LeaveToCopies(std::uint64_t deadline_ns = 0);

  // Forgets all, for another connection.
  void Reset() {
    hides_ = false;
    made_copies_.store(false, std::memory_order_relaxed);
    kept_.store(false, std::memory_order_relaxed);
  }
  // In the child of a fork: the word and the copies are the parent's.  Returns
  // whether this child has an unused copy.
  bool OnForkChild();

 private:
  Sock* const sock_;
  bool hides_ = false;  // the child of the fork under way gets an unused copy
  // A process number cannot tell which process made copies: two processes of
  // two PID namespaces may have the same one.
  std::atomic<bool> made_copies_{false};
  // This process has kept the word, and has not given or lost it.
  std::atomic<bool> kept_{false};
};

// The copy of a stream on a lane that a child of fork has, and has not used yet
// (hidden.h).
//
// A part of its Sock.  Any thread may call it; the caller of Reveal or Return
// holds no latch of the stream.  Its state changes with hidden_latch held, or
// where no other thread knows the stream.
class UnusedCopy {
 public:
  explicit UnusedCopy(Sock* sock) : sock_(sock) {}

  // kAsks: the process is counted as a holder, and the owner's engine may have
  // the stream.  kLeaves: exec or the end of the process is about to close the
  // connection here, and the copy is not counted.
  enum class State : std::uint8_t { kNo, kYes, kAsks, kLeaves };
  State state() const { return state_.load(); }

  // In the child of a fork.  `hides`: as ClaimKeeper::OnForkChild.  Returns
  // whether the stream is such a copy.
  bool OnForkChild(bool hides);
  // Counts this process as a holder, and asks the owner for the stream.
  void AskOwner();
  // AskOwner, and waits for the owner, a bounded time.  Afterwards the stream
  // is on TCP, or the connection's numbers name a dead socket.  Does nothing if
  // the stream is no unused copy, or is being closed.
  void Reveal();
  // The copy is used, or has ended.
  void Show();
  // Before exec or the end of the process: takes back the count of the copy.
  void Leave();
  // Counts the copy again, since it is used after all.  If the owner has ended
  // the connection meanwhile, the numbers name a dead socket.
  void Return();
  // Takes this process from the holders, whichever way it is counted.
  void LeaveHolding(Holding* all);

  // Forgets all, for another connection.
  void Reset() {
    state_.store(State::kNo, std::memory_order_relaxed);
    ask_fd_ = -1;
  }

 private:
  void Become();

  Sock* const sock_;
  std::atomic<State> state_{State::kNo};
  int ask_fd_ = -1;  // what wakes the owner
};

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_SOCKET_SOCK_CLAIM_H_
