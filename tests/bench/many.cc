// The cost of one request at an epoll server that has many connections, of
// which the client uses a random one (or K at a time) for each.
//
// With --burst the server's part alone: it is held back while the client sends
// requests on so many connections, and then takes its time for all of them.
//
// With --hot only so many of the connections are used, others after --move
// requests, while the rest stay silent.

#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <random>
#include <utility>
#include <vector>

#include "tests/bench/net.h"
#include "tests/bench/options.h"
#include "tests/bench/sample.h"

namespace {

void Add(int epoll, int fd) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = fd;
  if (::epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) != 0) {
    bench::Die("epoll_ctl");
  }
}

int Wait(int epoll, std::vector<epoll_event>* events) {
  for (;;) {
    const int n = ::epoll_wait(epoll, events->data(),
                               static_cast<int>(events->size()), -1);
    if (n >= 0) return n;
    if (errno != EINTR) bench::Die("epoll_wait");
  }
}

// What the client says on the first connection, which is its own, in a burst.
constexpr char kHold = 'h';  // look at nothing else; answered by a byte
constexpr char kGo = 'g';    // answered by the nanoseconds of the burst

void Exactly(bool done) {
  if (done) return;
  errno = ECONNRESET;
  bench::Die("control");
}

// Echoes on every connection until the last one is closed.
void Serve(int listener, int burst) {
  bench::RaiseDescriptorLimit();
  const int epoll = ::epoll_create1(EPOLL_CLOEXEC);
  if (epoll < 0) bench::Die("epoll_create1");
  Add(epoll, listener);
  std::vector<epoll_event> events(64);
  std::vector<char> data(4096);
  int open = 0;
  int control = -1;
  int left = 0;  // of the burst
  std::int64_t start = 0;
  do {
    const int n = Wait(epoll, &events);
    for (int i = 0; i < n; ++i) {
      const int fd = events[static_cast<std::size_t>(i)].data.fd;
      if (fd == listener) {
        const int accepted = bench::Accept(listener);
        if (burst > 0 && control < 0) {
          control = accepted;
        } else {
          bench::SetNonBlocking(accepted);
        }
        Add(epoll, accepted);
        ++open;
        continue;
      }
      if (fd == control) {
        char word;
        if (!bench::ReadAll(control, &word, 1)) {
          ::close(control);
          --open;
          continue;
        }
        bench::WriteAll(control, &kHold, 1);
        Exactly(bench::ReadAll(control, &word, 1));
        left = burst;
        start = bench::NowNs();
        continue;
      }
      const ssize_t got = ::recv(fd, data.data(), data.size(), 0);
      if (got > 0) {
        // Requests are far smaller than any socket buffer.
        if (::send(fd, data.data(), static_cast<std::size_t>(got),
                   MSG_NOSIGNAL) != got) {
          bench::Die("send");
        }
        if (left > 0 && --left == 0) {
          const std::int64_t took = bench::NowNs() - start;
          bench::WriteAll(control, &took, sizeof took);
        }
      } else if (got == 0) {
        ::close(fd);
        --open;
      } else if (errno != EAGAIN && errno != EINTR) {
        bench::Die("recv");
      }
    }
  } while (open > 0);
}

class Client {
 public:
  Client(const std::string& host, std::uint16_t port, int connections,
         std::size_t size, bool control, int hot, std::int64_t move)
      : message_(size, 'x'),
        events_(64),
        hot_(static_cast<std::size_t>(hot > 0 ? std::min(hot, connections)
                                              : connections)),
        move_(move) {
    if (control) control_ = bench::Connect(host, port);
    epoll_ = ::epoll_create1(EPOLL_CLOEXEC);
    if (epoll_ < 0) bench::Die("epoll_create1");
    for (int i = 0; i < connections; ++i) {
      fds_.push_back(bench::Connect(host, port));
      Add(epoll_, fds_.back());
    }
  }
  ~Client() {
    for (const int fd : fds_) ::close(fd);
    if (control_ >= 0) ::close(control_);
    ::close(epoll_);
  }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  // A few requests on every connection in turn.
  void Touch(int times) {
    for (int i = 0; i < times; ++i) {
      for (const int fd : fds_) {
        bench::WriteAll(fd, message_.data(), message_.size());
        Receive();
      }
    }
  }

  void Request() {
    Move(1);
    const int fd = fds_[random_() % hot_];
    bench::WriteAll(fd, message_.data(), message_.size());
  }

  // Waits for answers; returns how many came.
  int Receive() {
    const int n = Wait(epoll_, &events_);
    for (int i = 0; i < n; ++i) {
      ReadAnswer(events_[static_cast<std::size_t>(i)].data.fd);
    }
    return n;
  }

  // Requests on so many different connections; what each costs the server.
  double Burst(int requests) {
    bench::WriteAll(control_, &kHold, 1);
    char held;
    Exactly(bench::ReadAll(control_, &held, 1));
    Move(requests);
    for (int i = 0; i < requests; ++i) {
      const std::size_t at = static_cast<std::size_t>(i);
      Draw(at, hot_);
      bench::WriteAll(fds_[at], message_.data(), message_.size());
    }
    bench::WriteAll(control_, &kGo, 1);
    std::int64_t took;
    Exactly(bench::ReadAll(control_, &took, sizeof took));
    for (int left = requests; left > 0;) left -= Receive();
    return static_cast<double>(took) / requests;
  }

 private:
  // One step of a shuffle of the first `size`.
  void Draw(std::size_t at, std::size_t size) {
    std::swap(fds_[at], fds_[at + random_() % (size - at)]);
  }
  // The first hot_ are those in use.
  void Move(std::int64_t requests) {
    if (hot_ == fds_.size() || (left_ -= requests) > 0) return;
    left_ = move_;
    for (std::size_t at = 0; at < hot_; ++at) Draw(at, fds_.size());
  }
  void ReadAnswer(int fd) {
    if (!bench::ReadAll(fd, message_.data(), message_.size())) {
      errno = ECONNRESET;
      bench::Die("recv");
    }
  }

  std::vector<char> message_;
  std::vector<epoll_event> events_;
  std::vector<int> fds_;
  const std::size_t hot_;
  const std::int64_t move_;
  std::int64_t left_ = 0;  // requests until others are hot
  std::minstd_rand random_{1};
  int epoll_ = -1;
  int control_ = -1;
};

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Requests over many connections of one epoll server"};
  bench::Ends ends;
  int connections = 10;
  int active = 1;
  int touch = 16;
  int burst = 0;
  int hot = 0;
  std::int64_t move = 4096;
  std::size_t size = 64;
  std::int64_t iterations = 100'000;
  bench::AddEnds(&app, &ends);
  app.add_option("--connections", connections)
      ->check(CLI::Range(1, 100'000))
      ->capture_default_str();
  app.add_option("--active", active, "requests in flight")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--touch", touch, "requests on each connection beforehand")
      ->check(CLI::Range(0, 10'000))
      ->capture_default_str();
  app.add_option("--burst", burst, "measure the server alone, so many at once")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--hot", hot, "so many connections are used, 0: all")
      ->check(CLI::Range(0, 100'000))
      ->capture_default_str();
  app.add_option("--move", move, "requests until others are the hot ones")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--size", size)
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  app.add_option("--iters", iterations)
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);

  const auto serve = [&](int listener) { Serve(listener, burst); };
  return bench::RunEnds(ends, serve, [&](std::uint16_t port) {
    bench::RaiseDescriptorLimit();
    Client client(ends.host, port, connections, size, burst > 0, hot, move);
    client.Touch(touch);
    if (burst > 0) {
      burst =
          std::min(burst, hot > 0 ? std::min(hot, connections) : connections);
      std::vector<double> costs;
      for (std::int64_t i = 0; i < iterations; i += burst) {
        costs.push_back(client.Burst(burst));
      }
      std::sort(costs.begin(), costs.end());
      std::printf(
          "{\"bench\":\"many\",\"connections\":%d,\"burst\":%d,\"size\":%zu,"
          "\"iters\":%lld,\"ns\":%.1f,\"tenth_ns\":%.1f}\n",
          connections, burst, size, static_cast<long long>(iterations),
          costs[costs.size() / 2], costs[costs.size() / 10]);
      return;
    }
    for (int i = 1; i < active; ++i) client.Request();
    int answers = 0;
    const bench::Cost cost = bench::Measure(iterations, [&] {
      client.Request();
      while (answers == 0) answers = client.Receive();
      --answers;
    });
    for (int left = active - 1 - answers; left > 0;) left -= client.Receive();
    std::printf(
        "{\"bench\":\"many\",\"connections\":%d,\"active\":%d,\"size\":%zu,"
        "\"iters\":%lld,\"ns\":%.1f,\"best_ns\":%.1f}\n",
        connections, active, size, static_cast<long long>(iterations),
        cost.median_ns, cost.best_ns);
  });
}
