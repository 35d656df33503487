#include <prometheus/client_metric.h>
#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <cstddef>
#include <iterator>
#include <map>
#include <string>
#include <utility>

#include "lib/base/reason.h"
#include "tools/rcsock/stat/picture.h"

namespace rcsock::tools {
namespace {

using Labels = std::vector<std::pair<std::string, std::string>>;

// Totals of processes and devices.  Streams are counted by lane and reason: a
// label for each stream would be more than a collector can bear.
class Page {
 public:
  void Counter(const std::string& name, const char* help, const Labels& labels,
               std::uint64_t value) {
    Metric(name, help, prometheus::MetricType::Counter, labels).counter.value =
        static_cast<double>(value);
  }
  void Gauge(const std::string& name, const char* help, const Labels& labels,
             std::uint64_t value) {
    Metric(name, help, prometheus::MetricType::Gauge, labels).gauge.value =
        static_cast<double>(value);
  }
  std::string Text() const {
    std::vector<prometheus::MetricFamily> families;
    for (const auto& [name, family] : families_) families.push_back(family);
    return prometheus::TextSerializer().Serialize(families);
  }

 private:
  prometheus::ClientMetric& Metric(const std::string& name, const char* help,
                                   prometheus::MetricType type,
                                   const Labels& labels) {
    prometheus::MetricFamily& family = families_[name];
    family.name = name;
    family.help = help;
    family.type = type;
    prometheus::ClientMetric& metric = family.metric.emplace_back();
    for (const auto& [key, value] : labels) {
      metric.label.push_back({key, value});
    }
    return metric;
  }
  std::map<std::string, prometheus::MetricFamily> families_;
};

void AddProcess(const ProcessPicture& process, Page* page) {
  const Labels who = {{"program", process.program},
                      {"pid", std::to_string(process.pid)}};
  const auto with = [&who](const char* key, const std::string& value) {
    Labels labels = who;
    labels.emplace_back(key, value);
    return labels;
  };
  // Nothing is known here of a process in another network namespace.
  if (process.source == Source::kElsewhere) return;
  page->Gauge("rcsock_up", "1 if the process answers", who,
              process.source == Source::kSilent ? 0 : 1);
  std::map<std::string, std::uint64_t> lanes = {
      {"tcp", 0}, {"shm", 0}, {"rdma", 0}};
  std::map<std::string, std::uint64_t> reasons;
  for (const StreamPicture& stream : process.streams) {
    ++lanes[LaneName(stream.is.lane)];
    if (stream.is.lane == posix::SnapshotLane::kTcp) {
      ++reasons[ReasonName(stream.is.reason)];
    }
  }
  if (process.source != Source::kSilent) {
    for (const auto& [lane, count] : lanes) {
      page->Gauge("rcsock_open_streams", "Open connections, by lane",
                  with("lane", lane), count);
    }
    for (const auto& [reason, count] : reasons) {
      page->Gauge("rcsock_tcp_streams",
                  "Open connections that are on TCP, by why",
                  with("reason", reason), count);
    }
  }
  if (process.source != Source::kAnswer) return;
  const posix::SnapshotHead& total = process.total;
  page->Counter("rcsock_streams_total", "Connections so far", who,
                total.streams);
  page->Counter("rcsock_promoted_total", "Connections that have been on a lane",
                who, total.promoted);
  page->Counter("rcsock_demotions_total", "Times that one left its lane", who,
                total.demotions);
  page->Counter("rcsock_failovers_total", "Times that a lane died under one",
                who, total.failovers);
  page->Counter("rcsock_lost_bytes_total",
                "Unread bytes lost to a program that exec started without "
                "rcsock",
                who, total.lost_bytes);
  page->Counter("rcsock_in_place_bytes_total",
                "Bytes that a device has put where the program wanted them",
                who, total.in_place_bytes);
  page->Gauge("rcsock_pinned_bytes", "Memory registered with RDMA devices", who,
              total.pinned_bytes);
  for (const auto& [why, count] :
       {std::pair{"budget", total.evicted_budget},
        std::pair{"memory", total.evicted_memory},
        std::pair{"idle_rings", total.evicted_idle}}) {
    page->Counter("rcsock_evicted_total",
                  "Connections asked to leave an RDMA lane, by why",
                  with("why", why), count);
  }
  // The count of an open connection goes away when that connection gets a lane.
  for (std::size_t r = 0; r < std::size(base::kReasonKeys); ++r) {
    if (total.reasons[r] == 0) continue;
    page->Gauge("rcsock_never_on_a_lane",
                "Connections so far, open or closed, without a lane, by why",
                with("reason", base::kReasonKeys[r]), total.reasons[r]);
  }
  for (int i = 0; i < 3; ++i) {
    const char* lane = LaneName(static_cast<posix::SnapshotLane>(i));
    page->Counter("rcsock_sent_bytes_total", "Bytes sent, by lane",
                  with("lane", lane), total.lanes[i].tx_bytes);
    page->Counter("rcsock_received_bytes_total", "Bytes received, by lane",
                  with("lane", lane), total.lanes[i].rx_bytes);
  }
}

}  // namespace

std::string AsPrometheus(const Picture& picture) {
  Page page;
  for (const ProcessPicture& process : picture.processes) {
    AddProcess(process, &page);
  }
  for (const auto& [name, totals] : Devices(picture)) {
    page.Gauge("rcsock_device_streams", "Open connections on the device",
               {{"device", name}}, totals.streams);
    page.Gauge("rcsock_device_sent_bytes",
               "Bytes that its open connections have sent", {{"device", name}},
               totals.tx_bytes);
    page.Gauge("rcsock_device_received_bytes",
               "Bytes that its open connections have received",
               {{"device", name}}, totals.rx_bytes);
  }
  for (const auto& [name, ports] : picture.counters) {
    for (const PortCounters& port : ports) {
      for (const auto& [loss, count] : port.counts) {
        page.Counter("rcsock_port_events_total",
                     "Losses and marks that the port of an RDMA device in use "
                     "has counted, whoever uses it",
                     {{"device", name},
                      {"port", std::to_string(port.port)},
                      {"event", LossKey(loss)}},
                     count);
      }
    }
  }
  return page.Text();
}

}  // namespace rcsock::tools
