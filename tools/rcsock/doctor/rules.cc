#include "tools/rcsock/doctor/rules.h"

#include <fmt/format.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <sstream>

#include "lib/base/config.h"
#include "lib/base/policy.h"

namespace rcsock::tools {
namespace {

// The name under which probes run.
constexpr char kProgram[] = "rcsock";

// "FILE:LINE" -> "FILE".
std::string FileOf(const std::string& place) {
  return place.substr(0, place.rfind(':'));
}

}  // namespace

void MappedAddress(const sockaddr_storage& address, std::uint8_t* bytes) {
  if (address.ss_family == AF_INET6) {
    std::memcpy(bytes,
                &reinterpret_cast<const sockaddr_in6&>(address).sin6_addr, 16);
    return;
  }
  std::memcpy(bytes, kLoopback, 12);
  std::memcpy(bytes + 12,
              &reinterpret_cast<const sockaddr_in&>(address).sin_addr, 4);
}

Reasons::Reasons(const Policy& policy, Findings* findings) {
  if (!policy.error.empty()) {
    findings->Bad("configuration",
                  policy.error + ": programs run over plain TCP",
                  "mend the file; `rcsock run --no-config` runs a program "
                  "without");
    return;
  }
  const char* rules = std::getenv("RCSOCK_RULES");
  if (rules == nullptr || *rules == '\0') return;
  text_ = rules;
  std::istringstream words(text_);
  for (std::string one; std::getline(words, one, ';');) {
    const std::size_t i = all_.size();
    // The rule is from a file, or from an outer `rcsock run`.
    all_.push_back(
        {one, i < policy.places.size() ? policy.places[i] : "RCSOCK_RULES"});
  }
  std::vector<std::string> files;
  for (const One& one : all_) {
    const std::string file = FileOf(one.place);
    if (std::find(files.begin(), files.end(), file) == files.end()) {
      files.push_back(file);
    }
  }
  findings->Note("configuration", fmt::format("{} rule{}, of {}", all_.size(),
                                              all_.size() == 1 ? "" : "s",
                                              fmt::join(files, " and ")));
}

std::string Reasons::Against(const std::string& lane, const std::uint8_t* peer,
                             std::uint16_t port) const {
  base::Config config;
  config.lanes_given = std::getenv("RCSOCK_LANES") != nullptr;
  config.promote_given = std::getenv("RCSOCK_PROMOTE_OPS") != nullptr ||
                         std::getenv("RCSOCK_PROMOTE_BYTES") != nullptr;
  // On this host, doctor is also the end that accepts.
  const bool here = std::memcmp(peer, kLoopback, sizeof kLoopback) == 0;
  std::string so_far;
  for (const One& one : all_) {
    // A later rule takes back nothing that an earlier one has decided.
    so_far += (so_far.empty() ? "" : ";") + one.text;
    if (!base::ParseRules(so_far.c_str(), kProgram, kProgram, &config.rules)) {
      return "";
    }
    for (const bool accepted : {false, true}) {
      if (accepted && !here) continue;
      const base::Terms terms = base::TermsFor(config, peer, port, accepted);
      if (lane == "shm"    ? !terms.shm
          : lane == "rdma" ? !terms.rdma
                           : !terms.shm && !terms.rdma) {
        return one.place;
      }
    }
  }
  return "";
}

bool Reasons::MayUseDevice(const std::string& device, unsigned port) const {
  base::Config config;
  if (!base::ParseRules(text_.c_str(), kProgram, kProgram, &config.rules)) {
    return true;
  }
  // As in LoadConfig.
  const char* set = std::getenv("RCSOCK_DEVICES");
  if (set != nullptr && *set != '\0') {
    std::string list = set;
    std::replace(list.begin(), list.end(), ',', '+');
    config.devices =
        base::AddDevices(list.data(), list.data() + list.size(), &config.rules);
    if (config.devices == 0) return false;
  }
  // A rule with conditions on the peer does not hold for this address.
  const std::uint8_t nobody[16] = {};
  const base::Fabric fabric = base::FabricFor(config, nobody, 0, false);
  return base::MayUseDevice(fabric.devices, device.c_str(), port);
}

}  // namespace rcsock::tools
