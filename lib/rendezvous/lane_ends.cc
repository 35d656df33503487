#include "lib/rendezvous/lane_ends.h"

#include <utility>

#include "lib/base/log.h"
#include "lib/rendezvous/connection.h"
#include "lib/rendezvous/core.h"
#include "lib/rendezvous/rdma.h"

namespace rcsock::rendezvous {

using boost::system::error_code;

LaneEnds::LaneEnds(Core* core) : core_(core), timer_(core->io) {}

void LaneEnds::Add(std::shared_ptr<Connection> connection) {
  if (!connection->LeaveLane()) return;
  if (waiting_.size() >= kMost) waiting_.pop_front();
  waiting_.push_back(
      {std::move(connection), std::chrono::steady_clock::now() + kWait});
  Wait();
}

void LaneEnds::Reported(const Connection* connection) {
  DropIf([connection](const Connection& one) { return &one == connection; });
}

void LaneEnds::Wait() {
  if (timer_waits_ || waiting_.empty()) return;
  timer_waits_ = true;
  timer_.expires_at(waiting_.front().until);
  timer_.async_wait([core = core_](const error_code& error) {
    if (error) return;
    Step step(core);
    if (Rdma* rdma = core->rdma()) rdma->lane_ends()->OnTimer();
  });
}

void LaneEnds::OnTimer() {
  timer_waits_ = false;
  const auto now = std::chrono::steady_clock::now();
  while (!waiting_.empty() && waiting_.front().until <= now) {
    RCSOCK_LOG(1, "rdma: a QP in error, and no LAST_WQE_REACHED for it");
    waiting_.front().connection->NotReported();
    waiting_.pop_front();
  }
  Wait();
}

}  // namespace rcsock::rendezvous
