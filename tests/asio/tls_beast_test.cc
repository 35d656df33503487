// TLS and Beast on top of a stream.

#include <openssl/x509v3.h>

#include <boost/asio/ssl.hpp>
#include <boost/beast.hpp>
#include <boost/beast/websocket/ssl.hpp>
#include <rcsock/asio/beast.hpp>
#include <thread>

#include "tests/asio/pair.h"

namespace rcsock::asio_test {
namespace {

namespace beast = boost::beast;
namespace http = beast::http;
namespace ssl = net::ssl;
namespace websocket = beast::websocket;

// A key and a certificate for it, made on the spot.
void SelfSigned(ssl::context& context) {
  EVP_PKEY* key = EVP_EC_gen("P-256");
  X509* certificate = X509_new();
  X509_set_version(certificate, 2);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate), 1);
  X509_gmtime_adj(X509_getm_notBefore(certificate), -3600);
  X509_gmtime_adj(X509_getm_notAfter(certificate), 3600);
  X509_set_pubkey(certificate, key);
  X509_NAME* name = X509_get_subject_name(certificate);
  X509_NAME_add_entry_by_txt(
      name, "CN", MBSTRING_ASC,
      reinterpret_cast<const unsigned char*>("localhost"), -1, -1, 0);
  X509_set_issuer_name(certificate, name);
  X509_sign(certificate, key, EVP_sha256());
  SSL_CTX_use_certificate(context.native_handle(), certificate);
  SSL_CTX_use_PrivateKey(context.native_handle(), key);
  X509_free(certificate);
  EVP_PKEY_free(key);
}

template <class Kind>
class Layered : public ::testing::Test {
 protected:
  Layered()
      : server_(ssl::context::tls_server), client_(ssl::context::tls_client) {
    SelfSigned(server_);
  }
  net::io_context io_;
  ssl::context server_, client_;
};
TYPED_TEST_SUITE(Layered, Kinds, KindNames);

template <class Stream>
net::awaitable<void> HttpServer(Stream& stream, int requests) {
  beast::flat_buffer buffer;
  for (int i = 0; i < requests; ++i) {
    http::request<http::string_body> request;
    co_await http::async_read(stream, buffer, request, net::use_awaitable);
    http::response<http::string_body> response{http::status::ok,
                                               request.version()};
    response.body() = "you asked for " + std::string(request.target()) + ": " +
                      request.body();
    response.prepare_payload();
    co_await http::async_write(stream, response, net::use_awaitable);
  }
}

template <class Stream>
net::awaitable<void> HttpClient(Stream& stream, int requests) {
  beast::flat_buffer buffer;
  for (int i = 0; i < requests; ++i) {
    http::request<http::string_body> request{http::verb::post,
                                             "/" + std::to_string(i), 11};
    request.body() = std::string(static_cast<std::size_t>(i) * 1000, 'b');
    request.prepare_payload();
    co_await http::async_write(stream, request, net::use_awaitable);
    http::response<http::string_body> response;
    co_await http::async_read(stream, buffer, response, net::use_awaitable);
    EXPECT_EQ(response.body(),
              "you asked for /" + std::to_string(i) + ": " + request.body());
  }
}

// Rethrows what a coroutine has thrown.
inline constexpr auto kRethrow = [](std::exception_ptr e) {
  if (e) std::rethrow_exception(e);
};

TYPED_TEST(Layered, BeastHttp) {
  Pair<TypeParam> p(this->io_);
  net::co_spawn(this->io_, HttpServer(p.a, 50), kRethrow);
  net::co_spawn(this->io_, HttpClient(p.b, 50), kRethrow);
  this->io_.run();
}

TYPED_TEST(Layered, TlsAndHttp) {
  Pair<TypeParam> p(this->io_);
  using stream = ssl::stream<typename TypeParam::socket>;
  stream server(std::move(p.a), this->server_);
  stream client(std::move(p.b), this->client_);
  const auto serve = [&]() -> net::awaitable<void> {
    co_await server.async_handshake(ssl::stream_base::server,
                                    net::use_awaitable);
    co_await HttpServer(server, 30);
    error_code ec;
    co_await server.async_shutdown(net::redirect_error(net::use_awaitable, ec));
  };
  const auto ask = [&]() -> net::awaitable<void> {
    co_await client.async_handshake(ssl::stream_base::client,
                                    net::use_awaitable);
    co_await HttpClient(client, 30);
    char in[1];
    error_code ec;
    co_await client.async_read_some(
        net::buffer(in), net::redirect_error(net::use_awaitable, ec));
    EXPECT_EQ(ec, net::error::eof);  // close_notify
    client.lowest_layer().close();
  };
  net::co_spawn(this->io_, serve(), kRethrow);
  net::co_spawn(this->io_, ask(), kRethrow);
  this->io_.run();
}

TYPED_TEST(Layered, TlsSynchronously) {
  Pair<TypeParam> p(this->io_);
  using stream = ssl::stream<typename TypeParam::socket&>;
  stream server(p.a, this->server_);
  stream client(p.b, this->client_);
  std::thread other([&] {
    server.handshake(ssl::stream_base::server);
    char in[5];
    net::read(server, net::buffer(in));
    net::write(server, net::buffer(in));
  });
  client.handshake(ssl::stream_base::client);
  net::write(client, net::buffer("hello", 5));
  char in[5];
  net::read(client, net::buffer(in));
  EXPECT_EQ(std::string(in, 5), "hello");
  other.join();
}

template <class Stream>
net::awaitable<void> Chat(Stream& ws, bool server) {
  if (server) {
    co_await ws.async_accept(net::use_awaitable);
    for (;;) {
      beast::flat_buffer buffer;
      error_code ec;
      co_await ws.async_read(buffer,
                             net::redirect_error(net::use_awaitable, ec));
      if (ec) {
        EXPECT_EQ(ec, websocket::error::closed);
        break;
      }
      co_await ws.async_write(buffer.data(), net::use_awaitable);
    }
  } else {
    co_await ws.async_handshake("localhost", "/", net::use_awaitable);
    for (int i = 0; i < 20; ++i) {
      const std::string text(static_cast<std::size_t>(1) << (i % 17), 'w');
      co_await ws.async_write(net::buffer(text), net::use_awaitable);
      beast::flat_buffer buffer;
      co_await ws.async_read(buffer, net::use_awaitable);
      EXPECT_EQ(beast::buffers_to_string(buffer.data()), text);
    }
    co_await ws.async_close(websocket::close_code::normal, net::use_awaitable);
  }
}

TYPED_TEST(Layered, WebSocket) {
  Pair<TypeParam> p(this->io_);
  websocket::stream<typename TypeParam::socket> server(std::move(p.a)),
      client(std::move(p.b));
  net::co_spawn(this->io_, Chat(server, true), kRethrow);
  net::co_spawn(this->io_, Chat(client, false), kRethrow);
  this->io_.run();
  EXPECT_FALSE(server.next_layer().is_open());
  EXPECT_FALSE(client.next_layer().is_open());
}

}  // namespace
}  // namespace rcsock::asio_test
