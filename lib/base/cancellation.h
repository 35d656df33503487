#ifndef RCSOCK_LIB_BASE_CANCELLATION_H_
#define RCSOCK_LIB_BASE_CANCELLATION_H_

#include <pthread.h>

#include <atomic>

#include "lib/base/real.h"

namespace rcsock::base {

// True once a thread has been cancelled, or has asked for asynchronous
// cancellation. From then on the program's calls go through Cancellable().
//
// Relaxed: a cancelled thread that does not see it yet sees it at one of its
// next calls, and a sleeper looks for itself (lib/base/sleep.h). A thread that
// asks for its own cancellation sets it itself.
extern constinit std::atomic<bool> cancels;

// For a load of an atomic the compiler would make one more instruction in each
// call.
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

// Runs `call()`, which the program has made, in a thread that may be cancelled:
// - If the call is a cancellation point, this function is one, too. The call
//   may find at once what it is asked for, and reach none of libc's points.
// - A thread that may be cancelled anywhere (PTHREAD_CANCEL_ASYNCHRONOUS) would
//   leave a latch locked. Inside the call it is cancelled where other threads
//   are. Otherwise it is cancelled when the call is over.
//
// The caller must have nothing to unwind. Before the type is set, and after,
// the thread may be unwound from any instruction (lib/base/sleep.cc). So if a
// handler leaves by a jump or an exception, the type stays as it is in the
// call. A late cancellation is better than a latch that stays locked.
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
