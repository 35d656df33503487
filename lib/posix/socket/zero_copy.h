#ifndef RCSOCK_LIB_POSIX_SOCKET_ZERO_COPY_H_
#define RCSOCK_LIB_POSIX_SOCKET_ZERO_COPY_H_

#include <sys/socket.h>

#include <atomic>
#include <cstdint>

#include "lib/base/latch.h"

namespace rcsock::posix {

// MSG_ZEROCOPY of one stream.  The kernel numbers the calls that it carries
// out.  On the socket's error queue it reports by number which calls it has
// finished.  A call over a lane is a copy, and is done at once, but it takes
// its place among the numbers.  So the numbers of later calls by the kernel are
// shifted.  The completion of a lane's call waits here, to be read as if it
// were on the error queue.
//
// Any thread may call this.  A thread with its latch takes no other.
class ZeroCopy {
 public:
  // The object serves another connection from now on.
  void Reset();
  // In the child of a fork.  The parent reports what waits.  One of its threads
  // may have held the latch.
  void ForkChild() {
    latch_.Reset();
    waiting_.store(0, std::memory_order_relaxed);
  }
  // The kernel has taken bytes of a call.
  void ByKernel();
  // A call was copied.  Its completion is reported in any case.  Returns false
  // if the list of completions is half full: then the caller should make no
  // further such call.
  bool Copied();
  // Takes over what is on the error queue of `fd`.  Returns false if nothing
  // was there.
  bool Drain(int fd);
  bool empty() const { return waiting_.load(std::memory_order_acquire) == 0; }
  // Takes the first completion, in the form of recvmsg(MSG_ERRQUEUE): returns
  // true, with `message` filled in.  Returns false if there is none.
  bool Take(int fd, msghdr* message);

 private:
  static constexpr int kMost = 64;
  struct Range {
    std::uint32_t first;
    std::uint32_t last;
    std::uint8_t code;
  };
  // From the kernel's number `from` on, `by` is to be added.
  struct Shift {
    std::uint32_t from;
    std::uint32_t by;
  };

  void Add(std::uint32_t first, std::uint32_t last, std::uint8_t code)
      RC_REQUIRES(latch_);
  void AddKernels(std::uint32_t first, std::uint32_t last, std::uint8_t code)
      RC_REQUIRES(latch_);

  base::Latch latch_;
  // How many calls the kernel has taken so far.
  std::uint32_t kernels_ RC_GUARDED_BY(latch_) = 0;
  int shifts_ RC_GUARDED_BY(latch_) = 0;
  Shift shift_[kMost] RC_GUARDED_BY(latch_);  // in order
  std::atomic<int> waiting_{0};
  Range range_[kMost] RC_GUARDED_BY(latch_);
};

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_SOCKET_ZERO_COPY_H_
