#ifndef RCSOCK_LIB_POSIX_CLOSE_H_
#define RCSOCK_LIB_POSIX_CLOSE_H_

#include "lib/posix/fd/table.h"
#include "lib/posix/uring.h"

namespace rcsock::posix {

// The table's CloseFd and ReplaceFd for all of lib/posix: the number may be
// that of a ring, which the table does not know.

inline int CloseAny(int fd) {
  uring::BeforeClose(fd);
  return CloseFd(fd);
}

inline int ReplaceAny(int fd, int from, int flags) {
  uring::BeforeClose(fd);
  return ReplaceFd(fd, from, flags);
}

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_CLOSE_H_
