#include "lib/stream/frames.h"

#include <sodium/crypto_generichash.h>
#include <sodium/utils.h>

#include <cstring>

namespace rcsock::stream {
namespace {

constexpr std::uint16_t kFrameMagic = 0x5246;  // "FR"
constexpr std::uint16_t kCtlMagic = 0x4352;    // "RC"

template <typename T>
void Put(std::uint8_t* to, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i) {
    to[i] = static_cast<std::uint8_t>(value >> (8 * i));
  }
}

template <typename T>
T Get(const std::uint8_t* from) {
  T value = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i) {
    value = static_cast<T>(value | static_cast<T>(from[i]) << (8 * i));
  }
  return value;
}

}  // namespace

FrameBytes Encode(const Frame& frame) {
  FrameBytes bytes{};
  bytes[0] = static_cast<std::uint8_t>(frame.kind);
  bytes[1] = frame.flags;
  Put(&bytes[2], kFrameMagic);
  Put(&bytes[4], frame.epoch);
  Put(&bytes[8], frame.offset);
  return bytes;
}

bool Decode(const FrameBytes& bytes, Frame* frame) {
  if (Get<std::uint16_t>(&bytes[2]) != kFrameMagic) return false;
  if (bytes[0] < static_cast<std::uint8_t>(FrameKind::kGot) ||
      bytes[0] > static_cast<std::uint8_t>(FrameKind::kReset)) {
    return false;
  }
  frame->kind = static_cast<FrameKind>(bytes[0]);
  frame->flags = bytes[1];
  std::uint8_t legal = 0;
  if (frame->kind == FrameKind::kFin) legal = kFrameClosed;
  if (frame->kind == FrameKind::kLaneDown) {
    legal = kFrameLeaves | kFrameIdle | kFrameShared;
  }
  if ((frame->flags & ~legal) != 0) return false;
  frame->epoch = Get<std::uint32_t>(&bytes[4]);
  frame->offset = Get<std::uint64_t>(&bytes[8]);
  return true;
}

CtlBytes Encode(const Ctl& ctl) {
  CtlBytes bytes{};
  bytes[0] = static_cast<std::uint8_t>(ctl.kind);
  bytes[1] = ctl.flags;
  Put(&bytes[2], kCtlMagic);
  Put(&bytes[4], ctl.epoch);
  Put(&bytes[8], ctl.offset);
  bytes[16] = ctl.tail;
  std::memcpy(&bytes[24], ctl.mac.data(), ctl.mac.size());
  return bytes;
}

bool Decode(const std::uint8_t* bytes, std::size_t length, Ctl* ctl) {
  if (length != kCtlSize) return false;
  if (Get<std::uint16_t>(bytes + 2) != kCtlMagic) return false;
  if (bytes[0] < static_cast<std::uint8_t>(CtlKind::kPropose) ||
      bytes[0] > static_cast<std::uint8_t>(CtlKind::kEnd)) {
    return false;
  }
  ctl->kind = static_cast<CtlKind>(bytes[0]);
  ctl->flags = bytes[1];
  std::uint8_t legal = ctl->kind == CtlKind::kPropose ? kCtlFlip : 0;
  if ((ctl->flags & ~legal) != 0) return false;
  ctl->tail = bytes[16];
  if (ctl->tail > 64) return false;
  for (int i = 17; i < 24; ++i) {
    if (bytes[i] != 0) return false;
  }
  ctl->epoch = Get<std::uint32_t>(bytes + 4);
  ctl->offset = Get<std::uint64_t>(bytes + 8);
  std::memcpy(ctl->mac.data(), bytes + 24, ctl->mac.size());
  return true;
}

Mac TailMac(const Nonce& connector, const Nonce& acceptor, std::uint32_t epoch,
            std::uint64_t x_p, const std::uint8_t* tail, std::size_t length) {
  std::uint8_t key[32];
  std::memcpy(key, connector.data(), 16);
  std::memcpy(key + 16, acceptor.data(), 16);
  std::uint8_t message[13 + 64];
  Put(message, epoch);
  Put(message + 4, x_p);
  message[12] = static_cast<std::uint8_t>(length);
  if (length != 0) std::memcpy(message + 13, tail, length);
  Mac mac{};
  crypto_generichash(mac.data(), mac.size(), message, 13 + length, key,
                     sizeof key);
  return mac;
}

bool Equal(const Mac& a, const Mac& b) {
  return sodium_memcmp(a.data(), b.data(), a.size()) == 0;
}

Nonce CommitOf(const Nonce& nonce, bool flip) {
  Nonce commit = nonce;
  if (flip) commit[0] = static_cast<std::uint8_t>(~commit[0]);
  return commit;
}

}  // namespace rcsock::stream
