#ifndef RCSOCK_LIB_STREAM_FRAMES_H_
#define RCSOCK_LIB_STREAM_FRAMES_H_

#include <array>
#include <cstddef>
#include <cstdint>

namespace rcsock::stream {

using Nonce = std::array<std::uint8_t, 16>;
using Mac = std::array<std::uint8_t, 16>;

// --- What travels on the anchor, once raw bytes have ended

enum class FrameKind : std::uint8_t {
  kGot = 1,       // P has read all raw bytes before X_r (rule 7)
  kLaneDown = 2,  // offset: how far the sender has accepted this direction
  kRaw = 3,       // offset: where the raw bytes behind this frame begin
  kFin = 4,       // offset: the end of the sender's bytes
  kAck = 5,       // offset: everything up to the peer's FIN has been read
  kPing = 6,      // heartbeat; no content
  kProbe = 7,     // offset: what has been posted on the lane; asks for LANDED
  kLanded = 8,    // offset: what has landed
  kBack = 9,  // offset: where the raw bytes behind this frame, up to the peer's
              // X, begin. The peer sends them again
  kReset = 10,  // the anchor's reset that follows is the application's
};

enum : std::uint8_t {
  kFrameClosed = 1,  // with kFin: no application will read
  kFrameLeaves = 2,  // with kLaneDown: of its own accord, not for a failure
  kFrameIdle = 4,    // with kLaneDown: to give its memory back
  kFrameShared = 8,  // with kLaneDown: another process has this end too
};

constexpr std::size_t kFrameSize = 16;
using FrameBytes = std::array<std::uint8_t, kFrameSize>;

struct Frame {
  FrameKind kind = FrameKind::kPing;
  std::uint8_t flags = 0;
  std::uint32_t epoch = 0;
  std::uint64_t offset = 0;
};

FrameBytes Encode(const Frame& frame);
// Returns false if `bytes` is no frame.
bool Decode(const FrameBytes& bytes, Frame* frame);

// --- What travels as control messages on the lane ----------------------------

enum class CtlKind : std::uint8_t {
  kPropose = 1,  // offset: X_p; flag kCtlFlip; tail: raw bytes known
  kAccept = 2,   // tail: raw bytes in the MAC; mac
  kRefuse = 3,
  kSwitch = 4,  // offset: X_r
  kEnd = 5,     // offset: of the FIN that comes by the anchor
};

enum : std::uint8_t { kCtlFlip = 1 };

constexpr std::size_t kCtlSize = 40;
using CtlBytes = std::array<std::uint8_t, kCtlSize>;

struct Ctl {
  CtlKind kind = CtlKind::kRefuse;
  std::uint8_t flags = 0;
  std::uint8_t tail = 0;  // <= 64
  std::uint32_t epoch = 0;
  std::uint64_t offset = 0;
  Mac mac{};
};

CtlBytes Encode(const Ctl& ctl);
bool Decode(const std::uint8_t* bytes, std::size_t length, Ctl* ctl);

// --- Proofs

// Keyed BLAKE2b over the epoch, X_p and the last raw bytes before X_p. The key
// is both nonces, the connector's first.
Mac TailMac(const Nonce& connector, const Nonce& acceptor, std::uint32_t epoch,
            std::uint64_t x_p, const std::uint8_t* tail, std::size_t length);
// Compares in constant time.
bool Equal(const Mac& a, const Mac& b);

// Returns the COMMIT that shows the owner of `nonce` that its lane's peer owns
// the connection too.
Nonce CommitOf(const Nonce& nonce, bool flip);

}  // namespace rcsock::stream

#endif  // RCSOCK_LIB_STREAM_FRAMES_H_
