#ifndef RCSOCK_LIB_RENDEZVOUS_SOCKET_DIAG_H_
#define RCSOCK_LIB_RENDEZVOUS_SOCKET_DIAG_H_

#include <cstdint>

#include "lib/base/unique_fd.h"
#include "lib/rendezvous/rendezvous.h"

namespace rcsock::rendezvous {

// Asks the kernel which socket is the other end of a TCP connection between two
// sockets of one network namespace.
//
// The answer is an inode number of the kernel's file system of sockets, or 0
// for none.  The kernel counts these numbers in 32 bits, so a number comes
// again after four thousand million sockets and pipes.
//
// No call waits for another process: the request asks for nothing that takes a
// socket's lock.
//
// Threads: only within a turn of the conductor (Step).
class SocketDiag {
 public:
  // Returns the other end of `fd`, whose connection is `tuple` and whose role
  // is `role`.  `scope` is the interface of a link-local address, else 0.
  std::uint32_t OtherEnd(int fd, const Tuple& tuple, stream::Role role,
                         std::uint32_t scope);
  // Whether another socket of `fd`'s network namespace is the `role` end of
  // `tuple`.  True if the kernel does not tell.
  bool OthersHave(int fd, const Tuple& tuple, stream::Role role,
                  std::uint32_t scope);

 private:
  enum class Answer { kFound, kNone, kUnavailable };

  // Opens a netlink socket in the network namespace of `fd`.
  bool Open(int fd);
  Answer Ask(const Tuple& tuple, stream::Role whose, std::uint32_t scope,
             std::uint32_t* inode) const;
  bool IsOurs(int fd, const Tuple& tuple, stream::Role role,
              std::uint32_t scope) const;

  base::UniqueFd netlink_;
  std::uint64_t cookie_ = 0;  // of the socket's network namespace; 0: unknown
};

// Returns the inode number of a socket of this process.  0: `fd` is no socket.
std::uint32_t SocketInode(int fd);
// Returns the inode number of the socket that `token` shows, or 0.  A file of
// another file system may claim to be a socket with any number.  `socket`, any
// socket of this process, shows which file system is the kernel's.
std::uint32_t TokenInode(int token, int socket);

// Returns a descriptor that shows by SocketInode whose socket `fd` is, and is
// good for nothing else.  A process may pass it to a peer that it does not
// trust.  Returns none without /proc.
base::UniqueFd OpenToken(int fd);

}  // namespace rcsock::rendezvous

#endif  // RCSOCK_LIB_RENDEZVOUS_SOCKET_DIAG_H_
