#ifndef RCSOCK_LIB_POSIX_PROCESS_H_
#define RCSOCK_LIB_POSIX_PROCESS_H_

#include <cstdint>

#include "lib/base/reason.h"

namespace rcsock::posix {

// Process-wide state that is not an object's own: it lives here, in stats.h and
// fork.h, and in the descriptor table, nowhere else.

// Who calls the hooks.
enum class Face : std::uint8_t {
  kPreload,  // every call of the process comes through them
  kLibrary,  // those that the program makes by rcsock's names
  kBehind,   // as kLibrary, but another copy of rcsock is interposed and does
             // the work: nothing is followed here
};

// Reads the configuration; before the first hook does anything.
void InitProcess(Face face);
Face OwnFace();

// True in a child that shares our memory (vfork, clone(CLONE_VM)): whatever it
// does to descriptors is its own, and must not touch our tables.
bool InBorrowedMemory();

// ... and the process whose memory it is: known from the start, and by a child
// of fork.
long OwnPid();
void KnowOwnPid();

// More descriptors than the process may have.  (False where a filter may not
// know the call that tells: all is on TCP there.)
[[gnu::cold]] bool BeyondLimit(std::uint64_t count);

class Sock;
// Every stream of the process goes to TCP, and none looks for a lane any more.
void PinProcess(base::Reason reason);
// The same on the conductor's thread, which waits for no peer.
void PinProcessFromConductor(base::Reason reason);
// kNone, or why.
base::Reason ProcessPinned();
// The stream whose socket has this inode number.
void PinBySocket(std::uint64_t inode, base::Reason reason);
// Whether a number that names it stays open across exec.
bool KeptByExec(Sock* sock);
// Before exec: streams that would be inherited go to TCP.  `followed`: the new
// program is told what has been read ahead.
void BeforeExec(bool followed);
// Exec has failed: everything is as it was before.
void AfterExec();
// Before the process filters its own system calls: streams go to TCP for good,
// and nothing is called from now on that a lane alone needs.
void EnterSandbox();
// The same before prctl() with these arguments, if it is for that: a filter at
// no address is how a program asks whether the kernel knows filters.
void BeforePrctl(int option, unsigned long mode, unsigned long filter);
// Before _exit and at exit: TCP gets what it is owed, statistics are written.
void AtExit();

// Before a call that gives its thread a table of descriptors of its own, if its
// `flags` have `parts`; what is left of them.  A program of one thread has its
// table to itself but for the conductor, which must go on seeing it, so for the
// program nothing changes.  Where it has more, nobody follows two tables: every
// stream goes to TCP for good.
int BeforeParting(int flags, int parts);

// Every descriptor in [first, last] that we follow, for close_range: closes
// them as close() does.
void CloseFollowed(unsigned first, unsigned last);

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_PROCESS_H_
