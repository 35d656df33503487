#ifndef RCSOCK_TOOLS_RCSOCK_PERF_MEDIAN_H_
#define RCSOCK_TOOLS_RCSOCK_PERF_MEDIAN_H_

#include <algorithm>
#include <cstddef>
#include <vector>

namespace rcsock::perf {

// The one in the middle, or halfway between the two that are; 0 of none.
inline double MedianOf(std::vector<double> figures) {
  if (figures.empty()) return 0;
  std::sort(figures.begin(), figures.end());
  const std::size_t high = figures.size() / 2;
  const std::size_t low = (figures.size() - 1) / 2;
  return (figures[low] + figures[high]) / 2;
}

}  // namespace rcsock::perf

#endif  // RCSOCK_TOOLS_RCSOCK_PERF_MEDIAN_H_
