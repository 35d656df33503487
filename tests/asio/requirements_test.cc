// Asio's documented requirements of streams, one by one.

#include <sys/ioctl.h>

#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/beast/core/stream_traits.hpp>
#include <future>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "tests/asio/pair.h"

namespace rcsock::asio_test {
namespace {

namespace beast = boost::beast;
using rcsock::asio::stream_socket;

// --- What can be said by types

static_assert(beast::is_sync_read_stream<stream_socket>::value);
static_assert(beast::is_sync_write_stream<stream_socket>::value);
static_assert(beast::is_async_read_stream<stream_socket>::value);
static_assert(beast::is_async_write_stream<stream_socket>::value);
static_assert(beast::has_get_executor<stream_socket>::value);
static_assert(std::is_same_v<stream_socket::lowest_layer_type, stream_socket>);
static_assert(std::is_same_v<stream_socket::protocol_type, tcp>);
static_assert(std::is_nothrow_move_constructible_v<stream_socket>);
static_assert(!std::is_copy_constructible_v<stream_socket>);
static_assert(std::is_move_assignable_v<stream_socket>);
using strand_socket = rcsock::asio::basic_stream_socket<
    net::strand<net::io_context::executor_type>>;
static_assert(
    std::is_same_v<stream_socket::rebind_executor<
                       net::strand<net::io_context::executor_type>>::other,
                   strand_socket>);

template <class Kind>
class Stream : public ::testing::Test {
 protected:
  net::io_context io_;
};
TYPED_TEST_SUITE(Stream, Kinds, KindNames);

TYPED_TEST(Stream, SyncReadAndWrite) {
  Pair<TypeParam> p(this->io_);
  std::vector<net::const_buffer> out{net::buffer("hel", 3),
                                     net::buffer("lo", 2)};
  EXPECT_EQ(p.a.write_some(out), 5u);
  char first[3], second[7];
  std::vector<net::mutable_buffer> in{net::buffer(first), net::buffer(second)};
  std::size_t n = 0;
  while (n < 5)
    n += p.b.read_some(n < 3 ? in
                             : std::vector<net::mutable_buffer>{
                                   net::buffer(second) + (n - 3)});
  EXPECT_EQ(std::string(first, 3) + std::string(second, 2), "hello");
}

TYPED_TEST(Stream, EmptyBuffers) {
  Pair<TypeParam> p(this->io_);
  error_code ec = net::error::fault;
  EXPECT_EQ(p.a.read_some(net::mutable_buffer(), ec), 0u);
  EXPECT_FALSE(ec);
  EXPECT_EQ(p.a.write_some(net::const_buffer(), ec), 0u);
  EXPECT_FALSE(ec);
  int calls = 0;
  const auto handler = [&](error_code e, std::size_t n) {
    EXPECT_FALSE(e);
    EXPECT_EQ(n, 0u);
    ++calls;
  };
  p.a.async_read_some(net::mutable_buffer(), handler);
  p.a.async_write_some(net::const_buffer(), handler);
  EXPECT_EQ(calls, 0);
  this->io_.run();
  EXPECT_EQ(calls, 2);
}

TYPED_TEST(Stream, EndOfFile) {
  Pair<TypeParam> p(this->io_);
  net::write(p.a, net::buffer("bye", 3));
  p.a.shutdown(tcp::socket::shutdown_send);
  char in[8];
  error_code ec;
  EXPECT_EQ(net::read(p.b, net::buffer(in), ec), 3u);
  EXPECT_EQ(ec, net::error::eof);
  error_code async_ec;
  p.b.async_read_some(net::buffer(in),
                      [&](error_code e, std::size_t) { async_ec = e; });
  this->io_.run();
  EXPECT_EQ(async_ec, net::error::eof);
  EXPECT_THROW(p.b.read_some(net::buffer(in)), boost::system::system_error);
}

TYPED_TEST(Stream, HandlersNeverRunInsideTheInitiatingCall) {
  Pair<TypeParam> p(this->io_);
  net::write(p.b, net::buffer("xy", 2));
  p.a.wait(tcp::socket::wait_read);
  bool inside = false;
  int calls = 0;
  const auto count = [&](auto...) {
    EXPECT_FALSE(inside);
    ++calls;
  };
  char in[1], other[1];
  typename TypeParam::socket closed(this->io_);
  const auto all = [&] {
    inside = true;
    p.a.async_read_some(net::buffer(in), count);       // there is something
    p.a.async_write_some(net::buffer("z", 1), count);  // there is room
    p.a.async_wait(tcp::socket::wait_write, count);    // is ready
    p.b.async_read_some(net::buffer(other), count);
    closed.async_read_some(net::buffer(other), count);  // fails at once
    closed.async_write_some(net::buffer(other), count);
    closed.async_wait(tcp::socket::wait_read, count);
    inside = false;
  };
  all();
  EXPECT_EQ(calls, 0);
  this->io_.run();
  EXPECT_EQ(calls, 7);
  // Neither from a handler.
  this->io_.restart();
  net::post(this->io_, all);
  this->io_.run();
  EXPECT_EQ(calls, 14);
}

TYPED_TEST(Stream, ClosedSocket) {
  typename TypeParam::socket s(this->io_);
  EXPECT_FALSE(s.is_open());
  error_code ec;
  char in[4];
  EXPECT_EQ(s.read_some(net::buffer(in), ec), 0u);
  EXPECT_EQ(ec, net::error::bad_descriptor);
  EXPECT_EQ(s.write_some(net::buffer(in), ec), 0u);
  EXPECT_EQ(ec, net::error::bad_descriptor);
  s.shutdown(tcp::socket::shutdown_both, ec);
  EXPECT_EQ(ec, net::error::bad_descriptor);
  s.local_endpoint(ec);
  EXPECT_EQ(ec, net::error::bad_descriptor);
  s.remote_endpoint(ec);
  EXPECT_EQ(ec, net::error::bad_descriptor);
  s.set_option(tcp::no_delay(true), ec);
  EXPECT_EQ(ec, net::error::bad_descriptor);
  s.available(ec);
  EXPECT_EQ(ec, net::error::bad_descriptor);
  s.cancel(ec);
  EXPECT_EQ(ec, net::error::bad_descriptor);
  s.non_blocking(true, ec);
  EXPECT_EQ(ec, net::error::bad_descriptor);
  s.close(ec);
  EXPECT_FALSE(ec);
  error_code got;
  s.async_read_some(net::buffer(in),
                    [&](error_code e, std::size_t) { got = e; });
  this->io_.run();
  EXPECT_EQ(got, net::error::bad_descriptor);
  // An empty buffer changes nothing of that.
  this->io_.restart();
  got.clear();
  s.async_read_some(net::mutable_buffer(),
                    [&](error_code e, std::size_t) { got = e; });
  this->io_.run();
  EXPECT_EQ(got, net::error::bad_descriptor);
}

TYPED_TEST(Stream, OpenTwice) {
  typename TypeParam::socket s(this->io_, tcp::v4());
  error_code ec;
  s.open(tcp::v4(), ec);
  EXPECT_EQ(ec, net::error::already_open);
  EXPECT_THROW(s.open(tcp::v6()), boost::system::system_error);
}

TYPED_TEST(Stream, NonBlocking) {
  Pair<TypeParam> p(this->io_);
  p.a.non_blocking(true);
  EXPECT_TRUE(p.a.non_blocking());
  error_code ec;
  char in[4];
  EXPECT_EQ(p.a.read_some(net::buffer(in), ec), 0u);
  EXPECT_EQ(ec, net::error::would_block);
  p.a.native_non_blocking(false, ec);
  EXPECT_EQ(ec, net::error::invalid_argument);
  // Asynchronous operations wait all the same.
  error_code got = net::error::fault;
  p.a.async_read_some(net::buffer(in),
                      [&](error_code e, std::size_t) { got = e; });
  net::write(p.b, net::buffer("q", 1));
  this->io_.run();
  EXPECT_FALSE(got);
  std::vector<char> much(1 << 16);
  std::size_t sent = 0;
  do {
    sent += p.a.write_some(net::buffer(much), ec);
  } while (!ec && sent < (64u << 20));
  EXPECT_EQ(ec, net::error::would_block);
}

TYPED_TEST(Stream, SynchronousCallsBlockAfterAsynchronousOnes) {
  Pair<TypeParam> p(this->io_);
  char in[4];
  p.a.async_read_some(net::buffer(in), [](error_code, std::size_t) {});
  net::write(p.b, net::buffer("q", 1));
  this->io_.run();
  EXPECT_FALSE(p.a.non_blocking());
  std::thread later([&] {
    p.b.wait(tcp::socket::wait_read);
    net::write(p.b, net::buffer("r", 1));
  });
  net::write(p.a, net::buffer("s", 1));
  EXPECT_EQ(p.a.read_some(net::buffer(in)), 1u);
  later.join();
}

TYPED_TEST(Stream, EndpointsAndOptions) {
  Pair<TypeParam> p(this->io_);
  EXPECT_EQ(p.a.local_endpoint(), p.b.remote_endpoint());
  EXPECT_EQ(p.a.remote_endpoint(), p.b.local_endpoint());
  tcp::no_delay delay;
  p.a.get_option(delay);
  EXPECT_TRUE(delay.value());
  p.a.set_option(tcp::socket::keep_alive(true));
  tcp::socket::keep_alive alive;
  p.a.get_option(alive);
  EXPECT_TRUE(alive.value());
  p.a.set_option(tcp::socket::linger(true, 3));
  tcp::socket::linger linger;
  p.a.get_option(linger);
  EXPECT_TRUE(linger.enabled());
  EXPECT_EQ(linger.timeout(), 3);
  net::write(p.b, net::buffer("abc", 3));
  p.a.wait(tcp::socket::wait_read);
  EXPECT_EQ(p.a.available(), 3u);
  tcp::socket::bytes_readable readable;
  p.a.io_control(readable);
  EXPECT_EQ(readable.get(), 3u);
  EXPECT_FALSE(p.a.at_mark());
}

TYPED_TEST(Stream, Wait) {
  Pair<TypeParam> p(this->io_);
  int calls = 0;
  p.a.async_wait(tcp::socket::wait_read, [&](error_code e) {
    EXPECT_FALSE(e);
    ++calls;
  });
  p.a.async_wait(tcp::socket::wait_write, [&](error_code e) {
    EXPECT_FALSE(e);
    calls += 10;
  });
  RunUntil(this->io_, [&] { return calls >= 10; });
  this->io_.poll();
  EXPECT_EQ(calls, 10);
  net::write(p.b, net::buffer("abc", 3));
  RunUntil(this->io_, [&] { return calls == 11; });
  EXPECT_EQ(p.a.available(), 3u);  // nothing was taken
}

TYPED_TEST(Stream, ReadsAreServedInOrder) {
  Pair<TypeParam> p(this->io_);
  char in[3];
  std::string order;
  for (int i = 0; i < 3; ++i) {
    p.a.async_read_some(net::buffer(in + i, 1),
                        [&, i](error_code e, std::size_t n) {
                          EXPECT_FALSE(e);
                          EXPECT_EQ(n, 1u);
                          order += static_cast<char>('0' + i);
                        });
  }
  net::write(p.b, net::buffer("abc", 3));
  this->io_.run();
  EXPECT_EQ(order, "012");
  EXPECT_EQ(std::string(in, 3), "abc");
}

TYPED_TEST(Stream, FullDuplexBulk) {
  Pair<TypeParam> p(this->io_);
  std::vector<char> out(8 << 20), in_a(out.size()), in_b(out.size());
  for (std::size_t i = 0; i < out.size(); ++i)
    out[i] = static_cast<char>(i * 7 + i / 511);
  int done = 0;
  const auto finish = [&](error_code e, std::size_t n) {
    EXPECT_FALSE(e);
    EXPECT_EQ(n, out.size());
    ++done;
  };
  net::async_write(p.a, net::buffer(out), finish);
  net::async_write(p.b, net::buffer(out), finish);
  net::async_read(p.a, net::buffer(in_a), finish);
  net::async_read(p.b, net::buffer(in_b), finish);
  this->io_.run();
  EXPECT_EQ(done, 4);
  EXPECT_TRUE(in_a == out);
  EXPECT_TRUE(in_b == out);
}

TYPED_TEST(Stream, MovedWhileAnOperationWaits) {
  Pair<TypeParam> p(this->io_);
  char in[4];
  bool done = false;
  p.a.async_read_some(net::buffer(in), [&](error_code e, std::size_t) {
    EXPECT_FALSE(e);
    done = true;
  });
  typename TypeParam::socket moved(std::move(p.a));
  EXPECT_FALSE(p.a.is_open());
  typename TypeParam::socket again(this->io_);
  again = std::move(moved);
  net::write(p.b, net::buffer("m", 1));
  this->io_.run();
  EXPECT_TRUE(done);
  EXPECT_EQ(in[0], 'm');
}

TYPED_TEST(Stream, AssociatedExecutor) {
  Pair<TypeParam> p(this->io_);
  net::io_context other;
  bool done = false;
  char in[4];
  p.a.async_read_some(
      net::buffer(in), net::bind_executor(other, [&](error_code, std::size_t) {
        EXPECT_TRUE(other.get_executor().running_in_this_thread());
        done = true;
      }));
  net::write(p.b, net::buffer("m", 1));
  // Its work counts there while the operation waits.
  RunUntil(other, [&] {
    this->io_.poll();
    return done;
  });
}

TYPED_TEST(Stream, Strand) {
  // Handlers of one strand never overlap, in a context of several threads.
  auto strand = net::make_strand(this->io_);
  Pair<TypeParam> p(this->io_, strand);
  char in_a[1], in_b[1];
  int rounds = 0;
  std::atomic<int> within{0};
  std::function<void()> next_a, next_b;
  const auto enter = [&] { EXPECT_EQ(within.fetch_add(1), 0); };
  const auto leave = [&] { within.fetch_sub(1); };
  next_b = [&] {
    p.b.async_read_some(net::buffer(in_b), [&](error_code e, std::size_t) {
      enter();
      if (!e) {
        net::async_write(p.b, net::buffer(in_b),
                         [](error_code, std::size_t) {});
        next_b();
      }
      leave();
    });
  };
  next_a = [&] {
    net::async_write(p.a, net::buffer("x", 1), [&](error_code, std::size_t) {
      enter();
      p.a.async_read_some(net::buffer(in_a), [&](error_code, std::size_t) {
        enter();
        if (++rounds < 500) {
          next_a();
        } else {
          p.b.cancel();
        }
        leave();
      });
      leave();
    });
  };
  net::post(strand, [&] {
    next_b();
    next_a();
  });
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back([&] { this->io_.run(); });
  for (auto& t : threads) t.join();
  EXPECT_EQ(rounds, 500);
}

TYPED_TEST(Stream, Futures) {
  Pair<TypeParam> p(this->io_);
  char in[3];
  auto read = net::async_read(p.a, net::buffer(in), net::use_future);
  auto write = net::async_write(p.b, net::buffer("abc", 3), net::use_future);
  this->io_.run();
  EXPECT_EQ(write.get(), 3u);
  EXPECT_EQ(read.get(), 3u);
  this->io_.restart();
  p.a.shutdown(tcp::socket::shutdown_send);
  auto end = p.b.async_read_some(net::buffer(in), net::use_future);
  this->io_.run();
  EXPECT_THROW(end.get(), boost::system::system_error);
}

TYPED_TEST(Stream, Coroutines) {
  using namespace net::experimental::awaitable_operators;
  Pair<TypeParam> p(this->io_);
  std::string got;
  const auto talk = [&]() -> net::awaitable<void> {
    char in[4];
    co_await net::async_write(p.a, net::buffer("ping", 4), net::use_awaitable);
    co_await net::async_read(p.b, net::buffer(in), net::use_awaitable);
    got.assign(in, 4);
    net::steady_timer timer(co_await net::this_coro::executor,
                            std::chrono::milliseconds(20));
    // The loser of an `or` is cancelled by its slot.
    auto winner =
        co_await (p.a.async_read_some(net::buffer(in), net::use_awaitable) ||
                  timer.async_wait(net::use_awaitable));
    EXPECT_EQ(winner.index(), 1u);
    co_await net::async_write(p.b, net::buffer("x", 1), net::use_awaitable);
    EXPECT_EQ(co_await p.a.async_read_some(net::buffer(in), net::use_awaitable),
              1u);
  };
  std::exception_ptr failed;
  net::co_spawn(this->io_, talk(), [&](std::exception_ptr e) { failed = e; });
  this->io_.run();
  EXPECT_FALSE(failed);
  EXPECT_EQ(got, "ping");
}

TYPED_TEST(Stream, HandlerThatThrows) {
  Pair<TypeParam> p(this->io_);
  char in[1], other[1];
  bool second = false;
  p.a.async_read_some(net::buffer(in), [](error_code, std::size_t) {
    throw std::runtime_error("from a handler");
  });
  p.b.async_read_some(net::buffer(other),
                      [&](error_code, std::size_t) { second = true; });
  net::write(p.a, net::buffer("x", 1));
  net::write(p.b, net::buffer("x", 1));
  bool thrown = false;
  for (int i = 0; i < 2; ++i) {
    try {
      this->io_.run();
    } catch (const std::runtime_error&) {
      thrown = true;
    }
  }
  EXPECT_TRUE(thrown);
  EXPECT_TRUE(second);
}

TYPED_TEST(Stream, HandlerThatRunsTheContextItself) {
  Pair<TypeParam> p(this->io_);
  char in[1], other[1];
  bool inner = false, outer = false;
  p.a.async_read_some(net::buffer(in), [&](error_code, std::size_t) {
    p.b.async_read_some(net::buffer(other),
                        [&](error_code, std::size_t) { inner = true; });
    net::async_write(p.a, net::buffer("x", 1), [](error_code, std::size_t) {});
    RunUntil(this->io_, [&] { return inner; });
    outer = true;
  });
  net::write(p.b, net::buffer("x", 1));
  RunUntil(this->io_, [&] { return outer; });
}

TYPED_TEST(Stream, ALongHandlerHoldsNobodyUp) {
  Pair<TypeParam> p(this->io_);
  Pair<TypeParam> q(this->io_);
  char in[1], other[1];
  std::promise<void> served;
  bool in_time = false;
  p.a.async_read_some(net::buffer(in), [&](error_code, std::size_t) {
    net::write(q.b, net::buffer("x", 1));
    in_time = served.get_future().wait_for(std::chrono::seconds(10)) ==
              std::future_status::ready;
  });
  q.a.async_read_some(net::buffer(other),
                      [&](error_code, std::size_t) { served.set_value(); });
  net::write(p.b, net::buffer("x", 1));
  std::thread second([&] { this->io_.run(); });
  this->io_.run();
  second.join();
  EXPECT_TRUE(in_time);
}

TYPED_TEST(Stream, StopAndRestart) {
  Pair<TypeParam> p(this->io_);
  char in[1], other[1];
  int calls = 0;
  p.a.async_read_some(net::buffer(in), [&](error_code, std::size_t) {
    ++calls;
    this->io_.stop();
  });
  p.b.async_read_some(net::buffer(other), [&](error_code, std::size_t) {
    ++calls;
    this->io_.stop();
  });
  net::write(p.a, net::buffer("x", 1));
  net::write(p.b, net::buffer("x", 1));
  this->io_.run();
  EXPECT_EQ(calls, 1);
  this->io_.restart();
  this->io_.run();
  EXPECT_EQ(calls, 2);
}

TYPED_TEST(Stream, OtherHandlersGetTheirTurn) {
  Pair<TypeParam> p(this->io_);
  // A ping-pong that never ends, and beside it a timer and posted handlers.
  char in_a[1], in_b[1];
  bool over = false;
  std::function<void()> ping, pong;
  ping = [&] {
    net::async_write(p.a, net::buffer("x", 1), [&](error_code, std::size_t) {
      p.a.async_read_some(net::buffer(in_a), [&](error_code e, std::size_t) {
        if (!e && !over) ping();
      });
    });
  };
  pong = [&] {
    p.b.async_read_some(net::buffer(in_b), [&](error_code e, std::size_t) {
      if (e) return;
      net::async_write(p.b, net::buffer("x", 1), [&](error_code, std::size_t) {
        if (!over) pong();
      });
    });
  };
  ping();
  pong();
  net::steady_timer timer(this->io_, std::chrono::milliseconds(30));
  timer.async_wait([&](error_code) {
    net::post(this->io_, [&] {
      over = true;
      p.a.close();
      p.b.close();
    });
  });
  RunUntil(this->io_, [&] { return over; });
  this->io_.restart();
  this->io_.run_for(std::chrono::seconds(10));
  EXPECT_TRUE(this->io_.stopped());
}

TYPED_TEST(Stream, ContextThatEndsWithOperationsWaiting) {
  // Their handlers are destroyed, not called; what they own goes with them.
  auto token = std::make_shared<int>(0);
  {
    net::io_context io;
    auto p = std::make_shared<Pair<TypeParam>>(io);
    auto in = std::make_shared<std::array<char, 4>>();
    p->a.async_read_some(net::buffer(*in),
                         [p, in, token](error_code, std::size_t) { FAIL(); });
    p->b.async_wait(tcp::socket::wait_read, [p, token](error_code) { FAIL(); });
    io.poll();
  }
  EXPECT_EQ(token.use_count(), 1);
}

TYPED_TEST(Stream, RunReturnsWhenNothingIsLeft) {
  Pair<TypeParam> p(this->io_);
  this->io_.run();
  this->io_.restart();
  char in[1];
  p.a.async_read_some(net::buffer(in), [](error_code, std::size_t) {});
  this->io_.run_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(this->io_.stopped());  // it waits
  p.a.close();
  this->io_.run_for(std::chrono::seconds(10));
  EXPECT_TRUE(this->io_.stopped());
}

TYPED_TEST(Stream, ReleaseAndAssign) {
  Pair<TypeParam> p(this->io_);
  error_code got;
  char in[4];
  p.a.async_read_some(net::buffer(in),
                      [&](error_code e, std::size_t) { got = e; });
  const int fd = p.a.release();
  EXPECT_FALSE(p.a.is_open());
  this->io_.run();
  EXPECT_EQ(got, net::error::operation_aborted);
  typename TypeParam::socket again(this->io_, tcp::v4(), fd);
  net::write(p.b, net::buffer("r", 1));
  EXPECT_EQ(again.read_some(net::buffer(in)), 1u);
}

TYPED_TEST(Stream, ResetByPeer) {
  Pair<TypeParam> p(this->io_);
  error_code got;
  char in[4];
  p.a.async_read_some(net::buffer(in),
                      [&](error_code e, std::size_t) { got = e; });
  p.b.set_option(tcp::socket::linger(true, 0));
  p.b.close();
  this->io_.run();
  EXPECT_EQ(got, net::error::connection_reset);
}

TYPED_TEST(Stream, ReadUntilAndDynamicBuffers) {
  Pair<TypeParam> p(this->io_);
  std::string line;
  net::async_read_until(p.a, net::dynamic_buffer(line), '\n',
                        [](error_code e, std::size_t n) {
                          EXPECT_FALSE(e);
                          EXPECT_EQ(n, 6u);
                        });
  net::write(p.b, net::buffer("hello\nrest", 10));
  this->io_.run();
  EXPECT_EQ(line.substr(0, 6), "hello\n");
}

TYPED_TEST(Stream, ThreadPool) {
  net::thread_pool pool(2);
  typename TypeParam::acceptor acceptor(pool, Loopback());
  typename TypeParam::socket a(pool), b(pool);
  a.connect(acceptor.local_endpoint());
  acceptor.accept(b);
  TypeParam::Prepare(a, b);
  char in[4];
  auto read = net::async_read(a, net::buffer(in), net::use_future);
  auto write = net::async_write(b, net::buffer("pool", 4), net::use_future);
  EXPECT_EQ(write.get(), 4u);
  EXPECT_EQ(read.get(), 4u);
  EXPECT_EQ(std::string(in, 4), "pool");
}

}  // namespace
}  // namespace rcsock::asio_test
