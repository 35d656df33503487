#include "lib/rendezvous/address.h"

#include <ifaddrs.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "lib/base/clock.h"

namespace rcsock::rendezvous {
namespace {

constexpr std::uint8_t kMappedPrefix[12] = {0, 0, 0, 0, 0,    0,
                                            0, 0, 0, 0, 0xff, 0xff};

constexpr std::uint64_t kRefreshNs = 1'000'000'000;

}  // namespace

bool IsMapped(const Address& address) {
  return std::memcmp(address.data(), kMappedPrefix, sizeof kMappedPrefix) == 0;
}

bool Normalise(const sockaddr_storage& from, Address* address,
               std::uint16_t* port) {
  if (from.ss_family == AF_INET) {
    sockaddr_in in;
    std::memcpy(&in, &from, sizeof in);
    std::memcpy(address->data(), kMappedPrefix, sizeof kMappedPrefix);
    std::memcpy(address->data() + 12, &in.sin_addr, 4);
    *port = ntohs(in.sin_port);
    return true;
  }
  if (from.ss_family == AF_INET6) {
    sockaddr_in6 in;
    std::memcpy(&in, &from, sizeof in);
    std::memcpy(address->data(), &in.sin6_addr, 16);
    *port = ntohs(in.sin6_port);
    return true;
  }
  return false;
}

Tuple MakeTuple(stream::Role role, const Address& local,
                std::uint16_t local_port, const Address& peer,
                std::uint16_t peer_port) {
  const bool connector = role == stream::Role::kConnector;
  Tuple tuple;
  std::memcpy(tuple.c_addr, (connector ? local : peer).data(), 16);
  std::memcpy(tuple.s_addr, (connector ? peer : local).data(), 16);
  tuple.c_port = connector ? local_port : peer_port;
  tuple.s_port = connector ? peer_port : local_port;
  return tuple;
}

std::size_t TupleHash::operator()(const Tuple& tuple) const {
  // FNV-1a over all 36 bytes.  Who chooses the addresses and ports of many
  // connections can make collisions; the tables that use it are bounded.
  std::uint64_t hash = 0xcbf29ce484222325u;
  std::uint8_t bytes[sizeof tuple];
  std::memcpy(bytes, &tuple, sizeof bytes);
  for (std::uint8_t byte : bytes) hash = (hash ^ byte) * 0x100000001b3u;
  return static_cast<std::size_t>(hash);
}

socklen_t AbstractName(std::string_view prefix,
                       std::initializer_list<Endpoint> endpoints,
                       sockaddr_un* name) {
  static constexpr char kHex[] = "0123456789abcdef";
  // The longest prefix that is used, and both ends.
  static_assert(1 + 14 + 2 * 36 <= sizeof name->sun_path);
  std::memset(name, 0, sizeof *name);
  name->sun_family = AF_UNIX;
  char* out = name->sun_path + 1;  // the leading 0 makes the name abstract
  out = std::copy(prefix.begin(), prefix.end(), out);
  const auto put = [&out](std::uint8_t byte) {
    *out++ = kHex[byte >> 4];
    *out++ = kHex[byte & 15];
  };
  for (const Endpoint& end : endpoints) {
    for (std::uint8_t byte : end.address) put(byte);
    put(static_cast<std::uint8_t>(end.port >> 8));
    put(static_cast<std::uint8_t>(end.port));
  }
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) +
                                (out - name->sun_path));
}

socklen_t MeetingName(const Tuple& tuple, sockaddr_un* name) {
  return AbstractName(
      "rcsock/1/", {{tuple.c_addr, tuple.c_port}, {tuple.s_addr, tuple.s_port}},
      name);
}

bool IsLoopback(const Address& address) {
  if (IsMapped(address)) return address[12] == 127;
  Address one{};
  one[15] = 1;
  return address == one;
}

bool HostAddresses::Has(const Address& address) {
  if (IsLoopback(address)) return true;
  auto known = [this, &address] {
    return std::find(known_.begin(), known_.end(), address) != known_.end();
  };
  if (known()) return true;
  const std::uint64_t now = base::NowNs();
  if (looked_up_ns_ != 0 && now - looked_up_ns_ < kRefreshNs) return false;
  looked_up_ns_ = now;
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return false;
  known_.clear();
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr) continue;
    sockaddr_storage storage{};
    const int family = entry->ifa_addr->sa_family;
    if (family == AF_INET) {
      std::memcpy(&storage, entry->ifa_addr, sizeof(sockaddr_in));
    } else if (family == AF_INET6) {
      std::memcpy(&storage, entry->ifa_addr, sizeof(sockaddr_in6));
    } else {
      continue;
    }
    Address found;
    std::uint16_t port;
    if (Normalise(storage, &found, &port)) known_.push_back(found);
  }
  ::freeifaddrs(list);
  return known();
}

}  // namespace rcsock::rendezvous
