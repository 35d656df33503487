#ifndef RCSOCK_TOOLS_RCSOCK_PERF_MARK_H_
#define RCSOCK_TOOLS_RCSOCK_PERF_MARK_H_

#include <sys/syscall.h>
#include <unistd.h>

namespace rcsock::perf {

// getppid(2) takes no argument.  With this one it is a mark; without, anybody's
// (the preload calls it when a program starts).
constexpr long kMark = 0x7263736f636b;

// CountSyscalls counts from the first to the last of these.
inline void Mark() { ::syscall(SYS_getppid, kMark); }

}  // namespace rcsock::perf

#endif  // RCSOCK_TOOLS_RCSOCK_PERF_MARK_H_
