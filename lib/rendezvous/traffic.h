#ifndef RCSOCK_LIB_RENDEZVOUS_TRAFFIC_H_
#define RCSOCK_LIB_RENDEZVOUS_TRAFFIC_H_

#include <cstdint>

namespace rcsock::rendezvous {

// What the kernel has counted on one end of a TCP connection, in bytes, and
// when its last data went and came, in milliseconds of the host's clock
// (CLOCK_REALTIME: the only one that namespaces cannot shift).
struct [[gnu::packed]] Traffic {
  std::uint64_t acked;  // of what it has sent; ~0: the kernel does not count
  std::uint64_t received;
  std::uint64_t sent;  // again counts again
  std::uint64_t sent_ms;
  std::uint64_t received_ms;
};

Traffic TrafficOf(int fd);

// Whether two ends can be of one connection: `now` and, unless it is null, the
// earlier `before` are this end's, and the peer counted `theirs` between them.
// Never false of two ends of one connection, however much is under way.
// Address translation can give two connections of one network namespace the
// same four numbers: they differ here, unless both carried as many bytes each
// way, at the same times.
bool CanBeOne(const Traffic* before, const Traffic& now, const Traffic& theirs);

}  // namespace rcsock::rendezvous

#endif  // RCSOCK_LIB_RENDEZVOUS_TRAFFIC_H_
