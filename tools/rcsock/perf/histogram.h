#ifndef RCSOCK_TOOLS_RCSOCK_PERF_HISTOGRAM_H_
#define RCSOCK_TOOLS_RCSOCK_PERF_HISTOGRAM_H_

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>

namespace rcsock::perf {

// A log-linear histogram of nanoseconds.  It is exact below 128.  Above, each
// power of two has 64 buckets, so a value is known to within 1.6%.  Its size is
// fixed, and to record a value takes a few instructions.
class Histogram {
 public:
  static constexpr std::size_t kBuckets = 57 * 64 + 128;

  static constexpr std::size_t Index(std::uint64_t value) {
    if (value < 128) return static_cast<std::size_t>(value);
    const unsigned shift = static_cast<unsigned>(std::bit_width(value)) - 7;
    return shift * 64 + static_cast<std::size_t>(value >> shift);
  }
  // The smallest and the largest value of a bucket.
  static constexpr std::uint64_t Lowest(std::size_t index) {
    if (index < 128) return index;
    const std::size_t shift = index / 64 - 1;
    return static_cast<std::uint64_t>(index - shift * 64) << shift;
  }
  static constexpr std::uint64_t Highest(std::size_t index) {
    if (index < 128) return index;
    return Lowest(index) + ((std::uint64_t{1} << (index / 64 - 1)) - 1);
  }

  void Record(std::uint64_t value) {
    ++buckets_[Index(value)];
    ++count_;
    sum_ += static_cast<double>(value);
    if (value < min_) min_ = value;
    if (value > max_) max_ = value;
  }
  void Add(const Histogram& other);

  std::uint64_t count() const { return count_; }
  std::uint64_t min() const { return count_ == 0 ? 0 : min_; }
  std::uint64_t max() const { return max_; }
  double Mean() const;
  // Returns the value that a part `q` (0 to 1) of all values does not exceed,
  // as the middle of its bucket.  Returns 0 if there are no values.
  std::uint64_t Percentile(double q) const;
  std::uint64_t bucket(std::size_t index) const { return buckets_[index]; }

  // {"count", "min", "max", "sum", "buckets": [[index, n], ...]}
  nlohmann::json ToJson() const;
  // Throws Error if the JSON is no histogram.
  static Histogram FromJson(const nlohmann::json& json);

 private:
  std::array<std::uint64_t, kBuckets> buckets_{};
  std::uint64_t count_ = 0;
  std::uint64_t min_ = UINT64_MAX;
  std::uint64_t max_ = 0;
  double sum_ = 0;
};

}  // namespace rcsock::perf

#endif  // RCSOCK_TOOLS_RCSOCK_PERF_HISTOGRAM_H_
