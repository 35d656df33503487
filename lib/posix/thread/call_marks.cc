#include "lib/posix/thread/call_marks.h"

#include <pthread.h>

#include <new>

#include "lib/base/pool.h"
#include "lib/base/start_data.h"
#include "lib/posix/thread/bell_shares.h"
#include "lib/posix/thread/signals.h"

namespace rcsock::posix {

constinit ThreadCalls no_calls{{&no_calls}, nullptr, true};
thread_local constinit ThreadCalls* tls_calls
    __attribute__((tls_model("initial-exec"))) = &no_calls;

namespace {

constinit std::atomic<ThreadCalls*> all{nullptr};
// Some thread has, or has had, marks.
constinit std::atomic<bool> given{false};
RCSOCK_START_DATA constinit std::atomic<bool> possible{false};
RCSOCK_START_DATA constinit pthread_key_t key = 0;  // written before `possible`

// A later call at the end of this thread takes marks again, and libc calls this
// again, but not for ever.  The marks of the last call stay taken.
void ThreadEnds(void* own) {
  GiveQueueOfThread();
  auto* calls = static_cast<ThreadCalls*>(own);
  if (tls_calls == calls) tls_calls = &no_calls;
  for (const CallMark& mark : calls->in) {
    if (mark.load(std::memory_order_relaxed) != nullptr) return;
  }
  calls->taken.store(false, std::memory_order_release);
}

ThreadCalls* Take() {
  for (ThreadCalls* calls = all.load(std::memory_order_acquire);
       calls != nullptr; calls = calls->next) {
    bool taken = calls->taken.load(std::memory_order_relaxed);
    if (!taken && calls->taken.compare_exchange_strong(
                      taken, true, std::memory_order_seq_cst)) {
      return calls;
    }
  }
  static constinit base::Pool pool(sizeof(ThreadCalls));
  void* const at = pool.Take();
  if (at == nullptr) return nullptr;
  auto* const calls = new (at) ThreadCalls{{}, nullptr, true};
  calls->next = all.load(std::memory_order_relaxed);
  // seq_cst: a full fence before the first mark.  A thread that fences later
  // finds these marks.
  while (!all.compare_exchange_weak(calls->next, calls,
                                    std::memory_order_seq_cst)) {
  }
  return calls;
}

// No handler runs meanwhile: a handler could come here, too.
ThreadCalls* Begin() {
  Critical critical;
  given.store(true, std::memory_order_seq_cst);
  ThreadCalls* const calls = Take();
  if (calls == nullptr) return nullptr;
  if (::pthread_setspecific(key, calls) != 0) {
    calls->taken.store(false, std::memory_order_release);
    return nullptr;
  }
  tls_calls = calls;
  return calls;
}

}  // namespace

CallMark* MarkMore(const void* stream) {
  ThreadCalls* own = tls_calls;
  if (own == &no_calls) {
    own = possible.load(std::memory_order_acquire) ? Begin() : nullptr;
  }
  if (own == nullptr) return nullptr;
  for (CallMark& mark : own->in) {
    if (mark.load(std::memory_order_relaxed) == nullptr) {
      mark.store(stream, std::memory_order_relaxed);
      base::LightFence();
      return &mark;
    }
  }
  return nullptr;
}

bool FenceCalls() {
  // seq_cst: a thread sets this before its first mark, and then looks at what
  // forbids its call.
  if (!given.load(std::memory_order_seq_cst)) {
    base::FullFence();
    return true;
  }
  base::HeavyFenceThreads();
  return base::barriers.threads.load(std::memory_order_relaxed);
}

bool CallIn(const void* stream) {
  for (const ThreadCalls* calls = all.load(std::memory_order_acquire);
       calls != nullptr; calls = calls->next) {
    for (const CallMark& mark : calls->in) {
      if (mark.load(std::memory_order_acquire) == stream) return true;
    }
  }
  return false;
}

[[gnu::hot]] bool MayBeIn(const void* stream) {
  const ThreadCalls* const own = tls_calls;
  for (const ThreadCalls* calls = all.load(std::memory_order_seq_cst);
       calls != nullptr; calls = calls->next) {
    if (calls != own && calls->taken.load(std::memory_order_seq_cst)) {
      return true;
    }
  }
  for (const CallMark& mark : own->in) {
    if (mark.load(std::memory_order_relaxed) == stream) return true;
  }
  return false;
}

void ForEachCall(void (*each)(void* stream)) {
  for (const ThreadCalls* calls = all.load(std::memory_order_acquire);
       calls != nullptr; calls = calls->next) {
    for (const CallMark& mark : calls->in) {
      const void* stream = mark.load(std::memory_order_acquire);
      if (stream != nullptr) each(const_cast<void*>(stream));
    }
  }
}

[[gnu::cold]] void InitCalls() {
  // If libc has to allocate a key's value, no handler may set it.
  constexpr pthread_key_t kOfThread = 32;
  possible.store(base::barriers.threads.load(std::memory_order_relaxed) &&
                     ::pthread_key_create(&key, &ThreadEnds) == 0 &&
                     key < kOfThread,
                 std::memory_order_release);
}

void CallsForkChild() {
  for (ThreadCalls* calls = all.load(std::memory_order_acquire);
       calls != nullptr; calls = calls->next) {
    if (calls == tls_calls) continue;
    for (CallMark& mark : calls->in) {
      mark.store(nullptr, std::memory_order_relaxed);
    }
    calls->taken.store(false, std::memory_order_relaxed);
  }
}

}  // namespace rcsock::posix
