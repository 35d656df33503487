#ifndef RCSOCK_LIB_RENDEZVOUS_WAITING_LINE_H_
#define RCSOCK_LIB_RENDEZVOUS_WAITING_LINE_H_

#include <deque>
#include <memory>
#include <utility>

namespace rcsock::rendezvous {

// Who waits for a turn, in the order of coming.  Who has found another end of
// its waiting stays in it, and is passed over.
template <class Waiter>
class WaitingLine {
 public:
  void Add(std::weak_ptr<Waiter> waiter) { line_.push_back(std::move(waiter)); }
  bool empty() const { return line_.empty(); }
  void clear() { line_.clear(); }

  // `go` for one after the other, while there is `room`.
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
