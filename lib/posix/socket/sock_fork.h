#ifndef RCSOCK_LIB_POSIX_SOCKET_SOCK_FORK_H_
#define RCSOCK_LIB_POSIX_SOCKET_SOCK_FORK_H_

namespace rcsock::posix {

class Sock;
struct Holding;

// What becomes of a stream in the child of a fork.  A stream that the parent's
// engine has is the parent's alone, or the child has an unused copy of it.
//
// A view of its Sock, without a state.  Only the child uses it.
class AfterFork {
 public:
  explicit AfterFork(Sock* sock) : sock_(sock) {}

  // Makes the stream what it is in the child.  Requires that the child has no
  // other thread.
  void Begin();

  // --- For UnusedCopy
  // The engine is the parent's.  Requires that the child has no other thread.
  void ForgetParentsEngine();
  // Puts a dead socket in the place of the connection.  Requires both latches,
  // as TakeOver does.
  void LoseConnection(const char* why);
  // The owner has given the stream.  Returns false if its bytes that were read
  // ahead are lost.
  bool TakeOver(const Holding& all);

 private:
  void ForgetCalls();
  void ForgetMoved();
  void ForgetEngine();
  void LoseToParent();
  void PutDeadSocket(const char* why);

  Sock* const sock_;
};

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_SOCKET_SOCK_FORK_H_
