#include "lib/lane/rdma/user_memory.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <new>
#include <utility>
#include <vector>

#include "lib/base/critical.h"
#include "lib/base/log.h"
#include "lib/lane/rdma/device_memory.h"

namespace rcsock::lane::rdma {
namespace {

// Leaked: a thread may still send when the process ends. Fork takes the
// latches, so a handler that forks waits until they are free (Critical).
struct All {
  base::Latch latch;
  // Sorted, without overlaps.
  std::vector<std::shared_ptr<UserMemory>> list RC_GUARDED_BY(latch);
};
All& Registry() {
  static auto* all = new All;
  return *all;
}
constinit std::atomic<bool> any{false};

// The first memory that begins after `at`.
auto FirstAfter(std::vector<std::shared_ptr<UserMemory>>& list,
                std::uintptr_t at) {
  return std::upper_bound(list.begin(), list.end(), at,
                          [](std::uintptr_t value, const auto& one) {
                            return value < one->begin();
                          });
}

}  // namespace

UserMemory::UserMemory(std::byte* base, std::size_t length,
                       std::shared_ptr<gpu::Memory> device)
    : base_(base), length_(length), device_(std::move(device)) {}

UserMemory::~UserMemory() = default;

void UserMemory::ForkPrepare() {
  All& all = Registry();
  all.latch.LockForFork();
  all.latch.AssertHeld();
  for (const auto& one : all.list) one->latch_.LockForFork();
  gpu::Memory::ForkPrepare();
}

void UserMemory::ForkParent() {
  gpu::Memory::ForkParent();
  All& all = Registry();
  all.latch.AssertHeld();
  for (const auto& one : all.list) one->latch_.UnlockAfterFork(false);
  all.latch.UnlockAfterFork(false);
}

void UserMemory::ForkChild() {
  All& all = Registry();
  all.latch.AssertUnshared();
  for (const auto& one : all.list) {
    one->latch_.AssertUnshared();
    for (Device& device : one->devices_) {
      (void)device.mr.release();
      device.pin.Forget();
      device = Device();
    }
    one->holds_.store(0, std::memory_order_relaxed);
    one->latch_.Reset();
  }
  gpu::Memory::ForkChild();
  // No driver works in the child, so nothing may end these objects.
  std::erase_if(all.list, [](std::shared_ptr<UserMemory>& one) {
    if (one->device_ == nullptr) return false;
    new std::shared_ptr<UserMemory>(std::move(one));
    return true;
  });
  any.store(!all.list.empty(), std::memory_order_release);
  all.latch.Reset();
}

int UserMemory::Add(void* base, std::size_t length) {
  const auto begin = reinterpret_cast<std::uintptr_t>(base);
  if (base == nullptr || length == 0 || begin + length < begin) return EINVAL;
  try {
    std::shared_ptr<gpu::Memory> device;
    const int error = gpu::Memory::Find(base, length, &device);
    if (error != 0) return error;
    auto one = std::make_shared<UserMemory>(static_cast<std::byte*>(base),
                                            length, std::move(device));
    All& all = Registry();
    const base::Critical critical;
    base::LatchGuard hold(all.latch);
    const auto after = FirstAfter(all.list, begin + length - 1);
    if (after != all.list.begin() && (*std::prev(after))->end() > begin) {
      return EEXIST;
    }
    all.list.insert(after, std::move(one));
    any.store(true, std::memory_order_release);
    return 0;
  } catch (const std::bad_alloc&) {
    return ENOMEM;
  }
}

int UserMemory::Remove(void* base, std::size_t length) {
  const auto begin = reinterpret_cast<std::uintptr_t>(base);
  if (base == nullptr || length == 0) return EINVAL;
  // Deregistered outside the latch, and not before the last lane lets go.
  std::shared_ptr<UserMemory> gone;
  All& all = Registry();
  const base::Critical critical;
  base::LatchGuard hold(all.latch);
  auto found = FirstAfter(all.list, begin);
  if (found == all.list.begin()) return ENOENT;
  --found;
  if ((*found)->begin() != begin || (*found)->length_ != length) return ENOENT;
  if ((*found)->holds_.load(std::memory_order_acquire) != 0) return EBUSY;
  gone = std::move(*found);
  all.list.erase(found);
  any.store(!all.list.empty(), std::memory_order_release);
  return 0;
}

std::shared_ptr<UserMemory> UserMemory::Find(const void* from,
                                             std::size_t length) {
  if (!any.load(std::memory_order_acquire)) return nullptr;
  const auto begin = reinterpret_cast<std::uintptr_t>(from);
  All& all = Registry();
  const base::Critical critical;
  base::LatchGuard hold(all.latch);
  const auto after = FirstAfter(all.list, begin);
  if (after == all.list.begin()) return nullptr;
  const std::shared_ptr<UserMemory>& one = *std::prev(after);
  return one->Has(static_cast<const std::byte*>(from), length) ? one : nullptr;
}

void UserMemory::Forget(ibv_pd* pd) {
  All& all = Registry();
  base::LatchGuard hold(all.latch);
  for (const auto& one : all.list) {
    base::LatchGuard own(one->latch_);
    for (Device& device : one->devices_) {
      if (device.pd == pd) device = Device();
    }
  }
}

bool UserMemory::CopyOut(void* to, const std::byte* from,
                         std::size_t length) const {
  if (device_ != nullptr) return device_->CopyOut(to, from, length) == 0;
  std::memcpy(to, from, length);
  return true;
}

bool UserMemory::LocalKey(ibv_pd* pd, std::uint32_t* key) {
  base::LatchGuard hold(latch_);
  for (Device& device : devices_) {
    if (device.pd != nullptr && device.pd != pd) continue;
    if (device.pd == nullptr) {
      // Room may come, but what the device refuses now it will refuse again.
      if (!device.pin.Take(length_)) {
        RCSOCK_LOG(2, "rdma: %zu bytes to send from are beyond the limit",
                   length_);
        return false;
      }
      verbs::Error error;
      device.pd = pd;
      device.mr = device_ != nullptr
                      ? RegisterDevice(pd, *device_, base_, length_, 0, &error)
                      : verbs::Register(pd, base_, length_, 0, &error);
      device.refused = device.mr == nullptr;
      if (device.refused) {
        device.pin.reset();
        RCSOCK_LOG(1, "rdma: %zu bytes of the program's: %s: %d", length_,
                   error.call, error.code);
      }
    }
    if (device.refused) return false;
    *key = device.mr->lkey;
    return true;
  }
  return false;
}

}  // namespace rcsock::lane::rdma
