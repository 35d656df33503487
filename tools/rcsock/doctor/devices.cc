// Devices, their ports, and the addresses that lead to them.

#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <system_error>

#include "lib/verbs/verbs.h"
#include "tools/rcsock/doctor/host.h"

namespace rcsock::tools {
namespace {

namespace fs = std::filesystem;

std::string FirstLine(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// "4: ACTIVE" -> "ACTIVE".
std::string AfterColon(const std::string& text) {
  const std::size_t at = text.find(": ");
  return at == std::string::npos ? text : text.substr(at + 2);
}

int MtuBytes(ibv_mtu mtu) {
  return mtu >= IBV_MTU_256 && mtu <= IBV_MTU_4096 ? 256 << (mtu - IBV_MTU_256)
                                                   : 0;
}

// Returns the network devices of a port, by its GIDs.  Sets *gids to how many
// GIDs it has.
std::set<std::string> Netdevs(const fs::path& port, int* gids) {
  std::set<std::string> names;
  *gids = 0;
  std::error_code error;
  for (const auto& entry :
       fs::directory_iterator(port / "gid_attrs/ndevs", error)) {
    const std::string name = FirstLine(entry.path());
    if (name.empty()) continue;
    ++*gids;
    names.insert(name);
  }
  return names;
}

void ExaminePort(const std::string& device, const fs::path& port,
                 ibv_context* context, Findings* findings) {
  const std::string number = port.filename().string();
  const std::string about = fmt::format("{} port {}", device, number);
  const std::string state = AfterColon(FirstLine(port / "state"));
  const std::string link = FirstLine(port / "link_layer");
  int gids = 0;
  const std::set<std::string> netdevs = Netdevs(port, &gids);
  int mtu = 0;
  ibv_port_attr attr{};
  if (context != nullptr &&
      (verbs::calls.ibv_query_port)(
          context, static_cast<std::uint8_t>(std::stoi(number)),
          reinterpret_cast<_compat_ibv_port_attr*>(&attr)) == 0) {
    mtu = MtuBytes(attr.active_mtu);
  }
  std::string netdev;
  for (const std::string& name : netdevs) {
    netdev += (netdev.empty() ? "" : ", ") + name;
  }
  const bool iwarp = context != nullptr && verbs::IsIwarp(context);
  std::string words = fmt::format("{}, {}, {}", state, iwarp ? "iWARP" : link,
                                  FirstLine(port / "rate"));
  if (mtu != 0) words += fmt::format(", MTU {}", mtu);
  if (!netdev.empty()) words += fmt::format(", {} GIDs on {}", gids, netdev);
  if (state != "ACTIVE") {
    findings->Bad(about, words,
                  netdev.empty() ? "look at the cable and the switch; on "
                                   "InfiniBand: is a subnet manager running?"
                                 : "ip link set " + netdev + " up");
  } else if (link == "Ethernet" && gids == 0 && !iwarp) {
    findings->Bad(about, words + ": no GID, so no address leads to it",
                  "ip address add ADDRESS/BITS dev NETDEV");
  } else if (mtu != 0 && mtu < 1024 && !iwarp) {
    findings->Warn(about, words + ": a small MTU costs bandwidth",
                   "ip link set " + netdev +
                       " mtu 4200 (at both ends, and on "
                       "the switch)");
  } else {
    findings->Good(about, words);
  }
}

struct Contexts {
  ibv_context** list = nullptr;
  int count = 0;
  Contexts() { list = verbs::calls.rdma_get_devices(&count); }
  ~Contexts() {
    if (list != nullptr) verbs::calls.rdma_free_devices(list);
  }
  Contexts(const Contexts&) = delete;
  Contexts& operator=(const Contexts&) = delete;
  ibv_context* Find(const std::string& name) const {
    for (int i = 0; i < count; ++i) {
      if (name == verbs::calls.ibv_get_device_name(list[i]->device)) {
        return list[i];
      }
    }
    return nullptr;
  }
};

void ExaminePorts(const Contexts& contexts, Findings* findings) {
  std::error_code error;
  for (const auto& entry :
       fs::directory_iterator("/sys/class/infiniband", error)) {
    const std::string name = entry.path().filename().string();
    ibv_context* context = contexts.Find(name);
    if (context == nullptr) {
      findings->Bad(name, "the kernel has it, but verbs cannot open it",
                    "apt install ibverbs-providers; see /dev/infiniband above");
    }
    std::error_code none;
    for (const auto& port :
         fs::directory_iterator(entry.path() / "ports", none)) {
      ExaminePort(name, port.path(), context, findings);
    }
  }
}

// Returns true for an address that rdma_cm may be asked about.
bool IsUsable(const ifaddrs& one) {
  if (one.ifa_addr == nullptr || (one.ifa_flags & IFF_LOOPBACK) != 0 ||
      (one.ifa_flags & IFF_UP) == 0) {
    return false;
  }
  const int family = one.ifa_addr->sa_family;
  // A link-local address would need its interface.  A lane can use a link-local
  // address, but any other address will do to try the device.
  return family == AF_INET ||
         (family == AF_INET6 &&
          !IN6_IS_ADDR_LINKLOCAL(
              &reinterpret_cast<const sockaddr_in6*>(one.ifa_addr)->sin6_addr));
}

// Sets *one to the device that a usable address leads to.  Returns false if it
// leads to none.
bool FindDevice(const sockaddr* address, rdma_event_channel* channel,
                DeviceAddress* one) {
  std::memcpy(&one->address, address,
              address->sa_family == AF_INET ? sizeof(sockaddr_in)
                                            : sizeof(sockaddr_in6));
  verbs::Error failed;
  const verbs::Id id = verbs::CreateId(channel, nullptr, &failed);
  if (id == nullptr ||
      verbs::calls.rdma_bind_addr(
          id.get(), reinterpret_cast<sockaddr*>(&one->address)) != 0 ||
      id->verbs == nullptr) {
    return false;
  }
  one->device = verbs::calls.ibv_get_device_name(id->verbs->device);
  one->port = id->port_num;
  one->text = HostText(one->address);
  return true;
}

}  // namespace

std::vector<DeviceAddress> ExamineDevices(Findings* findings) {
  const Contexts contexts;  // open until the addresses have been tried
  ExaminePorts(contexts, findings);
  // rdma_cm's answer for each address decides for a stream, too.
  std::vector<DeviceAddress> found;
  verbs::Error failed;
  const verbs::EventChannel channel = verbs::CreateEventChannel(&failed);
  if (channel == nullptr) {
    findings->Bad(
        "rdma_cm",
        fmt::format("{}: {}", failed.call, std::strerror(failed.code)),
        "modprobe rdma_ucm; see /dev/infiniband above");
    return found;
  }
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) return found;
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(
      first, &::freeifaddrs);
  for (const ifaddrs* at = first; at != nullptr; at = at->ifa_next) {
    DeviceAddress one{};
    if (!IsUsable(*at) || !FindDevice(at->ifa_addr, channel.get(), &one)) {
      continue;
    }
    findings->Good(one.device,
                   fmt::format("reached by {} of {}", one.text, at->ifa_name));
    found.push_back(one);
  }
  if (found.empty()) {
    findings->Bad("rdma_cm", "no address of this host leads to a device",
                  "ip address add ADDRESS/BITS dev NETDEV (one of the device)");
  }
  return found;
}

}  // namespace rcsock::tools
