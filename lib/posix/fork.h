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
// The process is about to end, or to become another one, whose threads end with
// that: those of other threads are waited for, a bounded time, for with a child
// this is not the end of its connections.  (What is told of them would be
// another thing than TCP says either way.)
void AwaitForks();
// The process ends: forks of this thread that a handler has interrupted do not
// go on.
void EndForks();

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_FORK_H_
