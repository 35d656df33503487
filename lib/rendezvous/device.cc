#include "lib/rendezvous/device.h"

#include <cerrno>
#include <chrono>
#include <cstring>
#include <new>
#include <utility>

#include "lib/base/log.h"
#include "lib/lane/rdma/refusal.h"
#include "lib/rendezvous/core.h"
#include "lib/rendezvous/rdma.h"

namespace rcsock::rendezvous {
namespace {

using boost::asio::posix::stream_descriptor;
using boost::system::error_code;

constexpr int kEventsPerTurn = 64;

bool IsOfQp(ibv_event_type type) {
  return type == IBV_EVENT_QP_FATAL || type == IBV_EVENT_QP_REQ_ERR ||
         type == IBV_EVENT_QP_ACCESS_ERR ||
         type == IBV_EVENT_QP_LAST_WQE_REACHED;
}

}  // namespace

bool ConnectBlocks(ibv_context* context) {
  if (!verbs::IsIwarp(context)) return false;
  ibv_device_attr attr;
  return !verbs::Query(context, &attr, nullptr) ||
         attr.vendor_id == verbs::kVendorSiw ||
         attr.vendor_id == verbs::kVendorErdma;
}

bool IsSoftware(ibv_context* context) {
  ibv_device_attr attr;
  return verbs::Query(context, &attr, nullptr) &&
         (attr.vendor_id == verbs::kVendorRxe ||
          attr.vendor_id == verbs::kVendorSiw);
}

bool IsRxe(ibv_context* context) {
  ibv_device_attr attr;
  return !verbs::Query(context, &attr, nullptr) ||
         attr.vendor_id == verbs::kVendorRxe;
}

base::Reason VerbsReason(const verbs::Error& error) {
  switch (error.code) {
    case EMFILE:
    case ENFILE:
      return base::Reason::kNoFds;
    case ENOMEM:
    case EAGAIN:  // the limits of the rdma cgroup
      return lane::rdma::ReasonOf(error);
    case ENODEV:
    case EADDRNOTAVAIL:
    case ENETUNREACH:
    case EHOSTUNREACH:
      return base::Reason::kNoRoute;
    case ECONNREFUSED:
      return base::Reason::kPeerPlain;
    case ETIMEDOUT:
      return base::Reason::kRdmaTimeout;
    default:
      return base::Reason::kRdmaError;
  }
}

void LogError(const verbs::Error& error) {
  RCSOCK_LOG(1, "%s%s%s: %s", error.device, *error.device != '\0' ? ": " : "",
             error.call == nullptr ? "?" : error.call,
             std::strerror(error.code));
}

// A stream has put off a send, in order to send it with more.  The send must
// not wait for ever for a thread of the program to come by.
static void OnPutOff(void* arg) {
  auto* core = static_cast<Core*>(arg);  // a core is never destroyed
  try {
    core->PostTask([core] {
      if (Rdma* rdma = core->rdma()) rdma->FlushSoon();
    });
  } catch (const std::bad_alloc&) {
    // The sends wait for the next thread that looks or sleeps.
  }
}

void Device::FlushSoon() {
  const lane::rdma::Pace pace = domain_->pace();
  const auto now = std::chrono::steady_clock::now();
  const auto due = (pace.flushes_at_once ? flushed_ : now) +
                   std::chrono::microseconds(pace.flush_us);
  if (flush_waits_ || !flush_timer_) return;
  if (due <= now) return Flush();
  flush_waits_ = true;
  flush_timer_->expires_at(due);
  flush_timer_->async_wait([weak = weak_from_this()](const error_code& error) {
    if (error) return;
    auto self = weak.lock();
    if (self == nullptr) return;
    Step step(self->core_);
    self->Flush();
  });
}

void Device::Flush() {
  flush_waits_ = false;
  flushed_ = std::chrono::steady_clock::now();
  domain_->FlushDeferred();
}

std::shared_ptr<Device> Device::Make(Core* core, std::shared_ptr<Cm> cm,
                                     const rdma_cm_id* id, base::Reason* why) {
  auto device = std::make_shared<Device>(core, std::move(cm));
  verbs::Error error;
  *why = base::Reason::kRdmaError;
  sockaddr_storage local;
  std::memcpy(&local, &id->route.addr.src_storage, sizeof local);
  Address address;
  std::uint16_t port;
  if (!Normalise(local, &address, &port)) return nullptr;
  device->keeper_ =
      device->cm_->Bind(device.get(), address, ScopeOf(local), 0, &error);
  if (device->keeper_ != nullptr && device->keeper_->verbs == id->verbs) {
    device->domain_ = lane::rdma::Domain::Make(id->verbs, core->board, &error);
  }
  if (device->domain_ != nullptr) {
    device->domain_->SetFlushTimer(&OnPutOff, core);
  }
  if (device->domain_ == nullptr) {
    LogError(error);
    *why = VerbsReason(error);
    return nullptr;
  }
  error_code failed;
  device->async_->assign(id->verbs->async_fd, failed);
  if (failed) return nullptr;
  device->WaitAsync();
  return device;
}

Device::Device(Core* core, std::shared_ptr<Cm> cm)
    : core_(core),
      cm_(std::move(cm)),
      async_(std::make_unique<stream_descriptor>(core->io)),
      flush_timer_(core->io) {}

Device::~Device() {
  Close();
  // The conductor stops watching sources that no lane wants.
  core_->sources.Sweep();
  domain_.reset();
  if (keeper_ == nullptr) return;
  const int cmd_fd = context()->cmd_fd;
  const int async_fd = context()->async_fd;
  keeper_.reset();
  if (lost_) verbs::CloseGone(cmd_fd, async_fd);
}

void Device::Close() {
  flush_timer_.reset();
  if (async_ == nullptr) return;
  if (async_->is_open()) async_->release();
  async_.reset();
}

void Device::Lose() {
  if (std::exchange(lost_, true)) return;
  RCSOCK_LOG(1, "an RDMA device has gone or failed");
  const auto keep = shared_from_this();
  Close();
  domain_->DeviceLost();
  if (Rdma* rdma = core_->rdma()) {
    rdma->LoseLanes(context(), base::Reason::kDeviceLost);
    rdma->Forget(this);
  }
}

void Device::OnCm(const CmEvent& event) {
  // The keeper's own address may move to another device (ADDR_CHANGE).  The
  // keeper stays bound to this device.  It only keeps the context open, and
  // gets the event that the device goes.
  if (event.type == RDMA_CM_EVENT_DEVICE_REMOVAL) Lose();
}

void Device::WaitAsync() {
  async_->async_wait(stream_descriptor::wait_read,
                     [weak = weak_from_this()](const error_code& error) {
                       if (error) return;
                       auto self = weak.lock();
                       if (self == nullptr) return;
                       Step step(self->core_);
                       self->OnAsync();
                       if (self->async_ != nullptr) self->WaitAsync();
                     });
}

bool Device::OnAsync() {
  for (int i = 0; i < kEventsPerTurn && async_ != nullptr; ++i) {
    ibv_async_event event;
    if (verbs::calls.ibv_get_async_event(context(), &event) != 0) {
      // Once the kernel has taken the device away, the file reports for ever.
      if (errno != EAGAIN && errno != EINTR) Lose();
      return false;
    }
    // The QP of an event cannot be destroyed before the event is acknowledged.
    const std::uint32_t qp_num =
        IsOfQp(event.event_type) ? event.element.qp->qp_num : 0;
    // The SRQ of an event cannot be destroyed before that, either.
    if (event.event_type == IBV_EVENT_SRQ_LIMIT_REACHED) {
      domain_->OnSrqLimit(event.element.srq);
    }
    verbs::calls.ibv_ack_async_event(&event);
    RCSOCK_LOG(2, "asynchronous event %d", static_cast<int>(event.event_type));
    Rdma* rdma = core_->rdma();
    if (rdma == nullptr) return false;
    OnEvent(event, qp_num, rdma);
  }
  return async_ != nullptr;
}

void Device::OnEvent(const ibv_async_event& event, std::uint32_t qp_num,
                     Rdma* rdma) {
  switch (event.event_type) {
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
      rdma->LoseQp(context(), qp_num, base::Reason::kLaneError);
      break;
    case IBV_EVENT_QP_LAST_WQE_REACHED:
      rdma->LastWqeReached(context(), qp_num);
      break;
    case IBV_EVENT_LID_CHANGE:
      // The subnet manager has renamed the port.  The peers' QPs send to the
      // old name, so their packets come here no more.
    case IBV_EVENT_PORT_ERR:
      rdma->LosePort(context(), event.element.port_num,
                     base::Reason::kDeviceLost);
      break;
    case IBV_EVENT_GID_CHANGE:
    case IBV_EVENT_PORT_ACTIVE:
      // An address may have come, gone, or moved to another device: a bond
      // without RoCE LAG fails over so.  A QP whose address has gone sends
      // packets without an answer, until its retries end.  While the port was
      // down, the kernel reported nothing.
      rdma->AddressesMayHaveMoved();
      break;
    case IBV_EVENT_CQ_ERR:
    case IBV_EVENT_SRQ_ERR:
    case IBV_EVENT_DEVICE_FATAL:
      Lose();
      break;
    default:
      // SM_CHANGE and CLIENT_REREGISTER: another subnet manager asks for what
      // clients have registered with it.  Lanes register nothing, and their
      // QPs know their paths.  PKEY_CHANGE comes with every sweep of some
      // subnet managers.  A lane that has lost its partition ends by its
      // retries.
      break;
  }
}

}  // namespace rcsock::rendezvous
