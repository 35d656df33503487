#ifndef RCSOCK_LIB_RENDEZVOUS_TRAFFIC_H_
#define RCSOCK_LIB_RENDEZVOUS_TRAFFIC_H_

#include <cstdint>

namespace rcsock::rendezvous {

// What the kernel has counted on one end of a TCP connection, in bytes.  The
// times say when the last data went and came.  They are milliseconds of
// CLOCK_REALTIME, the only clock that namespaces cannot shift.
struct [[gnu::packed]] Traffic {
  std::uint64_t acked;  // of what was sent; ~0: the kernel does not count
  std::uint64_t received;
  std::uint64_t sent;  // counts repetitions, too
  std::uint64_t sent_ms;
  std::uint64_t received_ms;
};

Traffic TrafficOf(int fd);

// Whether two ends can be of one connection.  This end counted `now` and,
// unless it is null, the earlier `before`.  The peer counted `theirs` between
// them.  Never returns false for the ends of one connection, however much is
// under way.  Address translation can give two connections of one network
// namespace the same four numbers.  Their counts differ, unless both carried
// equally many bytes each way at equal times.
bool CanBeOne(const Traffic* before, const Traffic& now, const Traffic& theirs);

}  // namespace rcsock::rendezvous

#endif  // RCSOCK_LIB_RENDEZVOUS_TRAFFIC_H_
