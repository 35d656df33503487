#ifndef RCSOCK_LIB_BASE_UNWINDER_H_
#define RCSOCK_LIB_BASE_UNWINDER_H_

// Only the preload has this function (lib/base/old_glibc/unwinder.cc).
extern "C" [[gnu::weak, gnu::visibility("hidden")]] bool
rcsock_ready_to_throw();

namespace rcsock::base {

// A thread calls this before the process's first code that may throw. It loads
// libgcc_s if nothing has loaded it yet. So it may wait for the loader's lock,
// and takes memory and descriptors. Returns whether the process may throw.
inline bool ReadyToThrow() {
  return rcsock_ready_to_throw == nullptr || rcsock_ready_to_throw();
}

}  // namespace rcsock::base

#endif  // RCSOCK_LIB_BASE_UNWINDER_H_
