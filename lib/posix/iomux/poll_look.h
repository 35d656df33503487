#ifndef RCSOCK_LIB_POSIX_IOMUX_POLL_LOOK_H_
#define RCSOCK_LIB_POSIX_IOMUX_POLL_LOOK_H_

#include <cstdint>

#include "lib/base/clock.h"

namespace rcsock::posix {

// When a poll of this thread last looked at the kernel's descriptors, and
// whether that found any ready.
struct KernelLook {
  // How long a ready stream may keep a poll from asking the kernel.
  static constexpr std::uint64_t kLatelyUs = 100;

  std::uint64_t at = 0;  // ticks
  bool told = false;
  std::uint64_t chance = 0;

  // Returns whether a poll with ready streams asks the kernel, too.  It does if
  // the kernel had something the last time, such as a closed number, if the
  // last look is not recent, or by chance.  A fixed turn would not do: of polls
  // that a thread makes in turn, every 16th may always be for one set.  A look
  // that is owed stays owed until a poll has looked.
  bool Owed() {
    chance = chance * 6364136223846793005 + 1442695040888963407;
    if (chance >> 60 == 0) at = 0;
    return told || base::Ticks() - at >= kLatelyUs * base::ticks_per_us;
  }
};
extern thread_local constinit KernelLook tls_look
    __attribute__((tls_model("initial-exec")));

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_IOMUX_POLL_LOOK_H_
