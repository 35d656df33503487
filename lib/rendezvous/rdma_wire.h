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

// RoCE leaves a connecting end 56 bytes.
constexpr std::size_t kReqSize = 48;
constexpr std::size_t kRepSize = 80;
constexpr std::size_t kRejSize = 28;

// The key of a cluster (RCSOCK_KEY_FILE).  If there is no key, the MACs are
// zero.
struct ClusterKey {
  bool set = false;
  std::array<std::uint8_t, 32> bytes{};
};
// Makes the key from the bytes of the key file.  No bytes: the key is not set.
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
  // The sender's stream is adopted, so the receiver need not wait for READY on
  // the lane.
  bool adopted = false;
};

enum class RejCode : std::uint8_t {
  kLater = 1,         // no stream with these ends waits here now
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

// What a decoder found.
enum class Parsed {
  kOk,
  kForeign,  // not rcsock's: magic, size, or a field that must be zero
  kOtherVersion,
  kKey,  // the MAC is not that of this key
};

using ReqBytes = std::array<std::uint8_t, kReqSize>;
using RepBytes = std::array<std::uint8_t, kRepSize>;
using RejBytes = std::array<std::uint8_t, kRejSize>;

// `tuple` is the connection as the encoder knows it.  The MAC covers it, so
// private data taken from one connection is worth nothing on another.
ReqBytes EncodeReq(const Req& req, const Tuple& tuple, const ClusterKey& key);
RepBytes EncodeRep(const Rep& rep, const Tuple& tuple,
                   const stream::Nonce& req_nonce, const ClusterKey& key);
RejBytes EncodeRej(const Rej& rej, const stream::Nonce& req_nonce,
                   const ClusterKey& key);

// `length` may exceed what was sent: rxe pads with zeros.  A REQ's ports are
// part of its tuple, so CheckReq checks the MAC afterwards.
Parsed DecodeReq(const std::uint8_t* bytes, std::size_t length, Req* req);
bool CheckReq(const std::uint8_t* bytes, const Tuple& tuple,
              const ClusterKey& key);
Parsed DecodeRep(const std::uint8_t* bytes, std::size_t length,
                 const Tuple& tuple, const stream::Nonce& req_nonce,
                 const ClusterKey& key, Rep* rep);
// Returns what READY carries of the end `of` (lane::rdma::ReadyMac).  The MAC
// covers fresh values of both ends, so a peer that has recorded another
// handshake cannot make it.  If there is no key, it is zeros.
lane::rdma::ReadyMac MacOfReady(stream::Role of, std::uint32_t epoch,
                                const Tuple& tuple,
                                const stream::Nonce& connectors,
                                const stream::Nonce& acceptors,
                                const ClusterKey& key);
// Returns kForeign or kKey for a refusal that does not come from rcsock, or
// that its sender cannot prove.  The caller must not follow that refusal.  The
// codes kOtherVersion and kKey need no MAC: their sender may have no key.
Parsed DecodeRej(const std::uint8_t* bytes, std::size_t length,
                 const stream::Nonce& req_nonce, const ClusterKey& key,
                 Rej* rej);

}  // namespace rcsock::rendezvous

#endif  // RCSOCK_LIB_RENDEZVOUS_RDMA_WIRE_H_
