#ifndef RCSOCK_LIB_POSIX_SOCKET_INTEREST_LATCH_H_
#define RCSOCK_LIB_POSIX_SOCKET_INTEREST_LATCH_H_

#include "lib/base/process_latch.h"

namespace rcsock::posix {

// Guards Sock::interests, EpollSet::members_ and the side, kernel or user, that
// has an interest.
inline constinit base::ProcessLatch interest_latch{
    base::ProcessLatchOf::kInterest, base::LatchRank::kInterest};

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_SOCKET_INTEREST_LATCH_H_
