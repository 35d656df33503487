#ifndef RCSOCK_LIB_BASE_CLOCK_H_
#define RCSOCK_LIB_BASE_CLOCK_H_

#include <x86intrin.h>

#include <cstdint>
#include <ctime>

namespace rcsock::base {

inline std::uint64_t NowNs() {
  timespec now;
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000u +
         static_cast<std::uint64_t>(now.tv_nsec);
}

// Reads the time-stamp counter: for spin budgets, where a call would cost too
// much.
inline std::uint64_t Ticks() { return __rdtsc(); }

// Ticks per microsecond, once InitClock has measured them. It waits for 200 us,
// or for what is left of them since StartClock, if that was not long ago.
extern std::uint64_t ticks_per_us;
void StartClock();
void InitClock();

}  // namespace rcsock::base

#endif  // RCSOCK_LIB_BASE_CLOCK_H_
