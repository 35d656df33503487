#include "lib/rendezvous/cm.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "lib/base/log.h"
#include "lib/base/unique_fd.h"
#include "lib/rendezvous/core.h"

namespace rcsock::rendezvous {
namespace {

using boost::asio::posix::stream_descriptor;
using boost::system::error_code;

constexpr int kEventsPerTurn = 64;
// A lane has receives for all that its peer may send.  So if a send finds no
// receive, the end that should have posted it is broken.  At 20 ms for each try
// (verbs::SetRnrTimer), the sender gives that end up after 120 ms.  The stream
// goes on over TCP.
constexpr std::uint8_t kRnrRetries = 6;

// Names the address in the place of a device.  There is no device yet.
void SetError(int code, const sockaddr_storage& local, verbs::Error* error) {
  *error = {"rdma_bind_addr", code, {}};
  char host[INET6_ADDRSTRLEN] = {};
  if (local.ss_family == AF_INET) {
    sockaddr_in in;
    std::memcpy(&in, &local, sizeof in);
    ::inet_ntop(AF_INET, &in.sin_addr, host, sizeof host);
  } else {
    sockaddr_in6 in;
    std::memcpy(&in, &local, sizeof in);
    ::inet_ntop(AF_INET6, &in.sin6_addr, host, sizeof host);
  }
  std::memcpy(error->device, host, ::strnlen(host, sizeof error->device - 1));
}

}  // namespace

std::shared_ptr<Cm> Cm::Make(Core* core, verbs::Error* error) {
  verbs::EventChannel channel = verbs::CreateEventChannel(error);
  if (channel == nullptr) return nullptr;
  auto cm = std::make_shared<Cm>(core, std::move(channel));
  error_code failed;
  cm->descriptor_->assign(cm->fd(), failed);
  if (failed) {
    *error = {"epoll_ctl", failed.value(), {}};
    return nullptr;
  }
  cm->Wait();
  return cm;
}

Cm::Cm(Core* core, verbs::EventChannel channel)
    : core_(core),
      channel_(std::move(channel)),
      descriptor_(std::make_unique<stream_descriptor>(core->io)) {}

void Cm::Close() {
  if (descriptor_ != nullptr && descriptor_->is_open()) descriptor_->release();
  descriptor_.reset();
}

verbs::Id Cm::NewId(CmOwner* owner, verbs::Error* error) {
  return verbs::CreateId(channel_.get(), owner, error);
}

verbs::Id Cm::Bind(CmOwner* owner, const Address& address, std::uint32_t scope,
                   std::uint16_t port, verbs::Error* error) {
  verbs::Id id = NewId(owner, error);
  if (id == nullptr) return id;
  sockaddr_storage local = ToSockaddr(address, scope, port);
  // The first id of a device opens the device.
  const base::LibraryOpens opens;
  if (verbs::calls.rdma_bind_addr(id.get(),
                                  reinterpret_cast<sockaddr*>(&local)) != 0) {
    SetError(errno, local, error);
    return nullptr;
  }
  if (id->verbs == nullptr) {  // a wildcard, or an address of no device
    SetError(ENODEV, local, error);
    return nullptr;
  }
  verbs::AdoptContext(id->verbs);
  return id;
}

void Cm::Wait() {
  descriptor_->async_wait(stream_descriptor::wait_read,
                          [weak = weak_from_this()](const error_code& error) {
                            if (error) return;
                            auto self = weak.lock();
                            if (self == nullptr) return;
                            Step step(self->core_);
                            if (self->descriptor_ == nullptr) return;
                            self->OnReadable();
                            // A wait looks at the descriptor anew, so what a
                            // full turn has left comes back here.
                            if (self->descriptor_ != nullptr) self->Wait();
                          });
}

void Cm::OnReadable() {
  for (int i = 0; i < kEventsPerTurn && descriptor_ != nullptr; ++i) {
    rdma_cm_event* event = nullptr;
    {
      // An event about an address or a request may open its device.
      const base::LibraryOpens opens;
      if (verbs::calls.rdma_get_cm_event(channel_.get(), &event) != 0) return;
      if (event->id->verbs != nullptr) verbs::AdoptContext(event->id->verbs);
    }
    CmEvent copy;
    copy.type = event->event;
    copy.status = event->status;
    copy.id = event->id;
    copy.length = 0;
    if (event->param.conn.private_data != nullptr) {
      copy.length = std::min<std::size_t>(event->param.conn.private_data_len,
                                          copy.data.size());
      std::memcpy(copy.data.data(), event->param.conn.private_data,
                  copy.length);
    }
    auto* owner = static_cast<CmOwner*>(event->id->context);
    verbs::Id request;
    if (copy.type == RDMA_CM_EVENT_CONNECT_REQUEST) request.reset(event->id);
    RCSOCK_LOG(2, "rdma_cm: %s, status %d",
               verbs::calls.rdma_event_str(copy.type), copy.status);
    verbs::calls.rdma_ack_cm_event(event);
    if (copy.type == RDMA_CM_EVENT_CONNECT_REQUEST) {
      owner->OnRequest(std::move(request), copy);
    } else if (owner != nullptr) {
      owner->OnCm(copy);
    }
  }
}

rdma_conn_param ConnectParameters(const void* data, std::size_t length,
                                  std::uint8_t retries) {
  rdma_conn_param parameters{};
  parameters.private_data = data;
  parameters.private_data_len = static_cast<std::uint8_t>(length);
  // rcsock uses no atomics, but iWARP devices want one of each.
  parameters.responder_resources = 1;
  parameters.initiator_depth = 1;
  parameters.retry_count = retries;
  parameters.rnr_retry_count = kRnrRetries;
  return parameters;
}

std::uint32_t ScopeOf(const sockaddr_storage& from) {
  if (from.ss_family != AF_INET6) return 0;
  sockaddr_in6 in;
  std::memcpy(&in, &from, sizeof in);
  return in.sin6_scope_id;
}

}  // namespace rcsock::rendezvous
