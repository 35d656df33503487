// What the machine itself can do with many connections: a request and its
// answer through one of N pairs of cache lines, chosen at random for each, and
// one line more that tells the server which.  No rcsock, no sockets, no sleep.
// Few pairs stay in the cores' own caches, many do not: the difference is what
// nobody can avoid who gives each connection memory of its own.

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <random>

#include "tests/bench/options.h"
#include "tests/bench/sample.h"

namespace {

struct Pair {
  alignas(128) std::atomic<std::uint64_t> request;
  alignas(128) std::atomic<std::uint64_t> answer;
};

// Which pair has a request: its number above the number of the request.
struct Ready {
  alignas(128) std::atomic<std::uint64_t> word;
};
constexpr std::uint64_t kStop = ~0ULL;
constexpr int kPairBits = 24;

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Round trips through one of many pairs of cache lines"};
  std::int64_t iterations = 1'000'000;
  std::size_t pairs = 10'000;
  std::size_t stride = sizeof(Pair);
  app.add_option("--iters", iterations)
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--pairs", pairs)
      ->check(CLI::Range(1, (1 << kPairBits) - 1))
      ->capture_default_str();
  app.add_option("--stride", stride, "bytes from one pair to the next")
      ->check(CLI::Range(sizeof(Pair), std::size_t{1} << 20))
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  stride = stride / sizeof(Pair) * sizeof(Pair);

  void* memory =
      ::mmap(nullptr, sizeof(Pair) + pairs * stride, PROT_READ | PROT_WRITE,
             MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) bench::Die("mmap");
  auto* ready = new (memory) Ready{};
  auto* base = static_cast<std::byte*>(memory) + sizeof(Pair);
  const auto at = [&](std::uint64_t pair) {
    return reinterpret_cast<Pair*>(base + pair * stride);
  };

  const pid_t child = ::fork();
  if (child < 0) bench::Die("fork");
  if (child == 0) {
    bench::Pin(1);
    std::uint64_t last = 0;
    for (;;) {
      std::uint64_t seen;
      do {
        seen = ready->word.load(std::memory_order_acquire);
      } while (seen == last);
      if (seen == kStop) ::_exit(0);
      last = seen;
      Pair* pair = at(seen & ((1 << kPairBits) - 1));
      pair->answer.store(pair->request.load(std::memory_order_acquire),
                         std::memory_order_release);
    }
  }
  bench::Pin(0);
  std::uint64_t next = 0;
  std::minstd_rand random(1);
  const auto round_trip = [&](std::uint64_t which) {
    Pair* pair = at(which);
    ++next;
    pair->request.store(next, std::memory_order_release);
    ready->word.store(next << kPairBits | which, std::memory_order_release);
    while (pair->answer.load(std::memory_order_acquire) != next) {
    }
  };
  for (std::uint64_t i = 0; i < pairs; ++i) round_trip(i);
  const bench::Cost cost =
      bench::Measure(iterations, [&] { round_trip(random() % pairs); });
  ready->word.store(kStop, std::memory_order_release);
  int status = 0;
  if (::waitpid(child, &status, 0) != child || status != 0) {
    bench::Die("child");
  }
  std::printf(
      "{\"bench\":\"bare_many\",\"pairs\":%zu,\"stride\":%zu,\"iters\":%lld,"
      "\"ns\":%.1f,\"best_ns\":%.1f}\n",
      pairs, stride, static_cast<long long>(iterations), cost.median_ns,
      cost.best_ns);
  return 0;
}
