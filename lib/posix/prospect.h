#ifndef RCSOCK_LIB_POSIX_PROSPECT_H_
#define RCSOCK_LIB_POSIX_PROSPECT_H_

#include <sys/socket.h>

#include <cstdint>

#include "lib/stream/stream.h"

namespace rcsock::posix {

// What connections of a service come to, learnt from those that have ended
// here: whether it pays to give the next one a lane, and how soon.
//
// Any thread; a learner may lose what another one learns at the same moment.
class Prospect {
 public:
  enum class Promise : std::uint8_t {
    kUnknown,
    kLittle,  // over before a lane would have paid for itself
    kMuch,    // worth one from the first byte on, and its peers have lanes
  };

  // Of the service at `address`, as seen from that end; 0: of none.
  static std::uint16_t ServiceAt(const sockaddr* address, socklen_t length,
                                 stream::Role role);
  static Promise Of(std::uint16_t service);
  // How long a send may wait for the lane of such a connection; 0: not at all.
  // Asked once for each, and followed by Held.
  static std::uint64_t HoldNs(std::uint16_t service);
  // It waited so long, and in vain (or not).
  static void Held(std::uint16_t service, std::uint64_t ns, bool vain);
  // What was awaited in vain has come soon after: nobody is plain there.
  static void CameLate(std::uint16_t service);
  // How many looks in a row find a receiver that takes nothing before its
  // stream goes back to TCP, whose buffers are larger: 1 to 16.
  static int StarvedLooks(std::uint16_t service);
  // One went back, and that was in vain (TCP was as full soon after), or not.
  static void Starved(std::uint16_t service, bool vain);
  // Whether one may go back at `now`: not while another one of the service has
  // gone and it is not known yet whether that was in vain.  (A process that
  // waits for its disk reads none of them, and TCP takes megabytes of each.)
  // Followed by Starved; one that never is counts for a second.
  static bool MayLeaveStarved(std::uint16_t service, std::uint64_t now_ns);
  // One has ended, after so much in both directions.
  static void Learn(std::uint16_t service, std::uint64_t bytes,
                    std::uint64_t calls, bool promoted);
};

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_PROSPECT_H_
