#ifndef RCSOCK_LIB_RENDEZVOUS_NEAR_NETWORK_H_
#define RCSOCK_LIB_RENDEZVOUS_NEAR_NETWORK_H_

#include <sys/socket.h>

#include <cstdint>

namespace rcsock::rendezvous {

// Where a peer of another address may be, by the routes of this network
// namespace.
enum class Place : std::uint8_t {
  kUnknown,  // the routes tell nothing
  kBeside,   // it is reached without a gateway, over a virtual interface
  kGateway,  // it is itself a gateway, over a virtual interface
};

// Returns where an IPv4 peer may be.  Remembers some peers for ten seconds.
// Makes system calls alone, and none that waits.
//
// Threads: any.
Place PlaceOf(const sockaddr_storage& peer);

}  // namespace rcsock::rendezvous

#endif  // RCSOCK_LIB_RENDEZVOUS_NEAR_NETWORK_H_
