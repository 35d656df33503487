#ifndef RCSOCK_TOOLS_RCSOCK_PERF_HOST_H_
#define RCSOCK_TOOLS_RCSOCK_PERF_HOST_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

namespace rcsock::perf {

// What a reader of figures wants to know of an end.
struct HostFacts {
  std::string name;
  std::string kernel;
  std::string cpu;  // the model; "": not known
  std::uint64_t cpus = 0;
  std::string version;  // of rcsock
};

HostFacts ThisHost();
nlohmann::json ToJson(const HostFacts& facts);
// Throws Error.
HostFacts HostFromJson(const nlohmann::json& json);
// "db1: Intel Xeon ..., 16 CPUs, Linux 6.1.0, rcsock 0.1.0".
std::string Words(const HostFacts& facts);

}  // namespace rcsock::perf

#endif  // RCSOCK_TOOLS_RCSOCK_PERF_HOST_H_
