// An echo server with a thousand coroutines; half of its clients are
// tcp::socket.

#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <thread>
#include <vector>

#include "tests/asio/pair.h"

namespace rcsock::asio_test {
namespace {

using rcsock::asio::acceptor;
using rcsock::asio::stream_socket;

constexpr int kClients = 1000;
constexpr int kRounds = 20;
// A lane takes a moment: who could be on one goes on until so many rounds have
// begun on lanes.
constexpr int kLaneRounds = 2000;
constexpr int kMostRounds = 20'000;

net::awaitable<void> Echo(stream_socket socket) {
  std::vector<char> data(2048);
  error_code ec;
  for (;;) {
    const std::size_t n = co_await socket.async_read_some(
        net::buffer(data), net::redirect_error(net::use_awaitable, ec));
    if (ec) break;
    co_await net::async_write(socket, net::buffer(data, n),
                              net::redirect_error(net::use_awaitable, ec));
    if (ec) break;
  }
}

net::awaitable<void> Serve(acceptor& listener, int count) {
  for (int i = 0; i < count; ++i) {
    stream_socket peer = co_await listener.async_accept(net::use_awaitable);
    net::co_spawn(co_await net::this_coro::executor, Echo(std::move(peer)),
                  net::detached);
  }
}

template <class Socket>
net::awaitable<void> Client(tcp::endpoint to, unsigned seed,
                            std::atomic<int>& good, std::atomic<int>& on_lane) {
  Socket socket(co_await net::this_coro::executor);
  co_await socket.async_connect(to, net::use_awaitable);
  std::mt19937 random(seed);
  bool same = true;
  constexpr bool kOurs = std::is_same_v<Socket, stream_socket>;
  for (int round = 0; round < kMostRounds; ++round) {
    if constexpr (kOurs) {
      on_lane += ::rcs_get_lane(socket.native_handle()) == RCS_SHM;
    }
    if (round >= kRounds && (!kOurs || on_lane.load() >= kLaneRounds)) break;
    std::vector<char> out(1 + random() % 4000), in(out.size());
    for (char& c : out) c = static_cast<char>(random());
    co_await net::async_write(socket, net::buffer(out), net::use_awaitable);
    co_await net::async_read(socket, net::buffer(in), net::use_awaitable);
    same &= in == out;
  }
  if (same) ++good;
  socket.shutdown(tcp::socket::shutdown_both);
}

void RunEcho(int threads) {
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = std::min<rlim_t>(files.rlim_max, 16384);
  ::setrlimit(RLIMIT_NOFILE, &files);
  net::io_context io;
  acceptor listener(io, tcp::endpoint(net::ip::address_v4::loopback(), 0));
  std::atomic<int> good{0}, on_lane{0};
  net::co_spawn(io, Serve(listener, kClients), net::detached);
  for (int i = 0; i < kClients; ++i) {
    const auto seed = static_cast<unsigned>(i);
    if (i % 2 == 0) {
      net::co_spawn(
          io,
          Client<stream_socket>(listener.local_endpoint(), seed, good, on_lane),
          net::detached);
    } else {
      net::co_spawn(
          io,
          Client<tcp::socket>(listener.local_endpoint(), seed, good, on_lane),
          net::detached);
    }
  }
  std::vector<std::thread> pool;
  for (int i = 1; i < threads; ++i) pool.emplace_back([&] { io.run(); });
  io.run();
  for (auto& t : pool) t.join();
  EXPECT_EQ(good.load(), kClients);
  EXPECT_GE(on_lane.load(), kLaneRounds);
}

TEST(Echo, OneThread) { RunEcho(1); }
TEST(Echo, FourThreads) { RunEcho(4); }

}  // namespace
}  // namespace rcsock::asio_test
