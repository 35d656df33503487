// Short connections, one after the other: connect, a request and an answer (or
// several, in turn), close.

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "tests/bench/net.h"
#include "tests/bench/options.h"
#include "tests/bench/sample.h"

int main(int argc, char** argv) {
  CLI::App app{"Short TCP connections, one at a time"};
  bench::Ends ends;
  std::size_t request = 100;
  std::size_t answer = 1024;
  int requests = 1;
  std::int64_t iterations = 20'000;
  bench::AddEnds(&app, &ends);
  app.add_option("--request", request, "bytes")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--answer", answer, "bytes")
      ->check(CLI::Range(1, 16 << 20))
      ->capture_default_str();
  app.add_option("--requests", requests, "of each connection")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--iters", iterations, "connections")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);

  return bench::RunEnds(
      ends,
      [&](int listener) {
        std::vector<char> in(request);
        const std::vector<char> out(answer, 'a');
        for (;;) {
          const int fd = bench::Accept(listener);
          // Whoever connects and says nothing is the last.
          bool said = false;
          while (bench::ReadAll(fd, in.data(), in.size())) {
            bench::WriteAll(fd, out.data(), out.size());
            said = true;
          }
          ::close(fd);
          if (!said) return;
        }
      },
      [&](std::uint16_t port) {
        const std::vector<char> out(request, 'r');
        std::vector<char> in(answer);
        const bench::Cost cost = bench::Measure(iterations, [&] {
          const int fd = bench::Connect(ends.host, port);
          for (int i = 0; i < requests; ++i) {
            bench::WriteAll(fd, out.data(), out.size());
            if (!bench::ReadAll(fd, in.data(), in.size())) {
              errno = ECONNRESET;
              bench::Die("recv");
            }
          }
          ::close(fd);
        });
        ::close(bench::Connect(ends.host, port));
        std::printf(
            "{\"bench\":\"short\",\"request\":%zu,\"answer\":%zu,"
            "\"requests\":%d,\"iters\":%lld,\"ns\":%.1f,\"best_ns\":%.1f}\n",
            request, answer, requests, static_cast<long long>(iterations),
            cost.median_ns, cost.best_ns);
      });
}
