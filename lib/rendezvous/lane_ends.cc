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
  if (waiting_.size() >= kMost) LookForReports();
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
  const auto due = [this, now] {
    return !waiting_.empty() && waiting_.front().until <= now;
  };
  if (due()) LookForReports();
  if (due()) {
    RCSOCK_LOG(1, "rdma: a QP in error, and no LAST_WQE_REACHED for it");
    // Once for all lanes of a turn: they may have one cause.
    waiting_.front().connection->NotReported();
  }
  while (due()) waiting_.pop_front();
  Wait();
}

void LaneEnds::LookForReports() {
  // Each look takes a bounded number of events.
  constexpr int kLooks = 8;
  for (int i = 0; i < kLooks; ++i) {
    Rdma* rdma = core_->rdma();
    if (rdma == nullptr || !rdma->LookAtDevices()) return;
  }
}

}  // namespace rcsock::rendezvous
