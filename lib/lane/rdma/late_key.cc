#include "lib/lane/rdma/late_key.h"

#include <atomic>
#include <cerrno>
#include <utility>

#include "lib/lane/rdma/device_memory.h"

namespace rcsock::lane::rdma {
namespace {

// How many keys of each remainder are late. A key that only shares its
// remainder with a late key is passed over too. A child of fork begins with its
// parent's counts.
constexpr std::size_t kRemainders = 4096;
constinit std::atomic<std::uint16_t> late[kRemainders]{};

// mlx5 counts in the low byte of its keys, and has the index above.
std::atomic<std::uint16_t>& Count(std::uint32_t key) {
  return late[(key ^ key >> 12 ^ key >> 24) % kRemainders];
}

constexpr int kTries = 4;

}  // namespace

void LateKey::Keep(std::uint32_t key, std::uint64_t until) {
  Release();
  key_ = key;
  until_ = until;
  kept_ = true;
  Count(key).fetch_add(1, std::memory_order_seq_cst);
}

void LateKey::Release() {
  if (!std::exchange(kept_, false)) return;
  Count(key_).fetch_sub(1, std::memory_order_seq_cst);
}

verbs::Mr RegisterForPeers(ibv_pd* pd, void* at, std::size_t length, int access,
                           verbs::Error* error, const gpu::Memory* device) {
  // The regions passed over go last, or the device would give their keys again.
  verbs::Mr passed[kTries];
  for (verbs::Mr& mr : passed) {
    mr = device != nullptr
             ? RegisterDevice(pd, *device, at, length, access, error)
             : verbs::Register(pd, at, length, access, error);
    if (mr == nullptr || Count(mr->rkey).load(std::memory_order_seq_cst) == 0) {
      return std::move(mr);
    }
  }
  error->call = "ibv_reg_mr";
  error->code = EAGAIN;
  return nullptr;
}

}  // namespace rcsock::lane::rdma
