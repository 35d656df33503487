// A server and a client of many threads each: as many connections as threads,
// and each carries a request at a time.  They wait by an epoll set apiece, or
// in recv; beside them others may wait for requests that do not come.  With
// more threads than CPUs nearly every wait sleeps.  With `--shared` all threads
// of the server wait in one set, and any of them answers.

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <barrier>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "tests/bench/net.h"
#include "tests/bench/options.h"

namespace {

constexpr std::size_t kSize = 32;

bool by_recv = false;
bool once = false;  // the registrations are for one event each

class Set {
 public:
  explicit Set(int fd)
      : fd_(fd), set_(by_recv ? -1 : ::epoll_create1(EPOLL_CLOEXEC)) {
    if (!by_recv) Control(EPOLL_CTL_ADD);
  }
  ~Set() {
    if (set_ >= 0) ::close(set_);
  }
  Set(const Set&) = delete;
  Set& operator=(const Set&) = delete;
  void Wait() const {
    if (by_recv) return;
    epoll_event event;
    while (::epoll_wait(set_, &event, 1, -1) < 1) {
      if (errno != EINTR) bench::Die("epoll_wait");
    }
  }
  // The caller has taken what Wait has told of.
  void Took() const {
    if (once) Control(EPOLL_CTL_MOD);
  }

 private:
  void Control(int operation) const {
    epoll_event event{};
    event.events = EPOLLIN | (once ? EPOLLONESHOT : 0u);
    if (set_ < 0 || ::epoll_ctl(set_, operation, fd_, &event) != 0) {
      bench::Die("epoll");
    }
  }

  const int fd_;
  const int set_;
};

void Serve(int fd) {
  const Set set(fd);
  char data[kSize];
  for (;;) {
    set.Wait();
    if (!bench::ReadAll(fd, data, kSize)) break;
    set.Took();
    bench::WriteAll(fd, data, kSize);
  }
  ::close(fd);
}

void Ask(int fd, const Set& set, std::int64_t times) {
  char data[kSize] = {};
  for (std::int64_t i = 0; i < times; ++i) {
    bench::WriteAll(fd, data, kSize);
    set.Wait();
    if (!bench::ReadAll(fd, data, kSize)) {
      errno = ECONNRESET;
      bench::Die("recv");
    }
    set.Took();
  }
}

// Connections that many threads serve by one set.
class SharedSet {
 public:
  explicit SharedSet(const std::vector<int>& connections)
      : left_(static_cast<int>(connections.size())) {
    Control(EPOLL_CTL_ADD, over_, EPOLLIN);
    for (const int fd : connections) Control(EPOLL_CTL_ADD, fd, Events());
  }
  ~SharedSet() {
    ::close(set_);
    ::close(over_);
  }
  SharedSet(const SharedSet&) = delete;
  SharedSet& operator=(const SharedSet&) = delete;

  // Serves, beside others, until all connections are over.
  void Serve() {
    for (;;) {
      epoll_event event;
      if (::epoll_wait(set_, &event, 1, -1) < 1) {
        if (errno != EINTR) bench::Die("epoll_wait");
        continue;
      }
      if (event.data.fd == over_) return;
      Answer(event.data.fd);
    }
  }

 private:
  static std::uint32_t Events() { return EPOLLIN | (once ? EPOLLONESHOT : 0u); }
  void Control(int operation, int fd, std::uint32_t events) const {
    epoll_event event{};
    event.events = events;
    event.data.fd = fd;
    if (::epoll_ctl(set_, operation, fd, &event) != 0) bench::Die("epoll");
  }
  // Another thread may have been told of the same request, or the same end.
  void Answer(int fd) {
    char data[kSize];
    const ssize_t got = ::recv(fd, data, kSize, MSG_DONTWAIT);
    if (got == 0) return End(fd);
    if (got < 0) {
      // A registration for one event is told of only if there is one.
      if (once || (errno != EAGAIN && errno != EBADF)) bench::Die("recv");
      return;
    }
    if (got != static_cast<ssize_t>(kSize)) bench::Die("a part of a request");
    if (once) Control(EPOLL_CTL_MOD, fd, Events());
    bench::WriteAll(fd, data, kSize);
  }
  void End(int fd) {
    if (ended_.at(static_cast<std::size_t>(fd)).exchange(true)) return;
    ::close(fd);
    if (left_.fetch_sub(1) > 1) return;
    const std::uint64_t one = 1;
    if (::write(over_, &one, sizeof one) != sizeof one) bench::Die("eventfd");
  }

  const int set_ = ::epoll_create1(EPOLL_CLOEXEC);
  const int over_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  std::array<std::atomic<bool>, 4096> ended_{};
  std::atomic<int> left_;
};

void ServeShared(int listener, int connections, int threads) {
  std::vector<int> fds;
  for (int i = 0; i < connections; ++i) fds.push_back(bench::Accept(listener));
  SharedSet set(fds);
  std::vector<std::jthread> all;
  for (int i = 0; i < threads; ++i) {
    all.emplace_back([&set] { set.Serve(); });
  }
}

// Of this process.
double CpuUs() {
  rusage use{};
  ::getrusage(RUSAGE_SELF, &use);
  return static_cast<double>(use.ru_utime.tv_sec + use.ru_stime.tv_sec) * 1e6 +
         static_cast<double>(use.ru_utime.tv_usec + use.ru_stime.tv_usec);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Many event loops, a request under way in each"};
  bench::Ends ends;
  int loops = 24;
  int idle = 0;
  bool shared = false;
  std::string wait = "epoll";
  std::int64_t iterations = 2000;
  bench::AddEnds(&app, &ends);
  app.add_option("--loops", loops, "of each end")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--idle", idle, "connections more, which are silent")
      ->check(CLI::Range(0, 1000))
      ->capture_default_str();
  app.add_option("--wait", wait, "how a thread waits")
      ->check(CLI::IsMember({"epoll", "oneshot", "recv"}))
      ->capture_default_str();
  app.add_flag("--shared", shared,
               "the server's threads wait in one set (not by recv)");
  app.add_option("--iters", iterations, "round trips of each connection")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  by_recv = wait == "recv";
  once = wait == "oneshot";
  if (shared && (by_recv || idle > 0)) {
    std::fprintf(stderr, "--shared goes with neither recv nor --idle\n");
    return 1;
  }

  return bench::RunEnds(
      ends,
      [&](int listener) {
        if (shared) return ServeShared(listener, loops, loops);
        std::vector<std::jthread> threads;
        for (int i = 0; i < idle + loops; ++i) {
          threads.emplace_back(Serve, bench::Accept(listener));
        }
      },
      [&](std::uint16_t port) {
        double us = 0;
        std::int64_t ns = 0;
        bool begun = false;
        std::vector<int> silent;
        for (int i = 0; i < idle; ++i) {
          silent.push_back(bench::Connect(ends.host, port));
          Ask(silent.back(), Set(silent.back()), 400);
        }
        // All have had some round trips, then all begin; and all have ended.
        std::barrier phase(loops, [&]() noexcept {
          us = begun ? CpuUs() - us : CpuUs();
          ns = begun ? bench::NowNs() - ns : bench::NowNs();
          begun = true;
        });
        {
          std::vector<std::jthread> threads;
          for (int i = 0; i < loops; ++i) {
            threads.emplace_back([&] {
              const int fd = bench::Connect(ends.host, port);
              {
                const Set set(fd);
                Ask(fd, set, 400);
                phase.arrive_and_wait();
                Ask(fd, set, iterations);
                phase.arrive_and_wait();
              }
              ::close(fd);
            });
          }
        }
        for (const int fd : silent) ::close(fd);
        const double all = static_cast<double>(iterations * loops);
        std::printf(
            "{\"bench\":\"loops\",\"wait\":\"%s\",\"loops\":%d,\"idle\":%d,"
            "\"iters\":%lld,\"per_s\":%.0f,\"client_cpu_us\":%.2f}\n",
            wait.c_str(), loops, idle, static_cast<long long>(iterations),
            all / static_cast<double>(ns) * 1e9, us / all);
      });
}
