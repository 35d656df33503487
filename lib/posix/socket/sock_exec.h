#ifndef RCSOCK_LIB_POSIX_SOCKET_SOCK_EXEC_H_
#define RCSOCK_LIB_POSIX_SOCKET_SOCK_EXEC_H_

#include <sys/socket.h>

#include <cstdint>

#include "lib/base/reason.h"

namespace rcsock::posix {

class Sock;

// What a stream does for a program about to be executed, and what it takes back
// if the exec fails.
//
// A part of its Sock.  Only the thread that executes or forks calls it, and
// holds no latch of the stream, unless a method says otherwise.  A child of
// fork has the same pin.
class AcrossExec {
 public:
  explicit AcrossExec(Sock* sock) : sock_(sock) {}

  // Pins the stream until Failed.  Waits as ToPlain, and returns what it
  // returns.  Ask does not wait.
  bool Pin(std::uint64_t deadline_ns);
  void Ask();
  // Gives up the share in a connection whose descriptor exec closes.
  void Leave();
  // Returns whether the program could follow the connection.  May make a
  // Holding.
  bool MayBequeath();
  // Notes, for a connection that MayBequeath refuses, that no lane may come.
  // The next program takes what it finds as `number`, and what no lane can
  // follow here holds there, too.
  void SpoilForNext(int number) const;
  // Counts one more holder: that program runs in another process.  Requires a
  // Holding.
  void AddHolder();
  // Writes what that program must know into the Holding, and returns the
  // Holding's number.  Returns -1 if the engine has the stream, or there is no
  // Holding.
  int Bequeath(std::uint64_t inode);
  // Makes the end a reset.  Without `last`, TakeResetBack takes that back.
  // Requires both latches of the stream.
  void MakeReset(bool last);
  void TakeResetBack();
  // Takes Pin and Leave back: the exec has failed.
  void Failed();

  // Forgets all, for another connection.
  void Reset() { pinned_ = left_ = resets_ = false; }

 private:
  Sock* const sock_;
  bool pinned_ = false;
  bool left_ = false;
  bool resets_ = false;
  linger linger_ = {};                         // the option before MakeReset
  base::Reason reason_ = base::Reason::kNone;  // the stream's before Pin
};

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_SOCKET_SOCK_EXEC_H_
