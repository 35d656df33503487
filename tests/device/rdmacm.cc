// librdmacm, as far as rcsock and its tests use it.

#include <arpa/inet.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>

#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <mutex>

#include "tests/device/kernel.h"
#include "tests/device/raw.h"

namespace {

using fake_device::KernelChannel;
using fake_device::KernelId;

struct Channel {
  rdma_event_channel base{};
  KernelChannel* kernel = nullptr;
};

struct Id {
  rdma_cm_id base{};
  KernelId* kernel = nullptr;
  bool has_device = false;
  std::mutex mutex;
  std::condition_variable acknowledged;
  std::uint32_t completed = 0;
  std::uint8_t rnr_retry = 7;
  std::uint8_t retry_count = 7;
};

struct Event {
  rdma_cm_event base{};
  Id* about = nullptr;  // whose events are counted
  std::uint8_t data[256];
};

// One context of the device, for all and for ever, as librdmacm has it.
std::mutex mutex;
ibv_context* context = nullptr;
ibv_pd* default_pd = nullptr;
int users = 0;

int Result(int error) {
  if (error == 0) return 0;
  errno = error;
  return -1;
}

// With the mutex: closes that of a device which has gone.
void Sync() {
  if (context == nullptr || users != 0 || fake_cm_present(context) ||
      !fake_cm_present(nullptr)) {
    return;
  }
  if (default_pd != nullptr) ibv_dealloc_pd(default_pd);
  ibv_close_device(context);
  default_pd = nullptr;
  context = nullptr;
}

int UseDevice(Id* id) {
  const std::lock_guard hold(mutex);
  if (id->has_device) return 0;
  Sync();
  if (context == nullptr || !fake_cm_present(context)) {
    if (context != nullptr) {
      // In use by others still: they keep it.
      context = nullptr;
      default_pd = nullptr;
      users = 0;
    }
    int count = 0;
    ibv_device** const list = ibv_get_device_list(&count);
    if (count > 0) context = ibv_open_device(list[0]);
    const int error = count > 0 ? errno : ENODEV;
    ibv_free_device_list(list);
    if (context == nullptr) return error;
  }
  ++users;
  id->has_device = true;
  id->base.verbs = context;
  id->base.port_num = 1;
  return 0;
}

void TakeAddresses(Id* id) {
  fake_cm_addresses(id->kernel, &id->base.route.addr.src_storage,
                    &id->base.route.addr.dst_storage);
}

bool IsIwarp(const Id* id) {
  return id->base.verbs->device->transport_type == IBV_TRANSPORT_IWARP;
}

int SetState(Id* id, ibv_qp_state state) {
  ibv_qp_attr attr{};
  attr.qp_state = state;
  int mask = IBV_QP_STATE;
  if (state == IBV_QPS_RTR) {
    mask |= IBV_QP_MIN_RNR_TIMER;  // the kernel says 0: 655 ms
  } else if (state == IBV_QPS_RTS) {
    mask |= IBV_QP_RNR_RETRY | IBV_QP_RETRY_CNT | IBV_QP_TIMEOUT;
    attr.rnr_retry = id->rnr_retry;
    attr.retry_cnt = id->retry_count;
    attr.timeout = fake_cm_timeout(id->kernel);
  }
  return ibv_modify_qp(id->base.qp, &attr, mask);
}

int Bring(Id* id) {
  if (id->base.qp == nullptr || IsIwarp(id)) return 0;
  const int error = SetState(id, IBV_QPS_RTR);
  return error != 0 ? error : SetState(id, IBV_QPS_RTS);
}

Id* NewId(rdma_event_channel* channel, void* user, rdma_port_space space) {
  auto* const id = new Id;
  id->base.channel = channel;
  id->base.context = user;
  id->base.ps = space;
  id->base.qp_type = IBV_QPT_RC;
  return id;
}

// Closes what it has open, as librdmacm does; whatever has these numbers now.
[[gnu::destructor]] void AtExit() {
  if (context == nullptr) return;
  fake_device::Raw(SYS_close, context->cmd_fd);
  fake_device::Raw(SYS_close, context->async_fd);
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

rdma_event_channel* rdma_create_event_channel() {
  auto* const channel = new Channel;
  const int error = fake_cm_open(&channel->kernel, &channel->base.fd);
  if (error == 0) return &channel->base;
  delete channel;
  errno = error;
  return nullptr;
}

void rdma_destroy_event_channel(rdma_event_channel* base) {
  auto* const channel = reinterpret_cast<Channel*>(base);
  fake_cm_close(channel->kernel, base->fd);
  delete channel;
}

int rdma_create_id(rdma_event_channel* channel, rdma_cm_id** made, void* user,
                   rdma_port_space space) {
  if (space != RDMA_PS_TCP) return Result(ENOSYS);
  Id* const id = NewId(channel, user, space);
  const int error = fake_cm_create(reinterpret_cast<Channel*>(channel)->kernel,
                                   id, &id->kernel);
  if (error != 0) {
    delete id;
    return Result(error);
  }
  *made = &id->base;
  return 0;
}

int rdma_destroy_id(rdma_cm_id* base) {
  ::pthread_testcancel();
  auto* const id = reinterpret_cast<Id*>(base);
  const std::uint32_t reported = fake_cm_destroy(id->kernel);
  {
    std::unique_lock hold(id->mutex);
    id->acknowledged.wait(hold, [&] { return id->completed >= reported; });
  }
  if (id->has_device) {
    const std::lock_guard hold(mutex);
    if (id->base.verbs == context) --users;
  }
  delete id;
  return 0;
}

int rdma_bind_addr(rdma_cm_id* base, sockaddr* address) {
  auto* const id = reinterpret_cast<Id*>(base);
  bool device = false;
  int error = fake_cm_bind(id->kernel, address, &device);
  if (error != 0) return Result(error);
  TakeAddresses(id);
  return Result(device ? UseDevice(id) : 0);
}

int rdma_resolve_addr(rdma_cm_id* base, sockaddr* from, sockaddr* to, int) {
  auto* const id = reinterpret_cast<Id*>(base);
  if (!id->has_device) {
    // The one that the routes name for it.
    sockaddr_storage any{};
    if (from == nullptr) {
      const long size =
          to->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
      socklen_t length = sizeof any;
      const long fd = fake_device::Raw(SYS_socket, to->sa_family,
                                       SOCK_DGRAM | SOCK_CLOEXEC, 0);
      fake_device::Raw(SYS_connect, fd, fake_device::Arg(to), size);
      fake_device::Raw(SYS_getsockname, fd, fake_device::Arg(&any),
                       fake_device::Arg(&length));
      fake_device::Raw(SYS_close, fd);
      if (to->sa_family == AF_INET) {
        reinterpret_cast<sockaddr_in&>(any).sin_port = 0;
      } else {
        reinterpret_cast<sockaddr_in6&>(any).sin6_port = 0;
      }
      from = reinterpret_cast<sockaddr*>(&any);
    }
    if (rdma_bind_addr(base, from) != 0) return -1;
  }
  const int error = fake_cm_resolve_addr(id->kernel, to);
  TakeAddresses(id);
  return Result(error);
}

int rdma_resolve_route(rdma_cm_id* base, int) {
  return Result(fake_cm_resolve_route(reinterpret_cast<Id*>(base)->kernel));
}

int rdma_listen(rdma_cm_id* base, int backlog) {
  return Result(fake_cm_listen(reinterpret_cast<Id*>(base)->kernel, backlog));
}

int rdma_create_qp(rdma_cm_id* base, ibv_pd* pd, ibv_qp_init_attr* attr) {
  auto* const id = reinterpret_cast<Id*>(base);
  if (!id->has_device || base->qp != nullptr) return Result(EINVAL);
  if (pd == nullptr) {
    const std::lock_guard hold(mutex);
    if (default_pd == nullptr) default_pd = ibv_alloc_pd(context);
    pd = default_pd;
  }
  if (attr->send_cq == nullptr) {
    base->send_cq = ibv_create_cq(
        base->verbs, static_cast<int>(attr->cap.max_send_wr), base, nullptr, 0);
    attr->send_cq = base->send_cq;
  }
  if (attr->recv_cq == nullptr) {
    base->recv_cq = ibv_create_cq(
        base->verbs, static_cast<int>(attr->cap.max_recv_wr), base, nullptr, 0);
    attr->recv_cq = base->recv_cq;
  }
  base->pd = pd;
  base->qp = ibv_create_qp(pd, attr);
  const int error = base->qp == nullptr ? errno : SetState(id, IBV_QPS_INIT);
  if (error == 0) return 0;
  rdma_destroy_qp(base);
  return Result(error);
}

void rdma_destroy_qp(rdma_cm_id* base) {
  if (base->qp != nullptr) ibv_destroy_qp(base->qp);
  base->qp = nullptr;
  if (base->send_cq != nullptr) ibv_destroy_cq(base->send_cq);
  if (base->recv_cq != nullptr) ibv_destroy_cq(base->recv_cq);
  base->send_cq = base->recv_cq = nullptr;
}

int rdma_connect(rdma_cm_id* base, rdma_conn_param* param) {
  auto* const id = reinterpret_cast<Id*>(base);
  id->rnr_retry = param->rnr_retry_count & 7;
  id->retry_count = param->retry_count & 7;
  return Result(fake_cm_connect(id->kernel, base->qp, param->private_data,
                                param->private_data_len));
}

int rdma_accept(rdma_cm_id* base, rdma_conn_param* param) {
  auto* const id = reinterpret_cast<Id*>(base);
  id->rnr_retry = param->rnr_retry_count & 7;
  int error = Bring(id);
  if (error == 0) {
    error = fake_cm_accept(id->kernel, id, base->qp, param->private_data,
                           param->private_data_len);
  }
  if (error != 0 && base->qp != nullptr) SetState(id, IBV_QPS_ERR);
  return Result(error);
}

int rdma_reject(rdma_cm_id* base, const void* data, std::uint8_t length) {
  return Result(
      fake_cm_reject(reinterpret_cast<Id*>(base)->kernel, data, length));
}

int rdma_disconnect(rdma_cm_id* base) {
  auto* const id = reinterpret_cast<Id*>(base);
  if (base->qp != nullptr) SetState(id, IBV_QPS_ERR);
  return Result(fake_cm_disconnect(id->kernel));
}

int rdma_get_cm_event(rdma_event_channel* base, rdma_cm_event** out) {
  auto* const channel = reinterpret_cast<Channel*>(base);
  for (;;) {
    fake_cm_event from;
    const int error = fake_cm_get(channel->kernel, base->fd, &from);
    if (error != 0) return Result(error);
    auto* const event = new Event;
    event->about = static_cast<Id*>(from.uid);
    event->base.id = &event->about->base;
    event->base.event = static_cast<rdma_cm_event_type>(from.type);
    event->base.status = from.status;
    std::memcpy(event->data, from.data, sizeof event->data);
    if (from.length != 0) {
      event->base.param.conn.private_data = event->data;
      event->base.param.conn.private_data_len = from.length;
    }
    Id* about = event->about;
    switch (event->base.event) {
      case RDMA_CM_EVENT_CONNECT_REQUEST: {
        Id* const made = NewId(base, about->base.context, about->base.ps);
        made->kernel = from.child;
        made->base.route.addr.src_storage = from.source;
        made->base.route.addr.dst_storage = from.destination;
        if (UseDevice(made) != 0) {
          fake_cm_destroy(from.child);
          delete made;
          rdma_ack_cm_event(&event->base);
          continue;
        }
        event->base.listen_id = event->base.id;
        event->base.id = &made->base;
        break;
      }
      case RDMA_CM_EVENT_ADDR_RESOLVED:
        TakeAddresses(about);
        break;
      case RDMA_CM_EVENT_ESTABLISHED:
        if (!from.response) break;
        if (Bring(about) != 0 ||
            fake_cm_accept(about->kernel, about, about->base.qp, nullptr, 0) !=
                0) {
          fake_cm_reject(about->kernel, nullptr, 0);
          event->base.event = RDMA_CM_EVENT_CONNECT_ERROR;
          event->base.status = -EINVAL;
        }
        break;
      case RDMA_CM_EVENT_REJECTED:
        if (about->base.qp != nullptr) SetState(about, IBV_QPS_ERR);
        break;
      default:
        break;
    }
    *out = &event->base;
    return 0;
  }
}

int rdma_ack_cm_event(rdma_cm_event* base) {
  auto* const event = reinterpret_cast<Event*>(base);
  Id* const about = event->about;
  {
    const std::lock_guard hold(about->mutex);
    ++about->completed;
    about->acknowledged.notify_all();
  }
  delete event;
  return 0;
}

int rdma_get_request(rdma_cm_id*, rdma_cm_id**) { return Result(ENOSYS); }

int rdma_set_option(rdma_cm_id* base, int level, int option, void* value,
                    std::size_t length) {
  auto* const id = reinterpret_cast<Id*>(base);
  if (level != RDMA_OPTION_ID || length < 1) return Result(ENOSYS);
  if (option == RDMA_OPTION_ID_ACK_TIMEOUT) {
    return Result(fake_cm_set_timeout(
        id->kernel, *static_cast<const std::uint8_t*>(value)));
  }
  return 0;
}

std::uint16_t rdma_get_src_port(rdma_cm_id* base) {
  const rdma_addr& address = base->route.addr;
  return address.src_addr.sa_family == AF_INET ? address.src_sin.sin_port
                                               : address.src_sin6.sin6_port;
}

const char* rdma_event_str(rdma_cm_event_type type) {
  static const char* const names[] = {
      "RDMA_CM_EVENT_ADDR_RESOLVED",   "RDMA_CM_EVENT_ADDR_ERROR",
      "RDMA_CM_EVENT_ROUTE_RESOLVED",  "RDMA_CM_EVENT_ROUTE_ERROR",
      "RDMA_CM_EVENT_CONNECT_REQUEST", "RDMA_CM_EVENT_CONNECT_RESPONSE",
      "RDMA_CM_EVENT_CONNECT_ERROR",   "RDMA_CM_EVENT_UNREACHABLE",
      "RDMA_CM_EVENT_REJECTED",        "RDMA_CM_EVENT_ESTABLISHED",
      "RDMA_CM_EVENT_DISCONNECTED",    "RDMA_CM_EVENT_DEVICE_REMOVAL",
      "RDMA_CM_EVENT_MULTICAST_JOIN",  "RDMA_CM_EVENT_MULTICAST_ERROR",
      "RDMA_CM_EVENT_ADDR_CHANGE",     "RDMA_CM_EVENT_TIMEWAIT_EXIT"};
  const auto number = static_cast<std::size_t>(type);
  return number < sizeof names / sizeof names[0] ? names[number] : "UNKNOWN";
}

ibv_context** rdma_get_devices(int* count) {
  const std::lock_guard hold(mutex);
  Sync();
  if (!fake_cm_present(nullptr)) {
    errno = ENODEV;
    return nullptr;
  }
  if (context == nullptr) {
    int devices = 0;
    ibv_device** const list = ibv_get_device_list(&devices);
    if (devices > 0) context = ibv_open_device(list[0]);
    ibv_free_device_list(list);
    if (context == nullptr) return nullptr;
  }
  auto** const list = new ibv_context* [2] { context, nullptr };
  if (count != nullptr) *count = 1;
  return list;
}

void rdma_free_devices(ibv_context** list) { delete[] list; }

}  // extern "C"
#pragma GCC visibility pop
