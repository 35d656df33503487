#ifndef RCSOCK_LIB_RENDEZVOUS_START_ASIDE_H_
#define RCSOCK_LIB_RENDEZVOUS_START_ASIDE_H_

#include "lib/base/reason.h"
#include "lib/rendezvous/rendezvous.h"

namespace rcsock::rendezvous {

// Returns the conductor, as Conductor::Get does, but for a thread that has
// better to do than to start it.
//
// The numbers of rcsock's descriptors are high, so the first one makes the
// kernel enlarge the process's table of descriptors.  While other threads share
// the table, the kernel waits until every CPU has noticed (an RCU grace
// period): 5 to 15 ms.  So if the program has other threads, a thread of
// rcsock's starts the conductor.  A program with one thread starts it itself:
// its next descriptor must have the lowest number, which another thread's start
// would take for a moment.
//
// What is called on that thread.
struct AsideCalls {
  // The conductor runs.  Nobody else has it yet.
  void (*introduce)(Conductor* conductor);
  // GetAside says kPending no more.  Null: there is no conductor, and why.
  void (*started)(Conductor* conductor, base::Reason why);
};

// Returns null if there is no conductor, with the reason in *why.  kPending:
// one is starting.
Conductor* GetAside(base::Reason* why, const AsideCalls& calls);
// Returns whether one is starting.
bool StartsAside();

// Called before a fork and before a filter of system calls, with no latch that
// a start needs.  Waits for a start that is under way, for a moment: its
// descriptors would be the child's, too, and the filter may refuse its calls.
void AwaitStartAside();
// Called in the child of a fork.
void StartAsideForkChild();

}  // namespace rcsock::rendezvous

#endif  // RCSOCK_LIB_RENDEZVOUS_START_ASIDE_H_
