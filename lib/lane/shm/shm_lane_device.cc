// Copies of a device, straight into the sending ring and out of the receiving
// one.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "lib/lane/shm/shm_lane.h"

namespace rcsock::lane::shm {

bool ShmLane::NeedPages(bool tx, gpu::Memory* memory) {
  Pages& of = tx ? tx_pages_ : rx_pages_;
  const void* const context = memory->context();
  if (of.pages != nullptr && of.pages->pinned(context)) return true;
  if (of.refused == context) return false;
  std::byte* const at = tx ? tx_bytes_ : const_cast<std::byte*>(rx_bytes_);
  // No driver pins pages twice, so pages of another context are unpinned first.
  if (of.pages != nullptr) of.pages->End();
  of.pages = memory->Pin(at, tx_.ring_bytes());
  if (of.pages != nullptr) return true;
  of.refused = context;
  return false;
}

void ShmLane::EndPages() {
  for (Pages* of : {&tx_pages_, &rx_pages_}) {
    if (of->pages != nullptr) of->pages->End();
    of->pages.reset();
  }
  if (imports_ != nullptr) {
    imports_->End();
    imports_->DropLate(&link_->memories());
  }
  imports_.reset();
}

void ShmLane::SetBound(std::uint32_t bytes) {
  if (fills_) {
    put_off_ = bytes;
  } else if (bytes == 0) {
    tx_.Unbound();
  } else {
    tx_.Bound(bytes);
  }
}

bool ShmLane::BeginFill() {
  if (fills_ || tx_.bounded() || Closed()) return false;
  fills_ = true;
  offer_.made = false;
  put_off_ = 0;
  // Other sends find no room, by the fields that they look at anyway.
  tx_.Bound(0);
  // The pages are in use from now on, all of them.
  Touch(tx_.ring_bytes());
  return true;
}

std::size_t ShmLane::Claim(std::size_t want, std::byte** at) {
  TakeHeard();
  LookForCredit();
  if (Closed()) return 0;
  const ring::Stretch stretch = tx_.Claim(&filling_, want);
  *at = tx_bytes_ + stretch.offset;
  return stretch.length;
}

std::size_t ShmLane::PostClaimed(std::size_t n) {
  std::size_t done = 0;
  while (done < n && !Closed()) {
    if (tx_.outstanding() >= kSlots / 4) LookForCredit();
    const ring::Placement place = tx_.ReserveClaimed(&filling_, n - done);
    if (place.length == 0) break;
    Publish(TxSlot(place.number), place.number,
            ToldOf(tx_.At(place.number) == 0, place.imm),
            ring::Encode(place.imm));
    done += place.length;
  }
  return done;
}

bool ShmLane::EndFill() {
  tx_.DropClaims(&filling_);
  fills_ = false;
  SetBound(std::exchange(put_off_, 0));
  // A thread that has found no room meanwhile looks again.
  const bool wakes = starved_ || offer_.made;
  if (wakes) WakeLocal();
  return wakes;
}

std::size_t ShmLane::LookAhead(ring::Rx* ahead, std::size_t want,
                               const std::byte** at) const {
  std::size_t n = 0;
  while (n < want && LandedData(ahead) && !ahead->in_slot()) {
    const std::byte* const next = rx_bytes_ + ahead->offset();
    if (n == 0) *at = next;
    if (next != *at + n) break;
    const auto part = static_cast<std::uint32_t>(
        std::min<std::size_t>(ahead->left(), want - n));
    ahead->Take(part);
    n += part;
  }
  return n;
}

}  // namespace rcsock::lane::shm
