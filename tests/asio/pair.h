#ifndef RCSOCK_TESTS_ASIO_PAIR_H_
#define RCSOCK_TESTS_ASIO_PAIR_H_

// Connected sockets of one kind: Asio's own, or rcsock's on TCP or on a lane.
// Each test runs with all of them; Asio's own say what is right.

#include <gtest/gtest.h>

#include <boost/asio.hpp>
#include <chrono>
#include <cstdlib>
#include <rcsock/asio.hpp>
#include <string>

namespace rcsock::asio_test {

namespace net = boost::asio;
using boost::system::error_code;
using net::ip::tcp;

// In a guest, the address of its device.
inline tcp::endpoint Loopback(std::uint16_t port = 0) {
  const char* rdma = std::getenv("RDMA_IP");
  if (rdma != nullptr) return {net::ip::make_address(rdma), port};
  return {net::ip::address_v4::loopback(), port};
}

// Asio's own.
struct Kernel {
  using socket = tcp::socket;
  using acceptor = tcp::acceptor;
  static void Prepare(socket&, socket&) {}
  static void Listening(acceptor&) {}
};

// rcsock's, which stay on TCP.
struct Tcp {
  using socket = rcsock::asio::stream_socket;
  using acceptor = rcsock::asio::acceptor;
  static void Listening(acceptor& a) {
    ::rcs_set_policy(a.native_handle(), RCS_POLICY_TCP);
  }
  static void Prepare(socket& a, socket& b) {
    ::rcs_set_policy(a.native_handle(), RCS_POLICY_TCP);
    ::rcs_set_policy(b.native_handle(), RCS_POLICY_TCP);
  }
};

// ... which are on a lane before the test begins.
struct Lane {
  using socket = rcsock::asio::stream_socket;
  using acceptor = rcsock::asio::acceptor;
  static void Listening(acceptor&) {}
  static void Prepare(socket& a, socket& b) {
    const auto until =
        std::chrono::steady_clock::now() + std::chrono::seconds(20);
    char byte = 'x';
    ::rcs_set_policy(a.native_handle(), RCS_POLICY_EAGER);
    ::rcs_set_policy(b.native_handle(), RCS_POLICY_EAGER);
    // A few more, so that the switch is over in both directions.
    for (int more = 0; more < 50;) {
      const int lane = std::getenv("RDMA_IP") != nullptr ? RCS_RDMA : RCS_SHM;
      if (::rcs_get_lane(a.native_handle()) == lane &&
          ::rcs_get_lane(b.native_handle()) == lane) {
        ++more;
      }
      ASSERT_LT(std::chrono::steady_clock::now(), until)
          << ::rcs_get_reason(a.native_handle());
      net::write(a, net::buffer(&byte, 1));
      net::read(b, net::buffer(&byte, 1));
      net::write(b, net::buffer(&byte, 1));
      net::read(a, net::buffer(&byte, 1));
    }
  }
};

template <class Kind>
struct Pair {
  explicit Pair(net::io_context& io)
      : Pair(io, net::any_io_executor(io.get_executor())) {}
  Pair(net::io_context& io, net::any_io_executor ex) : a(ex), b(ex) {
    typename Kind::acceptor acceptor(io, Loopback());
    a.connect(acceptor.local_endpoint());
    acceptor.accept(b);
    a.set_option(tcp::no_delay(true));
    b.set_option(tcp::no_delay(true));
    Kind::Prepare(a, b);
  }
  typename Kind::socket a, b;
};

// The kernel's own, with no room left: who connects to it waits.
class FullListener {
 public:
  FullListener() : acceptor_(io_), first_(io_) {
    acceptor_.open(tcp::v4());
    acceptor_.bind({net::ip::address_v4::loopback(), 0});
    acceptor_.listen(0);  // one
    first_.connect(acceptor_.local_endpoint());
  }
  tcp::endpoint endpoint() const { return acceptor_.local_endpoint(); }

 private:
  net::io_context io_;
  tcp::acceptor acceptor_;
  tcp::socket first_;
};

using Kinds = ::testing::Types<Kernel, Tcp, Lane>;
struct KindNames {
  template <class Kind>
  static std::string GetName(int) {
    return std::is_same_v<Kind, Kernel> ? "Kernel"
           : std::is_same_v<Kind, Tcp>  ? "Tcp"
                                        : "Lane";
  }
};

// Runs until `done`; a test that hangs fails.
template <class Done>
void RunUntil(net::io_context& io, Done&& done) {
  const auto until =
      std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!done()) {
    ASSERT_LT(std::chrono::steady_clock::now(), until);
    io.restart();
    io.run_one_for(std::chrono::milliseconds(100));
  }
}

}  // namespace rcsock::asio_test

#endif  // RCSOCK_TESTS_ASIO_PAIR_H_
