#include "tools/rcsock/perf/side.h"

#include "tools/rcsock/perf/fields.h"

namespace rcsock::perf {
namespace {

constexpr double kLongest = 1e7;  // seconds
constexpr std::uint64_t kMost = std::uint64_t{1} << 62;

}  // namespace

nlohmann::json ToJson(const Side& side) {
  return {{"seconds", side.seconds},
          {"tx_seconds", side.tx_seconds},
          {"rx_seconds", side.rx_seconds},
          {"tx_bytes", side.tx_bytes},
          {"rx_bytes", side.rx_bytes},
          {"messages", side.messages},
          {"user", side.user},
          {"system", side.system},
          {"switches", side.switches},
          {"tcp_bytes", side.tcp_bytes},
          {"latency", side.latency.ToJson()},
          {"connect", side.connect.ToJson()}};
}

Side SideFromJson(const nlohmann::json& json) {
  Side side;
  side.seconds = RealField(json, "seconds", 0, kLongest);
  side.tx_seconds = RealField(json, "tx_seconds", 0, kLongest);
  side.rx_seconds = RealField(json, "rx_seconds", 0, kLongest);
  side.tx_bytes = NumberField(json, "tx_bytes", 0, kMost);
  side.rx_bytes = NumberField(json, "rx_bytes", 0, kMost);
  side.messages = NumberField(json, "messages", 0, kMost);
  side.user = RealField(json, "user", 0, kLongest);
  side.system = RealField(json, "system", 0, kLongest);
  side.switches = NumberField(json, "switches", 0, kMost);
  side.tcp_bytes = NumberField(json, "tcp_bytes", 0, kMost);
  side.latency = Histogram::FromJson(Field(json, "latency"));
  side.connect = Histogram::FromJson(Field(json, "connect"));
  return side;
}

}  // namespace rcsock::perf
