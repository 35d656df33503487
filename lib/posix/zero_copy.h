#ifndef RCSOCK_LIB_POSIX_ZERO_COPY_H_
#define RCSOCK_LIB_POSIX_ZERO_COPY_H_

#include <sys/socket.h>

#include <atomic>
#include <cstdint>

#include "lib/base/latch.h"

namespace rcsock::posix {

// MSG_ZEROCOPY of one stream.  The kernel numbers the calls that it carries out
// and says by number, on the socket's error queue, which of them it has done
// with.  A call that goes over a lane is a copy and done at once, but it has
// its place among the numbers: so those of the kernel's that come after it are
// told as one more, and its own completion waits here to be read as if it were
// on the error queue.
//
// Threads: any; its latch is the last one taken.
class ZeroCopy {
 public:
  // Of another connection from now on.
  void Reset();
  // In the child: what waits is told by the parent, whose threads may have held
  // the latch.
  void ForkChild() {
    latch_.Reset();
    waiting_.store(0, std::memory_order_relaxed);
  }
  // A call that the kernel has taken bytes of.
  void ByKernel();
  // One that was copied.  False: that can't be told apart from the kernel's any
  // more, so there should be no other (it is told all the same).
  bool Copied();
  // Takes over what is on the error queue of `fd`.  False: nothing was.
  bool Drain(int fd);
  bool empty() const { return waiting_.load(std::memory_order_acquire) == 0; }
  // The first, as recvmsg(MSG_ERRQUEUE) gives it: 0, and `message` filled in.
  // False: there is none.
  bool Take(int fd, msghdr* message);

 private:
  static constexpr int kMost = 64;
  struct Range {
    std::uint32_t first;
    std::uint32_t last;
    std::uint8_t code;
  };
  // From the kernel's number `from` on, so much is to be added.
  struct Shift {
    std::uint32_t from;
    std::uint32_t by;
  };

  void Add(std::uint32_t first, std::uint32_t last, std::uint8_t code)
      RC_REQUIRES(latch_);
  void AddKernels(std::uint32_t first, std::uint32_t last, std::uint8_t code)
      RC_REQUIRES(latch_);

  base::Latch latch_;
  // Calls of the kernel's so far.
  std::uint32_t kernels_ RC_GUARDED_BY(latch_) = 0;
  int shifts_ RC_GUARDED_BY(latch_) = 0;
  Shift shift_[kMost] RC_GUARDED_BY(latch_);  // in order
  std::atomic<int> waiting_{0};
  Range range_[kMost] RC_GUARDED_BY(latch_);
};

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_ZERO_COPY_H_
