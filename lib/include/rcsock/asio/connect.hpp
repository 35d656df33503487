#ifndef RCSOCK_ASIO_CONNECT_HPP_
#define RCSOCK_ASIO_CONNECT_HPP_

// Part of rcsock/asio.hpp: connects to the first of several endpoints that
// answers.

#include <boost/asio/cancellation_state.hpp>
#include <boost/asio/compose.hpp>
#include <boost/asio/connect.hpp>
#include <memory>
#include <rcsock/asio/basic_stream_socket.hpp>

namespace rcsock::asio {

namespace detail {

struct any_endpoint {
  template <class Endpoint>
  bool operator()(const boost::system::error_code&, const Endpoint&) const {
    return true;
  }
};

template <class Range>
using if_endpoints =
    std::enable_if_t<net::is_endpoint_sequence<std::decay_t<Range>>::value>;

template <class Socket, class Range, class Condition>
struct connect_op {
  Socket& socket;
  std::shared_ptr<const Range> range;  // iterators must outlive moves
  typename Range::const_iterator at;
  Condition condition;
  bool trying = false;

  template <class Self>
  void operator()(Self& self,
                  boost::system::error_code ec = net::error::not_found) {
    if (!trying) {
      trying = true;
      self.reset_cancellation_state(net::enable_partial_cancellation());
    } else {
      if (!ec) {
        typename Socket::endpoint_type reached = *at;
        return self.complete(ec, reached);
      }
      // cancel() and close() end the whole operation.
      if (ec == net::error::operation_aborted || !socket.is_open()) {
        return self.complete(net::error::operation_aborted,
                             typename Socket::endpoint_type());
      }
      ++at;
    }
    while (at != range->end() &&
           !condition(ec, typename Socket::endpoint_type(*at))) {
      ++at;
    }
    if (at == range->end()) {
      // Never complete inside the initiating function.
      return net::post(socket.get_executor(),
                       finish<Self>{std::move(self), ec});
    }
    boost::system::error_code ignored;
    socket.close(ignored);
    const typename Socket::endpoint_type to = *at;
    socket.async_connect(to, std::move(self));
  }

  template <class Self>
  struct finish {
    Self self;
    boost::system::error_code ec;
    void operator()() { self.complete(ec, typename Socket::endpoint_type()); }
  };
};

}  // namespace detail

// As boost::asio::connect and async_connect, which take Asio's own sockets
// only.
template <class Executor, class Range, class Condition,
          class = detail::if_endpoints<Range>>
typename basic_stream_socket<Executor>::endpoint_type connect(
    basic_stream_socket<Executor>& socket, const Range& range,
    Condition condition, boost::system::error_code& ec) {
  ec = net::error::not_found;
  for (const auto& entry : range) {
    const typename basic_stream_socket<Executor>::endpoint_type to = entry;
    if (!condition(ec, to)) continue;
    socket.close(ec);
    socket.connect(to, ec);
    if (!ec) return to;
  }
  return {};
}
template <class Executor, class Range, class = detail::if_endpoints<Range>>
typename basic_stream_socket<Executor>::endpoint_type connect(
    basic_stream_socket<Executor>& socket, const Range& range,
    boost::system::error_code& ec) {
  return connect(socket, range, detail::any_endpoint(), ec);
}
template <class Executor, class Range, class = detail::if_endpoints<Range>>
typename basic_stream_socket<Executor>::endpoint_type connect(
    basic_stream_socket<Executor>& socket, const Range& range) {
  boost::system::error_code ec;
  const auto reached = connect(socket, range, ec);
  net::detail::throw_error(ec, "connect");
  return reached;
}

template <class Executor, class Range, class Condition, class Token,
          class = detail::if_endpoints<Range>,
          class = std::enable_if_t<std::is_invocable_r_v<
              bool, Condition&, const boost::system::error_code&,
              const net::ip::tcp::endpoint&>>>
auto async_connect(basic_stream_socket<Executor>& socket, const Range& range,
                   Condition condition, Token&& token) {
  using socket_type = basic_stream_socket<Executor>;
  auto kept = std::make_shared<const Range>(range);
  auto begin = kept->begin();
  return net::async_compose<Token, void(boost::system::error_code,
                                        typename socket_type::endpoint_type)>(
      detail::connect_op<socket_type, Range, Condition>{
          socket, std::move(kept), begin, std::move(condition)},
      token, socket);
}
template <class Executor, class Range,
          class Token = net::default_completion_token_t<Executor>,
          class = detail::if_endpoints<Range>>
auto async_connect(basic_stream_socket<Executor>& socket, const Range& range,
                   Token&& token = Token()) {
  using socket_type = basic_stream_socket<Executor>;
  auto kept = std::make_shared<const Range>(range);
  auto begin = kept->begin();
  return net::async_compose<Token, void(boost::system::error_code,
                                        typename socket_type::endpoint_type)>(
      detail::connect_op<socket_type, Range, detail::any_endpoint>{
          socket, std::move(kept), begin, detail::any_endpoint()},
      token, socket);
}

}  // namespace rcsock::asio

#endif  // RCSOCK_ASIO_CONNECT_HPP_
