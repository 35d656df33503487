#include "lib/rendezvous/rdma_wire.h"

#include <sodium/crypto_generichash.h>
#include <sodium/utils.h>

#include <bit>
#include <cstring>

namespace rcsock::rendezvous {
namespace {

static_assert(std::endian::native == std::endian::little,
              "numbers are copied as they are");
static_assert(sizeof(Tuple) == 36);

constexpr std::size_t kMacSize = 16;
constexpr std::size_t kHeaderSize = 8;  // magic, version, type, length

enum class RdmaType : std::uint8_t { kReq = 1, kRep = 2, kRej = 3 };

template <typename T>
void Put(std::uint8_t* to, T value) {
  std::memcpy(to, &value, sizeof value);
}
template <typename T>
T Get(const std::uint8_t* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

void PutHeader(std::uint8_t* to, RdmaType type, std::size_t size) {
  Put(to, kRdmaMagic);
  to[4] = kRdmaVersion;
  to[5] = static_cast<std::uint8_t>(type);
  Put(to + 6, static_cast<std::uint16_t>(size));
}

Parsed CheckHeader(const std::uint8_t* bytes, std::size_t length, RdmaType type,
                   std::size_t size) {
  if (bytes == nullptr || length < kHeaderSize ||
      Get<std::uint32_t>(bytes) != kRdmaMagic) {
    return Parsed::kForeign;
  }
  // Another version may have another size.
  if (bytes[4] != kRdmaVersion) return Parsed::kOtherVersion;
  if (bytes[5] != static_cast<std::uint8_t>(type) ||
      Get<std::uint16_t>(bytes + 6) != size || length < size) {
    return Parsed::kForeign;
  }
  return Parsed::kOk;
}

// Computes the MAC of a message, which ends with it.  `bound` is what the MAC
// covers besides.
void Mac(const std::uint8_t* message, std::size_t size, const void* bound,
         std::size_t bound_size, const stream::Nonce* req_nonce,
         const ClusterKey& key, std::uint8_t* to) {
  if (!key.set) {
    std::memset(to, 0, kMacSize);
    return;
  }
  crypto_generichash_state state;
  crypto_generichash_init(&state, key.bytes.data(), key.bytes.size(), kMacSize);
  // Message types differ in the header, and each has one size.  So no part can
  // be taken for a piece of the next.
  crypto_generichash_update(&state, message, size - kMacSize);
  if (bound_size != 0) {
    crypto_generichash_update(&state, static_cast<const std::uint8_t*>(bound),
                              bound_size);
  }
  if (req_nonce != nullptr) {
    crypto_generichash_update(&state, req_nonce->data(), req_nonce->size());
  }
  crypto_generichash_final(&state, to, kMacSize);
}

bool MacIsRight(const std::uint8_t* message, std::size_t size,
                const void* bound, std::size_t bound_size,
                const stream::Nonce* req_nonce, const ClusterKey& key) {
  std::uint8_t right[kMacSize];
  Mac(message, size, bound, bound_size, req_nonce, key, right);
  // If this end has no key, the right MAC is zero.  A sender of another MAC has
  // a key that this end lacks.
  return sodium_memcmp(right, message + size - kMacSize, kMacSize) == 0;
}

}  // namespace

ClusterKey MakeClusterKey(const std::uint8_t* bytes, std::size_t size) {
  ClusterKey key;
  if (size == 0) return key;
  key.set = true;
  constexpr char kLabel[] = "rcsock cluster key 1";
  crypto_generichash(key.bytes.data(), key.bytes.size(), bytes, size,
                     reinterpret_cast<const std::uint8_t*>(kLabel),
                     sizeof kLabel - 1);
  return key;
}

ReqBytes EncodeReq(const Req& req, const Tuple& tuple, const ClusterKey& key) {
  ReqBytes bytes{};
  PutHeader(bytes.data(), RdmaType::kReq, bytes.size());
  Put(bytes.data() + 8, req.c_port);
  Put(bytes.data() + 10, req.s_port);
  Put(bytes.data() + 12, req.epoch);
  std::memcpy(bytes.data() + 16, req.nonce.data(), req.nonce.size());
  Mac(bytes.data(), bytes.size(), &tuple, sizeof tuple, nullptr, key,
      bytes.data() + 32);
  return bytes;
}

RepBytes EncodeRep(const Rep& rep, const Tuple& tuple,
                   const stream::Nonce& req_nonce, const ClusterKey& key) {
  static_assert(lane::rdma::kOfferSize == 32);
  RepBytes bytes{};
  PutHeader(bytes.data(), RdmaType::kRep, bytes.size());
  Put(bytes.data() + 8, rep.epoch);
  bytes[12] = rep.adopted ? 1 : 0;
  std::memcpy(bytes.data() + 16, rep.nonce.data(), rep.nonce.size());
  lane::rdma::EncodeOffer(rep.offer, bytes.data() + 32);
  Mac(bytes.data(), bytes.size(), &tuple, sizeof tuple, &req_nonce, key,
      bytes.data() + 64);
  return bytes;
}

RejBytes EncodeRej(const Rej& rej, const stream::Nonce& req_nonce,
                   const ClusterKey& key) {
  RejBytes bytes{};
  PutHeader(bytes.data(), RdmaType::kRej, bytes.size());
  bytes[8] = static_cast<std::uint8_t>(rej.code);
  Put(bytes.data() + 10, rej.port);
  Mac(bytes.data(), bytes.size(), nullptr, 0, &req_nonce, key,
      bytes.data() + 12);
  return bytes;
}

Parsed DecodeReq(const std::uint8_t* bytes, std::size_t length, Req* req) {
  const Parsed header = CheckHeader(bytes, length, RdmaType::kReq, kReqSize);
  if (header != Parsed::kOk) return header;
  req->c_port = Get<std::uint16_t>(bytes + 8);
  req->s_port = Get<std::uint16_t>(bytes + 10);
  req->epoch = Get<std::uint32_t>(bytes + 12);
  std::memcpy(req->nonce.data(), bytes + 16, req->nonce.size());
  if (req->c_port == 0 || req->s_port == 0 || req->epoch == 0) {
    return Parsed::kForeign;
  }
  return Parsed::kOk;
}

bool CheckReq(const std::uint8_t* bytes, const Tuple& tuple,
              const ClusterKey& key) {
  return MacIsRight(bytes, kReqSize, &tuple, sizeof tuple, nullptr, key);
}

Parsed DecodeRep(const std::uint8_t* bytes, std::size_t length,
                 const Tuple& tuple, const stream::Nonce& req_nonce,
                 const ClusterKey& key, Rep* rep) {
  const Parsed header = CheckHeader(bytes, length, RdmaType::kRep, kRepSize);
  if (header != Parsed::kOk) return header;
  if (!MacIsRight(bytes, kRepSize, &tuple, sizeof tuple, &req_nonce, key)) {
    return Parsed::kKey;
  }
  rep->epoch = Get<std::uint32_t>(bytes + 8);
  std::memcpy(rep->nonce.data(), bytes + 16, rep->nonce.size());
  const auto flags = Get<std::uint32_t>(bytes + 12);
  rep->adopted = flags == 1;
  if (flags > 1 || !lane::rdma::DecodeOffer(bytes + 32, &rep->offer)) {
    return Parsed::kForeign;
  }
  return Parsed::kOk;
}

Parsed DecodeRej(const std::uint8_t* bytes, std::size_t length,
                 const stream::Nonce& req_nonce, const ClusterKey& key,
                 Rej* rej) {
  const Parsed header = CheckHeader(bytes, length, RdmaType::kRej, kRejSize);
  if (header != Parsed::kOk) return header;
  rej->code = static_cast<RejCode>(bytes[8]);
  rej->port = Get<std::uint16_t>(bytes + 10);
  if (bytes[8] < 1 || bytes[8] > 6 || bytes[9] != 0 ||
      (rej->code == RejCode::kRedirect) != (rej->port != 0)) {
    return Parsed::kForeign;
  }
  if (rej->code == RejCode::kOtherVersion || rej->code == RejCode::kKey) {
    return Parsed::kOk;
  }
  return MacIsRight(bytes, kRejSize, nullptr, 0, &req_nonce, key)
             ? Parsed::kOk
             : Parsed::kKey;
}

lane::rdma::ReadyMac MacOfReady(stream::Role of, std::uint32_t epoch,
                                const Tuple& tuple,
                                const stream::Nonce& connectors,
                                const stream::Nonce& acceptors,
                                const ClusterKey& key) {
  lane::rdma::ReadyMac mac{};
  if (!key.set) return mac;
  // No message of private data begins with these bytes, or is as long as this
  // text.
  std::uint8_t text[5 + 1 + 4 + sizeof tuple + 2 * sizeof connectors];
  // NOLINTNEXTLINE(bugprone-not-null-terminated-result): it is no string.
  std::memcpy(text, "READY", 5);
  text[5] = static_cast<std::uint8_t>(of);
  Put(text + 6, epoch);
  std::memcpy(text + 10, &tuple, sizeof tuple);
  std::memcpy(text + 10 + sizeof tuple, connectors.data(), connectors.size());
  std::memcpy(text + 10 + sizeof tuple + connectors.size(), acceptors.data(),
              acceptors.size());
  crypto_generichash(mac.data(), mac.size(), text, sizeof text,
                     key.bytes.data(), key.bytes.size());
  return mac;
}

}  // namespace rcsock::rendezvous
