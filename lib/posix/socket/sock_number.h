#ifndef RCSOCK_LIB_POSIX_SOCKET_SOCK_NUMBER_H_
#define RCSOCK_LIB_POSIX_SOCKET_SOCK_NUMBER_H_

#include <cstdint>

// What the kernel says of a socket, by its number.  No stream is asked.
namespace rcsock::posix {

// Returns whether the kernel says that `number` is a TCP socket.  An interposer
// behind rcsock (libsocket_wrapper, mptcpize) may have made another socket.
bool IsTcp(int number);
// Returns whether an option is set for which the hooks pin a stream, as far as
// the kernel tells.
bool OptionsPin(int number);
// Returns the role of the connection's end, by what TCP has counted.  1: the
// end has accepted.  0: the end has connected.  -1: nothing tells the role.
int RoleByTcp(int number);
// Returns when the connection began, by CLOCK_MONOTONIC; 0: not known.
std::uint64_t BornNs(int number);

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_SOCKET_SOCK_NUMBER_H_
