#ifndef RCSOCK_LIB_LANE_RDMA_TARGET_H_
#define RCSOCK_LIB_LANE_RDMA_TARGET_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "lib/lane/rdma/memory.h"
#include "lib/verbs/verbs.h"

namespace rcsock::lane::rdma {

class Domain;

// A target is memory of a receiving call to which the peer may write the next
// bytes of the stream. The receiver writes four words into the peer's head
// line, without an immediate:
//
//   32  address
//   40  bits 62-0: the data byte of the lane that belongs there; bit 63: exact
//   48  key (bits 31-0), bytes (bits 63-32)
//   56  check: a hash of the three, never 0; 0: there is no target
//
// No completion orders these words. A sender takes a target only if the check
// fits, so a mixture of two targets counts as none.
struct Target {
  std::uint64_t address = 0;
  std::uint64_t at = 0;
  std::uint32_t key = 0;
  std::uint32_t bytes = 0;
  // True: the target is void once byte `at` has gone another way. False: the
  // target is void when the stream is beyond its end.
  bool exact = false;
};

// What a lane knows of the target that it has named.
struct OwnTarget {
  std::byte* at = nullptr;
  std::size_t length = 0;  // 0: there is no target
  std::size_t landed = 0;  // data bytes since it was opened
  bool exact = false;
  bool closing = false;
  std::uint64_t from = 0;  // the data byte that belongs at `at`
};

constexpr std::size_t kTargetAt = 32;
constexpr std::size_t kTargetWords = 4;
constexpr std::size_t kTargetCheckAt =
    kTargetAt + (kTargetWords - 1) * sizeof(std::uint64_t);
using TargetWords = std::array<std::uint64_t, kTargetWords>;

TargetWords EncodeTarget(const Target& target);
// False: the check does not fit.
bool DecodeTarget(const TargetWords& words, Target* target);

// A target of this many bytes or more is worth its registration.
constexpr std::size_t kLeastTarget = 256 * 1024;
// Registering this many bytes takes milliseconds, in which the lane is latched.
constexpr std::size_t kMostTarget = 64 * 1024 * 1024;
// A shorter send goes into the ring.
constexpr std::size_t kLeastPlaced = 16 * 1024;

// The right to write to a target. The receiving call owns it.
//
// Threads: one at a time.
class Window {
 public:
  Window() = default;
  ~Window() { Close(); }
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;

  // Registers the memory. False: the device or a limit refuses it.
  bool Open(std::shared_ptr<Domain> domain, ibv_pd* pd, void* at,
            std::size_t length);
  std::uint32_t key() const { return mr_->rkey; }
  // After this nothing writes to the memory any more.
  void Close();
  // For a child of fork, whose parent has the window.
  void Abandon();

 private:
  std::shared_ptr<Domain> domain_;  // keeps the PD
  verbs::Mr mr_;
  PinCount pin_;
};

// Bytes that have landed in targets of the process and were not copied.
std::uint64_t InPlaceBytes();
void CountInPlace(std::uint64_t bytes);

}  // namespace rcsock::lane::rdma

#endif  // RCSOCK_LIB_LANE_RDMA_TARGET_H_
