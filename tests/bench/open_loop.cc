// A client that sends requests when they are due, and not when the last one has
// been answered.  Requests come at a rate, at random (Poisson), over one of
// many connections.  A request's latency counts from the time at which it was
// due.  So a server that stands still is charged for every request that was due
// meanwhile.
//
// open_loop --port 6379 --connections 20 --rate 10000 --seconds 2 --peer PID
//
// The requests are redis's PING in its short form, or a get of memcached's that
// finds nothing.  `--role server` is a server that answers the former alone,
// with one epoll set.  With `--rate 0` each connection has one request under
// way, and sends the next one at once.
//
// With `--life` a connection is closed after so many requests, and the next one
// takes its place.  With `--pin` it gets an option in the midst of that which
// no lane can follow.  With `--fork-every` the server makes a child every so
// often, as redis does for a snapshot, and with `--child-uses` the child uses
// each connection.  With `--greedy` so many connections more send what the
// server reads too seldom.

#include "tests/bench/open_loop.h"

#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <deque>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "tests/bench/net.h"
#include "tests/bench/options.h"
#include "tools/rcsock/perf/histogram.h"

namespace {

using bench::open_loop::kGreedyByte;
using bench::open_loop::kGreedyPiece;
using bench::open_loop::Options;
using bench::open_loop::Outbox;
using bench::open_loop::Words;

// What a process has used: CPU time, and how often its threads have slept.
struct Use {
  double cpu_ns = 0;
  double sleeps = 0;
};

// Returns how often this process has waited for the kernel to give it memory.
long OwnFaults() {
  rusage usage{};
  return ::getrusage(RUSAGE_SELF, &usage) == 0 ? usage.ru_minflt : 0;
}

double NsOf(clockid_t clock) {
  timespec at{};
  if (::clock_gettime(clock, &at) != 0) return 0;
  return static_cast<double>(at.tv_sec) * 1e9 + static_cast<double>(at.tv_nsec);
}

double SleepsOf(int process) {
  namespace fs = std::filesystem;
  double sleeps = 0;
  std::error_code error;
  const fs::path tasks = "/proc/" + std::to_string(process) + "/task";
  for (const auto& task : fs::directory_iterator(tasks, error)) {
    std::ifstream status(task.path() / "status");
    constexpr char kKey[] = "voluntary_ctxt_switches:";
    for (std::string line; std::getline(status, line);) {
      if (line.compare(0, sizeof kKey - 1, kKey) == 0) {
        sleeps += std::stod(line.substr(sizeof kKey - 1));
      }
    }
  }
  return sleeps;
}

Use UseOf(int process) {
  clockid_t clock;
  if (process <= 0 || ::clock_getcpuclockid(process, &clock) != 0) return {};
  return {NsOf(clock), SleepsOf(process)};
}

int ConnectUnix(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    errno = ENAMETOOLONG;
    bench::Die("--unix");
  }
  path.copy(address.sun_path, path.size());
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) bench::Die("socket");
  if (::connect(fd, reinterpret_cast<const sockaddr*>(&address),
                sizeof address) != 0) {
    bench::Die("connect");
  }
  return fd;
}

struct Connection {
  int fd = -1;
  bool greedy = false;
  Outbox out;
  std::deque<std::int64_t> due;  // of the requests that are not answered
  std::size_t part = 0;          // bytes of the next answer that are here
  int left = 0;                  // requests until it is closed
};

class Client {
 public:
  Client(const Options& options, std::uint16_t port)
      : options_(options),
        words_(options.protocol == "redis" ? bench::open_loop::kRedis
                                           : bench::open_loop::kMemcached),
        port_(port),
        connections_(options.connections),
        greedy_(options.greedy) {
    poll_ = ::epoll_create1(EPOLL_CLOEXEC);
    if (poll_ < 0) bench::Die("epoll_create1");
    for (Connection& one : connections_) Open(&one);
    for (Connection& one : greedy_) {
      one.greedy = true;
      Open(&one);
    }
    // Not all of them end at once.
    for (Connection& one : connections_) {
      if (options.life > 0) {
        one.left = 1 + static_cast<int>(pick_(random_) %
                                        static_cast<unsigned>(options.life));
      }
    }
  }

  void Run() {
    Settle();
    const std::int64_t start = bench::NowNs();
    const std::int64_t counted = start + Ns(options_.warm_up);
    const std::int64_t end = counted + Ns(options_.seconds);
    due_ = Closed() ? end : start;
    loops_ = Closed();
    if (loops_) {
      for (Connection& one : connections_) Send(&one, start);
    }
    Use peer;
    Use own;
    std::int64_t began = 0;
    for (std::int64_t now = start; now < end; now = bench::NowNs()) {
      if (began == 0 && now >= counted) {
        peer = UseOf(options_.peer);
        own = UseOf(::getpid());
        faults_ = OwnFaults();
        began = bench::NowNs();
        counts_ = true;
      }
      SendDue(now);
      Take(std::max<std::int64_t>(0, std::min(due_, end) - bench::NowNs()));
    }
    const double elapsed = static_cast<double>(bench::NowNs() - began);
    faults_ = OwnFaults() - faults_;
    const Use own_end = UseOf(::getpid());
    const Use peer_end = UseOf(options_.peer);
    Tell(elapsed, {own_end.cpu_ns - own.cpu_ns, own_end.sleeps - own.sleeps},
         {peer_end.cpu_ns - peer.cpu_ns, peer_end.sleeps - peer.sleeps});
  }

 private:
  static std::int64_t Ns(double seconds) {
    return static_cast<std::int64_t>(seconds * 1e9);
  }

  bool Closed() const { return options_.rate == 0; }

  void Open(Connection* one) {
    if (options_.unix_path.empty()) {
      one->fd = bench::Connect(options_.ends.host, port_);
      bench::SetNoDelay(one->fd);
    } else {
      one->fd = ConnectUnix(options_.unix_path);
    }
    bench::SetNonBlocking(one->fd);
    one->part = 0;
    one->left = options_.life;
    one->out.Clear();
    Register(EPOLL_CTL_ADD, one);
  }

  void Register(int operation, Connection* one) const {
    epoll_event event{};
    event.events = (one->greedy ? 0u : EPOLLIN) |
                   (one->greedy || !one->out.empty() ? EPOLLOUT : 0u);
    event.data.ptr = one;
    if (::epoll_ctl(poll_, operation, one->fd, &event) != 0) {
      bench::Die("epoll_ctl");
    }
  }

  // All its requests are answered.
  void EndLife(Connection* one) {
    ::close(one->fd);
    Open(one);
    ++lives_;
  }

  // Every connection makes some round trips, so that it has what lane it gets.
  void Settle() {
    if (options_.life > 0) return;
    for (int round = 0; round < options_.settle; ++round) {
      for (std::size_t first = 0; first < connections_.size(); first += 64) {
        const std::size_t last = std::min(first + 64, connections_.size());
        for (std::size_t i = first; i < last; ++i) {
          Send(&connections_[i], bench::NowNs());
        }
        while (open_ > 0) Take(1'000'000'000);
      }
      if (round == options_.settle / 2) ::usleep(20'000);
    }
  }

  void Send(Connection* one, std::int64_t due) {
    const bool waited = !one->out.empty();
    if (!one->out.Send(one->fd, words_.request)) bench::Die("send");
    if (!one->out.empty()) ++refused_;
    if (waited != !one->out.empty()) Register(EPOLL_CTL_MOD, one);
    one->due.push_back(due);
    ++open_;
    --one->left;
    if (options_.pin && one->left == options_.life / 2) {
      // Each answer has more bytes than this.
      const int least = 2;
      if (::setsockopt(one->fd, SOL_SOCKET, SO_RCVLOWAT, &least,
                       sizeof least) != 0) {
        bench::Die("SO_RCVLOWAT");
      }
    }
  }

  static void SendGreedily(const Connection& one) {
    static const std::string bytes(kGreedyPiece, kGreedyByte);
    for (int i = 0; i < 4; ++i) {
      if (::send(one.fd, bytes.data(), bytes.size(), MSG_NOSIGNAL) < 0) {
        if (errno != EAGAIN) bench::Die("send");
        return;
      }
    }
  }

  // Returns a connection at random that takes a request.  Null: there is none.
  Connection* Pick() {
    std::size_t at = pick_(random_) % connections_.size();
    for (std::size_t i = 0; i < connections_.size(); ++i) {
      Connection* const one = &connections_[at];
      if (options_.life == 0 || one->left > 0) return one;
      at = at + 1 == connections_.size() ? 0 : at + 1;
    }
    return nullptr;
  }

  void SendDue(std::int64_t now) {
    // Answers are to be taken even if requests are due faster than they can be
    // sent.
    for (int i = 0; i < 64 && due_ <= now; ++i) {
      Connection* const one = Pick();
      if (one == nullptr) return;
      Send(one, due_);
      due_ += static_cast<std::int64_t>(-std::log(1 - uniform_(random_)) * 1e9 /
                                        options_.rate);
    }
  }

  void Take(std::int64_t wait_ns) {
    epoll_event events[64];
    const timespec wait{wait_ns / 1'000'000'000, wait_ns % 1'000'000'000};
    const int count = ::epoll_pwait2(poll_, events, 64, &wait, nullptr);
    if (count < 0 && errno != EINTR) bench::Die("epoll_pwait2");
    for (int i = 0; i < count; ++i) {
      auto* const one = static_cast<Connection*>(events[i].data.ptr);
      if (one->greedy) {
        SendGreedily(*one);
        continue;
      }
      if (!one->out.empty()) {
        if (!one->out.Flush(one->fd)) bench::Die("send");
        if (one->out.empty()) Register(EPOLL_CTL_MOD, one);
      }
      TakeFrom(one);
    }
  }

  void TakeFrom(Connection* one) {
    char bytes[4096];
    const ssize_t got = ::recv(one->fd, bytes, sizeof bytes, 0);
    if (got == 0) bench::Die("the server has closed a connection");
    if (got < 0) {
      if (errno == EAGAIN) return;
      bench::Die("recv");
    }
    const std::int64_t now = bench::NowNs();
    one->part += static_cast<std::size_t>(got);
    const std::size_t answer = words_.answer.size();
    for (; one->part >= answer; one->part -= answer) {
      if (one->due.empty()) bench::Die("an answer to no request");
      if (counts_) {
        latencies_.Record(static_cast<std::uint64_t>(now - one->due.front()));
      }
      one->due.pop_front();
      --open_;
    }
    if (options_.life > 0 && one->left <= 0 && one->due.empty()) EndLife(one);
    if (loops_ && one->due.empty()) Send(one, now);
  }

  double Percentile(double part) const {
    return static_cast<double>(latencies_.Percentile(part)) / 1e3;
  }

  void Tell(double elapsed_ns, Use own, Use peer) {
    const double done = static_cast<double>(latencies_.count());
    const double each = done > 0 ? 1 / done : 0;
    std::printf(
        "{\"connections\": %d, \"rate\": %.0f, \"done\": %.1f, "
        "\"refused\": %llu, \"p50_us\": %.2f, \"p99_us\": %.2f, "
        "\"p999_us\": %.2f, \"max_us\": %.2f, \"client_cpu_us\": %.3f, "
        "\"server_cpu_us\": %.3f, \"client_sleeps\": %.3f, "
        "\"server_sleeps\": %.3f, \"client_faults\": %ld, "
        "\"lives\": %llu}\n",
        options_.connections, options_.rate, done * 1e9 / elapsed_ns,
        static_cast<unsigned long long>(refused_), Percentile(0.5),
        Percentile(0.99), Percentile(0.999),
        static_cast<double>(latencies_.max()) / 1e3, own.cpu_ns * each / 1e3,
        peer.cpu_ns * each / 1e3, own.sleeps * each, peer.sleeps * each,
        faults_, static_cast<unsigned long long>(lives_));
  }

  const Options& options_;
  const Words words_;
  const std::uint16_t port_;
  std::vector<Connection> connections_;
  std::vector<Connection> greedy_;
  int poll_ = -1;
  std::int64_t due_ = 0;
  std::size_t open_ = 0;
  std::uint64_t refused_ = 0;  // requests that found no room at first
  std::uint64_t lives_ = 0;    // connections that have ended
  bool counts_ = false;
  long faults_ = 0;     // in the time that counts
  bool loops_ = false;  // an answer brings the next request
  // Of a fixed size: a client that makes room for each latency stands still at
  // times, and charges the server for that.
  rcsock::perf::Histogram latencies_;
  std::mt19937_64 random_{options_.seed};
  std::uniform_int_distribution<std::uint64_t> pick_;
  std::uniform_real_distribution<double> uniform_{0, 1};
};

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("requests at a rate, whether or not the last was answered");
  bench::AddEnds(&app, &options.ends);
  options.ends.role = "client";
  app.add_option("--connections", options.connections)->capture_default_str();
  app.add_option("--unix", options.unix_path,
                 "the server's path of AF_UNIX, in place of its port");
  app.add_option("--protocol", options.protocol, "of the requests")
      ->check(CLI::IsMember({"redis", "memcached"}))
      ->capture_default_str();
  app.add_option("--rate", options.rate,
                 "requests a second, in all; 0: a closed loop")
      ->capture_default_str();
  app.add_option("--seconds", options.seconds, "that count")
      ->capture_default_str();
  app.add_option("--warm-up", options.warm_up, "seconds before these")
      ->capture_default_str();
  app.add_option("--settle", options.settle,
                 "round trips of each connection at first")
      ->capture_default_str();
  app.add_option("--peer", options.peer, "the server's process");
  app.add_option("--life", options.life,
                 "requests of a connection, which then is closed (the server "
                 "has the option, too, and does not end by itself)");
  app.add_flag("--pin", options.pin,
               "at half its --life a connection gets an option that no lane "
               "can follow");
  app.add_option("--fork-every", options.fork_every,
                 "seconds between two children of the server");
  app.add_flag("--child-uses", options.child_uses,
               "each child of the server uses all connections");
  app.add_option("--greedy", options.greedy,
                 "connections that send more than the server reads");
  app.add_option("--seed", options.seed)->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  bench::RaiseDescriptorLimit();
  const auto serve = [&options](int listener) {
    bench::open_loop::Serve(listener, options);
  };
  return bench::RunEnds(options.ends, serve, [&options](std::uint16_t port) {
    Client(options, port).Run();
  });
}
