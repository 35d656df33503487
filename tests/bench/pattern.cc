#include "tests/bench/pattern.h"

#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "tools/rcsock/perf/mark.h"

namespace bench {
namespace {

// TCP's windows and rcsock's rings grow with the first few long messages.
constexpr std::int64_t kLeastWarmUp = 8;

void PrintHead(const char* program, const Pattern& pattern) {
  std::printf(
      "{\"bench\":\"%s\",\"kind\":\"%s\",\"wait\":\"%s\",\"size\":%zu,"
      "\"connections\":%d,",
      program, pattern.kind.c_str(), pattern.spin ? "spin" : "sleep",
      pattern.size, pattern.connections);
}

}  // namespace

std::int64_t Pattern::WarmUpEach() const {
  return std::max<std::int64_t>(kLeastWarmUp, MeasuredEach() / 10);
}

std::int64_t Pattern::MeasuredEach() const {
  return std::max<std::int64_t>(1, count / connections);
}

void AddPattern(CLI::App* app, Pattern* pattern) {
  app->add_option("--pattern", pattern->kind)
      ->check(CLI::IsMember({"pingpong", "oneway"}))
      ->capture_default_str();
  app->add_option("--size", pattern->size, "bytes of a message")
      ->check(CLI::Range(1, 16 << 20))
      ->capture_default_str();
  app->add_option("--connections", pattern->connections)
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app->add_option("--count", pattern->count, "messages, or round trips")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app->add_flag("--spin", pattern->spin, "poll, instead of sleeping");
  app->add_option("--limit", pattern->limit, "seconds until it gives up")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
}

void Limit(const Pattern& pattern) {
  itimerval timer{};
  timer.it_value.tv_sec =
      static_cast<time_t>(std::max(1.0, std::ceil(pattern.limit)));
  ::setitimer(ITIMER_REAL, &timer, nullptr);
}

void SayListening() {
  std::puts("listening");
  std::fflush(stdout);
}

void Mark() { rcsock::perf::Mark(); }

Marks::Marks(const Pattern& pattern) {
  const Steps steps = pattern.oneway()
                          ? Steps{pattern.connections, pattern.connections}
                          : pattern.RoundTrips();
  first_ = steps.warm_up;
  last_ = steps.warm_up + steps.measured;
}

void Marks::Next() {
  ++seen_;
  if (seen_ == first_ || seen_ == last_) Mark();
}

void PrintRoundTrips(const char* program, const Pattern& pattern, Cost cost) {
  PrintHead(program, pattern);
  // Half a round trip, as is the custom for latencies.
  std::printf("\"us\":%.3f,\"best_us\":%.3f}\n", cost.median_ns / 2000,
              cost.best_ns / 2000);
}

void PrintOneWay(const char* program, const Pattern& pattern,
                 std::int64_t messages, std::int64_t ns) {
  PrintHead(program, pattern);
  const double seconds = static_cast<double>(ns) * 1e-9;
  const double rate = static_cast<double>(messages) / seconds;
  std::printf("\"seconds\":%.4f,\"mps\":%.0f,\"MBps\":%.3f}\n", seconds, rate,
              rate * static_cast<double>(pattern.size) * 1e-6);
}

}  // namespace bench
