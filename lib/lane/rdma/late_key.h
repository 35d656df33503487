#ifndef RCSOCK_LIB_LANE_RDMA_LATE_KEY_H_
#define RCSOCK_LIB_LANE_RDMA_LATE_KEY_H_

#include <cstddef>
#include <cstdint>

#include "lib/gpu/memory.h"
#include "lib/verbs/verbs.h"

namespace rcsock::lane::rdma {

// A key by which a peer may still write, although its memory is no longer
// registered. The peer took the target before it saw the withdrawal, and its
// write is under way. The device refuses that write only while the key means
// nothing. But devices give the key of a region that has gone to the next
// region. So memory for peers is registered by RegisterForPeers, which avoids
// this key.
//
// Threads: one at a time.
class LateKey {
 public:
  LateKey() = default;
  ~LateKey() { Release(); }
  LateKey(const LateKey&) = delete;
  LateKey& operator=(const LateKey&) = delete;

  // Called before the region goes. The peer uses the key for no data byte of
  // the lane from `until` on.
  void Keep(std::uint32_t key, std::uint64_t until);
  void KeepUntil(std::uint64_t until) { until_ = until; }
  void Release();
  bool kept() const { return kept_; }
  std::uint64_t until() const { return until_; }

 private:
  std::uint64_t until_ = 0;
  std::uint32_t key_ = 0;
  bool kept_ = false;
};

// verbs::Register for memory that a peer may write to, with a key that no late
// write has. `device` has the memory; null: the host.
verbs::Mr RegisterForPeers(ibv_pd* pd, void* at, std::size_t length, int access,
                           verbs::Error* error,
                           const gpu::Memory* device = nullptr);

}  // namespace rcsock::lane::rdma

#endif  // RCSOCK_LIB_LANE_RDMA_LATE_KEY_H_
