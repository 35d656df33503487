#include "lib/posix/fd/close.h"

#include <atomic>

namespace rcsock::posix {

constinit std::atomic<int> known_rings{0};

namespace {

constinit std::atomic<ForgetRings> forget_rings{nullptr};

}  // namespace

void CountRing(ForgetRings forget) {
  forget_rings.store(forget, std::memory_order_relaxed);
  known_rings.fetch_add(1, std::memory_order_release);
}

void ForgetKnownRings(unsigned first, unsigned last) {
  // The caller has seen the count, which rises after the store.
  std::atomic_thread_fence(std::memory_order_acquire);
  forget_rings.load(std::memory_order_relaxed)(first, last);
}

}  // namespace rcsock::posix
