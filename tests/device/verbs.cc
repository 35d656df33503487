// libibverbs, as far as rcsock and its tests use it.

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>

#include "tests/device/engine.h"
#include "tests/device/raw.h"

#undef ibv_query_port
#undef ibv_reg_mr
#undef ibv_reg_mr_iova

namespace fake_device {
namespace {

struct AsyncRecord {
  void* element;
  std::uint32_t type;
  std::uint32_t number;  // a port, or a QP
};

// The device, of which the program sees the name.
ibv_device* TheDevice(const Options& options) {
  static ibv_device device{};
  device.node_type = options.iwarp ? IBV_NODE_RNIC : IBV_NODE_CA;
  device.transport_type =
      options.iwarp ? IBV_TRANSPORT_IWARP : IBV_TRANSPORT_IB;
  std::strcpy(device.name, "fake0");
  std::strcpy(device.dev_name, "uverbs0");
  std::strcpy(device.dev_path, "/sys/class/infiniband_verbs/uverbs0");
  std::strcpy(device.ibdev_path, "/sys/class/infiniband/fake0");
  return &device;
}

Context* Of(ibv_context* context) {
  return reinterpret_cast<Context*>(reinterpret_cast<char*>(context) -
                                    offsetof(verbs_context, context));
}

// --- What goes by the context

int PostSend(ibv_qp* base, ibv_send_wr* wr, ibv_send_wr** bad) {
  auto* const qp = reinterpret_cast<Qp*>(base);
  CheckOwner(qp->state, "a queue pair");
  const std::lock_guard hold(qp->state->mutex);
  Count(&Counts::posts);
  const bool error = qp->base.state == IBV_QPS_ERR;
  int result = 0;
  for (; wr != nullptr; wr = wr->next) {
    *bad = wr;
    if (qp->silent) {
      result = EIO;
      break;
    }
    Request request;
    request.wr_id = wr->wr_id;
    request.opcode = wr->opcode;
    request.signalled =
        qp->all_signalled || (wr->send_flags & IBV_SEND_SIGNALED) != 0;
    request.fence = (wr->send_flags & IBV_SEND_FENCE) != 0;
    request.solicited = (wr->send_flags & IBV_SEND_SOLICITED) != 0;
    request.inlined = (wr->send_flags & IBV_SEND_INLINE) != 0 &&
                      wr->opcode != IBV_WR_RDMA_READ;
    request.address = wr->wr.rdma.remote_addr;
    request.key = wr->wr.rdma.rkey;
    request.imm = wr->imm_data;
    for (int i = 0; i < wr->num_sge; ++i) {
      const ibv_sge& sge = wr->sg_list[i];
      request.length += sge.length;
      if (request.inlined) {
        const auto* from = reinterpret_cast<const std::uint8_t*>(sge.addr);
        request.bytes.insert(request.bytes.end(), from, from + sge.length);
      } else {
        request.sges.push_back(sge);
      }
    }
    const bool known =
        wr->opcode == IBV_WR_RDMA_WRITE || wr->opcode == IBV_WR_SEND ||
        wr->opcode == IBV_WR_RDMA_READ ||
        (wr->opcode == IBV_WR_RDMA_WRITE_WITH_IMM && !qp->state->options.iwarp);
    if (!known || (!error && qp->base.state != IBV_QPS_RTS) ||
        static_cast<std::uint32_t>(wr->num_sge) > qp->cap.max_send_sge ||
        (request.inlined && request.length > qp->cap.max_inline_data)) {
      result = EINVAL;
      break;
    }
    if (qp->used >= qp->cap.max_send_wr) {
      result = ENOMEM;
      break;
    }
    Count(&Counts::requests);
    ++qp->used;
    request.number = qp->next_number++;
    qp->requests.push_back(std::move(request));
  }
  if (error && !qp->state->options.late_flush) {
    FinishFlush(qp);
  } else if (error) {
    qp->state->Later(std::chrono::microseconds(300),
                     [state = qp->state, number = qp->base.qp_num] {
                       const auto found = state->qps.find(number);
                       if (found != state->qps.end())
                         FinishFlush(found->second);
                     });
  } else if (qp->conn != nullptr) {
    qp->state->Ready(qp->conn);
  }
  return result;
}

int PostReceive(ibv_qp* base, ibv_recv_wr* wr, ibv_recv_wr** bad) {
  auto* const qp = reinterpret_cast<Qp*>(base);
  CheckOwner(qp->state, "a queue pair");
  const std::lock_guard hold(qp->state->mutex);
  if (qp->base.srq != nullptr || qp->base.state == IBV_QPS_RESET) {
    *bad = wr;
    return EINVAL;
  }
  const int result = qp->own.Post(wr, bad);
  if (qp->base.state == IBV_QPS_ERR && !qp->silent) FinishFlush(qp);
  return result;
}

int PostShared(ibv_srq* base, ibv_recv_wr* wr, ibv_recv_wr** bad) {
  auto* const srq = reinterpret_cast<Srq*>(base);
  CheckOwner(srq->state, "a shared receive queue");
  const std::lock_guard hold(srq->state->mutex);
  return srq->queue.Post(wr, bad);
}

int PollCq(ibv_cq* base, int most, ibv_wc* out) {
  auto* const cq = reinterpret_cast<Cq*>(base);
  CheckOwner(cq->state, "a completion queue");
  const std::lock_guard hold(cq->state->mutex);
  int n = 0;
  for (; n < most && !cq->entries.empty(); ++n) {
    const Entry& entry = cq->entries.front();
    out[n] = entry.wc;
    Count(&Counts::completions);
    if (entry.wc.status != IBV_WC_SUCCESS) Count(&Counts::failures);
    if (entry.wc.status == IBV_WC_WR_FLUSH_ERR) Count(&Counts::flushed);
    if (entry.frees != 0) {
      const auto qp = cq->state->qps.find(entry.wc.qp_num);
      if (qp != cq->state->qps.end()) qp->second->used -= entry.frees;
    }
    cq->entries.pop_front();
  }
  return n;
}

// Real devices arm by the number of events that have been fetched, and take
// this for a request that they have served.  The specification promises no
// event for what is in the queue already.
int Arm(ibv_cq* base, int solicited) {
  auto* const cq = reinterpret_cast<Cq*>(base);
  CheckOwner(cq->state, "a completion queue");
  const std::lock_guard hold(cq->state->mutex);
  if (cq->unfetched > 0) {
    Count(&Counts::late_arms);
  } else if (cq->base.channel != nullptr) {
    cq->armed = true;
    cq->solicited = solicited != 0;
  }
  return 0;
}

int QueryDevice(ibv_context* context, ibv_device_attr* attr) {
  const Options& options = Of(context)->state->options;
  *attr = {};
  std::strcpy(attr->fw_ver, "1.0");
  attr->max_mr_size = ~std::uint64_t{0};
  attr->page_size_cap = 4096;
  attr->vendor_id = options.vendor;
  attr->max_qp = options.max_qp;
  attr->max_qp_wr = static_cast<int>(options.max_qp_wr);
  attr->max_sge = attr->max_sge_rd = attr->max_srq_sge =
      static_cast<int>(options.max_sge);
  attr->max_cq = static_cast<int>(options.max_cq);
  attr->max_cqe = options.max_cqe;
  attr->max_mr = static_cast<int>(options.max_mr);
  attr->max_pd = 1 << 20;
  attr->max_qp_rd_atom = attr->max_qp_init_rd_atom = 1;
  attr->max_srq = options.nosrq ? 0 : static_cast<int>(options.max_srq);
  attr->max_srq_wr = options.nosrq ? 0 : options.max_srq_wr;
  attr->phys_port_cnt = 1;
  return 0;
}

int QueryPort(ibv_context* context, std::uint8_t port, ibv_port_attr* attr,
              std::size_t length) {
  if (port != 1) return EINVAL;
  State* const state = Of(context)->state;
  const std::lock_guard hold(state->mutex);
  ibv_port_attr all{};
  all.state = state->port_up ? IBV_PORT_ACTIVE : IBV_PORT_DOWN;
  all.max_mtu = all.active_mtu = IBV_MTU_4096;
  all.max_msg_sz = 1u << 30;
  all.gid_tbl_len = 1;
  all.active_width = 2;
  all.active_speed = 32;
  all.phys_state = state->port_up ? 5 : 3;
  all.link_layer = IBV_LINK_LAYER_ETHERNET;
  std::memcpy(attr, &all, std::min(length, sizeof all));
  return 0;
}

int QueryPortOld(ibv_context* context, std::uint8_t port,
                 _compat_ibv_port_attr* attr) {
  return QueryPort(context, port, reinterpret_cast<ibv_port_attr*>(attr),
                   offsetof(ibv_port_attr, port_cap_flags2));
}

Context* Open() {
  State* const state = Current();
  std::unique_lock hold(state->mutex);
  auto* const context = new Context;
  context->state = state;
  context->device = TheDevice(state->options);
  verbs_context& extended = context->base;
  extended.sz = sizeof extended;
  extended.query_port = &QueryPort;
  ibv_context& base = extended.context;
  base.device = context->device;
  base.num_comp_vectors = static_cast<int>(state->options.vectors);
  base.abi_compat = __VERBS_ABI_IS_EXTENDED;
  base.ops._compat_query_device = &QueryDevice;
  base.ops._compat_query_port = &QueryPortOld;
  base.ops.post_send = &PostSend;
  base.ops.poll_cq = &PollCq;
  base.ops.req_notify_cq = &Arm;
  base.ops.post_recv = &PostReceive;
  base.ops.post_srq_recv = &PostShared;
  base.cmd_fd = base.async_fd = -1;
  Fifo commands;
  if (!MakeFifo(state, &hold, &commands, &base.cmd_fd) ||
      !MakeFifo(state, &hold, &context->async, &base.async_fd)) {
    const int error = errno;
    if (base.cmd_fd >= 0) Raw(SYS_close, base.cmd_fd);
    CloseFifo(state, &hold, &commands);
    hold.unlock();
    delete context;
    errno = error;
    return nullptr;
  }
  CloseFifo(state, &hold, &commands);
  state->contexts.insert(context);
  return context;
}

ibv_mr* NewMr(ibv_pd* base, void* address, std::size_t length, unsigned access,
              bool dmabuf = false) {
  auto* const pd = reinterpret_cast<Pd*>(base);
  CheckOwner(pd->state, "a protection domain");
  State* const state = pd->state;
  const std::lock_guard hold(state->mutex);
  const bool relaxed = (access & IBV_ACCESS_RELAXED_ORDERING) != 0;
  if (state->options.keys ==
      (relaxed ? Options::Keys::kStrict : Options::Keys::kRelaxed)) {
    Count(&Counts::refused_keys);
    errno = relaxed ? EOPNOTSUPP : EINVAL;
    return nullptr;
  }
  if (state->mrs.size() >= state->options.max_mr) {
    Count(&Counts::refused_limits);
    errno = ENOMEM;
    return nullptr;
  }
  if ((access & IBV_ACCESS_REMOTE_WRITE) != 0 &&
      (access & IBV_ACCESS_LOCAL_WRITE) == 0) {
    errno = EINVAL;
    return nullptr;
  }
  // The kernel looks whether it is there.
  unsigned char present;
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  if (Raw(SYS_mincore, static_cast<long>(at & ~std::uintptr_t{4095}), 4096,
          Arg(&present)) == -ENOMEM) {
    errno = EFAULT;
    return nullptr;
  }
  // As a kernel without a GPU's peer-memory module: no CPU may read it.
  char byte;
  const iovec here{&byte, 1};
  const iovec there{address, 1};
  if (!dmabuf && Raw(SYS_process_vm_readv, Raw(SYS_getpid), Arg(&here), 1,
                     Arg(&there), 1, 0) == -EFAULT) {
    errno = EFAULT;
    return nullptr;
  }
  auto* const mr = new Mr;
  mr->state = state;
  mr->access = access;
  mr->base.context = base->context;
  mr->base.pd = base;
  mr->base.addr = address;
  mr->base.length = length;
  state->next_key = state->next_key * 1664525 + 1013904223;
  while (state->mrs.count(state->next_key) != 0) ++state->next_key;
  mr->base.lkey = mr->base.rkey = state->next_key;
  state->mrs[mr->base.rkey] = mr;
  ++pd->users;
  Count(&Counts::mrs_made);
  Count(relaxed ? &Counts::relaxed_keys : &Counts::strict_keys);
  return &mr->base;
}

}  // namespace

int ReceiveQueue::Post(ibv_recv_wr* wr, ibv_recv_wr** bad) {
  for (; wr != nullptr; wr = wr->next) {
    if (posted.size() >= size ||
        static_cast<std::size_t>(wr->num_sge) > most_sge) {
      *bad = wr;
      return posted.size() >= size ? ENOMEM : EINVAL;
    }
    posted.push_back({wr->wr_id, {wr->sg_list, wr->sg_list + wr->num_sge}});
  }
  return 0;
}

void AsyncEvent(State* state, ibv_event_type type, void* element, int port) {
  AsyncRecord record{element, static_cast<std::uint32_t>(type),
                     static_cast<std::uint32_t>(port)};
  if (port == 0 && element != nullptr &&
      (type == IBV_EVENT_QP_FATAL || type == IBV_EVENT_QP_REQ_ERR ||
       type == IBV_EVENT_QP_ACCESS_ERR ||
       type == IBV_EVENT_QP_LAST_WQE_REACHED)) {
    record.number = static_cast<Qp*>(element)->base.qp_num;
  }
  Count(&Counts::async_events);
  for (Context* context : state->contexts) {
    if (!context->gone || type == IBV_EVENT_DEVICE_FATAL) {
      Tell(state, context->async, &record, sizeof record);
    }
  }
}

}  // namespace fake_device

using namespace fake_device;

#pragma GCC visibility push(default)
extern "C" {

int ibv_fork_init() { return 0; }
ibv_fork_status ibv_is_fork_initialized() { return IBV_FORK_UNNEEDED; }

ibv_device** ibv_get_device_list(int* count) {
  State* const state = Current();
  auto** const list = new ibv_device* [2] {};
  if (state->present) list[0] = TheDevice(state->options);
  if (count != nullptr) *count = state->present ? 1 : 0;
  return list;
}
void ibv_free_device_list(ibv_device** list) { delete[] list; }
const char* ibv_get_device_name(ibv_device* device) { return device->name; }

ibv_context* ibv_open_device(ibv_device*) {
  Context* const context = Open();
  return context == nullptr ? nullptr : &context->base.context;
}

int ibv_close_device(ibv_context* base) {
  Context* const context = Of(base);
  CheckOwner(context->state, "a context");
  State* const state = context->state;
  {
    std::unique_lock hold(state->mutex);
    state->contexts.erase(context);
    CloseFifo(state, &hold, &context->async);
    Raw(SYS_close, base->cmd_fd);
    Raw(SYS_close, base->async_fd);
  }
  delete context;
  return 0;
}

int ibv_query_device(ibv_context* context, ibv_device_attr* attr) {
  return QueryDevice(context, attr);
}
int ibv_query_port(ibv_context* context, std::uint8_t port,
                   _compat_ibv_port_attr* attr) {
  return QueryPortOld(context, port, attr);
}

ibv_pd* ibv_alloc_pd(ibv_context* context) {
  CheckOwner(Of(context)->state, "a context");
  auto* const pd = new Pd;
  pd->base.context = context;
  pd->state = Of(context)->state;
  Count(&Counts::pds_made);
  return &pd->base;
}

int ibv_dealloc_pd(ibv_pd* base) {
  auto* const pd = reinterpret_cast<Pd*>(base);
  CheckOwner(pd->state, "a protection domain");
  {
    const std::lock_guard hold(pd->state->mutex);
    if (pd->users != 0) return EBUSY;
  }
  delete pd;
  Count(&Counts::pds_gone);
  return 0;
}

ibv_mr* ibv_reg_mr(ibv_pd* pd, void* address, std::size_t length, int access) {
  return NewMr(pd, address, length, static_cast<unsigned>(access));
}
ibv_mr* ibv_reg_mr_iova2(ibv_pd* pd, void* address, std::size_t length,
                         std::uint64_t, unsigned access) {
  return NewMr(pd, address, length, access);
}

// A dma-buf of tests/gpu is a file, whose position says where the buffer
// begins.
ibv_mr* ibv_reg_dmabuf_mr(ibv_pd* pd, std::uint64_t offset, std::size_t length,
                          std::uint64_t iova, int fd, int access) {
  const long begin = Raw(SYS_lseek, fd, 0, SEEK_CUR);
  const std::uint64_t first = static_cast<std::uint64_t>(begin) + offset;
  const std::uint64_t page = first & ~std::uint64_t{4095};
  if (begin < 0) {
    errno = EINVAL;
    return nullptr;
  }
  const long at =
      Raw(SYS_mmap, 0, static_cast<long>(length + (first - page)),
          PROT_READ | PROT_WRITE, MAP_SHARED, fd, static_cast<long>(page));
  if (at < 0 && at > -4096) {
    errno = static_cast<int>(-at);
    return nullptr;
  }
  ibv_mr* const made = NewMr(pd, reinterpret_cast<void*>(iova), length,
                             static_cast<unsigned>(access), true);
  if (made == nullptr) {
    Raw(SYS_munmap, at, static_cast<long>(length + (first - page)));
    return nullptr;
  }
  reinterpret_cast<Mr*>(made)->device =
      reinterpret_cast<std::uint8_t*>(at) + (first - page);
  Count(&Counts::dmabufs);
  return made;
}

int ibv_dereg_mr(ibv_mr* base) {
  auto* const mr = reinterpret_cast<Mr*>(base);
  CheckOwner(mr->state, "a memory region");
  {
    const std::lock_guard hold(mr->state->mutex);
    mr->state->mrs.erase(mr->base.rkey);
    // Nothing lands there behind it, also not in memory registered anew.
    for (const auto& [number, qp] : mr->state->qps) {
      std::erase_if(qp->late,
                    [&](const Late& one) { return one.key == mr->base.rkey; });
    }
    --reinterpret_cast<Pd*>(mr->base.pd)->users;
  }
  if (mr->device != nullptr) {
    const auto at = reinterpret_cast<std::uintptr_t>(mr->device);
    const std::uintptr_t page = at & ~std::uintptr_t{4095};
    Raw(SYS_munmap, static_cast<long>(page),
        static_cast<long>(mr->base.length + (at - page)));
  }
  delete mr;
  Count(&Counts::mrs_gone);
  return 0;
}

ibv_comp_channel* ibv_create_comp_channel(ibv_context* context) {
  State* const state = Of(context)->state;
  CheckOwner(state, "a context");
  auto* const channel = new CompChannel;
  channel->state = state;
  channel->base.context = context;
  std::unique_lock hold(state->mutex);
  if (!MakeFifo(state, &hold, &channel->fifo, &channel->base.fd)) {
    delete channel;
    return nullptr;
  }
  Count(&Counts::channels_made);
  return &channel->base;
}

int ibv_destroy_comp_channel(ibv_comp_channel* base) {
  auto* const channel = reinterpret_cast<CompChannel*>(base);
  CheckOwner(channel->state, "a completion channel");
  {
    std::unique_lock hold(channel->state->mutex);
    if (base->refcnt != 0) return EBUSY;
    CloseFifo(channel->state, &hold, &channel->fifo);
  }
  Raw(SYS_close, base->fd);
  delete channel;
  Count(&Counts::channels_gone);
  return 0;
}

ibv_cq* ibv_create_cq(ibv_context* context, int entries, void* user,
                      ibv_comp_channel* channel, int vector) {
  State* const state = Of(context)->state;
  CheckOwner(state, "a context");
  if (entries < 1 || entries > state->options.max_cqe || vector < 0 ||
      vector >= context->num_comp_vectors) {
    errno = EINVAL;
    return nullptr;
  }
  const std::lock_guard hold(state->mutex);
  if (state->cqs.size() >= state->options.max_cq) {
    Count(&Counts::refused_limits);
    errno = ENOMEM;
    return nullptr;
  }
  auto* const cq = new Cq;
  cq->state = state;
  cq->base.context = context;
  cq->base.channel = channel;
  cq->base.cq_context = user;
  cq->base.cqe = entries;
  state->cqs.insert(cq);
  if (channel != nullptr) ++channel->refcnt;
  Count(&Counts::cqs_made);
  return &cq->base;
}

int ibv_destroy_cq(ibv_cq* base) {
  auto* const cq = reinterpret_cast<Cq*>(base);
  CheckOwner(cq->state, "a completion queue");
  {
    std::unique_lock hold(cq->state->mutex);
    if (cq->users != 0) return EBUSY;
    // Waits for ever if one is never acknowledged, as the real one.
    cq->state->done.wait(hold,
                         [cq] { return cq->acknowledged >= cq->fetched; });
    cq->state->cqs.erase(cq);
    if (base->channel != nullptr) --base->channel->refcnt;
  }
  delete cq;
  Count(&Counts::cqs_gone);
  return 0;
}

int ibv_get_cq_event(ibv_comp_channel* base, ibv_cq** cq, void** user) {
  auto* const channel = reinterpret_cast<CompChannel*>(base);
  CheckOwner(channel->state, "a completion channel");
  for (;;) {
    ibv_cq* told = nullptr;
    const long n = Raw(SYS_read, base->fd, Arg(&told), sizeof told);
    if (n != sizeof told) {
      errno = n < 0 ? static_cast<int>(-n) : EIO;
      return -1;
    }
    const std::lock_guard hold(channel->state->mutex);
    auto* const one = reinterpret_cast<Cq*>(told);
    if (channel->state->cqs.count(one) == 0) continue;
    if (one->unfetched > 0) --one->unfetched;
    ++one->fetched;
    Count(&Counts::events_fetched);
    *cq = told;
    *user = told->cq_context;
    return 0;
  }
}

void ibv_ack_cq_events(ibv_cq* base, unsigned count) {
  auto* const cq = reinterpret_cast<Cq*>(base);
  const std::lock_guard hold(cq->state->mutex);
  cq->acknowledged += count;
  cq->state->done.notify_all();
}

ibv_srq* ibv_create_srq(ibv_pd* pd, ibv_srq_init_attr* attr) {
  State* const state = reinterpret_cast<Pd*>(pd)->state;
  CheckOwner(state, "a protection domain");
  if (state->options.nosrq ||
      attr->attr.max_wr >
          static_cast<std::uint32_t>(state->options.max_srq_wr) ||
      attr->attr.max_sge > state->options.max_sge) {
    errno = state->options.nosrq ? EOPNOTSUPP : EINVAL;
    return nullptr;
  }
  const std::lock_guard hold(state->mutex);
  if (state->srqs.size() >= state->options.max_srq) {
    Count(&Counts::refused_limits);
    errno = ENOMEM;
    return nullptr;
  }
  auto* const srq = new Srq;
  srq->state = state;
  srq->base.context = pd->context;
  srq->base.pd = pd;
  srq->queue.size = attr->attr.max_wr;
  srq->queue.most_sge = attr->attr.max_sge;
  state->srqs.insert(srq);
  ++reinterpret_cast<Pd*>(pd)->users;
  Count(&Counts::srqs_made);
  return &srq->base;
}

int ibv_modify_srq(ibv_srq* base, ibv_srq_attr* attr, int mask) {
  auto* const srq = reinterpret_cast<Srq*>(base);
  CheckOwner(srq->state, "a shared receive queue");
  if ((mask & IBV_SRQ_MAX_WR) != 0) return EINVAL;
  const std::lock_guard hold(srq->state->mutex);
  if ((mask & IBV_SRQ_LIMIT) == 0) return 0;
  if (attr->srq_limit > srq->queue.size) return EINVAL;
  srq->limit = attr->srq_limit;
  if (srq->limit != 0 && srq->queue.posted.size() < srq->limit) {
    srq->limit = 0;
    AsyncEvent(srq->state, IBV_EVENT_SRQ_LIMIT_REACHED, srq, 0);
  }
  return 0;
}

int ibv_destroy_srq(ibv_srq* base) {
  auto* const srq = reinterpret_cast<Srq*>(base);
  CheckOwner(srq->state, "a shared receive queue");
  {
    const std::lock_guard hold(srq->state->mutex);
    if (srq->users != 0) return EBUSY;
    srq->state->srqs.erase(srq);
    --reinterpret_cast<Pd*>(base->pd)->users;
  }
  delete srq;
  Count(&Counts::srqs_gone);
  return 0;
}

ibv_qp* ibv_create_qp(ibv_pd* pd, ibv_qp_init_attr* attr) {
  State* const state = reinterpret_cast<Pd*>(pd)->state;
  CheckOwner(state, "a protection domain");
  const Options& options = state->options;
  const ibv_qp_cap& cap = attr->cap;
  const std::lock_guard hold(state->mutex);
  if (cap.max_inline_data > options.inline_max) {
    Count(&Counts::refused_inline);
    errno = EINVAL;
    return nullptr;
  }
  if (attr->qp_type != IBV_QPT_RC || cap.max_send_wr > options.max_qp_wr ||
      cap.max_recv_wr > options.max_qp_wr ||
      cap.max_send_sge > options.max_sge ||
      cap.max_recv_sge > options.max_sge || attr->send_cq == nullptr ||
      attr->recv_cq == nullptr) {
    errno = EINVAL;
    return nullptr;
  }
  if (state->qps.size() >= static_cast<std::size_t>(options.max_qp)) {
    Count(&Counts::refused_limits);
    errno = ENOMEM;
    return nullptr;
  }
  auto* const qp = new Qp;
  qp->state = state;
  qp->base.context = pd->context;
  qp->base.qp_context = attr->qp_context;
  qp->base.pd = pd;
  qp->base.send_cq = attr->send_cq;
  qp->base.recv_cq = attr->recv_cq;
  qp->base.srq = attr->srq;
  qp->base.qp_type = attr->qp_type;
  qp->base.state = IBV_QPS_RESET;
  do {
    state->next_qp = (state->next_qp + 1) & 0xffffff;
  } while (state->next_qp < 2 || state->qps.count(state->next_qp) != 0);
  qp->base.qp_num = state->next_qp;
  qp->cap = cap;
  qp->all_signalled = attr->sq_sig_all != 0;
  qp->own.size = attr->srq == nullptr ? cap.max_recv_wr : 0;
  qp->own.most_sge = cap.max_recv_sge;
  state->qps[qp->base.qp_num] = qp;
  ++reinterpret_cast<Pd*>(pd)->users;
  ++reinterpret_cast<Cq*>(attr->send_cq)->users;
  ++reinterpret_cast<Cq*>(attr->recv_cq)->users;
  if (attr->srq != nullptr) ++reinterpret_cast<Srq*>(attr->srq)->users;
  Count(&Counts::qps_made);
  return &qp->base;
}

int ibv_modify_qp(ibv_qp* base, ibv_qp_attr* attr, int mask) {
  ::pthread_testcancel();  // the kernel is asked by write() or ioctl()
  auto* const qp = reinterpret_cast<Qp*>(base);
  CheckOwner(qp->state, "a queue pair");
  const std::lock_guard hold(qp->state->mutex);
  if ((mask & IBV_QP_MIN_RNR_TIMER) != 0) {
    qp->min_rnr_timer = attr->min_rnr_timer;
  }
  if ((mask & IBV_QP_RNR_RETRY) != 0) qp->rnr_retry = attr->rnr_retry;
  if ((mask & IBV_QP_RETRY_CNT) != 0) qp->retry_count = attr->retry_cnt;
  if ((mask & IBV_QP_TIMEOUT) != 0) qp->ack_timeout = attr->timeout;
  if ((mask & IBV_QP_STATE) == 0 || attr->qp_state == base->state) return 0;
  switch (attr->qp_state) {
    case IBV_QPS_INIT:
      if (base->state != IBV_QPS_RESET) return EINVAL;
      break;
    case IBV_QPS_RTR:
      if (base->state != IBV_QPS_INIT) return EINVAL;
      break;
    case IBV_QPS_RTS:
      if (base->state != IBV_QPS_RTR) return EINVAL;
      break;
    case IBV_QPS_ERR:
      if (!qp->silent) FailQp(qp);
      base->state = IBV_QPS_ERR;
      return 0;
    default:
      return EINVAL;
  }
  base->state = attr->qp_state;
  if (base->state == IBV_QPS_RTR || base->state == IBV_QPS_RTS) OnReady(qp);
  return 0;
}

int ibv_query_qp(ibv_qp* base, ibv_qp_attr* attr, int, ibv_qp_init_attr* init) {
  auto* const qp = reinterpret_cast<Qp*>(base);
  CheckOwner(qp->state, "a queue pair");
  const std::lock_guard hold(qp->state->mutex);
  *attr = {};
  attr->qp_state = attr->cur_qp_state = base->state;
  attr->cap = qp->cap;
  attr->min_rnr_timer = qp->min_rnr_timer;
  attr->rnr_retry = qp->rnr_retry;
  attr->retry_cnt = qp->retry_count;
  attr->timeout = qp->ack_timeout;
  *init = {};
  init->cap = qp->cap;
  init->send_cq = base->send_cq;
  init->recv_cq = base->recv_cq;
  init->srq = base->srq;
  init->qp_type = base->qp_type;
  return 0;
}

int ibv_destroy_qp(ibv_qp* base) {
  ::pthread_testcancel();
  auto* const qp = reinterpret_cast<Qp*>(base);
  CheckOwner(qp->state, "a queue pair");
  State* const state = qp->state;
  {
    std::unique_lock hold(state->mutex);
    if (qp->conn != nullptr) {
      qp->conn->qp = nullptr;
      qp->conn->qp_gone = true;
      qp->conn->early.clear();
    }
    state->qps.erase(base->qp_num);
    // As many providers do it, which also forget what these have used of the
    // SRQ.
    std::uint64_t lost = qp->has_fetched || (base->srq && qp->has_current);
    for (ibv_cq* each : {base->send_cq, base->recv_cq}) {
      std::erase_if(reinterpret_cast<Cq*>(each)->entries,
                    [&](const Entry& entry) {
                      if (entry.wc.qp_num != base->qp_num) return false;
                      if (entry.shared) ++lost;
                      return true;
                    });
      --reinterpret_cast<Cq*>(each)->users;
    }
    if (lost != 0) Count(&Counts::lost_receives, lost);
    if (base->srq != nullptr) --reinterpret_cast<Srq*>(base->srq)->users;
    --reinterpret_cast<Pd*>(base->pd)->users;
    state->done.wait(
        hold, [qp] { return qp->async_acknowledged >= qp->async_fetched; });
  }
  delete qp;
  Count(&Counts::qps_gone);
  return 0;
}

int ibv_get_async_event(ibv_context* base, ibv_async_event* event) {
  Context* const context = Of(base);
  CheckOwner(context->state, "a context");
  for (;;) {
    AsyncRecord record{};
    const long n = Raw(SYS_read, base->async_fd, Arg(&record), sizeof record);
    if (n != sizeof record) {
      errno = n < 0 ? static_cast<int>(-n) : EIO;
      return -1;
    }
    *event = {};
    event->event_type = static_cast<ibv_event_type>(record.type);
    const std::lock_guard hold(context->state->mutex);
    State* const state = context->state;
    // What has been destroyed meanwhile has no events any more.
    switch (event->event_type) {
      case IBV_EVENT_QP_FATAL:
      case IBV_EVENT_QP_REQ_ERR:
      case IBV_EVENT_QP_ACCESS_ERR:
      case IBV_EVENT_QP_LAST_WQE_REACHED: {
        const auto found = state->qps.find(record.number);
        if (found == state->qps.end()) continue;
        ++found->second->async_fetched;
        event->element.qp = &found->second->base;
        return 0;
      }
      case IBV_EVENT_CQ_ERR:
        if (state->cqs.count(static_cast<Cq*>(record.element)) == 0) continue;
        event->element.cq = static_cast<ibv_cq*>(record.element);
        return 0;
      case IBV_EVENT_SRQ_ERR:
      case IBV_EVENT_SRQ_LIMIT_REACHED:
        if (state->srqs.count(static_cast<Srq*>(record.element)) == 0) continue;
        event->element.srq = static_cast<ibv_srq*>(record.element);
        return 0;
      default:
        event->element.port_num = static_cast<int>(record.number);
        return 0;
    }
  }
}

void ibv_ack_async_event(ibv_async_event* event) {
  switch (event->event_type) {
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_QP_LAST_WQE_REACHED: {
      auto* const qp = reinterpret_cast<Qp*>(event->element.qp);
      const std::lock_guard hold(qp->state->mutex);
      ++qp->async_acknowledged;
      qp->state->done.notify_all();
      return;
    }
    default:
      return;
  }
}

const char* ibv_wc_status_str(ibv_wc_status status) {
  switch (status) {
    case IBV_WC_SUCCESS:
      return "success";
    case IBV_WC_LOC_LEN_ERR:
      return "local length error";
    case IBV_WC_LOC_PROT_ERR:
      return "local protection error";
    case IBV_WC_WR_FLUSH_ERR:
      return "Work Request Flushed Error";
    case IBV_WC_REM_INV_REQ_ERR:
      return "remote invalid request error";
    case IBV_WC_REM_ACCESS_ERR:
      return "remote access error";
    case IBV_WC_REM_OP_ERR:
      return "remote operation error";
    case IBV_WC_RETRY_EXC_ERR:
      return "transport retry counter exceeded";
    case IBV_WC_RNR_RETRY_EXC_ERR:
      return "RNR retry counter exceeded";
    default:
      return "error";
  }
}

// For tests in the device's own process.
bool fake_device_control(const char* command) {
  State* const state = Current();
  const std::lock_guard hold(state->mutex);
  return Control(state, command);
}

}  // extern "C"
#pragma GCC visibility pop
