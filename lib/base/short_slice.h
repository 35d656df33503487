#ifndef RCSOCK_LIB_BASE_SHORT_SLICE_H_
#define RCSOCK_LIB_BASE_SHORT_SLICE_H_

#include <cstdint>

namespace rcsock::base {

// The least slice that the kernel gives.
constexpr std::uint64_t kShortSliceNs = 100'000;

// Asks for short slices of CPU time for this thread.  When the thread wakes up,
// it then gets its CPU at once, and not when another thread's slice is over,
// which may take milliseconds.  It gets no more CPU time in all.  A thread that
// has lately had more than its share waits as ever.
//
// Linux 6.12 and newer know such slices; older kernels change nothing.  A
// thread with a policy of its own is left alone.  Returns whether the kernel
// has been asked.
bool AskForShortSlice();

}  // namespace rcsock::base

#endif  // RCSOCK_LIB_BASE_SHORT_SLICE_H_
