#include "tools/rcsock/perf/report.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <utility>

namespace rcsock::perf {
namespace {

constexpr std::uint64_t kSizes[] = {64,    256,   1024,   4096,
                                    16384, 65536, 262144, 1048576};
constexpr std::uint64_t kConnections[] = {1, 4, 16, 64, 256, 1024};
constexpr std::uint64_t kRates[] = {1000, 5000, 20000, 50000};
constexpr std::uint64_t kActive = 64;
constexpr std::uint64_t kSmall = 64;

nlohmann::json ToJson(const std::vector<Point>& points, const char* key) {
  nlohmann::json json = nlohmann::json::array();
  for (const Point& point : points) {
    json.push_back({{key, point.at}, {"compare", ToJson(point.rows)}});
  }
  return json;
}

// Leaves out transports that cannot do it.
void LeaveOut(std::vector<Row>* rows, Spec spec) {
  std::erase_if(*rows, [&spec](const Row& row) {
    spec.transport = row.transport;
    return !spec.WhyNot().empty();
  });
}

}  // namespace

Report Measure(Rounds* rounds, const Spec& spec, const std::string& host,
               int count) {
  const auto measure = [&](const Spec& run, const std::string& what) {
    return Compare(rounds, run, count, what + ", ");
  };
  Report report;
  report.host = host;
  report.here = ThisHost();
  report.rounds = count;
  report.date =
      fmt::format("{:%Y-%m-%d %H:%M} UTC", fmt::gmtime(std::time(nullptr)));
  report.seconds = spec.seconds;
  Spec run;
  run.seconds = spec.seconds;
  run.settle = spec.settle;
  run.mode = Mode::kMessages;
  run.size = kSmall;
  report.latency = measure(run, "latency");
  for (const Row& row : report.latency) {
    if (row.good()) report.there = row.Median().there;
  }
  for (const std::uint64_t connections : kConnections) {
    run.connections = connections;
    run.active = std::min(connections, kActive);
    run.settle = std::min(
        kMaxSettle, spec.settle + 0.002 * static_cast<double>(connections));
    report.connections.push_back(
        {connections,
         measure(run, fmt::format("{} connections", connections))});
  }
  run.connections = run.active = kRateConnections;
  run.settle = spec.settle;
  for (const std::uint64_t rate : kRates) {
    run.rate = static_cast<double>(rate);
    std::vector<Row> rows = measure(run, fmt::format("{} a second", rate));
    LeaveOut(&rows, run);
    report.rates.push_back({rate, std::move(rows)});
  }
  run.rate = 0;
  run.mode = Mode::kStream;
  run.connections = run.active = 1;
  run.settle = spec.settle;
  for (const std::uint64_t size : kSizes) {
    run.size = size;
    report.sizes.push_back(
        {size, measure(run, fmt::format("stream, messages of {}",
                                        Bytes(static_cast<double>(size))))});
  }
  return report;
}

void PrintReport(const Report& report) {
  const auto print = [](const std::vector<Row>& rows) {
    if (!rows.empty()) {
      for (const Row& row : rows) {
        if (!row.good()) continue;
        PrintComparison(row.Median().spec, rows);
        return;
      }
    }
  };
  print(report.latency);
  if (!report.sizes.empty()) print(report.sizes.back().rows);
  if (!report.connections.empty()) print(report.connections.back().rows);
  if (!report.rates.empty()) print(report.rates.back().rows);
}

nlohmann::json ToJson(const Report& report) {
  return {{"host", report.host},
          {"date", report.date},
          {"here", ToJson(report.here)},
          {"there", ToJson(report.there)},
          {"latency", ToJson(report.latency)},
          {"throughput", ToJson(report.sizes, "size")},
          {"connections", ToJson(report.connections, "connections")},
          {"rates", ToJson(report.rates, "rate")}};
}

}  // namespace rcsock::perf
