#include "lib/posix/socket/each_sock.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace rcsock::posix {

bool KeptByExec(int fd) {
  const long flags = ::syscall(SYS_fcntl, fd, F_GETFD);
  return flags >= 0 && (flags & FD_CLOEXEC) == 0;
}

bool KeptByExec(const Sock* sock) {
  return AnyNumber(sock, [](int fd) { return KeptByExec(fd); });
}

}  // namespace rcsock::posix
