#include <nlohmann/json.hpp>
#include <string>

#include "lib/base/reason.h"
#include "tools/rcsock/stat/picture.h"

namespace rcsock::tools {
namespace {

using nlohmann::ordered_json;
using posix::SnapshotLane;
using posix::SnapshotStream;

const char* SourceName(Source source) {
  switch (source) {
    case Source::kAnswer:
      return "process";
    case Source::kTcpOnly:
    case Source::kSilent:
      return "kernel";
    case Source::kElsewhere:
      return "none";
  }
  return "none";
}

ordered_json Bytes(std::uint64_t tx, std::uint64_t rx) {
  return {{"tx_bytes", tx}, {"rx_bytes", rx}};
}

ordered_json StreamJson(const ProcessPicture& process,
                        const StreamPicture& stream) {
  const SnapshotStream& is = stream.is;
  const bool answered = process.source == Source::kAnswer;
  const bool known = process.source != Source::kSilent;
  ordered_json json;
  json["fd"] = is.fd;
  json["local"] = AddressText(is.local, is.local_port);
  json["peer"] = AddressText(is.peer, is.peer_port);
  json["lane"] = known ? ordered_json(LaneName(is.lane)) : ordered_json();
  json["state"] = known ? ordered_json(StateName(is.state)) : ordered_json();
  if (known && is.reason < static_cast<int>(base::Reason::kCount)) {
    json["reason"] = ReasonName(is.reason);
    json["reason_text"] = ReasonWords(is.reason);
  } else {
    json["reason"] = json["reason_text"] = nullptr;
  }
  json["tcp"] = Bytes(is.tcp_tx_bytes, is.tcp_rx_bytes);
  if (answered) {
    json["accepted"] = is.acceptor != 0;
    for (const auto lane : {SnapshotLane::kShm, SnapshotLane::kRdma}) {
      const bool this_one = is.lane_kind == lane;
      json[LaneName(lane)] = Bytes(this_one ? is.lane_tx_bytes : 0,
                                   this_one ? is.lane_rx_bytes : 0);
    }
    json["promotions"] = is.promotions;
    json["demotions"] = is.demotions;
    json["failovers"] = is.failovers;
    if (is.tx_ring != 0 || is.rx_ring != 0) {
      json["ring"] = {{"tx_bytes", is.tx_ring},
                      {"rx_bytes", is.rx_ring},
                      {"tx_fill", is.tx_fill},
                      {"rx_fill", is.rx_fill}};
      json["credits"] = {{"left", is.credit_left}, {"most", is.credit_most}};
    }
    if (is.device[0] != '\0') json["device"] = is.device;
  }
  if (stream.has_rate) {
    json["rate"] = {{"tx_bytes_per_second", stream.tx_rate},
                    {"rx_bytes_per_second", stream.rx_rate}};
  }
  return json;
}

ordered_json TotalsJson(const posix::SnapshotHead& total) {
  ordered_json json;
  json["streams"] = total.streams;
  json["promoted"] = total.promoted;
  json["demotions"] = total.demotions;
  json["failovers"] = total.failovers;
  json["lost_bytes"] = total.lost_bytes;
  json["in_place_bytes"] = total.in_place_bytes;
  json["gpu_bytes"] = {{"slots", total.gpu_slot_bytes},
                       {"rings", total.gpu_ring_bytes},
                       {"devices", total.gpu_device_bytes},
                       {"passed", total.gpu_passed_bytes}};
  json["spun_us"] = {{"all", total.spun_ns / 1000},
                     {"found", total.spun_well_ns / 1000}};
  json["evicted"] = {{"budget", total.evicted_budget},
                     {"memory", total.evicted_memory},
                     {"idle_rings", total.evicted_idle}};
  json["pinned"] = {{"bytes", total.pinned_bytes}, {"peak", total.pinned_peak}};
  // null: there is no bound.
  const auto bound = [](std::uint64_t bytes) {
    return bytes == 0 ? ordered_json() : ordered_json(bytes);
  };
  json["budget"] = {{"max_qps", total.max_qps},
                    {"max_pinned", bound(total.max_pinned)},
                    {"max_ring", bound(total.max_ring)}};
  for (int lane = 0; lane < 3; ++lane) {
    const posix::SnapshotCounts& counts = total.lanes[lane];
    ordered_json& one =
        json["lanes"][LaneName(static_cast<SnapshotLane>(lane))];
    one["streams"] = counts.streams;
    one["tx_bytes"] = counts.tx_bytes;
    one["rx_bytes"] = counts.rx_bytes;
  }
  json["reasons"] = ordered_json::object();
  for (int r = 0; r < static_cast<int>(base::Reason::kCount); ++r) {
    if (total.reasons[r] != 0) {
      json["reasons"][base::kReasonKeys[r]] = total.reasons[r];
    }
  }
  return json;
}

// Leaves out what the driver does not count.
ordered_json PortJson(const PortCounters& port) {
  ordered_json json;
  json["port"] = port.port;
  json["counters"] = ordered_json::object();
  for (const auto& [loss, count] : port.counts) {
    json["counters"][LossKey(loss)] = count;
  }
  if (!port.changes.empty()) {
    for (const auto& [loss, change] : port.changes) {
      json["changes"][LossKey(loss)] = change;
    }
  }
  return json;
}

}  // namespace

std::string AsJson(const Picture& picture, bool pretty) {
  ordered_json json;
  json["processes"] = ordered_json::array();
  for (const ProcessPicture& process : picture.processes) {
    ordered_json one;
    one["pid"] = process.pid;
    one["program"] = process.program;
    one["uid"] = process.uid;
    one["source"] = SourceName(process.source);
    one["answers"] = process.source == Source::kAnswer;
    if (!process.trouble.empty()) one["trouble"] = process.trouble;
    if (process.source == Source::kAnswer) {
      one["totals"] = TotalsJson(process.total);
    }
    one["streams"] = ordered_json::array();
    for (const StreamPicture& stream : process.streams) {
      one["streams"].push_back(StreamJson(process, stream));
    }
    json["processes"].push_back(std::move(one));
  }
  json["devices"] = ordered_json::array();
  for (const auto& [name, totals] : Devices(picture)) {
    ordered_json device = {{"name", name},
                           {"streams", totals.streams},
                           {"tx_bytes", totals.tx_bytes},
                           {"rx_bytes", totals.rx_bytes}};
    device["ports"] = ordered_json::array();
    const auto ports = picture.counters.find(name);
    if (ports != picture.counters.end()) {
      for (const PortCounters& port : ports->second) {
        device["ports"].push_back(PortJson(port));
      }
    }
    json["devices"].push_back(std::move(device));
  }
  // A program may have any name, UTF-8 or not.
  return json.dump(pretty ? 2 : -1, ' ', false,
                   ordered_json::error_handler_t::replace) +
         "\n";
}

}  // namespace rcsock::tools
