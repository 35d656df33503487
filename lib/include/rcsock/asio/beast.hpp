#ifndef RCSOCK_ASIO_BEAST_HPP_
#define RCSOCK_ASIO_BEAST_HPP_

// Beast's WebSocket over a stream, and over TLS on a stream: include this too.
// HTTP does not need it.

#include <boost/asio/compose.hpp>
#include <boost/beast/core/role.hpp>
#include <memory>
#include <rcsock/asio/basic_stream_socket.hpp>

namespace rcsock::asio {

template <class Executor>
void beast_close_socket(basic_stream_socket<Executor>& socket) {
  boost::system::error_code ignored;
  socket.close(ignored);
}

namespace detail {

// Shuts down and reads until the peer has closed, in the order of the role.
template <class Executor>
struct teardown_op {
  basic_stream_socket<Executor>& socket;
  boost::beast::role_type role;
  std::unique_ptr<char[]> sink = nullptr;
  static constexpr std::size_t kSink = 2048;

  template <class Self>
  void operator()(Self& self) {
    boost::system::error_code ec;
    if (role == boost::beast::role_type::server) {
      socket.shutdown(net::socket_base::shutdown_send, ec);
    }
    sink.reset(new char[kSink]);
    char* to = sink.get();
    socket.async_read_some(net::buffer(to, kSink), std::move(self));
  }
  template <class Self>
  void operator()(Self& self, boost::system::error_code ec, std::size_t) {
    if (!ec) {
      char* to = sink.get();
      socket.async_read_some(net::buffer(to, kSink), std::move(self));
      return;
    }
    if (ec == net::error::eof) ec.clear();
    boost::system::error_code ignored;
    if (!ec && role == boost::beast::role_type::client) {
      socket.shutdown(net::socket_base::shutdown_send, ec);
    }
    socket.close(ignored);
    self.complete(ec);
  }
};

}  // namespace detail

template <class Executor>
void teardown(boost::beast::role_type role,
              basic_stream_socket<Executor>& socket,
              boost::system::error_code& ec) {
  boost::system::error_code ignored;
  if (role == boost::beast::role_type::server) {
    socket.shutdown(net::socket_base::shutdown_send, ec);
  }
  char sink[2048];
  do {
    socket.read_some(net::buffer(sink), ec);
  } while (!ec);
  if (ec != net::error::eof) return;
  ec.clear();
  if (role == boost::beast::role_type::client) {
    socket.shutdown(net::socket_base::shutdown_send, ec);
  }
  socket.close(ignored);
}

template <class Executor, class Handler>
void async_teardown(boost::beast::role_type role,
                    basic_stream_socket<Executor>& socket, Handler&& handler) {
  net::async_compose<Handler, void(boost::system::error_code)>(
      detail::teardown_op<Executor>{socket, role}, handler, socket);
}

}  // namespace rcsock::asio

#endif  // RCSOCK_ASIO_BEAST_HPP_
