#include "tools/rcsock/perf/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "tools/rcsock/perf/error.h"
#include "tools/rcsock/perf/median.h"

namespace rcsock::perf {
namespace {

std::string WhyNotUsed(const Outcome& outcome) {
  if (!outcome.ShareKnown()) {
    return "NOT KNOWN: no statistics say how much was on the lane";
  }
  const std::string why = outcome.WhyTcp();
  return fmt::format("NOT USED: {} of the bytes on the lane{}",
                     Percent(outcome.Share()),
                     why.empty() ? "" : " (" + why + ")");
}

// Returns the outcome in words, for readers who do not know rcsock's keys.
std::string InWords(const Outcome& outcome) {
  const std::string why = outcome.WhyTcpInWords();
  if (outcome.Share() < 0.01) {
    return "its bytes stayed on TCP" + (why.empty() ? "" : ": " + why);
  }
  return fmt::format("only {} of its bytes were on the lane{}",
                     Percent(outcome.Share()), why.empty() ? "" : ": " + why);
}

// Returns how many times better `row` is than `base`.
double Ratio(const Row& row, const Row& base) {
  const double a = row.MedianFigure();
  const double b = base.MedianFigure();
  if (a <= 0 || b <= 0) return 0;
  return row.Median().MoreIsBetter() ? a / b : b / a;
}

const Row* Base(const std::vector<Row>& rows) {
  for (const Row& row : rows) {
    if (row.transport == Transport::kTcp && row.good()) return &row;
  }
  return nullptr;
}

}  // namespace

double Row::MedianFigure() const {
  std::vector<double> figures;
  for (const Outcome& run : runs) figures.push_back(run.Figure());
  return MedianOf(std::move(figures));
}

std::pair<double, double> Row::Spread() const {
  double least = runs.front().Figure();
  double most = least;
  for (const Outcome& run : runs) {
    least = std::min(least, run.Figure());
    most = std::max(most, run.Figure());
  }
  return {least, most};
}

const Outcome& Row::Median() const {
  std::vector<const Outcome*> sorted;
  for (const Outcome& run : runs) sorted.push_back(&run);
  std::sort(sorted.begin(), sorted.end(),
            [](const Outcome* a, const Outcome* b) {
              return a->MoreIsBetter() ? a->Figure() > b->Figure()
                                       : a->Figure() < b->Figure();
            });
  return *sorted[sorted.size() / 2];
}

Rounds::Rounds(std::string host, std::uint16_t port,
               const std::vector<Transport>& transports)
    : host_(std::move(host)),
      port_(port),
      client_(std::make_unique<Client>(host_, port_)) {
  for (const Transport transport : transports) {
    entries_.push_back({transport, "", ""});
  }
}

void Rounds::Watch(double interval, bool lines) {
  interval_ = interval;
  lines_ = lines && interval > 0;
}

std::vector<Row> Rounds::Run(Spec spec, const std::string& what) {
  std::vector<Row> rows;
  for (Entry& entry : entries_) {
    Row& row = rows.emplace_back();
    row.transport = spec.transport = entry.transport;
    row.failed = entry.failed;
    row.plain = entry.plain;
    if (row.failed.empty()) row.failed = row.plain = spec.WhyNot();
    if (!row.failed.empty()) continue;
    const std::string run = fmt::format("{}: {}", what, Name(spec.transport));
    if (lines_) {
      fmt::print("{}\n", run);
      std::fflush(stdout);
    } else {
      progress_.Show(run);
    }
    try {
      Outcome outcome =
          client()->Run(spec, interval_, [&](const Interval& interval) {
            if (lines_) PrintInterval(spec, interval);
          });
      if (outcome.LaneUsed() && outcome.ShareKnown()) {
        row.runs.push_back(std::move(outcome));
      } else {
        row.failed = WhyNotUsed(outcome);
        row.plain = InWords(outcome);
        if (outcome.Share() < 0.01) {
          entry.failed = row.failed;
          entry.plain = row.plain;
        }
      }
    } catch (const Error& error) {
      client_.reset();
      // Without the base line there is nothing to compare with.
      if (error.status == kInterrupted || spec.transport == Transport::kTcp) {
        throw;
      }
      row.failed = entry.failed = error.what();
      row.plain = entry.plain = row.failed;
    }
  }
  progress_.Clear();
  return rows;
}

Client* Rounds::client() {
  if (!client_) client_ = std::make_unique<Client>(host_, port_);
  return client_.get();
}

std::vector<Row> Compare(Rounds* rounds, const Spec& spec, int count,
                         const std::string& what) {
  std::vector<Row> all;
  for (int round = 1; round <= count; ++round) {
    std::vector<Row> rows =
        rounds->Run(spec, fmt::format("{}round {} of {}", what, round, count));
    if (all.empty()) {
      all = std::move(rows);
      continue;
    }
    for (std::size_t i = 0; i < rows.size(); ++i) {
      for (Outcome& run : rows[i].runs) all[i].runs.push_back(std::move(run));
      if (rows[i].failed.empty()) continue;
      all[i].failed = rows[i].failed;
      all[i].plain = rows[i].plain;
    }
  }
  return all;
}

void PrintComparison(const Spec& spec, const std::vector<Row>& rows) {
  const Row* base = Base(rows);
  const bool latency =
      spec.mode == Mode::kMessages && spec.connections == spec.active;
  const bool counted = std::any_of(
      rows.begin(), rows.end(),
      [](const Row& row) { return row.good() && row.Median().client_calls; });
  fmt::print("{}\n", Describe(spec));
  fmt::print("{:<10} {:>14} {:>7} {}{:>12} {:>12} {:>12}{}\n", "transport",
             FigureName(spec), "vs tcp",
             latency ? fmt::format("{:>10} ", "p99") : "", "on the lane",
             "client CPU", "server CPU", counted ? "   calls c/s" : "");
  for (const Row& row : rows) {
    if (!row.good()) {
      fmt::print("{:<10} {:>14}  {}\n", Name(row.transport), "-", row.failed);
      continue;
    }
    const Outcome& run = row.Median();
    const std::string ratio =
        base != nullptr ? fmt::format("{:.2f}", Ratio(row, *base)) : "";
    const std::string share =
        UnderRcsock(row.transport) ? Percent(run.Share()) : "-";
    std::string p99;
    if (latency) {
      p99 = fmt::format(
          "{:>10} ",
          Micros(static_cast<double>(run.client.latency.Percentile(0.99)) /
                 1000));
    }
    std::string calls;
    if (run.client_calls && run.server_calls) {
      const std::uint64_t n = run.Messages();
      calls =
          fmt::format("   {:.2f}/{:.2f}", CallsPerMessage(*run.client_calls, n),
                      CallsPerMessage(*run.server_calls, n));
    }
    fmt::print("{:<10} {:>14} {:>7} {}{:>12} {:>12} {:>12}{}\n",
               Name(row.transport), FigureOf(run.spec, row.MedianFigure()),
               ratio, p99, share, Micros(run.CpuPerMessage(run.client)),
               Micros(run.CpuPerMessage(run.server)), calls);
    const std::string ways = run.Ways();
    if (!ways.empty()) fmt::print("  GPU bytes: {}\n", ways);
  }
  std::fflush(stdout);
}

nlohmann::json ToJson(const std::vector<Row>& rows) {
  const Row* base = Base(rows);
  nlohmann::json json = nlohmann::json::array();
  for (const Row& row : rows) {
    nlohmann::json& entry =
        json.emplace_back(nlohmann::json{{"transport", Name(row.transport)}});
    if (!row.good()) {
      entry["failed"] = row.failed;
      continue;
    }
    const Outcome& run = row.Median();
    entry["median"] = ToJson(run);
    entry["median_figure"] = row.MedianFigure();
    if (base != nullptr) entry["vs_tcp"] = Ratio(row, *base);
    for (const Outcome& each : row.runs) {
      entry["figures"].push_back(each.Figure());
    }
  }
  return json;
}

}  // namespace rcsock::perf
