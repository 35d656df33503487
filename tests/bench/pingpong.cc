// Round trips of small messages over one TCP connection, one at a time.

#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "tests/bench/net.h"
#include "tests/bench/options.h"
#include "tests/bench/sample.h"

namespace {

// One end of the connection, in one of the three modes.
class End {
 public:
  End(int fd, const std::string& mode)
      : fd_(fd), blocking_(mode == "blocking") {
    if (!blocking_) bench::SetNonBlocking(fd);
    if (mode != "epoll") return;
    epoll_ = ::epoll_create1(EPOLL_CLOEXEC);
    epoll_event event{};
    event.events = EPOLLIN;
    if (epoll_ < 0 || ::epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event) != 0) {
      bench::Die("epoll");
    }
  }
  ~End() {
    if (epoll_ >= 0) ::close(epoll_);
    ::close(fd_);
  }
  End(const End&) = delete;
  End& operator=(const End&) = delete;

  // False at the end of the stream.
  bool Read(char* data, std::size_t size) {
    if (blocking_) return bench::ReadAll(fd_, data, size);
    while (size > 0) {
      // An event loop asks for readiness before it reads; a busy one only
      // reads.
      if (epoll_ >= 0) Wait();
      const ssize_t n = ::recv(fd_, data, size, 0);
      if (n == 0) return false;
      if (n < 0) {
        if (errno != EAGAIN && errno != EINTR) bench::Die("recv");
        continue;
      }
      data += n;
      size -= static_cast<std::size_t>(n);
    }
    return true;
  }

  void Write(const char* data, std::size_t size) {
    if (blocking_) return bench::WriteAll(fd_, data, size);
    while (size > 0) {
      const ssize_t n = ::send(fd_, data, size, MSG_NOSIGNAL);
      if (n < 0) {
        if (errno != EAGAIN && errno != EINTR) bench::Die("send");
        continue;
      }
      data += n;
      size -= static_cast<std::size_t>(n);
    }
  }

 private:
  void Wait() {
    epoll_event event;
    while (::epoll_wait(epoll_, &event, 1, -1) < 1) {
      if (errno != EINTR) bench::Die("epoll_wait");
    }
  }

  const int fd_;
  const bool blocking_;
  int epoll_ = -1;
};

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Round trips over one TCP connection"};
  bench::Ends ends;
  std::string mode = "blocking";
  std::size_t size = 8;
  std::int64_t iterations = 100'000;
  bench::AddEnds(&app, &ends);
  app.add_option("--mode", mode)
      ->check(CLI::IsMember({"blocking", "epoll", "nonblocking"}))
      ->capture_default_str();
  app.add_option("--size", size, "bytes each way")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--iters", iterations)
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);

  return bench::RunEnds(
      ends,
      [&](int listener) {
        End end(bench::Accept(listener), mode);
        std::vector<char> message(size);
        while (end.Read(message.data(), size)) end.Write(message.data(), size);
      },
      [&](std::uint16_t port) {
        End end(bench::Connect(ends.host, port), mode);
        std::vector<char> message(size, 'x');
        const bench::Cost cost = bench::Measure(iterations, [&] {
          end.Write(message.data(), size);
          if (!end.Read(message.data(), size)) {
            errno = ECONNRESET;
            bench::Die("recv");
          }
        });
        std::printf(
            "{\"bench\":\"pingpong\",\"mode\":\"%s\",\"size\":%zu,"
            "\"iters\":%lld,\"ns\":%.1f,\"best_ns\":%.1f}\n",
            mode.c_str(), size, static_cast<long long>(iterations),
            cost.median_ns, cost.best_ns);
      });
}
