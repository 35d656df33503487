#ifndef RCSOCK_LIB_POSIX_HOOKS_URING_HELD_H_
#define RCSOCK_LIB_POSIX_HOOKS_URING_HELD_H_

#include <linux/io_uring.h>
#include <signal.h>

#include <cstdint>
#include <ctime>

#include "lib/posix/hooks/uring_requests.h"

// Requests that wait for their streams, and that rcsock completes.
//
// In place of each, the kernel has seen a request that does nothing.  A ring
// with held requests has an epoll set of rcsock's own, whose members are the
// requests' streams and the ring.  A thread of the program that waits for
// completions waits in that set, and completes what has become ready.  While no
// thread waits so, a helper thread does this.
namespace rcsock::posix::uring {

// A ring of the program, as a waiting thread sees it.
struct RingView {
  int fd = -1;
  const unsigned* cq_head = nullptr;
  const unsigned* cq_tail = nullptr;
};

enum class Fate : std::uint8_t {
  kKernels,  // the request is the kernel's
  kDone,     // it is done
  kHeld,     // rcsock completes it later
};
struct Verdict {
  Fate fate = Fate::kKernels;
  int result = 0;
  std::uint32_t flags = 0;
};

// Carries out `request` of `ring`, or holds it if `may_hold`.  Its completion
// has `data`.  `quiet`: a success has no completion.  `behind`: it is behind a
// link.  If it is held, it goes on with Submitted.
Verdict Carry(int ring, Request request, std::uint64_t data, bool quiet,
              bool may_hold, bool behind);
// The kernel has taken what this thread has called Carry for.  `deferred`: how
// many links it puts off until the thread asks for completions.
void Submitted(int ring, unsigned deferred);

// What a request asks to cancel.
struct Match {
  bool any = false;
  bool by_fd = false;
  bool polls_only = false;
  bool all = false;
  int fd = -1;
  std::uint64_t data = 0;
};
// Cancels held requests of `ring`, and returns how many.  The next
// PostCancelled posts their completions.
int CancelHeld(int ring, const Match& match);
void PostCancelled(int ring);

// Changes the events of a held poll, or its data.  Returns false if no such
// poll is held.
bool UpdatePoll(int ring, const io_uring_sqe& request);

// Whether `ring` has held requests, or cancelled ones that are not posted yet.
bool Holds(int ring);

// --- Waiting (uring_wait.cc)

enum class Waited : std::uint8_t {
  kEnough,       // the kernel's wait returns at once, or is to be made
  kInterrupted,  // a signal handler has run
  kTimedOut,
};
// Waits until `ring` has `count` completions, or holds no request.
// `timeout` and `mask` may be null.
Waited Await(const RingView& ring, unsigned count, const timespec* timeout,
             const sigset_t* mask);

// The ring is about to be closed, and its held requests go.
void DropHeldRing(int ring);
void DropHeldRings(unsigned first, unsigned last);
// The program is about to close the ring's number, and goes on using the ring.
void KeepHeldRing(int ring);
// Called before the numbers from `first` to `last` are closed, or name
// something else.  Held requests on their streams go on by numbers of rcsock's
// own.
void KeepHeldStreams(unsigned first, unsigned last);

// Threads of rcsock's that serve rings.
int HelperThreads();

// Rings that hold requests.
int HeldRings();

// A filter of system calls is about to forbid what rcsock does.  All held
// requests complete with ECANCELED, and the helper threads end.
void EndHolding();

// Around fork.
void HeldForkLock();
void HeldForkUnlock(bool child);
// In the child, without the latch.  The child has no held requests.
void HeldForkChild();

}  // namespace rcsock::posix::uring

#endif  // RCSOCK_LIB_POSIX_HOOKS_URING_HELD_H_
