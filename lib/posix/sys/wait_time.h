#ifndef RCSOCK_LIB_POSIX_SYS_WAIT_TIME_H_
#define RCSOCK_LIB_POSIX_SYS_WAIT_TIME_H_

#include <cstdint>
#include <ctime>

// How long a call may wait, as programs say it.
namespace rcsock::posix {

constexpr timespec kNoTime{0, 0};

// Returns whether the kernel accepts it as a time.
inline bool Valid(const timespec* timeout) {
  return timeout->tv_sec >= 0 && timeout->tv_nsec >= 0 &&
         timeout->tv_nsec < 1'000'000'000;
}

// FromMs and FromSpec return nanoseconds, or -1 for ever.
inline std::int64_t FromMs(int timeout) {
  return timeout < 0 ? -1 : static_cast<std::int64_t>(timeout) * 1'000'000;
}
inline std::int64_t FromSpec(const timespec* timeout) {
  if (timeout == nullptr) return -1;
  // A century is for ever.
  if (timeout->tv_sec > 3'000'000'000) return -1;
  return static_cast<std::int64_t>(timeout->tv_sec) * 1'000'000'000 +
         timeout->tv_nsec;
}

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_SYS_WAIT_TIME_H_
