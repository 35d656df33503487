#ifndef RCSOCK_LIB_LANE_RDMA_DEFERRED_H_
#define RCSOCK_LIB_LANE_RDMA_DEFERRED_H_

#include <atomic>

#include "lib/base/latch.h"

namespace rcsock::lane::rdma {

class QpLane;

// The lanes of a domain that have a write waiting. Threads: any.
class Deferred {
 public:
  // Calls `fn` when something begins to wait. `fn` arranges that Flush() is
  // called within about a millisecond. Until then `fn` is not called again.
  void SetTimer(void (*fn)(void*), void* arg) {
    arg_ = arg;
    fn_.store(fn, std::memory_order_release);
  }
  // If there is no timer, nothing may wait: a thread that has sent need not
  // come back.
  bool Enabled() const {
    return fn_.load(std::memory_order_relaxed) != nullptr;
  }
  void Add(QpLane* lane);
  void Remove(QpLane* lane);
  // Any thread may call it. If nothing waits, the call costs one look.
  void Flush() {
    if (count_.load(std::memory_order_seq_cst) != 0) FlushAll();
  }

 private:
  void FlushAll();

  std::atomic<void (*)(void*)> fn_{nullptr};
  void* arg_ = nullptr;
  std::atomic<int> count_{0};
  base::Latch latch_;
  QpLane* first_ RC_GUARDED_BY(latch_) = nullptr;
};

}  // namespace rcsock::lane::rdma

#endif  // RCSOCK_LIB_LANE_RDMA_DEFERRED_H_
