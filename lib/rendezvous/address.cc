#include "lib/rendezvous/address.h"

#include <linux/rtnetlink.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include "lib/base/clock.h"
#include "lib/base/real.h"
#include "lib/base/unique_fd.h"

namespace rcsock::rendezvous {
namespace {

constexpr std::uint8_t kMappedPrefix[12] = {0, 0, 0, 0, 0,    0,
                                            0, 0, 0, 0, 0xff, 0xff};

constexpr std::uint64_t kRefreshNs = 1'000'000'000;

// Reads the address of an interface from a message.
bool AddressIn(const nlmsghdr* message, Address* address) {
  if (message->nlmsg_len < NLMSG_LENGTH(sizeof(ifaddrmsg))) return false;
  const auto* what = static_cast<const ifaddrmsg*>(NLMSG_DATA(message));
  const std::size_t size = what->ifa_family == AF_INET    ? 4
                           : what->ifa_family == AF_INET6 ? 16
                                                          : 0;
  auto left = static_cast<long>(IFA_PAYLOAD(message));
  const void* found = nullptr;
  for (const rtattr* one = IFA_RTA(what); RTA_OK(one, left);
       one = RTA_NEXT(one, left)) {
    if (RTA_PAYLOAD(one) < size) continue;
    // If a message has both addresses, IFA_ADDRESS is the far end's.
    if (one->rta_type == IFA_LOCAL) {
      found = RTA_DATA(one);
    } else if (one->rta_type == IFA_ADDRESS && found == nullptr) {
      found = RTA_DATA(one);
    }
  }
  if (size == 0 || found == nullptr) return false;
  if (size == 4) std::memcpy(address->data(), kMappedPrefix, 12);
  std::memcpy(address->data() + (16 - size), found, size);
  return true;
}

// Returns whether the kernel would send from this address to itself, as it does
// for its own addresses.  Sends nothing.
bool IsOwnSource(const Address& address) {
  const sockaddr_storage to = ToSockaddr(address, 0, 9);
  const base::UniqueFd fd(base::OpenHigh([&] {
    return ::syscall(SYS_socket, to.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  }));
  if (!fd.ok() ||
      ::syscall(SYS_connect, fd.get(), &to,
                to.ss_family == AF_INET ? sizeof(sockaddr_in)
                                        : sizeof(sockaddr_in6)) != 0) {
    return false;
  }
  sockaddr_storage source{};
  socklen_t length = sizeof source;
  Address own;
  std::uint16_t port;
  return ::syscall(SYS_getsockname, fd.get(), &source, &length) == 0 &&
         Normalise(source, &own, &port) && own == address;
}

}  // namespace

sockaddr_storage ToSockaddr(const Address& address, std::uint32_t scope,
                            std::uint16_t port) {
  sockaddr_storage to{};
  if (IsMapped(address)) {
    sockaddr_in in{};
    in.sin_family = AF_INET;
    in.sin_port = htons(port);
    std::memcpy(&in.sin_addr, address.data() + 12, 4);
    std::memcpy(&to, &in, sizeof in);
  } else {
    sockaddr_in6 in{};
    in.sin6_family = AF_INET6;
    in.sin6_port = htons(port);
    in.sin6_scope_id = scope;
    std::memcpy(&in.sin6_addr, address.data(), 16);
    std::memcpy(&to, &in, sizeof in);
  }
  return to;
}

bool IsMapped(const Address& address) {
  return std::memcmp(address.data(), kMappedPrefix, sizeof kMappedPrefix) == 0;
}

bool NamesOf(int fd, sockaddr_storage* local, sockaddr_storage* peer) {
  socklen_t length = sizeof *local;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(local), &length) != 0) {
    return false;
  }
  length = sizeof *peer;
  return real::getpeername(fd, reinterpret_cast<sockaddr*>(peer), &length) == 0;
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

Tuple ClientHalf(const Tuple& tuple) {
  Tuple half{};
  std::memcpy(half.c_addr, tuple.c_addr, sizeof half.c_addr);
  half.c_port = tuple.c_port;
  return half;
}

std::size_t TupleHash::operator()(const Tuple& tuple) const {
  // FNV-1a over all 36 bytes.  A peer that chooses the addresses and ports of
  // many connections can make collisions.  So the tables that use the hash are
  // bounded.
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
  // The longest prefix in use, and both ends.
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

Address Scoped(const Address& address, std::uint32_t scope) {
  Address scoped = address;
  if (address[0] == 0xfe && (address[1] & 0xc0) == 0x80) {
    std::memcpy(scoped.data() + 2, &scope, sizeof scope);
  }
  return scoped;
}

bool HostAddresses::Known(const Address& address) const {
  const auto end = known_.begin() + static_cast<std::ptrdiff_t>(count_);
  return std::find(known_.begin(), end, address) != end;
}

bool HostAddresses::Has(const Address& address) {
  if (IsLoopback(address) || Known(address)) return true;
  const std::uint64_t now = base::NowNs();
  const int saved = errno;
  if (looked_up_ns_ == 0 || now - looked_up_ns_ >= kRefreshNs) {
    looked_up_ns_ = now;
    listed_ = LookUp();
  }
  const bool has = listed_ ? Known(address) : IsOwnSource(address);
  errno = saved;
  return has;
}

// Nothing waits here.  The kernel has all of an answer at once, or makes the
// rest while the first part is read.
bool HostAddresses::LookUp() {
  const base::UniqueFd fd(base::OpenHigh([] {
    return ::syscall(SYS_socket, AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC,
                     NETLINK_ROUTE);
  }));
  if (!fd.ok()) return false;
  struct {
    nlmsghdr header;
    ifaddrmsg which;
  } ask{};
  ask.header.nlmsg_len = sizeof ask;
  ask.header.nlmsg_type = RTM_GETADDR;
  ask.header.nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP;
  ask.which.ifa_family = AF_UNSPEC;
  if (::syscall(SYS_sendto, fd.get(), &ask, sizeof ask, 0, nullptr, 0) < 0) {
    return false;
  }
  std::size_t count = 0;
  for (;;) {
    // No part is longer than a page (NLMSG_GOODSIZE).
    alignas(nlmsghdr) char text[4096];
    const long n = ::syscall(SYS_recvfrom, fd.get(), text, sizeof text,
                             MSG_DONTWAIT, nullptr, nullptr);
    if (n <= 0) return false;
    long left = n;
    for (const auto* one = reinterpret_cast<const nlmsghdr*>(text);
         NLMSG_OK(one, left); one = NLMSG_NEXT(one, left)) {
      if (one->nlmsg_type == NLMSG_ERROR) return false;
      if (one->nlmsg_type == NLMSG_DONE) {
        count_ = count;
        return true;
      }
      Address found;
      if (one->nlmsg_type == RTM_NEWADDR && AddressIn(one, &found) &&
          count < kMost) {
        known_[count++] = found;
      }
    }
  }
}

}  // namespace rcsock::rendezvous
