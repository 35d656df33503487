#ifndef RCSOCK_LIB_RENDEZVOUS_WIRE_H_
#define RCSOCK_LIB_RENDEZVOUS_WIRE_H_

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "lib/base/foreign_fd.h"
#include "lib/base/unique_fd.h"
#include "lib/rendezvous/rendezvous.h"
#include "lib/rendezvous/traffic.h"

// The messages of docs/rendezvous.md.  Each has a fixed size, is little-endian,
// and fills one SOCK_SEQPACKET record.
namespace rcsock::rendezvous {

static_assert(std::endian::native == std::endian::little,
              "the structs below are the wire format");

constexpr std::uint32_t kMagic = 0x6b736372;  // "rcsk"
// The version of the messages and of the memory that they lead to.
constexpr std::uint8_t kVersion = lane::shm::kMemoryVersion;

// A link's page, a bell page and all bells.
constexpr int kMaxFds = 2 + lane::kBells;
// The most descriptors that one record of AF_UNIX can carry: SCM_MAX_FD.
constexpr int kMostReceived = 253;
static_assert(kMaxFds <= kMostReceived);
// Every bit of a mask names a bell, so no mask need be refused.
static_assert(lane::kBells == 8 * sizeof(lane::BellMask));
constexpr std::size_t kMaxPacket = 128;

enum class Type : std::uint8_t {
  kHello = 1,
  kLink,
  kLinkAck,
  kBell,
  kSegment,
  kOpen,
  kOpened,
  kReject,
  kReady,
  kClosed,
  kDirAdd,
  kDirRemove,
  kStat,
  kRung,
  kMemory,
};

using Uuid = std::array<std::uint8_t, 16>;

struct [[gnu::packed]] Header {
  std::uint32_t magic;
  std::uint8_t version;
  Type type;
  std::uint16_t length;
};

struct [[gnu::packed]] Hello {
  static constexpr Type kType = Type::kHello;
  Header header;
  std::uint8_t uuid[16];
  // The number of a thread of the sender, as the sender numbers its threads.
  // That thread ends no earlier than the channel (PeerProcess).
  std::uint32_t thread;
  std::uint8_t tuple[36];
  std::uint8_t role;  // the sender's: 0 connector, 1 acceptor
  std::uint8_t zero[3];
};

// Descriptors: link page, bell page, then one eventfd per bit of `bells`.
struct [[gnu::packed]] LinkMsg {
  static constexpr Type kType = Type::kLink;
  Header header;
  lane::BellMask bells;
  // 1: the sender cannot see which descriptors the receiver has.  So it wants a
  // token (OpenToken) with each claim.
  std::uint32_t wants_tokens;
};

// Descriptors: bell page, then one eventfd per bit of `bells`.
struct [[gnu::packed]] LinkAck {
  static constexpr Type kType = Type::kLinkAck;
  Header header;
  lane::BellMask bells;
  std::uint32_t wants_tokens;  // as in LINK
};

// Descriptor: the eventfd.
struct [[gnu::packed]] BellMsg {
  static constexpr Type kType = Type::kBell;
  Header header;
  std::uint32_t bell;
};

// Descriptor: the segment.
struct [[gnu::packed]] SegmentMsg {
  static constexpr Type kType = Type::kSegment;
  Header header;
  std::uint32_t number;
};

// An end of the connection, which the sender claims to hold.
struct [[gnu::packed]] Claim {
  std::uint32_t number;  // the number of its descriptor
  Traffic traffic;
};

// Descriptor: a token, if the receiver wants them.
struct [[gnu::packed]] OpenMsg {
  static constexpr Type kType = Type::kOpen;
  Header header;
  std::uint32_t index;
  std::uint32_t epoch;
  std::uint8_t tuple[36];
  std::uint8_t role;  // the sender's
  // 1: an offer.  The two ends have not met for this stream.  A receiver in
  // which no end looks for the stream keeps the offer until one does.  A peer
  // of an older version rejects an offer.
  std::uint8_t offer;
  std::uint8_t zero[2];
  std::uint8_t nonce[16];
  Claim claim;
};

// Descriptor: a token, if the receiver wants them.
struct [[gnu::packed]] OpenedMsg {
  static constexpr Type kType = Type::kOpened;
  Header header;
  std::uint32_t index;
  std::uint32_t epoch;
  std::uint8_t nonce[16];
  Claim claim;
};

struct [[gnu::packed]] ReadyMsg {
  static constexpr Type kType = Type::kReady;
  Header header;
  std::uint32_t index;
  std::uint32_t epoch;
  std::uint32_t proof;  // the sender's Proof of the receiver
};

// What an end knows of the peer, the weakest first.
enum class Proof : std::uint32_t {
  kNone,   // nothing: no lane
  kToken,  // the process has shown a token of the other end: it has that end,
           // or had it, or another process has shown it the token
  kSeen,   // /proc shows that the process has the other end
};

// Asks the receiver to take the bells that were rung, bits of the link page.
struct [[gnu::packed]] RungMsg {
  static constexpr Type kType = Type::kRung;
  Header header;
};

// Names an allocation of a GPU that the sender is about to offer. Descriptor:
// the allocation's. Sent by any thread, and only to a peer that looks for
// offers (ControlLine::takes).
struct [[gnu::packed]] MemoryMsg {
  static constexpr Type kType = Type::kMemory;
  Header header;
  std::uint64_t id;  // the last field: LinkState::SendMemory sets it
};

// REJECT answers OPEN.  CLOSED says that the sender has let go of the stream.
template <Type type>
struct [[gnu::packed]] EndMsg {
  static constexpr Type kType = type;
  Header header;
  std::uint32_t index;
  std::uint32_t epoch;
  std::uint32_t reason;
};
using RejectMsg = EndMsg<Type::kReject>;
using ClosedMsg = EndMsg<Type::kClosed>;

// To the directory of a port.  ADD: the acceptor of `tuple` waits in the
// sender's process, which listens at the RDMA port `port`.  REMOVE: it waits no
// more.
struct [[gnu::packed]] DirAdd {
  static constexpr Type kType = Type::kDirAdd;
  Header header;
  std::uint8_t tuple[36];
  std::uint16_t port;
  std::uint8_t zero[2];
};

struct [[gnu::packed]] DirRemove {
  static constexpr Type kType = Type::kDirRemove;
  Header header;
  std::uint8_t tuple[36];
};

// The answer to `rcsock stat`.  Its descriptor is a memfd
// (posix::SnapshotHead).  The answer has none if the process could not make
// one.
constexpr char kStatPrefix[] = "rcsock/1/stat/";
struct [[gnu::packed]] StatMsg {
  static constexpr Type kType = Type::kStat;
  Header header;
};

static_assert(sizeof(Tuple) == 36 && sizeof(Hello) <= kMaxPacket &&
              sizeof(OpenMsg) <= kMaxPacket);

// Returns a message whose bytes behind the header are zero.
template <typename Message>
Message NewMessage() {
  Message message;
  std::memset(&message, 0, sizeof message);
  message.header = {kMagic, kVersion, Message::kType, sizeof(Message)};
  return message;
}

// One record as it was received.
struct Packet {
  std::uint8_t bytes[kMaxPacket];
  std::size_t length = 0;
  std::array<base::ForeignFd, kMostReceived> fds;
  int fd_count = 0;

  // Copies the header.  Returns true if it is sound, of whatever version.
  bool ReadHeader(Header* header) const;
  // Returns true if the record is exactly a `Message` of this version.
  template <typename Message>
  bool Read(Message* message) const {
    if (length != sizeof(Message)) return false;
    std::memcpy(message, bytes, sizeof(Message));
    return message->header.magic == kMagic &&
           message->header.version == kVersion &&
           message->header.type == Message::kType &&
           message->header.length == sizeof(Message);
  }
  // Returns the descriptor if it is memory or an eventfd, else none.
  base::UniqueFd TakeFd(int i) {
    return fds[i].Harmless() ? fds[i].Vouch() : base::UniqueFd();
  }
};

enum class Received {
  kPacket,
  kNothing,    // would block
  kEnd,        // end of file, or an error
  kMalformed,  // too long, or with more descriptors than any message has
  kNoFds,      // this process has no room for the descriptors that came, and
               // the record is no MEMORY
};
// Never blocks.  Each descriptor that arrives is in the packet, or closed.
Received Receive(int fd, Packet* packet);

// Returns 0 or -errno.  -EAGAIN: the peer does not read.
int SendPacket(int fd, const void* bytes, std::size_t length, const int* fds,
               int fd_count);

// Returns the reason that a failed system call gives a stream.
base::Reason ErrnoReason(int error);
// Returns the reason that a peer sent, or kPeerRefused if rcsock has no reason
// of this number.
base::Reason CheckedReason(std::uint32_t reason);

}  // namespace rcsock::rendezvous

#endif  // RCSOCK_LIB_RENDEZVOUS_WIRE_H_
