#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <string>
#include <utility>

#include "lib/base/reason.h"
#include "tools/rcsock/stat/picture.h"
#include "tools/rcsock/stat/programs.h"

namespace rcsock::tools {
namespace {

using Labels = std::vector<std::pair<std::string, std::string>>;

// Totals of processes and devices.  Streams are counted by lane and reason: a
// label for each stream would be more than a collector can bear.
class Page {
 public:
  void Counter(const std::string& name, const char* help, const Labels& labels,
               std::uint64_t value) {
    Add(name, help, "counter", labels, value);
  }
  void Gauge(const std::string& name, const char* help, const Labels& labels,
             std::uint64_t value) {
    Add(name, help, "gauge", labels, value);
  }
  // Returns the page in Prometheus' text format.
  std::string Text() const {
    std::string text;
    for (const auto& [name, family] : families_) {
      text += family.head + family.lines;
    }
    return text;
  }

 private:
  struct Family {
    std::string head;
    std::string lines;
  };

  void Add(const std::string& name, const char* help, const char* type,
           const Labels& labels, std::uint64_t value) {
    Family& family = families_[name];
    if (family.head.empty()) {
      family.head =
          fmt::format("# HELP {0} {1}\n# TYPE {0} {2}\n", name, help, type);
    }
    std::string all;
    for (const auto& [key, label] : labels) {
      all += fmt::format("{}{}=\"{}\"", all.empty() ? "" : ",", key,
                         Escaped(label));
    }
    family.lines += fmt::format("{}{{{}}} {}\n", name, all, value);
  }

  static std::string Escaped(const std::string& label) {
    std::string escaped;
    for (const char one : label) {
      if (one == '\n') {
        escaped += "\\n";
        continue;
      }
      if (one == '\\' || one == '"') escaped += '\\';
      escaped += one;
    }
    return escaped;
  }

  std::map<std::string, Family> families_;
};

// The metrics of one process.
class ProcessPage {
 public:
  ProcessPage(const ProcessPicture& process, Labels who, Page* page)
      : process_(process),
        total_(process.total),
        who_(std::move(who)),
        page_(page) {}

  void Add() {
    // Nothing is known here of a process in another network namespace.
    if (process_.source == Source::kElsewhere) return;
    const bool silent = process_.source == Source::kSilent;
    page_->Gauge("rcsock_up", "1 if the process answers", who_, silent ? 0 : 1);
    if (!silent) AddOpen();
    if (process_.source != Source::kAnswer) return;
    AddAll();
  }

  void AddProgram(const ProgramPicture& program) {
    page_->Gauge("rcsock_processes", "Processes of the program under rcsock",
                 With("answer", "yes"), program.answering);
    page_->Gauge("rcsock_processes", "Processes of the program under rcsock",
                 With("answer", "no"), program.silent);
    AddOpen();
    AddAll();
  }

 private:
  Labels With(const char* key, const std::string& value) const {
    Labels labels = who_;
    labels.emplace_back(key, value);
    return labels;
  }

  void AddAll() {
    AddTotals();
    AddReasons();
    AddLanes();
  }

  // The connections that are open.
  void AddOpen() {
    std::map<std::string, std::uint64_t> lanes = {
        {"tcp", 0}, {"shm", 0}, {"rdma", 0}};
    std::map<std::string, std::uint64_t> reasons;
    for (const StreamPicture& stream : process_.streams) {
      ++lanes[LaneName(stream.is.lane)];
      if (stream.is.lane == posix::SnapshotLane::kTcp) {
        ++reasons[ReasonName(stream.is.reason)];
      }
    }
    for (const auto& [lane, count] : lanes) {
      page_->Gauge("rcsock_open_streams", "Open connections, by lane",
                   With("lane", lane), count);
    }
    for (const auto& [reason, count] : reasons) {
      page_->Gauge("rcsock_tcp_streams",
                   "Open connections that are on TCP, by reason",
                   With("reason", reason), count);
    }
  }

  void AddTotals() {
    page_->Counter("rcsock_streams_total", "Connections so far", who_,
                   total_.streams);
    page_->Counter("rcsock_promoted_total",
                   "Connections that have been on a lane", who_,
                   total_.promoted);
    page_->Counter("rcsock_demotions_total",
                   "Times that a connection left its lane", who_,
                   total_.demotions);
    page_->Counter("rcsock_failovers_total",
                   "Times that a lane died under a connection", who_,
                   total_.failovers);
    page_->Counter("rcsock_lost_bytes_total",
                   "Unread bytes lost to a program that exec started without "
                   "rcsock",
                   who_, total_.lost_bytes);
    page_->Counter("rcsock_in_place_bytes_total",
                   "Bytes that a device has put where the program wanted them",
                   who_, total_.in_place_bytes);
    for (const auto& [way, bytes] :
         {std::pair{"slots", total_.gpu_slot_bytes},
          std::pair{"rings", total_.gpu_ring_bytes},
          std::pair{"devices", total_.gpu_device_bytes},
          std::pair{"passed", total_.gpu_passed_bytes}}) {
      page_->Counter("rcsock_gpu_bytes_total",
                     "Bytes of GPUs, by the way that they took",
                     With("way", way), bytes);
    }
    page_->Counter("rcsock_spun_microseconds_total",
                   "CPU time in waits that looked instead of sleeping", who_,
                   total_.spun_ns / 1000);
    page_->Counter("rcsock_spun_found_microseconds_total",
                   "CPU time in those waits that found something", who_,
                   total_.spun_well_ns / 1000);
    page_->Gauge("rcsock_pinned_bytes", "Memory registered with RDMA devices",
                 who_, total_.pinned_bytes);
  }

  // Why connections left their lanes, or never had one.
  void AddReasons() {
    for (const auto& [why, count] :
         {std::pair{"budget", total_.evicted_budget},
          std::pair{"memory", total_.evicted_memory},
          std::pair{"idle_rings", total_.evicted_idle}}) {
      page_->Counter("rcsock_evicted_total",
                     "Connections asked to leave an RDMA lane, by cause",
                     With("why", why), count);
    }
    // The count of an open connection goes away when that connection gets a
    // lane.
    for (std::size_t r = 0; r < std::size(base::kReasonKeys); ++r) {
      if (total_.reasons[r] == 0) continue;
      page_->Gauge(
          "rcsock_never_on_a_lane",
          "Connections so far, open or closed, without a lane, by reason",
          With("reason", base::kReasonKeys[r]), total_.reasons[r]);
    }
  }

  void AddLanes() {
    for (int i = 0; i < 3; ++i) {
      const char* lane = LaneName(static_cast<posix::SnapshotLane>(i));
      page_->Counter("rcsock_sent_bytes_total", "Bytes sent, by lane",
                     With("lane", lane), total_.lanes[i].tx_bytes);
      page_->Counter("rcsock_received_bytes_total", "Bytes received, by lane",
                     With("lane", lane), total_.lanes[i].rx_bytes);
    }
  }

  const ProcessPicture& process_;
  const posix::SnapshotHead& total_;
  const Labels who_;
  Page* const page_;
};

void AddDevices(const Picture& picture, Page* to) {
  Page& page = *to;
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
                     "has counted, for all users",
                     {{"device", name},
                      {"port", std::to_string(port.port)},
                      {"event", LossKey(loss)}},
                     count);
      }
    }
  }
}

}  // namespace

std::string AsPrometheus(const Picture& picture) {
  Page page;
  for (const ProcessPicture& process : picture.processes) {
    ProcessPage(
        process,
        {{"program", process.program}, {"pid", std::to_string(process.pid)}},
        &page)
        .Add();
  }
  AddDevices(picture, &page);
  return page.Text();
}

std::string AsPrometheus(const ProgramPictures& programs, const Picture& look) {
  Page page;
  for (const auto& [name, program] : programs) {
    ProcessPage(program.sum, {{"program", name}}, &page).AddProgram(program);
  }
  AddDevices(look, &page);
  return page.Text();
}

}  // namespace rcsock::tools
