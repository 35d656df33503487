#ifndef RCSOCK_LIB_POSIX_URING_BATCH_H_
#define RCSOCK_LIB_POSIX_URING_BATCH_H_

#include <linux/io_uring.h>

namespace rcsock::posix::uring {

// IORING_SETUP_*, of which some are newer than the headers of Debian 12.
constexpr unsigned kIoPoll = 1u << 0;
constexpr unsigned kSqPoll = 1u << 1;
constexpr unsigned kSqe128 = 1u << 10;
constexpr unsigned kNoMmap = 1u << 14;
constexpr unsigned kRegisteredFdOnly = 1u << 15;
constexpr unsigned kNoSqArray = 1u << 16;

// The requests of one submission, in order.
class Batch {
 public:
  // `refuses_control`: the kernel refuses IORING_OP_EPOLL_CTL on this ring.
  // `restricted`: it may refuse others than those that the program uses.
  Batch(bool refuses_control, bool restricted)
      : refuses_control_(refuses_control), restricted_(restricted) {}
  // Looks at a request: `request` is a copy of `*at`, which is in memory that
  // the program may change.  Returns whether `*at` has become another request,
  // until Restore().
  bool See(const io_uring_sqe& request, io_uring_sqe* at);

  // A request has waited for all that were before it, and others may for it.
  bool drained = false;

 private:
  const bool refuses_control_;
  const bool restricted_;
  bool linked_ = false;  // the request before wants to be done first
  bool closes_ = false;  // a request before closes a number
};

// The kernel has taken `*at`: it is what it was before Batch::See.
void Restore(io_uring_sqe* at);

// Ring `fd` (-1: any) takes only some requests from now on.
void Restrict(int fd);

// In the child of fork.
void PairForkChild();

}  // namespace rcsock::posix::uring

#endif  // RCSOCK_LIB_POSIX_URING_BATCH_H_
