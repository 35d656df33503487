// A client that sends requests when they are due, and not when the last one has
// been answered.  Requests come at a rate, at random (Poisson), over one of
// many connections.  A request's latency counts from the time at which it was
// due.  So a server that stands still is charged for every request that was due
// meanwhile.
//
// open_loop --port 6379 --connections 20 --rate 10000 --seconds 2 --peer PID
//
// The requests are redis's PING in its short form.  `--role server` is a server
// that answers them alone, with one epoll set.  With `--life` a connection is
// closed after so many requests, and the next one takes its place.  With
// `--fork-every` the server makes a child every so often, as redis does for a
// snapshot.

#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
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
#include <vector>

#include "tests/bench/net.h"
#include "tests/bench/options.h"

namespace {

constexpr char kRequest[] = "PING\r\n";
constexpr std::size_t kRequestSize = sizeof kRequest - 1;
constexpr char kAnswer[] = "+PONG\r\n";
constexpr std::size_t kAnswerSize = sizeof kAnswer - 1;

struct Options {
  bench::Ends ends;
  int connections = 1;
  double rate = 1000;
  double seconds = 2;
  double warm_up = 0.5;
  int settle = 32;  // round trips of each connection before the warm-up
  int peer = 0;
  int life = 0;           // requests of a connection; 0: no end
  double fork_every = 0;  // seconds between the server's children; 0: none
  unsigned seed = 7;
  int slowest = 0;  // requests that are told of one by one
};

// What a process has used: CPU time, and how often its threads have slept.
struct Use {
  double cpu_ns = 0;
  double sleeps = 0;
};

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

struct Connection {
  int fd = -1;
  std::deque<std::int64_t> due;  // of the requests that are not answered
  std::size_t part = 0;          // bytes of the next answer that are here
  int left = 0;                  // requests until it is closed
};

class Client {
 public:
  Client(const Options& options, std::uint16_t port)
      : options_(options), port_(port), connections_(options.connections) {
    poll_ = ::epoll_create1(EPOLL_CLOEXEC);
    if (poll_ < 0) bench::Die("epoll_create1");
    for (Connection& one : connections_) Open(&one);
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
    const std::int64_t start = start_ = bench::NowNs();
    const std::int64_t counted = start + Ns(options_.warm_up);
    const std::int64_t end = counted + Ns(options_.seconds);
    latencies_.reserve(
        static_cast<std::size_t>(options_.rate * options_.seconds * 1.2) + 64);
    due_ = start;
    Use peer;
    Use own;
    std::int64_t began = 0;
    for (std::int64_t now = start; now < end; now = bench::NowNs()) {
      if (began == 0 && now >= counted) {
        peer = UseOf(options_.peer);
        own = UseOf(::getpid());
        began = bench::NowNs();
        counts_ = true;
      }
      SendDue(now);
      Take(std::max<std::int64_t>(0, std::min(due_, end) - bench::NowNs()));
    }
    const double elapsed = static_cast<double>(bench::NowNs() - began);
    const Use own_end = UseOf(::getpid());
    const Use peer_end = UseOf(options_.peer);
    Tell(elapsed, {own_end.cpu_ns - own.cpu_ns, own_end.sleeps - own.sleeps},
         {peer_end.cpu_ns - peer.cpu_ns, peer_end.sleeps - peer.sleeps});
  }

 private:
  static std::int64_t Ns(double seconds) {
    return static_cast<std::int64_t>(seconds * 1e9);
  }

  void Open(Connection* one) {
    one->fd = bench::Connect(options_.ends.host, port_);
    bench::SetNoDelay(one->fd);
    bench::SetNonBlocking(one->fd);
    one->part = 0;
    one->left = options_.life;
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.ptr = one;
    if (::epoll_ctl(poll_, EPOLL_CTL_ADD, one->fd, &event) != 0) {
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
    if (::send(one->fd, kRequest, kRequestSize, MSG_NOSIGNAL) !=
        static_cast<ssize_t>(kRequestSize)) {
      if (errno != EAGAIN) bench::Die("send");
      ++refused_;
      return;
    }
    one->due.push_back(due);
    ++open_;
    --one->left;
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
      TakeFrom(static_cast<Connection*>(events[i].data.ptr));
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
    for (; one->part >= kAnswerSize; one->part -= kAnswerSize) {
      if (one->due.empty()) bench::Die("an answer to no request");
      if (counts_) {
        latencies_.push_back(now - one->due.front());
        Note(now, *one);
      }
      one->due.pop_front();
      --open_;
    }
    if (options_.life > 0 && one->left <= 0 && one->due.empty()) EndLife(one);
  }

  // Keeps the requests that have waited longest, the longest first.
  void Note(std::int64_t now, const Connection& one) {
    const auto most = static_cast<std::size_t>(options_.slowest);
    const std::int64_t waited = now - one.due.front();
    if (most == 0 || (slow_.size() == most && slow_.back().waited >= waited)) {
      return;
    }
    if (slow_.size() == most) slow_.pop_back();
    const auto after = [waited](const Slow& other) {
      return other.waited < waited;
    };
    slow_.insert(std::find_if(slow_.begin(), slow_.end(), after),
                 {waited, now, one.fd});
  }

  double Percentile(double part) const {
    if (latencies_.empty()) return 0;
    const auto at =
        static_cast<std::size_t>(part * static_cast<double>(latencies_.size()));
    return static_cast<double>(
               latencies_[std::min(at, latencies_.size() - 1)]) /
           1e3;
  }

  void Tell(double elapsed_ns, Use own, Use peer) {
    std::sort(latencies_.begin(), latencies_.end());
    const double done = static_cast<double>(latencies_.size());
    const double each = done > 0 ? 1 / done : 0;
    std::printf(
        "{\"connections\": %d, \"rate\": %.0f, \"done\": %.1f, "
        "\"refused\": %llu, \"p50_us\": %.2f, \"p99_us\": %.2f, "
        "\"p999_us\": %.2f, \"max_us\": %.2f, \"client_cpu_us\": %.3f, "
        "\"server_cpu_us\": %.3f, \"client_sleeps\": %.3f, "
        "\"server_sleeps\": %.3f, \"lives\": %llu",
        options_.connections, options_.rate, done * 1e9 / elapsed_ns,
        static_cast<unsigned long long>(refused_), Percentile(0.5),
        Percentile(0.99), Percentile(0.999), Percentile(1),
        own.cpu_ns * each / 1e3, peer.cpu_ns * each / 1e3, own.sleeps * each,
        peer.sleeps * each, static_cast<unsigned long long>(lives_));
    TellSlowest();
    std::printf("}\n");
  }

  void TellSlowest() const {
    if (options_.slowest == 0) return;
    std::printf(", \"start_ns\": %lld, \"slowest\": [",
                static_cast<long long>(start_));
    const char* between = "";
    for (const Slow& one : slow_) {
      std::printf("%s[%.2f, %lld, %d]", between,
                  static_cast<double>(one.waited) / 1e3,
                  static_cast<long long>(one.at), one.fd);
      between = ", ";
    }
    std::printf("]");
  }

  const Options& options_;
  const std::uint16_t port_;
  std::vector<Connection> connections_;
  int poll_ = -1;
  std::int64_t due_ = 0;
  std::size_t open_ = 0;
  std::uint64_t refused_ = 0;
  std::uint64_t lives_ = 0;  // connections that have ended
  bool counts_ = false;
  std::vector<std::int64_t> latencies_;
  struct Slow {
    std::int64_t waited;
    std::int64_t at;  // when the answer came, by the monotonic clock
    int fd;
  };
  std::vector<Slow> slow_;
  std::int64_t start_ = 0;
  std::mt19937_64 random_{options_.seed};
  std::uniform_int_distribution<std::uint64_t> pick_;
  std::uniform_real_distribution<double> uniform_{0, 1};
};

// Returns false when the connection is over.
bool Answer(int fd) {
  char bytes[16384];
  const ssize_t got = ::recv(fd, bytes, sizeof bytes, 0);
  if (got < 0) return errno == EAGAIN;
  if (got == 0) return false;
  // A request ends with a line feed, wherever the bytes were cut.
  std::string answers;
  for (ssize_t i = 0; i < got; ++i) {
    if (bytes[i] == '\n') answers.append(kAnswer, kAnswerSize);
  }
  return answers.empty() ||
         ::send(fd, answers.data(), answers.size(), MSG_NOSIGNAL) ==
             static_cast<ssize_t>(answers.size());
}

// Makes a child every so often, which does not touch a connection.
class Snapshots {
 public:
  explicit Snapshots(double every)
      : every_ns_(static_cast<std::int64_t>(every * 1e9)) {
    if (every_ns_ > 0) next_ns_ = bench::NowNs() + every_ns_;
  }
  // Milliseconds until the next is due; -1: none is.
  int Left() const {
    if (next_ns_ == 0) return -1;
    return static_cast<int>(
        std::max<std::int64_t>(0, (next_ns_ - bench::NowNs()) / 1'000'000));
  }
  void Look() {
    if (next_ns_ == 0 || bench::NowNs() < next_ns_) return;
    next_ns_ += every_ns_;
    while (::waitpid(-1, nullptr, WNOHANG) > 0) {
    }
    const pid_t child = ::fork();
    if (child < 0) bench::Die("fork");
    if (child == 0) {
      ::usleep(50'000);
      ::_exit(0);
    }
  }

 private:
  const std::int64_t every_ns_;
  std::int64_t next_ns_ = 0;
};

void Serve(int listener, const Options& options) {
  const int poll = ::epoll_create1(EPOLL_CLOEXEC);
  if (poll < 0) bench::Die("epoll_create1");
  const auto add = [poll](int fd) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = fd;
    if (::epoll_ctl(poll, EPOLL_CTL_ADD, fd, &event) != 0) {
      bench::Die("epoll_ctl");
    }
  };
  add(listener);
  Snapshots snapshots(options.fork_every);
  for (int open = 0;;) {
    epoll_event events[64];
    const int count = ::epoll_wait(poll, events, 64, snapshots.Left());
    if (count < 0 && errno != EINTR) bench::Die("epoll_wait");
    snapshots.Look();
    for (int i = 0; i < count; ++i) {
      const int fd = events[i].data.fd;
      if (fd == listener) {
        const int one = bench::Accept(listener);
        bench::SetNoDelay(one);
        bench::SetNonBlocking(one);
        add(one);
        ++open;
      } else if (!Answer(fd)) {
        ::close(fd);
        if (--open == 0 && options.life == 0) return;
      }
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("requests at a rate, whether or not the last was answered");
  bench::AddEnds(&app, &options.ends);
  options.ends.role = "client";
  app.add_option("--connections", options.connections)->capture_default_str();
  app.add_option("--rate", options.rate, "requests a second, in all")
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
  app.add_option("--fork-every", options.fork_every,
                 "seconds between two children of the server");
  app.add_option("--slowest", options.slowest,
                 "tells of so many requests: how long, when, which descriptor");
  app.add_option("--seed", options.seed)->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  bench::RaiseDescriptorLimit();
  const auto serve = [&options](int listener) { Serve(listener, options); };
  return bench::RunEnds(options.ends, serve, [&options](std::uint16_t port) {
    Client(options, port).Run();
  });
}
