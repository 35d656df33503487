#include "tools/rcsock/perf/verbs_link.h"

#include <arpa/inet.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "lib/verbs/verbs.h"
#include "tools/rcsock/perf/error.h"
#include "tools/rcsock/perf/net.h"

namespace rcsock::perf {
namespace {

using verbs::calls;

constexpr std::size_t kPage = 4096;
// Receives beyond the data slots: for credits, and for what ends a phase.
constexpr std::size_t kSpareReceives = 24;
// iWARP has no immediate data: a small send carries it.
constexpr std::size_t kReceiveSize = 16;
constexpr unsigned kBatch = 32;
constexpr int kResolveMs = 2000;

void Check(bool good, const char* what) {
  if (!good) FailErrno("{}", what);
}

std::size_t RoundUp(std::size_t n, std::size_t unit) {
  return (n + unit - 1) / unit * unit;
}

void Expect(const ibv_wc& completion, const char* what) {
  if (completion.status == IBV_WC_SUCCESS) return;
  Fail("{}: {}", what, calls.ibv_wc_status_str(completion.status));
}

void LoadLibraries() {
  verbs::Error error;
  if (!verbs::AnyDevice()) Fail("no RDMA device here");
  if (!verbs::Load(&error)) {
    Fail("no verbs here ({}: {})", error.call, std::strerror(error.code));
  }
}

}  // namespace

// The memory holds the slots that the peer writes, then the copies that this
// end sends, then the receives of iWARP.  Both ends have one layout.
Link::Link(Links* links, int index, rdma_cm_id* id)
    : links_(links), index_(index), id_(id), memory_(nullptr, &std::free) {
  links->Open(id->verbs);
  const std::size_t slots = links->slots();
  const std::size_t receives = slots + kSpareReceives;
  const std::size_t side = RoundUp(slots * links->options_.size, kPage);
  const std::size_t size = 2 * side + RoundUp(receives * kReceiveSize, kPage);
  memory_.reset(static_cast<std::byte*>(std::aligned_alloc(kPage, size)));
  Check(memory_ != nullptr, "memory");
  std::memset(memory_.get(), 'x', size);
  region_ =
      (calls.ibv_reg_mr)(links->domain_, memory_.get(), size,
                         IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
  Check(region_ != nullptr, "ibv_reg_mr");
  tx_ = memory_.get() + side;

  ibv_qp_init_attr attributes{};
  attributes.qp_type = IBV_QPT_RC;
  attributes.send_cq = links->sent_;
  attributes.recv_cq = links->received_;
  attributes.cap.max_send_wr = static_cast<std::uint32_t>(links->Requests());
  attributes.cap.max_recv_wr = static_cast<std::uint32_t>(receives);
  attributes.cap.max_send_sge = 1;
  attributes.cap.max_recv_sge = 1;
  // Providers refuse more than they have.
  for (std::uint32_t wanted = 512;; wanted /= 2) {
    attributes.cap.max_inline_data = wanted;
    if (calls.rdma_create_qp(id_, links->domain_, &attributes) == 0) break;
    Check(wanted != 0, "rdma_create_qp");
  }
  inline_ = attributes.cap.max_inline_data;
  for (std::size_t i = 0; i < receives; ++i) PostReceive(i);

  here_.address = reinterpret_cast<std::uint64_t>(memory_.get());
  here_.key = region_->rkey;
  here_.size = static_cast<std::uint32_t>(links->options_.size);
  parameters_.private_data = &here_;
  parameters_.private_data_len = sizeof here_;
  parameters_.responder_resources = 1;
  parameters_.initiator_depth = 1;
  parameters_.retry_count = 7;
  parameters_.rnr_retry_count = 7;
}

// The kernel takes the connection apart when the process ends.
Link::~Link() = default;

rdma_conn_param* Link::Parameters() { return &parameters_; }

void Link::Established(const rdma_cm_event* event) {
  errno = EPROTO;
  Check(event->param.conn.private_data_len >= sizeof there_, "private data");
  std::memcpy(&there_, event->param.conn.private_data, sizeof there_);
  if (there_.size != here_.size) Fail("the ends differ in the message size");
}

void Link::PostReceive(std::size_t slot) {
  const Links& links = *links_;
  ibv_sge place{};
  ibv_recv_wr request{};
  request.wr_id = static_cast<std::uint64_t>(index_) << 32 | slot;
  if (links.iwarp_) {
    place.addr = reinterpret_cast<std::uint64_t>(tx_ + (tx_ - memory_.get()) +
                                                 slot * kReceiveSize);
    place.length = kReceiveSize;
    place.lkey = region_->lkey;
    request.sg_list = &place;
    request.num_sge = 1;
  }
  ibv_recv_wr* bad = nullptr;
  Check(::ibv_post_recv(id_->qp, &request, &bad) == 0, "ibv_post_recv");
}

std::byte* Link::Outgoing(std::size_t slot) {
  return tx_ + slot * links_->options_.size;
}

const std::byte* Link::Incoming(std::size_t slot) const {
  return memory_.get() + slot * links_->options_.size;
}

void Link::SendData(std::size_t slot) {
  const std::size_t size = links_->options_.size;
  ibv_sge place{};
  place.addr = reinterpret_cast<std::uint64_t>(Outgoing(slot));
  place.length = static_cast<std::uint32_t>(size);
  place.lkey = region_->lkey;
  ibv_send_wr write{};
  write.sg_list = &place;
  write.num_sge = 1;
  write.send_flags = size <= inline_ ? IBV_SEND_INLINE : 0;
  write.wr.rdma.remote_addr = there_.address + slot * size;
  write.wr.rdma.rkey = there_.key;
  if (!links_->iwarp_) {
    write.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
    write.imm_data = htonl(static_cast<std::uint32_t>(What::kData));
    return Post(&write, &write, 1, false);
  }
  write.opcode = IBV_WR_RDMA_WRITE;
  std::uint32_t what = htonl(static_cast<std::uint32_t>(What::kData));
  ibv_sge word{};
  word.addr = reinterpret_cast<std::uint64_t>(&what);
  word.length = sizeof what;
  ibv_send_wr send{};
  send.sg_list = &word;
  send.num_sge = 1;
  send.opcode = IBV_WR_SEND;
  send.send_flags = IBV_SEND_INLINE;
  write.next = &send;
  Post(&write, &send, 2, false);
}

void Link::Send(What what) {
  std::uint32_t value = htonl(static_cast<std::uint32_t>(what));
  ibv_sge word{};
  ibv_send_wr request{};
  if (links_->iwarp_) {
    word.addr = reinterpret_cast<std::uint64_t>(&value);
    word.length = sizeof value;
    request.sg_list = &word;
    request.num_sge = 1;
    request.opcode = IBV_WR_SEND;
    request.send_flags = IBV_SEND_INLINE;
  } else {
    request.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
    request.imm_data = value;
    request.wr.rdma.remote_addr = there_.address;
    request.wr.rdma.rkey = there_.key;
  }
  Post(&request, &request, 1, what == What::kBye || what == What::kEnd);
}

// Rings one doorbell for the chain.  Its last request is signalled only as
// often as the send queue needs it.
void Link::Post(ibv_send_wr* first, ibv_send_wr* last, unsigned count,
                bool flush) {
  const std::uint64_t room = links_->Requests() - 4;
  while (posted_ - reaped_ > room) Reap();
  posted_ += count;
  if (flush || posted_ - signalled_ >= room / 4) {
    last->send_flags |= IBV_SEND_SIGNALED;
    last->wr_id = static_cast<std::uint64_t>(index_) << 48 | posted_;
    signalled_ = posted_;
  }
  ibv_send_wr* bad = nullptr;
  errno = ::ibv_post_send(id_->qp, first, &bad);
  Check(errno == 0, "ibv_post_send");
}

void Link::Flush() {
  while (reaped_ < signalled_) Reap();
}

void Link::Reap() {
  std::array<ibv_wc, kBatch> completions;
  const int n = ::ibv_poll_cq(links_->sent_, kBatch, completions.data());
  Check(n >= 0, "ibv_poll_cq");
  for (int i = 0; i < n; ++i) {
    const ibv_wc& done = completions[static_cast<std::size_t>(i)];
    Expect(done, "send");
    links_->links_[done.wr_id >> 48]->reaped_ =
        done.wr_id & ((std::uint64_t{1} << 48) - 1);
  }
  if (n == 0) ::sched_yield();
}

std::size_t LinkOptions::SlotsFor(std::size_t window, std::size_t size) {
  return std::clamp<std::size_t>(window / size, 4, 256);
}

Links::Links(const LinkOptions& options) : options_(options) {
  LoadLibraries();
}

// The kernel cleans up, as for ~Link.
Links::~Links() = default;

// At least 512: with 256, siw refuses the twelfth QP of a process.
std::size_t Links::Requests() const {
  return std::max<std::size_t>(512, 4 * (options_.slots + kSpareReceives));
}

void Links::Open(ibv_context* context) {
  if (domain_ != nullptr) return;
  const std::size_t receives =
      (options_.slots + kSpareReceives) * options_.connections;
  iwarp_ = context->device->transport_type == IBV_TRANSPORT_IWARP;
  domain_ = calls.ibv_alloc_pd(context);
  Check(domain_ != nullptr, "ibv_alloc_pd");
  channel_ = calls.ibv_create_comp_channel(context);
  Check(channel_ != nullptr, "ibv_create_comp_channel");
  received_ = calls.ibv_create_cq(context, static_cast<int>(receives), nullptr,
                                  channel_, 0);
  sent_ = calls.ibv_create_cq(context, static_cast<int>(receives), nullptr,
                              nullptr, 0);
  Check(received_ != nullptr && sent_ != nullptr, "ibv_create_cq");
}

void Links::Accept(const std::string& host, std::uint16_t port,
                   const std::function<void(std::uint16_t)>& listening) {
  rdma_cm_id* listener = nullptr;
  Address address = Resolve(host, port);
  Check(calls.rdma_create_id(nullptr, &listener, nullptr, RDMA_PS_TCP) == 0,
        "rdma_create_id");
  Check(calls.rdma_bind_addr(
            listener, reinterpret_cast<sockaddr*>(&address.storage)) == 0,
        "rdma_bind_addr");
  Check(
      calls.rdma_listen(listener, static_cast<int>(options_.connections)) == 0,
      "rdma_listen");
  listening(ntohs(calls.rdma_get_src_port(listener)));
  for (std::size_t i = 0; i < options_.connections; ++i) {
    rdma_cm_id* id = nullptr;
    Check(calls.rdma_get_request(listener, &id) == 0, "rdma_get_request");
    links_.push_back(std::make_unique<Link>(this, static_cast<int>(i), id));
    links_.back()->Established(id->event);
    Check(calls.rdma_accept(id, links_.back()->Parameters()) == 0,
          "rdma_accept");
  }
}

void Links::Connect(const std::string& host, std::uint16_t port) {
  for (std::size_t i = 0; i < options_.connections; ++i) {
    // siw may choose a local port that is taken.
    for (int tries = 1;; ++tries) {
      rdma_cm_id* id = nullptr;
      Address address = Resolve(host, port);
      Check(calls.rdma_create_id(nullptr, &id, nullptr, RDMA_PS_TCP) == 0,
            "rdma_create_id");
      if (calls.rdma_resolve_addr(id, nullptr,
                                  reinterpret_cast<sockaddr*>(&address.storage),
                                  kResolveMs) != 0) {
        FailErrno("no RDMA device leads to {}", address.Host());
      }
      Check(calls.rdma_resolve_route(id, kResolveMs) == 0,
            "rdma_resolve_route");
      links_.push_back(std::make_unique<Link>(this, static_cast<int>(i), id));
      if (calls.rdma_connect(id, links_.back()->Parameters()) == 0) {
        links_.back()->Established(id->event);
        break;
      }
      Check(errno == EADDRINUSE && tries < 5, "rdma_connect");
      links_.pop_back();
    }
  }
}

const std::vector<Message>& Links::Look() {
  messages_.clear();
  Poll();
  return messages_;
}

const std::vector<Message>& Links::Receive() {
  if (!Look().empty()) return messages_;
  const std::int64_t spin = options_.spin_ns;
  if (spin != 0) {
    const std::int64_t until = spin < 0 ? INT64_MAX : NowNs() + spin;
    do {
      if (Poll() > 0) return messages_;
    } while (spin < 0 || NowNs() < until);
  }
  do {
    SleepOrArm();
  } while (Poll() == 0);
  return messages_;
}

int Links::Poll() {
  std::array<ibv_wc, kBatch> completions;
  const int n = ::ibv_poll_cq(received_, kBatch, completions.data());
  Check(n >= 0, "ibv_poll_cq");
  for (int i = 0; i < n; ++i)
    Completed(completions[static_cast<std::size_t>(i)]);
  return n;
}

// Arm, look again, and only then sleep.
void Links::SleepOrArm() {
  if (!armed_) {
    Check(::ibv_req_notify_cq(received_, 0) == 0, "ibv_req_notify_cq");
    armed_ = true;
    return;
  }
  ibv_cq* queue = nullptr;
  void* context = nullptr;
  Check(calls.ibv_get_cq_event(channel_, &queue, &context) == 0,
        "ibv_get_cq_event");
  armed_ = false;
  if (++events_ == kBatch) {
    calls.ibv_ack_cq_events(received_, events_);
    events_ = 0;
  }
}

void Links::Completed(const ibv_wc& completion) {
  const auto index = static_cast<std::size_t>(completion.wr_id >> 32);
  const std::size_t slot = completion.wr_id & 0xffffffff;
  Link& link = *links_[index];
  // A peer that has said goodbye may be gone.
  if (completion.status == IBV_WC_WR_FLUSH_ERR && link.ended_) return;
  Expect(completion, "receive");
  std::uint32_t what = completion.imm_data;
  if (iwarp_) {
    std::memcpy(
        &what, link.tx_ + (link.tx_ - link.memory_.get()) + slot * kReceiveSize,
        sizeof what);
  }
  const Message message{static_cast<int>(index),
                        static_cast<What>(ntohl(what))};
  link.ended_ = message.what == What::kEnd ||
                (message.what == What::kBye && !options_.both);
  if (!link.ended_) link.PostReceive(slot);
  messages_.push_back(message);
}

}  // namespace rcsock::perf
