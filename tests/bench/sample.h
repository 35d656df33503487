#ifndef RCSOCK_TESTS_BENCH_SAMPLE_H_
#define RCSOCK_TESTS_BENCH_SAMPLE_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "tests/bench/net.h"

namespace bench {

struct Cost {
  double median_ns;
  double best_ns;
};

constexpr int kBatches = 100;

// How often Measure calls `step`.
struct Steps {
  std::int64_t warm_up;
  std::int64_t measured;
};
inline Steps StepsOf(std::int64_t iterations, std::int64_t least_warm_up) {
  const std::int64_t all =
      std::max<std::int64_t>(1, iterations / kBatches) * kBatches;
  return {std::max(all / 10, least_warm_up), all};
}

// The cost of one call of `step`: a tenth of `iterations` to warm up, or
// `least_warm_up`, then, after `begin`, a hundred batches, of which it takes
// the median and the best.  The clock is read once per batch.
template <typename Step, typename Begin = void (*)()>
Cost Measure(
    std::int64_t iterations, Step step, std::int64_t least_warm_up = 0,
    Begin begin = [] {}) {
  const Steps steps = StepsOf(iterations, least_warm_up);
  const std::int64_t batch = steps.measured / kBatches;
  for (std::int64_t i = 0; i < steps.warm_up; ++i) step();
  begin();
  std::vector<double> costs;
  costs.reserve(kBatches);
  for (int b = 0; b < kBatches; ++b) {
    const std::int64_t start = NowNs();
    for (std::int64_t i = 0; i < batch; ++i) step();
    costs.push_back(static_cast<double>(NowNs() - start) /
                    static_cast<double>(batch));
  }
  std::sort(costs.begin(), costs.end());
  return {costs[kBatches / 2], costs[0]};
}

}  // namespace bench

#endif  // RCSOCK_TESTS_BENCH_SAMPLE_H_
