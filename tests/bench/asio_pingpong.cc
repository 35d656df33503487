// Ping-pong between two processes by Asio: over tcp::socket and over
// rcsock::asio::stream_socket, in one run.
//
// usage: asio_pingpong [BYTES [ROUNDS]]

#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <boost/asio.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <rcsock/asio.hpp>
#include <vector>

namespace net = boost::asio;
using boost::system::error_code;
using net::ip::tcp;

namespace {

template <class Socket>
class Side {
 public:
  Side(Socket socket, std::size_t bytes, int rounds, bool first)
      : socket_(std::move(socket)), data_(bytes), rounds_(rounds) {
    socket_.set_option(tcp::no_delay(true));
    if (first) {
      Write();
    } else {
      Read();
    }
  }

 private:
  void Write() {
    net::async_write(socket_, net::buffer(data_),
                     [this](error_code ec, std::size_t) {
                       if (!ec) Read();
                     });
  }
  void Read() {
    net::async_read(socket_, net::buffer(data_),
                    [this](error_code ec, std::size_t) {
                      if (!ec && --rounds_ > 0) Write();
                    });
  }
  Socket socket_;
  std::vector<char> data_;
  int rounds_;
};

// Microseconds for one round trip.
template <class Socket, class Acceptor>
double Run(std::size_t bytes, int rounds) {
  int port_pipe[2];
  if (::pipe(port_pipe) != 0) std::exit(1);
  const pid_t child = ::fork();
  if (child == 0) {
    net::io_context io;
    Acceptor acceptor(io, tcp::endpoint(net::ip::address_v4::loopback(), 0));
    const std::uint16_t port = acceptor.local_endpoint().port();
    if (::write(port_pipe[1], &port, sizeof port) != sizeof port) ::_exit(1);
    Side<Socket> side(acceptor.accept(), bytes, 1 << 30, false);
    io.run();
    ::_exit(0);
  }
  std::uint16_t port = 0;
  if (::read(port_pipe[0], &port, sizeof port) != sizeof port) std::exit(1);
  double us = 0;
  {
    net::io_context io;
    Socket socket(io);
    socket.connect(tcp::endpoint(net::ip::address_v4::loopback(), port));
    int warm = 2000;
    {
      // Enough traffic to be promoted, and a moment for it.
      std::vector<char> data(bytes);
      socket.set_option(tcp::no_delay(true));
      const auto until =
          std::chrono::steady_clock::now() + std::chrono::milliseconds(300);
      while (--warm > 0 || std::chrono::steady_clock::now() < until) {
        net::write(socket, net::buffer(data));
        net::read(socket, net::buffer(data));
      }
    }
    const auto start = std::chrono::steady_clock::now();
    Side<Socket> side(std::move(socket), bytes, rounds, true);
    io.run();
    us = std::chrono::duration<double, std::micro>(
             std::chrono::steady_clock::now() - start)
             .count() /
         rounds;
  }
  ::waitpid(child, nullptr, 0);
  ::close(port_pipe[0]);
  ::close(port_pipe[1]);
  return us;
}

}  // namespace

int main(int argc, char** argv) {
  const std::size_t bytes = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 8;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 50000;
  const double tcp_us = Run<tcp::socket, tcp::acceptor>(bytes, rounds);
  const double rcsock_us =
      Run<rcsock::asio::stream_socket, rcsock::asio::acceptor>(bytes, rounds);
  std::printf("bytes %zu  tcp_us %.3f  rcsock_us %.3f  ratio %.1f\n", bytes,
              tcp_us, rcsock_us, tcp_us / rcsock_us);
}
