#include "lib/rendezvous/blocking_ends.h"

#include <utility>

#include "lib/base/helper_thread.h"
#include "lib/base/internal.h"
#include "lib/base/log.h"
#include "lib/rendezvous/connection.h"
#include "lib/rendezvous/core.h"
#include "lib/rendezvous/rdma.h"

namespace rcsock::rendezvous {

// What the thread has. running_ keeps the connections, or nothing destroys
// them.
struct BlockingEnds::Call {
  Core* core;
  std::vector<Connection*> connections;
};

void* BlockingEnds::Thread(void* argument) {
  ::pthread_setname_np(::pthread_self(), "rcsock-end");
  base::tls_internal = true;
  const std::unique_ptr<Call> call(static_cast<Call*>(argument));
  for (Connection* connection : call->connections) connection->End();
  Core* core = call->core;  // a core is never destroyed
  core->PostTask([core] {
    if (Rdma* rdma = core->rdma()) rdma->ends()->Returned();
  });
  return nullptr;
}

void BlockingEnds::Add(std::shared_ptr<Connection> connection) {
  connection->BeginEnd();
  waiting_.push_back(std::move(connection));
  if (running_.empty()) Run();
}

void BlockingEnds::Run() {
  auto call = std::make_unique<Call>();
  call->core = core_;
  for (const auto& one : waiting_) call->connections.push_back(one.get());
  // The thread can report only after this turn.
  const int error = base::StartHelper(&Thread, call.get());
  if (error != 0) {
    // The connections stay until the next one comes.
    RCSOCK_LOG(1, "pthread_create: %d", error);
    return;
  }
  static_cast<void>(call.release());
  running_.swap(waiting_);
}

void BlockingEnds::Returned() {
  // The last connection of a device destroys the device.
  running_.clear();
  if (!waiting_.empty()) Run();
}

void BlockingEnds::Close() {
  waiting_.insert(waiting_.end(), running_.begin(), running_.end());
  running_.clear();
  for (auto& connection : waiting_) {
    LeaveToTheKernel(std::move(connection));
  }
  waiting_.clear();
}

}  // namespace rcsock::rendezvous
