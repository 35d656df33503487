// Cancellation at every point of an operation's life.

#include <array>
#include <functional>
#include <thread>
#include <vector>

#include "tests/asio/pair.h"

namespace rcsock::asio_test {
namespace {

template <class Kind>
class Cancel : public ::testing::Test {
 protected:
  net::io_context io_;
};
TYPED_TEST_SUITE(Cancel, Kinds, KindNames);

TYPED_TEST(Cancel, BySlotOneOfSeveral) {
  Pair<TypeParam> p(this->io_);
  net::cancellation_signal signal;
  char in[3];
  std::string order;
  for (int i = 0; i < 3; ++i) {
    const auto handler = [&, i](error_code e, std::size_t) {
      order += static_cast<char>('0' + i);
      order += e == net::error::operation_aborted ? 'c' : e ? 'e' : 'r';
    };
    if (i == 1) {
      p.a.async_read_some(net::buffer(in + i, 1),
                          net::bind_cancellation_slot(signal.slot(), handler));
    } else {
      p.a.async_read_some(net::buffer(in + i, 1), handler);
    }
  }
  this->io_.poll();
  signal.emit(net::cancellation_type::total);
  RunUntil(this->io_, [&] { return order == "1c"; });
  net::write(p.b, net::buffer("ab", 2));
  RunUntil(this->io_, [&] { return order.size() == 6; });
  EXPECT_EQ(order, "1c0r2r");
  EXPECT_EQ(in[0], 'a');
  EXPECT_EQ(in[2], 'b');
  signal.emit(net::cancellation_type::total);  // over: nothing to cancel
  this->io_.poll();
}

// Each kind of cancellation, at each moment, for each kind of operation: the
// handler runs once, with operation_aborted or with the result.
TYPED_TEST(Cancel, AtEveryPoint) {
  enum When { kInside, kBeforeRun, kWaiting, kWithData, kAfter, kMoments };
  enum How { kSlot, kSocket, kClose, kHows };
  enum What { kRead, kWait, kWrite, kWhats };
  for (int when = 0; when < kMoments; ++when) {
    for (int how = 0; how < kHows; ++how) {
      for (int what = 0; what < kWhats; ++what) {
        SCOPED_TRACE(std::to_string(when) + std::to_string(how) +
                     std::to_string(what));
        net::io_context io;
        Pair<TypeParam> p(io);
        net::cancellation_signal signal;
        std::array<char, 16> in;
        std::vector<char> much(1 << 20);
        int calls = 0;
        error_code got;
        const auto handler = [&] {
          return net::bind_cancellation_slot(signal.slot(),
                                             [&](error_code e, auto...) {
                                               ++calls;
                                               got = e;
                                             });
        };
        const auto cancel = [&] {
          error_code ignored;
          if (how == kSlot) signal.emit(net::cancellation_type::terminal);
          if (how == kSocket) p.a.cancel(ignored);
          if (how == kClose) p.a.close(ignored);
          EXPECT_EQ(calls, when == kAfter ? 1 : 0);
        };
        const auto start = [&] {
          if (what == kRead) p.a.async_read_some(net::buffer(in), handler());
          if (what == kWait) p.a.async_wait(tcp::socket::wait_read, handler());
          if (what == kWrite)
            p.a.async_write_some(net::buffer(much), handler());
        };
        if (what == kWrite) {
          // No room, so that it waits; what the kernel acknowledges late
          // makes some again.
          p.a.non_blocking(true);
          pollfd room{p.a.native_handle(), POLLOUT, 0};
          do {
            error_code ec;
            while (!ec) p.a.write_some(net::buffer(much), ec);
            ASSERT_EQ(ec, net::error::would_block);
          } while (::rcs_poll(&room, 1, 10) > 0);
        }
        std::vector<char> sink(1 << 20);
        const auto let = [&] {
          if (what != kWrite) {
            net::write(p.b, net::buffer("x", 1));
          } else {
            error_code ec;
            p.b.non_blocking(true);
            for (int i = 0; i < 64; ++i) p.b.read_some(net::buffer(sink), ec);
          }
        };
        if (when == kInside) {
          // From a handler, in the same breath.
          net::post(io, [&] {
            start();
            cancel();
          });
        } else {
          start();
          if (when == kWaiting) io.run_for(std::chrono::milliseconds(1));
          if (when == kWithData) let();
          if (when == kAfter) {
            let();
            RunUntil(io, [&] {
              if (calls == 0) let();
              return calls == 1;
            });
            EXPECT_FALSE(got);
          }
          cancel();
        }
        RunUntil(io, [&] { return calls == 1; });
        if (when == kBeforeRun || when == kWaiting || when == kInside) {
          EXPECT_EQ(got, net::error::operation_aborted);
        } else if (got) {
          EXPECT_EQ(got, net::error::operation_aborted);
        }
        io.restart();
        io.run_for(std::chrono::milliseconds(1));
        EXPECT_EQ(calls, 1);
        // What was not taken is still there.
        if (when == kWithData && what == kRead && how != kClose && got) {
          EXPECT_EQ(p.a.read_some(net::buffer(in)), 1u);
        }
      }
    }
  }
}

TYPED_TEST(Cancel, FromAnotherThreadWhileDataFlow) {
  Pair<TypeParam> p(this->io_);
  auto strand = net::make_strand(this->io_);
  std::size_t got = 0;
  bool over = false;
  std::array<char, 64> in;
  std::function<void()> read = [&] {
    p.a.async_read_some(
        net::buffer(in),
        net::bind_executor(strand, [&](error_code e, std::size_t n) {
          got += n;
          over = e && e != net::error::operation_aborted;
          if (!over) read();
        }));
  };
  net::post(strand, read);
  std::thread run([&] { this->io_.run(); });
  std::size_t sent = 0;
  for (int i = 0; i < 3000; ++i) {
    sent += p.b.write_some(net::buffer("abcdefg", 7));
    net::post(strand, [&] { p.a.cancel(); });
  }
  p.b.shutdown(tcp::socket::shutdown_send);
  run.join();
  EXPECT_EQ(got, sent);
  EXPECT_TRUE(over);
}

TYPED_TEST(Cancel, SlotOfABlockedWrite) {
  Pair<TypeParam> p(this->io_);
  net::cancellation_signal signal;
  std::vector<char> much(64 << 20);
  error_code got;
  std::size_t sent = 0;
  net::async_write(p.a, net::buffer(much),
                   net::bind_cancellation_slot(
                       signal.slot(), [&](error_code e, std::size_t n) {
                         got = e;
                         sent = n;
                       }));
  this->io_.run_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(got);
  signal.emit(net::cancellation_type::partial);
  this->io_.run();
  EXPECT_EQ(got, net::error::operation_aborted);
  p.a.close();
  std::size_t received = 0;
  error_code ec;
  std::vector<char> in(1 << 20);
  while (!ec) received += p.b.read_some(net::buffer(in), ec);
  EXPECT_EQ(received, sent);
}

TYPED_TEST(Cancel, AcceptAndConnect) {
  typename TypeParam::acceptor acceptor(this->io_, Loopback());
  net::cancellation_signal signal;
  error_code accepted;
  acceptor.async_accept(net::bind_cancellation_slot(
      signal.slot(),
      [&](error_code e, typename TypeParam::socket) { accepted = e; }));
  this->io_.poll();
  signal.emit(net::cancellation_type::terminal);
  this->io_.restart();
  this->io_.run();
  EXPECT_EQ(accepted, net::error::operation_aborted);
  accepted.clear();
  typename TypeParam::socket peer(this->io_);
  acceptor.async_accept(peer, [&](error_code e) { accepted = e; });
  acceptor.cancel();
  this->io_.restart();
  this->io_.run();
  EXPECT_EQ(accepted, net::error::operation_aborted);
  accepted.clear();
  acceptor.async_accept(peer, [&](error_code e) { accepted = e; });
  acceptor.close();
  this->io_.restart();
  this->io_.run();
  EXPECT_EQ(accepted, net::error::operation_aborted);
  const FullListener full;
  typename TypeParam::socket s(this->io_);
  error_code connected;
  s.async_connect(full.endpoint(), [&](error_code e) { connected = e; });
  this->io_.restart();
  this->io_.poll();
  EXPECT_FALSE(connected);
  s.close();
  this->io_.restart();
  this->io_.run();
  EXPECT_EQ(connected, net::error::operation_aborted);
}

}  // namespace
}  // namespace rcsock::asio_test
