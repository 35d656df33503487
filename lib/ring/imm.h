#ifndef RCSOCK_LIB_RING_IMM_H_
#define RCSOCK_LIB_RING_IMM_H_

#include <cstdint>

namespace rcsock::ring {

// The 32 bits that come with each write: kind (bits 31-29), flags (28-25),
// length (24-0). An RDMA immediate has no more room. So a message's place in
// the ring is implicit: both ends advance one position alike.
enum class Kind : std::uint8_t {
  kNone = 0,  // never sent: an empty slot reads as zero
  kData = 1,
  kCtl = 2,     // a control message of lib/stream; inline
  kCredit = 3,  // wakes a starved sender; the length is its credit (rdma)
  kSetup = 4,   // a control message of the lanes themselves (rdma)
  kPlaced = 5,  // data whose bytes are in the receiver's target (rdma)
};

constexpr bool IsData(Kind kind) {
  return kind == Kind::kData || kind == Kind::kPlaced;
}

enum : std::uint8_t {
  kFlagInline = 1,  // the bytes are in the slot (shm) or control slot (rdma)
  kFlagLast = 1,    // placed: the sender writes no more to the target
  kFlagRewind = 2,  // the bytes begin at ring offset 0: the sender saw the ring
                    // empty, so small traffic stays in few hot lines and pages
  kFlagRing = 4,    // data: the first in the ring that was offered last, at
                    // offset 0; credit: offers one (rdma)
  kFlagCredit = 8,  // data: a credit comes with it (rdma)
};

constexpr std::uint32_t kMaxLength = (1u << 25) - 1;

struct Imm {
  Kind kind = Kind::kNone;
  std::uint8_t flags = 0;
  std::uint32_t length = 0;
};

constexpr std::uint32_t Encode(Imm imm) {
  return static_cast<std::uint32_t>(imm.kind) << 29 |
         static_cast<std::uint32_t>(imm.flags & 15) << 25 |
         (imm.length & kMaxLength);
}

// If there is an immediate, kFlagCredit says that the low 8 bits of the credit
// take the place of the length's highest (bits 24-17).
constexpr int kCreditAt = 17;
constexpr std::uint32_t kCreditMask = 0xff;
constexpr std::uint32_t kMaxWithCredit = (1u << kCreditAt) - 1;

constexpr Imm WithCredit(Imm imm, std::uint64_t credit) {
  imm.flags |= kFlagCredit;
  imm.length |= static_cast<std::uint32_t>(credit & kCreditMask) << kCreditAt;
  return imm;
}

// Decodes any 32 bits. A peer wrote them, so ring::Rx checks whether kind,
// flags and length make sense.
constexpr Imm Decode(std::uint32_t bits) {
  return Imm{static_cast<Kind>(bits >> 29),
             static_cast<std::uint8_t>(bits >> 25 & 15), bits & kMaxLength};
}

}  // namespace rcsock::ring

#endif  // RCSOCK_LIB_RING_IMM_H_
