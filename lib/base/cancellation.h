#ifndef RCSOCK_LIB_BASE_CANCELLATION_H_
#define RCSOCK_LIB_BASE_CANCELLATION_H_

#include <pthread.h>

#include <atomic>

#include "lib/base/real.h"

namespace rcsock::base {

// True once a thread has been cancelled, or has asked to be cancelled anywhere:
// from then on the program's calls go through Cancellable().
//
// Relaxed: a thread that is cancelled and does not see it yet sees it at one of
// its next calls, and what sleeps looks for itself (lib/base/sleep.h).  The
// thread that asks for its own sake sets it itself.
extern constinit std::atomic<bool> cancels;

// (Of a load of an atomic the compiler makes one instruction more, in each
// call.)
[[gnu::always_inline]] inline bool Cancels() {
#ifdef __x86_64__
  static_assert(sizeof cancels == 1);
  asm goto("cmpb $0, %0\n\tjne %l[yes]" : : "m"(cancels) : "cc" : yes);
  return false;
yes:
  __attribute__((cold));
  return true;
#else
  return __builtin_expect(cancels.load(std::memory_order_relaxed), 0);
#endif
}

// `call()`, which the program has made, in a thread that may be cancelled:
//
// - It is a cancellation point, if the call is one, although it may find at
//   once what it is asked for, and then comes to none of libc's.
// - A thread that may be cancelled anywhere (PTHREAD_CANCEL_ASYNCHRONOUS) would
//   leave a latch locked.  Inside the call it is cancelled where others are,
//   and when the call is over, if nothing else came of it.
//
// It must have nothing to unwind: before the type is set, and after, the thread
// may be unwound from any instruction (see lib/base/sleep.cc).  So what a
// handler leaves by a jump or an exception stays as it is in the call; a thread
// that is cancelled late is better than one that leaves a latch.
template <bool kPoint, class Call>
[[gnu::noinline, gnu::cold]] auto Cancellable(Call call) -> decltype(call()) {
  int type = PTHREAD_CANCEL_DEFERRED;
  real::pthread_setcanceltype(PTHREAD_CANCEL_DEFERRED, &type);
  if constexpr (kPoint) ::pthread_testcancel();
  if (__builtin_expect(type != PTHREAD_CANCEL_ASYNCHRONOUS, 1)) return call();
  if constexpr (__is_same(decltype(call()), void)) {
    call();
    real::pthread_setcanceltype(type, nullptr);
  } else {
    const auto result = call();
    real::pthread_setcanceltype(type, nullptr);
    return result;
  }
}

}  // namespace rcsock::base

#endif  // RCSOCK_LIB_BASE_CANCELLATION_H_
