// The page of --report: HTML that needs no other file, light and dark, for a
// phone as well as for a talk.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "tools/rcsock/perf/median.h"
#include "tools/rcsock/perf/plot.h"
#include "tools/rcsock/perf/report.h"

namespace rcsock::perf {
namespace {

constexpr char kStyle[] = R"(
:root { color-scheme: light dark; --back: #ffffff; --card: #f6f7f9; --ink: #1b1f24;
  --soft: #57606a; --grid: #d5dae1; --tcp: #b4500b; --shm: #0b62c4; --rdma: #0a7a5c;
  --verbs: #7b3fc0; --auto: #b3246b; }
@media (prefers-color-scheme: dark) { :root { --back: #101418; --card: #1a2027;
  --ink: #e8ecf1; --soft: #a3adb9; --grid: #37414d; --tcp: #f59a4f; --shm: #69aefc;
  --rdma: #3fd0a4; --verbs: #bb95f7; --auto: #f583b5; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 16px; max-width: 1000px; background: var(--back);
  color: var(--ink); font: 16px/1.5 system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: .3em 0; }
h2 { font-size: 1.1rem; margin: 0 0 .2em; }
p { margin: .3em 0; }
.soft { color: var(--soft); font-size: .9rem; }
.plots { display: grid; gap: 24px; grid-template-columns: minmax(0, 1fr); margin: 16px 0; }
.card { background: var(--card); border-radius: 10px; padding: 14px; min-width: 0; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .92rem; width: 100%; }
th, td { padding: 4px 10px 4px 0; text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
th { color: var(--soft); font-weight: 600; border-bottom: 1px solid var(--grid); }
td b { font-weight: 600; }
svg { display: block; width: 100%; height: auto; }
svg.key { display: inline-block; width: 24px; height: 12px; vertical-align: middle; margin-right: 4px; }
.legend { display: flex; flex-wrap: wrap; gap: 2px 14px; font-size: .9rem; margin: .2em 0 .5em; }
.tick, .axis { font-size: 15px; fill: var(--soft); }
.axis { font-weight: 600; }
.grid { stroke: var(--grid); stroke-width: 1; fill: none; }
.line { fill: none; stroke-width: 3; stroke-linejoin: round; stroke-linecap: round; }
.line.tcp { stroke: var(--tcp); } .line.shm { stroke: var(--shm); } .line.rdma { stroke: var(--rdma); }
.line.verbs { stroke: var(--verbs); stroke-dasharray: 6 4; } .line.auto { stroke: var(--auto); }
.spread { fill: none; stroke-width: 8; opacity: .35; }
.spread.tcp { stroke: var(--tcp); } .spread.shm { stroke: var(--shm); } .spread.rdma { stroke: var(--rdma); }
.spread.verbs { stroke: var(--verbs); } .spread.auto { stroke: var(--auto); }
.dot { stroke: var(--card); stroke-width: 1.6; }
.dot.tcp { fill: var(--tcp); } .dot.shm { fill: var(--shm); } .dot.rdma { fill: var(--rdma); }
.dot.verbs { fill: var(--verbs); } .dot.auto { fill: var(--auto); }
code { white-space: nowrap; }
@media (max-width: 560px) {
  .tick, .axis { font-size: 24px; }
  .overview table, .overview tbody { display: block; }
  .overview tr { display: grid; grid-template-columns: 1fr auto 3.6em; padding: 6px 0; }
  .overview tr:first-child { display: none; }
  .overview td { padding: 2px 0; } .overview td:first-child { grid-column: 1 / -1; font-weight: 600; }
  .overview td[data-what] { display: contents; }
  .overview td[data-what]::before { content: attr(data-what); color: var(--soft); text-align: left; }
}
details { margin-top: .5em; } summary { cursor: pointer; color: var(--soft); font-size: .9rem; }
@media print { @page { size: landscape; } body { max-width: none; padding: 0; }
  .plots .card { break-inside: avoid; break-before: page; } }
)";

constexpr double kLastPart = 0.9999;  // where the curves of latency end

const char* Title(Transport transport) {
  switch (transport) {
    case Transport::kTcp:
      return "TCP";
    case Transport::kShm:
      return "rcsock, shm";
    case Transport::kRdma:
      return "rcsock, rdma";
    case Transport::kAuto:
      return "rcsock";
    case Transport::kVerbs:
      return "raw verbs";
  }
  return "";
}

std::string Legend(const std::vector<Series>& series) {
  std::string html = "<div class=\"legend\">";
  for (const Series& line : series) {
    html += fmt::format("<span>{}{}</span>", LegendKey(line.style), line.name);
  }
  return html + "</div>\n";
}

Series NewSeries(Transport transport) {
  Series series;
  series.name = Title(transport);
  series.style = Name(transport);
  return series;
}

std::string Card(const std::string& title, const std::string& note,
                 const Axis& x, const Axis& y,
                 const std::vector<Series>& series, const std::string& table) {
  if (series.empty()) return "";
  return fmt::format(
      "<section class=\"card\"><h2>{}</h2><p class=\"soft\">{}</p>\n{}{}"
      "<details><summary>Figures</summary><div class=\"scroll\">{}</div>"
      "</details></section>\n",
      title, note, Legend(series), Plot(title, x, y, series), table);
}

std::string Cell(const std::string& text) { return "<td>" + text + "</td>"; }

// `what` stands beside the cell where the table has no room for its head.
std::string Cell(const std::string& text, const std::string& what) {
  return fmt::format("<td data-what=\"{}\">{}</td>", what, text);
}

// "100 M": a tick of an axis.
std::string Short(double n) {
  constexpr const char* kPrefixes[] = {"", " k", " M", " G", " T"};
  std::size_t i = 0;
  while (n >= 1000 && i < 4) {
    n /= 1000;
    ++i;
  }
  return fmt::format("{:g}{}", n, kPrefixes[i]);
}

double UsAt(const Histogram& histogram, double part) {
  return static_cast<double>(histogram.Percentile(part)) / 1000;
}

std::string LatencyCard(const std::string& title, const std::string& note,
                        const std::vector<Row>& rows) {
  constexpr double kParts[] = {0.5, 0.9, 0.99, 0.999, 0.9999};
  std::vector<Series> all;
  double low = 1e18;
  double high = 0;
  std::string table =
      "<table><tr><th></th><th>min</th><th>50%</th><th>90%</th><th>99%</th>"
      "<th>99.9%</th><th>99.99%</th><th>max</th></tr>";
  for (const Row& row : rows) {
    if (!row.good()) continue;
    const Histogram& latency = row.Median().client.latency;
    if (latency.count() == 0) continue;
    Series series = NewSeries(row.transport);
    series.markers = false;
    std::uint64_t seen = 0;
    for (std::size_t i = 0; i < Histogram::kBuckets; ++i) {
      if (latency.bucket(i) == 0) continue;
      const double us = static_cast<double>(Histogram::Lowest(i)) / 1000;
      const auto part = [&] {
        return static_cast<double>(seen) / static_cast<double>(latency.count());
      };
      // A step: flat up to here, then up.
      series.points.emplace_back(us, part() * 100);
      seen += latency.bucket(i);
      series.points.emplace_back(us, part() * 100);
      if (part() >= kLastPart) break;
    }
    low = std::min(low, series.points.front().first);
    high = std::max(high, series.points.back().first);
    all.push_back(std::move(series));
    table +=
        "<tr>" + Cell(Title(row.transport)) + Cell(Micros(UsAt(latency, 0)));
    for (const double part : kParts) table += Cell(Micros(UsAt(latency, part)));
    table += Cell(Micros(UsAt(latency, 1))) + "</tr>";
  }
  if (all.empty()) return "";
  Axis x{"round trip", true, DecadeTicks(std::max(low, 0.001), high),
         [](double us) {
           if (us < 1) return fmt::format("{:.0f} ns", us * 1000);
           if (us < 1000) return fmt::format("{:.0f} us", us);
           return fmt::format("{:.0f} ms", us / 1000);
         }};
  Axis y{"round trips that took no longer",
         false,
         {0, 25, 50, 75, 100},
         [](double part) { return fmt::format("{:.0f}%", part); }};
  return Card(title, note, x, y, all, table + "</table>");
}

// Returns a card with one plot and one table of `value` at each point.
template <typename Value, typename Text, typename Tick>
std::string PointsCard(const std::string& title, const std::string& note,
                       const std::vector<Point>& points, Axis x,
                       const std::string& y_label, bool y_log, Value value,
                       Text text, Tick tick) {
  std::vector<Series> all;
  double low = 1e300;
  double high = 0;
  std::string head = "<tr><th>" + x.label + "</th>";
  std::string missing;
  std::vector<std::string> lines(points.size());
  const std::size_t count = points.empty() ? 0 : points.front().rows.size();
  for (std::size_t t = 0; t < count; ++t) {
    Series series = NewSeries(points.front().rows[t].transport);
    std::vector<std::string> cells;
    std::string gaps;
    for (const Point& point : points) {
      const Row& row = point.rows[t];
      if (!row.good()) {
        cells.push_back("-");
        gaps += fmt::format("<p class=\"soft\">{} at {}: {}</p>", series.name,
                            x.text(static_cast<double>(point.at)),
                            Escaped(row.plain));
        continue;
      }
      std::vector<double> samples;
      for (const Outcome& run : row.runs) samples.push_back(value(run));
      const auto [least, most] =
          std::minmax_element(samples.begin(), samples.end());
      const double figure = MedianOf(samples);
      cells.push_back(row.runs.size() < 2
                          ? text(figure)
                          : fmt::format("{} <small>({} to {})</small>",
                                        text(figure), text(*least),
                                        text(*most)));
      if (*least <= 0) continue;
      series.points.emplace_back(static_cast<double>(point.at), figure);
      series.spread.emplace_back(*least, *most);
      low = std::min(low, *least);
      high = std::max(high, *most);
    }
    if (series.points.empty()) continue;
    missing += gaps;
    head += "<th>" + series.name + "</th>";
    for (std::size_t i = 0; i < points.size(); ++i) lines[i] += Cell(cells[i]);
    all.push_back(std::move(series));
  }
  if (all.empty()) return "";
  std::string table = "<table>" + head + "</tr>";
  for (std::size_t i = 0; i < points.size(); ++i) {
    const double at = static_cast<double>(points[i].at);
    x.ticks.push_back(at);
    table += "<tr>" + Cell(x.text(at)) + lines[i] + "</tr>";
  }
  const Axis y{y_label, y_log,
               y_log ? DecadeTicks(low, high) : LinearTicks(high), text, tick};
  return Card(title, note, x, y, all, table + "</table>" + missing);
}

std::string Times(double ratio) {
  return ratio > 0 ? fmt::format("{:.{}f}x", ratio, ratio < 9.95 ? 1 : 0) : "";
}

const Row* Find(const std::vector<Row>& rows, Transport transport) {
  for (const Row& row : rows) {
    if (row.transport == transport && row.good()) return &row;
  }
  return nullptr;
}

// Returns the figure of one transport, and how many times better it is than
// TCP's.
std::string Summary(const std::vector<Row>& rows, Transport transport,
                    const std::string& what) {
  const Row* row = Find(rows, transport);
  const Row* base = Find(rows, Transport::kTcp);
  if (row == nullptr) return Cell("-", what) + Cell("");
  const Outcome& run = row->Median();
  double ratio = 0;
  if (base != nullptr && base != row) {
    const double a = row->MedianFigure();
    const double b = base->MedianFigure();
    if (a > 0 && b > 0) ratio = run.MoreIsBetter() ? a / b : b / a;
  }
  std::string text = FigureOf(run.spec, row->MedianFigure());
  if (row->runs.size() > 1) {
    const auto [least, most] = row->Spread();
    text += fmt::format("<br><small>{} to {}</small>",
                        FigureOf(run.spec, least), FigureOf(run.spec, most));
  }
  return Cell(text, what) + Cell("<b>" + Times(ratio) + "</b>");
}

// Returns the smallest share over all of a transport's runs, so that none hides
// another.
double LeastShare(const Report& report, Transport transport) {
  double least = 1;
  const auto look = [&](const std::vector<Row>& rows) {
    const Row* row = Find(rows, transport);
    if (row == nullptr) return;
    for (const Outcome& run : row->runs) least = std::min(least, run.Share());
  };
  look(report.latency);
  for (const Point& point : report.sizes) look(point.rows);
  for (const Point& point : report.connections) look(point.rows);
  for (const Point& point : report.rates) look(point.rows);
  return least;
}

std::string Overview(const Report& report) {
  const std::vector<Row> none;
  const std::vector<Row>& large =
      report.sizes.empty() ? none : report.sizes.back().rows;
  const std::vector<Row>& many =
      report.connections.empty() ? none : report.connections.back().rows;
  const std::string round_trip = "round trip, median";
  const std::string stream =
      "stream, " + (report.sizes.empty()
                        ? ""
                        : Bytes(static_cast<double>(report.sizes.back().at)));
  const std::string connections =
      (report.connections.empty() ? "0"
                                  : Number(report.connections.back().at)) +
      " connections";
  std::string html = fmt::format(
      "<section class=\"card scroll overview\"><table><tr><th></th>"
      "<th>{}</th><th></th><th>{}</th><th></th><th>{}</th>"
      "<th></th><th>on the lane</th></tr>\n",
      round_trip, stream, connections);
  std::string left_out;
  for (const Row& row : report.latency) {
    const Transport transport = row.transport;
    if (!row.good()) {
      left_out += fmt::format("<p class=\"soft\">{} is not shown: {}.</p>\n",
                              Title(transport), Escaped(row.plain));
      continue;
    }
    html += "<tr>" + Cell(LegendKey(Name(transport)) + Title(transport)) +
            Summary(report.latency, transport, round_trip) +
            Summary(large, transport, stream) +
            Summary(many, transport, connections) +
            Cell(UnderRcsock(transport) ? Percent(LeastShare(report, transport))
                                        : "-",
                 "on the lane") +
            "</tr>\n";
  }
  return html + "</table></section>\n" + left_out;
}

// Returns the cards of a load that comes at a rate.
std::string RateCards(const std::vector<Point>& points) {
  if (points.empty()) return "";
  const auto a_second = [](double n) { return Count(n) + "/s"; };
  const Axis rate{"round trips a second", true, {}, a_second, Short};
  const auto cpu = [](const Outcome& run) {
    return run.CpuPerMessage(run.client) + run.CpuPerMessage(run.server);
  };
  const Point& busy = points[points.size() / 2];
  return PointsCard(
             "CPU at a rate",
             fmt::format("64-byte round trips that begin at random times, over "
                         "{} connections; CPU time of both ends for each. "
                         "Lower is better.",
                         kRateConnections),
             points, rate, "CPU for a round trip", false, cpu, Micros, Micros) +
         LatencyCard(
             "Latency at a rate",
             fmt::format("{} round trips a second. A latency counts from when "
                         "its round trip was due. Further left is better.",
                         Number(busy.at)),
             busy.rows);
}

}  // namespace

std::string Page(const Report& report) {
  Axis size{"message", true, {}, [](double bytes) { return Bytes(bytes); }};
  Axis connections{"connections", true, {}, [](double n) {
                     return Number(static_cast<std::uint64_t>(n));
                   }};
  const std::string latency =
      LatencyCard("Latency",
                  "64-byte messages, one connection; how many round trips had "
                  "come back after which time. Further left is better.",
                  report.latency);
  const std::string throughput = PointsCard(
      "Throughput",
      "One connection, one way, over the size of the messages. Higher is "
      "better; each line of the grid is ten times the one below.",
      report.sizes, size, "bits a second, received", true,
      [](const Outcome& run) { return run.Throughput() * 8; },
      [](double bits) { return Bits(bits / 8); }, Short);
  const std::string rate = PointsCard(
      "Many connections",
      "64-byte round trips a second over all connections in turn, at most 64 "
      "under way. Higher is better.",
      report.connections, connections, "round trips a second", false,
      [](const Outcome& run) { return run.Rate(); },
      [](double n) { return Count(n) + "/s"; }, Short);
  const std::string rates = RateCards(report.rates);
  return fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, "
      "initial-scale=1\">\n<title>rcsock perf: {0}</title>\n<style>{1}</style>"
      "</head><body>\n<h1>rcsock perf: to {0}</h1>\n"
      "<p class=\"soft\">{2}. The client, {3}. The server, {9}.</p>\n"
      "<p class=\"soft\">Each figure is the median of {10}, {4:g} s each, the "
      "transports in turn; beside it the least and the most. The ratios are "
      "against plain TCP.</p>\n"
      "{5}<div class=\"plots\">\n{6}{7}{8}{11}</div>\n"
      "<p class=\"soft\">\"On the lane\" is the part of the bytes that the "
      "kernel's TCP has not carried, by the kernel's own count; the smallest "
      "of all runs. Made by <code>rcsock perf --report</code>.</p>\n"
      "</body></html>\n",
      Escaped(report.host), kStyle, Escaped(report.date),
      Escaped(Words(report.here)), report.seconds, Overview(report), latency,
      throughput, rate, Escaped(Words(report.there)),
      report.rounds == 1 ? "one run" : fmt::format("{} runs", report.rounds),
      rates);
}

}  // namespace rcsock::perf
