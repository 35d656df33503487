#ifndef RCSOCK_LIB_BASE_POLL_NOW_H_
#define RCSOCK_LIB_BASE_POLL_NOW_H_

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <ctime>

namespace rcsock::base {

// Returns what poll() with a time of 0 says of `one`. A raw system call: the
// preload must not see it.
inline int PollNow(pollfd* one) {
  timespec now{};
  return static_cast<int>(::syscall(SYS_ppoll, one, 1, &now, nullptr, 8));
}

}  // namespace rcsock::base

#endif  // RCSOCK_LIB_BASE_POLL_NOW_H_
