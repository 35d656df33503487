#ifndef RCSOCK_TOOLS_RCSOCK_PERF_MEDIAN_H_
#define RCSOCK_TOOLS_RCSOCK_PERF_MEDIAN_H_

#include <algorithm>
#include <cstddef>
#include <vector>

namespace rcsock::perf {

// Returns the middle figure, or halfway between the middle two.  0 if there is
// none.
inline double MedianOf(std::vector<double> figures) {
  if (figures.empty()) return 0;
  std::sort(figures.begin(), figures.end());
  const std::size_t high = figures.size() / 2;
  const std::size_t low = (figures.size() - 1) / 2;
  return (figures[low] + figures[high]) / 2;
}

}  // namespace rcsock::perf

#endif  // RCSOCK_TOOLS_RCSOCK_PERF_MEDIAN_H_
