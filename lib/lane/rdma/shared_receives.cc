#include "lib/lane/rdma/shared_receives.h"

#include <cerrno>
#include <utility>

#include "lib/base/log.h"

namespace rcsock::lane::rdma {
namespace {

// If every lane is at its most, no used receive is posted and nothing is lost,
// kBorne are left.
constexpr std::uint32_t kLimit = SharedReceives::kBorne / 2;

}  // namespace

bool SharedReceives::Open(ibv_pd* pd, Memory* memory, const Limits& limits,
                          std::uint32_t capacity, verbs::Error* error) {
  pd_ = pd;
  memory_ = memory;
  limits_ = limits;
  capacity_ = capacity;
  if (limits.receives == 0) return true;
  // One scatter entry even if none is used: some devices want one in each
  // receive.
  srq_ = verbs::CreateSrq(pd, Count(capacity), 1, error);
  if (srq_ == nullptr) {
    // A driver may count queues that its provider cannot make.
    const bool none = error->code == EOPNOTSUPP || error->code == ENOSYS;
    if (none) *error = {};
    return none;
  }
  receives_ = Receives();
  receives_.Open(limits.iwarp ? memory : nullptr, Count(capacity), kRefill,
                 generation_);
  return true;
}

// On iWARP each receive has memory, so there are only as many as the lanes can
// use.
bool SharedReceives::PostFor(std::uint32_t lanes, verbs::Error* error) {
  if (srq_ == nullptr) return true;
  const std::uint32_t count = Count(limits_.iwarp ? lanes : capacity_);
  if (!receives_.Extend(srq_.get(), count, error)) return false;
  // After the receives: a queue with fewer than its limit reports at once. If
  // the device has no limits, the losses that are counted have to do.
  if (!limit_set_ && !limits_.lazy_events) {
    verbs::SetLimit(srq_.get(), kLimit);
    limit_set_ = true;
  }
  return true;
}

void SharedReceives::NoteLost() {
  if (srq_ == nullptr || limits_.lazy_events) return;
  ++lost_;
}

bool SharedReceives::Renew(verbs::Error* error) {
  SharedReceives fresh;
  fresh.generation_ = static_cast<std::uint16_t>(generation_ + 1);
  if (!fresh.Open(pd_, memory_, limits_, capacity_, error)) return false;
  RCSOCK_LOG(2, "rdma: a new shared receive queue, after %u losses", lost_);
  // The old receives' memory goes after their queue.
  srq_.reset();
  *this = std::move(fresh);
  return true;
}

}  // namespace rcsock::lane::rdma
