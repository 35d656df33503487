#ifndef RCSOCK_LIB_POSIX_SOCKET_LINGER_H_
#define RCSOCK_LIB_POSIX_SOCKET_LINGER_H_

#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "lib/posix/sys/pinned.h"

namespace rcsock::posix {

// Makes the close of `number` a reset, as unread data does.  The kernel does
// not know of the bytes that rcsock holds.
inline void ResetOnClose(int number) {
  const linger now{1, 0};
  ::syscall(SYS_setsockopt, number, SOL_SOCKET, SO_LINGER, &now, sizeof now);
}

// Returns SO_LINGER of `number`.  A filter of system calls may end the program
// for a call of rcsock's.  Under such a filter the stream has no lane, and the
// kernel alone closes it.
inline linger LingerOf(int number) {
  linger option{};
  if (ProcessPinned() == base::Reason::kSandboxed) return option;
  socklen_t length = sizeof option;
  ::syscall(SYS_getsockopt, number, SOL_SOCKET, SO_LINGER, &option, &length);
  return option;
}

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_SOCKET_LINGER_H_
