// Short connections over raw verbs.  Each is made by rdma_cm, carries one round
// trip and ends.  The round trip uses SEND and RECV, so no end has to learn an
// address first.  As with sockets, -P N threads at each end make and take
// connections.

#include <poll.h>
#include <rdma/rdma_cma.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>

#include "lib/verbs/verbs.h"
#include "tools/rcsock/perf/error.h"
#include "tools/rcsock/perf/meter.h"

namespace rcsock::perf {
namespace {

using verbs::calls;

constexpr int kResolveMs = 2000;
constexpr int kBacklog = 256;
// A connection without progress for so long is given up.
constexpr int kPatienceMs = 5000;
// siw loses what comes while its rdma_accept is still at work, until more
// comes: siw_accept sends its reply before it has the socket's wake-ups.  So on
// iWARP an end that waits for kNudgeMs sends again, and again after twice that.
constexpr int kNudgeMs = 20;
constexpr int kNudges = 3;
constexpr std::uint32_t kRequests = 1 + kNudges;

void Check(bool good, const char* what) {
  if (!good) FailErrno("{}", what);
}

// An id and its QP, destroyed together.
class Id {
 public:
  explicit Id(rdma_cm_id* id = nullptr) : id_(id) {}
  ~Id() {
    if (id_ == nullptr) return;
    if (id_->qp != nullptr) calls.rdma_destroy_qp(id_);
    calls.rdma_destroy_id(id_);
  }
  Id(const Id&) = delete;
  Id& operator=(const Id&) = delete;
  rdma_cm_id* get() const { return id_; }
  rdma_cm_id* operator->() const { return id_; }
  rdma_cm_id** out() { return &id_; }

 private:
  rdma_cm_id* id_;
};

// What a thread has for its connections, one after the other.
class Kit {
 public:
  explicit Kit(std::size_t size)
      : size_(size),
        memory_(static_cast<std::byte*>(std::malloc(2 * size)), &std::free) {
    Check(memory_ != nullptr, "memory");
    std::memset(memory_.get(), 'x', 2 * size);
  }
  // Registered memory stays until the process ends.

  // Makes the QP of `id`, with receives that wait.
  void Prepare(rdma_cm_id* id) {
    Open(id->verbs);
    ibv_qp_init_attr attributes{};
    attributes.qp_type = IBV_QPT_RC;
    attributes.send_cq = queue_;
    attributes.recv_cq = queue_;
    attributes.cap.max_send_wr = kRequests;
    attributes.cap.max_recv_wr = kRequests;
    attributes.cap.max_send_sge = 1;
    attributes.cap.max_recv_sge = 1;
    Check(calls.rdma_create_qp(id, domain_, &attributes) == 0,
          "rdma_create_qp");
    ++number_;
    ibv_sge place = Place(size_);
    ibv_recv_wr request{};
    request.wr_id = number_ << 1 | kReceive;
    request.sg_list = &place;
    request.num_sge = 1;
    for (std::uint32_t i = 0; i < kRequests; ++i) {
      ibv_recv_wr* bad = nullptr;
      Check(::ibv_post_recv(id->qp, &request, &bad) == 0, "ibv_post_recv");
    }
    got_[kSend] = got_[kReceive] = false;
  }
  void Send(rdma_cm_id* id) {
    ibv_sge place = Place(0);
    ibv_send_wr request{};
    request.wr_id = number_ << 1 | kSend;
    request.sg_list = &place;
    request.num_sge = 1;
    request.opcode = IBV_WR_SEND;
    request.send_flags = IBV_SEND_SIGNALED;
    ibv_send_wr* bad = nullptr;
    errno = ::ibv_post_send(id->qp, &request, &bad);
    Check(errno == 0, "ibv_post_send");
  }
  // Returns false if the connection has failed.  `nudged`: its peer may have
  // missed what was sent.
  bool Await(std::uint64_t what, rdma_cm_id* nudged = nullptr) {
    int nudges = nudged != nullptr ? kNudges : 0;
    int patience = nudged != nullptr ? kNudgeMs : kPatienceMs;
    while (!got_[what]) {
      ibv_wc done;
      int n = ::ibv_poll_cq(queue_, 1, &done);
      if (n == 0) {
        // Arm, look again, and only then sleep.
        Check(::ibv_req_notify_cq(queue_, 0) == 0, "ibv_req_notify_cq");
        n = ::ibv_poll_cq(queue_, 1, &done);
      }
      Check(n >= 0, "ibv_poll_cq");
      if (n == 0) {
        pollfd fd{channel_->fd, POLLIN, 0};
        if (::poll(&fd, 1, patience) == 0) {
          if (nudges == 0) return false;
          patience = --nudges == 0 ? kPatienceMs : 2 * patience;
          Send(nudged);
          continue;
        }
        ibv_cq* queue = nullptr;
        void* context = nullptr;
        Check(calls.ibv_get_cq_event(channel_, &queue, &context) == 0,
              "ibv_get_cq_event");
        calls.ibv_ack_cq_events(queue, 1);
        continue;
      }
      // From an earlier connection, whose QP may have had this number.
      if (done.wr_id >> 1 != number_) continue;
      if (done.status != IBV_WC_SUCCESS) return false;
      got_[done.wr_id & 1] = true;
    }
    return true;
  }

  static constexpr std::uint64_t kSend = 0;
  static constexpr std::uint64_t kReceive = 1;

 private:
  ibv_sge Place(std::size_t at) const {
    return {reinterpret_cast<std::uint64_t>(memory_.get() + at),
            static_cast<std::uint32_t>(size_), region_->lkey};
  }
  void Open(ibv_context* context) {
    if (domain_ != nullptr) return;
    domain_ = calls.ibv_alloc_pd(context);
    Check(domain_ != nullptr, "ibv_alloc_pd");
    channel_ = calls.ibv_create_comp_channel(context);
    Check(channel_ != nullptr, "ibv_create_comp_channel");
    queue_ = calls.ibv_create_cq(context, 64, nullptr, channel_, 0);
    Check(queue_ != nullptr, "ibv_create_cq");
    region_ = (calls.ibv_reg_mr)(domain_, memory_.get(), 2 * size_,
                                 IBV_ACCESS_LOCAL_WRITE);
    Check(region_ != nullptr, "ibv_reg_mr");
  }

  const std::size_t size_;
  std::unique_ptr<std::byte, decltype(&std::free)> memory_;
  ibv_pd* domain_ = nullptr;
  ibv_comp_channel* channel_ = nullptr;
  ibv_cq* queue_ = nullptr;
  ibv_mr* region_ = nullptr;
  std::uint64_t number_ = 0;  // the connection's
  bool got_[2] = {};
};

rdma_conn_param Parameters(const std::string& token) {
  rdma_conn_param parameters{};
  parameters.private_data = token.data();
  parameters.private_data_len = static_cast<std::uint8_t>(token.size());
  parameters.retry_count = 7;
  parameters.rnr_retry_count = 7;
  return parameters;
}

void Connection(const Job& job, Address address, Kit* kit, Tally* tally) {
  const std::int64_t start = NowNs();
  // siw may choose a local port that is taken.
  for (int tries = 1;; ++tries) {
    Id id;
    Check(calls.rdma_create_id(nullptr, id.out(), nullptr, RDMA_PS_TCP) == 0,
          "rdma_create_id");
    if (calls.rdma_resolve_addr(id.get(), nullptr,
                                reinterpret_cast<sockaddr*>(&address.storage),
                                kResolveMs) != 0) {
      FailErrno("no RDMA device leads to {}", address.Host());
    }
    Check(calls.rdma_resolve_route(id.get(), kResolveMs) == 0,
          "rdma_resolve_route");
    kit->Prepare(id.get());
    rdma_conn_param parameters = Parameters(job.token);
    if (calls.rdma_connect(id.get(), &parameters) != 0) {
      Check(errno == EADDRINUSE && tries < 5, "rdma_connect");
      continue;
    }
    tally->connect.Record(static_cast<std::uint64_t>(NowNs() - start));
    kit->Send(id.get());
    if (!kit->Await(Kit::kReceive,
                    verbs::IsIwarp(id->verbs) ? id.get() : nullptr)) {
      Fail("the server has not answered a connection");
    }
    calls.rdma_disconnect(id.get());
    break;
  }
  tally->latency.Record(static_cast<std::uint64_t>(NowNs() - start));
  Tally::Add(&tally->tx, job.spec.size);
  Tally::Add(&tally->rx, job.spec.size);
  Tally::Add(&tally->messages, 1);
}

// Serves one connection that was asked for.  Its failures concern its client
// alone.
void Answer(const Job& job, rdma_cm_id* id, Kit* kit, Tally* tally) {
  const rdma_conn_param& asked = id->event->param.conn;
  if (asked.private_data_len < kTokenSize ||
      std::memcmp(asked.private_data, job.token.data(), kTokenSize) != 0) {
    calls.rdma_reject(id, nullptr, 0);
    return;
  }
  kit->Prepare(id);
  rdma_conn_param parameters = Parameters("");
  if (calls.rdma_accept(id, &parameters) != 0) return;
  if (!kit->Await(Kit::kReceive)) return;
  kit->Send(id);
  // The answer has arrived.  The client ends the connection.
  if (!kit->Await(Kit::kSend)) return;
  calls.rdma_disconnect(id);
  Tally::Add(&tally->rx, job.spec.size);
  Tally::Add(&tally->tx, job.spec.size);
  Tally::Add(&tally->messages, 1);
}

class Listener {
 public:
  explicit Listener(const Job& job) : stop_(::eventfd(0, EFD_CLOEXEC)) {
    if (!stop_) FailErrno("eventfd");
    Address address = Resolve(job.host, 0);
    Check(calls.rdma_create_id(nullptr, id_.out(), nullptr, RDMA_PS_TCP) == 0,
          "rdma_create_id");
    Check(calls.rdma_bind_addr(
              id_.get(), reinterpret_cast<sockaddr*>(&address.storage)) == 0,
          "rdma_bind_addr");
    Check(calls.rdma_listen(id_.get(), kBacklog) == 0, "rdma_listen");
  }
  std::uint16_t port() const {
    return ntohs(calls.rdma_get_src_port(id_.get()));
  }
  // Null: the test is over.
  rdma_cm_id* Next() {
    std::scoped_lock hold(one_at_a_time_);
    for (;;) {
      pollfd fds[] = {{stop_.get(), POLLIN, 0}, {id_->channel->fd, POLLIN, 0}};
      if (::poll(fds, 2, -1) < 0 && errno != EINTR) FailErrno("poll");
      if (fds[0].revents != 0) return nullptr;
      if (fds[1].revents == 0) continue;
      rdma_cm_id* id = nullptr;
      if (calls.rdma_get_request(id_.get(), &id) == 0) return id;
    }
  }
  void Stop() {
    const std::uint64_t one = 1;
    if (::write(stop_.get(), &one, sizeof one) < 0) FailErrno("eventfd");
  }

 private:
  std::mutex one_at_a_time_;
  Fd stop_;
  Id id_;
};

}  // namespace

Side RunVerbsShort(const Job& job) {
  verbs::Error error;
  if (!verbs::AnyDevice()) Fail("no RDMA device here");
  if (!verbs::Load(&error)) {
    Fail("no verbs here ({}: {})", error.call, std::strerror(error.code));
  }
  Meter meter(job);
  std::unique_ptr<Listener> listener;
  if (job.server) {
    listener = std::make_unique<Listener>(job);
    Emit({{"type", "listening"}, {"port", listener->port()}});
  }
  const Address address = Resolve(job.host, job.port);
  for (std::uint64_t i = 0; i < job.spec.connections; ++i) {
    meter.StartThread([&](Tally* tally) {
      Kit kit(job.spec.size);
      if (!job.server) {
        meter.Begin();
        while (!meter.stopped()) Connection(job, address, &kit, tally);
        return;
      }
      while (rdma_cm_id* next = listener->Next()) {
        const Id id(next);
        meter.Begin();
        Answer(job, next, &kit, tally);
      }
    });
  }
  return meter.Drive([&] {
    if (listener) listener->Stop();
  });
}

}  // namespace rcsock::perf
