#ifndef RCSOCK_LIB_POSIX_SOCKET_ADDRESS_REUSE_H_
#define RCSOCK_LIB_POSIX_SOCKET_ADDRESS_REUSE_H_

#include <cerrno>
#include <cstdint>

#include "lib/base/backoff.h"
#include "lib/base/clock.h"
#include "lib/posix/socket/sock.h"

namespace rcsock::posix {

// How long bind and connect wait for a stream that ends.
constexpr std::uint64_t kMostToEndNs = 200'000'000;

// `call` binds or connects, and has returned `result`.  Makes the call again
// while `port` is refused, and a closed stream has the port that TCP would have
// freed by now.  The kernel ends the later of two ends within its close(); a
// stream's peer has to answer first.  The last call comes when no such stream
// is left, since the call before may have failed for a stream that has ended
// since.  `port` is in network order; 0: none is asked for.  Returns the result
// of the last call, with its errno.
template <class Call>
int WithPortOfEnded(std::uint16_t port, int result, Call&& call) {
  if (result == 0 || port == 0) return result;
  std::uint64_t deadline = 0;
  bool awaited = true;
  for (base::Backoff backoff;
       result != 0 && awaited &&
       (errno == EADDRINUSE || errno == EADDRNOTAVAIL);) {
    const std::uint64_t now = base::NowNs();
    if (deadline == 0) deadline = now + kMostToEndNs;
    awaited = now < deadline && ClosedStreams::EndsOnPort(port);
    if (awaited) backoff.Wait();
    result = call();
  }
  return result;
}

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_SOCKET_ADDRESS_REUSE_H_
