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

// Connections whose lane has been given back.  The QP is in error, the peer
// knows, and the device has still to report LAST_WQE_REACHED.  A QP that is
// destroyed earlier may take a receive of its shared queue with it.  A
// connection is destroyed at that report, or kWait after it came here, or when
// too many wait.
//
// Threads: the conductor's.
class LaneEnds {
 public:
  explicit LaneEnds(Core* core);

  // Destroys a connection that nothing uses, now or later.
  void Add(std::shared_ptr<Connection> connection);
  // The report for this connection has come.
  void Reported(const Connection* connection);
  // Drops the connections for which no report comes any more.
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
  // Devices report within microseconds once a QP is in error.  The limit leaves
  // time for an event that waits behind others.
  static constexpr std::chrono::milliseconds kWait{500};
  // The most lanes that wait at once: a waiting lane has memory.
  static constexpr std::size_t kMost = 256;

  struct Waiting {
    std::shared_ptr<Connection> connection;
    std::chrono::steady_clock::time_point until;
  };
  void Wait();
  void OnTimer();
  // Takes reports that the conductor has not read yet.  It may have been busy,
  // or stopped.
  void LookForReports();

  Core* const core_;
  boost::asio::steady_timer timer_;
  bool timer_waits_ = false;
  std::deque<Waiting> waiting_;  // in the order of `until`
};

}  // namespace rcsock::rendezvous

#endif  // RCSOCK_LIB_RENDEZVOUS_LANE_ENDS_H_
