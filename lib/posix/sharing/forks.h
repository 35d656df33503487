#ifndef RCSOCK_LIB_POSIX_SHARING_FORKS_H_
#define RCSOCK_LIB_POSIX_SHARING_FORKS_H_

#include <cstdint>

// Forks that have begun, of all threads: the child of each will hold the
// connections.
namespace rcsock::posix {

// Called where this thread begins a fork, and where it ends the fork.  A
// handler may fork while fork() waits for a peer, so a thread may have several
// forks under way.
void BeginFork();
void EndFork();
// Returns whether a fork has begun whose child is not there yet.  Then no
// stream may take a lane.
bool Forking();
// Waits for the forks of other threads, until the deadline.  The process is
// about to end or to exec, and its threads end with it.  If a fork makes a
// child, the end of this process is not the end of its connections, and what
// this process would tell the peers contradicts TCP.
void AwaitForks(std::uint64_t deadline_ns);
// Forgets the forks of this thread that a handler has interrupted.  The process
// ends, and they do not go on.
void EndForks();
// In the child: only this thread is left.
void ForksForkChild();

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_SHARING_FORKS_H_
