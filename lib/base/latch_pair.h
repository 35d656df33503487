#ifndef RCSOCK_LIB_BASE_LATCH_PAIR_H_
#define RCSOCK_LIB_BASE_LATCH_PAIR_H_

#include "lib/base/capability.h"
#include "lib/base/latch.h"

namespace rcsock::base {

// The latches of a stream, for a part of the stream that both of them guard
// (RC_GUARDED_BY_BOTH).
struct LatchPair {
  // As Latch's, for both.
  void AssertHeld() const RC_ASSERT_HELD(tx, rx) {
    tx.AssertHeld();
    rx.AssertHeld();
  }
  void AssertUnshared() const RC_ASSERT_HELD(tx, rx) {
    tx.AssertUnshared();
    rx.AssertUnshared();
  }

  const Latch& tx;
  const Latch& rx;
};

}  // namespace rcsock::base

#endif  // RCSOCK_LIB_BASE_LATCH_PAIR_H_
