#ifndef RCSOCK_TESTS_RENDEZVOUS_PRETEND_DEVICE_H_
#define RCSOCK_TESTS_RENDEZVOUS_PRETEND_DEVICE_H_

#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include "lib/verbs/verbs.h"

namespace rcsock::rendezvous {

// Where the kernel knows no device, none is looked for.  False: it cannot be
// pretended.
inline bool PretendThatThereIsADevice() {
  return verbs::AnyDevice() ||
         (::unshare(CLONE_NEWNS) == 0 &&
          ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
          ::mount("none", "/sys/class", "tmpfs", 0, nullptr) == 0 &&
          ::mkdir("/sys/class/infiniband_verbs", 0755) == 0 &&
          ::mkdir("/sys/class/infiniband_verbs/uverbs0", 0755) == 0);
}

}  // namespace rcsock::rendezvous

#endif  // RCSOCK_TESTS_RENDEZVOUS_PRETEND_DEVICE_H_
