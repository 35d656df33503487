#ifndef RCSOCK_LIB_RENDEZVOUS_WAITING_LINE_H_
#define RCSOCK_LIB_RENDEZVOUS_WAITING_LINE_H_

#include <deque>
#include <memory>
#include <utility>

namespace rcsock::rendezvous {

// Waiters for a turn, in the order of coming.  A waiter that waits no more
// stays in the line, and is passed over.
template <class Waiter>
class WaitingLine {
 public:
  void Add(std::weak_ptr<Waiter> waiter) { line_.push_back(std::move(waiter)); }
  bool empty() const { return line_.empty(); }
  void clear() { line_.clear(); }

  // Calls `go` for one waiter after the other, while there is `room`.
  template <class Room, class Go>
  void Advance(Room&& room, Go&& go) {
    while (room() && !line_.empty()) {
      const std::shared_ptr<Waiter> next = line_.front().lock();
      line_.pop_front();
      if (next != nullptr && next->queued()) go(next.get());
    }
  }

 private:
  std::deque<std::weak_ptr<Waiter>> line_;
};

}  // namespace rcsock::rendezvous

#endif  // RCSOCK_LIB_RENDEZVOUS_WAITING_LINE_H_
