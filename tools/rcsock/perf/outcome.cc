#include "tools/rcsock/perf/outcome.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>

#include "lib/base/reason.h"
#include "tools/rcsock/perf/fields.h"

namespace rcsock::perf {
namespace {

constexpr std::array kQuantiles = {0.5, 0.9, 0.99, 0.999, 0.9999};
constexpr std::array kQuantileNames = {"p50", "p90", "p99", "p99.9", "p99.99"};

double Over(double n, double seconds) { return seconds > 0 ? n / seconds : 0; }

double Over(std::uint64_t n, double seconds) {
  return Over(static_cast<double>(n), seconds);
}

nlohmann::json InMicroseconds(const Histogram& histogram) {
  if (histogram.count() == 0) return nullptr;
  const auto us = [](auto ns) { return static_cast<double>(ns) / 1000; };
  nlohmann::json json = {{"count", histogram.count()},
                         {"min", us(histogram.min())},
                         {"mean", us(histogram.Mean())},
                         {"max", us(histogram.max())}};
  for (std::size_t i = 0; i < kQuantiles.size(); ++i) {
    json[kQuantileNames[i]] = us(histogram.Percentile(kQuantiles[i]));
  }
  return json;
}

nlohmann::json EndToJson(const Outcome& outcome, const Side& side,
                         const std::optional<Calls>& calls) {
  nlohmann::json json = {{"seconds", side.seconds},
                         {"tx_bytes", side.tx_bytes},
                         {"rx_bytes", side.rx_bytes},
                         {"cpu_user_seconds", side.user},
                         {"cpu_system_seconds", side.system},
                         {"cpu_us_per_message", outcome.CpuPerMessage(side)},
                         {"context_switches", side.switches}};
  if (calls) {
    json["syscalls_per_message"] = CallsPerMessage(*calls, outcome.Messages());
    json["syscalls"] = *calls;
  }
  return json;
}

}  // namespace

double Outcome::Throughput() const {
  double sum = 0;
  if (spec.mode != Mode::kStream) return Over(client.Moved(), client.seconds);
  if (spec.direction != Direction::kReverse) {
    sum += Over(server.rx_bytes, server.rx_seconds);
  }
  if (spec.direction != Direction::kForward) {
    sum += Over(client.rx_bytes, client.rx_seconds);
  }
  return sum;
}

std::uint64_t Outcome::Messages() const {
  if (spec.mode != Mode::kStream) return client.messages;
  return client.messages + server.messages;
}

double Outcome::Rate() const {
  if (spec.mode == Mode::kStream) {
    return Throughput() / static_cast<double>(spec.size);
  }
  return Over(client.messages, client.seconds);
}

std::uint64_t Outcome::Counted() const {
  std::uint64_t bytes = 0;
  for (const auto& [name, n] : lanes) bytes += n;
  return bytes;
}

bool Outcome::ShareKnown() const {
  return !UnderRcsock(spec.transport) || spec.mode != Mode::kShort ||
         Counted() > 0;
}

double Outcome::Share() const {
  if (spec.transport == Transport::kVerbs) return 1;
  if (spec.transport == Transport::kTcp) return 0;
  // A short connection is gone before the kernel could be asked.
  const auto found = lanes.find("tcp");
  const bool brief = spec.mode == Mode::kShort;
  const std::uint64_t moved = brief ? Counted() : client.Moved();
  const std::uint64_t tcp = !brief                 ? client.tcp_bytes
                            : found == lanes.end() ? 0
                                                   : found->second;
  if (moved == 0) return 0;
  return std::clamp(1 - static_cast<double>(tcp) / static_cast<double>(moved),
                    0.0, 1.0);
}

std::string Outcome::Lane() const {
  if (!UnderRcsock(spec.transport)) return Name(spec.transport);
  if (!ShareKnown()) return "not known";
  if (Share() < 0.01) return "tcp";
  if (spec.transport != Transport::kAuto) return Name(spec.transport);
  std::string names;
  for (const auto& [name, bytes] : lanes) {
    if (bytes == 0 || name == "tcp") continue;
    names += (names.empty() ? "" : "+") + name;
  }
  return names.empty() ? "a lane" : names;
}

bool Outcome::LaneUsed() const {
  if (spec.transport != Transport::kShm && spec.transport != Transport::kRdma) {
    return true;
  }
  return Share() >= kGoodShare;
}

std::string Outcome::WhyTcp() const {
  std::string why;
  for (const auto& [reason, count] : reasons) {
    if (!why.empty()) why += ", ";
    why += reason;
  }
  return why;
}

std::string Outcome::Ways() const {
  std::uint64_t all = 0;
  for (const auto& [way, bytes] : ways) all += bytes;
  std::string text;
  for (const auto& [way, bytes] : ways) {
    if (bytes == 0) continue;
    text += fmt::format(
        "{}{} {:.1f}%", text.empty() ? "" : ", ", way,
        100.0 * static_cast<double>(bytes) / static_cast<double>(all));
  }
  return text;
}

std::string Outcome::WhyTcpInWords() const {
  constexpr const char* kTexts[] = {
#define X(id, key, text) text,
      RCSOCK_REASONS(X)
#undef X
  };
  std::string why;
  for (const auto& [reason, count] : reasons) {
    for (std::size_t i = 0; i < std::size(kTexts); ++i) {
      if (reason != base::kReasonKeys[i]) continue;
      // An RDMA lane was asked for by name, wherever the peer is.
      const bool device = reason == base::ReasonKey(base::Reason::kNoDevice);
      why += (why.empty() ? "" : "; ") +
             std::string(device ? "there is no RDMA device" : kTexts[i]);
    }
  }
  return why;
}

double Outcome::Figure() const {
  if (spec.mode == Mode::kStream) return Throughput();
  if (spec.mode == Mode::kMessages && spec.connections == spec.active) {
    return static_cast<double>(client.latency.Percentile(0.5)) / 1000;
  }
  return Rate();
}

bool Outcome::MoreIsBetter() const {
  return spec.mode != Mode::kMessages || spec.connections != spec.active;
}

double Outcome::CpuPerMessage(const Side& side) const {
  const std::uint64_t n = Messages();
  return n == 0 ? 0 : side.Cpu() * 1e6 / static_cast<double>(n);
}

double CallsPerMessage(const Calls& calls, std::uint64_t messages) {
  std::uint64_t sum = 0;
  for (const auto& [name, n] : calls) {
    if (name != "clock_gettime") sum += n;
  }
  return messages == 0
             ? 0
             : static_cast<double>(sum) / static_cast<double>(messages);
}

Calls CallsFromJson(const nlohmann::json& json) {
  if (!json.is_object() || json.size() > 600) BadField("calls");
  Calls calls;
  for (const auto& [name, n] : json.items()) {
    if (name.size() > 40) BadField("calls");
    calls[name] = Number(n, "calls", 0, std::uint64_t{1} << 53);
  }
  return calls;
}

nlohmann::json ToJson(const Outcome& outcome) {
  const Spec& spec = outcome.spec;
  nlohmann::json json = {
      {"spec", ToJson(spec)},
      {"lane", outcome.Lane()},
      {"lane_share", outcome.ShareKnown() ? nlohmann::json(outcome.Share())
                                          : nlohmann::json()},
      {"lane_used", outcome.LaneUsed()},
      {"bytes_per_second", outcome.Throughput()},
      {"messages_per_second", outcome.Rate()},
      {"latency_us", InMicroseconds(outcome.client.latency)},
      {"connect_us", InMicroseconds(outcome.client.connect)},
      {"client", EndToJson(outcome, outcome.client, outcome.client_calls)},
      {"server", EndToJson(outcome, outcome.server, outcome.server_calls)},
      {"lanes_bytes", outcome.lanes},
      {"reasons", outcome.reasons}};
  nlohmann::json& intervals = json["intervals"] = nlohmann::json::array();
  for (const Interval& interval : outcome.intervals) {
    intervals.push_back({{"from", interval.from},
                         {"to", interval.to},
                         {"tx_bytes", interval.tx_bytes},
                         {"rx_bytes", interval.rx_bytes},
                         {"messages", interval.messages}});
  }
  return json;
}

}  // namespace rcsock::perf
