#ifndef RCSOCK_LIB_POSIX_POLICY_PROSPECT_H_
#define RCSOCK_LIB_POSIX_POLICY_PROSPECT_H_

#include <sys/socket.h>

#include <cstdint>

#include "lib/stream/stream.h"

namespace rcsock::posix {

// What connections of a service come to, learnt from those that have ended in
// this process.  It says whether a lane pays for the next connection, and how
// soon.  Any thread may call this.  A learner may lose what another thread
// learns at that moment.
class Prospect {
 public:
  enum class Promise : std::uint8_t {
    kUnknown,
    kLittle,  // over before a lane would have paid for itself
    kLate,    // so for most, since their threads sleep between two messages
    kMuch,    // worth a lane from the first byte on, and its peers have lanes
  };

  // The service at `address`, as that end sees it; 0: none.
  static std::uint16_t ServiceAt(const sockaddr* address, socklen_t length,
                                 stream::Role role);
  // One connection of many to a service of kLate is kUnknown instead, so that
  // the service may prove otherwise.
  static Promise Of(std::uint16_t service);
  // How long a send may wait for the lane of a connection to this service; 0:
  // not at all.  Asked once for each connection.  Held follows.
  static std::uint64_t HoldNs(std::uint16_t service);
  // The send waited for `ns`.  `vain`: no lane came.
  static void Held(std::uint16_t service, std::uint64_t ns, bool vain);
  // A lane that was awaited in vain has come soon after.  So the peer has
  // lanes.
  static void CameLate(std::uint16_t service);
  // How many looks in a row must find that a receiver takes nothing before its
  // stream goes back to TCP, whose buffers are larger: 1 to 16.
  static int StarvedLooks(std::uint16_t service);
  // A stream went back.  `vain`: TCP was as full soon after.
  static void Starved(std::uint16_t service, bool vain);
  // Returns whether a stream may go back at `now`.  It may not while another
  // stream of the service has gone back and the result is not known.  A process
  // that waits for its disk reads no stream, and TCP would take megabytes of
  // each.  Starved follows.  If Starved does not follow, the trial counts for a
  // second.
  static bool MayLeaveStarved(std::uint16_t service, std::uint64_t now_ns);
  // A connection has ended, after so much in both directions.
  static void Learn(std::uint16_t service, std::uint64_t bytes,
                    std::uint64_t calls, bool promoted);
  // Likewise, once for a connection that has looked for a lane: so many calls
  // would have been made over TCP, in so long.
  static void LearnPace(std::uint16_t service, std::uint64_t bytes,
                        std::uint64_t calls, std::uint64_t ns);
};

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_POLICY_PROSPECT_H_
