#ifndef RCSOCK_LIB_POSIX_SOCKET_SOCK_WATCH_H_
#define RCSOCK_LIB_POSIX_SOCKET_SOCK_WATCH_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "lib/base/dcheck.h"
#include "lib/rendezvous/rendezvous.h"

namespace rcsock::posix {

// What the conductor watches of a stream's anchor.
//
// A part of its Sock.  Requires both latches of the stream, but for Reset and
// OnForkChild.
class AnchorWatch {
 public:
  using Conductor = rendezvous::Conductor;

  bool on() const { return on_; }
  // Has the conductor watch `number` for `events`.
  void Begin(Conductor* conductor, int number,
             std::shared_ptr<rendezvous::AnchorWatcher> watcher,
             std::uint32_t events) {
    RC_DCHECK(!on_);
    events_ = events;
    on_ = conductor->Watch(number, std::move(watcher), events);
  }
  // Ends the watch, if there is one.  The conductor may be null.
  void End(Conductor* conductor, int number) {
    if (on_ && conductor != nullptr && number >= 0) conductor->Unwatch(number);
    on_ = false;
  }
  // Changes what is watched for.  Requires a watch.
  void Change(Conductor* conductor, int number, std::uint32_t events) {
    RC_DCHECK(on_);
    if (events == events_) return;
    events_ = events;
    conductor->Rewatch(number, events);
  }
  // Goes on with another number, for the same events.
  void Move(Conductor* conductor, int from, int to,
            std::shared_ptr<rendezvous::AnchorWatcher> watcher) {
    if (!on_ || conductor == nullptr) return;
    End(conductor, from);
    Begin(conductor, to, std::move(watcher), events_);
  }
  // A thread waits for the anchor to take more.
  void WantRoom() { wants_room_ = true; }
  bool wants_room() const { return wants_room_; }
  // Returns whether a thread has waited, and waits no more.
  bool TakeWantRoom() { return std::exchange(wants_room_, false); }
  // Forgets all, for another connection.
  void Reset() { *this = AnchorWatch(); }
  // In the child of a fork: the watch is the parent's conductor's.
  void OnForkChild() { on_ = false; }

 private:
  bool on_ = false;
  bool wants_room_ = false;
  std::uint32_t events_ = 0;
};

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_SOCKET_SOCK_WATCH_H_
