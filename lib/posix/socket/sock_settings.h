#ifndef RCSOCK_LIB_POSIX_SOCKET_SOCK_SETTINGS_H_
#define RCSOCK_LIB_POSIX_SOCKET_SOCK_SETTINGS_H_

namespace rcsock::posix {

class Sock;

// What programs have set of a stream elsewhere: on its listener, in the kernel
// past rcsock, or as former holders of the connection.
//
// A view of its Sock, without a state.  Requires that no other thread knows the
// stream, and no latch of it, unless a method says otherwise.
class Settings {
 public:
  explicit Settings(Sock* sock) : sock_(sock) {}

  // Takes over what an accepted socket inherits from its listener.
  void Inherit(Sock* listener);
  // As Inherit, from a listener that this process was started with.  `number`
  // is the accepted socket's.
  void InheritFromUnknown(int number);
  // Takes over the options that plain calls may have set.  Any thread may call
  // it.
  void Learn(int number);
  // Takes over what former holders have set.
  void TakeOver(int number);

  // Bounds what a lane takes, after the program has set SO_SNDBUF.  Any thread
  // may call it.
  void BoundSends();
  // As BoundSends, for a new lane.  Requires the tx_latch.
  void BoundSendsLatched();

 private:
  Sock* const sock_;
};

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_SOCKET_SOCK_SETTINGS_H_
