#ifndef RCSOCK_LIB_POSIX_IOMUX_THREAD_BELLS_H_
#define RCSOCK_LIB_POSIX_IOMUX_THREAD_BELLS_H_

#include <signal.h>
#include <time.h>

#include <cstdint>

#include "lib/lane/poller.h"
#include "lib/rendezvous/rendezvous.h"

namespace rcsock::posix {

// What a thread sleeps on for streams: an epoll set of its own, with the bells
// and sources that it needs, edge-triggered and never read.  If sleepers shared
// an eventfd and read it to reset it, a read could swallow another sleeper's
// kick.  Here each kick is an edge in every thread's own set.

// A thread's sources are thread-local.  A library that is loaded late finds
// little room for thread-local variables.  With more sources a poll looks again
// each millisecond.
constexpr int kThreadSources = 32;

// Called at start, while few keys are taken: the first keys need no memory
// later.
void InitThreadBells();

// Puts these bells into this thread's set.  False: the thread cannot sleep on
// them.
bool EnsureBells(rendezvous::Conductor* conductor, lane::BellMask wanted);

// The bell that this thread's polls ask for of a lane in shared memory.  A kick
// wakes all threads that sleep by a bell, each for a look and two system calls
// or more.  So each thread that polls streams of its own has a bell, as far as
// bells go round (thread/bell_shares.h).  No thread has the poll bell, by which
// every poll sleeps.
int OwnBell(rendezvous::Conductor* conductor);

// False: the thread cannot sleep on it.
bool EnsureSource(lane::Source* source);

// Waits on the thread's bells and sources.  Returns how many have rung; -1:
// errno.  With `timeout` null it waits for ever.
int WaitBells(const timespec* timeout, const sigset_t* mask);

// Their set, once there is a set.
int ThreadBellsSet();

// Makes each readable member of this thread's set an edge again: bells that
// have rung, and sources.  A wait in a signal handler calls this at its end,
// since it may have taken the edge that is to end the interrupted wait.  Keeps
// errno.
void RingAgain();

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_IOMUX_THREAD_BELLS_H_
