#ifndef RCSOCK_LIB_POSIX_BUDGET_H_
#define RCSOCK_LIB_POSIX_BUDGET_H_

#include <cstdint>

// What the budget of rdma lanes keeps for each stream.
namespace rcsock::posix {

class Sock;

// What a stream moves, over at least a second. span 0: not known yet.
struct Pace {
  std::uint64_t rate = 0;  // bytes a second
  std::uint64_t span_ns = 0;
  std::uint32_t ops = 0;
};

// A stream in the list of streams on rdma lanes.
struct Remote {
  Sock* next = nullptr;
  Sock* prev = nullptr;
  bool listed = false;
  bool leaving = false;
  // Two earlier looks at its traffic; the first is older.
  struct Look {
    std::uint64_t ns = 0;
    std::uint64_t bytes = 0;
    std::uint32_t ops = 0;
  } looks[2];
  std::uint64_t active_ns = 0;     // the last look that found traffic
  std::uint64_t grown_bytes = 0;   // its bytes at the last use of large rings
  std::uint64_t grown_ns = 0;      // when that was
  std::uint64_t probe_rx = 0;      // rx_off at the last ProbeRemotes
  std::uint64_t beat_off = 0;      // tx_off at the last heartbeat
  std::uint64_t beat_ns = 0;       // when that was
  std::uint64_t sought_ns = 0;     // when it began to seek a lane
  std::uint64_t sought_bytes = 0;  // what it had moved by then
  int queue = 1;                   // QueueOfThread() of the seeking thread
  Pace Take(std::uint64_t now, std::uint64_t bytes, std::uint32_t ops);
  // Whether a heartbeat is due for a stream that has sent so much.  On TCP a
  // firewall would have seen traffic, and has seen none for a while.
  bool Beats(std::uint64_t now, std::uint64_t tx_off);
};

// Has lanes in shared memory give back the rings that were busy and are idle.
void WatchSharedRings();

void RemoteForkLock();
void RemoteForkUnlock(bool child);

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_BUDGET_H_
