#ifndef RCSOCK_LIB_BASE_SCHEDULING_H_
#define RCSOCK_LIB_BASE_SCHEDULING_H_

#include <cstdint>

namespace rcsock::base {

// The least slice that the kernel gives.
constexpr std::uint64_t kShortSliceNs = 100'000;

// A thread that gives way is nicer by this much. Where there is not enough CPU
// time it gets a third of another thread's.
constexpr std::int32_t kGivesWay = 5;
// Its slice is longer than the kernel's own, of 0.7 to 2.8 ms. A thread with a
// shorter one that wakes up need not await its end.
constexpr std::uint64_t kGivesWaySliceNs = 4'000'000;

// These calls are about this thread. They change nothing, and return false, if
// the thread has a policy of its own, or if a filter of system calls is there:
// it might end the process.

// Asks for short slices of CPU time. When the thread wakes up, it then gets its
// CPU at once, and not when another thread's slice is over, which may take
// milliseconds. It gets no more CPU time in all. A thread that has lately had
// more than its share waits as ever.
//
// Linux 6.12 and newer know such slices; older kernels change nothing.
bool AskForShortSlice();

// Gives way to other threads: one that wakes up gets the CPU of this thread,
// and this one waits when it wakes up (SCHED_BATCH). There is no way back,
// since to be less nice takes a privilege. It begins with the thread's next
// slice.
bool GiveWay();

}  // namespace rcsock::base

#endif  // RCSOCK_LIB_BASE_SCHEDULING_H_
