#ifndef RCSOCK_LIB_POSIX_SYS_PINNED_H_
#define RCSOCK_LIB_POSIX_SYS_PINNED_H_

#include <atomic>

#include "lib/base/reason.h"

// Whether the streams of this process may have lanes at all.  Any thread may
// call these functions, with any latch.
namespace rcsock::posix {

// Returns why the process is pinned, or kNone.
base::Reason ProcessPinned();
// Stores the reason, unless the process is pinned already.
void MarkPinned(base::Reason reason);
// Whether every call that this process makes for its streams and epoll sets
// comes through the hooks, as far as is known.  A pinned process is not sure of
// that.
extern constinit std::atomic<bool> all_calls_seen;
inline bool AllCallsSeen() {
  return all_calls_seen.load(std::memory_order_seq_cst);
}
// The caller orders these calls.
void SetAllCallsSeen(bool seen);
// Stores kSandboxed.  Returns true for the first caller only.
bool MarkSandboxed();

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_SYS_PINNED_H_
