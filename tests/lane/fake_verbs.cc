#include "tests/lane/fake_verbs.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace rcsock::lane::test {

namespace {
// Credit words and targets, which their reader may look at meanwhile.
constexpr std::size_t kWords = 32;

// What a completion that has failed does not tell (ibv_poll_cq(3)).
void Poison(ibv_wc* wc) { std::memset(wc, 0xa5, sizeof(*wc)); }
}  // namespace

FakeVerbs* FakeVerbs::g_fake = nullptr;

FakeVerbs::FakeVerbs(const Options& options) : options_(options) {
  g_fake = this;
  device_.transport_type =
      options.iwarp ? IBV_TRANSPORT_IWARP : IBV_TRANSPORT_IB;
  std::strcpy(device_.name, "fake0");
  context_.device = &device_;
  context_.num_comp_vectors = options.vectors;
  context_.ops.post_send = &PostSend;
  context_.ops.poll_cq = &PollCq;
  context_.ops.req_notify_cq = &Arm;
  context_.ops.post_srq_recv = &PostShared;
  context_.ops.post_recv = &PostReceive;
  Install();
  if (!options.immediate) thread_ = std::thread([this] { Run(); });
}

FakeVerbs::~FakeVerbs() {
  if (thread_.joinable()) {
    {
      std::scoped_lock hold(mutex_);
      stop_ = true;
    }
    some_.notify_all();
    thread_.join();
  }
}

void FakeVerbs::Install() {
  verbs::Calls& calls = verbs::calls;
  calls.ibv_query_device = [](ibv_context*, ibv_device_attr* attr) {
    *attr = {};
    const Options& options = g_fake->options_;
    const unsigned software = options.iwarp ? 0x626d74 : 0xffffff;
    attr->vendor_id = options.software ? software : 0x15b3;
    attr->max_cqe = g_fake->options_.max_cqe;
    attr->max_srq_wr = g_fake->options_.max_srq_wr;
    const bool srqs = attr->max_srq_wr != 0 || g_fake->options_.claims_srqs;
    attr->max_srq = srqs ? 1024 : 0;
    attr->max_qp_wr = g_fake->options_.max_qp_wr;
    return 0;
  };
  // (A macro in the header.)
  (calls.ibv_query_port) = [](ibv_context*, std::uint8_t,
                              _compat_ibv_port_attr* attr) {
    reinterpret_cast<ibv_port_attr*>(attr)->link_layer =
        g_fake->options_.infiniband ? IBV_LINK_LAYER_INFINIBAND
                                    : IBV_LINK_LAYER_ETHERNET;
    return 0;
  };
  calls.ibv_alloc_pd = [](ibv_context* context) {
    std::scoped_lock hold(g_fake->mutex_);
    ++g_fake->counts_.objects;
    auto* pd = new ibv_pd{};
    pd->context = context;
    return pd;
  };
  calls.ibv_dealloc_pd = [](ibv_pd* pd) {
    std::scoped_lock hold(g_fake->mutex_);
    --g_fake->counts_.objects;
    delete pd;
    return 0;
  };
  calls.ibv_reg_mr_iova2 = [](ibv_pd* pd, void* base, std::size_t length,
                              std::uint64_t, unsigned access) -> ibv_mr* {
    if (g_fake->options_.keys == Options::Keys::kStrict) {
      errno = EOPNOTSUPP;
      return nullptr;
    }
    std::scoped_lock hold(g_fake->mutex_);
    ++g_fake->counts_.relaxed;
    return g_fake->NewMr(pd, base, length, static_cast<int>(access));
  };
  calls.ibv_reg_mr = [](ibv_pd* pd, void* base, std::size_t length,
                        int access) -> ibv_mr* {
    if (g_fake->options_.keys == Options::Keys::kRelaxed) {
      errno = EINVAL;
      return nullptr;
    }
    std::scoped_lock hold(g_fake->mutex_);
    return g_fake->NewMr(pd, base, length, access);
  };
  calls.ibv_dereg_mr = [](ibv_mr* mr) {
    std::scoped_lock hold(g_fake->mutex_);
    --g_fake->counts_.objects;
    g_fake->mrs_.erase(mr->rkey);
    if (g_fake->options_.reuses_keys) g_fake->free_keys_.push_back(mr->rkey);
    delete reinterpret_cast<Mr*>(mr);
    return 0;
  };
  Rest();
}

ibv_mr* FakeVerbs::NewMr(ibv_pd* pd, void* base, std::size_t length,
                         int access) {
  ++counts_.objects;
  auto* mr = new Mr{};
  mr->mr.context = pd->context;
  mr->mr.pd = pd;
  mr->mr.addr = base;
  mr->mr.length = length;
  if (free_keys_.empty()) free_keys_.push_back(next_key_++);
  mr->mr.lkey = mr->mr.rkey = free_keys_.back();
  free_keys_.pop_back();
  mr->access = access;
  mrs_[mr->mr.rkey] = mr;
  return &mr->mr;
}

void FakeVerbs::Rest() {
  verbs::Calls& calls = verbs::calls;
  calls.ibv_create_comp_channel = [](ibv_context* context) {
    std::scoped_lock hold(g_fake->mutex_);
    ++g_fake->counts_.objects;
    auto* channel = new Channel{};
    channel->channel.context = context;
    // Eight bytes for each event, as the kernel's.
    int ends[2] = {-1, -1};
    if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) ends[0] = ends[1] = -1;
    channel->channel.fd = ends[0];
    channel->tell = ends[1];
    return &channel->channel;
  };
  calls.ibv_destroy_comp_channel = [](ibv_comp_channel* channel) {
    std::scoped_lock hold(g_fake->mutex_);
    --g_fake->counts_.objects;
    ::close(channel->fd);
    ::close(reinterpret_cast<Channel*>(channel)->tell);
    delete reinterpret_cast<Channel*>(channel);
    return 0;
  };
  calls.ibv_get_cq_event = [](ibv_comp_channel* channel, ibv_cq** cq,
                              void** context) {
    std::scoped_lock hold(g_fake->mutex_);
    ++g_fake->counts_.fetches;
    if (::read(channel->fd, cq, sizeof(*cq)) != sizeof(*cq)) return -1;
    *context = (*cq)->cq_context;
    --reinterpret_cast<Cq*>(*cq)->unfetched;
    return 0;
  };
  calls.ibv_ack_cq_events = [](ibv_cq*, unsigned) {};
  calls.ibv_create_cq = [](ibv_context* context, int entries, void* user,
                           ibv_comp_channel* channel, int vector) -> ibv_cq* {
    std::scoped_lock hold(g_fake->mutex_);
    if (vector < 0 || vector >= context->num_comp_vectors) {
      errno = EINVAL;
      return nullptr;
    }
    if (++g_fake->cqs_ > g_fake->options_.max_cqs) {
      --g_fake->cqs_;
      errno = ENOMEM;
      return nullptr;
    }
    g_fake->counts_.vectors.insert(vector);
    ++g_fake->counts_.objects;
    auto* cq = new Cq{};
    cq->cq.context = context;
    cq->cq.channel = channel;
    cq->cq.cq_context = user;
    cq->cq.cqe = entries;
    return &cq->cq;
  };
  calls.ibv_destroy_cq = [](ibv_cq* cq) {
    std::scoped_lock hold(g_fake->mutex_);
    --g_fake->counts_.objects;
    --g_fake->cqs_;
    std::erase(g_fake->held_events_, reinterpret_cast<Cq*>(cq));
    delete reinterpret_cast<Cq*>(cq);
    return 0;
  };
  calls.ibv_create_srq = [](ibv_pd* pd, ibv_srq_init_attr* attr) -> ibv_srq* {
    std::scoped_lock hold(g_fake->mutex_);
    if (g_fake->options_.max_srq_wr == 0) {
      errno = EOPNOTSUPP;
      return nullptr;
    }
    ++g_fake->counts_.objects;
    ++g_fake->counts_.queues;
    auto* srq = new Srq{};
    g_fake->srqs_.insert(srq);
    srq->srq.context = pd->context;
    srq->srq.pd = pd;
    srq->queue.size = attr->attr.max_wr;
    return &srq->srq;
  };
  calls.ibv_destroy_srq = [](ibv_srq* srq) {
    std::scoped_lock hold(g_fake->mutex_);
    --g_fake->counts_.objects;
    g_fake->srqs_.erase(reinterpret_cast<Srq*>(srq));
    delete reinterpret_cast<Srq*>(srq);
    return 0;
  };
  calls.rdma_create_qp = [](rdma_cm_id* id, ibv_pd* pd,
                            ibv_qp_init_attr* attr) {
    std::scoped_lock hold(g_fake->mutex_);
    const bool large = attr->cap.max_inline_data > g_fake->options_.inline_max;
    if (large || g_fake->options_.qp_error != 0) {
      ++g_fake->counts_.refused_qps;
      errno =
          g_fake->options_.qp_error != 0 ? g_fake->options_.qp_error : EINVAL;
      return -1;
    }
    ++g_fake->counts_.objects;
    auto* qp = new Qp{};
    qp->qp.context = pd->context;
    qp->qp.pd = pd;
    qp->qp.send_cq = attr->send_cq;
    qp->qp.recv_cq = attr->recv_cq;
    qp->qp.srq = attr->srq;
    qp->qp.qp_num = g_fake->next_qp_++;
    qp->depth = attr->cap.max_send_wr;
    qp->own.size = attr->srq == nullptr ? attr->cap.max_recv_wr : 0;
    id->qp = &qp->qp;
    g_fake->qps_.insert(qp);
    return 0;
  };
  calls.rdma_destroy_qp = [](rdma_cm_id* id) {
    ::pthread_testcancel();  // as the kernel's answer by read() or write()
    if (g_fake->on_send_) g_fake->on_send_();
    std::scoped_lock hold(g_fake->mutex_);
    auto* qp = reinterpret_cast<Qp*>(id->qp);
    if (qp == nullptr) return;
    --g_fake->counts_.objects;
    std::deque<Work> left;
    for (Work& work : g_fake->queue_) {
      if (work.from != qp) left.push_back(std::move(work));
    }
    g_fake->queue_.swap(left);
    if (qp->peer != nullptr) qp->peer->peer = nullptr;
    // As mlx5 and others do it, which also forget what these have used of the
    // SRQ.
    std::erase_if(reinterpret_cast<Cq*>(qp->qp.recv_cq)->entries,
                  [qp](const Entry& entry) {
                    if (entry.wc.qp_num != qp->qp.qp_num) return false;
                    g_fake->counts_.lost_receives += entry.srq != nullptr;
                    g_fake->Free(entry);
                    return true;
                  });
    g_fake->counts_.lost_receives +=
        static_cast<int>(qp->fetched.receives.size());
    for (const ibv_recv_wr& wr : qp->fetched.receives) {
      if (!g_fake->leave_stale_) break;
      ++g_fake->counts_.stale;
      reinterpret_cast<Cq*>(qp->qp.recv_cq)->stale.push_back(Flushed(qp, wr));
    }
    std::erase_if(g_fake->events_, [qp](const ibv_async_event& event) {
      return event.event_type == IBV_EVENT_QP_LAST_WQE_REACHED &&
             event.element.qp == &qp->qp;
    });
    g_fake->qps_.erase(qp);
    delete qp;
    id->qp = nullptr;
  };
  calls.ibv_modify_srq = [](ibv_srq* srq, ibv_srq_attr* attr, int) {
    std::scoped_lock hold(g_fake->mutex_);
    ++g_fake->counts_.limits;
    reinterpret_cast<Srq*>(srq)->queue.limit = attr->srq_limit;
    return 0;
  };
  calls.ibv_modify_qp = [](ibv_qp* qp, ibv_qp_attr* attr, int mask) {
    ::pthread_testcancel();  // it is asked for by write()
    if (g_fake->on_send_) g_fake->on_send_();
    std::scoped_lock hold(g_fake->mutex_);
    if ((mask & IBV_QP_MIN_RNR_TIMER) != 0) ++g_fake->counts_.rnr_timers;
    if ((mask & IBV_QP_STATE) != 0 && attr->qp_state == IBV_QPS_ERR) {
      g_fake->FailQp(reinterpret_cast<Qp*>(qp));
    }
    return 0;
  };
  calls.ibv_wc_status_str = [](ibv_wc_status) { return "fake"; };
}

rdma_cm_id* FakeVerbs::NewId() {
  ids_.push_back(std::make_unique<rdma_cm_id>());
  rdma_cm_id* id = ids_.back().get();
  *id = {};
  id->verbs = &context_;
  id->port_num = 1;
  return id;
}

void FakeVerbs::Connect(rdma_cm_id* a, rdma_cm_id* b) {
  std::scoped_lock hold(mutex_);
  auto* qa = reinterpret_cast<Qp*>(a->qp);
  auto* qb = reinterpret_cast<Qp*>(b->qp);
  qa->peer = qb;
  qb->peer = qa;
  qa->connected = qb->connected = true;
  Fetch(qa);
  Fetch(qb);
}

bool FakeVerbs::NextEvent(ibv_async_event* event) {
  std::scoped_lock hold(mutex_);
  if (events_.empty()) return false;
  *event = events_.front();
  events_.pop_front();
  return true;
}

void FakeVerbs::LeaveStale(bool leave) {
  std::scoped_lock hold(mutex_);
  leave_stale_ = leave;
}

void FakeVerbs::Fail(rdma_cm_id* id) {
  std::scoped_lock hold(mutex_);
  auto* qp = reinterpret_cast<Qp*>(id->qp);
  if (qp != nullptr && !qp->failed) FailQp(qp);
}

void FakeVerbs::Flush() {
  std::scoped_lock hold(mutex_);
  for (Qp* qp : qps_) FlushFetched(qp);
}

FakeVerbs::Counts FakeVerbs::counts() {
  std::scoped_lock hold(mutex_);
  return counts_;
}

bool FakeVerbs::QpFailed(rdma_cm_id* id) {
  std::scoped_lock hold(mutex_);
  return reinterpret_cast<Qp*>(id->qp)->failed;
}

// --- The data path -----------------------------------------------------------

int FakeVerbs::PostSend(ibv_qp* base, ibv_send_wr* wr, ibv_send_wr** bad) {
  if (g_fake->on_send_) g_fake->on_send_();
  std::scoped_lock hold(g_fake->mutex_);
  auto* qp = reinterpret_cast<Qp*>(base);
  ++g_fake->counts_.posts;
  if (!g_fake->time_.lane_domains) {
    g_fake->Lock(&g_fake->counts_.send_locks);
    g_fake->Lock(&g_fake->counts_.register_locks);
  }
  for (; wr != nullptr; wr = wr->next) {
    if (g_fake->takes_sends_ == 0) {
      *bad = wr;
      return ENOMEM;
    }
    if (g_fake->takes_sends_ > 0) --g_fake->takes_sends_;
    ++g_fake->counts_.requests;
    Work work{};
    work.from = qp;
    work.opcode = wr->opcode;
    work.wr_id = wr->wr_id;
    work.signalled = (wr->send_flags & IBV_SEND_SIGNALED) != 0;
    work.solicited =
        g_fake->solicit_ && (wr->send_flags & IBV_SEND_SOLICITED) != 0;
    work.length = wr->num_sge == 0 ? 0 : wr->sg_list[0].length;
    work.imm = wr->imm_data;
    work.address = wr->wr.rdma.remote_addr;
    work.key = wr->wr.rdma.rkey;
    const bool has_imm = wr->opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
    if (++qp->outstanding > qp->depth || (has_imm && g_fake->options_.iwarp)) {
      *bad = wr;
      return EINVAL;
    }
    if (work.length != 0) {
      const auto* at = reinterpret_cast<const void*>(wr->sg_list[0].addr);
      if ((wr->send_flags & IBV_SEND_INLINE) != 0) {
        const auto* bytes = static_cast<const std::uint8_t*>(at);
        work.bytes.assign(bytes, bytes + work.length);
      } else {
        work.at = at;
        work.lkey = wr->sg_list[0].lkey;
      }
    }
    g_fake->Leave(&work);
    g_fake->queue_.push_back(std::move(work));
  }
  g_fake->now_ += g_fake->time_.doorbell;
  if (g_fake->options_.timed) return 0;
  if (!g_fake->options_.immediate) {
    g_fake->some_.notify_one();
  } else if (!g_fake->held_) {
    while (g_fake->Step()) {
    }
  }
  return 0;
}

void FakeVerbs::Leave(Work* work) {
  Qp* qp = work->from;
  constexpr std::uint32_t kCredit = 8;
  if (work->length > kCredit && time_.sender_copies) {
    now_ += work->length / time_.copy;
  }
  now_ += time_.request;
  qp->link_free = std::max(qp->link_free, now_) + work->length / time_.link;
  work->arrives = qp->link_free + time_.one_way;
}

void FakeVerbs::Advance(double until) {
  std::scoped_lock hold(mutex_);
  for (;;) {
    auto work = std::min_element(
        queue_.begin(), queue_.end(),
        [](const Work& a, const Work& b) { return a.arrives < b.arrives; });
    const bool data = work != queue_.end() && work->arrives <= until;
    if (!acks_.empty() && acks_.front().arrives <= until &&
        (!data || acks_.front().arrives <= work->arrives)) {
      const Ack ack = acks_.front();
      acks_.pop_front();
      if (qps_.contains(ack.to)) {
        Complete(reinterpret_cast<Cq*>(ack.to->qp.send_cq), ack.entry);
      }
      continue;
    }
    if (!data) return;
    // (Each end's are in their order.)
    std::rotate(queue_.begin(), work, work + 1);
    Step();
  }
}

void FakeVerbs::Delay(Qp* to, const Work& work, const void* data) {
  const auto* bytes = static_cast<const std::uint8_t*>(data);
  std::uint32_t at = 0;
  while (at < work.length) {
    std::uint32_t n = work.length - at;
    if (work.length <= kWords) {
      n = std::min<std::uint32_t>(n, 8);
    } else if (n > 128 && order_() % 2 == 0) {
      n = 64 * (1 + order_() % (n / 64 - 1));
    }
    if (n != work.length) ++counts_.pieces;
    to->late.push_back(
        {work.address + at, work.key, {bytes + at, bytes + at + n}});
    at += n;
  }
}

void FakeVerbs::Land(Qp* to, bool all) {
  do {
    if (to->late.empty()) return;
    const std::size_t which = order_() % to->late.size();
    if (which != 0) ++counts_.overtaken;
    const Late one = std::move(to->late[which]);
    to->late.erase(to->late.begin() + static_cast<std::ptrdiff_t>(which));
    Put(one.address, one.key, one.bytes.data(), one.bytes.size());
  } while (all);
}

bool FakeVerbs::Covers(std::uint64_t address, std::uint32_t key,
                       std::size_t length) const {
  const auto found = mrs_.find(key);
  if (found == mrs_.end()) return false;
  const Mr& mr = *found->second;
  const auto base = reinterpret_cast<std::uintptr_t>(mr.mr.addr);
  return (mr.access & IBV_ACCESS_REMOTE_WRITE) != 0 && address >= base &&
         address - base <= mr.mr.length &&
         mr.mr.length - (address - base) >= length;
}

bool FakeVerbs::Put(std::uint64_t address, std::uint32_t key, const void* data,
                    std::size_t length) {
  if (!Covers(address, key, length)) return false;
  auto* to = reinterpret_cast<std::uint8_t*>(address);
  if (length != 0 && length <= kWords && length % 8 == 0 && address % 8 == 0) {
    // As a device writes words that others may be reading.
    for (std::size_t i = 0; i < length; i += 8) {
      std::uint64_t word;
      std::memcpy(&word, static_cast<const std::uint8_t*>(data) + i, 8);
      reinterpret_cast<std::atomic<std::uint64_t>*>(to + i)->store(
          word, std::memory_order_release);
    }
  } else if (length != 0) {
    std::memcpy(to, data, length);
  }
  return true;
}

void FakeVerbs::Complete(Cq* cq, const Entry& entry, bool solicited) {
  if (cq->entries.size() >= static_cast<std::size_t>(cq->cq.cqe)) {
    ++counts_.overruns;
  }
  cq->entries.push_back(entry);
  for (const Entry& late : std::exchange(cq->stale, {})) {
    cq->entries.push_back(late);
  }
  const bool wakes = !options_.solicits || !cq->solicited || solicited ||
                     entry.wc.status != IBV_WC_SUCCESS;
  if (!cq->armed || !wakes) return;
  cq->armed = false;
  ++counts_.events;
  ++cq->unfetched;
  if (hold_events_) {
    held_events_.push_back(cq);
  } else {
    Tell(cq);
  }
}

FakeVerbs::Entry FakeVerbs::Sent(Qp* qp, const Work& work,
                                 ibv_wc_status status) {
  Entry entry{};
  if (status != IBV_WC_SUCCESS) Poison(&entry.wc);
  entry.wc.wr_id = work.wr_id;
  entry.wc.qp_num = qp->qp.qp_num;
  entry.wc.status = status;
  entry.sends = 1 + std::exchange(qp->done, 0);
  return entry;
}

FakeVerbs::Entry FakeVerbs::Flushed(const Qp* qp, const ibv_recv_wr& wr) {
  Entry entry{};
  Poison(&entry.wc);
  entry.wc.wr_id = wr.wr_id;
  entry.wc.qp_num = qp->qp.qp_num;
  entry.wc.status = IBV_WC_WR_FLUSH_ERR;
  entry.receive = true;
  entry.srq = reinterpret_cast<Srq*>(qp->qp.srq);
  return entry;
}

void FakeVerbs::Free(const Entry& entry) {
  if (entry.srq != nullptr) {
    if (srqs_.contains(entry.srq)) --entry.srq->queue.taken;
    return;
  }
  for (Qp* qp : qps_) {
    if (qp->qp.qp_num != entry.wc.qp_num) continue;
    qp->outstanding -= entry.sends;
    if (entry.receive) --qp->own.taken;
  }
}

void FakeVerbs::Lock(int* count) {
  ++*count;
  if (options_.timed) now_ += time_.lock;
}

void FakeVerbs::Tell(const Cq* cq) {
  const auto* channel = reinterpret_cast<const Channel*>(cq->cq.channel);
  const ibv_cq* event = &cq->cq;
  if (::write(channel->tell, &event, sizeof(event)) != sizeof(event)) {
    ++counts_.lost_events;
  }
}

void FakeVerbs::HoldEvents(bool hold) {
  std::scoped_lock lock(mutex_);
  hold_events_ = hold;
  if (hold) return;
  for (const Cq* cq : std::exchange(held_events_, {})) Tell(cq);
}

void FakeVerbs::Solicit(bool solicit) {
  std::scoped_lock lock(mutex_);
  solicit_ = solicit;
}

bool FakeVerbs::Receive(Qp* to, std::uint32_t imm, const void* sent,
                        std::uint32_t length, bool solicited) {
  Fetch(to);
  Queue& queue = to->qp.srq == nullptr ? to->own
                 : !to->fetched.receives.empty()
                     ? to->fetched
                     : reinterpret_cast<Srq*>(to->qp.srq)->queue;
  if (queue.receives.empty()) {
    ++counts_.starved;
    return false;
  }
  const ibv_recv_wr wr = queue.receives.front();
  const ibv_sge sge = queue.sges.front();
  queue.receives.pop_front();
  queue.sges.pop_front();
  Entry entry{};
  entry.receive = true;
  entry.srq = reinterpret_cast<Srq*>(to->qp.srq);
  // What has been fetched counts already.
  if (&queue != &to->fetched) ++queue.taken;
  ibv_wc& wc = entry.wc;
  wc.wr_id = wr.wr_id;
  wc.qp_num = to->qp.qp_num;
  wc.status = IBV_WC_SUCCESS;
  // As of a packet over a router, such as all of RoCE's are.
  wc.wc_flags = IBV_WC_GRH;
  wc.byte_len = length;
  if (sent != nullptr) {
    wc.opcode = IBV_WC_RECV;
    if (sge.length != 0) {
      if (length > sge.length) return false;
      std::memcpy(reinterpret_cast<void*>(sge.addr), sent, length);
    }
  } else {
    wc.opcode = IBV_WC_RECV_RDMA_WITH_IMM;
    wc.wc_flags |= IBV_WC_WITH_IMM;
    wc.imm_data = imm;
  }
  Complete(reinterpret_cast<Cq*>(to->qp.recv_cq), entry, solicited);
  Fetch(to);
  return true;
}

bool FakeVerbs::Apply(Work& work) {
  Qp* to = work.from->peer;
  if (to == nullptr || to->failed) return false;
  const void* data = work.at;
  std::uint64_t words[kWords / 8];
  if (work.at == nullptr) {
    data = work.bytes.data();
  } else if (work.length <= kWords && work.length % 8 == 0 &&
             reinterpret_cast<std::uintptr_t>(work.at) % 8 == 0) {
    for (std::size_t i = 0; i < work.length / 8; ++i) {
      words[i] =
          static_cast<const std::atomic<std::uint64_t>*>(work.at)[i].load(
              std::memory_order_acquire);
    }
    data = words;
  }
  if (work.opcode == IBV_WR_SEND) {
    Land(to, true);
    ++counts_.writes;
    return Receive(to, 0, data, work.length, work.solicited);
  }
  if (work.opcode == IBV_WR_RDMA_READ) {
    Land(to, true);
    const auto found = mrs_.find(work.key);
    if (found == mrs_.end()) return false;
    const Mr& mr = *found->second;
    const auto base = reinterpret_cast<std::uintptr_t>(mr.mr.addr);
    if ((mr.access & IBV_ACCESS_REMOTE_READ) == 0 || work.length != 8 ||
        work.address < base || work.address - base > mr.mr.length - 8) {
      return false;
    }
    // On iWARP the answer is a message that names the sink, and is placed as a
    // WRITE's is.
    const auto sink = mrs_.find(work.lkey);
    const int needed =
        options_.iwarp ? IBV_ACCESS_REMOTE_WRITE : IBV_ACCESS_LOCAL_WRITE;
    if (sink == mrs_.end() || (sink->second->access & needed) == 0) {
      return false;
    }
    std::memcpy(const_cast<void*>(work.at),
                reinterpret_cast<const void*>(work.address), 8);
    return true;
  }
  if (options_.unordered && Covers(work.address, work.key, work.length)) {
    Delay(to, work, data);
    if (work.opcode != IBV_WR_RDMA_WRITE_WITH_IMM) {
      while (order_() % 2 == 0 && !to->late.empty()) Land(to, false);
      return true;
    }
    Land(to, true);
    ++counts_.writes;
    return Receive(to, work.imm, nullptr, work.length, work.solicited);
  }
  if (!Put(work.address, work.key, data, work.length)) return false;
  if (work.opcode != IBV_WR_RDMA_WRITE_WITH_IMM) return true;
  ++counts_.writes;
  if (work.length == 0) ++counts_.empty;
  return Receive(to, work.imm, nullptr, work.length, work.solicited);
}

bool FakeVerbs::Step() {
  if (queue_.empty()) {
    for (Qp* qp : qps_) Land(qp, true);
    return false;
  }
  Work work = std::move(queue_.front());
  queue_.pop_front();
  Qp* qp = work.from;
  const ibv_wc_status status = qp->failed    ? IBV_WC_WR_FLUSH_ERR
                               : Apply(work) ? IBV_WC_SUCCESS
                                             : IBV_WC_RETRY_EXC_ERR;
  if (status == IBV_WC_SUCCESS && !work.signalled) {
    ++qp->done;
    return true;
  }
  const Entry entry = Sent(qp, work, status);
  if (options_.timed && status == IBV_WC_SUCCESS) {
    acks_.push_back({work.arrives + time_.one_way, qp, entry});
  } else {
    Complete(reinterpret_cast<Cq*>(qp->qp.send_cq), entry);
  }
  if (status != IBV_WC_SUCCESS && !qp->failed) FailQp(qp);
  return true;
}

void FakeVerbs::Fetch(Qp* qp) {
  if (qp->qp.srq == nullptr || qp->failed) return;
  Queue& shared = reinterpret_cast<Srq*>(qp->qp.srq)->queue;
  while (qp->fetched.receives.size() < options_.fetches &&
         shared.Take(&qp->fetched)) {
  }
  if (shared.receives.size() >= shared.limit) return;
  shared.limit = 0;
  ibv_async_event event{};
  event.event_type = IBV_EVENT_SRQ_LIMIT_REACHED;
  event.element.srq = qp->qp.srq;
  events_.push_back(event);
}

bool FakeVerbs::Queue::Take(Queue* to) {
  if (receives.empty()) return false;
  to->receives.push_back(receives.front());
  to->sges.push_back(sges.front());
  receives.pop_front();
  sges.pop_front();
  ++taken;
  return true;
}

void FakeVerbs::FlushFetched(Qp* qp) {
  if (!std::exchange(qp->flushes, false)) return;
  for (const ibv_recv_wr& wr : qp->fetched.receives) {
    Complete(reinterpret_cast<Cq*>(qp->qp.recv_cq), Flushed(qp, wr));
  }
  qp->fetched = {};
  if (!options_.reports_last_wqe) return;
  ibv_async_event event{};
  event.event_type = IBV_EVENT_QP_LAST_WQE_REACHED;
  event.element.qp = &qp->qp;
  events_.push_back(event);
}

void FakeVerbs::FailQp(Qp* qp) {
  if (!qp->failed) qp->flushes = qp->qp.srq != nullptr && qp->connected;
  qp->failed = true;
  std::deque<Work> left;
  for (Work& work : queue_) {
    if (work.from != qp) {
      left.push_back(std::move(work));
      continue;
    }
    Complete(reinterpret_cast<Cq*>(qp->qp.send_cq),
             Sent(qp, work, IBV_WC_WR_FLUSH_ERR));
  }
  queue_.swap(left);
  Flush(qp);
  if (!options_.late_flushes) FlushFetched(qp);
}

void FakeVerbs::Flush(Qp* qp) {
  for (const ibv_recv_wr& wr : qp->own.receives) {
    ++qp->own.taken;
    Complete(reinterpret_cast<Cq*>(qp->qp.recv_cq), Flushed(qp, wr));
  }
  qp->own.receives.clear();
  qp->own.sges.clear();
}

void FakeVerbs::Run() {
  std::mt19937 random(7);
  std::unique_lock hold(mutex_);
  while (!stop_) {
    if (queue_.empty() || held_) {
      if (!held_) {
        for (Qp* qp : qps_) Land(qp, true);
      }
      some_.wait(hold);
      continue;
    }
    // Some at a time, so that all interleavings of both ends come up.
    for (std::uint32_t n = 1 + random() % 4; n > 0 && Step(); --n) {
    }
    hold.unlock();
    if (random() % 4 == 0) std::this_thread::yield();
    hold.lock();
  }
}

bool FakeVerbs::Idle() {
  std::scoped_lock hold(mutex_);
  return queue_.empty() &&
         std::all_of(qps_.begin(), qps_.end(),
                     [](const Qp* qp) { return qp->late.empty(); });
}

void FakeVerbs::Hold(bool hold) {
  std::scoped_lock lock(mutex_);
  held_ = hold;
  if (hold) return;
  if (options_.immediate) {
    while (Step()) {
    }
  }
  some_.notify_one();
}

void FakeVerbs::Deliver(std::size_t writes) {
  std::scoped_lock lock(mutex_);
  while (writes-- > 0 && Step()) {
  }
}

void FakeVerbs::DeliverOnArm(std::size_t writes) {
  std::scoped_lock lock(mutex_);
  on_arm_ = writes;
}

void FakeVerbs::FailPoll(int completions) {
  std::scoped_lock lock(mutex_);
  fail_poll_ = completions;
}

void FakeVerbs::RefuseSends(int after) {
  std::scoped_lock lock(mutex_);
  takes_sends_ = after;
}

void FakeVerbs::RefuseReceives(int calls) {
  std::scoped_lock lock(mutex_);
  refuse_receives_ = calls;
}

void FakeVerbs::RefuseArms() {
  std::scoped_lock lock(mutex_);
  refuse_arms_ = true;
}

bool FakeVerbs::Write(rdma_cm_id*, std::uint64_t address, std::uint32_t key,
                      const void* data, std::size_t length) {
  std::scoped_lock lock(mutex_);
  return Put(address, key, data, length);
}

bool FakeVerbs::Immediate(rdma_cm_id* from, std::uint32_t bits, bool send) {
  std::scoped_lock lock(mutex_);
  Qp* to = reinterpret_cast<Qp*>(from->qp)->peer;
  const std::uint32_t wire = htonl(bits);
  if (to == nullptr || to->failed) return false;
  return send || options_.iwarp ? Receive(to, 0, &wire, sizeof(wire))
                                : Receive(to, wire, nullptr, 0);
}

bool FakeVerbs::Send(rdma_cm_id* from, const std::string& bytes) {
  std::scoped_lock lock(mutex_);
  Qp* to = reinterpret_cast<Qp*>(from->qp)->peer;
  return to != nullptr && !to->failed &&
         Receive(to, 0, bytes.data(), static_cast<std::uint32_t>(bytes.size()));
}

int FakeVerbs::PollCq(ibv_cq* base, int most, ibv_wc* out) {
  std::scoped_lock hold(g_fake->mutex_);
  auto* cq = reinterpret_cast<Cq*>(base);
  const Time& time = g_fake->time_;
  Counts& counts = g_fake->counts_;
  int locks = 0;
  if (!time.unlocked_polls) g_fake->Lock(&locks);
  // As mlx5, mlx4 and hns do it: what it has taken by then is lost.
  const int fails = g_fake->fail_poll_;
  const bool fail =
      fails != 0 && static_cast<std::size_t>(fails) <= cq->entries.size();
  int n = 0;
  while (n < (fail ? fails : most) && !cq->entries.empty()) {
    const Entry entry = cq->entries.front();
    cq->entries.pop_front();
    out[n++] = entry.wc;
    g_fake->Free(entry);
    // The provider gives the place of a shared receive back.
    if (entry.srq != nullptr && !time.shared_domains) {
      g_fake->Lock(&counts.receive_locks);
    }
  }
  if (n != 0) counts.cq_locks += locks;
  if (fail) g_fake->fail_poll_ = 0;
  return fail ? -2 : n;
}

int FakeVerbs::Arm(ibv_cq* base, int solicited) {
  std::scoped_lock hold(g_fake->mutex_);
  auto* cq = reinterpret_cast<Cq*>(base);
  ++g_fake->counts_.arms;
  if (g_fake->refuse_arms_) return EIO;
  // Real devices arm by the number of events fetched, and take this for a
  // request that they have served.
  if (!g_fake->options_.software && cq->unfetched > 0) {
    // (One that asks for more may come too late.)
    const bool widens = cq->solicited && solicited == 0;
    if (!widens) ++g_fake->counts_.late_arms;
  } else {
    cq->armed = true;
    cq->solicited = solicited != 0;
  }
  while (g_fake->on_arm_ > 0) {
    --g_fake->on_arm_;
    g_fake->Step();
  }
  return 0;
}

int FakeVerbs::Queue::Post(ibv_recv_wr* wr, ibv_recv_wr** bad) {
  for (; wr != nullptr; wr = wr->next) {
    if (receives.size() + taken >= size) {
      *bad = wr;
      return ENOMEM;
    }
    receives.push_back(*wr);
    sges.push_back(wr->num_sge != 0 ? *wr->sg_list : ibv_sge{});
  }
  return 0;
}

int FakeVerbs::PostTo(Queue* queue, ibv_recv_wr* wr, ibv_recv_wr** bad) {
  ++counts_.receive_posts;
  if (refuse_receives_ == 0) return queue->Post(wr, bad);
  --refuse_receives_;
  ibv_recv_wr* const next = std::exchange(wr->next, nullptr);
  const int result = queue->Post(wr, bad);
  wr->next = next;
  if (result != 0 || next == nullptr) return result;
  *bad = next;
  return ENOMEM;
}

int FakeVerbs::PostShared(ibv_srq* base, ibv_recv_wr* wr, ibv_recv_wr** bad) {
  std::scoped_lock hold(g_fake->mutex_);
  if (!g_fake->time_.shared_domains) {
    g_fake->Lock(&g_fake->counts_.receive_locks);
  }
  return g_fake->PostTo(&reinterpret_cast<Srq*>(base)->queue, wr, bad);
}

int FakeVerbs::PostReceive(ibv_qp* base, ibv_recv_wr* wr, ibv_recv_wr** bad) {
  std::scoped_lock hold(g_fake->mutex_);
  auto* qp = reinterpret_cast<Qp*>(base);
  if (!g_fake->time_.lane_domains) {
    g_fake->Lock(&g_fake->counts_.receive_locks);
  }
  const int result = g_fake->PostTo(&qp->own, wr, bad);
  if (qp->failed) g_fake->Flush(qp);
  return result;
}

}  // namespace rcsock::lane::test
