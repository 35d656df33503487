#ifndef RCSOCK_LIB_POSIX_PROCESS_H_
#define RCSOCK_LIB_POSIX_PROCESS_H_

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <memory>

#include "lib/base/reason.h"

namespace rcsock::posix {

// Process-wide state that is not an object's own: it lives here and in the
// descriptor table, nowhere else.
struct LaneCounts {
  std::atomic<std::uint64_t> streams{0};
  std::atomic<std::uint64_t> tx_bytes{0};
  std::atomic<std::uint64_t> rx_bytes{0};
};
struct Stats {
  std::atomic<std::uint64_t> streams{0};
  std::atomic<std::uint64_t> promoted{0};
  std::atomic<std::uint64_t> demotions{0};
  std::atomic<std::uint64_t> failovers{0};
  // Streams that were asked to leave an rdma lane: for hotter ones, for others
  // that want larger rings, because they were idle and had large ones.
  std::atomic<std::uint64_t> evicted_budget{0};
  std::atomic<std::uint64_t> evicted_memory{0};
  std::atomic<std::uint64_t> evicted_idle{0};
  // That were read ahead, and that a program without rcsock can't be told of.
  std::atomic<std::uint64_t> lost_bytes{0};
  LaneCounts tcp;
  LaneCounts shm;
  LaneCounts rdma;
  std::atomic<std::uint64_t> reasons[static_cast<int>(base::Reason::kCount)] =
      {};
  void Clear();
  void CopyFrom(const Stats& other);
};
extern Stats stats;
// With the streams that are still open; null when out of memory.
std::unique_ptr<Stats> CountAll();

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

// ... and the process whose memory it is.
long OwnPid();

// More descriptors than the process may have.  (False where a filter may not
// know the call that tells: all is on TCP there.)
[[gnu::cold]] bool BeyondLimit(std::uint64_t count);

class Sock;
// Every stream of the process goes to TCP, and none looks for a lane any more.
void PinProcess(base::Reason reason);
// kNone, or why.
base::Reason ProcessPinned();
// The stream whose socket has this inode number.
void PinBySocket(std::uint64_t inode, base::Reason reason);
// Whether a number that names it stays open across exec.
bool KeptByExec(Sock* sock);
// Before exec: streams that would be inherited go to TCP.  `followed`: the new
// program is told what has been read ahead.
void BeforeExec(bool followed);
// So many are lost: said, and counted.
void CountLost(Sock* sock, std::size_t bytes, Stats* in);
// Exec has failed: everything is as it was before.
void AfterExec();
// Around fork(): a fork that failed has shared nothing.
void ForkFailed();
// One has begun, and its child is not there yet: no stream may take a lane.
bool Forking();
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
