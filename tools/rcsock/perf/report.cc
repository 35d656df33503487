#include "tools/rcsock/perf/report.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <ctime>

namespace rcsock::perf {
namespace {

constexpr std::uint64_t kSizes[] = {64,    256,   1024,   4096,
                                    16384, 65536, 262144, 1048576};
constexpr std::uint64_t kConnections[] = {1, 4, 16, 64, 256, 1024};
constexpr std::uint64_t kActive = 64;
constexpr std::uint64_t kSmall = 64;

std::string Here() {
  utsname name{};
  ::uname(&name);
  return fmt::format("Linux {}, {} CPUs", name.release,
                     ::sysconf(_SC_NPROCESSORS_ONLN));
}

nlohmann::json ToJson(const std::vector<Point>& points, const char* key) {
  nlohmann::json json = nlohmann::json::array();
  for (const Point& point : points) {
    json.push_back({{key, point.at}, {"compare", ToJson(point.rows)}});
  }
  return json;
}

}  // namespace

Report Measure(Rounds* rounds, const Spec& spec, const std::string& host) {
  Report report;
  report.host = host;
  report.here = Here();
  report.date =
      fmt::format("{:%Y-%m-%d %H:%M} UTC", fmt::gmtime(std::time(nullptr)));
  report.seconds = spec.seconds;
  Spec run;
  run.seconds = spec.seconds;
  run.settle = spec.settle;
  run.mode = Mode::kMessages;
  run.size = kSmall;
  report.latency = rounds->Run(run, "latency");
  for (const std::uint64_t connections : kConnections) {
    run.connections = connections;
    run.active = std::min(connections, kActive);
    run.settle = std::min(
        kMaxSettle, spec.settle + 0.002 * static_cast<double>(connections));
    report.connections.push_back(
        {connections,
         rounds->Run(run, fmt::format("{} connections", connections))});
  }
  run.mode = Mode::kStream;
  run.connections = run.active = 1;
  run.settle = spec.settle;
  for (const std::uint64_t size : kSizes) {
    run.size = size;
    report.sizes.push_back(
        {size,
         rounds->Run(run, fmt::format("stream, messages of {}",
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
}

nlohmann::json ToJson(const Report& report) {
  return {{"host", report.host},
          {"date", report.date},
          {"here", report.here},
          {"latency", ToJson(report.latency)},
          {"throughput", ToJson(report.sizes, "size")},
          {"connections", ToJson(report.connections, "connections")}};
}

}  // namespace rcsock::perf
