#ifndef RCSOCK_LIB_POSIX_SOCKET_SOCK_EXEC_H_
#define RCSOCK_LIB_POSIX_SOCKET_SOCK_EXEC_H_

#include <sys/socket.h>

#include <cstdint>

#include "lib/base/reason.h"

namespace rcsock::posix {

class Sock;

// What a stream does before this process's program ends, by an exec or an exit,
// and what it takes back if the exec fails.
//
// A part of its Sock.  Only the thread that executes or forks calls it, and
// holds no latch of the stream, unless a method says otherwise.  A child of
// fork has the same pin.
class AcrossExec {
 public:
  explicit AcrossExec(Sock* sock) : sock_(sock) {}

  // Pins the stream until Failed.  Waits and returns as WayBack::ToPlain.  Ask
  // does not wait.
  bool Pin(std::uint64_t deadline_ns);
  void Ask();
  // Gives up the share in a connection whose descriptor exec closes.
  void Leave();
  // Returns whether the next program could follow the connection.  May make a
  // Holding.
  bool MayBequeath();
  // Notes, for a connection that MayBequeath refuses, that no lane may come.
  // The next program takes what it finds as `number`, and what no lane can
  // follow here holds there, too.
  void SpoilForNext(int number) const;
  // Counts one more holder: the next program runs in another process.  Requires
  // a Holding.
  void AddHolder();
  // Writes what the next program must know into the Holding, and returns the
  // Holding's number.  Returns -1 if the engine has the stream, or there is no
  // Holding.
  int Bequeath(std::uint64_t inode);
  // Blocks until the kernel has what TCP still owes, or the deadline.  What the
  // kernel has not got by then makes the end a reset: an orderly end would hide
  // the loss.  Without `last`, TakeResetBack takes this back.  Any thread may
  // call it.
  void Flush(std::uint64_t deadline_ns, bool last);
  void TakeResetBack();
  // Returns whether this process's end will be a reset that the kernel does not
  // know of yet.
  bool Resets() const;
  // The process ends, and the stream gets no lane any more.  Otherwise the
  // conductor could read ahead what the application leaves unread, and the
  // kernel would not reset the connection.
  void SeekNoMore();
  // Makes the kernel's end a reset if the application has not read all that the
  // peer sent.  The process ends, and the kernel cannot always know of unread
  // bytes.
  void ResetAtExit();
  // Takes Pin and Leave back: the exec has failed.
  void Failed();

  // Forgets all, for another connection.
  void Reset() { pinned_ = left_ = resets_ = false; }

 private:
  // The parts of Resets, ResetAtExit and Flush.  They require both latches of
  // the stream.
  bool ResetsLatched() const;
  short FlushLatched(std::uint64_t deadline_ns, bool last);
  void MakeReset(bool last);

  Sock* const sock_;
  bool pinned_ = false;
  bool left_ = false;
  bool resets_ = false;
  linger linger_ = {};                         // the option before MakeReset
  base::Reason reason_ = base::Reason::kNone;  // the stream's before Pin
};

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_SOCKET_SOCK_EXEC_H_
