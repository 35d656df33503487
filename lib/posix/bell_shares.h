#ifndef RCSOCK_LIB_POSIX_BELL_SHARES_H_
#define RCSOCK_LIB_POSIX_BELL_SHARES_H_

#include "lib/lane/poller.h"

namespace rcsock::posix {

// Which of the process's bells an epoll set has, or a thread that polls: one
// that nobody has, as long as there are any, or else one that the fewest have.
// Sets take from the first ones up and threads from the last ones down, and
// what is given back is taken again, so that no more are ever made than are
// needed at a time: each is a descriptor here and one in each peer's process.
//
// Threads: any; none waits.  In a handler, too.
int TakeBell(bool thread);
void GiveBell(int bell);
// In a child of fork: nobody has any.
void ForgetBells();

// The bell by which this thread's lanes are told apart from other threads' when
// they are bound to a completion queue (rdma): one that no other thread has, as
// long as there are any, from the last one down, and until the thread ends.
// Nobody rings it for that, and nothing is taken from TakeBell.
int QueueOfThread();
void GiveQueueOfThread();

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_BELL_SHARES_H_
