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

// Nothing throws through C; all that is thrown here is for want of memory.
// (What a cancelled thread is unwound by is no exception of ours.)
template <class Call>
auto Guarded(Call&& call) -> decltype(call()) {
  try {
    return call();
  } catch (const std::exception&) {
    errno = ENOMEM;
    return -1;
  }
}

// The channel that a call for data must go by; null: the stream itself.
Shared ForData(int fd);

}  // namespace rcsock::rsocket

#endif  // RCSOCK_LIB_API_RSOCKET_CALL_H_
