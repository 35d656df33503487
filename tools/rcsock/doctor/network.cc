#include "tools/rcsock/doctor/network.h"

#include <fmt/format.h>

#include <fstream>
#include <set>
#include <string>
#include <system_error>
#include <vector>

#include "lib/lane/rdma/vectors.h"
#include "tools/rcsock/counters/counters.h"

namespace rcsock::tools {
namespace {

namespace fs = std::filesystem;

// Returns what to do about the first of these that a port has counted.
const char* MendOf(const PortCounters& port) {
  const auto counted = [&](Loss loss) {
    const auto at = port.counts.find(loss);
    return at != port.counts.end() && at->second != 0;
  };
  if (counted(Loss::kLinkErrors)) {
    return "the cable, the transceiver, the switch's port; \"Packets that are "
           "lost\" in docs/install.md";
  }
  if (counted(Loss::kTimeouts) || counted(Loss::kSequence) ||
      counted(Loss::kRetransmits) || counted(Loss::kExceeded) ||
      counted(Loss::kDiscards)) {
    return "`rcsock stat --watch` shows whether it goes on; then PFC, ECN and "
           "the switch's drops: \"Packets that are lost\" in docs/install.md";
  }
  return "a receiver was late: `rcsock stat --watch` shows whether it goes on, "
         "and whether with a program that is not under rcsock";
}

std::string FirstLine(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// "0-3,8"
std::string CpusText(const cpu_set_t& cpus) {
  std::string text;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &cpus)) continue;
    int last = cpu;
    while (last + 1 < CPU_SETSIZE && CPU_ISSET(last + 1, &cpus)) ++last;
    text += (text.empty() ? "" : ",") + std::to_string(cpu);
    if (last != cpu) text += "-" + std::to_string(last);
    cpu = last;
  }
  return text;
}

void ExamineNode(const std::string& device, const fs::path& at,
                 const cpu_set_t& allowed, Findings* findings) {
  const std::string node = FirstLine(at / "numa_node");
  const std::string list = FirstLine(at / "local_cpulist");
  cpu_set_t local;
  if (!lane::rdma::ParseCpus(list.c_str(), &local)) return;
  if (node.empty() || node[0] == '-') {
    findings->Note(device,
                   "its NUMA node is not known (one node, or the firmware does "
                   "not say)");
    return;
  }
  cpu_set_t both;
  CPU_AND(&both, &local, &allowed);
  const int near = CPU_COUNT(&both);
  const int all = CPU_COUNT(&allowed);
  const std::string words = fmt::format(
      "on NUMA node {}, CPUs {}; near are {} of the {} CPUs that "
      "this process may use",
      node, list, near, all);
  const std::string mend = fmt::format(
      "numactl --cpunodebind={} --membind={} rcsock run -- PROGRAM; "
      "in a systemd unit CPUAffinity={}",
      node, node, list);
  if (near == 0) {
    findings->Warn(
        device, fmt::format("{}: each packet crosses to another node", words),
        mend);
  } else if (near < all) {
    findings->Note(device, words, mend);
  } else {
    findings->Good(device, words);
  }
}

void ExamineVectors(const std::string& device, const fs::path& sysfs,
                    const fs::path& proc, const cpu_set_t& allowed,
                    Findings* findings) {
  const std::vector<cpu_set_t> vectors =
      lane::rdma::VectorCpus(sysfs.c_str(), proc.c_str(), device.c_str());
  if (vectors.empty()) return;
  cpu_set_t all;
  CPU_ZERO(&all);
  int near = 0;
  for (const cpu_set_t& one : vectors) {
    CPU_OR(&all, &all, &one);
    cpu_set_t both;
    CPU_AND(&both, &one, &allowed);
    near += CPU_COUNT(&both) != 0;
  }
  const std::string words = fmt::format(
      "{} completion vector{}, whose interrupts go to CPUs {}; {} of them to "
      "CPUs that this process may use",
      vectors.size(), vectors.size() == 1 ? "" : "s", CpusText(all), near);
  if (vectors.size() > 1 && CPU_COUNT(&all) == 1) {
    findings->Warn(device, words,
                   "systemctl start irqbalance, or the adapter's script of "
                   "affinities (set_irq_affinity.sh of mlnx-tools)");
  } else if (near == 0) {
    findings->Note(device, words,
                   "the interrupts' CPUs beside the program's: "
                   "/proc/irq/N/smp_affinity_list, or the program's affinity");
  } else {
    findings->Good(device, words);
  }
}

}  // namespace

void ExaminePlaces(const fs::path& sysfs, const fs::path& proc,
                   const cpu_set_t& allowed, Findings* findings) {
  std::error_code error;
  std::set<std::string> devices;
  for (const auto& entry :
       fs::directory_iterator(sysfs / "class/infiniband", error)) {
    devices.insert(entry.path().filename().string());
  }
  for (const std::string& device : devices) {
    ExamineNode(device, sysfs / "class/infiniband" / device / "device", allowed,
                findings);
    ExamineVectors(device, sysfs, proc, allowed, findings);
  }
}

void ExamineCounters(const std::filesystem::path& sysfs, Findings* findings) {
  for (const auto& [device, ports] : AllCounters(sysfs)) {
    for (const PortCounters& port : ports) {
      const std::string about = fmt::format("{} port {}", device, port.port);
      bool lost = false;
      bool marked = false;
      for (const auto& [loss, count] : port.counts) {
        (loss == Loss::kMarks ? marked : lost) |= count != 0;
      }
      if (port.counts.empty()) {
        findings->Note(about, "its driver counts no lost packets");
      } else if (lost) {
        findings->Warn(about,
                       fmt::format("since its driver was loaded, for all "
                                   "programs: {}",
                                   CountersText(port, true)),
                       MendOf(port));
      } else if (marked) {
        // Congestion control is at work: nothing was lost.
        findings->Note(about, "nothing lost; " + CountersText(port, true));
      } else {
        findings->Good(about, CountersText(port, false));
      }
    }
  }
}

}  // namespace rcsock::tools
