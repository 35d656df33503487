#include "lib/base/pool.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstdint>
#include <new>

#include "lib/base/backoff.h"

namespace rcsock::base {
namespace {

constexpr std::size_t kHuge = 2 * 1024 * 1024;
constexpr std::size_t kFirst = 64 * 1024;

constinit Latch pools_latch;
constinit Pool* pools RC_GUARDED_BY(pools_latch) = nullptr;

}  // namespace

// Called before the pool's latch is taken for the first time: fork takes the
// latches of the pools on the list.
void Pool::List() noexcept {
  pools_latch.lock();
  if (!listed_.load(std::memory_order_relaxed)) {
    next_ = pools;
    pools = this;
    listed_.store(true, std::memory_order_relaxed);
  }
  pools_latch.unlock();
}

bool Pool::Grow() {
  // The size doubles each time, so a program of few streams takes little.
  const std::size_t size = chunk_ == 0      ? kFirst
                           : chunk_ < kHuge ? 2 * chunk_
                                            : kHuge;
  const int saved = errno;
  // A huge page must begin at a multiple of its size.
  const std::size_t room = size == kHuge ? 2 * kHuge : size;
  void* map = ::mmap(nullptr, room, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (map == MAP_FAILED) {
    errno = saved;
    return false;
  }
  auto* base = static_cast<std::byte*>(map);
  if (room != size) {
    const std::size_t skip =
        (kHuge - reinterpret_cast<std::uintptr_t>(base) % kHuge) % kHuge;
    if (skip != 0) ::munmap(base, skip);
    ::munmap(base + skip + size, room - skip - size);
    base += skip;
    ::madvise(base, size, MADV_HUGEPAGE);
  }
  errno = saved;
  chunk_ = size;
  at_ = base;
  end_ = base + size;
  return true;
}

void* Pool::Take() noexcept {
#if defined(__SANITIZE_ADDRESS__)
  return ::operator new (size_, std::align_val_t{kLine}, std::nothrow);
#endif
  if (!listed_.load(std::memory_order_relaxed)) [[unlikely]] {
    List();
  }
  latch_.lock();
  void* block = free_;
  if (block != nullptr) {
    free_ = *static_cast<void**>(block);
  } else if (static_cast<std::size_t>(end_ - at_) >= size_ || Grow()) {
    block = at_;
    at_ += size_;
  }
  latch_.unlock();
  return block;
}

void Pool::Give(void* block) noexcept {
  if (block == nullptr) return;
#if defined(__SANITIZE_ADDRESS__)
  ::operator delete (block, std::align_val_t{kLine});
  return;
#endif
  latch_.lock();
  *static_cast<void**>(block) = free_;
  free_ = block;
  latch_.unlock();
}

// No thread waits here with pools_latch held: a thread that lists a pool may
// hold other latches.
//
// The analysis cannot count the latches of a list, which stay held on return.
void PoolsForkLock() RC_NO_LOCK_CHECK {
  for (Backoff backoff;; backoff.Wait()) {
    pools_latch.lock();
    Pool* at = pools;
    while (at != nullptr && at->latch_.try_lock()) at = at->next_;
    if (at == nullptr) return;
    for (Pool* held = pools; held != at; held = held->next_) {
      held->latch_.unlock();
    }
    pools_latch.unlock();
  }
}

void PoolsForkUnlock(bool child) {
  pools_latch.AssertUnshared();
  for (Pool* at = pools; at != nullptr; at = at->next_) {
    at->latch_.UnlockAfterFork(child);
  }
  pools_latch.UnlockAfterFork(child);
}

}  // namespace rcsock::base
