#ifndef RCSOCK_LIB_POSIX_SHARING_FORKS_H_
#define RCSOCK_LIB_POSIX_SHARING_FORKS_H_

#include <atomic>
#include <cstdint>

#include "lib/posix/sys/identity.h"

// Forks that have begun, of all threads: the child of each will hold the
// connections.
namespace rcsock::posix {

extern constinit std::atomic<int> forks_under_way;
extern constinit std::atomic<int> spawns_under_way;

// Called where this thread begins a fork, and where it ends the fork.  A
// handler may fork while fork() waits for a peer, so a thread may have several
// forks under way.
void BeginFork();
void EndFork();
// Returns whether a fork has begun whose child is not there yet.  Then no
// stream may take a lane.
inline bool Forking() {
  return forks_under_way.load(std::memory_order_seq_cst) != 0;
}
// Waits for the forks of other threads, until the deadline.  The process is
// about to end or to exec, and its threads end with it.  If a fork makes a
// child, the end of this process is not the end of its connections.  What this
// process would tell the peers then contradicts TCP.
void AwaitForks(std::uint64_t deadline_ns);
// Forgets the forks of this thread that a handler has interrupted.  The process
// ends, and they do not go on.
void EndForks();
// In the child: only this thread is left.
void ForksForkChild();

// Surrounds a call that starts a program beside this one, as posix_spawn does.
// The program gets a copy of the descriptors that exec does not close.
class SpawnUnderWay {
 public:
  SpawnUnderWay();
  ~SpawnUnderWay();
  SpawnUnderWay(const SpawnUnderWay&) = delete;
  SpawnUnderWay& operator=(const SpawnUnderWay&) = delete;
};

// Returns table_copies; 0 if a process that gets a copy is being made.  An open
// file that was made behind a look that said n, with n not 0, is this process's
// alone for as long as TableCopies says n, unless it is passed by SCM_RIGHTS.
inline std::uint32_t TableCopies() {
  // The count first: a copy that begins later counts itself, and one that began
  // before is under way still, or was over before this call.
  const std::uint32_t copies = table_copies.load(std::memory_order_seq_cst);
  const bool under_way = lendings.load(std::memory_order_seq_cst) != 0 ||
                         forks_under_way.load(std::memory_order_seq_cst) != 0 ||
                         spawns_under_way.load(std::memory_order_seq_cst) != 0;
  return under_way ? 0 : copies;
}

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_SHARING_FORKS_H_
