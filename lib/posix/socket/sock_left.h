#ifndef RCSOCK_LIB_POSIX_SOCKET_SOCK_LEFT_H_
#define RCSOCK_LIB_POSIX_SOCKET_SOCK_LEFT_H_

#include <atomic>
#include <cstdint>

#include "lib/base/latch_pair.h"
#include "lib/base/paired.h"
#include "lib/posix/socket/call_wait.h"

namespace rcsock::posix {

class Sock;
struct Successor;

// The calls that sleep on a stream whose number was closed under them.  The
// stream goes on for them by a number of rcsock's (sock_left.cc).
//
// A part of its Sock.  Any thread may call it, and holds no latch of the
// stream, unless a method says otherwise.
class LeftCalls {
 public:
  // `latches`: the stream's.
  LeftCalls(Sock* sock, const base::LatchPair& latches)
      : sock_(sock), latches_(latches) {}
  class Call;

  // Returns whether there may be such calls.  Requires either latch.
  bool Any() const { return fd_ >= 0; }
  // Leaves the stream to the calls that sleep on it, in place of its end.
  // Returns false if no call sleeps on it.
  bool LeaveTo(int fd, const Successor& next, int* result);
  // Ends a stream that was left to its calls, if the last of them has returned.
  void End();

  // --- Require the latch that the call sleeps with
  // Called when a call that has slept, or has let others have the latch, has
  // the latch again.  Returns whether the stream was left to this call; then
  // the call says kJoinsLeft.  `result`: what the call would say otherwise.
  bool Joins(const CallWait& wait, int result) {
    if (fd_ < 0) [[likely]]
      return false;
    return JoinsToo(wait, result);
  }
  // Sleeps notes that such a call goes to sleep, and Wakes that it has woken.
  // Sleeps returns whether this thread is in such a call.
  bool Sleeps() { return fd_ >= 0 && SleepsToo(); }
  [[gnu::cold, gnu::noinline]] void Wakes();
  // Returns when the time of such a call is over, or 0 if that is not known.
  std::uint64_t Deadline() const { return fd_ >= 0 ? DeadlineToo() : 0; }
  // Lets other threads have the latch of the direction, which the caller holds.
  // Returns true for kJoinsLeft.
  [[gnu::cold, gnu::noinline]] bool GiveWay(const CallWait& wait, bool tx);

  // Forgets all, for another connection.
  void Reset() {
    latches_.AssertUnshared();
    fd_.Write(latches_.tx, latches_.rx) = -1;
  }
  // In the child of a fork, after all other parts of all streams: closes the
  // number by which the stream went on.  These calls are the parent's.
  void OnForkChild();

 private:
  [[gnu::cold, gnu::noinline]] bool JoinsToo(const CallWait& wait, int result);
  [[gnu::cold, gnu::noinline]] bool SleepsToo();
  [[gnu::cold, gnu::noinline]] std::uint64_t DeadlineToo() const;
  // Require both latches of the stream.
  bool LastLatched(int* number);
  int SleepersLatched() const;
  void EndLater(std::uint32_t ms);

  // The members that a sleep looks at come first.  The number by which the
  // stream goes on after the application has closed its own under sleeping
  // calls.  -1: there is none.
  base::Paired<int> fd_{-1};
  std::atomic<int> awake_{0};  // those calls that do not sleep now
  Sock* const sock_;
  const base::LatchPair latches_;
};

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_SOCKET_SOCK_LEFT_H_
