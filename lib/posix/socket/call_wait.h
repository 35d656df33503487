#ifndef RCSOCK_LIB_POSIX_SOCKET_CALL_WAIT_H_
#define RCSOCK_LIB_POSIX_SOCKET_CALL_WAIT_H_

#include <cstdint>

namespace rcsock::posix {

// The waits of one call on a stream.  It belongs to the thread of the call.
struct CallWait {
  std::uint64_t deadline_ns = 0;  // 0: none
  std::uint32_t signals = 0;
  bool timed = false;
  // The call is a poll: any handler ends it, whatever the handler's flags are.
  bool poll = false;
  // The call has moved something, which is its result.  Any handler ends the
  // call, since it has nothing to restart.
  bool part = false;
  // The part was moved by an earlier step: a handler counts from the call's
  // begin.
  bool later = false;
  std::uint32_t any = 0;  // as `signals`, for all handlers
  // The connection that the call waits for, and the process.
  std::uint32_t life = 0;
  long process = 0;
};

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_SOCKET_CALL_WAIT_H_
