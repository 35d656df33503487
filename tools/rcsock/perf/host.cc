#include "tools/rcsock/perf/host.h"

#include <fmt/format.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <fstream>

#include "tools/rcsock/perf/fields.h"
#include "tools/rcsock/version.h"

namespace rcsock::perf {
namespace {

constexpr std::size_t kMostText = 128;
constexpr std::uint64_t kMostCpus = 1 << 20;

std::string CpuModel() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("model name", 0) != 0) continue;
    const std::size_t colon = line.find(": ");
    if (colon != std::string::npos) return line.substr(colon + 2, kMostText);
  }
  return "";
}

}  // namespace

HostFacts ThisHost() {
  utsname name{};
  ::uname(&name);
  return {name.nodename, name.release, CpuModel(),
          static_cast<std::uint64_t>(::sysconf(_SC_NPROCESSORS_ONLN)),
          RCSOCK_VERSION};
}

nlohmann::json ToJson(const HostFacts& facts) {
  return {{"name", facts.name},
          {"kernel", facts.kernel},
          {"cpu", facts.cpu},
          {"cpus", facts.cpus},
          {"version", facts.version}};
}

HostFacts HostFromJson(const nlohmann::json& json) {
  return {TextField(json, "name", kMostText),
          TextField(json, "kernel", kMostText),
          TextField(json, "cpu", kMostText),
          NumberField(json, "cpus", 0, kMostCpus),
          TextField(json, "version", kMostText)};
}

std::string Words(const HostFacts& facts) {
  return fmt::format("{}: {}{} CPU{}, Linux {}, rcsock {}", facts.name,
                     facts.cpu.empty() ? "" : facts.cpu + ", ", facts.cpus,
                     facts.cpus == 1 ? "" : "s", facts.kernel, facts.version);
}

}  // namespace rcsock::perf
