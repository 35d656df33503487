// The kernel's part of rdma_cm: handshakes over the same sockets as the data.

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <rdma/rdma_cma.h>
#include <sys/epoll.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>

#include "tests/device/engine.h"
#include "tests/device/kernel.h"
#include "tests/device/raw.h"

namespace fake_device {
namespace {

using std::chrono::microseconds;

// Reasons of the connection manager of InfiniBand.
constexpr int kTimedOut = 4;
constexpr int kNoListener = 8;
constexpr int kConsumer = 28;
// What has room in its messages, which are padded with zeros.
constexpr std::size_t kReqData = 56;
constexpr std::size_t kRepData = 196;
constexpr std::size_t kRejData = 148;
constexpr microseconds kTimeWait{20'000};
constexpr microseconds kUnreachableAfter{20'000};
constexpr microseconds kReqAgain{20'000};
constexpr int kMostReqs = 250;
constexpr int kFirstPort = 32'768;
constexpr int kPorts = 28'000;

std::uint16_t PortOf(const sockaddr_storage& address) {
  return address.ss_family == AF_INET
             ? reinterpret_cast<const sockaddr_in&>(address).sin_port
             : reinterpret_cast<const sockaddr_in6&>(address).sin6_port;
}

void SetPort(sockaddr_storage* address, std::uint16_t port) {
  if (address->ss_family == AF_INET) {
    reinterpret_cast<sockaddr_in*>(address)->sin_port = port;
  } else {
    reinterpret_cast<sockaddr_in6*>(address)->sin6_port = port;
  }
}

bool IsWildcard(const sockaddr_storage& address) {
  return address.ss_family == AF_INET
             ? reinterpret_cast<const sockaddr_in&>(address).sin_addr.s_addr ==
                   0
             : IN6_IS_ADDR_UNSPECIFIED(
                   &reinterpret_cast<const sockaddr_in6&>(address).sin6_addr);
}

long SizeOf(const sockaddr_storage& address) {
  return address.ss_family == AF_INET ? sizeof(sockaddr_in)
                                      : sizeof(sockaddr_in6);
}

sockaddr_storage Storage(const sockaddr* address) {
  sockaddr_storage storage{};
  std::memcpy(&storage, address,
              address->sa_family == AF_INET ? sizeof(sockaddr_in)
                                            : sizeof(sockaddr_in6));
  return storage;
}

// "\0rcsock-fake/space/10.0.0.1:80"
long Name(const State* state, const sockaddr_storage& address,
          sockaddr_un* name) {
  char host[INET6_ADDRSTRLEN + 16] = {};
  if (address.ss_family == AF_INET) {
    ::inet_ntop(AF_INET,
                &reinterpret_cast<const sockaddr_in&>(address).sin_addr, host,
                sizeof host);
  } else {
    const auto& in = reinterpret_cast<const sockaddr_in6&>(address);
    ::inet_ntop(AF_INET6, &in.sin6_addr, host, INET6_ADDRSTRLEN);
    if (in.sin6_scope_id != 0) {
      const std::string scope = "%" + std::to_string(in.sin6_scope_id);
      std::strcat(host, scope.c_str());
    }
  }
  const std::string text = "rcsock-fake/" + state->options.space + "/" + host +
                           ":" + std::to_string(ntohs(PortOf(address)));
  *name = {};
  name->sun_family = AF_UNIX;
  const std::size_t length = std::min(text.size(), sizeof name->sun_path - 1);
  std::memcpy(name->sun_path + 1, text.data(), length);
  return static_cast<long>(offsetof(sockaddr_un, sun_path) + 1 + length);
}

// Whether an address is this host's.  In a device thread.
bool IsLocal(const sockaddr_storage& address) {
  sockaddr_storage any = address;
  SetPort(&any, 0);
  const long fd =
      Raw(SYS_socket, address.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  const bool bound = Raw(SYS_bind, fd, Arg(&any), SizeOf(any)) == 0;
  Raw(SYS_close, fd);
  return bound;
}

int NewSocket() {
  return static_cast<int>(Raw(
      SYS_socket, AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

void Queue(KernelId* id, CmEvent event) {
  if (id->channel == nullptr) return;
  event.uid = id->uid;
  event.id = id;
  id->channel->events.push_back(std::move(event));
  const std::uint64_t token = 1;
  Tell(id->state, id->channel->fifo, &token, sizeof token);
}

void Queue(KernelId* id, int type, int status = 0, std::string data = {}) {
  CmEvent event;
  event.type = type;
  event.status = status;
  event.data = std::move(data);
  Queue(id, std::move(event));
}

std::string Padded(const State* state, std::string data, std::size_t length) {
  if (!state->options.iwarp && data.size() < length) data.resize(length);
  return data;
}

Conn* NewConn(State* state, int fd) {
  auto* const conn = new Conn;
  conn->state = state;
  conn->serial = state->next_serial++;
  conn->fd = fd;
  const int room = 1 << 20;
  Raw(SYS_setsockopt, fd, SOL_SOCKET, SO_SNDBUF, Arg(&room), sizeof room);
  state->conns[conn->serial] = conn;
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = conn->serial;
  Raw(SYS_epoll_ctl, state->epoll, EPOLL_CTL_ADD, fd, Arg(&event));
  return conn;
}

void SendCm(Conn* conn, Kind kind, std::uint16_t status = 0,
            const std::string& data = {}) {
  Head head{};
  head.kind = kind;
  head.status = status;
  head.length = static_cast<std::uint32_t>(data.size());
  SendFrame(conn, head, data);
}

// Finds the id in `f` again, later.
template <typename F>
void ForId(State* state, const KernelId* id, microseconds after, F f) {
  state->Later(after, [state, serial = id->serial, f] {
    const auto found = state->ids.find(serial);
    if (found != state->ids.end()) f(found->second);
  });
}

void Disconnected(KernelId* id, CmState next) {
  id->cm = next;
  Count(&Counts::disconnected);
  Queue(id, RDMA_CM_EVENT_DISCONNECTED);
  // A connection of iWARP takes its queue pair along.
  if (id->state->options.iwarp && id->conn != nullptr &&
      id->conn->qp != nullptr) {
    FailQp(id->conn->qp);
  }
  if (next != CmState::kClosed) return;
  ForId(id->state, id, kTimeWait,
        [](KernelId* one) { Queue(one, RDMA_CM_EVENT_TIMEWAIT_EXIT); });
}

void Rejected(KernelId* id, int status, std::string data) {
  id->cm = CmState::kClosed;
  Count(&Counts::rejected);
  Queue(id, RDMA_CM_EVENT_REJECTED, status,
        Padded(id->state, std::move(data), kRejData));
}

void Attach(Conn* conn, ibv_qp* base) {
  auto* const qp = reinterpret_cast<Qp*>(base);
  if (qp == nullptr) {
    conn->qp_gone = true;
    return;
  }
  conn->qp = qp;
  qp->conn = conn;
}

// iWARP's kernel has the queue pair, and sets its states.
void Bring(Conn* conn) {
  if (!conn->state->options.iwarp || conn->qp == nullptr) return;
  if (conn->qp->base.state != IBV_QPS_INIT) return;
  conn->qp->base.state = IBV_QPS_RTS;
  OnReady(conn->qp);
}

void SendReq(KernelId* id, const std::string& data, int tries);

// A device thread's.
void SendReqNow(KernelId* id, const std::string& data, int tries) {
  State* const state = id->state;
  if (id->cm != CmState::kReqSent || id->conn == nullptr) return;
  sockaddr_un name;
  const long length = Name(state, id->destination, &name);
  const long result = Raw(SYS_connect, id->conn->fd, Arg(&name), length);
  if (result == -EAGAIN) return SendReq(id, data, tries + 1);
  if (result < 0) {
    return Rejected(id, state->options.iwarp ? -ECONNREFUSED : kNoListener, {});
  }
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = id->conn->serial;
  Raw(SYS_epoll_ctl, state->epoll, EPOLL_CTL_ADD, id->conn->fd, Arg(&event));
  std::string req(reinterpret_cast<const char*>(&id->source),
                  sizeof id->source);
  req.append(reinterpret_cast<const char*>(&id->destination),
             sizeof id->destination);
  SendCm(id->conn, Kind::kReq, 0, req + data);
}

// The listener's queue is full: a REQ that nobody has heard.
void SendReq(KernelId* id, const std::string& data, int tries) {
  if (tries > kMostReqs) {
    id->cm = CmState::kClosed;
    return Queue(id, RDMA_CM_EVENT_UNREACHABLE, -ETIMEDOUT);
  }
  ForId(id->state, id, tries == 0 ? microseconds(0) : kReqAgain,
        [data, tries](KernelId* one) { SendReqNow(one, data, tries); });
}

void OnReq(Conn* conn, const std::string& data) {
  State* const state = conn->state;
  const auto found = state->ids.find(conn->listener);
  constexpr std::size_t kAddresses = 2 * sizeof(sockaddr_storage);
  if (conn->id != nullptr || found == state->ids.end() ||
      found->second->cm != CmState::kListen || data.size() < kAddresses) {
    return CloseConn(conn);
  }
  KernelId* const listener = found->second;
  auto* const id = new KernelId;
  id->state = state;
  id->channel = listener->channel;
  id->serial = state->next_serial++;
  id->cm = CmState::kReqReceived;
  id->on_device = true;
  id->conn = conn;
  conn->id = id;
  std::memcpy(&id->destination, data.data(), sizeof id->destination);
  std::memcpy(&id->source, data.data() + sizeof id->destination,
              sizeof id->source);
  state->ids[id->serial] = id;
  CmEvent event;
  event.type = RDMA_CM_EVENT_CONNECT_REQUEST;
  event.child = id;
  event.data = Padded(state, data.substr(kAddresses), kReqData);
  Queue(listener, std::move(event));
}

void OnRep(KernelId* id, const std::string& data) {
  if (id->cm != CmState::kReqSent) return;
  CmEvent event;
  event.type = RDMA_CM_EVENT_ESTABLISHED;
  event.data = Padded(id->state, data, kRepData);
  event.response = !id->state->options.iwarp;
  id->cm = event.response ? CmState::kRepReceived : CmState::kEstablished;
  if (!event.response) {
    Count(&Counts::established);
    Bring(id->conn);
  }
  Queue(id, std::move(event));
}

void Free(KernelId* id) {
  State* const state = id->state;
  if (id->channel != nullptr) {
    std::vector<KernelId*> children;
    std::erase_if(id->channel->events, [&](const CmEvent& event) {
      if (event.id != id) return false;
      if (event.child != nullptr) children.push_back(event.child);
      return true;
    });
    // Requests that nobody has read.
    for (KernelId* child : children) Free(child);
  }
  state->ids.erase(id->serial);
  const int fd = id->fd;
  const CmState was = id->cm;
  std::uint64_t serial = 0;
  if (id->conn != nullptr) {
    serial = id->conn->serial;
    id->conn->id = nullptr;
  }
  delete id;
  state->tasks.push_back([state, serial, fd, was] {
    const auto found = state->conns.find(serial);
    if (found != state->conns.end()) {
      Conn* const conn = found->second;
      if (!state->options.iwarp && !conn->ended) {
        switch (was) {
          case CmState::kReqSent:
            SendCm(conn, Kind::kRej, kTimedOut);
            break;
          case CmState::kReqReceived:
          case CmState::kRepSent:
          case CmState::kRepReceived:
            SendCm(conn, Kind::kRej, kConsumer);
            break;
          case CmState::kEstablished:
            SendCm(conn, Kind::kDreq);
            break;
          case CmState::kDreqReceived:
            SendCm(conn, Kind::kDrep);
            break;
          default:
            break;
        }
      }
      CloseConn(conn);
    }
    if (fd >= 0) Raw(SYS_close, fd);
  });
  state->some.notify_all();
}

}  // namespace

void OnCmFrame(Conn* conn, const Head& head, const std::string& data) {
  if (head.kind == Kind::kReq) return OnReq(conn, data);
  KernelId* const id = conn->id;
  if (id == nullptr) return;
  switch (head.kind) {
    case Kind::kRep:
      return OnRep(id, data);
    case Kind::kRtu:
      if (id->cm != CmState::kRepSent) return;
      id->cm = CmState::kEstablished;
      Count(&Counts::established);
      return Queue(id, RDMA_CM_EVENT_ESTABLISHED);
    case Kind::kRej:
      switch (id->cm) {
        case CmState::kReqReceived:
          // Nobody is told before it is accepted, which fails then.
          id->ended = true;
          return;
        case CmState::kReqSent:
        case CmState::kRepSent:
        case CmState::kRepReceived:
          return Rejected(id,
                          id->state->options.iwarp
                              ? -ECONNRESET
                              : static_cast<int>(head.status),
                          data);
        case CmState::kEstablished:
          return Disconnected(id, CmState::kClosed);
        default:
          return;
      }
    case Kind::kDreq:
      if (id->cm == CmState::kRepReceived || id->cm == CmState::kRepSent) {
        id->ended = true;
      } else if (id->cm == CmState::kEstablished) {
        Disconnected(id, CmState::kDreqReceived);
      } else if (id->cm == CmState::kDreqSent) {
        Disconnected(id, CmState::kClosed);
      }
      return;
    case Kind::kDrep:
      if (id->cm == CmState::kDreqSent) Disconnected(id, CmState::kClosed);
      return;
    default:
      return;
  }
}

// The peer's end has been closed, perhaps by its process's death.
void OnEnd(Conn* conn) {
  conn->ended = true;
  OnConnEnd(conn);
  KernelId* const id = conn->id;
  if (id == nullptr) return CloseConn(conn);
  switch (id->cm) {
    case CmState::kReqSent:
      return Rejected(id, id->state->options.iwarp ? -ECONNRESET : kConsumer,
                      {});
    case CmState::kRepSent:
      return Rejected(id, kTimedOut, {});
    case CmState::kReqReceived:
    case CmState::kRepReceived:
      id->ended = true;
      return;
    case CmState::kEstablished:
    case CmState::kDreqSent:
      return Disconnected(id, CmState::kClosed);
    default:
      return;
  }
}

void OnAccept(State* state, KernelId* listener) {
  for (;;) {
    const long fd =
        Raw(SYS_accept4, listener->fd, 0, 0, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) return;
    NewConn(state, static_cast<int>(fd))->listener = listener->serial;
  }
}

// In a device thread.
void CloseConn(Conn* conn) {
  if (conn->qp != nullptr) {
    conn->qp->conn = nullptr;
    conn->qp = nullptr;
  }
  if (conn->id != nullptr) conn->id->conn = nullptr;
  conn->state->conns.erase(conn->serial);
  Raw(SYS_close, conn->fd);
  delete conn;
}

bool Control(State* state, const std::string& command) {
  const auto each_id = [state](int type) {
    for (const auto& [serial, id] : state->ids) {
      if (id->on_device && id->uid != nullptr) Queue(id, type);
    }
  };
  if (command == "port_err") {
    state->port_up = false;
    AsyncEvent(state, IBV_EVENT_PORT_ERR, nullptr, 1);
  } else if (command == "port_active") {
    state->port_up = true;
    AsyncEvent(state, IBV_EVENT_PORT_ACTIVE, nullptr, 1);
  } else if (command == "gid_change") {
    AsyncEvent(state, IBV_EVENT_GID_CHANGE, nullptr, 1);
  } else if (command == "device_fatal") {
    for (const auto& [number, qp] : state->qps) qp->silent = true;
    AsyncEvent(state, IBV_EVENT_DEVICE_FATAL, nullptr, 0);
  } else if (command == "qp_fatal") {
    for (const auto& [number, qp] : state->qps) {
      AsyncEvent(state, IBV_EVENT_QP_FATAL, qp, 0);
      FailQp(qp);
    }
  } else if (command == "qp_err") {
    for (const auto& [number, qp] : state->qps) FailQp(qp);
  } else if (command == "addr_change") {
    each_id(RDMA_CM_EVENT_ADDR_CHANGE);
  } else if (command == "removal") {
    state->present = false;
    for (const auto& [number, qp] : state->qps) qp->silent = true;
    for (Context* context : state->contexts) context->gone = true;
    each_id(RDMA_CM_EVENT_DEVICE_REMOVAL);
  } else if (command == "back") {
    state->present = true;
  } else if (command == "lose_event") {
    state->loses_event = true;
  } else if (command == "unreachable") {
    state->unreachable = true;
  } else if (command == "reachable") {
    state->unreachable = false;
  } else {
    return false;
  }
  return true;
}

namespace {
int control_fd = -1;
}  // namespace

// "\0rcsock-fake/space/control/pid", of datagrams.
int OpenControl(State* state) {
  const long fd =
      Raw(SYS_socket, AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return -1;
  const std::string text = "rcsock-fake/" + state->options.space + "/control/" +
                           std::to_string(Raw(SYS_getpid));
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  const std::size_t length = std::min(text.size(), sizeof name.sun_path - 1);
  std::memcpy(name.sun_path + 1, text.data(), length);
  Raw(SYS_bind, fd, Arg(&name),
      static_cast<long>(offsetof(sockaddr_un, sun_path) + 1 + length));
  control_fd = static_cast<int>(fd);
  return control_fd;
}

void OnControl(State* state, int) {
  char command[64];
  for (;;) {
    const long n = Raw(SYS_recvfrom, control_fd, Arg(command), sizeof command,
                       MSG_DONTWAIT);
    if (n <= 0) return;
    Control(state, std::string(command, static_cast<std::size_t>(n)));
  }
}

}  // namespace fake_device

using namespace fake_device;

int fake_cm_open(KernelChannel** channel, int* fd) {
  State* const state = Current();
  std::unique_lock hold(state->mutex);
  if (!state->present) return ENODEV;
  auto* const made = new KernelChannel;
  made->state = state;
  if (!MakeFifo(state, &hold, &made->fifo, fd)) {
    const int error = errno;
    delete made;
    return error;
  }
  state->channels.insert(made);
  *channel = made;
  return 0;
}

void fake_cm_close(KernelChannel* channel, int fd) {
  State* const state = channel->state;
  CheckOwner(state, "an event channel");
  {
    std::unique_lock hold(state->mutex);
    state->channels.erase(channel);
    for (const auto& [serial, id] : state->ids) {
      if (id->channel == channel) id->channel = nullptr;
    }
    CloseFifo(state, &hold, &channel->fifo);
  }
  Raw(SYS_close, fd);
  delete channel;
}

int fake_cm_get(KernelChannel* channel, int fd, fake_cm_event* event) {
  CheckOwner(channel->state, "an event channel");
  for (;;) {
    std::uint64_t token;
    const long n = Raw(SYS_read, fd, Arg(&token), sizeof token);
    if (n != sizeof token) return n < 0 ? static_cast<int>(-n) : EIO;
    const std::lock_guard hold(channel->state->mutex);
    // Of an id that has been destroyed there are none any more.
    if (channel->events.empty()) continue;
    const CmEvent one = std::move(channel->events.front());
    channel->events.pop_front();
    // Nobody knows its id yet.
    if (one.uid == nullptr) continue;
    ++one.id->reported;
    *event = {};
    event->uid = one.uid;
    event->type = one.type;
    event->status = one.status;
    event->child = one.child;
    event->response = one.response;
    const KernelId* const about = one.child != nullptr ? one.child : one.id;
    event->source = about->source;
    event->destination = about->destination;
    event->length =
        static_cast<std::uint8_t>(std::min<std::size_t>(one.data.size(), 255));
    std::memcpy(event->data, one.data.data(), event->length);
    return 0;
  }
}

int fake_cm_create(KernelChannel* channel, void* uid, KernelId** made) {
  State* const state = channel->state;
  CheckOwner(state, "an event channel");
  const std::lock_guard hold(state->mutex);
  auto* const id = new KernelId;
  id->state = state;
  id->channel = channel;
  id->uid = uid;
  id->serial = state->next_serial++;
  state->ids[id->serial] = id;
  *made = id;
  return 0;
}

std::uint32_t fake_cm_destroy(KernelId* id) {
  State* const state = id->state;
  CheckOwner(state, "an id");
  std::unique_lock hold(state->mutex);
  const std::uint32_t reported = id->reported;
  const bool listened = id->cm == CmState::kListen;
  Free(id);
  // Its port is free when this returns.
  if (listened) state->Call(&hold, [] {});
  return reported;
}

int fake_cm_bind(KernelId* id, const sockaddr* address, bool* device) {
  State* const state = id->state;
  CheckOwner(state, "an id");
  std::unique_lock hold(state->mutex);
  if (id->cm != CmState::kIdle ||
      (address->sa_family != AF_INET && address->sa_family != AF_INET6)) {
    return EINVAL;
  }
  sockaddr_storage source = Storage(address);
  const bool wildcard = IsWildcard(source);
  int result = ENODEV;
  if (!wildcard && !state->present) return ENODEV;
  state->Call(&hold, [&] {
    if (!wildcard && !IsLocal(source)) {
      result = EADDRNOTAVAIL;
      return;
    }
    const int fd = NewSocket();
    if (fd < 0) {
      result = -fd;
      return;
    }
    const bool any = PortOf(source) == 0;
    sockaddr_un name;
    long bound;
    int tries = 0;
    do {
      if (any) {
        const auto port = static_cast<std::uint16_t>(
            kFirstPort + state->Below(static_cast<std::uint32_t>(kPorts)));
        SetPort(&source, htons(port));
      }
      const long length = Name(state, source, &name);
      bound = Raw(SYS_bind, fd, Arg(&name), length);
    } while (any && bound == -EADDRINUSE && ++tries < 1000);
    if (bound < 0) {
      Raw(SYS_close, fd);
      result = static_cast<int>(-bound);
      return;
    }
    id->fd = fd;
    result = 0;
  });
  if (result != 0) return result;
  id->source = source;
  id->cm = CmState::kBound;
  id->on_device = !wildcard;
  *device = id->on_device;
  return 0;
}

int fake_cm_resolve_addr(KernelId* id, const sockaddr* to) {
  CheckOwner(id->state, "an id");
  const std::lock_guard hold(id->state->mutex);
  if (id->cm != CmState::kBound || !id->on_device) return EINVAL;
  id->destination = Storage(to);
  ForId(id->state, id, microseconds(0), [](KernelId* one) {
    if (one->cm != CmState::kBound) return;
    if (!IsLocal(one->destination)) {
      return Queue(one, RDMA_CM_EVENT_ADDR_ERROR, -ETIMEDOUT);
    }
    one->cm = CmState::kAddrResolved;
    Queue(one, RDMA_CM_EVENT_ADDR_RESOLVED);
  });
  return 0;
}

int fake_cm_resolve_route(KernelId* id) {
  CheckOwner(id->state, "an id");
  const std::lock_guard hold(id->state->mutex);
  if (id->cm != CmState::kAddrResolved) return EINVAL;
  ForId(id->state, id, microseconds(0), [](KernelId* one) {
    one->cm = CmState::kRouteResolved;
    Queue(one, RDMA_CM_EVENT_ROUTE_RESOLVED);
  });
  return 0;
}

int fake_cm_listen(KernelId* id, int backlog) {
  State* const state = id->state;
  CheckOwner(state, "an id");
  std::unique_lock hold(state->mutex);
  if (id->cm != CmState::kBound) return EINVAL;
  long result = 0;
  state->Call(&hold, [&] {
    result = Raw(SYS_listen, id->fd, backlog > 0 ? backlog : 128);
    if (result < 0) return;
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = id->serial;
    Raw(SYS_epoll_ctl, state->epoll, EPOLL_CTL_ADD, id->fd, Arg(&event));
  });
  if (result < 0) return static_cast<int>(-result);
  id->cm = CmState::kListen;
  return 0;
}

int fake_cm_connect(KernelId* id, ibv_qp* qp, const void* data,
                    std::size_t length) {
  State* const state = id->state;
  CheckOwner(state, "an id");
  std::unique_lock hold(state->mutex);
  if (id->cm != CmState::kRouteResolved) return EINVAL;
  if (!state->options.iwarp && length > kReqData) return EINVAL;
  id->cm = CmState::kReqSent;
  if (state->unreachable) {
    ForId(state, id, kUnreachableAfter, [](KernelId* one) {
      one->cm = CmState::kClosed;
      Queue(one, RDMA_CM_EVENT_UNREACHABLE, -ETIMEDOUT);
    });
    return 0;
  }
  // The name goes with the connection from now on.
  auto* const conn = new Conn;
  conn->state = state;
  conn->serial = state->next_serial++;
  conn->fd = std::exchange(id->fd, -1);
  conn->id = id;
  id->conn = conn;
  state->conns[conn->serial] = conn;
  Attach(conn, qp);
  SendReq(id, std::string(static_cast<const char*>(data), length), 0);
  return 0;
}

int fake_cm_accept(KernelId* id, void* uid, ibv_qp* qp, const void* data,
                   std::size_t length) {
  State* const state = id->state;
  CheckOwner(state, "an id");
  std::unique_lock hold(state->mutex);
  id->uid = uid;
  Conn* const conn = id->conn;
  if (id->cm == CmState::kRepReceived && conn != nullptr) {
    id->cm = CmState::kEstablished;
    Count(&Counts::established);
    state->Call(&hold, [conn] { SendCm(conn, Kind::kRtu); });
    if (id->ended) {
      ForId(state, id, microseconds(0), [](KernelId* one) {
        if (one->cm == CmState::kEstablished) {
          Disconnected(one, CmState::kClosed);
        }
      });
    }
    return 0;
  }
  if (id->cm != CmState::kReqReceived || conn == nullptr) return EINVAL;
  if (id->ended) return state->options.iwarp ? ECONNRESET : EINVAL;
  if (!state->options.iwarp && length > kRepData) return EINVAL;
  Attach(conn, qp);
  Bring(conn);
  id->cm = state->options.iwarp ? CmState::kEstablished : CmState::kRepSent;
  const std::string rep(static_cast<const char*>(data), length);
  state->Call(&hold, [conn, rep] { SendCm(conn, Kind::kRep, 0, rep); });
  if (conn->qp != nullptr) OnReady(conn->qp);
  if (state->options.iwarp) {
    Count(&Counts::established);
    Queue(id, RDMA_CM_EVENT_ESTABLISHED);
  }
  return 0;
}

int fake_cm_reject(KernelId* id, const void* data, std::size_t length) {
  State* const state = id->state;
  CheckOwner(state, "an id");
  std::unique_lock hold(state->mutex);
  Conn* const conn = id->conn;
  if (conn == nullptr ||
      (id->cm != CmState::kReqReceived && id->cm != CmState::kRepReceived)) {
    return EINVAL;
  }
  if (!state->options.iwarp && length > kRejData) return EINVAL;
  id->cm = CmState::kClosed;
  const std::string rej(static_cast<const char*>(data), length);
  state->Call(&hold, [conn, rej] { SendCm(conn, Kind::kRej, kConsumer, rej); });
  return 0;
}

int fake_cm_disconnect(KernelId* id) {
  State* const state = id->state;
  CheckOwner(state, "an id");
  std::unique_lock hold(state->mutex);
  Conn* const conn = id->conn;
  if (conn == nullptr) return EINVAL;
  if (id->cm == CmState::kEstablished) {
    id->cm = CmState::kDreqSent;
    state->Call(&hold, [conn] { SendCm(conn, Kind::kDreq); });
    return 0;
  }
  if (id->cm == CmState::kDreqReceived) {
    id->cm = CmState::kClosed;
    state->Call(&hold, [conn] { SendCm(conn, Kind::kDrep); });
    ForId(state, id, kTimeWait,
          [](KernelId* one) { Queue(one, RDMA_CM_EVENT_TIMEWAIT_EXIT); });
    return 0;
  }
  return EINVAL;
}

int fake_cm_set_timeout(KernelId* id, std::uint8_t timeout) {
  CheckOwner(id->state, "an id");
  id->ack_timeout = timeout;
  return 0;
}

std::uint8_t fake_cm_timeout(KernelId* id) { return id->ack_timeout; }

void fake_cm_addresses(KernelId* id, sockaddr_storage* source,
                       sockaddr_storage* destination) {
  const std::lock_guard hold(id->state->mutex);
  *source = id->source;
  *destination = id->destination;
}

bool fake_cm_present(const ibv_context* context) {
  State* const state = Current();
  const std::lock_guard hold(state->mutex);
  if (context == nullptr) return state->present;
  for (const Context* one : state->contexts) {
    if (&one->base.context == context) return !one->gone;
  }
  return false;
}
