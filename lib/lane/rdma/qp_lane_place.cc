// The part of QpLane that writes straight into memory that the peer exposes.

#include <cerrno>
#include <mutex>
#include <new>
#include <utility>

#include "lib/lane/rdma/chain.h"
#include "lib/lane/rdma/qp_lane.h"

namespace rcsock::lane::rdma {
namespace {

constexpr std::size_t kMostExposed = 4096;
// Beside what control messages and credits may need.
constexpr std::uint32_t kRoom = 20;

}  // namespace

int QpLane::Expose(void* at, std::size_t length, std::uint32_t* key) {
  if (Closed()) return -ESTALE;
  if (exposed_.size() >= kMostExposed) return -ENOBUFS;
  try {
    exposed_.reserve(exposed_.size() + 1);
  } catch (const std::bad_alloc&) {
    return -ENOMEM;
  }
  verbs::Error error;
  verbs::Mr mr =
      verbs::Register(memory_->pd(), at, length,
                      IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE, &error);
  if (mr == nullptr) return error.code == EFAULT ? -EFAULT : -ENOMEM;
  *key = mr->rkey;
  exposed_.push_back(std::move(mr));
  return 0;
}

void QpLane::Hide(std::uint32_t key) {
  std::erase_if(exposed_,
                [&](const verbs::Mr& one) { return one->rkey == key; });
}

// The device carries out the requests of a QP in their order, and tells the
// receiver of a message when all that came before it is in its place.
std::int64_t QpLane::Place(const void* from, std::size_t length,
                           std::uint64_t to, std::uint32_t key) {
  if (!tx_ || Closed()) return -ESTALE;
  if (length > ring::kMaxLength) return -EMSGSIZE;
  std::uint32_t lkey = 0;
  auto memory = UserMemory::Find(from, length);
  if (memory == nullptr || !memory->LocalKey(memory_->pd(), &lkey)) {
    return -ENOBUFS;
  }
  // Registered until the next one, at least: who takes it back waits for what
  // it has placed.
  placing_from_ = std::move(memory);
  LookForCredit();
  if (Closed()) return -ESTALE;
  std::scoped_lock hold(post_latch_);
  if (Room() < kRoom) return 0;
  Chain chain(this);
  chain.Place(from, static_cast<std::uint32_t>(length), lkey, to, key);
  // Acknowledged by a device of InfiniBand or RoCE, it is there.
  if (!iwarp_) chain.Ticket();
  chain.Post();
  placed_wrs_ = posted_wrs_;
  if (!iwarp_) fence_wrs_ = posted_wrs_;
  return static_cast<std::int64_t>(placed_wrs_);
}

bool QpLane::Placed(std::int64_t ticket) {
  const auto wrs = static_cast<std::uint64_t>(ticket);
  poller_->Collect();
  if (fenced_wrs_.load(std::memory_order_acquire) >= wrs) return true;
  std::scoped_lock hold(post_latch_);
  if (fence_wrs_ < wrs && Room() >= kRoom && !Closed()) {
    Chain chain(this);
    chain.Fence();
    chain.Ticket();
    chain.Post();
    fence_wrs_ = posted_wrs_;
  }
  return false;
}

}  // namespace rcsock::lane::rdma
