// How long a connection takes to get its lane: small messages go to and fro
// until the kernel's TCP sends nothing more for a round trip.

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "tests/bench/net.h"
#include "tests/bench/options.h"

namespace {

constexpr std::size_t kSize = 64;

// -1: the kernel does not tell.
std::int64_t SegmentsSent(int fd) {
  tcp_info info{};
  socklen_t length = sizeof info;
  return ::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) == 0
             ? info.tcpi_segs_out
             : -1;
}

struct Promotion {
  double us;
  std::int64_t trips;
};

// Without one within the limit: negative.
Promotion Promote(const bench::Ends& ends, std::uint16_t port,
                  std::int64_t limit_ns) {
  const int fd = bench::Connect(ends.host, port);
  const std::int64_t start = bench::NowNs();
  char message[kSize] = {};
  Promotion result{-1, 0};
  for (;;) {
    const std::int64_t began = bench::NowNs();
    if (began - start > limit_ns) break;
    const std::int64_t before = SegmentsSent(fd);
    bench::WriteAll(fd, message, sizeof message);
    if (!bench::ReadAll(fd, message, sizeof message)) {
      errno = ECONNRESET;
      bench::Die("recv");
    }
    if (SegmentsSent(fd) == before) {
      result.us = static_cast<double>(began - start) / 1e3;
      break;
    }
    ++result.trips;
  }
  ::close(fd);
  return result;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Time until a new TCP connection is on a lane"};
  bench::Ends ends;
  std::int64_t iterations = 200;
  std::int64_t limit_ms = 2000;
  bench::AddEnds(&app, &ends);
  app.add_option("--iters", iterations, "connections, one after the other")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--limit-ms", limit_ms, "of each")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);

  return bench::RunEnds(
      ends,
      [&](int listener) {
        char message[kSize];
        for (;;) {
          const int fd = bench::Accept(listener);
          bool any = false;
          while (bench::ReadAll(fd, message, sizeof message)) {
            any = true;
            bench::WriteAll(fd, message, sizeof message);
          }
          ::close(fd);
          // Whoever connects and says nothing is the last.
          if (!any) return;
        }
      },
      [&](std::uint16_t port) {
        std::vector<double> times;
        std::vector<std::int64_t> trips;
        std::int64_t never = 0;
        // The first makes the processes meet.
        for (std::int64_t i = -1; i < iterations; ++i) {
          const Promotion one = Promote(ends, port, limit_ms * 1'000'000);
          if (i < 0) continue;
          if (one.us < 0) {
            ++never;
            continue;
          }
          times.push_back(one.us);
          trips.push_back(one.trips);
        }
        ::close(bench::Connect(ends.host, port));
        std::sort(times.begin(), times.end());
        std::sort(trips.begin(), trips.end());
        const auto at = [](const auto& sorted, std::size_t percent) {
          return sorted.empty() ? 0
                                : sorted[(sorted.size() - 1) * percent / 100];
        };
        std::printf(
            "{\"bench\":\"promotion\",\"iters\":%lld,\"never\":%lld,"
            "\"us\":%.1f,\"best_us\":%.1f,\"p90_us\":%.1f,\"p99_us\":%.1f,"
            "\"trips\":%lld}\n",
            static_cast<long long>(iterations), static_cast<long long>(never),
            at(times, 50), at(times, 0), at(times, 90), at(times, 99),
            static_cast<long long>(at(trips, 50)));
      });
}
