#include "tools/rcsock/perf/histogram.h"

#include <algorithm>
#include <cmath>

#include "tools/rcsock/perf/fields.h"

namespace rcsock::perf {

void Histogram::Add(const Histogram& other) {
  for (std::size_t i = 0; i < kBuckets; ++i) buckets_[i] += other.buckets_[i];
  count_ += other.count_;
  sum_ += other.sum_;
  min_ = std::min(min_, other.min_);
  max_ = std::max(max_, other.max_);
}

double Histogram::Mean() const {
  return count_ == 0 ? 0 : sum_ / static_cast<double>(count_);
}

std::uint64_t Histogram::Percentile(double q) const {
  if (count_ == 0) return 0;
  const double wanted = std::ceil(q * static_cast<double>(count_));
  const std::uint64_t rank =
      std::clamp<std::uint64_t>(static_cast<std::uint64_t>(wanted), 1, count_);
  std::uint64_t seen = 0;
  for (std::size_t i = 0; i < kBuckets; ++i) {
    seen += buckets_[i];
    if (seen < rank) continue;
    const std::uint64_t middle = Lowest(i) + (Highest(i) - Lowest(i)) / 2;
    return std::clamp(middle, min_, max_);
  }
  return max_;
}

nlohmann::json Histogram::ToJson() const {
  nlohmann::json buckets = nlohmann::json::array();
  for (std::size_t i = 0; i < kBuckets; ++i) {
    if (buckets_[i] != 0) buckets.push_back({i, buckets_[i]});
  }
  return {{"count", count_},
          {"min", min()},
          {"max", max_},
          {"sum", sum_},
          {"buckets", std::move(buckets)}};
}

Histogram Histogram::FromJson(const nlohmann::json& json) {
  constexpr std::uint64_t kMany = std::uint64_t{1} << 53;
  Histogram result;
  const nlohmann::json& buckets = Field(json, "buckets");
  if (!buckets.is_array() || buckets.size() > kBuckets) BadField("buckets");
  for (const nlohmann::json& bucket : buckets) {
    if (!bucket.is_array() || bucket.size() != 2) BadField("buckets");
    const std::uint64_t index = Number(bucket[0], "buckets", 0, kBuckets - 1);
    const std::uint64_t n = Number(bucket[1], "buckets", 1, kMany);
    result.buckets_[index] += n;
    result.count_ += n;
    if (result.count_ > kMany) BadField("buckets");
  }
  if (result.count_ != NumberField(json, "count", 0, kMany)) BadField("count");
  if (result.count_ == 0) return result;
  result.max_ = NumberField(json, "max", 0, UINT64_MAX);
  result.min_ = NumberField(json, "min", 0, result.max_);
  result.sum_ = RealField(json, "sum", 0, 1e300);
  return result;
}

}  // namespace rcsock::perf
