// An HTTP server of one page, in one thread.  Whatever its clients do, it holds
// kMostClients connections, kMostHeader bytes of each, for kPatience.

#include "tools/rcsock/stat/serve.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_static_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <iostream>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

namespace rcsock::tools {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kMostClients = 32;
constexpr std::size_t kMostHeader = 8192;
constexpr std::chrono::seconds kPatience{10};
constexpr std::chrono::seconds kFresh{1};  // how old a page may be
constexpr std::chrono::milliseconds kRest{100};

// Returns the path of a request.  A client behind a proxy sends a whole URI.
beast::string_view PathOf(beast::string_view target) {
  constexpr beast::string_view kScheme = "http://";
  if (target.substr(0, kScheme.size()) == kScheme) {
    const auto path = target.find('/', kScheme.size());
    target = path == target.npos ? "/" : target.substr(path);
  }
  return target.substr(0, target.find('?'));
}

// The page. A flood of requests does not make it more often.
class Kept {
 public:
  explicit Kept(const std::function<std::string()>& make) : make_(make) {}

  const std::string& Get() {
    const Clock::time_point now = Clock::now();
    if (!made_ || now - *made_ > kFresh) {
      text_ = make_();
      made_ = Clock::now();
    }
    return text_;
  }

 private:
  const std::function<std::string()>& make_;
  std::string text_;
  std::optional<Clock::time_point> made_;
};

// One request, its answer, and the end of the connection.
class Client : public std::enable_shared_from_this<Client> {
 public:
  Client(tcp::socket socket, Kept* page)
      : stream_(std::move(socket)), page_(page) {
    parser_.header_limit(kMostHeader);
  }

  void Start() {
    stream_.expires_after(kPatience);
    http::async_read_header(
        stream_, buffer_, parser_,
        [self = shared_from_this()](error_code error, std::size_t) {
          if (!error) self->Answer();
        });
  }

  // The client makes room for another one.
  void Close() { stream_.close(); }

 private:
  void Answer() {
    const auto& request = parser_.get();
    response_.version(11);
    response_.keep_alive(false);
    response_.set(http::field::content_type, "text/plain; charset=utf-8");
    const auto path = PathOf(request.target());
    if (request.method() != http::verb::get) {
      response_.result(http::status::method_not_allowed);
      response_.set(http::field::allow, "GET");
    } else if (path != "/metrics") {
      response_.result(http::status::not_found);
      response_.body() = "see /metrics\n";
    } else {
      response_.set(http::field::content_type,
                    "text/plain; version=0.0.4; charset=utf-8");
      response_.body() = page_->Get();
    }
    response_.prepare_payload();
    stream_.expires_after(kPatience);
    http::async_write(
        stream_, response_,
        [self = shared_from_this()](error_code error, std::size_t) {
          if (!error) self->End();
        });
  }

  void End() {
    error_code ignored;
    stream_.socket().shutdown(tcp::socket::shutdown_send, ignored);
  }

  beast::tcp_stream stream_;
  Kept* const page_;
  beast::flat_static_buffer<kMostHeader> buffer_;
  http::request_parser<http::empty_body> parser_;
  http::response<http::string_body> response_;
};

class Server {
 public:
  Server(asio::io_context* context, const tcp::endpoint& at, Kept* page)
      : acceptor_(*context, at), timer_(*context), page_(page) {}

  tcp::endpoint at() const { return acceptor_.local_endpoint(); }

  void Accept() {
    acceptor_.async_accept([this](error_code error, tcp::socket socket) {
      if (error) {
        // No descriptors, for instance.
        timer_.expires_after(kRest);
        timer_.async_wait([this](error_code) { Accept(); });
        return;
      }
      Take(std::move(socket));
      Accept();
    });
  }

 private:
  void Take(tcp::socket socket) {
    clients_.remove_if([](const auto& client) { return client.expired(); });
    // The oldest one has had the most time.
    if (clients_.size() >= kMostClients) {
      if (const auto oldest = clients_.front().lock()) oldest->Close();
      clients_.pop_front();
    }
    const auto client = std::make_shared<Client>(std::move(socket), page_);
    clients_.push_back(client);
    client->Start();
  }

  tcp::acceptor acceptor_;
  asio::steady_timer timer_;
  Kept* const page_;
  std::list<std::weak_ptr<Client>> clients_;
};

// Returns the host and the port of [HOST:]PORT, without brackets.
std::pair<std::string, std::string> Split(const std::string& address) {
  const std::size_t colon = address.rfind(':');
  if (colon == std::string::npos) return {"127.0.0.1", address};
  std::string host = address.substr(0, colon);
  if (host.size() > 1 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  return {host.empty() ? "127.0.0.1" : host, address.substr(colon + 1)};
}

bool IsPort(const std::string& text) {
  constexpr unsigned kLast = 65535;
  unsigned port = 0;
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, port);
  return error == std::errc() && at == end && port <= kLast;
}

}  // namespace

int Serve(const std::string& address,
          const std::function<std::string()>& page) {
  if (!IsPort(Split(address).second)) {
    std::cerr << "rcsock: " << address << " is not [HOST:]PORT\n";
    return 2;
  }
  try {
    asio::io_context context(1);
    const auto [host, port] = Split(address);
    tcp::resolver resolver(context);
    const auto found =
        resolver.resolve(host, port, tcp::resolver::numeric_service);
    Kept kept(page);
    Server server(&context, found.begin()->endpoint(), &kept);
    std::cout << "rcsock: serving http://" << server.at() << "/metrics"
              << std::endl;
    server.Accept();
    context.run();
    return 0;
  } catch (const boost::system::system_error& error) {
    std::cerr << "rcsock: cannot serve at " << address << ": "
              << error.code().message() << "\n";
    return 1;
  }
}

}  // namespace rcsock::tools
