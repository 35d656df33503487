#ifndef RCSOCK_ASIO_OPERATIONS_HPP_
#define RCSOCK_ASIO_OPERATIONS_HPP_

// Part of rcsock/asio.hpp: the parts of an asynchronous operation.

#include <poll.h>

#include <boost/asio/associated_cancellation_slot.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/detail/bind_handler.hpp>
#include <boost/asio/detail/buffer_sequence_adapter.hpp>
#include <boost/asio/detail/fenced_block.hpp>
#include <boost/asio/detail/handler_alloc_helpers.hpp>
#include <boost/asio/detail/handler_work.hpp>
#include <memory>
#include <rcsock/asio/engine_service.hpp>
#include <type_traits>
#include <utility>

namespace rcsock::asio::detail {

// Each of these tries once. Returns false if it would block.

template <class Buffers>
struct try_receive {
  Buffers buffers;
  int flags;
  bool operator()(int fd, error_code& ec, std::size_t& bytes) const {
    net::detail::buffer_sequence_adapter<net::mutable_buffer, Buffers> list(
        buffers);
    msghdr message{};
    message.msg_iov = list.buffers();
    message.msg_iovlen = list.count();
    for (;;) {
      const ssize_t n = ::rcs_recvmsg(fd, &message, flags | MSG_DONTWAIT);
      if (n > 0) {
        ec.clear();
        bytes = static_cast<std::size_t>(n);
        return true;
      }
      if (n == 0) {
        ec = net::error::eof;
        return true;
      }
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return false;
      ec = last_error();
      return true;
    }
  }
};

template <class Buffers>
struct try_send {
  Buffers buffers;
  int flags;
  bool operator()(int fd, error_code& ec, std::size_t& bytes) const {
    net::detail::buffer_sequence_adapter<net::const_buffer, Buffers> list(
        buffers);
    msghdr message{};
    message.msg_iov = list.buffers();
    message.msg_iovlen = list.count();
    for (;;) {
      const ssize_t n =
          ::rcs_sendmsg(fd, &message, flags | MSG_DONTWAIT | MSG_NOSIGNAL);
      if (n >= 0) {
        ec.clear();
        bytes = static_cast<std::size_t>(n);
        return true;
      }
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return false;
      ec = last_error();
      return true;
    }
  }
};

inline bool is_ready(int fd, short events) {
  pollfd one{fd, events, 0};
  return ::rcs_poll(&one, 1, 0) != 0;
}

struct try_wait {
  short events;
  bool operator()(int fd, error_code& ec, std::size_t&) const {
    if (!is_ready(fd, events)) return false;
    ec.clear();
    return true;
  }
};

inline error_code connect_result(int fd) {
  int error = 0;
  socklen_t length = sizeof error;
  if (::rcs_getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) != 0) {
    return last_error();
  }
  return error_code(error, net::error::get_system_category());
}

struct try_connect {
  bool operator()(int fd, error_code& ec, std::size_t&) const {
    if (!is_ready(fd, POLLOUT)) return false;
    ec = connect_result(fd);
    return true;
  }
};

// The handler's signature is void(error_code, size_t), or void(error_code).
template <bool WithBytes, class Try, class Handler, class IoExecutor>
class io_op : public reactor_op {
 public:
  BOOST_ASIO_DEFINE_HANDLER_PTR(io_op);

  io_op(descriptor* d, Try&& attempt, Handler& handler, const IoExecutor& ex)
      : reactor_op(error_code(), &io_op::do_perform, &io_op::do_complete),
        descriptor_(d),
        attempt_(std::move(attempt)),
        handler_(std::move(handler)),
        work_(handler_, ex) {}

  static status do_perform(reactor_op* base) {
    auto* op = static_cast<io_op*>(base);
    return op->attempt_(op->descriptor_->fd, op->ec_, op->bytes_transferred_)
               ? done
               : not_done;
  }

  static void do_complete(void* owner, operation* base, const error_code&,
                          std::size_t) {
    auto* op = static_cast<io_op*>(base);
    ptr p = {std::addressof(op->handler_), op, op};
    net::detail::handler_work<Handler, IoExecutor> work(std::move(op->work_));
    // The handler may own the memory that the operation lies in. A copy lives
    // on here while that memory is given back.
    auto bound = [op] {
      if constexpr (WithBytes) {
        return net::detail::binder2<Handler, error_code, std::size_t>(
            op->handler_, op->ec_, op->bytes_transferred_);
      } else {
        return net::detail::binder1<Handler, error_code>(op->handler_, op->ec_);
      }
    }();
    p.h = std::addressof(bound.handler_);
    p.reset();
    if (owner == nullptr) return;
    net::detail::fenced_block fence(net::detail::fenced_block::half);
    work.complete(bound, bound.handler_);
  }

 private:
  descriptor* descriptor_;
  Try attempt_;
  Handler handler_;
  net::detail::handler_work<Handler, IoExecutor> work_;
};

// Starts the operation by a try at the descriptor, or, if `finished`, ends it
// with `ec`.
template <bool WithBytes, class Try, class Handler, class IoExecutor>
void initiate(engine_service& service, descriptor* d, int which, Try attempt,
              Handler& handler, const IoExecutor& ex, bool finished = false,
              const error_code& ec = error_code()) {
  using op = io_op<WithBytes, Try, Handler, IoExecutor>;
  auto slot = net::get_associated_cancellation_slot(handler);
  typename op::ptr p = {std::addressof(handler), op::ptr::allocate(handler),
                        nullptr};
  p.p = new (p.v) op(d, std::move(attempt), handler, ex);
  reactor_op* started = p.p;
  if (d == nullptr && !finished) {
    started->ec_ = net::error::bad_descriptor;
    finished = true;
  } else {
    started->ec_ = ec;
  }
  if (finished) {
    p.v = p.p = nullptr;
    service.start_done(started);
    return;
  }
  if (slot.is_connected()) {
    started->cancellation_key_ =
        &slot.template emplace<cancel_op>(&service, d, which);
  }
  p.v = p.p = nullptr;
  service.start(d, which, started);
}

}  // namespace rcsock::asio::detail

#endif  // RCSOCK_ASIO_OPERATIONS_HPP_
