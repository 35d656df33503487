#ifndef RCSOCK_LIB_POSIX_SOCKET_SOCK_TAKEN_H_
#define RCSOCK_LIB_POSIX_SOCKET_SOCK_TAKEN_H_

#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>

#include "lib/posix/socket/sock_place.h"

namespace rcsock::posix {

// Bytes that one call takes from a stream on TCP before they are where the
// program wants them. Those that cannot get there go back, to the front of the
// stream.
//
// The object belongs to its thread, and no other thread receives from the
// stream meanwhile.
class Placement::Taken {
 public:
  Taken(Sock* sock, int fd);
  ~Taken();
  Taken(const Taken&) = delete;
  Taken& operator=(const Taken&) = delete;

  // Keeps the stream on TCP until the object ends. Returns false if it is not
  // on TCP alone, or if calls wait for more than a byte (SO_RCVLOWAT), or if
  // another process holds the connection: that process would not see what goes
  // back.
  bool Begin();
  // Returns as recv with MSG_DONTWAIT.
  ssize_t Take(std::byte* to, std::size_t length);
  // The next `bytes` that were taken are where the program wants them.
  void Deliver(std::size_t bytes);
  // Puts bytes before all that the stream has unread: those that were taken and
  // not delivered. Returns false if there is no memory. Then they are lost.
  bool GiveBack(const iovec* pieces, int count);

 private:
  Sock* const sock_;
  const int fd_;
  const long process_;
  // A reference: another thread may close the number meanwhile, and the object
  // is not to become another connection.
  bool kept_ = false;
  std::uint32_t entered_ = 0;  // PlainCalls::Enter, if kept_
};

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_SOCKET_SOCK_TAKEN_H_
