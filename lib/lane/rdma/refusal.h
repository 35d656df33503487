#ifndef RCSOCK_LIB_LANE_RDMA_REFUSAL_H_
#define RCSOCK_LIB_LANE_RDMA_REFUSAL_H_

#include <cstddef>

#include "lib/base/reason.h"
#include "lib/verbs/verbs.h"

namespace rcsock::lane::rdma {

// Returns the reason that a user sees for a call that could not make an object.
// Any thread may call it. ENOMEM has one of three causes: the limit of locked
// memory is reached, the device has no more objects of this kind, or there is
// no memory. To choose, this looks how much is locked.
base::Reason ReasonOf(const verbs::Error& error);

// Returns true if the kernel may have refused to pin more, at RLIMIT_MEMLOCK
// `limit`. `status` is what /proc/self/status says. If it does not say how much
// is pinned, the kernel may have refused.
bool MayBeMemlock(const char* status, std::size_t limit);

}  // namespace rcsock::lane::rdma

#endif  // RCSOCK_LIB_LANE_RDMA_REFUSAL_H_
