// The part of QpLane that writes straight into memory that the peer exposes.

#include <atomic>
#include <cerrno>
#include <memory>
#include <new>
#include <utility>

#include "lib/base/log.h"
#include "lib/lane/rdma/chain.h"
#include "lib/lane/rdma/late_key.h"
#include "lib/lane/rdma/qp_lane.h"

namespace rcsock::lane::rdma {
namespace {

constexpr std::size_t kMostExposed = 4096;
// Besides what control messages and credits may need.
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
  std::shared_ptr<gpu::Memory> device;
  const int refused = gpu::Memory::Find(at, length, &device);
  if (refused != 0) return -refused;
  // The program reads a message, and then has the GPU read what came before.
  if (device != nullptr && !device->OrdersWrites()) return -EOPNOTSUPP;
  Registered made;
  if (!made.pin.Take(length)) {
    RCSOCK_LOG(1, "rdma: %zu bytes to expose are beyond RCSOCK_MAX_PINNED",
               length);
    return -ENOBUFS;
  }
  verbs::Error error;
  made.mr = RegisterForPeers(memory_->pd(), at, length,
                             IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE,
                             &error, device.get());
  if (made.mr == nullptr) return error.code == EFAULT ? -EFAULT : -ENOMEM;
  *key = made.mr->rkey;
  exposed_.push_back(std::move(made));
  return 0;
}

void QpLane::Hide(std::uint32_t key) {
  std::erase_if(exposed_,
                [&](const Registered& one) { return one.mr->rkey == key; });
}

// The device carries out the requests of a QP in their order. It reports a
// message to the receiver when all earlier requests are in their places.
std::int64_t QpLane::Place(const void* from, std::size_t length,
                           std::uint64_t to, std::uint32_t key) {
  if (!tx_ || Closed()) return -ESTALE;
  if (length > ring::kMaxLength) return -EMSGSIZE;
  std::uint32_t lkey = 0;
  auto memory = UserMemory::Find(from, length);
  if (memory != nullptr && memory->device() != nullptr) {
    // If the program had freed the memory, the device would send what is there
    // instead.
    const int gone = memory->device()->Check(from, length);
    if (gone != 0) return -gone;
  }
  if (memory == nullptr || !memory->LocalKey(memory_->pd(), &lkey)) {
    return -ENOBUFS;
  }
  if (iwarp_ && !sink_->Ready(memory_)) return -ENOBUFS;
  // Registered until the next Place, at least. A program that takes the memory
  // back waits for what it has placed.
  placing_from_ = std::move(memory);
  LookForCredit();
  if (Closed()) return -ESTALE;
  if (!HasRoom(kRoom)) {
    // No other thread may look for completions: the ends of sends wake none.
    poller_->Collect();
  }
  base::LatchGuard hold(post_latch_);
  if (Room() < kRoom) return 0;
  Chain chain(this);
  if (placing_from_->device() != nullptr) chain.FromDevice();
  chain.Place(from, static_cast<std::uint32_t>(length), lkey, to, key);
  // What a device of InfiniBand or RoCE has acknowledged is in its place.
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
  base::LatchGuard hold(post_latch_);
  if (fence_wrs_ < wrs && Room() >= kRoom && !Closed()) {
    Chain chain(this);
    chain.Fence();
    chain.Ticket();
    chain.Post();
    fence_wrs_ = posted_wrs_;
  }
  return false;
}

// --- The stream's own bytes, without a copy ----------------------------------

std::uint32_t QpLane::NextSerial() {
  static constinit std::atomic<std::uint32_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

void QpLane::DropDirect(Direct* one) {
  if (one->bytes == nullptr) return;
  one->memory->LetGo();
  *one = Direct();
  --directs_;
}

void QpLane::DropCredited() {
  for (Direct& one : direct_) {
    if (one.bytes != nullptr && one.number < tx_->credited()) DropDirect(&one);
  }
}

// For the message that has been reserved last.
void QpLane::NoteDirect(const ring::Placement& place, const std::byte* from) {
  Direct& one = direct_[place.number % kMessages];
  DropDirect(&one);
  one.number = place.number;
  one.start = tx_->posted() - place.length;
  one.bytes = from;
  one.length = place.length;
  one.mirror = TxRing() + place.offset;
  one.memory = send_from_;
  one.memory->Hold();
  ++directs_;
}

bool QpLane::MayPostDirect(std::uint32_t* lkey) {
  return send_from_->LocalKey(memory_->pd(), lkey) &&
         (!iwarp_ || sink_->Ready(memory_));
}

// As PostLarge, but the device reads the application's memory, and the mirror
// stays empty at these bytes. A path that must send them again finds them by
// direct_.
std::size_t QpLane::PostDirect(const std::byte* from, std::size_t all) {
  std::uint32_t lkey = 0;
  const iovec iov{const_cast<std::byte*>(from), all};
  if (!MayPostDirect(&lkey)) {
    return PostLarge(IovCursor(&iov, 1, 0), all);
  }
  const std::uint64_t landed = landed_.load(std::memory_order_relaxed);
  {
    base::LatchGuard hold(post_latch_);
    if (landed != landed_at_post_) reply_wrs_ = posted_wrs_;
    if (!FlushLocked()) return 0;
  }
  landed_at_post_ = landed;
  std::size_t done = 0;
  while (done < all) {
    const ring::Placement place = tx_->ReserveData(all - done);
    if (place.length == 0) break;
    NoteDirect(place, from + done);
    {
      base::LatchGuard hold(post_latch_);
      Chain chain(this);
      PublishAlong(&chain, place.length);
      if (send_from_->device() != nullptr) chain.FromDevice();
      chain.MessageFrom(place, from + done, lkey);
      if (!iwarp_) chain.Ticket();
      sent_for_wakes_.store(tx_->sent(), std::memory_order_relaxed);
      chain.Post();
      direct_wrs_ = posted_wrs_;
      if (!iwarp_) fence_wrs_ = posted_wrs_;
    }
    done += place.length;
    if (done == all) break;
    LookForRoom();
    if (Closed() || !EnsureRoom()) break;
  }
  return done;
}

bool QpLane::SentDone(std::int64_t ticket, std::uint64_t posted, bool copy,
                      bool* copied) {
  *copied = false;
  if (Acked() >= posted) return true;
  // The device needs the memory until the peer has the bytes. Until then it may
  // read them again, for a packet that was lost.
  if (!copy || Closed() || !Placed(ticket)) return false;
  for (Direct& one : direct_) {
    if (one.bytes == nullptr || one.start >= posted) continue;
    if (!one.memory->CopyOut(one.mirror, one.bytes, one.length)) return false;
    DropDirect(&one);
  }
  *copied = true;
  return true;
}

}  // namespace rcsock::lane::rdma
