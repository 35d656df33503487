// A device's memory itself goes to the peer, and one copy from device to device
// moves the bytes. docs/gpu.md has the whole.

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <utility>

#include "lib/base/critical.h"
#include "lib/base/log.h"
#include "lib/lane/shm/shm_lane.h"

namespace rcsock::lane::shm {

void Memories::Put(std::uint64_t id, base::ForeignFd fd) {
  // No driver opens any other file. That it came counts: nobody waits for it.
  if (fd.ok() && !fd.Harmless() && !gpu::IsDriversFile(fd.get())) {
    RCSOCK_LOG(1, "gpu: a peer's descriptor is no memory of a GPU");
    fd.reset();
  }
  try {
    One one{id, std::make_shared<base::ForeignFd>(std::move(fd))};
    const base::Critical critical;
    const base::LatchGuard hold(latch_);
    std::swap(all_[next_++ % kMost], one);
  } catch (const std::bad_alloc&) {
  }
}

std::shared_ptr<const base::ForeignFd> Memories::Find(std::uint64_t id) {
  const base::Critical critical;
  const base::LatchGuard hold(latch_);
  for (const One& one : all_) {
    if (one.id == id && one.fd != nullptr) return one.fd;
  }
  return nullptr;
}

void Memories::Drop(std::uint64_t id) {
  std::array<One, kMost> old;  // let go of behind the latch
  const base::Critical critical;
  const base::LatchGuard hold(latch_);
  for (std::size_t i = 0; i < kMost; ++i) {
    if (all_[i].id == id) std::swap(all_[i], old[i]);
  }
}

void Memories::CloseInherited() {
  latch_.AssertUnshared();
  for (One& one : all_) {
    if (one.fd != nullptr) (void)one.fd->Vouch();
  }
}

std::shared_ptr<gpu::Import> Imports::Find(gpu::Memory* memory,
                                           const gpu::Passed& what, int fd) {
  const void* const context = memory->context();
  One* const oldest = &all_[next_ % all_.size()];
  One* place = oldest;
  for (One& one : all_) {
    if (one.import == nullptr || one.context != context ||
        std::memcmp(one.handle, what.handle, sizeof one.handle) != 0) {
      continue;
    }
    const bool same = one.id == what.id &&
                      one.import->At(what.offset, what.length) != nullptr;
    if (same) return one.import;
    // That handle names the process alone: its allocations are open side by
    // side.
    if (what.way == gpu::Passed::kByDescriptor && one.id != what.id) continue;
    // Another allocation has the handle by now. No driver opens it twice.
    place = &one;
    break;
  }
  if (place->import != nullptr) place->import->End();
  place->import = memory->Open(what, fd);
  if (place->import == nullptr) {
    // The peer may have freed memory that is open here, and has other memory
    // at that address by now. No driver has both open (already mapped).
    End();
    place->import = memory->Open(what, fd);
  }
  if (place->import == nullptr) {
    refused = context;
    return nullptr;
  }
  // The sender counts so, too (SentMemories).
  if (place == oldest) ++next_;
  place->context = context;
  place->id = what.id;
  std::memcpy(place->handle, what.handle, sizeof place->handle);
  return place->import;
}

void Imports::End() {
  for (One& one : all_) {
    if (one.import != nullptr) one.import->End();
    one.import.reset();
  }
}

// --- Sending -----------------------------------------------------------------

bool ShmLane::PeerTakesOffers() const {
  return link_->passes() && !Closed() &&
         peer().takes.load(std::memory_order_acquire) == kTakesOffers;
}

bool ShmLane::NeedMemory(gpu::Memory* memory, const void* at,
                         const gpu::Passed& what) {
  if (sent_memories_.Has(what.id)) return true;
  if (what.way != gpu::Passed::kByDescriptor) {
    // It takes one of the peer's places, too.
    sent_memories_.Add(what.id);
    return true;
  }
  base::UniqueFd fd;
  if (memory->Descriptor(at, &fd) != 0 ||
      !link_->SendMemory(what.id, fd.get())) {
    return false;
  }
  sent_memories_.Add(what.id);
  return true;
}

bool ShmLane::Offer(const gpu::Passed& what) {
  static_assert(sizeof what <= kLeastRingBytes);
  if (!fills_ || offer_.open || filling_.bytes != 0 || Closed() ||
      what.length >= OfferWord::kMost) {
    return false;
  }
  // Exact, whatever the receiver has published.
  if (Acked() != tx_.posted() || tx_.outstanding() != 0) return false;
  // A small message finds no room either: it would lie behind these bytes, or
  // before them, as the receiver is quick or slow. The peer need not know.
  // EndFill wakes whoever waits.
  const bool quiet = !std::exchange(starved_, true);
  std::memcpy(tx_bytes_, &what, sizeof what);
  offer_ = {(offer_.number + 1) % OfferWord::kNumbers,
            what.length,
            0,
            true,
            quiet,
            true};
  own().offer.store(OfferWord{true, offer_.number, 0}.Encode(),
                    std::memory_order_release);
  return true;
}

std::uint64_t ShmLane::OfferTaken() const {
  return OfferWord::Decode(own().offer.load(std::memory_order_acquire)).taken;
}

std::uint64_t ShmLane::Withdraw() {
  if (!std::exchange(offer_.open, false)) return 0;
  if (std::exchange(offer_.quiet, false)) starved_ = false;
  const OfferWord word = OfferWord::Decode(own().offer.exchange(
      OfferWord{false, offer_.number, 0}.Encode(), std::memory_order_acq_rel));
  offer_.taken = word.taken;
  if (!word.open || word.number != offer_.number ||
      word.taken > offer_.length) {
    offer_.taken = 0;
    Fail();
    return 0;
  }
  tx_.CountPassed(word.taken);
  return word.taken;
}

// --- Receiving ---------------------------------------------------------------

bool ShmLane::TakeOffers(const gpu::Memory& memory) {
  if (!link_->passes()) return false;
  if (imports_ == nullptr) {
    imports_ = std::unique_ptr<Imports>(new (std::nothrow) Imports);
  }
  if (imports_ == nullptr || imports_->refused == memory.context()) {
    return false;
  }
  own().takes.store(kTakesOffers, std::memory_order_release);
  return true;
}

void ShmLane::TakeNoOffers() {
  own().takes.store(0, std::memory_order_release);
}

bool ShmLane::SeeOffer(SeenOffer* seen) const {
  seen->word = peer().offer.load(std::memory_order_acquire);
  const OfferWord word = OfferWord::Decode(seen->word);
  ring::Rx next = rx_;
  std::uint32_t imm;
  // The offer begins behind all that its sender has sent.
  if (!word.open || next.active() || Landed(&next, &imm) || Closed()) {
    return false;
  }
  std::memcpy(&seen->what, rx_bytes_, sizeof seen->what);
  // An offer that has been withdrawn meanwhile: other bytes lie there by now,
  // and are no handle.
  std::atomic_thread_fence(std::memory_order_acquire);
  if (peer().offer.load(std::memory_order_relaxed) != seen->word) return false;
  return seen->what.length < OfferWord::kMost && word.taken < seen->what.length;
}

bool ShmLane::AwaitsMemory(const gpu::Memory& memory,
                           const gpu::Passed& what) const {
  return what.way == gpu::Passed::kByDescriptor && !memory.IsOpen(what) &&
         link_->memories().Find(what.id) == nullptr;
}

std::shared_ptr<gpu::Import> ShmLane::FindImport(gpu::Memory* memory,
                                                 const gpu::Passed& what) {
  if (what.way != gpu::Passed::kByDescriptor) {
    return imports_->Find(memory, what, -1);
  }
  const auto fd = link_->memories().Find(what.id);
  auto import = imports_->Find(memory, what, fd == nullptr ? -1 : fd->get());
  // What is open keeps the allocation, no longer than it has to.
  link_->memories().Drop(what.id);
  return import;
}

bool ShmLane::TakeOffered(std::uint64_t* word, std::uint64_t bytes) {
  OfferWord next = OfferWord::Decode(*word);
  next.taken += bytes;
  if (link_->why_dead() != base::Reason::kNone ||
      !peer().offer.compare_exchange_strong(*word, next.Encode(),
                                            std::memory_order_acq_rel)) {
    return false;
  }
  *word = next.Encode();
  return true;
}

}  // namespace rcsock::lane::shm
