#ifndef RCSOCK_LIB_BASE_FAIL_H_
#define RCSOCK_LIB_BASE_FAIL_H_

#include <cerrno>

namespace rcsock::base {

// Sets errno. Returns -1, as a failed call does.
inline int Fail(int error) {
  errno = error;
  return -1;
}

}  // namespace rcsock::base

#endif  // RCSOCK_LIB_BASE_FAIL_H_
