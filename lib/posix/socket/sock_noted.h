#ifndef RCSOCK_LIB_POSIX_SOCKET_SOCK_NOTED_H_
#define RCSOCK_LIB_POSIX_SOCKET_SOCK_NOTED_H_

#include <atomic>
#include <cstdint>

#include "lib/base/reason.h"
#include "lib/posix/sharing/notes.h"

namespace rcsock::rendezvous {
class Conductor;
}  // namespace rcsock::rendezvous

namespace rcsock::posix {

class Sock;

// This process's share in a connection that notes on the open file tell of
// (sharing/notes.h).  Such a connection has been passed by SCM_RIGHTS, or came
// from a program without rcsock.  Also how far the stream is ahead of what TCP
// has carried.
//
// A part of its Sock.  Any thread may call it, and holds no latch of the
// stream, unless a method says otherwise.
class NotedShare {
 public:
  explicit NotedShare(Sock* sock) : sock_(sock) {}

  // Returns the stream that has come to the AF_UNIX socket `to` as `number`,
  // and binds it.  Returns null if no sender has noted it.  `until_ns`: as for
  // Notes.
  static Sock* Arrived(int number, std::uint64_t to, bool peek,
                       std::uint64_t until_ns);
  // Returns a stream for a connection that came with the program (`exec`) or by
  // SCM_RIGHTS, from a process that told nothing.  The caller binds it.
  // Returns null for a socket that is no connection, or without memory.
  static Sock* Unknown(int number, bool exec, std::uint64_t until_ns = 0);

  // Returns whether notes say which processes hold the connection.
  bool Travels() const { return travels_.load(std::memory_order_seq_cst); }
  // Prepares the stream for a message that names it by `number`.  The caller is
  // about to send the message to the AF_UNIX socket with the inode number `to`.
  // Returns true if the kernel has the stream, and notes say so.  Returns false
  // if the receiver will not follow the connection.
  bool Travel(int number, std::uint64_t to, std::uint32_t tag);
  // Gives up the share.  Requires that the process holds no number of the
  // connection but `number`, which is still open.
  void Leave(int number);
  // Gives up the share before an exec that closes the connection here, and
  // takes one again if the exec has failed.
  void LeaveForExec();
  void ExecFailed();

  // Returns whether no other process that was passed the connection holds it.
  // True for a connection that does not travel.
  bool Alone(bool unspoilt) const {
    return !Travels() || AloneByNotes(unspoilt);
  }
  // Returns why a stream that travels, and has several holders, has no lane.
  base::Reason reason() const { return reason_; }
  // Has the conductor look for holders that no note tells of, if there may be
  // some.
  void AskForHolders();
  // Called when the conductor has begun: makes the look that waits for it.
  static void LookIfAsked(rendezvous::Conductor* conductor);

  // Takes over how far the stream is ahead, as notes on `number` say.  Requires
  // both latches.
  void LearnDrift(int number);
  // Measures how far the stream is ahead.  Requires both latches, that the
  // stream has just left its lane, and that no call is in the kernel with it.
  void MeasureDrift();
  // Takes over how far a stream that travels has come.  Returns false if
  // nothing tells that.  Requires both latches, that the stream is about to be
  // adopted, and that no call is in the kernel with it.
  bool TakeOffsets();

  // Forgets all, for another connection.
  void Reset() {
    travels_.store(false, std::memory_order_relaxed);
    share_.store(0, std::memory_order_relaxed);
    reason_ = base::Reason::kNone;
    unknown_.store(0, std::memory_order_relaxed);
    sought_.store(false, std::memory_order_relaxed);
    born_ns_ = 0;
    drift_ = Notes::Drift();
    drift_known_ = true;
  }
  // In the child of a fork, which has a share of its parent's.
  void OnForkChild();

 private:
  static Sock* Foreign(int number, int role, std::uint64_t share,
                       base::Reason reason);
  static void LookForStrangers();
  bool AloneByNotes(bool unspoilt) const;
  // Returns whether every number of this process that names the connection is
  // known.
  bool OnlyOurNumbers() const;
  // Stores what TCP has carried so far, as the application counts.  Returns
  // false if nothing tells that, or the connection is half closed.
  bool TcpOffsets(std::uint64_t* tx, std::uint64_t* rx) const;

  Sock* const sock_;
  std::atomic<bool> travels_{false};
  std::atomic<std::uint64_t> share_{0};
  base::Reason reason_ = base::Reason::kNone;
  // The connection came from a program without rcsock.  This many more looks
  // must find no other holder (sock_foreign.cc).
  std::atomic<int> unknown_{0};
  std::atomic<bool> sought_{false};  // such a look is due
  std::uint64_t born_ns_ = 0;        // see Sought; 0: not known
  // Both latches of the stream guard these.
  Notes::Drift drift_;
  bool drift_known_ = true;
};

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_SOCKET_SOCK_NOTED_H_
