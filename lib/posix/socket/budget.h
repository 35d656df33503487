#ifndef RCSOCK_LIB_POSIX_SOCKET_BUDGET_H_
#define RCSOCK_LIB_POSIX_SOCKET_BUDGET_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "lib/base/reason.h"
#include "lib/posix/policy/rdma_budget.h"

// The lanes of this process together: the budget of RDMA lanes, and the memory
// of idle rings.
namespace rcsock::posix {

class Sock;

// What the budget keeps of one stream: its place in the list of streams on RDMA
// lanes, and its pace.
//
// A part of its Sock.  A method requires both latches of the stream, unless it
// says otherwise.
class RemoteLane {
 public:
  explicit RemoteLane(Sock* sock) : sock_(sock) {}

  // A search for a lane begins.
  void Seeks();
  // Returns when the search began.  The caller may hold any latch.
  std::uint64_t sought_ns() const { return sought_ns_; }
  // Likewise, how many calls had moved bytes by then.
  std::uint32_t sought_calls() const { return sought_calls_; }
  // Returns QueueOfThread() of the thread that began the search.
  int queue() const { return queue_; }
  // Returns whether the stream may ask its peer for a lane.  The connecting end
  // calls it before it asks its conductor.  Requires no latch.
  bool HasRoom();
  // rendezvous::Seeker::TakePlace.  Requires no latch.
  bool TakePlace(base::Reason* why);
  // List: the stream has an RDMA lane.  Unlist: the stream has none any more.
  // Leaves: the stream is on its way off the lane.
  void List();
  void Unlist();
  void Leaves();

  // Forgets all, for another connection.  Requires that the stream is not in
  // the list.
  void Reset() { *this = RemoteLane(sock_); }
  // In the child of a fork: the list is the parent's.
  void OnForkChild() { Reset(); }

 private:
  friend class RemoteLanes;

  Sock* sock_;
  // The place in the list, which remote_latch guards (budget.cc).
  Sock* next_ = nullptr;
  Sock* prev_ = nullptr;
  bool listed_ = false;
  bool leaving_ = false;
  Activity activity_;
  std::uint64_t probe_rx_ = 0;  // rx_off at the last Probe
  Heartbeat heartbeat_;
  std::uint64_t sought_ns_ = 0;     // when the stream began to seek a lane
  std::uint64_t sought_bytes_ = 0;  // what it had moved by then
  std::uint32_t sought_calls_ = 0;  // in so many calls
  int queue_ = 1;
};

// The streams of this process that are on lanes.  The class has no state of its
// own.  The caller of a public method holds no latch of a stream.
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

 private:
  friend class RemoteLane;

  // Returns references to all streams of the list that have one left.
  static std::vector<std::shared_ptr<Sock>> All();
  static void Add(Sock* sock);
  static void Remove(Sock* sock);
  // Has the conductor find a stream that makes room for a newcomer.
  static void Challenge(const Pace& newcomer);
  static void EvictFor(const Pace& newcomer);
  // Asks the lanes whether all that they have sent has landed.
  static void Probe();
  static void ProbeSoon();
};

// Has lanes in shared memory give back the rings that were busy and are idle.
void WatchSharedRings();

// Take and release the list's latch around fork.
void RemoteForkLock();
void RemoteForkUnlock(bool child);

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_SOCKET_BUDGET_H_
