#ifndef RCSOCK_LIB_POSIX_INSIDE_H_
#define RCSOCK_LIB_POSIX_INSIDE_H_

#include <atomic>

#include "lib/base/barrier.h"

namespace rcsock::posix {

class Sock;

// Which streams the threads of this process are in the kernel with: each thread
// has marks of its own, and writes a stream there before such a call and null
// after it, by plain stores.  Whoever must know that nobody is inside fences
// for all (FenceCalls) and looks at the marks of all threads (CallIn).
//
// The argument is Dekker's.  A call stores its mark, then looks at what forbids
// it (Sock::mode_, the table); who forbids it stores that, fences, then looks
// for marks.  The fence, membarrier's, falls into the call's thread either
// before its store, so that what it looks at is as the other has left it; or
// after, and then the mark is seen.  The same at the end: a mark is cleared,
// and then LaneState::Wanted asked, which has been so before the fence.
//
// Marks are their thread's own, as errno is.  Where a thread shares that with
// the one that made it (clone() without CLONE_SETTLS), either could clear the
// other's, so then no stream is adopted any more (hook::BeforeClone).  A child
// of vfork uses the marks of its parent's thread, which is stopped meanwhile.
// A thread that is in more calls than it has marks is counted by locked
// additions (Sock::gate_): handlers within handlers, or calls that handlers
// have jumped out of, whose marks stay for good.
using CallMark = std::atomic<const void*>;

struct alignas(64) ThreadCalls {
  static constexpr int kDepth = 6;
  CallMark in[kDepth];  // innermost last, but where one was jumped out of
  ThreadCalls* next;    // of all that there are; none is ever removed
  std::atomic<bool> taken;
};

// What a thread without marks has: no place.
extern constinit ThreadCalls no_calls;
extern thread_local constinit ThreadCalls* tls_calls
    __attribute__((tls_model("initial-exec")));

// Not the first place, or the thread's first call; null: there is none.
[[gnu::noinline]] CallMark* MarkMore(const Sock* sock);

// A handler that interrupts this between look and store leaves the place free
// again.
inline CallMark* MarkCall(const Sock* sock) {
  CallMark* mark = tls_calls->in;
  if (mark->load(std::memory_order_relaxed) != nullptr) [[unlikely]] {
    return MarkMore(sock);
  }
  mark->store(sock, std::memory_order_relaxed);
  base::LightFence();
  return mark;
}

// release: what the call has counted is seen by who finds it gone.
inline void UnmarkCall(CallMark* mark) {
  mark->store(nullptr, std::memory_order_release);
  base::LightFence();
}

// False: marks may stand unseen (membarrier is refused), for all time to come.
bool FenceCalls();
// After FenceCalls, if it is to be exact.
bool CallIn(const Sock* sock);
// Each stream that a mark stands for, maybe several times.
void ForEachCall(void (*each)(Sock* sock));

// After InitBarriers.
void InitCalls();
// No other thread is left.  Those of this one stay: a handler that forked may
// return to the calls.
void CallsForkChild();

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_INSIDE_H_
