// What the machine itself can do: round trips between two pinned processes
// through two cache lines of shared memory.  No rcsock, no sockets, no sleep.
// It spins as well as rcsock does: one look at a time (base::LookOnce) is a
// sixth faster where the CPUs share a cache, and no slower elsewhere.

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>

#include "tests/bench/options.h"
#include "tests/bench/sample.h"

namespace {

struct Lines {
  alignas(128) std::atomic<std::uint64_t> ping;
  alignas(128) std::atomic<std::uint64_t> pong;
};
constexpr std::uint64_t kStop = ~0ULL;

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Round trips through two cache lines"};
  std::int64_t iterations = 1'000'000;
  app.add_option("--iters", iterations)
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);

  void* memory = ::mmap(nullptr, sizeof(Lines), PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) bench::Die("mmap");
  auto* lines = new (memory) Lines{};

  const pid_t child = ::fork();
  if (child < 0) bench::Die("fork");
  if (child == 0) {
    bench::Pin(1);
    for (std::uint64_t next = 1;; ++next) {
      std::uint64_t seen;
      for (;;) {
        seen = lines->ping.load(std::memory_order_acquire);
        if (seen == next || seen == kStop) break;
        __builtin_ia32_lfence();
      }
      if (seen == kStop) ::_exit(0);
      lines->pong.store(next, std::memory_order_release);
    }
  }
  bench::Pin(0);
  std::uint64_t next = 0;
  const bench::Cost cost = bench::Measure(iterations, [&] {
    ++next;
    lines->ping.store(next, std::memory_order_release);
    while (lines->pong.load(std::memory_order_acquire) != next) {
      __builtin_ia32_lfence();
    }
  });
  lines->ping.store(kStop, std::memory_order_release);
  int status = 0;
  if (::waitpid(child, &status, 0) != child || status != 0) {
    bench::Die("child");
  }
  std::printf(
      "{\"bench\":\"bare_pingpong\",\"iters\":%lld,\"ns\":%.1f,"
      "\"best_ns\":%.1f}\n",
      static_cast<long long>(iterations), cost.median_ns, cost.best_ns);
  return 0;
}
