#ifndef RCSOCK_LIB_POSIX_POLL_LOOK_H_
#define RCSOCK_LIB_POSIX_POLL_LOOK_H_

#include <cstdint>

#include "lib/base/clock.h"

namespace rcsock::posix {

// When a poll of this thread last looked at the kernel's descriptors, and
// whether that told of any.
struct KernelLook {
  // So long a ready stream may keep a poll from asking the kernel.
  static constexpr std::uint64_t kLatelyUs = 100;

  std::uint64_t at = 0;  // ticks
  bool told = false;
  std::uint64_t chance = 0;

  // Where streams are ready: whether the kernel is to be asked all the same,
  // because it had something the last time (a number that is closed, say), or
  // was not asked lately, or by chance; of polls that a thread makes in turn
  // every 16th may always be the same one.  Once it is owed it stays so until
  // somebody has looked.
  bool Owed() {
    chance = chance * 6364136223846793005 + 1442695040888963407;
    if (chance >> 60 == 0) at = 0;
    return told || base::Ticks() - at >= kLatelyUs * base::ticks_per_us;
  }
};
extern thread_local constinit KernelLook tls_look
    __attribute__((tls_model("initial-exec")));

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_POLL_LOOK_H_
