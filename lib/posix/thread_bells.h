#ifndef RCSOCK_LIB_POSIX_THREAD_BELLS_H_
#define RCSOCK_LIB_POSIX_THREAD_BELLS_H_

#include <signal.h>
#include <time.h>

#include <cstdint>

#include "lib/lane/poller.h"
#include "lib/rendezvous/rendezvous.h"

namespace rcsock::posix {

// What a thread sleeps on for streams: an epoll set of its own, with the bells
// and sources it needs, edge-triggered and never read.  A shared eventfd that
// is read to reset it could swallow the kick that another sleeper was about to
// see; here each kick is an edge in every thread's own set.

// (Thread-local, and a library that is loaded late finds little room for that.
// With more than these a poll looks again each millisecond.)
constexpr int kThreadSources = 32;

// At start, while few keys are taken: one of the first needs no memory later.
void InitThreadBells();

// These bells are in this thread's set.  False: it cannot sleep on them.
bool EnsureBells(rendezvous::Conductor* conductor, lane::BellMask wanted);

// The bell that this thread's polls ask for of a lane in shared memory.  A kick
// wakes all who sleep by a bell, each for a look and two system calls or more:
// so threads that poll streams of their own have one each, as far as they go
// round (bell_shares.h).  (None has the poll bell, by which every poll sleeps.)
int OwnBell(rendezvous::Conductor* conductor);

// False: it cannot be slept on.
bool EnsureSource(lane::Source* source);

// The thread's bells and sources: how many have rung; -1: errno.  With
// `timeout` null it waits for ever.
int WaitBells(const timespec* timeout, const sigset_t* mask);

// Their set, once there is one.
int ThreadBellsSet();

// Makes what is readable in this thread's set make another edge: bells that
// have rung, and sources.  A wait in a signal handler calls it at its end, for
// it may have taken the edge that is to end the interrupted wait.  Keeps errno.
void RingAgain();

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_THREAD_BELLS_H_
