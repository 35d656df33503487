#ifndef RCSOCK_LIB_POSIX_PASSING_H_
#define RCSOCK_LIB_POSIX_PASSING_H_

#include <sys/socket.h>

namespace rcsock::posix {

// The descriptors in `message` are about to be passed to another process, by
// SCM_RIGHTS: their streams leave their lanes for good.
void BeforePassing(const msghdr* message);

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_PASSING_H_
