#ifndef RCSOCK_TOOLS_RCSOCK_PERF_MARK_H_
#define RCSOCK_TOOLS_RCSOCK_PERF_MARK_H_

#include <sys/syscall.h>
#include <unistd.h>

namespace rcsock::perf {

// getppid(2) takes no argument.  A call with this one is a mark.  A call
// without it may be any: the preload makes one when a program starts.
constexpr long kMark = 0x7263736f636b;

// CountSyscalls counts from the first mark to the last.
inline void Mark() { ::syscall(SYS_getppid, kMark); }

}  // namespace rcsock::perf

#endif  // RCSOCK_TOOLS_RCSOCK_PERF_MARK_H_
