#ifndef RCSOCK_LIB_POSIX_SOCKET_SOCK_ANSWERS_H_
#define RCSOCK_LIB_POSIX_SOCKET_SOCK_ANSWERS_H_

#include <cstddef>
#include <cstdint>

namespace rcsock::posix {

class Sock;

// What ioctl, getsockopt and recvmsg are told of a stream in the kernel's
// place.
//
// A view of its Sock, without a state.  Any thread may call it, and holds no
// latch of the stream.
class Answers {
 public:
  explicit Answers(Sock* sock) : sock_(sock) {}

  // Stores what FIONREAD says into *bytes, and returns true.  Returns false if
  // the kernel has the stream, and must be asked.
  bool Readable(int* bytes) const;
  // Returns whether the process holds bytes that come before those in the
  // kernel.
  bool HasReadAhead() const;
  // Stores what SIOCOUTQ says into *bytes, or with `not_sent` SIOCOUTQNSD.
  // Returns false if the kernel must be asked.
  bool Unsent(bool not_sent, int* bytes) const;
  // Returns SO_ERROR of the stream itself, and clears it.  Returns 0 if there
  // is none.
  int TakeError() const;
  // Returns the state that TCP_INFO tells, for an anchor in the state
  // `anchors`.  May take an end.
  std::uint8_t TcpState(std::uint8_t anchors) const;

 private:
  Sock* const sock_;
};

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_SOCKET_SOCK_ANSWERS_H_
