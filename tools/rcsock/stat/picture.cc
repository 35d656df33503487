#include "tools/rcsock/stat/picture.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <fnmatch.h>
#include <netinet/in.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "lib/base/clock.h"
#include "lib/base/config.h"
#include "lib/base/policy.h"
#include "lib/base/reason.h"
#include "lib/rendezvous/address.h"
#include "lib/verbs/verbs.h"
#include "tools/rcsock/program.h"
#include "tools/rcsock/stat/ask.h"
#include "tools/rcsock/stat/ask_apart.h"
#include "tools/rcsock/stat/kernel.h"

namespace rcsock::tools {
namespace {

constexpr const char* kReasonTexts[] = {
#define X(id, key, text) text,
    RCSOCK_REASONS(X)
#undef X
};

// In place of a reason: it is unknown.
constexpr auto kUnknown = static_cast<base::Reason>(0xff);

// Why a stream has not looked for a lane, as far as can be seen from outside.
// The process has no thread that could say it.
class Guess {
 public:
  explicit Guess(const ProcessPicture& process) {
    const std::string lanes = VariableOf(process.pid, "RCSOCK_LANES");
    usual_bytes_ = VariableOf(process.pid, "RCSOCK_PROMOTE_BYTES").empty();
    config_.lanes_given = !lanes.empty();
    base::ParseLanes(lanes.c_str(), &config_.terms.shm, &config_.terms.rdma);
    const std::string rules = VariableOf(process.pid, "RCSOCK_RULES");
    if (!base::ParseRules(rules.c_str(), FileOf(process.pid).c_str(),
                          process.program.c_str(), &config_.rules)) {
      // As in LoadConfig: the process has no lanes then.
      config_.terms.shm = config_.terms.rdma = false;
    }
    go_ = IsGo("/proc/" + std::to_string(process.pid) + "/exe");
  }
  base::Reason Why(const posix::SnapshotStream& stream) const {
    if (go_) return base::Reason::kRawCalls;
    const bool accepted = stream.acceptor != 0;
    const base::Terms terms =
        TermsFor(config_, stream.peer,
                 accepted ? stream.local_port : stream.peer_port, accepted);
    if (!terms.shm && !terms.rdma) return base::Reason::kPolicy;
    static rendezvous::HostAddresses host;
    rendezvous::Address peer;
    std::memcpy(peer.data(), stream.peer, sizeof stream.peer);
    if (terms.shm && (rendezvous::IsLoopback(peer) || host.Has(peer))) {
      return Hot(stream) ? kUnknown : base::Reason::kShortLived;
    }
    if (!terms.rdma) return base::Reason::kPolicy;
    return !verbs::AnyDevice() ? base::Reason::kNoDevice
           : Hot(stream)       ? kUnknown
                               : base::Reason::kShortLived;
  }

 private:
  // The stream would have looked for a lane if nothing had kept it.  For
  // instance, no thread could be started, or another process has the stream as
  // well.
  bool Hot(const posix::SnapshotStream& stream) const {
    return usual_bytes_ &&
           stream.tcp_tx_bytes + stream.tcp_rx_bytes >= config_.promote_bytes;
  }

  base::Config config_;
  bool usual_bytes_;
  bool go_;  // its calls do not pass libc
};

// Asks the processes that may be asked, and finds those with the preload.
Found Find(const CollectOptions& options) {
  // doctor's probe asks itself.  It trusts its own answer, and a child of the
  // probe would take its streams back to TCP.
  if (options.pid != ::getpid()) return FindApart(options);
  Found found;
  AskAll(options, options.pid, [&](ProcessPicture process) {
    found.answers.push_back(std::move(process));
    return true;
  });
  found.preloaded.push_back(options.pid);
  return found;
}

// Adds the processes with the preload that have not answered.
void AddUnanswered(const CollectOptions& options,
                   const std::vector<pid_t>& preloaded, Picture* picture) {
  const auto known = [&](pid_t pid) {
    return std::any_of(picture->processes.begin(), picture->processes.end(),
                       [pid](const auto& one) { return one.pid == pid; });
  };
  for (const pid_t pid : preloaded) {
    if ((options.pid != 0 && pid != options.pid) || known(pid)) continue;
    // In a shell under `rcsock run`, this process is one, too. doctor asks
    // itself.
    if (options.pid == 0 && pid == ::getpid()) continue;
    ProcessPicture process;
    process.pid = pid;
    process.uid = UserOf(pid);
    // A conductor that was not asked has a full queue, or is of another
    // version.
    process.source = !InOurNetwork(pid)  ? Source::kElsewhere
                     : HasConductor(pid) ? Source::kSilent
                                         : Source::kTcpOnly;
    picture->processes.push_back(std::move(process));
  }
}

// Names the processes, and drops those that `program` does not ask for.
void KeepNamed(const std::string& program, Picture* picture) {
  for (ProcessPicture& process : picture->processes) {
    process.program = ProgramOf(process.pid);
  }
  if (program.empty()) return;
  std::erase_if(picture->processes, [&](const ProcessPicture& process) {
    const char* glob = program.c_str();
    return ::fnmatch(glob, process.program.c_str(), 0) != 0 &&
           ::fnmatch(glob, FileOf(process.pid).c_str(), 0) != 0;
  });
}

// Returns why a process has not answered.
std::string TroubleOf(pid_t pid) {
  const char state = StateOf(pid);
  const std::string where = ConductorInKernel(pid);
  if (!where.empty()) {
    return "its background thread waits in the kernel: " + where;
  }
  return state == 'T' || state == 't' ? "it is stopped"
         : state == 'Z' || state == 0 ? "it has ended"
                                      : "no answer in time";
}

using Sockets = std::unordered_map<std::uint64_t, posix::SnapshotStream>;

// Adds what the kernel knows of a process that has not answered.
void AddFromKernel(const Sockets& sockets, ProcessPicture* process) {
  process->streams = StreamsOf(process->pid, sockets);
  const bool silent = process->source == Source::kSilent;
  const Guess guess(*process);
  for (StreamPicture& stream : process->streams) {
    stream.is.reason =
        static_cast<std::uint8_t>(silent ? kUnknown : guess.Why(stream.is));
  }
  if (silent && process->trouble.empty()) {
    process->trouble = TroubleOf(process->pid);
  }
}

}  // namespace

Picture Collect(const CollectOptions& options) {
  Picture picture;
  Found found = Find(options);
  picture.processes = std::move(found.answers);
  AddUnanswered(options, found.preloaded, &picture);
  picture.monotonic_ns = base::NowNs();
  KeepNamed(options.program, &picture);
  Sockets sockets;
  bool looked = false;
  for (ProcessPicture& process : picture.processes) {
    if (process.source == Source::kAnswer ||
        process.source == Source::kElsewhere) {
      continue;
    }
    if (!std::exchange(looked, true)) sockets = TcpSockets();
    AddFromKernel(sockets, &process);
  }
  // A process that has ended meanwhile is not worth a line.
  std::erase_if(picture.processes, [](const ProcessPicture& process) {
    return process.source == Source::kSilent && StateOf(process.pid) == 0;
  });
  std::sort(picture.processes.begin(), picture.processes.end(),
            [](const auto& a, const auto& b) { return a.pid < b.pid; });
  for (const auto& [device, totals] : Devices(picture)) {
    picture.counters[device] = CountersOf(device, SysfsRoot());
  }
  return picture;
}

void AddRates(const Picture& before, Picture* now) {
  AddChanges(before.counters, &now->counters);
  std::map<std::pair<pid_t, std::uint64_t>, const posix::SnapshotStream*> old;
  std::map<pid_t, std::uint64_t> then;
  const auto time = [](const Picture& picture, const ProcessPicture& process) {
    return process.source == Source::kAnswer ? process.total.monotonic_ns
                                             : picture.monotonic_ns;
  };
  for (const ProcessPicture& process : before.processes) {
    then[process.pid] = time(before, process);
    for (const StreamPicture& stream : process.streams) {
      old[{process.pid, stream.is.inode}] = &stream.is;
    }
  }
  for (ProcessPicture& process : now->processes) {
    const std::uint64_t at = time(*now, process);
    const std::uint64_t from = then[process.pid];
    if (from == 0 || at <= from) continue;
    const double seconds = static_cast<double>(at - from) * 1e-9;
    for (StreamPicture& stream : process.streams) {
      const auto it = old.find({process.pid, stream.is.inode});
      if (it == old.end()) continue;
      const auto rate = [&](std::uint64_t new_bytes, std::uint64_t old_bytes) {
        return new_bytes < old_bytes
                   ? 0.0
                   : static_cast<double>(new_bytes - old_bytes) / seconds;
      };
      const posix::SnapshotStream& was = *it->second;
      const posix::SnapshotStream& is = stream.is;
      stream.has_rate = true;
      stream.tx_rate = rate(is.tcp_tx_bytes + is.lane_tx_bytes,
                            was.tcp_tx_bytes + was.lane_tx_bytes);
      stream.rx_rate = rate(is.tcp_rx_bytes + is.lane_rx_bytes,
                            was.tcp_rx_bytes + was.lane_rx_bytes);
    }
  }
}

std::map<std::string, DeviceTotals> Devices(const Picture& picture) {
  std::map<std::string, DeviceTotals> devices;
  for (const ProcessPicture& process : picture.processes) {
    for (const StreamPicture& stream : process.streams) {
      if (stream.is.device[0] == '\0') continue;
      DeviceTotals& totals = devices[stream.is.device];
      ++totals.streams;
      totals.tx_bytes += stream.is.lane_tx_bytes;
      totals.rx_bytes += stream.is.lane_rx_bytes;
    }
  }
  return devices;
}

const char* LaneName(posix::SnapshotLane lane) {
  constexpr const char* kNames[] = {"tcp", "shm", "rdma"};
  const auto at = static_cast<std::size_t>(lane);
  return at < std::size(kNames) ? kNames[at] : "?";
}

const char* StateName(posix::SnapshotState state) {
  constexpr const char* kNames[] = {"tcp", "seeking", "switching", "on_lane"};
  const auto at = static_cast<std::size_t>(state);
  return at < std::size(kNames) ? kNames[at] : "?";
}

const char* ReasonName(std::uint8_t reason) {
  return reason < static_cast<int>(base::Reason::kCount)
             ? base::kReasonKeys[reason]
             : "?";
}

std::string ReasonWords(std::uint8_t reason) {
  if (reason >= static_cast<int>(base::Reason::kCount)) {
    return "`rcsock run --log 1` says why";
  }
  switch (static_cast<base::Reason>(reason)) {
    case base::Reason::kNone:
      return "";
    case base::Reason::kShortLived:
      return "has not shown enough traffic yet";
    case base::Reason::kPending:
      return "looking for its peer";
    default:
      return kReasonTexts[reason];
  }
}

std::string AddressText(const std::uint8_t* address, std::uint16_t port) {
  constexpr std::uint8_t kMapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255};
  char text[INET6_ADDRSTRLEN] = "?";
  if (std::memcmp(address, kMapped, sizeof kMapped) == 0) {
    ::inet_ntop(AF_INET, address + 12, text, sizeof text);
    return fmt::format("{}:{}", text, port);
  }
  ::inet_ntop(AF_INET6, address, text, sizeof text);
  return fmt::format("[{}]:{}", text, port);
}

}  // namespace rcsock::tools
