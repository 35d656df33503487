#ifndef RCSOCK_LIB_POSIX_LIFECYCLE_PROCESS_H_
#define RCSOCK_LIB_POSIX_LIFECYCLE_PROCESS_H_

#include <cstdint>

#include "lib/base/reason.h"
#include "lib/posix/sys/identity.h"

namespace rcsock::posix {

// The process's beginning and end.  Any thread may call these functions, with
// no latch.

// Reads the configuration and makes the process ready.  Hooks that other
// libraries' constructors call may come before it.
void InitProcess(Face face);

// Returns whether the process may not have so many descriptors.  Returns false
// within a sandbox, where all streams are on TCP: the filter may not allow the
// call that says so.
[[gnu::cold]] bool BeyondLimit(std::uint64_t count);

class Sock;
// Takes every stream of the process to TCP, and pins the process: no stream
// looks for a lane any more.  Waits for the peers, a bounded time.
void PinProcess(base::Reason reason);
// As PinProcess, on the conductor's thread, without a wait.
void PinProcessFromConductor(base::Reason reason);
// Pins the stream whose socket has this inode number.
void PinBySocket(std::uint64_t inode, base::Reason reason);
// Runs before exec.  Takes to TCP the streams that the new program inherits,
// and writes the statistics.  `followed`: the new program gets what has been
// read ahead.
void BeforeExec(bool followed);
// Takes BeforeExec back: exec has failed.
void AfterExec();
// Runs before the process filters its own system calls.  Takes all streams to
// TCP for good.  From then on rcsock makes no system call that a lane alone
// needs.
void EnterSandbox();
// As EnterSandbox, before prctl() with these arguments, if that makes a filter.
// A program asks with a filter at no address whether the kernel knows filters.
void BeforePrctl(int option, unsigned long mode, unsigned long filter);
// Runs before _exit and at exit.  Gives TCP the bytes that peers have yet to
// get, and writes the statistics.
void AtExit();

// Runs before a call that gives its thread a descriptor table of its own, if
// `flags` have `parts`.  Returns the flags for the call.  A program of one
// thread shares its table with the conductor alone, which must go on seeing the
// table.  So the call loses these parts, and nothing changes for the program.
// With more threads rcsock cannot follow two tables, so every stream goes to
// TCP for good.
int BeforeParting(int flags, int parts);

// Closes every followed descriptor in [first, last] as close() does, for
// close_range.
void CloseFollowed(unsigned first, unsigned last);

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_LIFECYCLE_PROCESS_H_
