#ifndef RCSOCK_LIB_POSIX_IOMUX_ONCE_H_
#define RCSOCK_LIB_POSIX_IOMUX_ONCE_H_

#include "lib/base/latch.h"
#include "lib/posix/iomux/epoll.h"
#include "lib/posix/iomux/interests.h"
#include "lib/posix/socket/interest_latch.h"
#include "lib/posix/socket/sock.h"

// EPOLLONESHOT registrations that the kernel has.
namespace rcsock::posix {

// Asks /proc which of the registrations of `set` that are marked `asked` the
// kernel has already reported.  The line of a reported registration has only
// the flag bits of the events.  The kernel writes a line for each member from
// the first on, however little is read.  So one registration costs as much as
// all.  `also` leads a list of streams that may have no number any more
// (Sock::moving_next).  Returns false if /proc does not say.
bool AskKernel(EpollSet* set, Sock* also) RC_REQUIRES(interest_latch);

// What the kernel says of a ONESHOT registration that it has.
enum class KernelSays { kNothing, kArmed, kReported };
// Also marks it as spent if the kernel has reported it.
KernelSays AskAbout(Interest* interest) RC_REQUIRES(interest_latch);

// Takes the one report of a ONESHOT registration from the kernel.  False: the
// kernel has reported the registration.  ToldByLane catches a report that the
// kernel makes meanwhile.
bool TakeOnce(Interest* interest) RC_REQUIRES(interest_latch);
// Undoes TakeOnce: the event could not be stored.
void GiveOnce(Interest* interest) RC_REQUIRES(interest_latch);

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_IOMUX_ONCE_H_
