#ifndef RCSOCK_LIB_POSIX_LAST_THREAD_H_
#define RCSOCK_LIB_POSIX_LAST_THREAD_H_

#include "lib/rendezvous/rendezvous.h"

namespace rcsock::posix {

// A process whose first thread has left by pthread_exit ends with the last of
// its threads, by exit(0).  libc counts the conductor among them, so the
// conductor sees to it.

// In the first thread of the process: at start, and in a child of fork.
void KnowFirstThread();

// The calling thread ends past libc, by SYS_exit.  True: the program has no
// other, so the process is to end with it.  (Never in a child of vfork, nor
// behind a filter of system calls, which may know no call but that.)
bool LastThreadEnds(int status);

// A conductor has begun, perhaps after the first thread's end.
void WatchLastThread(rendezvous::Conductor* conductor);

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_LAST_THREAD_H_
