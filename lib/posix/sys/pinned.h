#ifndef RCSOCK_LIB_POSIX_SYS_PINNED_H_
#define RCSOCK_LIB_POSIX_SYS_PINNED_H_

#include "lib/base/reason.h"

// Whether the streams of this process may have lanes at all.  Any thread may
// call these functions, with any latch.
namespace rcsock::posix {

// Returns why the process is pinned, or kNone.
base::Reason ProcessPinned();
// Stores the reason, unless the process is pinned already.
void MarkPinned(base::Reason reason);
// Stores kSandboxed.  Returns true for the first caller only.
bool MarkSandboxed();

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_SYS_PINNED_H_
