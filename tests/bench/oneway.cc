// A stream of sends one way, small or large; the time runs until the receiver
// has them all.

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "tests/bench/net.h"
#include "tests/bench/options.h"

int main(int argc, char** argv) {
  CLI::App app{"A stream of sends over one TCP connection"};
  bench::Ends ends;
  std::size_t size = 64;
  std::size_t buffer = 128 << 10;
  double seconds = 1;
  bench::AddEnds(&app, &ends);
  app.add_option("--size", size, "bytes of each send")
      ->check(CLI::Range(1, 16 << 20))
      ->capture_default_str();
  app.add_option("--buffer", buffer, "bytes of each receive")
      ->check(CLI::Range(1, 16 << 20))
      ->capture_default_str();
  app.add_option("--seconds", seconds)
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);

  return bench::RunEnds(
      ends,
      [&](int listener) {
        const int fd = bench::Accept(listener);
        std::vector<char> data(buffer);
        std::uint64_t total = 0;
        for (;;) {
          const ssize_t n = ::recv(fd, data.data(), data.size(), 0);
          if (n < 0 && errno == EINTR) continue;
          if (n < 0) bench::Die("recv");
          if (n == 0) break;
          total += static_cast<std::uint64_t>(n);
        }
        bench::WriteAll(fd, &total, sizeof total);
        ::close(fd);
      },
      [&](std::uint16_t port) {
        const int fd = bench::Connect(ends.host, port);
        const std::vector<char> data(size, 'x');
        // The clock is read once per about 64 KiB.
        const std::size_t batch = size < (64 << 10) ? (64 << 10) / size : 1;
        const auto send_for = [&](std::int64_t ns) {
          const std::int64_t end = bench::NowNs() + ns;
          std::uint64_t sends = 0;
          while (bench::NowNs() < end) {
            for (std::size_t i = 0; i < batch; ++i) {
              bench::WriteAll(fd, data.data(), size);
            }
            sends += batch;
          }
          return sends;
        };
        const auto ns = static_cast<std::int64_t>(seconds * 1e9);
        std::uint64_t sent = send_for(ns / 10) * size;  // to warm up
        const std::int64_t start = bench::NowNs();
        const std::uint64_t sends = send_for(ns);
        sent += sends * size;
        ::shutdown(fd, SHUT_WR);
        std::uint64_t received = 0;
        if (!bench::ReadAll(fd, &received, sizeof received) ||
            received != sent) {
          std::fprintf(stderr, "sent %llu bytes, received %llu\n",
                       static_cast<unsigned long long>(sent),
                       static_cast<unsigned long long>(received));
          std::exit(1);
        }
        const double took = static_cast<double>(bench::NowNs() - start) * 1e-9;
        ::close(fd);
        const auto count = static_cast<double>(sends);
        std::printf(
            "{\"bench\":\"oneway\",\"size\":%zu,\"sends_per_s\":%.0f,"
            "\"bytes_per_s\":%.0f}\n",
            size, count / took, count * static_cast<double>(size) / took);
      });
}
