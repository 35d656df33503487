#ifndef RCSOCK_LIB_LANE_RDMA_CHAIN_H_
#define RCSOCK_LIB_LANE_RDMA_CHAIN_H_

#include <arpa/inet.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "lib/lane/rdma/qp_lane.h"

namespace rcsock::lane::rdma {

inline void StageImmediate(std::byte* to, std::uint32_t imm) {
  const std::uint32_t bits = htonl(imm);
  std::memcpy(to, &bits, sizeof(bits));
}

// The send queue's last places are for control messages and credits.
constexpr std::uint32_t kHeadroom = 16;
// The most that a Post adds to the queue at once.
constexpr std::uint32_t kPostWrs = 20;

// Writes that go out together, with one doorbell. Made, filled and posted under
// the lane's post_latch_.
class Chain {
 public:
  static constexpr std::uint32_t kMost = 24;

  explicit Chain(QpLane* lane) : lane_(*lane) {}

  // Adds a message whose bytes lie in the mirror.
  void Message(const ring::Placement& place);
  // The next message takes this credit along, in its SEND or in the immediate.
  // Requires MayCarry for it.
  void Carry(std::uint64_t consumed) {
    carried_ = static_cast<std::uint32_t>(consumed);
    carries_ = true;
  }
  // Returns whether a message of `length` can take a credit along. The credit's
  // bits in an immediate count from what is known to have been sent. A credit
  // word that is not inline may have a later value when it goes out at last.
  bool MayCarry(std::uint32_t length) const {
    return lane_.iwarp_ || (length <= ring::kMaxWithCredit &&
                            lane_.inline_bytes_ >= sizeof(std::uint64_t));
  }
  // Adds a write of the credit word, with a wake-up or without.
  void Credit(std::uint64_t word, bool wake);
  // Credit with a wake-up that offers a larger ring.
  void CreditAndRing(std::uint64_t word, const std::uint8_t* offer);
  // As Message, but the bytes lie at `from`, in memory of the application.
  void MessageFrom(const ring::Placement& place, const std::byte* from,
                   std::uint32_t lkey);
  // Adds a message whose bytes go to the peer's target: `to`, by `rkey`.
  void MessageTo(const ring::Placement& place, const std::byte* from,
                 std::uint32_t lkey, std::uint64_t to, std::uint32_t rkey);
  // Adds a write of a target's words, to `at` in the peer's head line; see
  // target.h.
  void Target(const std::uint64_t* words, std::size_t count, std::size_t at);
  // The bytes of the messages and places that follow lie in a GPU, where no CPU
  // can read them. So they do not go inline.
  void FromDevice() { from_device_ = true; }
  // Adds a write from the application's memory to memory that the peer has
  // exposed.
  void Place(const void* from, std::uint32_t length, std::uint32_t lkey,
             std::uint64_t to, std::uint32_t rkey) {
    Write(static_cast<const std::byte*>(from), length, to, lkey, rkey);
    if (from_device_) KeepOut();
  }
  // iWARP: adds a READ. Its answer says that every write before it is in its
  // place.
  void Fence();
  // The completion of the last write counts for all that has been placed.
  void Ticket() { ticket_ = true; }
  bool empty() const { return count_ == 0; }
  bool Full() const { return count_ + 4 > kMost; }
  void Post();

 private:
  void Write(const std::byte* from, std::uint32_t length, std::uint64_t to,
             std::uint32_t lkey, std::uint32_t rkey);
  // Adds a message in the byte ring, from `from`. InfiniBand switches may
  // choose a way for each packet of a WRITE, but not of a WRITE_WITH_IMM. So a
  // long message is a WRITE, and an empty WRITE_WITH_IMM behind it. The
  // completion of the second says that both are in place.
  void Data(const ring::Placement& place, const std::byte* from,
            std::uint32_t lkey);
  void DataTo(const ring::Placement& place, const std::byte* from,
              std::uint32_t lkey, std::uint64_t to, std::uint32_t rkey);
  // Has the device, and no CPU, read the last write's bytes.
  void KeepOut() {
    wrs_[count_ - 1].send_flags &= ~static_cast<unsigned>(IBV_SEND_INLINE);
  }
  // A write between the blocks that every lane has.
  void Control(const std::byte* from, std::uint32_t length, std::uint64_t to);
  // The immediate of a message, with the credit that goes along.
  void MessageImmediate(const ring::Placement& place);
  // The immediate of a wake-up, with the credit of `word`.
  void WakeImmediate(std::uint64_t word, std::uint8_t flags);
  // On iWARP the immediate's four bytes are at `staged`, as StageImmediate left
  // them.
  void Immediate(const std::byte* staged, std::uint32_t imm);
  // iWARP: adds a SEND.
  void Send(const std::byte* from, std::uint32_t length);
  // iWARP: adds the SEND of a message, `length` bytes of which are in its slot,
  // with the credit that goes along.
  void SendSlot(const ring::Placement& place, std::uint32_t length);

  QpLane& lane_;
  std::uint32_t count_ = 0;
  bool ticket_ = false;
  bool from_device_ = false;
  bool carries_ = false;
  std::uint32_t carried_ = 0;
  ibv_send_wr wrs_[kMost];
  ibv_sge sges_[kMost];
};

}  // namespace rcsock::lane::rdma

#endif  // RCSOCK_LIB_LANE_RDMA_CHAIN_H_
