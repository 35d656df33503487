#ifndef RCSOCK_LIB_POSIX_HOOKS_URING_COMPLETE_H_
#define RCSOCK_LIB_POSIX_HOOKS_URING_COMPLETE_H_

#include <cstdint>

// Completions that rcsock puts into rings of the program.
//
// The kernel alone writes a ring's completion queue, and keeps its tail to
// itself.  So rcsock asks the kernel: a private ring submits
// IORING_OP_MSG_RING, which posts a completion of any content to another ring.
// As every completion, it wakes the threads that wait there.
//
// Any thread may call these functions.
namespace rcsock::posix::uring {

struct Completion {
  int ring = -1;  // descriptor of the ring
  std::uint64_t data = 0;
  std::int32_t result = 0;
  std::uint32_t flags = 0;  // IORING_CQE_F_*
};

// What this kernel can do.  The first call makes the private ring, and tries.
struct Abilities {
  bool posts = false;   // Complete works: Linux 5.18
  bool flags = false;   // Complete delivers flags: Linux 6.3
  bool inject = false;  // IORING_OP_NOP has a result: Linux 6.10
};
Abilities KernelAbilities();

// Posts `count` completions, in this order.  A ring that is gone gets none.
void Complete(const Completion* completions, int count);

// In the child of fork.  The parent's private ring is not the child's.
void CompleteForkChild();

}  // namespace rcsock::posix::uring

#endif  // RCSOCK_LIB_POSIX_HOOKS_URING_COMPLETE_H_
