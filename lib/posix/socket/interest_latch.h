#ifndef RCSOCK_LIB_POSIX_SOCKET_INTEREST_LATCH_H_
#define RCSOCK_LIB_POSIX_SOCKET_INTEREST_LATCH_H_

#include "lib/base/latch.h"

namespace rcsock::posix {

// Guards Sock::interests, EpollSet::members_ and the side, kernel or user, that
// has an interest.
inline constinit base::Latch interest_latch{base::LatchRank::kInterest};

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_SOCKET_INTEREST_LATCH_H_
