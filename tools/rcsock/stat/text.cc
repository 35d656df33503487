#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "lib/base/reason.h"
#include "tools/rcsock/stat/picture.h"

namespace rcsock::tools {
namespace {

using posix::SnapshotLane;
using posix::SnapshotState;
using posix::SnapshotStream;

constexpr const char* kBold = "\033[1m";
constexpr const char* kGreen = "\033[32m";
constexpr const char* kYellow = "\033[33m";
constexpr const char* kRed = "\033[31m";
constexpr const char* kPlain = "\033[0m";

// "0", "999", "1.2K", "34M": four characters at most.
std::string Short(double value) {
  constexpr const char* kUnits[] = {"", "K", "M", "G", "T", "P", "E"};
  std::size_t unit = 0;
  while (value >= 999.5 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 || value >= 9.95
             ? fmt::format("{:.0f}{}", value, kUnits[unit])
             : fmt::format("{:.1f}{}", value, kUnits[unit]);
}

std::string Pair(double tx, double rx) { return Short(tx) + "/" + Short(rx); }

double Number(std::uint64_t value) { return static_cast<double>(value); }

enum Column {
  kProcess,
  kLocal,
  kPeer,
  kLane,
  kState,
  kTcp,
  kOverLane,
  kRate,
  kRing,
  kFill,
  kCredit,
  kMoves,
  kWhy,
  kColumns
};
using Row = std::array<std::string, kColumns>;

Row Header() {
  return {"PROCESS",   "LOCAL",      "PEER",       "LANE",       "STATE",
          "TCP tx/rx", "LANE tx/rx", "RATE tx/rx", "RING tx/rx", "FILL tx/rx",
          "CREDIT",    "P/D/F",      "WHY ON TCP"};
}

Row RowOf(const ProcessPicture& process, const StreamPicture& stream) {
  const SnapshotStream& is = stream.is;
  Row row;
  row[kProcess] = fmt::format("{}/{}", process.program, process.pid);
  row[kLocal] = AddressText(is.local, is.local_port);
  row[kPeer] = AddressText(is.peer, is.peer_port);
  const bool known = process.source != Source::kSilent;
  row[kLane] = known ? LaneName(is.lane) : "?";
  row[kState] = known ? StateName(is.state) : "?";
  row[kTcp] = Pair(Number(is.tcp_tx_bytes), Number(is.tcp_rx_bytes));
  row[kOverLane] =
      process.source == Source::kAnswer
          ? Pair(Number(is.lane_tx_bytes), Number(is.lane_rx_bytes))
          : "-";
  row[kRate] = stream.has_rate ? Pair(stream.tx_rate, stream.rx_rate) : "-";
  const bool rings = is.tx_ring != 0 || is.rx_ring != 0;
  row[kRing] = rings ? Pair(Number(is.tx_ring), Number(is.rx_ring)) : "-";
  row[kFill] = rings ? Pair(Number(is.tx_fill), Number(is.rx_fill)) : "-";
  row[kCredit] =
      rings ? fmt::format("{}/{}", is.credit_left, is.credit_most) : "-";
  row[kMoves] =
      process.source == Source::kAnswer
          ? fmt::format("{}/{}/{}", is.promotions, is.demotions, is.failovers)
          : "-";
  if (known && is.lane == SnapshotLane::kTcp) {
    row[kWhy] =
        fmt::format("{}: {}", ReasonName(is.reason), ReasonWords(is.reason));
  }
  return row;
}

std::string Several(std::uint64_t count, const char* what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

// Returns why some connections never had a lane, the most frequent reason
// first.  Closed connections have no line of their own.
std::string Reasons(const posix::SnapshotHead& total) {
  std::vector<std::pair<std::uint64_t, std::string>> all;
  for (std::uint8_t r = 0; r < std::size(base::kReasonKeys); ++r) {
    if (total.reasons[r] != 0) {
      all.emplace_back(total.reasons[r], base::kReasonKeys[r]);
    }
  }
  std::stable_sort(all.begin(), all.end(), [](const auto& a, const auto& b) {
    return a.first > b.first;
  });
  std::string text;
  for (const auto& [count, key] : all) {
    text += fmt::format("{} {} {}", text.empty() ? "; never on a lane:" : ",",
                        count, key);
  }
  return text;
}

std::string Totals(const ProcessPicture& process) {
  const posix::SnapshotHead& total = process.total;
  std::string text = fmt::format(
      "{}/{}: {} since it began, {} promoted, {}, {};", process.program,
      process.pid, Several(total.streams, "stream"), total.promoted,
      Several(total.demotions, "demotion"),
      Several(total.failovers, "failover"));
  for (int lane = 0; lane < 3; ++lane) {
    const posix::SnapshotCounts& counts = total.lanes[lane];
    text += fmt::format(" {} {}", LaneName(static_cast<SnapshotLane>(lane)),
                        Pair(Number(counts.tx_bytes), Number(counts.rx_bytes)));
  }
  if (total.in_place_bytes != 0) {
    text += fmt::format("; {} received in place",
                        Short(Number(total.in_place_bytes)));
  }
  const std::pair<std::uint64_t, const char*> gpu[] = {
      {total.gpu_passed_bytes, "from GPU to GPU"},
      {total.gpu_device_bytes, "by RDMA devices"},
      {total.gpu_ring_bytes, "by shared rings"},
      {total.gpu_slot_bytes, "through pinned slots"}};
  for (const auto& [bytes, way] : gpu) {
    if (bytes == 0) continue;
    text += fmt::format("; {} of GPUs {}", Short(Number(bytes)), way);
  }
  if (total.spun_ns != 0) {
    text += fmt::format(
        "; spun {:.1f} s of CPU time, {:.0f}% of it found something",
        static_cast<double>(total.spun_ns) / 1e9,
        100 * static_cast<double>(std::min(total.spun_well_ns, total.spun_ns)) /
            static_cast<double>(total.spun_ns));
  }
  if (total.pinned_bytes != 0) {
    text += fmt::format("; {} pinned", Short(Number(total.pinned_bytes)));
  }
  if (total.max_pinned != 0) {
    text += fmt::format("; at most {} pinned", Short(Number(total.max_pinned)));
  }
  if (total.max_ring != 0) {
    text += fmt::format("; rings of at most {}", Short(Number(total.max_ring)));
  }
  return text + Reasons(total) + "\n";
}

// Returns one line for all of these: a host may run many containers.
std::string Elsewhere(const std::vector<const ProcessPicture*>& processes) {
  if (processes.empty()) return "";
  const ProcessPicture& one = *processes.front();
  const std::string who =
      processes.size() == 1
          ? fmt::format("{}/{}: in another network namespace", one.program,
                        one.pid)
          : fmt::format(
                "{} processes are in other network namespaces, "
                "{}/{} is one",
                processes.size(), one.program, one.pid);
  return fmt::format("{}; ask there: nsenter -t {} -n rcsock stat\n", who,
                     one.pid);
}

// Returns a table with a line for each stream, or "" if there is no stream.
std::string Table(const Picture& picture, bool colour) {
  std::vector<Row> rows = {Header()};
  std::vector<const char*> colours = {kBold};
  for (const ProcessPicture& process : picture.processes) {
    for (const StreamPicture& stream : process.streams) {
      rows.push_back(RowOf(process, stream));
      colours.push_back(process.source == Source::kSilent           ? kRed
                        : stream.is.state == SnapshotState::kOnLane ? kGreen
                        : stream.is.failovers > 0                   ? kYellow
                                                                    : "");
    }
  }
  if (rows.size() == 1) return "";
  std::array<std::size_t, kColumns> widths{};
  for (const Row& row : rows) {
    for (int c = 0; c < kColumns; ++c) {
      widths[c] = std::max(widths[c], row[c].size());
    }
  }
  std::string text;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    std::string line;
    for (int c = 0; c < kColumns; ++c) {
      line += fmt::format("{:<{}}", rows[r][c], widths[c] + 2);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    if (colour && *colours[r] != '\0') {
      line = fmt::format("{}{}{}", colours[r], line, kPlain);
    }
    text += line + "\n";
  }
  return text + "\n";
}

// Returns a line for each process, and one for all those elsewhere.
std::string Processes(const Picture& picture) {
  std::string text;
  std::vector<const ProcessPicture*> elsewhere;
  for (const ProcessPicture& process : picture.processes) {
    const std::string name = fmt::format("{}/{}", process.program, process.pid);
    switch (process.source) {
      case Source::kAnswer:
        text += Totals(process);
        break;
      case Source::kTcpOnly:
        text +=
            fmt::format("{}: no stream has a lane, or looks for one\n", name);
        break;
      case Source::kSilent:
        text += fmt::format(
            "{}: does not answer ({}); its lines show what the kernel knows\n",
            name, process.trouble);
        break;
      case Source::kElsewhere:
        elsewhere.push_back(&process);
        break;
    }
  }
  return text + Elsewhere(elsewhere);
}

// Returns a line for each device in use, and one for each of its ports.
std::string DeviceLines(const Picture& picture) {
  std::string text;
  for (const auto& [name, totals] : Devices(picture)) {
    text += fmt::format("device {}: {}, {}\n", name,
                        Several(totals.streams, "stream"),
                        Pair(Number(totals.tx_bytes), Number(totals.rx_bytes)));
    const auto ports = picture.counters.find(name);
    if (ports == picture.counters.end()) continue;
    for (const PortCounters& port : ports->second) {
      if (port.counts.empty()) continue;
      text += fmt::format("device {} port {}: {}\n", name, port.port,
                          CountersText(port, false));
    }
  }
  return text;
}

}  // namespace

std::string AsText(const Picture& picture, bool colour) {
  if (picture.processes.empty()) {
    return "no process of this user runs under rcsock\n";
  }
  return Table(picture, colour) + Processes(picture) + DeviceLines(picture);
}

}  // namespace rcsock::tools
