// To connect and to accept.

#include <array>
#include <set>
#include <thread>
#include <vector>

#include "tests/asio/pair.h"

namespace rcsock::asio_test {
namespace {

template <class Kind>
class Connect : public ::testing::Test {
 protected:
  net::io_context io_;
};
TYPED_TEST_SUITE(Connect, Kinds, KindNames);

// A port that nobody listens on.
std::uint16_t Dead(net::io_context& io) {
  return tcp::acceptor(io, Loopback()).local_endpoint().port();
}

TYPED_TEST(Connect, Refused) {
  typename TypeParam::socket s(this->io_);
  error_code ec;
  s.connect(Loopback(Dead(this->io_)), ec);
  EXPECT_EQ(ec, net::error::connection_refused);
  typename TypeParam::socket t(this->io_);
  bool inside = true;
  t.async_connect(Loopback(Dead(this->io_)), [&](error_code e) {
    EXPECT_FALSE(inside);
    EXPECT_EQ(e, net::error::connection_refused);
    ec.clear();
  });
  inside = false;
  this->io_.run();
  EXPECT_FALSE(ec);
}

TYPED_TEST(Connect, Range) {
  typename TypeParam::acceptor acceptor(this->io_, Loopback());
  std::vector<tcp::endpoint> ends{Loopback(Dead(this->io_)),
                                  acceptor.local_endpoint(),
                                  Loopback(Dead(this->io_))};
  typename TypeParam::socket s(this->io_), peer(this->io_);
  bool inside = true;
  int calls = 0;
  async_connect(s, ends, [&](error_code e, tcp::endpoint to) {
    EXPECT_FALSE(inside);
    EXPECT_FALSE(e);
    EXPECT_EQ(to, ends[1]);
    ++calls;
  });
  inside = false;
  acceptor.async_accept(peer, [&](error_code e) {
    EXPECT_FALSE(e);
    ++calls;
  });
  this->io_.run();
  EXPECT_EQ(calls, 2);
  EXPECT_EQ(s.remote_endpoint(), ends[1]);

  // All refused, none there, none wanted.
  std::vector<tcp::endpoint> dead{ends[0], ends[2]};
  error_code got;
  const auto keep = [&](error_code e, tcp::endpoint to) {
    got = e;
    EXPECT_EQ(to, tcp::endpoint());
  };
  async_connect(s, dead, keep);
  this->io_.restart();
  this->io_.run();
  EXPECT_EQ(got, net::error::connection_refused);
  async_connect(s, std::vector<tcp::endpoint>(), keep);
  this->io_.restart();
  this->io_.run();
  EXPECT_EQ(got, net::error::not_found);
  async_connect(
      s, ends, [](error_code, const tcp::endpoint&) { return false; }, keep);
  this->io_.restart();
  this->io_.run();
  EXPECT_EQ(got, net::error::not_found);
  EXPECT_EQ(connect(s, ends), ends[1]);
  EXPECT_THROW(connect(s, dead), boost::system::system_error);
}

TYPED_TEST(Connect, Resolver) {
  typename TypeParam::acceptor acceptor(this->io_, Loopback());
  tcp::resolver resolver(this->io_);
  bool connected = false;
  const auto talk = [&]() -> net::awaitable<void> {
    auto found = co_await resolver.async_resolve(
        "127.0.0.1", std::to_string(acceptor.local_endpoint().port()),
        net::use_awaitable);
    typename TypeParam::socket s(co_await net::this_coro::executor);
    auto to = co_await async_connect(s, found, net::use_awaitable);
    EXPECT_EQ(to, acceptor.local_endpoint());
    connected = true;
  };
  net::co_spawn(this->io_, talk(), net::detached);
  RunUntil(this->io_, [&] { return connected; });
}

TYPED_TEST(Connect, CancelledRange) {
  typename TypeParam::socket s(this->io_);
  const FullListener full;
  std::vector<tcp::endpoint> ends(3, full.endpoint());
  net::cancellation_signal signal;
  error_code got;
  async_connect(
      s, ends,
      net::bind_cancellation_slot(
          signal.slot(), [&](error_code e, tcp::endpoint) { got = e; }));
  this->io_.poll();
  EXPECT_FALSE(got);
  signal.emit(net::cancellation_type::terminal);
  this->io_.restart();
  this->io_.run();
  EXPECT_EQ(got, net::error::operation_aborted);
}

TYPED_TEST(Connect, AcceptInManyWays) {
  typename TypeParam::acceptor acceptor(this->io_, Loopback());
  const tcp::endpoint at = acceptor.local_endpoint();
  std::vector<typename TypeParam::socket> clients;
  const auto come = [&] {
    clients.emplace_back(this->io_);
    clients.back().connect(at);
  };
  come();
  typename TypeParam::socket one = acceptor.accept();
  EXPECT_EQ(one.remote_endpoint(), clients[0].local_endpoint());
  come();
  tcp::endpoint from;
  typename TypeParam::socket two(this->io_);
  acceptor.accept(two, from);
  EXPECT_EQ(from, clients[1].local_endpoint());
  error_code ec;
  acceptor.accept(two, ec);
  EXPECT_EQ(ec, net::error::already_open);
  int calls = 0;
  acceptor.async_accept([&](error_code e, typename TypeParam::socket s) {
    EXPECT_FALSE(e);
    EXPECT_TRUE(s.is_open());
    ++calls;
  });
  auto strand = net::make_strand(this->io_);
  acceptor.async_accept(strand, [&](error_code e, auto s) {
    EXPECT_FALSE(e);
    EXPECT_EQ(s.get_executor(), strand);
    ++calls;
  });
  typename TypeParam::socket five(this->io_);
  acceptor.async_accept(five, from, [&](error_code e) {
    EXPECT_FALSE(e);
    EXPECT_EQ(from, five.remote_endpoint());
    ++calls;
  });
  for (int i = 0; i < 3; ++i) come();
  this->io_.run();
  EXPECT_EQ(calls, 3);
  acceptor.non_blocking(true);
  acceptor.accept(ec);
  EXPECT_EQ(ec, net::error::would_block);
}

TYPED_TEST(Connect, AcceptorOptions) {
  typename TypeParam::acceptor acceptor(this->io_);
  error_code ec;
  acceptor.listen(5, ec);
  EXPECT_EQ(ec, net::error::bad_descriptor);
  acceptor.open(tcp::v4());
  acceptor.set_option(tcp::acceptor::reuse_address(true));
  tcp::acceptor::reuse_address reuse;
  acceptor.get_option(reuse);
  EXPECT_TRUE(reuse.value());
  acceptor.bind(Loopback());
  acceptor.listen();
  typename TypeParam::acceptor second(this->io_);
  second.open(tcp::v4());
  second.bind(acceptor.local_endpoint(), ec);
  EXPECT_EQ(ec, net::error::address_in_use);
  typename TypeParam::acceptor moved(std::move(acceptor));
  EXPECT_FALSE(acceptor.is_open());
  EXPECT_TRUE(moved.is_open());
}

TYPED_TEST(Connect, IPv6) {
  error_code ec;
  typename TypeParam::acceptor acceptor(this->io_);
  acceptor.open(tcp::v6());
  acceptor.bind({net::ip::address_v6::loopback(), 0}, ec);
  if (ec) GTEST_SKIP() << "no IPv6 here";
  acceptor.listen();
  typename TypeParam::socket s(this->io_);
  s.connect(acceptor.local_endpoint());
  auto peer = acceptor.accept();
  TypeParam::Prepare(s, peer);
  EXPECT_TRUE(s.remote_endpoint().address().is_v6());
}

}  // namespace
}  // namespace rcsock::asio_test
