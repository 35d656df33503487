#ifndef RCSOCK_LIB_BASE_UNWINDER_H_
#define RCSOCK_LIB_BASE_UNWINDER_H_

namespace rcsock::base {

// What makes the process ready to throw. Null: it always is. The preload sets
// it before the program begins (lib/base/old_glibc/unwinder.cc).
using MakeReadyToThrow = bool (*)();
extern constinit MakeReadyToThrow make_ready_to_throw;

// A thread calls this before the process's first code that may throw. It loads
// libgcc_s if nothing has loaded it yet. So it may wait for the loader's lock,
// and takes memory and descriptors. Returns whether the process may throw.
inline bool ReadyToThrow() {
  return make_ready_to_throw == nullptr || make_ready_to_throw();
}

}  // namespace rcsock::base

#endif  // RCSOCK_LIB_BASE_UNWINDER_H_
