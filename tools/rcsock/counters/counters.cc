#include "tools/rcsock/counters/counters.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <optional>
#include <system_error>

namespace rcsock::tools {
namespace {

namespace fs = std::filesystem;

struct Name {
  Loss loss;
  const char* file;
};

// The files of ports/N/hw_counters, by what they count.  If a driver has two
// names of one event, of an old and of a new kernel, only one file exists.  If
// one counter includes another, only the larger is here: roce_adp_retrans
// includes roce_adp_retrans_to.
constexpr Name kHwCounters[] = {
    // mlx5. mlx4 and hns have some of these.
    {Loss::kTimeouts, "local_ack_timeout_err"},
    {Loss::kSequence, "out_of_sequence"},
    {Loss::kSequence, "packet_seq_err"},
    {Loss::kSequence, "implied_nak_seq_err"},
    {Loss::kRnr, "rnr_nak_retry_err"},
    {Loss::kRnr, "out_of_buffer"},
    {Loss::kRetransmits, "roce_adp_retrans"},
    {Loss::kRetransmits, "roce_slow_restart_trans"},
    {Loss::kMarks, "np_cnp_sent"},
    {Loss::kMarks, "rp_cnp_handled"},
    {Loss::kMarks, "np_ecn_marked_roce_packets"},
    // bnxt_re
    {Loss::kTimeouts, "to_retransmits"},
    {Loss::kSequence, "seq_err_naks_rcvd"},
    {Loss::kSequence, "oos_drop_count"},
    {Loss::kSequence, "missing_resp"},
    {Loss::kSequence, "missin_resp"},
    {Loss::kRnr, "rnr_naks_rcvd"},
    {Loss::kRnr, "rx_out_of_buffer"},
    {Loss::kExceeded, "max_retry_exceeded"},
    {Loss::kDiscards, "tx_roce_discards"},
    {Loss::kDiscards, "rx_roce_discards"},
    {Loss::kMarks, "tx_cnp_pkts"},
    {Loss::kMarks, "rx_cnp_pkts"},
    {Loss::kMarks, "rx_ecn_marked_pkts"},
    // irdma, of older and of newer kernels.
    {Loss::kRetransmits, "tcpRetransSegs"},
    {Loss::kRetransmits, "RetransSegs"},
    {Loss::kSequence, "Nak Sequence Error"},
    {Loss::kRnr, "RNR sent"},
    {Loss::kRnr, "RNR received"},
    {Loss::kDiscards, "ip4InDiscards"},
    {Loss::kDiscards, "ip6InDiscards"},
    {Loss::kMarks, "cnpSent"},
    {Loss::kMarks, "cnpHandled"},
    {Loss::kMarks, "RxECNMrkd"},
    // mana
    {Loss::kTimeouts, "requester_timeout"},
    {Loss::kSequence, "requester_oos_nak"},
    {Loss::kSequence, "responder_oos"},
    {Loss::kRnr, "requester_rnr_nak"},
    {Loss::kRnr, "responder_rnr_nak"},
    // efa
    {Loss::kTimeouts, "retrans_timeout_events"},
    {Loss::kRetransmits, "retrans_pkts"},
    // rxe
    {Loss::kRetransmits, "completer_retry_err"},
    {Loss::kSequence, "out_of_seq_request"},
    {Loss::kSequence, "rcvd_seq_err"},
    {Loss::kRnr, "rcvd_rnr_err"},
    {Loss::kRnr, "send_rnr_err"},
    {Loss::kExceeded, "retry_exceeded_err"},
    {Loss::kExceeded, "retry_rnr_exceeded_err"},
    {Loss::kLinkErrors, "link_downed"},
};
// The files of ports/N/counters, which InfiniBand's specification names.
constexpr Name kCounters[] = {
    {Loss::kDiscards, "port_xmit_discards"},
    {Loss::kLinkErrors, "port_rcv_errors"},
    {Loss::kLinkErrors, "symbol_error"},
    {Loss::kLinkErrors, "link_error_recovery"},
    {Loss::kLinkErrors, "link_downed"},
    {Loss::kLinkErrors, "local_link_integrity_errors"},
    {Loss::kLinkErrors, "excessive_buffer_overrun_errors"},
};

std::optional<std::uint64_t> NumberIn(const fs::path& path) {
  std::ifstream file(path);
  std::uint64_t number = 0;
  if (file >> number) return number;
  return std::nullopt;
}

template <std::size_t kSize>
void Add(const fs::path& directory, const Name (&names)[kSize],
         std::map<Loss, std::uint64_t>* counts) {
  for (const Name& name : names) {
    if (const auto number = NumberIn(directory / name.file)) {
      (*counts)[name.loss] += *number;
    }
  }
}

}  // namespace

const char* LossKey(Loss loss) {
  constexpr const char* kKeys[] = {"time_outs",   "out_of_sequence", "rnr",
                                   "retransmits", "retries_used_up", "discards",
                                   "link_errors", "congestion_marks"};
  static_assert(std::size(kKeys) == std::size(kLosses));
  return kKeys[static_cast<std::size_t>(loss)];
}

const char* LossWords(Loss loss) {
  constexpr const char* kWords[] = {
      "time-outs",       "out of sequence", "RNR",         "retransmits",
      "retries used up", "discards",        "link errors", "congestion marks"};
  static_assert(std::size(kWords) == std::size(kLosses));
  return kWords[static_cast<std::size_t>(loss)];
}

fs::path SysfsRoot() {
  const char* path = ::secure_getenv("SYSFS_PATH");
  return path == nullptr || *path == '\0' ? "/sys" : path;
}

std::vector<PortCounters> CountersOf(const std::string& device,
                                     const fs::path& sysfs) {
  const fs::path at = sysfs / "class/infiniband" / device;
  std::vector<PortCounters> ports;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(at / "ports", error)) {
    const std::string name = entry.path().filename().string();
    PortCounters port;
    const auto parsed =
        std::from_chars(name.data(), name.data() + name.size(), port.port);
    if (parsed.ec != std::errc() || parsed.ptr != name.data() + name.size()) {
      continue;
    }
    Add(entry.path() / "hw_counters", kHwCounters, &port.counts);
    Add(entry.path() / "counters", kCounters, &port.counts);
    ports.push_back(std::move(port));
  }
  std::sort(ports.begin(), ports.end(),
            [](const auto& a, const auto& b) { return a.port < b.port; });
  // Some drivers count for the device.  If it has one port, the counts are that
  // port's.
  if (ports.size() == 1) Add(at / "hw_counters", kHwCounters, &ports[0].counts);
  return ports;
}

DeviceCounters AllCounters(const fs::path& sysfs) {
  DeviceCounters all;
  std::error_code error;
  for (const auto& entry :
       fs::directory_iterator(sysfs / "class/infiniband", error)) {
    const std::string name = entry.path().filename().string();
    all[name] = CountersOf(name, sysfs);
  }
  return all;
}

void AddChanges(const DeviceCounters& before, DeviceCounters* now) {
  for (auto& [device, ports] : *now) {
    const auto known = before.find(device);
    if (known == before.end()) continue;
    for (PortCounters& port : ports) {
      for (const PortCounters& was : known->second) {
        if (was.port != port.port) continue;
        for (const auto& [loss, count] : port.counts) {
          const auto old = was.counts.find(loss);
          if (old == was.counts.end()) continue;
          port.changes[loss] = count - std::min(count, old->second);
        }
      }
    }
  }
}

std::string CountersText(const PortCounters& port, bool only_counted) {
  std::string text;
  for (const auto& [loss, count] : port.counts) {
    if (only_counted && count == 0) continue;
    text += (text.empty() ? "" : ", ") + std::to_string(count);
    const auto change = port.changes.find(loss);
    if (change != port.changes.end() && change->second != 0) {
      text += " (+" + std::to_string(change->second) + ")";
    }
    text += std::string(" ") + LossWords(loss);
  }
  return text;
}

}  // namespace rcsock::tools
