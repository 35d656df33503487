#ifndef RCSOCK_LIB_POSIX_THREAD_CALL_MARKS_H_
#define RCSOCK_LIB_POSIX_THREAD_CALL_MARKS_H_

#include <atomic>

#include "lib/base/barrier.h"

namespace rcsock::posix {

// Which streams the threads of this process are in the kernel with (I-MARK-1).
// Each thread has marks of its own.  It writes a stream there before a call in
// the kernel and null after it, by plain stores.  A thread that must know that
// no call is inside fences for all threads (FenceCalls), then looks at their
// marks (CallIn).
//
// The argument is Dekker's.  A call stores its mark, then looks at what forbids
// it (Sock::mode_, the table).  The forbidding thread stores that, fences, then
// looks at marks.  Its fence, membarrier's, falls into the calling thread
// either before its store or after.  If before, the call sees what the
// forbidding thread stored.  If after, the forbidding thread sees the mark.  At
// its end a call clears its mark, then asks LaneState::Wanted, which was set
// before the fence.  The argument is the same.
//
// A mark is its thread's own, as errno is.  If two threads share thread-local
// storage (clone() without CLONE_SETTLS), either could clear the other's marks.
// So no stream is adopted any more then (hook::BeforeClone).  A child of vfork
// uses the marks of its parent's thread, which is stopped meanwhile.
//
// If a thread is in more calls than it has marks, locked additions count the
// rest (PlainCalls).  This happens for handlers within handlers.  It also
// happens after handlers have jumped out of calls: the marks of these calls
// stay for good.
using CallMark = std::atomic<const void*>;

struct alignas(64) ThreadCalls {
  static constexpr int kDepth = 6;
  CallMark in[kDepth];  // innermost last, unless a handler jumped out of a call
  ThreadCalls* next;    // list of all; none is ever removed
  std::atomic<bool> taken;
};

// The marks of a thread that has none: no place is free.
extern constinit ThreadCalls no_calls;
extern thread_local constinit ThreadCalls* tls_calls
    __attribute__((tls_model("initial-exec")));

// For a thread whose first place is taken, or for its first call.  Null: there
// is no place.
[[gnu::noinline]] CallMark* MarkMore(const void* stream);

// If a handler interrupts this between look and store, it leaves the place free
// again.
inline CallMark* MarkCall(const void* stream) {
  CallMark* mark = tls_calls->in;
  if (mark->load(std::memory_order_relaxed) != nullptr) [[unlikely]] {
    return MarkMore(stream);
  }
  mark->store(stream, std::memory_order_relaxed);
  base::LightFence();
  return mark;
}

// release: a thread that finds the mark gone sees what the call has counted.
inline void UnmarkCall(CallMark* mark) {
  mark->store(nullptr, std::memory_order_release);
  base::LightFence();
}

// False: marks may stand unseen, since membarrier is refused, for all time.
bool FenceCalls();
// Whether a call is inside with the stream.  Exact after FenceCalls alone.
bool CallIn(const void* stream);
// As CallIn, without a fence, in a program of one thread, which is the caller.
// Returns true also if another thread has marks at all, such as the conductor.
// A thread takes its marks by a locked instruction, and so does the caller the
// latch that it holds.  So a thread that has no marks yet finds later what the
// caller has done before.
bool MayBeIn(const void* stream);
// Calls `each` for every stream with a mark, maybe several times.
void ForEachCall(void (*each)(void* stream));

// Called after InitBarriers.
void InitCalls();
// In the child no other thread is left.  This thread's marks stay, since a
// handler that forked may return to its calls.
void CallsForkChild();

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_THREAD_CALL_MARKS_H_
