#ifndef RCSOCK_LIB_POSIX_HOOKS_URING_BATCH_H_
#define RCSOCK_LIB_POSIX_HOOKS_URING_BATCH_H_

#include <linux/io_uring.h>

namespace rcsock::posix::uring {

// IORING_SETUP_*. Some are newer than the headers of Debian 12.
constexpr unsigned kIoPoll = 1u << 0;
constexpr unsigned kSqPoll = 1u << 1;
constexpr unsigned kSqe128 = 1u << 10;
constexpr unsigned kDeferTaskRun = 1u << 13;
constexpr unsigned kNoMmap = 1u << 14;
constexpr unsigned kRegisteredFdOnly = 1u << 15;
constexpr unsigned kNoSqArray = 1u << 16;

// The requests of one submission, in order.
class Batch {
 public:
  // `carries`: the ring whose requests rcsock may complete, or -1.
  // `refuses_control`: the kernel refuses IORING_OP_EPOLL_CTL on this ring.
  // `restricted`: the kernel may refuse requests other than the program's.
  Batch(int carries, bool refuses_control, bool restricted)
      : carries_(carries),
        refuses_control_(refuses_control),
        restricted_(restricted) {}
  // Looks at a request.  `request` is a copy of `*at`, which is in memory that
  // the program may change.  Returns whether `*at` has become another request,
  // until Restore().
  bool See(const io_uring_sqe& request, io_uring_sqe* at);

  // Called before the first See, with the flags of each request.
  void Foresee(std::uint8_t flags) {
    if ((flags & IOSQE_IO_DRAIN) != 0) drains_ = true;
  }

  // A request has waited for all requests before it, and others may wait for
  // it.
  bool drained = false;
  // The thread waits next, and the batch has one request.
  bool patient = false;
  // A request behind a link is held until Submitted.
  bool holds_behind = false;
  unsigned links = 0;  // requests that have another one behind a link

 private:
  enum class Seen : std::uint8_t {
    kRemade,    // it has become another request
    kKernels,   // its stream is the kernel's from now on
    kNotBegun,  // the kernel will not begin it
  };
  Seen CarryOut(const io_uring_sqe& request, io_uring_sqe* at);
  Seen Cancel(const io_uring_sqe& request, io_uring_sqe* at);

  const int carries_;
  const bool refuses_control_;
  const bool restricted_;
  bool linked_ = false;  // the request before must be done first
  bool closes_ = false;  // a request before closes a number
  bool drains_ = false;  // a request of this batch has IOSQE_IO_DRAIN
  // The chain of links that the next request may continue: whether rcsock has
  // done every request, and whether the last has failed.
  bool chain_done_ = true;
  bool chain_failed_ = false;
};

// Whether the last word of a request means nothing to the program.
bool MayBeRemade(const io_uring_sqe& request);
// The kernel is to complete `*at` with `result`, or not at all (`silent`).
void Replace(const io_uring_sqe& request, int result, bool silent,
             io_uring_sqe* at);
// Undoes Replace.  Returns whether Replace had changed `*at`.
bool RestoreReplaced(const io_uring_sqe& request, io_uring_sqe* at);

// The kernel has taken `*at`.  Makes it what it was before Batch::See.
void Restore(io_uring_sqe* at);

// Ring `fd` (-1: any) takes only some requests from now on.
void Restrict(int fd);

// In the child of fork.
void RefusingForkChild();

}  // namespace rcsock::posix::uring

#endif  // RCSOCK_LIB_POSIX_HOOKS_URING_BATCH_H_
