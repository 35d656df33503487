#include "tools/rcsock/doctor/doctor.h"

#include <fmt/format.h>
#include <netdb.h>
#include <sched.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/policy.h"
#include "tools/rcsock/counters/counters.h"
#include "tools/rcsock/doctor/findings.h"
#include "tools/rcsock/doctor/gpus.h"
#include "tools/rcsock/doctor/host.h"
#include "tools/rcsock/doctor/network.h"
#include "tools/rcsock/doctor/probe.h"
#include "tools/rcsock/doctor/program_code.h"
#include "tools/rcsock/doctor/rules.h"
#include "tools/rcsock/printable.h"
#include "tools/rcsock/run.h"

namespace rcsock::tools {
namespace {

constexpr char kFooter[] = R"(
Says in plain words which lanes this host can open, tries each of them, and names the
command that mends what is wrong.

  rcsock doctor                 devices, limits, permissions; a loop through each lane
  rcsock doctor --listen        on one host, and then
  rcsock doctor HOST            on the other: the lane between the two
  rcsock doctor --program FILE  whether its own machine code keeps it on TCP

Exit status: 0; 1 if something is bad; 2 for wrong options.
)";

bool Colour() {
  const char* no = std::getenv("NO_COLOR");
  const char* terminal = std::getenv("TERM");
  return ::isatty(STDOUT_FILENO) == 1 && (no == nullptr || *no == '\0') &&
         (terminal == nullptr || std::string_view(terminal) != "dumb");
}

// Returns the lanes that the environment allows, or "" if it does not say.
std::string LanesAllowed() {
  const char* lanes = std::getenv("RCSOCK_LANES");
  return lanes == nullptr ? "" : lanes;
}

// Returns true if this RCSOCK_LANES allows `lane`, shm or rdma.
bool Allows(const std::string& set, const std::string& lane) {
  bool shm;
  bool rdma;
  base::ParseLanes(set.c_str(), &shm, &rdma);
  return lane == "shm" ? shm : rdma;
}

// Returns the lanes to try on this host: shm, unless the environment or rules
// say which.
std::string LanesHere(const std::string& rules) {
  return LanesAllowed().empty() && rules.find("lanes=") == std::string::npos
             ? "shm"
             : "";
}

// Returns what helps against a reason, or "" if nothing is to be done.
std::string MendOf(const std::string& reason) {
  struct Entry {
    const char* reason;
    const char* mend;
  };
  constexpr Entry kEntries[] = {
      {"policy", "see the configuration of `rcsock run`"},
      {"no_device",
       "an HCA; or, to try --lanes=rdma: rdma link add rxe0 type rxe netdev "
       "NETDEV"},
      {"device_left_alone",
       "`devices` of the configuration, or RCSOCK_DEVICES, names the device "
       "with `-`, or only others; without hardware it wants --lanes=rdma"},
      {"no_rdma_library", "apt install librdmacm1 ibverbs-providers"},
      {"no_route", "ip route get PEER must show a device's network device"},
      {"rdma_rejected", "run `rcsock doctor` on the other host"},
      {"rdma_timeout", "a firewall? RoCE v2 is UDP port 4791, iWARP is TCP"},
      {"memlock", "ulimit -l unlimited, on both hosts"},
      {"device_full",
       "`rdma resource` shows who has the device's objects; rdma.max of the "
       "cgroup; fewer lanes by `max_qps`"},
      {"different_key", "the same RCSOCK_KEY_FILE on both hosts"},
      {"other_namespace",
       "RCSOCK_MEET_DIR=DIR at both ends, a directory that both containers "
       "share"},
      {"meet_dir", "see `meeting directory`"},
      {"translated_address",
       "reach the peer by its own address, or by one that is only DNAT's"},
      {"peer_without_rcsock", "rcsock run -- PROGRAM on the other end, too"},
      {"different_uid",
       "both programs as the same user, or `rcsock run --peers` at both ends"},
      {"peer_version", "the same version of rcsock at both ends"},
      {"no_memory", "free memory, or the cgroup's limit of it; ulimit -f"},
      {"no_fds", "ulimit -n 65536"},
      {"no_thread", "ulimit -u"},
      {"timeout", "run it again; the peer was busy"},
      {"?", "ulimit -n 65536; ulimit -u unlimited"},
  };
  for (const Entry& entry : kEntries) {
    if (reason == entry.reason) return entry.mend;
  }
  return "";
}

// Returns what is to be mended.  If the other end did not answer in time, that
// is its reason.
std::string Cause(const ProbeResult& result) {
  return result.reason == "timeout" && !MendOf(result.peer_reason).empty() &&
                 result.peer_reason != "?"
             ? result.peer_reason
             : result.reason;
}

// `set` is RCSOCK_LANES, if the user has set it.  `rule` is what keeps lanes
// from the connection, or "".
void Report(const std::string& about, const std::string& wanted,
            const ProbeResult& result, const std::string& set,
            const std::string& rule, Findings* findings) {
  if (!result.error.empty()) {
    std::string mend;
    if (result.refused) {
      mend = "start `rcsock doctor --listen` there";
    } else if (result.missing) {
      mend = "RCSOCK_PRELOAD=/path/to/librcsock_preload.so";
    } else if (wanted == "shm" && result.error.find(std::strerror(
                                      ENETUNREACH)) != std::string::npos) {
      mend = "ip link set lo up";  // in a network namespace of its own
    }
    findings->Bad(about, result.error, mend);
    return;
  }
  const std::string works =
      fmt::format("{} round trips verified, {:.1f} us each (median)",
                  result.round_trips, result.median_us);
  if (result.lane != "tcp" && (wanted.empty() || result.lane == wanted)) {
    findings->Good(
        about, fmt::format("lane {}{} open after {:.0f} ms; {}", result.lane,
                           result.device.empty() ? "" : " on " + result.device,
                           result.promoted_ms, works));
    return;
  }
  std::string mend;
  if (!set.empty() &&
      (wanted.empty() ? set != "auto" && result.reason == "policy"
                      : !Allows(set, wanted))) {
    mend =
        fmt::format("RCSOCK_LANES={} keeps it away: unset RCSOCK_LANES", set);
  } else if (!rule.empty()) {
    mend = rule +
           " keeps it away; `rcsock run --no-config` runs a program without";
  }
  if (result.lane != "tcp") {
    findings->Bad(
        about,
        fmt::format("lane {} in place of {}; {}", result.lane, wanted, works),
        mend);
    return;
  }
  findings->Bad(about,
                fmt::format("no lane: {} ({}); TCP works: {}",
                            result.reason_text, result.reason, works),
                mend.empty() || (set.empty() && result.reason != "policy")
                    ? MendOf(Cause(result))
                    : mend);
  if (!result.peer_reason.empty() && result.peer_reason != "?" &&
      result.peer_reason != result.reason) {
    findings->Note(about,
                   fmt::format("the other end says: {}", result.peer_reason));
  }
}

// "HOST", "HOST:PORT", "[V6]:PORT", "V6".
bool SplitPeer(const std::string& text, std::string* host,
               std::uint16_t* port) {
  std::size_t colon = text.rfind(':');
  if (text[0] == '[') {
    const std::size_t close = text.find(']');
    if (close == std::string::npos) return false;
    *host = text.substr(1, close - 1);
    if (close + 1 == text.size()) return !host->empty();
    if (text[close + 1] != ':') return false;
    colon = close + 1;
  } else if (colon == std::string::npos || text.find(':') != colon) {
    *host = text;
    return true;
  } else {
    *host = text.substr(0, colon);
  }
  const char* end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data() + colon + 1, end, *port);
  return !host->empty() && parsed.ec == std::errc() && parsed.ptr == end &&
         *port != 0;
}

// Resolves an address of the peer, for the route alone.
bool Resolve(const std::string& host, sockaddr_storage* address) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), "1", &hints, &found) != 0) return false;
  std::memcpy(address, found->ai_addr, found->ai_addrlen);
  ::freeaddrinfo(found);
  return true;
}

int AnswerPeers(std::uint16_t port) {
  if (const Policy policy = ApplyConfig(std::nullopt); !policy.error.empty()) {
    std::cerr << "rcsock: " << policy.error << ": over plain TCP\n";
  }
  return Listen(port == 0 ? kDoctorPort : port);
}

int ShowProgram(const DoctorOptions& options, Findings* findings) {
  if (!ExamineProgram(options.program, findings)) {
    std::cerr << "rcsock: " << Printable(options.program)
              << " is no program of this processor's\n";
    return 2;
  }
  if (options.json) std::cout << findings->Json();
  return 0;
}

// Tries each device that the configuration allows. Returns these.
std::vector<DeviceAddress> TryDevices(const Reasons& rules,
                                      Findings* findings) {
  std::vector<DeviceAddress> tried;
  for (const DeviceAddress& one : ExamineDevices(findings)) {
    if (rules.MayUseDevice(one.device, one.port)) {
      ExamineVerbs(one, findings);
      tried.push_back(one);
    } else {
      findings->Note(one.device,
                     fmt::format("the configuration leaves it alone: streams "
                                 "over {} stay on TCP (device_left_alone)",
                                 one.text));
    }
  }
  return tried;
}

// Tries each device over the memory of each GPU.
void TryGpus(int gpus, const std::vector<DeviceAddress>& devices,
             Findings* findings) {
  for (int gpu = 0; gpu < gpus; ++gpu) {
    for (const DeviceAddress& one : devices) {
      ExamineGpuVerbs(one, gpu, findings);
    }
  }
}

// Looks at this host's processors, memory and counters.
void ExamineSysfs(Findings* findings) {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (::sched_getaffinity(0, sizeof allowed, &allowed) == 0) {
    ExaminePlaces(SysfsRoot(), "/proc", allowed, findings);
  }
  ExamineCounters(SysfsRoot(), findings);
}

// Measures TCP beside the lane that has just been measured: between hosts
// nothing else tells whether the lane is worth it.
void CompareWithTcp(const std::string& about, const std::string& host,
                    std::uint16_t port, const ProbeResult& lane,
                    Findings* findings) {
  // Medians of two runs differ by less.
  constexpr double kMargin = 1.25;
  if (!lane.error.empty() || lane.lane == "tcp") return;
  const ProbeResult tcp = Probe(host, port, "tcp");
  if (!tcp.error.empty() || tcp.lane != "tcp" || tcp.median_us <= 0) return;
  const std::string text =
      fmt::format("over TCP a round trip takes {:.1f} us", tcp.median_us);
  if (lane.median_us <= kMargin * tcp.median_us) {
    findings->Good(about, text);
    return;
  }
  findings->Warn(about, text + ": the lane is slower",
                 "a rule with this peer and `lanes = \"tcp\"`; `rcsock perf "
                 "--compare` measures more");
}

// Tries the lane to another host. `set` is RCSOCK_LANES; `verbs` says whether
// this host has a device.
void TryPeer(const std::string& host, std::uint16_t port, bool verbs,
             const Reasons& rules, const std::string& set, Findings* findings) {
  sockaddr_storage address{};
  std::string rule;
  if (Resolve(host, &address)) {
    if (verbs) ExamineRoute(address, host, findings);
    std::uint8_t peer[16] = {};
    MappedAddress(address, peer);
    rule = rules.Against("", peer, port);
    // To another host there is no lane but RDMA.
    if (rule.empty()) rule = rules.Against("rdma", peer, port);
  }
  const std::string about = "to " + host;
  const ProbeResult result = Probe(host, port, "");
  Report(about, "", result, set, rule, findings);
  CompareWithTcp(about, host, port, result, findings);
}

}  // namespace

CLI::App* AddDoctor(CLI::App* app, DoctorOptions* options) {
  CLI::App* doctor = app->add_subcommand(
      "doctor", "Say which lanes can open here, and mend what cannot");
  doctor->footer(kFooter);
  auto* listen = doctor->add_flag("--listen", options->listen,
                                  "Answer the doctor of another host");
  doctor
      ->add_option("-p,--port", options->port,
                   fmt::format("The port to listen on ({})", kDoctorPort))
      ->check(CLI::Range(1, 65535))
      ->needs(listen)
      ->type_name("PORT");
  doctor->add_flag("--json", options->json, "One JSON object")
      ->excludes(listen);
  auto* peer = doctor
                   ->add_option("peer", options->peer,
                                "The host where `rcsock doctor --listen` runs")
                   ->excludes(listen)
                   ->type_name("HOST[:PORT]");
  doctor
      ->add_option("--program", options->program,
                   "Look at this program's machine code alone")
      ->excludes(listen)
      ->excludes(peer)
      ->type_name("FILE");
  return doctor;
}

int Doctor(const DoctorOptions& options) {
  if (options.listen) return AnswerPeers(options.port);
  std::string host;
  std::uint16_t port = kDoctorPort;
  if (!options.peer.empty() && !SplitPeer(options.peer, &host, &port)) {
    std::cerr << "rcsock: " << options.peer << " is not HOST[:PORT]\n";
    return 2;
  }
  Findings findings;
  findings.ShowAs(!options.json, Colour());
  if (!options.program.empty()) return ShowProgram(options, &findings);
  const std::string set = LanesAllowed();
  ExamineVariables(&findings);
  ExamineKey(&findings);
  ExamineMeeting(&findings);
  const Policy policy = ApplyConfig(std::nullopt);
  const Reasons rules(policy, &findings);
  const bool verbs = ExamineHost(&findings);
  std::vector<DeviceAddress> devices;
  if (verbs) devices = TryDevices(rules, &findings);
  ExamineSysfs(&findings);
  TryGpus(ExamineGpus(SysfsRoot(), &findings), devices, &findings);
  Report("shm lane", "shm", ProbeHere(LanesHere(rules.text())), set,
         rules.Against("shm", kLoopback, 0), &findings);
  if (!host.empty()) TryPeer(host, port, verbs, rules, set, &findings);
  if (options.json) std::cout << findings.Json();
  return findings.AnyBad() ? 1 : 0;
}

}  // namespace rcsock::tools
