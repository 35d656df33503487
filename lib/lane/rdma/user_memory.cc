#include "lib/lane/rdma/user_memory.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <mutex>
#include <new>
#include <vector>

#include "lib/base/log.h"

namespace rcsock::lane::rdma {
namespace {

// Leaked: a thread may still send when the process ends.
struct All {
  base::Latch latch;
  std::vector<std::shared_ptr<UserMemory>> list;  // sorted
  std::vector<std::uintptr_t> begins;
  std::vector<std::uintptr_t> ends;
};
All& Registry() {
  static auto* all = new All;
  return *all;
}
constinit std::atomic<bool> any{false};

int Process() { return static_cast<int>(::syscall(SYS_getpid)); }

}  // namespace

UserMemory::UserMemory(std::byte* base, std::size_t length)
    : base_(base), length_(length), process_(Process()) {}

UserMemory::~UserMemory() {
  if (Process() == process_) return;
  for (Device& device : devices_) (void)device.mr.release();
}

int UserMemory::Add(void* base, std::size_t length) {
  const auto begin = reinterpret_cast<std::uintptr_t>(base);
  if (base == nullptr || length == 0 || begin + length < begin) return EINVAL;
  try {
    auto one =
        std::make_shared<UserMemory>(static_cast<std::byte*>(base), length);
    All& all = Registry();
    std::scoped_lock hold(all.latch);
    const auto at = std::upper_bound(all.begins.begin(), all.begins.end(),
                                     begin + length - 1) -
                    all.begins.begin();
    if (at > 0 && all.ends[static_cast<std::size_t>(at) - 1] > begin) {
      return EEXIST;
    }
    all.list.reserve(all.list.size() + 1);
    all.begins.reserve(all.begins.size() + 1);
    all.ends.reserve(all.ends.size() + 1);
    all.list.insert(all.list.begin() + at, std::move(one));
    all.begins.insert(all.begins.begin() + at, begin);
    all.ends.insert(all.ends.begin() + at, begin + length);
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
  std::scoped_lock hold(all.latch);
  const auto at =
      std::lower_bound(all.begins.begin(), all.begins.end(), begin) -
      all.begins.begin();
  const auto i = static_cast<std::size_t>(at);
  if (i == all.begins.size() || all.begins[i] != begin ||
      all.ends[i] != begin + length) {
    return ENOENT;
  }
  if (all.list[i]->holds_.load(std::memory_order_acquire) != 0) return EBUSY;
  gone = std::move(all.list[i]);
  all.list.erase(all.list.begin() + at);
  all.begins.erase(all.begins.begin() + at);
  all.ends.erase(all.ends.begin() + at);
  any.store(!all.list.empty(), std::memory_order_release);
  return 0;
}

std::shared_ptr<UserMemory> UserMemory::Find(const void* from,
                                             std::size_t length) {
  if (!any.load(std::memory_order_acquire)) return nullptr;
  const auto begin = reinterpret_cast<std::uintptr_t>(from);
  All& all = Registry();
  std::scoped_lock hold(all.latch);
  const auto at =
      std::upper_bound(all.begins.begin(), all.begins.end(), begin) -
      all.begins.begin();
  if (at == 0) return nullptr;
  const auto i = static_cast<std::size_t>(at) - 1;
  if (begin >= all.ends[i] || length > all.ends[i] - begin) return nullptr;
  return all.list[i];
}

void UserMemory::Forget(ibv_pd* pd) {
  All& all = Registry();
  std::scoped_lock hold(all.latch);
  for (const auto& one : all.list) {
    std::scoped_lock own(one->latch_);
    for (Device& device : one->devices_) {
      if (device.pd == pd) device = Device();
    }
  }
}

bool UserMemory::LocalKey(ibv_pd* pd, std::uint32_t* key) {
  std::scoped_lock hold(latch_);
  if (Process() != process_) return false;
  for (Device& device : devices_) {
    if (device.pd != nullptr && device.pd != pd) continue;
    if (device.pd == nullptr) {
      // (Room may come; what the device refuses it will go on refusing.)
      if (!device.pin.Take(length_)) {
        RCSOCK_LOG(2, "rdma: %zu bytes to send from are beyond the limit",
                   length_);
        return false;
      }
      verbs::Error error;
      device.pd = pd;
      device.mr = verbs::Register(pd, base_, length_, 0, &error);
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
