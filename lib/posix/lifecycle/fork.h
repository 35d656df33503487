#ifndef RCSOCK_LIB_POSIX_LIFECYCLE_FORK_H_
#define RCSOCK_LIB_POSIX_LIFECYCLE_FORK_H_

#include <cstdint>

namespace rcsock::posix {

// Run around fork(), as handlers of pthread_atfork.  ForkPrepare takes the
// streams to TCP, counts the child's share in them, and takes the latches.  The
// two others release the latches.
void ForkPrepare();
void ForkParent();
void ForkChild();
// Returns the number of the last fork that this thread has begun.
std::uint32_t LastFork();
// Called if this thread's last fork has failed: takes the child's shares back.
void ForkFailed();

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_LIFECYCLE_FORK_H_
