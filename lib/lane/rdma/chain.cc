#include "lib/lane/rdma/chain.h"

#include <algorithm>
#include <cstring>

#include "lib/base/log.h"
#include "lib/base/no_cancel.h"
#include "lib/base/no_sigpipe.h"

namespace rcsock::lane::rdma {

// A write is signalled if this many others are in flight before it. So are
// writes that fill the window: a send that waits for the window has a
// completion to wait for. The first writes are not signalled: the completion of
// a request would wake a thread that sleeps for the answer.
constexpr std::uint64_t kSignalInFlight = 2;
// ... and every so many anyway. A completion may wake a thread that sleeps for
// an answer, or make a thread that is about to sleep arm once more.
constexpr std::uint64_t kSignalEvery = 64;
// From so many bytes on, other ways through the switches are worth a second
// request. NCCL's NCCL_IB_AR_THRESHOLD has this value too.
constexpr std::uint32_t kRoutedFrom = 8 * 1024;

// kSignalEvery for a queue of `depth`. The queue drains before QpLane::Post
// finds too little room in it. Post asks for kHeadroom and kPostWrs before it
// adds a chain.
constexpr std::uint64_t SignalEvery(std::uint32_t depth) {
  constexpr std::uint32_t kKept = kHeadroom + kPostWrs + Chain::kMost;
  return depth > kKept ? std::min<std::uint64_t>(depth - kKept, kSignalEvery)
                       : 1;
}
static_assert(SignalEvery(kSendDepth) == kSignalEvery);

void Chain::Write(const std::byte* from, std::uint32_t length, std::uint64_t to,
                  std::uint32_t lkey, std::uint32_t rkey) {
  ibv_send_wr& wr = wrs_[count_];
  ibv_sge& sge = sges_[count_];
  std::memset(&wr, 0, sizeof(wr));
  sge = {reinterpret_cast<std::uintptr_t>(from), length, lkey};
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.opcode = IBV_WR_RDMA_WRITE;
  if (length <= lane_.inline_bytes_) wr.send_flags = IBV_SEND_INLINE;
  wr.wr.rdma.remote_addr = to;
  wr.wr.rdma.rkey = rkey;
  ++count_;
}

void Chain::Immediate(const std::byte* staged, std::uint32_t imm) {
  if (!lane_.iwarp_) {
    wrs_[count_ - 1].opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
    wrs_[count_ - 1].imm_data = htonl(imm);
    wrs_[count_ - 1].send_flags |= IBV_SEND_SOLICITED;
    return;
  }
  // iWARP has no immediate: a SEND of the immediate's four bytes follows the
  // write, and the receiver gets the SEND when the write is in place. SendSlot
  // makes the SEND of a message.
  Send(staged, sizeof(imm));
}

void Chain::Send(const std::byte* from, std::uint32_t length) {
  Control(from, length, 0);
  wrs_[count_ - 1].opcode = IBV_WR_SEND;
  wrs_[count_ - 1].send_flags |= IBV_SEND_SOLICITED;
}

void Chain::SendSlot(const ring::Placement& place, std::uint32_t length) {
  std::byte* slot = lane_.TxSlot(place.number);
  ring::Imm imm = place.imm;
  std::uint32_t at = length;
  if (carries_ && ring::IsData(imm.kind)) {
    carries_ = false;
    imm.flags |= ring::kFlagCredit;
    StageImmediate(slot + at, carried_);
    at += kSendCredit;
  }
  StageImmediate(slot + at, ring::Encode(imm));
  Send(slot, at + sizeof(std::uint32_t));
}

void Chain::Message(const ring::Placement& place) {
  if ((place.imm.flags & ring::kFlagInline) != 0) {
    if (lane_.iwarp_) return SendSlot(place, place.length);
    Control(lane_.TxSlot(place.number), place.length,
            lane_.peer_.address + (place.number % kMessages) * kSlotBytes);
  } else {
    const QpLane::TxRingPlace& ring = lane_.tx_ring_;
    Data(place, ring.mirror + place.offset, ring.lkey);
  }
  MessageImmediate(place);
}

void Chain::Data(const ring::Placement& place, const std::byte* from,
                 std::uint32_t lkey) {
  const QpLane::TxRingPlace& ring = lane_.tx_ring_;
  DataTo(place, from, lkey, ring.address + place.offset, ring.rkey);
}

void Chain::DataTo(const ring::Placement& place, const std::byte* from,
                   std::uint32_t lkey, std::uint64_t to, std::uint32_t rkey) {
  Write(from, place.length, to, lkey, rkey);
  if (from_device_) [[unlikely]]
    KeepOut();
  if (!lane_.routed_ || place.length <= kRoutedFrom) return;
  Write(nullptr, 0, to, 0, rkey);
  wrs_[count_ - 1].num_sge = 0;
}

void Chain::MessageTo(const ring::Placement& place, const std::byte* from,
                      std::uint32_t lkey, std::uint64_t to,
                      std::uint32_t rkey) {
  DataTo(place, from, lkey, to, rkey);
  MessageImmediate(place);
}

void Chain::Target(const std::uint64_t* words, std::size_t count,
                   std::size_t at) {
  const auto bytes = static_cast<std::uint32_t>(count * sizeof(*words));
  const auto* from = reinterpret_cast<const std::byte*>(words);
  if (lane_.inline_bytes_ < bytes) {
    // The mirror's head line keeps the words until the device has read them.
    std::byte* staged = lane_.tx_block_.base() + at;
    for (std::size_t i = 0; i < count; ++i) {
      reinterpret_cast<std::atomic<std::uint64_t>*>(staged)[i].store(
          words[i], std::memory_order_relaxed);
    }
    from = staged;
  }
  Control(from, bytes, lane_.peer_.credit + at);
}

void Chain::MessageImmediate(const ring::Placement& place) {
  if (lane_.iwarp_) return SendSlot(place, 0);
  ring::Imm imm = place.imm;
  if (carries_ && ring::IsData(imm.kind)) {
    carries_ = false;
    imm = ring::WithCredit(imm, carried_);
  }
  Immediate(nullptr, ring::Encode(imm));
}

void Chain::MessageFrom(const ring::Placement& place, const std::byte* from,
                        std::uint32_t lkey) {
  Data(place, from, lkey);
  MessageImmediate(place);
}

void Chain::Control(const std::byte* from, std::uint32_t length,
                    std::uint64_t to) {
  Write(from, length, to, lane_.tx_block_.lkey(), lane_.peer_.key);
}

void Chain::Fence() {
  const Block& sink = lane_.sink_->block();
  Write(sink.base(), sizeof(std::uint64_t), lane_.peer_.credit, sink.lkey(),
        lane_.peer_.key);
  wrs_[count_ - 1].opcode = IBV_WR_RDMA_READ;
  wrs_[count_ - 1].send_flags = 0;
}

void Chain::CreditAndRing(std::uint64_t word, const std::uint8_t* offer) {
  std::byte* base = lane_.tx_block_.base();
  std::memcpy(base + kRingOfferAt, offer, kRingOfferSize);
  Control(base + kRingOfferAt, kRingOfferSize,
          lane_.peer_.credit + kRingOfferAt);
  Credit(word, false);
  WakeImmediate(word, ring::kFlagRing);
}

void Chain::Credit(std::uint64_t word, bool wake) {
  std::byte* base = lane_.tx_block_.base();
  // A write that has not gone out yet may take this newer value along.
  reinterpret_cast<std::atomic<std::uint64_t>*>(base + kCreditCopyAt)
      ->store(word, std::memory_order_release);
  Control(base + kCreditCopyAt, sizeof(word), lane_.peer_.credit);
  if (wake) WakeImmediate(word, 0);
}

// The credit goes in the immediate, since the credit word alone would not do:
// nothing says which of several writes to one place comes last.
void Chain::WakeImmediate(std::uint64_t word, std::uint8_t flags) {
  const std::uint32_t imm = ring::Encode(
      {ring::Kind::kCredit, flags,
       static_cast<std::uint32_t>(word & kConsumedMask) & ring::kMaxLength});
  lane_.post_latch_.AssertHeld();
  std::byte* staged = lane_.tx_block_.base() + kWakeCopiesAt +
                      lane_.wakes_sent_ % kWakeCopies * sizeof(imm);
  StageImmediate(staged, imm);
  Immediate(staged, imm);
}

void Chain::Post() {
  if (count_ == 0) return;
  lane_.post_latch_.AssertHeld();
  for (std::uint32_t i = 0; i + 1 < count_; ++i) wrs_[i].next = &wrs_[i + 1];
  const std::uint32_t n = count_;
  count_ = 0;
  lane_.posted_wrs_ += n;
  if (ticket_) {
    ticket_ = false;
    wrs_[n - 1].send_flags |= IBV_SEND_SIGNALED;
    wrs_[n - 1].wr_id = kTicket | lane_.posted_wrs_;
    lane_.signalled_wrs_ = lane_.posted_wrs_;
  } else if (lane_.Streaming() || lane_.InFlight() >= n + kSignalInFlight ||
             lane_.posted_wrs_ - lane_.signalled_wrs_ >=
                 SignalEvery(lane_.send_depth_)) {
    wrs_[n - 1].send_flags |= IBV_SEND_SIGNALED;
    wrs_[n - 1].wr_id = lane_.posted_wrs_;
    lane_.signalled_wrs_ = lane_.posted_wrs_;
  }
  if (lane_.qp_ == nullptr) return;
  ibv_send_wr* bad = nullptr;
  const base::NoCancel no_cancel;
  int r;
  {
    const base::NoSigpipe no_sigpipe(lane_.iwarp_);
    r = ibv_post_send(lane_.qp_, wrs_, &bad);
  }
  if (r == 0 || lane_.closing_.load(std::memory_order_relaxed)) return;
  RCSOCK_LOG(1, "rdma: %s: ibv_post_send: error %d", lane_.device(), r);
  // The bytes stay in the mirror, for the path that takes over.
  lane_.Lost(base::Reason::kLaneError);
}

}  // namespace rcsock::lane::rdma
