#ifndef RCSOCK_TOOLS_RCSOCK_PERF_REPORT_H_
#define RCSOCK_TOOLS_RCSOCK_PERF_REPORT_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tools/rcsock/perf/compare.h"
#include "tools/rcsock/perf/host.h"

namespace rcsock::perf {

// One place on a plot's horizontal axis, measured with each transport.
struct Point {
  std::uint64_t at = 0;
  std::vector<Row> rows;
};

struct Report {
  std::string host;  // the server
  HostFacts here;
  HostFacts there;
  std::string date;
  double seconds = 0;  // of each run
  int rounds = 1;      // of each figure
  std::vector<Row> latency;
  std::vector<Point> sizes;        // throughput
  std::vector<Point> connections;  // round trips a second
  std::vector<Point> rates;        // at a rate, over kRateConnections
};

constexpr std::uint64_t kRateConnections = 20;

// `spec` gives the duration and the settling.  Measure chooses the rest.
// Each figure is the median of `count` runs.
Report Measure(Rounds* rounds, const Spec& spec, const std::string& host,
               int count);
void PrintReport(const Report& report);
nlohmann::json ToJson(const Report& report);
// Returns one page of HTML that needs no other file.
std::string Page(const Report& report);

}  // namespace rcsock::perf

#endif  // RCSOCK_TOOLS_RCSOCK_PERF_REPORT_H_
