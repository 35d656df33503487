#include "lib/base/clock.h"

namespace rcsock::base {

std::uint64_t ticks_per_us = 2000;

void InitClock() {
  // 200 us give a precision of one in a hundred, which is all that a spin
  // budget needs.
  const std::uint64_t t0 = NowNs();
  const std::uint64_t c0 = Ticks();
  std::uint64_t t1 = t0;
  while (t1 - t0 < 200'000) t1 = NowNs();
  const std::uint64_t c1 = Ticks();
  const std::uint64_t rate = (c1 - c0) * 1000 / (t1 - t0);
  if (rate > 0) ticks_per_us = rate;
}

}  // namespace rcsock::base
