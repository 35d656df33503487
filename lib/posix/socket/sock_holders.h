#ifndef RCSOCK_LIB_POSIX_SOCKET_SOCK_HOLDERS_H_
#define RCSOCK_LIB_POSIX_SOCKET_SOCK_HOLDERS_H_

#include <atomic>
#include <cstdint>

#include "lib/base/latch_pair.h"
#include "lib/posix/sharing/holders.h"

namespace rcsock::posix {

class Sock;

// The processes that hold the connection: which Holding counts them, and what
// this process has told there.  Also whether a program that is not followed has
// the connection.
//
// A part of its Sock.  Any thread may call it, and holds no latch of the
// stream, unless a method says otherwise.
class Holders {
 public:
  // `latches`: the stream's.
  Holders(Sock* sock, const base::LatchPair& latches)
      : sock_(sock), latches_(latches) {}

  // Returns the number of the Holding; -1: no other process has ever held the
  // connection.  The caller may hold any latch.
  int number() const { return number_.load(); }
  // Returns whether no other process has ever held the connection, as far as
  // this thread knows.
  bool Unshared() const {
    return number_.load(std::memory_order_relaxed) < 0 &&
           given_away_.load(std::memory_order_relaxed) == 0;
  }
  // Returns the Holding, or null.
  Holding* Find() const { return FindHolding(number()); }
  // Makes a Holding, in which other processes may be counted, if there is none.
  // Returns false if there is no memory.
  bool Make();

  // Counts one more process that holds the connection.  While there are
  // several, none promotes the stream.  Without memory it pins the stream.
  // `hides`: an unused copy need not be counted (PrepareToHide).  Requires the
  // latches of a fork.
  void ShareByFork(std::uint32_t fork, bool hides);
  // Takes ShareByFork back, after a fork that has failed.
  void UnshareByFork(std::uint32_t fork);
  // Notes that a program without rcsock may hold the connection from now on.
  // seq_cst: the thread that gives the connection away looks at the mode after
  // this.  TakeFromKernelLatched sets the mode, and then looks at this count.
  // One of the two threads sees the other.
  void GiveAway() { given_away_.fetch_add(1, std::memory_order_seq_cst); }
  // Takes GiveAway back: there is no such program.  `life`: what Life returned
  // before GiveAway.
  void TakeBack(std::uint32_t life);
  bool given_away() const {
    return given_away_.load(std::memory_order_seq_cst) != 0;
  }

  // --- The caller may hold any latch of the stream
  // Returns whether no other process holds the connection, or will.  The child
  // of a fork under way might.
  bool Sole() const;
  // As Sole, before the child of a fork under way comes.
  bool SoleBeforeFork() const;
  // Returns whether this process's end of the stream is the connection's end.
  bool EndHere() const;
  // Returns whether no other process of this fork's family holds the
  // connection.
  bool EndOfFamily() const;
  // Tells the other holders that no lane may come.
  void Spoil() const;
  // Tells `all` of a GiveAway, of which only this process knows.
  void TellGivenAway(Holding* all) const;

  // --- Require both latches of the stream
  // Tells the other holders what this process has moved.
  void TellMoved();
  // As TellMoved, and hears what they have moved.
  void HearMoved();
  // Leaves the other holders.
  void Leave();
  // The Holding is another process's from now on, or is already left.
  void Forget() { number_.store(-1); }

  // Tells the offsets to other holders.  Requires that the kernel has the
  // stream.
  void Mark();
  // Leaves the other holders.  The process ends, and can do nothing else for
  // the stream.
  void LetGo();

  // The stream, which no other thread knows, begins with the Holding `number`
  // at these offsets.  Other holders may add to what is told there at any time.
  // So the caller has read the offsets once, and the stream begins at these.
  void Join(int number, std::uint64_t tx, std::uint64_t rx);
  // Returns the stream of the Holding `number`, in the program that was
  // executed.  `fd` is a descriptor of the connection.  Returns null if there
  // is no such connection, or no memory.
  static Sock* Inherited(int number, int fd);
  // As Join, for the Holding that the stream has.  Requires both latches.
  void TakeOver(std::uint64_t tx, std::uint64_t rx);
  // Forgets all, for another connection.
  void Reset() {
    latches_.AssertUnshared();
    number_.store(-1, std::memory_order_relaxed);
    fork_.store(0, std::memory_order_relaxed);
    given_away_.store(0, std::memory_order_relaxed);
    told_tx_ = told_rx_ = 0;
  }
  // In the child of a fork.  The parent tells what it has moved.
  void OnForkChild();

 private:
  Sock* const sock_;
  const base::LatchPair latches_;
  std::atomic<int> number_{-1};
  std::atomic<std::uint32_t> fork_{0};        // the last fork counted there
  std::atomic<std::uint32_t> given_away_{0};  // how often
  // How much of what this process has moved is told there.
  std::uint64_t told_tx_ RC_GUARDED_BY_BOTH(latches_.tx, latches_.rx) = 0;
  std::uint64_t told_rx_ RC_GUARDED_BY_BOTH(latches_.tx, latches_.rx) = 0;
};

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_SOCKET_SOCK_HOLDERS_H_
