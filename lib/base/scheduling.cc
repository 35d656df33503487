#include "lib/base/scheduling.h"

#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

namespace rcsock::base {
namespace {

// The kernel's struct sched_attr, in its first version. Newer headers of libc
// have it, too.
struct Attributes {
  std::uint32_t size = sizeof(Attributes);
  std::uint32_t policy = 0;
  std::uint64_t flags = 0;
  std::int32_t nice = 0;
  std::uint32_t priority = 0;
  std::uint64_t runtime = 0;
  std::uint64_t deadline = 0;
  std::uint64_t period = 0;
};

bool Ask(std::uint32_t policy, std::int32_t more_nice, std::uint64_t slice_ns) {
  constexpr std::int32_t kMostNice = 19;
  // A filter of system calls may end a process that changes its scheduling:
  // systemd's SystemCallFilter=~@resources does.
  if (::prctl(PR_GET_SECCOMP) != 0) return false;
  Attributes attributes;
  if (::syscall(SYS_sched_getattr, 0, &attributes, sizeof attributes, 0) != 0 ||
      attributes.policy != SCHED_OTHER) {
    return false;
  }
  // All else stays as it is.
  attributes.size = sizeof attributes;
  attributes.policy = policy;
  attributes.nice = std::min(attributes.nice + more_nice, kMostNice);
  attributes.runtime = slice_ns;
  return ::syscall(SYS_sched_setattr, 0, &attributes, 0) == 0;
}

}  // namespace

bool AskForShortSlice() { return Ask(SCHED_OTHER, 0, kShortSliceNs); }

bool GiveWay() { return Ask(SCHED_BATCH, kGivesWay, kGivesWaySliceNs); }

}  // namespace rcsock::base
