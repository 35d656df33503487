#ifndef RCSOCK_LIB_BASE_POOL_H_
#define RCSOCK_LIB_BASE_POOL_H_

#include <atomic>
#include <cstddef>

#include "lib/base/latch.h"

namespace rcsock::base {

// Memory for objects of one kind, side by side, in lines of their own. For each
// event a server of thousands of streams touches a few objects of one stream.
// Scattered over the heap, each object would cost a miss of the TLB besides the
// miss of the cache. So many objects lie in huge pages. A pool never gives
// memory back to the system. Any thread may call Take and Give.
//
// For static storage only (constinit).
class Pool {
 public:
  explicit constexpr Pool(std::size_t size)
      : size_((size + kLine - 1) / kLine * kLine) {}
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  // Returns null when out of memory.
  void* Take() noexcept;
  void Give(void* block) noexcept;

 private:
  friend void PoolsForkLock();
  friend void PoolsForkUnlock(bool child);
  static constexpr std::size_t kLine = 64;

  void List() noexcept;
  bool Grow() RC_REQUIRES(latch_);

  const std::size_t size_;
  Latch latch_;
  std::atomic<bool> listed_{false};  // set once, under pools_latch
  // Each free block holds the address of the next.
  void* free_ RC_GUARDED_BY(latch_) = nullptr;
  std::byte* at_ RC_GUARDED_BY(latch_) = nullptr;
  std::byte* end_ RC_GUARDED_BY(latch_) = nullptr;
  std::size_t chunk_ RC_GUARDED_BY(latch_) = 0;  // bytes of the last chunk
  Pool* next_ = nullptr;  // in the list of used pools; pools_latch's
};

// Around fork. The latches of the pools are the last taken, and the first given
// back.
void PoolsForkLock();
void PoolsForkUnlock(bool child);

}  // namespace rcsock::base

#endif  // RCSOCK_LIB_BASE_POOL_H_
