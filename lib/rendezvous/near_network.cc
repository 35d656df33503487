#include "lib/rendezvous/near_network.h"

#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <net/route.h>
#include <netinet/in.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "lib/base/clock.h"
#include "lib/base/file_text.h"
#include "lib/base/unique_fd.h"
#include "lib/rendezvous/address.h"

namespace rcsock::rendezvous {
namespace {

// An entry has the address, and above the address the second of the look and
// the place.
constexpr std::size_t kKnown = 64;
constexpr std::uint64_t kSeconds = 10;
constinit std::atomic<std::uint64_t> known[kKnown]{};

// The best route that the list has.
struct Route {
  char interface[IFNAMSIZ] = {};
  std::uint32_t mask = 0;
  std::uint32_t gateway = 0;
  bool found = false;
  bool to_gateway = false;  // some route has the peer as its gateway
  char gateway_interface[IFNAMSIZ] = {};
};

// Numbers in the list are as in memory: big-endian.
void ReadLine(const char* line, std::uint32_t peer, Route* best) {
  char name[IFNAMSIZ];
  unsigned to;
  unsigned gateway;
  unsigned flags;
  unsigned mask;
  if (std::sscanf(line, "%15s %x %x %x %*d %*d %*d %x", name, &to, &gateway,
                  &flags, &mask) != 5 ||
      (flags & RTF_UP) == 0) {
    return;
  }
  if ((flags & RTF_GATEWAY) != 0 && gateway == peer) {
    best->to_gateway = true;
    std::strcpy(best->gateway_interface, name);
  }
  if ((peer & mask) != to || (best->found && ntohl(mask) < ntohl(best->mask))) {
    return;
  }
  best->found = true;
  best->mask = mask;
  best->gateway = (flags & RTF_GATEWAY) != 0 ? gateway : 0;
  std::strcpy(best->interface, name);
}

bool ReadRoutes(std::uint32_t peer, Route* best) {
  const base::UniqueFd file(base::OpenText("/proc/thread-self/net/route"));
  if (!file.ok()) return false;
  char text[8192];  // 64 routes
  std::size_t size = 0;
  for (;;) {
    const long n =
        ::syscall(SYS_read, file.get(), text + size, sizeof text - 1 - size);
    if (n <= 0) break;
    size += static_cast<std::size_t>(n);
  }
  text[size] = '\0';
  for (char* line = std::strchr(text, '\n'); line != nullptr && line[1] != '\0';
       line = std::strchr(line + 1, '\n')) {
    ReadLine(line + 1, peer, best);
  }
  return true;
}

// Whether the interface leads, or may lead, to other namespaces of this host.
bool IsVirtual(const char* interface) {
  const base::UniqueFd fd(base::OpenHigh([] {
    return ::syscall(SYS_socket, AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  }));
  ethtool_drvinfo driver{};
  driver.cmd = ETHTOOL_GDRVINFO;
  ifreq ask{};
  std::strncpy(ask.ifr_name, interface, IFNAMSIZ - 1);
  ask.ifr_data = reinterpret_cast<char*>(&driver);
  if (!fd.ok() || ::syscall(SYS_ioctl, fd.get(), SIOCETHTOOL, &ask) != 0) {
    return false;
  }
  for (const char* name : {"veth", "bridge", "macvlan", "ipvlan", "netkit"}) {
    if (std::strcmp(driver.driver, name) == 0) return true;
  }
  return false;
}

Place Look(std::uint32_t peer) {
  Route best;
  if (!ReadRoutes(peer, &best)) return Place::kUnknown;
  if (best.to_gateway && IsVirtual(best.gateway_interface)) {
    return Place::kGateway;
  }
  const bool beside =
      best.found && best.gateway == 0 && IsVirtual(best.interface);
  return beside ? Place::kBeside : Place::kUnknown;
}

}  // namespace

Place PlaceOf(const sockaddr_storage& peer) {
  Address address;
  std::uint16_t port;
  if (!Normalise(peer, &address, &port) || !IsMapped(address)) {
    return Place::kUnknown;
  }
  std::uint32_t v4;
  std::memcpy(&v4, address.data() + 12, sizeof v4);
  const std::uint64_t now = base::NowNs() / 1'000'000'000 / kSeconds + 1;
  auto& entry = known[(v4 ^ v4 >> 16 ^ v4 >> 24) % kKnown];
  const std::uint64_t has = entry.load(std::memory_order_relaxed);
  const std::uint64_t key = (now & 0xffffff) << 40 | v4;
  if ((has & ~(std::uint64_t{0xff} << 32)) == key) {
    return static_cast<Place>(has >> 32 & 0xff);
  }
  const int saved = errno;
  const Place place = Look(v4);
  errno = saved;
  entry.store(key | static_cast<std::uint64_t>(place) << 32,
              std::memory_order_relaxed);
  return place;
}

}  // namespace rcsock::rendezvous
