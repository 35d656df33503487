#ifndef RCSOCK_LIB_POSIX_SOCKET_SEEK_GATE_H_
#define RCSOCK_LIB_POSIX_SOCKET_SEEK_GATE_H_

#include <cstdint>
#include <memory>

#include "lib/base/reason.h"

namespace rcsock::rendezvous {
class Conductor;
}  // namespace rcsock::rendezvous

namespace rcsock::posix {

class Sock;

// Decides whether the streams of this process may look for their peers.  The
// room above knows the program's code, and gives its gate to Set at start.
// Until then no stream may.
//
// Any thread may call these.
class SeekGate {
 public:
  enum class Answer : std::uint8_t {
    kMay,
    kLater,   // the conductor begins the search once the answer is known
    kNotNow,  // the stream is to ask again
    kNever,
  };
  // Returns whether the stream may look for its peer.  With kLater it keeps a
  // reference of the stream.  Without a conductor the answer comes with
  // Started.
  virtual Answer MaySeek(const std::shared_ptr<Sock>& sock,
                         rendezvous::Conductor* conductor);
  // Returns whether a stream that has looked for its peer may go on to a lane.
  // Takes no latch.
  virtual bool MayAdopt();
  // Drops the reference of kLater: the stream has given the search up.
  virtual void Forget(const Sock* sock);
  // Finds out what AllCallsSeen (sys/pinned.h) returns later.  Without a
  // conductor it does so with Started.
  virtual void LookAtCalls(rendezvous::Conductor* conductor);
  // Called when a conductor has begun.
  virtual void Began(rendezvous::Conductor* conductor);
  // The start for which streams have waited is over.  Null: there is no
  // conductor, and why.
  virtual void Started(rendezvous::Conductor* conductor, base::Reason why);

  // Returns whether there is a gate.
  static bool IsSet();
  static SeekGate& Get();
  static void Set(SeekGate* gate);

 protected:
  ~SeekGate() = default;
};

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_SOCKET_SEEK_GATE_H_
