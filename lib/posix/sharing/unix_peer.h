#ifndef RCSOCK_LIB_POSIX_SHARING_UNIX_PEER_H_
#define RCSOCK_LIB_POSIX_SHARING_UNIX_PEER_H_

#include <cstdint>

namespace rcsock::posix {

// The inode number of the peer of the AF_UNIX socket `fd`, by the kernel's
// sock_diag.  0: there is none, or it is not known.
std::uint64_t UnixPeer(int fd);

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_SHARING_UNIX_PEER_H_
