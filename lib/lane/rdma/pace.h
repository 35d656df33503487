#ifndef RCSOCK_LIB_LANE_RDMA_PACE_H_
#define RCSOCK_LIB_LANE_RDMA_PACE_H_

#include <cstddef>
#include <cstdint>

#include "lib/lane/rdma/layout.h"

namespace rcsock::lane::rdma {

// How a lane divides what it sends, and how early it gives credit.
struct Pace {
  // The longest record, in bytes. A longer send goes out in several. The device
  // works on one record while the sender copies the next, and the receiver
  // copies the record before.
  std::uint32_t record;
  // A large send rings the doorbell after about so many bytes.
  std::size_t doorbell;
  // Small sends are put together once this many writes are in flight. The
  // second number is for iWARP, where some messages take two writes.
  std::uint64_t window;
  std::uint64_t window_iwarp;
  // The receiver writes its credit when it has consumed this part of the ring,
  // or of the messages.
  std::uint32_t credit_part;
  // Small sends that follow each other closely are put together even if the
  // window is not full.
  bool joins_bursts;
  // What has been put off goes out within this many microseconds. With
  // flushes_at_once it goes at once, if nothing has been flushed within that
  // time.
  std::uint32_t flush_us;
  bool flushes_at_once;
};

// A device in hardware. tests/lane/fake_time_test.cc has the model, and
// docs/paper.md the figures. A doorbell costs 0.1 us, and a record of 32 KiB
// takes 3 us to copy. So the first bytes of a long message leave 3 us after its
// send began. The device completes within 2 us. The window ends short of the 28
// messages that a peer takes: a message that waits there would wait for credit
// anyway.
constexpr Pace kHardwarePace = {32 * 1024, 32 * 1024, 24,  24,
                                4,         false,     100, true};

// A device in software works in the time of the two ends, and each record may
// cost both ends a sleep.
constexpr Pace kSoftwarePace = {kBlockMax, 64 * 1024, 4,    8,
                                2,         true,      1000, false};

}  // namespace rcsock::lane::rdma

#endif  // RCSOCK_LIB_LANE_RDMA_PACE_H_
