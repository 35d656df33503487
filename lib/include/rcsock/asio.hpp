#ifndef RCSOCK_ASIO_HPP_
#define RCSOCK_ASIO_HPP_

// rcsock for Boost.Asio: rcsock::asio::stream_socket and acceptor in place of
// boost::asio::ip::tcp::socket and acceptor; endpoints, resolver, options and
// executors are Asio's.  Link with -lrcsock.  See docs/asio.md.
//
// Tried with Boost 1.81 (Debian 12) and 1.83 (Debian 13).

#include <rcsock/asio/basic_acceptor.hpp>
#include <rcsock/asio/basic_stream_socket.hpp>
#include <rcsock/asio/connect.hpp>

#endif  // RCSOCK_ASIO_HPP_
