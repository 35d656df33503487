// `rcsock run --require-lanes`: what keeps lanes away before the program runs.

#include "tools/rcsock/require.h"

#include <cstdint>
#include <cstdlib>
#include <filesystem>

#include "lib/base/config.h"
#include "lib/base/policy.h"
#include "lib/verbs/verbs.h"

namespace rcsock::tools {
namespace {

bool ForAll(const base::Rule& rule) {
  constexpr std::uint16_t kLastPort = 65535;
  return rule.directions == (base::Rule::kIn | base::Rule::kOut) &&
         rule.first_port == 0 && rule.last_port == kLastPort &&
         rule.prefix_bits == 0;
}

// Returns false if the rules let no connection look for a lane.
bool MayLook(const base::Rules& rules) {
  for (int i = 0; i < rules.count; ++i) {
    const base::Rule& rule = rules.rules[i];
    if (rule.promote == base::Rule::Promote::kUnset) continue;
    if (rule.promote != base::Rule::Promote::kNever) return true;
    if (ForAll(rule)) return false;
  }
  return true;
}

// Sets *shm and *rdma to false if the rules leave the lane to no connection.
void Narrow(const base::Rules& rules, bool* shm, bool* rdma) {
  bool may_shm = false;
  bool may_rdma = false;
  for (int i = 0; i < rules.count; ++i) {
    const base::Rule& rule = rules.rules[i];
    if (!rule.sets_lanes) continue;
    may_shm = may_shm || rule.shm;
    may_rdma = may_rdma || rule.rdma;
    if (!ForAll(rule)) continue;
    // Later rules say nothing about lanes any more.
    *shm = *shm && may_shm;
    *rdma = *rdma && may_rdma;
    return;
  }
}

base::Rules RulesOf(const std::string& path) {
  const char* text = std::getenv("RCSOCK_RULES");
  const std::string name = std::filesystem::path(path).filename().string();
  base::Rules rules;
  base::ParseRules(text != nullptr ? text : "", name.c_str(), name.c_str(),
                   &rules);
  return rules;
}

// Returns true if an RDMA device is there that streams use beside shared
// memory: it has hardware, or a list names devices.
bool UsableBesideShm(const base::Rules& rules) {
  const char* const list = std::getenv("RCSOCK_DEVICES");
  if ((list != nullptr && *list != '\0') || rules.devices_end > 1) return true;
  verbs::Error error;
  if (!verbs::Load(&error)) return false;
  int count = 0;
  ibv_context** const all = verbs::calls.rdma_get_devices(&count);
  bool found = false;
  for (int i = 0; all != nullptr && i < count && !found; ++i) {
    ibv_device_attr attr;
    found = !verbs::Query(all[i], &attr, nullptr) ||
            (attr.vendor_id != verbs::kVendorRxe &&
             attr.vendor_id != verbs::kVendorSiw);
  }
  if (all != nullptr) verbs::calls.rdma_free_devices(all);
  return found;
}

}  // namespace

std::string WhyNoLane(const std::string& path, const Trial& why_no_shm) {
  base::LoadConfig();
  const base::Config& config = base::GetConfig();
  const char* lanes = std::getenv("RCSOCK_LANES");
  if (!config.enabled) {
    return lanes != nullptr && *lanes != '\0'
               ? std::string("RCSOCK_LANES=") + lanes + " allows none"
               : "RCSOCK_RULES is malformed";
  }
  bool shm = config.shm;
  bool rdma = config.rdma;
  const base::Rules rules = RulesOf(path);
  if (!config.lanes_given) Narrow(rules, &shm, &rdma);
  if (!config.promote_given && !MayLook(rules)) shm = rdma = false;
  if (!shm && !rdma) return "the configuration allows none to " + path;
  if (rdma && verbs::AnyDevice() && (!shm || UsableBesideShm(rules))) return "";
  if (!shm) return "there is no RDMA device, and no other lane is allowed";
  return why_no_shm();
}

}  // namespace rcsock::tools
