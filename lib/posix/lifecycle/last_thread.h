#ifndef RCSOCK_LIB_POSIX_LIFECYCLE_LAST_THREAD_H_
#define RCSOCK_LIB_POSIX_LIFECYCLE_LAST_THREAD_H_

#include "lib/rendezvous/rendezvous.h"

namespace rcsock::posix {

// If a process's first thread has left by pthread_exit, the process ends with
// its last thread, by exit(0).  libc counts the conductor among the threads, so
// the conductor ends the process.

// Called in the first thread of the process, at start and in a child of fork.
void KnowFirstThread();

// The calling thread ends past libc, by SYS_exit.  True: the program has no
// other thread, so the process is to end with this thread.  Always false in a
// child of vfork, and behind a filter of system calls, which may allow only
// SYS_exit.
bool LastThreadEnds(int status);

// A conductor has begun, perhaps after the first thread's end.
void WatchLastThread(rendezvous::Conductor* conductor);

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_LIFECYCLE_LAST_THREAD_H_
