#ifndef RCSOCK_LIB_API_RSOCKET_CALL_H_
#define RCSOCK_LIB_API_RSOCKET_CALL_H_

#include <cerrno>
#include <exception>
#include <memory>

#include "lib/api/rsocket/channel.h"

#define RCSOCK_EXPORT extern "C" __attribute__((visibility("default")))

namespace rcsock::rsocket {

// What every call of <rdma/rsocket.h> needs.

using Shared = std::shared_ptr<Channel>;
using Phase = Channel::Phase;

inline int Fail(int error) {
  errno = error;
  return -1;
}

// No exception passes through C; here only a lack of memory throws. A cancelled
// thread is unwound by something that is no std::exception.
template <class Call>
auto Guarded(Call&& call) -> decltype(call()) {
  try {
    return call();
  } catch (const std::exception&) {
    errno = ENOMEM;
    return -1;
  }
}

// Returns the channel that a call for data must go by; null: the stream itself.
Shared ForData(int fd);

}  // namespace rcsock::rsocket

#endif  // RCSOCK_LIB_API_RSOCKET_CALL_H_
