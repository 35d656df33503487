#ifndef RCSOCK_LIB_BASE_NAP_H_
#define RCSOCK_LIB_BASE_NAP_H_

#include <cstdint>

#include "lib/base/clock.h"
#include "lib/base/latch.h"

namespace rcsock::base {

// From the arming of a nap to the last look before it.  A message stays in a
// store buffer for a shorter time.
constexpr std::uint64_t kNapLookNs = 300;

// Returns whether a nap that was armed at `armed_at`, by Ticks(), needs no
// further look behind the next.
inline bool NapLooksEnd(std::uint64_t armed_at) {
  return Ticks() - armed_at >= kNapLookNs * ticks_per_us / 1'000;
}
// Returns when that look is due.  One look, however long it takes, is enough.
inline void AwaitNapLook(std::uint64_t armed_at) {
  while (!NapLooksEnd(armed_at)) CpuRelax();
}

}  // namespace rcsock::base

#endif  // RCSOCK_LIB_BASE_NAP_H_
