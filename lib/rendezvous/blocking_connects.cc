#include "lib/rendezvous/blocking_connects.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "lib/base/helper_thread.h"
#include "lib/base/internal.h"
#include "lib/rendezvous/connection.h"
#include "lib/rendezvous/core.h"
#include "lib/rendezvous/rdma.h"

namespace rcsock::rendezvous {
namespace {

constexpr std::size_t kMaxThreads = 16;
constexpr std::ptrdiff_t kMaxOfPeer = 4;

}  // namespace

// What the thread has.  The id outlives the call: running_ keeps the id, or
// leaves it to the kernel.
struct BlockingConnects::Call {
  Core* core;
  std::uint64_t number;
  rdma_cm_id* id;
  ReqBytes req;
  rdma_conn_param parameters;
};

void* BlockingConnects::Thread(void* argument) {
  ::pthread_setname_np(::pthread_self(), "rcsock-connect");
  base::tls_internal = true;
  const std::unique_ptr<Call> call(static_cast<Call*>(argument));
  // The private data is the call's own copy.
  rdma_conn_param parameters = call->parameters;
  parameters.private_data = call->req.data();
  const int error =
      verbs::calls.rdma_connect(call->id, &parameters) == 0 ? 0 : errno;
  Core* core = call->core;  // a core is never destroyed
  try {
    core->PostTask([core, number = call->number, error] {
      if (Rdma* rdma = core->rdma()) rdma->connects()->Returned(number, error);
    });
  } catch (...) {
    // If there is no memory, the connection stays in running_.
  }
  return nullptr;
}

bool BlockingConnects::Stuck(const Address& peer) const {
  return std::count_if(running_.begin(), running_.end(), [&](const auto& it) {
           return it.second.left && it.second.peer == peer;
         }) >= kMaxOfPeer;
}

bool BlockingConnects::Room(const Address& peer) const {
  return running_.size() < kMaxThreads &&
         std::count_if(running_.begin(), running_.end(), [&](const auto& it) {
           return it.second.peer == peer;
         }) < kMaxOfPeer;
}

int BlockingConnects::Start(const Address& peer,
                            std::shared_ptr<Connection> connection,
                            const ReqBytes& req) {
  Entry entry{peer, std::move(connection), req};
  if (Room(peer)) return Run(std::move(entry));
  waiting_.push_back(std::move(entry));
  return 0;
}

int BlockingConnects::Run(Entry entry) {
  const std::uint64_t number = ++last_;
  auto call = std::make_unique<Call>(
      Call{core_, number, entry.connection->id(), entry.req,
           entry.connection->Parameters(entry.req.data(), entry.req.size())});
  // The thread can report only after this turn, when its entry is in running_.
  const int error = base::StartHelper(&Thread, call.get());
  if (error != 0) return error;
  static_cast<void>(call.release());
  running_.emplace(number, std::move(entry));
  return 0;
}

void BlockingConnects::Returned(std::uint64_t number, int error) {
  const auto it = running_.find(number);
  if (it == running_.end()) return;
  const std::shared_ptr<Connection> connection =
      std::move(it->second.connection);
  running_.erase(it);
  // Another call gets the place, of this peer or of any.
  const auto next =
      std::find_if(waiting_.begin(), waiting_.end(),
                   [this](const Entry& entry) { return Room(entry.peer); });
  if (next != waiting_.end()) {
    Entry entry = std::move(*next);
    waiting_.erase(next);
    const std::shared_ptr<Connection> started = entry.connection;
    if (const int failed = Run(std::move(entry))) {
      started->ConnectReturned(failed);
    }
  }
  connection->ConnectReturned(error);
}

bool BlockingConnects::Leave(const Connection* connection) {
  for (auto it = waiting_.begin(); it != waiting_.end(); ++it) {
    if (it->connection.get() != connection) continue;
    waiting_.erase(it);
    return true;
  }
  for (auto& [number, entry] : running_) {
    if (entry.connection.get() == connection) entry.left = true;
  }
  return false;
}

bool BlockingConnects::Runs(const Connection* connection) const {
  return std::any_of(running_.begin(), running_.end(), [&](const auto& it) {
    return it.second.connection.get() == connection;
  });
}

void BlockingConnects::Close() {
  waiting_.clear();
  for (auto& [number, entry] : running_) {
    LeaveToTheKernel(std::move(entry.connection));
  }
  running_.clear();
}

}  // namespace rcsock::rendezvous
