#ifndef RCSOCK_LIB_LANE_RDMA_OFFER_H_
#define RCSOCK_LIB_LANE_RDMA_OFFER_H_

#include <array>
#include <cstddef>
#include <cstdint>

namespace rcsock::lane::rdma {

// Where a lane's peer writes: the ring, the control slots and the credit word
// of the end that makes the offer. Goes in REP and in the first control
// message; see docs/protocol.md.
struct Offer {
  std::uint64_t address;    // of the region: control slots, then the ring
  std::uint64_t credit;     // address of the credit word
  std::uint32_t key;        // of both
  std::uint32_t bytes;      // of the ring; see layout.h
  std::uint16_t messages;   // credit of messages at the start
  std::uint16_t most_ring;  // pages of 4 KiB that its owner's rings may have at
                            // most; 0: it does not say
  std::uint16_t zero[2];
};
constexpr std::size_t kOfferSize = 32;  // on the wire, little-endian
void EncodeOffer(const Offer& offer, std::uint8_t* to);
// False: sizes or alignment make no sense, or an address wraps.
bool DecodeOffer(const std::uint8_t* from, Offer* offer);

// READY: an offer, and a MAC. Its sender can make the MAC only if it has the
// cluster key and has got the receiver's last message. Zeros: no key.
using ReadyMac = std::array<std::uint8_t, 16>;
constexpr std::size_t kReadySize = kOfferSize + sizeof(ReadyMac);

}  // namespace rcsock::lane::rdma

#endif  // RCSOCK_LIB_LANE_RDMA_OFFER_H_
