#ifndef RCSOCK_LIB_LANE_RDMA_EVENT_WATCH_H_
#define RCSOCK_LIB_LANE_RDMA_EVENT_WATCH_H_

#include <cstdint>

namespace rcsock::lane::rdma {

// Finds out whether a completion queue has lost an event. A queue that was
// armed, and then found empty, owes an event for the next completion that it is
// armed for. A thread may find that completion before the event. But an event
// that has not come kLimitNs later will not come.
//
// Threads: the poller's latch covers it.
class EventWatch {
 public:
  // The queue has been armed, or its event has come.
  void Restart() { *this = EventWatch(); }
  // The queue is empty, behind its last arming.
  void Empty() { empty_ = !owed_; }
  // Whether the next completion makes the queue owe an event.
  bool empty() const { return empty_; }
  // Completions have come that the queue is armed for.
  void Came() {
    empty_ = false;
    owed_ = true;
  }
  bool owed() const { return owed_; }
  // The event that is owed is not there now. True: it is lost.
  bool Overdue(std::uint64_t now_ns) {
    if (since_ns_ == 0) since_ns_ = now_ns;
    return now_ns - since_ns_ > kLimitNs;
  }

 private:
  // A device reports within microseconds, and a busy CPU takes an interrupt
  // some milliseconds later.
  static constexpr std::uint64_t kLimitNs = 500'000'000;

  bool empty_ = false;
  bool owed_ = false;
  std::uint64_t since_ns_ = 0;  // 0: nobody has missed it yet
};

}  // namespace rcsock::lane::rdma

#endif  // RCSOCK_LIB_LANE_RDMA_EVENT_WATCH_H_
