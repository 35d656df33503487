#ifndef RCSOCK_LIB_BASE_ALONE_H_
#define RCSOCK_LIB_BASE_ALONE_H_

#include <atomic>

namespace rcsock::base {

// True while the program has one thread and has cancelled nothing: no
// cancellation can be due then.  libc sees our own thread and makes its caller
// cancellable around each blocking call, by two atomic operations; who is alone
// goes past that, as libc does in a process of one thread (lib/base/direct.h).
//
// Relaxed: the program's only thread is the one that ends it, before it makes
// the second (or cancels itself), so nobody can be cancelled who still sees
// true.  Never true again: a thread may be joined, but may have left a
// cancellation behind.
extern constinit std::atomic<bool> alone;

inline bool Alone() {
  return __builtin_expect(alone.load(std::memory_order_relaxed), 1);
}

// The calls that make threads and cancel come here from now on, and none has
// come that ended it already.  Not where a library behind us has blocking calls
// of its own.
void BeginAlone();
void EndAlone();

}  // namespace rcsock::base

#endif  // RCSOCK_LIB_BASE_ALONE_H_
