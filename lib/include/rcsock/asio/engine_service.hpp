#ifndef RCSOCK_ASIO_ENGINE_SERVICE_HPP_
#define RCSOCK_ASIO_ENGINE_SERVICE_HPP_

// Part of rcsock/asio.hpp: how the readiness of streams reaches an Asio
// context.

#include <rcsock/rcsock.h>

// First: without it Asio's detail headers are not complete.
// clang-format off
#include <boost/asio/io_context.hpp>
// clang-format on

#include <algorithm>
#include <atomic>
#include <boost/asio/cancellation_type.hpp>
#include <boost/asio/detail/mutex.hpp>
#include <boost/asio/detail/op_queue.hpp>
#include <boost/asio/detail/reactor.hpp>
#include <boost/asio/detail/reactor_op.hpp>
#include <boost/asio/detail/scheduler.hpp>
#include <boost/asio/detail/throw_error.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/execution_context.hpp>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#if !defined(BOOST_ASIO_HAS_EPOLL) || \
    defined(BOOST_ASIO_HAS_IO_URING_AS_DEFAULT)
#error "rcsock/asio.hpp needs Asio's epoll reactor"
#endif

namespace rcsock::asio::detail {

namespace net = boost::asio;
using boost::system::error_code;
using net::detail::mutex;
using net::detail::op_queue;
using net::detail::operation;
using net::detail::reactor_op;

inline error_code last_error() {
  return error_code(errno, net::error::get_system_category());
}

// The operations that wait for one descriptor. The service keeps it until the
// service ends. So a late event may name a descriptor with a new owner: events
// are only hints.
struct descriptor {
  enum queue { read, write, except, queues };
  mutex lock;
  int fd = -1;
  std::uint32_t events = 0;    // asked of the engine's set; 0: not in the set
  unsigned without_write = 0;  // reads since a write has last waited
  op_queue<reactor_op> ops[queues];
  descriptor* next_free = nullptr;
};

// Each context has one service. Every stream that an operation waits for is in
// an edge-triggered epoll set of the engine's, and Asio's own reactor watches
// that set.
//
// The pump, a handler of the context, looks at the set in turns. It looks at
// the lanes without asking the kernel, runs what has become ready, and goes on.
// A turn is short, so that the context's other handlers and descriptors get
// their time. When the lanes have been silent for a while, the pump arms the
// set and leaves the rest to the reactor. The armed set becomes readable when
// something comes.
//
// Before the pump runs a handler, it is in the context's queue again, or the
// set is armed. So a handler that blocks, throws or runs the context itself
// delays no other. Another thread, or the nested run, takes the pump over.
class engine_service
    : public net::detail::execution_context_service_base<engine_service> {
 public:
  explicit engine_service(net::execution_context& context)
      : net::detail::execution_context_service_base<engine_service>(context),
        scheduler_(net::use_service<net::detail::scheduler>(context)),
        reactor_(net::use_service<net::detail::reactor>(context)),
        pump_(this) {
    reactor_.init_task();
    set_ = ::rcs_epoll_create1(EPOLL_CLOEXEC);
    if (set_ < 0) net::detail::throw_error(last_error(), "rcs_epoll_create1");
    // From now on the set may be inside another set.
    if (::rcs_epoll_arm(set_) == 0) ::rcs_epoll_disarm(set_);
    reactor_.register_internal_descriptor(net::detail::reactor::read_op, set_,
                                          set_data_, new edge_op(this));
  }

  ~engine_service() {
    ::rcs_epoll_disarm(set_);
    ::rcs_close(set_);
  }

  void shutdown() override {
    reactor_.deregister_internal_descriptor(set_, set_data_);
    reactor_.cleanup_descriptor_data(set_data_);
    op_queue<operation> all;
    for (auto& d : descriptors_) {
      for (auto& queue : d->ops) all.push(queue);
    }
    all.push(done_);
    // To destroy a handler may close a socket, which comes back here.
    while (operation* op = all.front()) {
      all.pop();
      op->destroy();
    }
  }

  descriptor* open(int fd) {
    mutex::scoped_lock lock(mutex_);
    descriptor* d = free_;
    if (d != nullptr) {
      free_ = d->next_free;
    } else {
      descriptors_.push_back(std::make_unique<descriptor>());
      d = descriptors_.back().get();
    }
    lock.unlock();
    mutex::scoped_lock own(d->lock);
    d->fd = fd;
    d->events = 0;
    d->without_write = 0;
    return d;
  }

  // Cancels what waits. Returns the descriptor's number, still open.
  int release(descriptor* d) {
    int fd = -1;
    {
      op_queue<operation> cancelled;
      mutex::scoped_lock own(d->lock);
      for (auto& queue : d->ops) abort_all(queue, cancelled);
      fd = d->fd;
      if (d->events != 0) ::rcs_epoll_ctl(set_, EPOLL_CTL_DEL, fd, nullptr);
      d->fd = -1;
      d->events = 0;
      own.unlock();
      finish(cancelled);
    }
    mutex::scoped_lock lock(mutex_);
    d->next_free = free_;
    free_ = d;
    return fd;
  }

  void cancel(descriptor* d) {
    op_queue<operation> cancelled;
    mutex::scoped_lock own(d->lock);
    for (auto& queue : d->ops) abort_all(queue, cancelled);
    own.unlock();
    finish(cancelled);
  }

  void cancel_key(descriptor* d, int which, void* wanted) {
    op_queue<operation> cancelled;
    op_queue<reactor_op> others;
    mutex::scoped_lock own(d->lock);
    op_queue<reactor_op>& queue = d->ops[which];
    while (reactor_op* op = queue.front()) {
      queue.pop();
      if (op->cancellation_key_ == wanted) {
        op->ec_ = net::error::operation_aborted;
        cancelled.push(op);
        pending_.fetch_sub(1, std::memory_order_relaxed);
      } else {
        others.push(op);
      }
    }
    queue.push(others);
    own.unlock();
    finish(cancelled);
  }

  // The initiating function's part. Tries at once, unless other operations wait
  // already. The handler runs later in any case.
  void start(descriptor* d, int which, reactor_op* op) {
    scheduler_.work_started();
    mutex::scoped_lock own(d->lock);
    if (d->ops[which].empty() && op->perform()) {
      own.unlock();
      push_done(op);
      return;
    }
    if (!ask(d, which)) {
      op->ec_ = last_error();
      own.unlock();
      push_done(op);
      return;
    }
    d->ops[which].push(op);
    pending_.fetch_add(1, std::memory_order_relaxed);
    own.unlock();
    mutex::scoped_lock lock(mutex_);
    // An armed set tells of all that comes, but a look for a while finds news
    // of lanes sooner. An edge that came while nothing was pending has not been
    // looked at.
    if (looking_ || queued_ || (armed_ && !lanes_ && !edge_)) return;
    kick_ = true;
    post_pump(lock);
  }

  // For an operation that already has its result.
  void start_done(reactor_op* op) {
    scheduler_.work_started();
    push_done(op);
  }

 private:
  using clock = std::chrono::steady_clock;
  // How long one turn of the pump may delay the context's other handlers, and
  // how much of that it may spend idle.
  static constexpr auto kTurn = std::chrono::microseconds(20);
  static constexpr int kIdleUs = 4;
  static constexpr int kBatch = 64;
  static constexpr unsigned kForgetWrites = 64;

  class pump_op : public operation {
   public:
    explicit pump_op(engine_service* service)
        : operation(&pump_op::do_complete), service_(service) {}
    static void do_complete(void* owner, operation* base, const error_code&,
                            std::size_t) {
      if (owner != nullptr) static_cast<pump_op*>(base)->service_->turn();
    }

   private:
    engine_service* service_;
  };

  // Stays in the reactor, which performs it for each edge of the set.
  class edge_op : public reactor_op {
   public:
    explicit edge_op(engine_service* service)
        : reactor_op(error_code(), &edge_op::do_perform, &edge_op::do_complete),
          service_(service) {}
    static status do_perform(reactor_op* base) {
      static_cast<edge_op*>(base)->service_->on_edge();
      return not_done;
    }
    static void do_complete(void*, operation* base, const error_code&,
                            std::size_t) {
      delete static_cast<edge_op*>(base);
    }

   private:
    engine_service* service_;
  };

  void abort_all(op_queue<reactor_op>& queue, op_queue<operation>& to) {
    while (reactor_op* op = queue.front()) {
      queue.pop();
      op->ec_ = net::error::operation_aborted;
      to.push(op);
      pending_.fetch_sub(1, std::memory_order_relaxed);
    }
  }

  // Has the set tell of what this queue waits for.
  bool ask(descriptor* d, int which) {
    std::uint32_t events = d->events | EPOLLIN | EPOLLET;
    if (which == descriptor::write) {
      events |= EPOLLOUT;
      d->without_write = 0;
    } else if (which == descriptor::except) {
      events |= EPOLLPRI;
    } else if ((events & EPOLLOUT) != 0 && d->ops[descriptor::write].empty() &&
               ++d->without_write > kForgetWrites) {
      // News of room costs something with each message.
      events &= ~static_cast<std::uint32_t>(EPOLLOUT);
    }
    if (events == d->events) return true;
    epoll_event event{};
    event.events = events;
    event.data.ptr = d;
    const int op = d->events == 0 ? EPOLL_CTL_ADD : EPOLL_CTL_MOD;
    if (::rcs_epoll_ctl(set_, op, d->fd, &event) != 0) return false;
    d->events = events;
    return true;
  }

  void post_pump(mutex::scoped_lock& lock) {
    queued_ = true;
    lock.unlock();
    scheduler_.post_immediate_completion(&pump_, false);
  }

  void push_done(reactor_op* op) {
    mutex::scoped_lock lock(mutex_);
    done_.push(op);
    kick_ = true;
    if (!looking_ && !queued_) post_pump(lock);
  }

  void finish(op_queue<operation>& ops) {
    if (ops.empty()) return;
    mutex::scoped_lock lock(mutex_);
    done_.push(ops);
    kick_ = true;
    if (!looking_ && !queued_) post_pump(lock);
  }

  void on_edge() {
    mutex::scoped_lock lock(mutex_);
    edge_ = true;
    kick_ = true;
    if (!looking_ && !queued_ && pending_.load(std::memory_order_relaxed) > 0) {
      post_pump(lock);
    }
  }

  struct work_finished {
    net::detail::scheduler& scheduler;
    ~work_finished() { scheduler.work_finished(); }
  };

  // Returns true if the reactor will tell of what comes, and nothing is left to
  // do. An edge that came while the last ones were served counts. Requires
  // mutex_.
  bool settled() const { return armed_ && done_.empty() && !edge_; }

  void disarm() {  // requires mutex_
    if (!armed_) return;
    armed_ = false;
    ::rcs_epoll_disarm(set_);
  }

  void turn() {
    clock::time_point end{};
    mutex::scoped_lock lock(mutex_);
    queued_ = false;
    if (looking_ || (settled() && !kick_)) return;
    looking_ = true;
    const std::uint64_t me = ++owner_;
    for (;;) {
      kick_ = false;
      if (operation* op = done_.front()) {
        done_.pop();
        looking_ = false;
        if (queued_ || settled()) {
          lock.unlock();
        } else {
          post_pump(lock);
        }
        {
          const work_finished after{scheduler_};
          auto* ready = static_cast<reactor_op*>(op);
          ready->complete(&scheduler_, ready->ec_, 0);
        }
        const bool stopped = scheduler_.stopped();
        const clock::time_point now = clock::now();
        if (end == clock::time_point{}) end = now + kTurn;
        lock.lock();
        // Another thread has taken over, or a run inside that handler.
        if (looking_ || owner_ != me) return;
        if (stopped || now > end) {
          if (!queued_ && !settled()) post_pump(lock);
          return;
        }
        if (settled()) return;
        looking_ = true;
        continue;
      }
      if (pending_.load(std::memory_order_relaxed) == 0) {
        disarm();
        looking_ = false;
        return;
      }
      disarm();
      const bool edge = edge_;
      edge_ = false;
      lock.unlock();
      epoll_event events[kBatch];
      int n = 0;
      bool lanes = true;
      bool over = false;
      if (edge) n = std::max(0, ::rcs_epoll_wait(set_, events, kBatch, 0));
      if (n < kBatch) {
        const int more =
            ::rcs_epoll_look(set_, events + n, kBatch - n, edge ? 0 : kIdleUs);
        lanes = more >= 0 || errno != ENODATA;
        over = more < 0 && !edge;
        n += std::max(0, more);
      }
      op_queue<operation> ready;
      for (int i = 0; i < n; ++i) run(events[i], ready);
      bool armed = false;
      // Silence, or only kernel streams: these are the reactor's.
      if (over || (edge && !lanes && n < kBatch)) {
        armed = ::rcs_epoll_arm(set_) == 0;
      }
      lock.lock();
      lanes_ = lanes;
      // Once the kernel has rung, all that it has is fetched. rcsock may ask it
      // for half a batch only, and leaves out its own descriptors.
      if (edge && (n >= kBatch / 4 || (n > 0 && lanes))) edge_ = true;
      if (armed) armed_ = true;
      done_.push(ready);
      if (!done_.empty()) continue;
      if (armed && !kick_) {
        looking_ = false;
        return;
      }
      if (n == 0 && !edge && !over) {
        looking_ = false;
        if (!queued_) post_pump(lock);
        return;
      }
    }
  }

  void run(const epoll_event& event, op_queue<operation>& ready) {
    auto* d = static_cast<descriptor*>(event.data.ptr);
    static constexpr std::uint32_t kAsked[] = {EPOLLIN, EPOLLOUT, EPOLLPRI};
    mutex::scoped_lock own(d->lock);
    for (int which = descriptor::queues - 1; which >= 0; --which) {
      if ((event.events & (kAsked[which] | EPOLLERR | EPOLLHUP)) == 0) continue;
      while (reactor_op* op = d->ops[which].front()) {
        if (!op->perform()) break;
        d->ops[which].pop();
        pending_.fetch_sub(1, std::memory_order_relaxed);
        ready.push(op);
      }
    }
  }

  net::detail::scheduler& scheduler_;
  net::detail::reactor& reactor_;
  net::detail::reactor::per_descriptor_data set_data_ = nullptr;
  int set_ = -1;
  std::atomic<int> pending_{0};  // operations in the descriptors' queues

  // Guards all that follows. Of the engine's calls, a thread makes only the
  // disarming one with it held. A thread takes it after a descriptor's, never
  // before.
  mutex mutex_;
  pump_op pump_;
  bool queued_ = false;   // pump_ is in the scheduler's queue
  bool looking_ = false;  // a thread is in the pump, and in no handler
  bool armed_ = false;
  bool kick_ = false;         // the pump has new work since it last looked
  bool edge_ = false;         // the set has become readable
  bool lanes_ = false;        // it had streams on lanes at the last look
  std::uint64_t owner_ = 0;   // the number of the turn
  op_queue<operation> done_;  // operations with results
  std::vector<std::unique_ptr<descriptor>> descriptors_;
  descriptor* free_ = nullptr;
};

// What is put into a cancellation slot; its address is the operation's key.
class cancel_op {
 public:
  cancel_op(engine_service* service, descriptor* d, int which)
      : service_(service), descriptor_(d), which_(which) {}
  void operator()(net::cancellation_type_t type) {
    if (!!(type &
           (net::cancellation_type::terminal | net::cancellation_type::partial |
            net::cancellation_type::total))) {
      service_->cancel_key(descriptor_, which_, this);
    }
  }

 private:
  engine_service* service_;
  descriptor* descriptor_;
  int which_;
};

}  // namespace rcsock::asio::detail

#endif  // RCSOCK_ASIO_ENGINE_SERVICE_HPP_
