#ifndef RCSOCK_LIB_RENDEZVOUS_LANE_ENDS_H_
#define RCSOCK_LIB_RENDEZVOUS_LANE_ENDS_H_

#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstddef>
#include <deque>
#include <memory>

namespace rcsock::rendezvous {

class Connection;
class Core;

// Connections whose lane has been given back.  Their QP is in error, their peer
// knows, and the device has still to report LAST_WQE_REACHED: a QP that is
// destroyed earlier may take a receive of its shared queue with it.  Each is
// destroyed at that report, or kWait after it came here.
//
// Threads: the conductor's.
class LaneEnds {
 public:
  explicit LaneEnds(Core* core);

  // Nobody uses the connection.  Destroys it, now or later.
  void Add(std::shared_ptr<Connection> connection);
  // The report for this one has come.
  void Reported(const Connection* connection);
  // Nothing is reported of these any more.
  template <typename Predicate>
  void DropIf(Predicate gone) {
    for (std::size_t i = 0; i < waiting_.size();) {
      if (!gone(*waiting_[i].connection)) {
        ++i;
        continue;
      }
      const auto dropped = std::move(waiting_[i].connection);
      waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }
  void Close() { waiting_.clear(); }
  std::size_t size() const { return waiting_.size(); }

 private:
  // Devices report within microseconds once a QP is in error; so long, for one
  // whose event waits behind others.
  static constexpr std::chrono::milliseconds kWait{500};
  // More than so many lanes do not wait at once: what waits has memory.
  static constexpr std::size_t kMost = 256;

  struct Waiting {
    std::shared_ptr<Connection> connection;
    std::chrono::steady_clock::time_point until;
  };
  void Wait();
  void OnTimer();
  // Takes reports that have come, and of which the conductor has not heard yet:
  // it may have been busy, or stopped.
  void LookForReports();

  Core* const core_;
  boost::asio::steady_timer timer_;
  bool timer_waits_ = false;
  std::deque<Waiting> waiting_;  // in the order of `until`
};

}  // namespace rcsock::rendezvous

#endif  // RCSOCK_LIB_RENDEZVOUS_LANE_ENDS_H_
