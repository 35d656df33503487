#ifndef RCSOCK_LIB_RENDEZVOUS_ADDRESS_H_
#define RCSOCK_LIB_RENDEZVOUS_ADDRESS_H_

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string_view>

#include "lib/rendezvous/rendezvous.h"

namespace rcsock::rendezvous {

using Address = std::array<std::uint8_t, 16>;

// The IPv6 form of an address (IPv4 mapped, scope dropped); false for families
// other than the two.
bool Normalise(const sockaddr_storage& from, Address* address,
               std::uint16_t* port);

// The two names of a connected socket; false: it has not both (any more).
bool NamesOf(int fd, sockaddr_storage* local, sockaddr_storage* peer);

// What both ends compute alike.
Tuple MakeTuple(stream::Role role, const Address& local,
                std::uint16_t local_port, const Address& peer,
                std::uint16_t peer_port);

struct TupleHash {
  std::size_t operator()(const Tuple& tuple) const;
};

struct Endpoint {
  std::span<const std::uint8_t, 16> address;
  std::uint16_t port;
};
// The abstract AF_UNIX name `prefix`, then each endpoint in hexadecimal;
// returns its length.
socklen_t AbstractName(std::string_view prefix,
                       std::initializer_list<Endpoint> endpoints,
                       sockaddr_un* name);
// The one at which the two ends of `tuple` meet.
socklen_t MeetingName(const Tuple& tuple, sockaddr_un* name);

// As calls take it; `scope` is for IPv6.
sockaddr_storage ToSockaddr(const Address& address, std::uint32_t scope,
                            std::uint16_t port);
inline socklen_t SizeOf(const sockaddr_storage& address) {
  return address.ss_family == AF_INET ? sizeof(sockaddr_in)
                                      : sizeof(sockaddr_in6);
}

bool IsMapped(const Address& address);  // an IPv4 address
bool IsLoopback(const Address& address);
// One that this host may have on each of its links: with the scope in the place
// of zeros, so that those of two links (VLANs of one device, say) differ.
Address Scoped(const Address& address, std::uint32_t scope);

// The addresses of this host, looked up again at most once a second.  Where
// netlink is refused (systemd's RestrictAddressFamilies=, in most units that
// have it) there is no list, and the kernel is asked of each address.
//
// By system calls alone, without libc's getifaddrs: connect() and accept() may
// be called by a handler that has interrupted malloc, and where a thread with a
// cancellation pending must not be unwound.
// Threads: one.
class HostAddresses {
 public:
  bool Has(const Address& address);

 private:
  // What more there are is taken for another host's.
  static constexpr std::size_t kMost = 1024;

  bool LookUp();  // false: there was no answer
  bool Known(const Address& address) const;

  std::array<Address, kMost> known_{};
  std::size_t count_ = 0;
  std::uint64_t looked_up_ns_ = 0;  // 0: never
  bool listed_ = false;             // the last answer came
};

}  // namespace rcsock::rendezvous

#endif  // RCSOCK_LIB_RENDEZVOUS_ADDRESS_H_
