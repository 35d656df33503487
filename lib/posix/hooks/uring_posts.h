#ifndef RCSOCK_LIB_POSIX_HOOKS_URING_POSTS_H_
#define RCSOCK_LIB_POSIX_HOOKS_URING_POSTS_H_

#include <cstdint>

#include "lib/posix/fd/close.h"
#include "lib/posix/hooks/uring_complete.h"
#include "lib/posix/hooks/uring_serve.h"

// What a pass over held requests leaves to be done.
namespace rcsock::posix::uring {

// Completions that are about to be posted.
struct Posts {
  explicit Posts(int to) : ring(to) {}

  static constexpr int kMost = 64;
  int ring;
  int count = 0;
  int total = 0;
  Completion some[kMost];

  void Add(const Held& held, int result, std::uint32_t flags) {
    if (held.quiet && result >= 0) return;
    if (count == kMost) Post();
    some[count++] = {ring, held.data, result, flags};
    ++total;
  }
  void Post() {
    Complete(some, count);
    count = 0;
  }
};

// Numbers of rcsock's own without a request.  They are closed without the
// latch.
struct Closing {
  static constexpr int kMost = 64;
  int count = 0;
  int fds[kMost];

  void Close() const {
    for (int i = 0; i < count; ++i) CloseAny(fds[i]);
  }
};

}  // namespace rcsock::posix::uring

#endif  // RCSOCK_LIB_POSIX_HOOKS_URING_POSTS_H_
