#ifndef RCSOCK_LIB_POSIX_SOCKET_BUDGET_H_
#define RCSOCK_LIB_POSIX_SOCKET_BUDGET_H_

#include <cstdint>

#include "lib/posix/policy/rdma_budget.h"

// What the budget of rdma lanes keeps for each stream.
namespace rcsock::posix {

class Sock;

// A stream in the list of streams on rdma lanes.
struct Remote {
  Sock* next = nullptr;
  Sock* prev = nullptr;
  bool listed = false;
  bool leaving = false;
  Activity activity;
  std::uint64_t probe_rx = 0;  // rx_off at the last ProbeRemotes
  Heartbeat heartbeat;
  std::uint64_t sought_ns = 0;     // when it began to seek a lane
  std::uint64_t sought_bytes = 0;  // what it had moved by then
  int queue = 1;                   // QueueOfThread() of the seeking thread
};

// The streams of this process that are on lanes.  Has no state of its own.
class RemoteLanes {
 public:
  // Takes every stream to a peer on another host off its lane, closed streams
  // too.  What such a peer has not taken dies with this process's queue pairs.
  // TCP's buffers outlive the process.  Blocks until the peers have answered,
  // or none has for a second, or the deadline.
  static void LeaveAll(std::uint64_t deadline_ns);
  // Run on the conductor.  Take idle streams with grown rings off their lanes:
  // MemoryLook for RDMA, SharedLook for shared memory.
  static void MemoryLook();
  static void SharedLook();
};

// Has lanes in shared memory give back the rings that were busy and are idle.
void WatchSharedRings();

void RemoteForkLock();
void RemoteForkUnlock(bool child);

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_SOCKET_BUDGET_H_
