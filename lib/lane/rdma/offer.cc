#include "lib/lane/rdma/offer.h"

#include "lib/lane/rdma/layout.h"

namespace rcsock::lane::rdma {
namespace {

void Put(std::uint64_t value, int bytes, std::uint8_t** to) {
  for (int i = 0; i < bytes; ++i) *(*to)++ = value >> 8 * i & 0xff;
}

std::uint64_t Get(int bytes, const std::uint8_t** from) {
  std::uint64_t value = 0;
  for (int i = 0; i < bytes; ++i) value |= std::uint64_t{*(*from)++} << 8 * i;
  return value;
}

}  // namespace

void EncodeOffer(const Offer& offer, std::uint8_t* to) {
  Put(offer.address, 8, &to);
  Put(offer.credit, 8, &to);
  Put(offer.key, 4, &to);
  Put(offer.bytes, 4, &to);
  Put(offer.messages, 2, &to);
  Put(offer.most_ring, 2, &to);
  for (int i = 0; i < 2; ++i) Put(0, 2, &to);
}

bool DecodeOffer(const std::uint8_t* from, Offer* offer) {
  offer->address = Get(8, &from);
  offer->credit = Get(8, &from);
  offer->key = static_cast<std::uint32_t>(Get(4, &from));
  offer->bytes = static_cast<std::uint32_t>(Get(4, &from));
  offer->messages = static_cast<std::uint16_t>(Get(2, &from));
  offer->most_ring = static_cast<std::uint16_t>(Get(2, &from));
  std::uint64_t zero = 0;
  for (auto& part : offer->zero) {
    part = static_cast<std::uint16_t>(Get(2, &from));
    zero |= part;
  }
  // Only blocks of these sizes exist.
  const std::uint64_t block = std::uint64_t{offer->bytes} + kRingAt;
  const bool usual =
      block >= kBlockMin && block <= kBlockMax && (block & (block - 1)) == 0;
  if (zero != 0 || offer->messages != kMessages ||
      (!usual && block != kBlockMinIwarp)) {
    return false;
  }
  const std::uint64_t last = offer->address + block;
  return offer->address % 64 == 0 && offer->credit % 8 == 0 &&
         offer->credit != 0 && offer->address != 0 && last > offer->address &&
         offer->credit + sizeof(std::uint64_t) > offer->credit;
}

}  // namespace rcsock::lane::rdma
