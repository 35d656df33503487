#ifndef RCSOCK_LIB_RENDEZVOUS_WITNESS_H_
#define RCSOCK_LIB_RENDEZVOUS_WITNESS_H_

#include <cstdint>

#include "lib/base/unique_fd.h"
#include "lib/rendezvous/rendezvous.h"

namespace rcsock::rendezvous {

// A witness is a netlink socket by which the kernel tells another process of
// one connection of this network namespace.  The filter is locked, so the
// witness tells of no other ports.

// Opens a witness of the connection `ends` of `fd`, whose role is `role`.
// Returns none if the kernel refuses, or if this thread is in another network
// namespace than the connection.
base::UniqueFd OpenWitness(int fd, const Tuple& ends, stream::Role role);

// Asks the kernel, by a descriptor that may be anything, which socket of the
// witness's network namespace is `whose` end of `ends`.  Returns its inode
// number, or 0.  Never waits.
std::uint32_t AskWitness(int witness, const Tuple& ends, stream::Role whose);

}  // namespace rcsock::rendezvous

#endif  // RCSOCK_LIB_RENDEZVOUS_WITNESS_H_
