#include "lib/lane/rdma/memory.h"

#include <cerrno>
#include <new>
#include <utility>

#include "lib/lane/rdma/late_key.h"

namespace rcsock::lane::rdma {
namespace {

constinit std::atomic<std::size_t> of_lane{0};
constinit std::atomic<void (*)()> on_grown{nullptr};
constinit std::atomic<void (*)()> on_refused{nullptr};

void Call(const std::atomic<void (*)()>& hook) {
  if (auto* fn = hook.load(std::memory_order_acquire)) fn();
}

}  // namespace

void Memory::NoteLane(std::size_t bytes) {
  std::size_t most = of_lane.load(std::memory_order_relaxed);
  while (bytes > most && !of_lane.compare_exchange_weak(
                             most, bytes, std::memory_order_relaxed)) {
  }
}

std::size_t Memory::OfLane() { return of_lane.load(std::memory_order_relaxed); }

void Memory::SetHooks(void (*grown)(), void (*refused)()) {
  on_grown.store(grown, std::memory_order_release);
  on_refused.store(refused, std::memory_order_release);
}

void Memory::Count(std::int64_t bytes) {
  const auto delta = static_cast<std::uint64_t>(bytes);
  pinned_.fetch_add(delta, std::memory_order_relaxed);
  PinCount::Add(bytes);
}

bool Memory::MayGrow(std::size_t bytes) const {
  if (bytes <= kSmall || PinCount::Total() + bytes <= budget_) return true;
  Call(on_refused);
  return false;
}

Block& Block::operator=(Block&& other) noexcept {
  if (this == &other) return *this;
  reset();
  memory_ = std::exchange(other.memory_, nullptr);
  base_ = std::exchange(other.base_, nullptr);
  bytes_ = std::exchange(other.bytes_, 0);
  mr_ = std::move(other.mr_);
  return *this;
}

void Block::reset() {
  if (base_ == nullptr) return;
  mr_.reset();
  memory_->Count(-static_cast<std::int64_t>(bytes_));
  memory_->slabs_.Give(base_, bytes_);
  base_ = nullptr;
}

namespace {

int Access(const ibv_pd* pd, bool remote) {
  int access = IBV_ACCESS_LOCAL_WRITE;
  if (remote) access |= IBV_ACCESS_REMOTE_WRITE;
  // On iWARP only an answered READ shows that a WRITE is in its place.  The
  // READ gets bytes that the peer itself has written.
  if (remote && verbs::IsIwarp(pd->context)) access |= IBV_ACCESS_REMOTE_READ;
  return access;
}

}  // namespace

Block Memory::Get(std::size_t bytes, bool remote, verbs::Error* error) {
  Block block;
  std::byte* base = slabs_.Take(bytes);
  if (base == nullptr) {
    *error = {};
    error->call = "mmap";
    error->code = ENOMEM;
    return block;
  }
  const int access = Access(pd_, remote);
  verbs::Mr mr = remote ? RegisterForPeers(pd_, base, bytes, access, error)
                        : verbs::Register(pd_, base, bytes, access, error);
  if (mr == nullptr) {
    slabs_.Give(base, bytes);
    return block;
  }
  block.memory_ = this;
  block.base_ = base;
  block.bytes_ = bytes;
  block.mr_ = std::move(mr);
  Count(static_cast<std::int64_t>(bytes));
  if (bytes > kSmall) Call(on_grown);
  return block;
}

bool Sink::Ready(Memory* memory) {
  if (ready_.load(std::memory_order_acquire)) return true;
  base::LatchGuard hold(latch_);
  if (!block_) {
    verbs::Error error;
    block_ = memory->Get(kBytes, true, &error);
  }
  ready_.store(static_cast<bool>(block_), std::memory_order_release);
  return static_cast<bool>(block_);
}

}  // namespace rcsock::lane::rdma
