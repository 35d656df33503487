#ifndef RCSOCK_LIB_LANE_RDMA_USER_MEMORY_H_
#define RCSOCK_LIB_LANE_RDMA_USER_MEMORY_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "lib/base/latch.h"
#include "lib/gpu/memory.h"
#include "lib/lane/rdma/memory.h"
#include "lib/verbs/verbs.h"

namespace rcsock::lane::rdma {

// Memory that the application has named for sending. The memory is registered
// with a device when the first lane of that device sends from it. It stays
// registered until the application takes it back and no lane uses it any more.
//
// Threads: any.
class UserMemory {
 public:
  static constexpr int kDevices = 4;  // one more does not send from it directly

  ~UserMemory();
  // Returns 0, or an errno: EINVAL, ENOMEM, EEXIST if it overlaps memory that
  // is named already; those of gpu::Memory::Find.
  static int Add(void* base, std::size_t length);
  // Returns 0, or an errno. ENOENT: the application has not named this memory.
  // EBUSY: a lane may still have to send from it again.
  static int Remove(void* base, std::size_t length);
  // The named memory that has all of these bytes; null: none has.
  static std::shared_ptr<UserMemory> Find(const void* from, std::size_t length);
  // The protection domain goes, and with it the registrations in it.
  static void Forget(ibv_pd* pd);
  // Around fork. The child keeps the memory that was named, for its own lanes,
  // except memory of a device.
  static void ForkPrepare();
  static void ForkParent();
  static void ForkChild();

  // Registers the memory if need be. Returns false if the device refuses, or if
  // the memory does not fit within the limit now.
  bool LocalKey(ibv_pd* pd, std::uint32_t* key);

  bool Has(const std::byte* from, std::size_t length) const {
    return from >= base_ && length <= length_ &&
           static_cast<std::size_t>(from - base_) <= length_ - length;
  }
  std::uintptr_t begin() const {
    return reinterpret_cast<std::uintptr_t>(base_);
  }
  std::uintptr_t end() const { return begin() + length_; }
  // Between these a lane needs the bytes as they are.
  void Hold() { holds_.fetch_add(1, std::memory_order_relaxed); }
  void LetGo() { holds_.fetch_sub(1, std::memory_order_release); }

  // The device that has the memory; null: the host.
  gpu::Memory* device() const { return device_.get(); }
  // Copies bytes of this memory, which lie at `from`. Returns false if they
  // cannot be read any more.
  bool CopyOut(void* to, const std::byte* from, std::size_t length) const;

  UserMemory(std::byte* base, std::size_t length,
             std::shared_ptr<gpu::Memory> device);

 private:
  struct Device : Registered {
    ibv_pd* pd = nullptr;
    bool refused = false;
  };
  std::byte* const base_;
  const std::size_t length_;
  const std::shared_ptr<gpu::Memory> device_;
  std::atomic<int> holds_{0};
  base::Latch latch_;
  Device devices_[kDevices] RC_GUARDED_BY(latch_);
};

}  // namespace rcsock::lane::rdma

#endif  // RCSOCK_LIB_LANE_RDMA_USER_MEMORY_H_
