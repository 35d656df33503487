#ifndef RCSOCK_LIB_BASE_ALONE_H_
#define RCSOCK_LIB_BASE_ALONE_H_

#include <atomic>

namespace rcsock::base {

// True while the program has one thread and has cancelled nothing: then no
// cancellation can be due. libc sees rcsock's own thread, and makes its caller
// cancellable around each blocking call, by two atomic operations. While
// `alone` holds, rcsock leaves these out, as libc does in a process of one
// thread (lib/base/direct.h).
//
// Relaxed: the program's only thread sets `alone` to false, before it makes the
// second thread or cancels itself. So no thread that still sees true can be
// cancelled. `alone` never becomes true again: a thread that has been joined
// may have left a cancellation behind.
extern constinit std::atomic<bool> alone;

inline bool Alone() {
  return __builtin_expect(alone.load(std::memory_order_relaxed), 1);
}

// True while `alone` is, and rcsock has made no thread that knows the program's
// streams either. Then the calling thread is the only one that touches them.
// Where no handler may run, it may do without their latches (I-LONE-1).
// Relaxed, for the same reason.
extern constinit std::atomic<bool> lone;

inline bool Lone() {
  return __builtin_expect(lone.load(std::memory_order_relaxed), 1);
}

// Requires that each call that makes a thread or cancels now comes to EndAlone.
// Does nothing if one of these calls has come already, or if a library behind
// rcsock has blocking calls of its own.
void BeginAlone();
void EndAlone();
// Called before rcsock makes a thread that knows streams.
void EndLone();
// In the child of a fork, where the thread that forked is the only one.
void LoneForkChild();

}  // namespace rcsock::base

#endif  // RCSOCK_LIB_BASE_ALONE_H_
