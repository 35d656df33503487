#include "lib/base/clock.h"

namespace rcsock::base {

namespace {

constinit std::uint64_t start_ns = 0;
constinit std::uint64_t start_ticks = 0;

// 200 us give a precision of one in a hundred, which is all that a spin budget
// needs. A machine that has slept since the start has counted otherwise.
constexpr std::uint64_t kLeastNs = 200'000;
constexpr std::uint64_t kMostNs = 10'000'000'000;

}  // namespace

std::uint64_t ticks_per_us = 2000;

void StartClock() {
  start_ns = NowNs();
  start_ticks = Ticks();
}

void InitClock() {
  std::uint64_t now = NowNs();
  if (start_ns == 0 || now - start_ns > kMostNs) {
    StartClock();
    now = start_ns;
  }
  while (now - start_ns < kLeastNs) now = NowNs();
  const std::uint64_t rate = (Ticks() - start_ticks) * 1000 / (now - start_ns);
  if (rate > 0) ticks_per_us = rate;
}

}  // namespace rcsock::base
