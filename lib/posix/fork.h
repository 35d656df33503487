#ifndef RCSOCK_LIB_POSIX_FORK_H_
#define RCSOCK_LIB_POSIX_FORK_H_

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
// Takes the shares of this thread's last fork back: it has failed.
void ForkFailed();
// Returns whether a fork has begun whose child is not there yet.  Then no
// stream may take a lane.
bool Forking();
// Waits for the forks of other threads, a bounded time.  The process is about
// to end or to exec, and its threads end with it.  With a child this is not the
// end of its connections, and what this process would tell the peers
// contradicts what TCP says.
void AwaitForks();
// Forgets the forks of this thread that a handler has interrupted.  The process
// ends, and they do not go on.
void EndForks();

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_FORK_H_
