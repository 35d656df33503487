#ifndef RCSOCK_LIB_RENDEZVOUS_RDMA_WIRE_H_
#define RCSOCK_LIB_RENDEZVOUS_RDMA_WIRE_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "lib/lane/rdma/domain.h"
#include "lib/rendezvous/rendezvous.h"

// What two hosts say to each other in the private data of rdma_cm: byte by byte
// in docs/protocol.md.
namespace rcsock::rendezvous {

constexpr std::uint32_t kRdmaMagic = 0x72736372;  // "rcsr"
constexpr std::uint8_t kRdmaVersion = 11;

// RoCE leaves a connector 56 bytes.
constexpr std::size_t kReqSize = 48;
constexpr std::size_t kRepSize = 80;
constexpr std::size_t kRejSize = 28;

// Whoever has RCSOCK_KEY_FILE; without it the MACs are zero.
struct ClusterKey {
  bool set = false;
  std::array<std::uint8_t, 32> bytes{};
};
// From the bytes of the key file; none: not set.
ClusterKey MakeClusterKey(const std::uint8_t* bytes, std::size_t size);

struct Req {
  std::uint16_t c_port = 0;
  std::uint16_t s_port = 0;
  std::uint32_t epoch = 0;
  stream::Nonce nonce{};
};

struct Rep {
  std::uint32_t epoch = 0;
  stream::Nonce nonce{};
  lane::rdma::Offer offer{};
  // The sender's stream waits for the lane: no need to hear that from the lane
  // itself.
  bool adopted = false;
};

enum class RejCode : std::uint8_t {
  kLater = 1,         // no such stream waits here now
  kRedirect = 2,      // its owner listens at `port`
  kOtherVersion = 3,  // this version is not understood
  kRefused = 4,       // malformed, or no resources
  kKey = 5,           // the MAC is wrong, or missing
  kFull = 6,          // no lane to spare for it
};

struct Rej {
  RejCode code = RejCode::kRefused;
  std::uint16_t port = 0;
};

// How a message turned out.
enum class Parsed {
  kOk,
  kForeign,  // not ours: magic, size, or a field that must be zero
  kOtherVersion,
  kKey,  // the MAC is not the one that this key gives
};

using ReqBytes = std::array<std::uint8_t, kReqSize>;
using RepBytes = std::array<std::uint8_t, kRepSize>;
using RejBytes = std::array<std::uint8_t, kRejSize>;

// `tuple` as the encoder knows it; the MAC covers it, so that private data
// taken from one connection is worth nothing on another.
ReqBytes EncodeReq(const Req& req, const Tuple& tuple, const ClusterKey& key);
RepBytes EncodeRep(const Rep& rep, const Tuple& tuple,
                   const stream::Nonce& req_nonce, const ClusterKey& key);
RejBytes EncodeRej(const Rej& rej, const stream::Nonce& req_nonce,
                   const ClusterKey& key);

// `length` may be larger than what was sent (rxe pads with zeros).  The ports
// of a REQ are needed to know its tuple, so its MAC is checked afterwards.
Parsed DecodeReq(const std::uint8_t* bytes, std::size_t length, Req* req);
bool CheckReq(const std::uint8_t* bytes, const Tuple& tuple,
              const ClusterKey& key);
Parsed DecodeRep(const std::uint8_t* bytes, std::size_t length,
                 const Tuple& tuple, const stream::Nonce& req_nonce,
                 const ClusterKey& key, Rep* rep);
// What READY carries of the end `of` (lane::rdma::ReadyMac): over values that
// are fresh from both ends, so that nobody who has recorded another handshake
// can say it.  Without a key zeros.
lane::rdma::ReadyMac MacOfReady(stream::Role of, std::uint32_t epoch,
                                const Tuple& tuple,
                                const stream::Nonce& connectors,
                                const stream::Nonce& acceptors,
                                const ClusterKey& key);
// A refusal that is not ours, or that its sender can't prove, is kForeign or
// kKey: nothing to follow.  kOtherVersion and kKey codes need no MAC: who says
// so may have no key.
Parsed DecodeRej(const std::uint8_t* bytes, std::size_t length,
                 const stream::Nonce& req_nonce, const ClusterKey& key,
                 Rej* rej);

}  // namespace rcsock::rendezvous

#endif  // RCSOCK_LIB_RENDEZVOUS_RDMA_WIRE_H_
