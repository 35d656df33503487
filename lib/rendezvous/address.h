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

// Converts an address to its IPv6 form, without the scope.  IPv4 is mapped.
// Returns false for other families.
bool Normalise(const sockaddr_storage& from, Address* address,
               std::uint16_t* port);

// Reads both addresses of a connected socket.  Returns false if it has lost one
// of them.
bool NamesOf(int fd, sockaddr_storage* local, sockaddr_storage* peer);

// Returns the tuple, which both ends compute alike.
Tuple MakeTuple(stream::Role role, const Address& local,
                std::uint16_t local_port, const Address& peer,
                std::uint16_t peer_port);

// Returns the tuple with the accepting half zero.  Address translation of the
// destination (DNAT) leaves the connecting half equal at both ends.
Tuple ClientHalf(const Tuple& tuple);

struct TupleHash {
  std::size_t operator()(const Tuple& tuple) const;
};

struct Endpoint {
  std::span<const std::uint8_t, 16> address;
  std::uint16_t port;
};
// Writes the abstract AF_UNIX name: `prefix`, then each endpoint in
// hexadecimal.  Returns its length.
socklen_t AbstractName(std::string_view prefix,
                       std::initializer_list<Endpoint> endpoints,
                       sockaddr_un* name);
// Writes the name at which the two ends of `tuple` meet.
socklen_t MeetingName(const Tuple& tuple, sockaddr_un* name);

// Returns the address as system calls take it.  `scope` is for IPv6.
sockaddr_storage ToSockaddr(const Address& address, std::uint32_t scope,
                            std::uint16_t port);
inline socklen_t SizeOf(const sockaddr_storage& address) {
  return address.ss_family == AF_INET ? sizeof(sockaddr_in)
                                      : sizeof(sockaddr_in6);
}

bool IsMapped(const Address& address);  // whether it is an IPv4 address
bool IsLoopback(const Address& address);
// Puts the scope of a link-local address in the place of zeros.  A host may
// have one link-local address on several links, such as VLANs of one device;
// the results for these links differ.
Address Scoped(const Address& address, std::uint32_t scope);

// The addresses of this host, looked up again at most once a second.  If a
// filter refuses netlink, as systemd's RestrictAddressFamilies= does, the class
// asks the kernel about each address.
//
// Uses system calls alone, without libc's getifaddrs.  A handler that has
// interrupted malloc may call connect() or accept().  A thread with a pending
// cancellation may call them, too, and must not be unwound.
//
// Threads: one.
class HostAddresses {
 public:
  bool Has(const Address& address);

 private:
  // Further addresses are taken for another host's.
  static constexpr std::size_t kMost = 1024;

  bool LookUp();  // false: the kernel gave no answer
  bool Known(const Address& address) const;

  std::array<Address, kMost> known_{};
  std::size_t count_ = 0;
  std::uint64_t looked_up_ns_ = 0;  // 0: never
  bool listed_ = false;             // the last look-up had an answer
};

}  // namespace rcsock::rendezvous

#endif  // RCSOCK_LIB_RENDEZVOUS_ADDRESS_H_
