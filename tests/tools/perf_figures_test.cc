// The histogram and what comes from a peer, without processes.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "tools/rcsock/perf/error.h"
#include "tools/rcsock/perf/histogram.h"
#include "tools/rcsock/perf/median.h"
#include "tools/rcsock/perf/outcome.h"
#include "tools/rcsock/perf/spec.h"

namespace rcsock::perf {
namespace {

using nlohmann::json;

TEST(Median, OfAnEvenNumberIsHalfway) {
  EXPECT_EQ(MedianOf({}), 0);
  EXPECT_EQ(MedianOf({7}), 7);
  EXPECT_EQ(MedianOf({9, 1}), 5);
  EXPECT_EQ(MedianOf({9, 1, 2}), 2);
  EXPECT_EQ(MedianOf({100, 1, 4, 2}), 3);
}

TEST(Histogram, BucketsJoinWithoutGapOrOverlap) {
  for (std::size_t i = 0; i + 1 < Histogram::kBuckets; ++i) {
    ASSERT_EQ(Histogram::Highest(i) + 1, Histogram::Lowest(i + 1)) << i;
    ASSERT_EQ(Histogram::Index(Histogram::Lowest(i)), i);
    ASSERT_EQ(Histogram::Index(Histogram::Highest(i)), i);
  }
  EXPECT_EQ(Histogram::Lowest(0), 0u);
  EXPECT_EQ(Histogram::Index(UINT64_MAX), Histogram::kBuckets - 1);
  EXPECT_EQ(Histogram::Highest(Histogram::kBuckets - 1), UINT64_MAX);
}

TEST(Histogram, BucketsAreNarrow) {
  for (std::size_t i = 128; i < Histogram::kBuckets; ++i) {
    const auto low = static_cast<double>(Histogram::Lowest(i));
    const auto high = static_cast<double>(Histogram::Highest(i));
    ASSERT_LE((high - low) / low, 1.0 / 64) << i;
  }
}

TEST(Histogram, PercentilesAreThoseOfTheSortedValues) {
  std::mt19937_64 random(1);
  std::lognormal_distribution<double> times(8, 2);
  Histogram histogram;
  std::vector<std::uint64_t> values;
  double sum = 0;
  for (int i = 0; i < 10007; ++i) {
    values.push_back(static_cast<std::uint64_t>(times(random)));
    histogram.Record(values.back());
    sum += static_cast<double>(values.back());
  }
  std::sort(values.begin(), values.end());
  for (const double q : {0.0, 0.001, 0.5, 0.9, 0.99, 0.999, 0.9999, 1.0}) {
    const auto rank = static_cast<std::size_t>(
        std::clamp(std::ceil(q * static_cast<double>(values.size())), 1.0,
                   static_cast<double>(values.size())));
    const auto exact = static_cast<double>(values[rank - 1]);
    EXPECT_NEAR(static_cast<double>(histogram.Percentile(q)), exact,
                exact / 64 + 1)
        << q;
  }
  EXPECT_EQ(histogram.count(), values.size());
  EXPECT_EQ(histogram.min(), values.front());
  EXPECT_EQ(histogram.max(), values.back());
  EXPECT_DOUBLE_EQ(histogram.Mean(), sum / static_cast<double>(values.size()));
}

TEST(Histogram, FewValues) {
  Histogram histogram;
  EXPECT_EQ(histogram.Percentile(0.5), 0u);
  EXPECT_EQ(histogram.Mean(), 0);
  histogram.Record(1'000'003);
  for (const double q : {0.0, 0.5, 1.0}) {
    EXPECT_EQ(histogram.Percentile(q), 1'000'003u);
  }
}

TEST(Histogram, AddIsAsIfAllHadBeenRecorded) {
  Histogram a;
  Histogram b;
  Histogram both;
  for (std::uint64_t i = 1; i < 5000; i += 3) {
    (i % 2 == 0 ? a : b).Record(i * i);
    both.Record(i * i);
  }
  a.Add(b);
  EXPECT_EQ(a.ToJson(), both.ToJson());
  a.Add(Histogram());
  EXPECT_EQ(a.ToJson(), both.ToJson());
}

TEST(Histogram, ComesBackFromJson) {
  Histogram histogram;
  for (std::uint64_t i = 0; i < 64; ++i)
    histogram.Record(std::uint64_t{1} << i);
  const json text = json::parse(histogram.ToJson().dump());
  EXPECT_EQ(Histogram::FromJson(text).ToJson(), histogram.ToJson());
  EXPECT_EQ(Histogram::FromJson(Histogram().ToJson()).count(), 0u);
}

TEST(Histogram, WhatIsNoneIsRefused) {
  Histogram histogram;
  histogram.Record(5);
  histogram.Record(900);
  const json good = histogram.ToJson();
  const auto refused = [&](const char* field, const json& value) {
    json bad = good;
    bad[field] = value;
    EXPECT_THROW(Histogram::FromJson(bad), Error) << bad.dump();
  };
  refused("count", 3);
  refused("count", -1);
  refused("count", "2");
  refused("min", 901);
  refused("sum", -1);
  refused("sum", nullptr);
  refused("buckets", json::array({{0}}));
  refused("buckets", json::array({{Histogram::kBuckets, 1}}));
  refused("buckets", json::array({{-1, 1}}));
  refused("buckets", json::array({{1, 0}}));
  refused("buckets", json::array({{1, UINT64_MAX}, {2, UINT64_MAX}}));
  refused("buckets", json::object());
  EXPECT_THROW(Histogram::FromJson(json::array()), Error);
  json bad = good;
  bad.erase("buckets");
  EXPECT_THROW(Histogram::FromJson(bad), Error);
}

TEST(Spec, ComesBackFromJson) {
  Spec spec;
  spec.mode = Mode::kMessages;
  spec.transport = Transport::kRdma;
  spec.connections = 10000;
  spec.active = 64;
  spec.rate = 2.5;
  spec.size = 1;
  const json text = json::parse(ToJson(spec).dump());
  EXPECT_EQ(ToJson(SpecFromJson(text)), ToJson(spec));
}

TEST(Spec, WhatIsOutOfBoundsIsRefused) {
  const json good = ToJson(Spec());
  EXPECT_NO_THROW(SpecFromJson(good));
  const auto refused = [&](const char* field, const json& value) {
    json bad = good;
    bad[field] = value;
    EXPECT_THROW(SpecFromJson(bad), Error) << bad.dump();
    bad.erase(field);
    EXPECT_THROW(SpecFromJson(bad), Error) << bad.dump();
  };
  refused("mode", "nonsense");
  refused("mode", 0);
  refused("transport", "");
  refused("direction", std::string(1000, 'x'));
  refused("seconds", 0);
  refused("seconds", 1e9);
  refused("bytes", kMaxBytes + 1);
  refused("size", 0);
  refused("size", kMaxSize + 1);
  refused("size", -1);
  refused("size", 1.5);
  refused("connections", 0);
  refused("connections", kMaxParallel + 1);
  refused("active", 2);
  refused("rate", -1);
  refused("rate", kMaxRate * 2);
  refused("settle", -1);
  refused("traced", 1);
}

TEST(Outcome, SilentFallbackIsNotSuccess) {
  Outcome run;
  run.spec.transport = Transport::kRdma;
  run.client.tx_bytes = 1000;
  run.client.tcp_bytes = 10;
  EXPECT_DOUBLE_EQ(run.Share(), 0.99);
  EXPECT_TRUE(run.LaneUsed());
  EXPECT_EQ(run.Lane(), "rdma");
  run.client.tcp_bytes = 1010;
  EXPECT_DOUBLE_EQ(run.Share(), 0);
  EXPECT_FALSE(run.LaneUsed());
  EXPECT_EQ(run.Lane(), "tcp");
  run.client.tcp_bytes = 100;
  EXPECT_FALSE(run.LaneUsed());
}

TEST(Outcome, ShortConnectionsCountByThePreload) {
  Outcome run;
  run.spec.mode = Mode::kShort;
  run.spec.transport = Transport::kShm;
  run.client.tx_bytes = 1000;
  EXPECT_FALSE(run.ShareKnown());
  EXPECT_FALSE(run.LaneUsed());
  EXPECT_EQ(run.Lane(), "not known");
  EXPECT_TRUE(ToJson(run)["lane_share"].is_null());
  run.lanes = {{"tcp", 1000}, {"shm", 0}};
  EXPECT_TRUE(run.ShareKnown());
  EXPECT_FALSE(run.LaneUsed());
  EXPECT_EQ(run.Lane(), "tcp");
  run.lanes = {{"tcp", 10}, {"shm", 990}};
  EXPECT_DOUBLE_EQ(run.Share(), 0.99);
  EXPECT_TRUE(run.LaneUsed());
  EXPECT_EQ(run.Lane(), "shm");
}

TEST(Outcome, CallsOfTheClockDoNotCount) {
  EXPECT_DOUBLE_EQ(
      CallsPerMessage({{"clock_gettime", 100}, {"recvfrom", 30}}, 20), 1.5);
  EXPECT_DOUBLE_EQ(CallsPerMessage({{"recvfrom", 30}}, 0), 0);
  EXPECT_THROW(CallsFromJson(json::array()), Error);
  EXPECT_THROW(CallsFromJson({{"read", -1}}), Error);
}

}  // namespace
}  // namespace rcsock::perf
