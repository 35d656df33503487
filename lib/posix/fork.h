#ifndef RCSOCK_LIB_POSIX_FORK_H_
#define RCSOCK_LIB_POSIX_FORK_H_

#include <cstdint>

namespace rcsock::posix {

// Around fork(), as handlers of pthread_atfork: streams go to TCP first, and
// the child's share of them is counted.
void ForkPrepare();
void ForkParent();
void ForkChild();
// The number of this thread's last one that has begun.
std::uint32_t LastFork();
// A fork that failed has shared nothing.
void ForkFailed();
// One has begun, and its child is not there yet: no stream may take a lane.
bool Forking();

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_FORK_H_
