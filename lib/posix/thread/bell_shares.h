#ifndef RCSOCK_LIB_POSIX_THREAD_BELL_SHARES_H_
#define RCSOCK_LIB_POSIX_THREAD_BELL_SHARES_H_

#include "lib/lane/poller.h"

namespace rcsock::posix {

// The bell on which every poll() and select() of the process sleeps, beside the
// bells that its streams ring.  The bell rings when something happens to a
// stream in this process, and for the lanes to other hosts.
constexpr int kPollBell = 1;

// Chooses the bell of an epoll set, or of a thread that polls: a free bell if
// there is any, else the bell with the fewest holders.  Sets take from the
// first bells up, and threads from the last bells down.  A bell that is given
// back is taken again.  So the process makes no more bells than it needs at a
// time.  Each costs a descriptor here, and one in each peer's process.
//
// Any thread may call these, also in a handler.  None waits.
int TakeBell(bool thread);
void GiveBell(int bell);
// In a child of fork, where no bell has a holder.
void ForgetBells();

// Returns the bell that distinguishes the lanes of this thread from those of
// other threads, where lanes are bound to a completion queue (rdma).  Takes a
// free bell if there is one, from the last bell down.  The thread keeps the
// bell until it ends.  No sender rings the bell for such a lane, and TakeBell
// does not count it.
int QueueOfThread();
void GiveQueueOfThread();

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_THREAD_BELL_SHARES_H_
