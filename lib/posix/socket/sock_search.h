#ifndef RCSOCK_LIB_POSIX_SOCKET_SOCK_SEARCH_H_
#define RCSOCK_LIB_POSIX_SOCKET_SOCK_SEARCH_H_

#include <atomic>
#include <cstdint>

#include "lib/base/reason.h"

namespace rcsock::rendezvous {
class Conductor;
}  // namespace rcsock::rendezvous

namespace rcsock::posix {

class Sock;

// The searches of a stream for its peer: when the next search comes, and how it
// begins and ends.  Also how many were in vain, and why the stream has no lane.
//
// A part of its Sock.  Any thread may call it, and holds no latch of the
// stream, unless a method says otherwise.
class LaneSearch {
 public:
  // `at_call`: the count of calls at which the next search is due.  The stream
  // keeps it on the cache line of its calls on TCP.
  LaneSearch(Sock* sock, std::atomic<std::uint32_t>& at_call)
      : sock_(sock), at_call_(at_call) {}

  // --- The caller may hold any latch
  // Returns why the stream is on TCP, or kNone if it is on a lane.
  base::Reason reason() const { return reason_.load(); }
  void SetReason(base::Reason reason) { reason_ = reason; }
  // Returns how many searches in a row were in vain.
  int attempts() const { return attempts_; }
  // Returns whether so many were in vain that no other search comes, unless for
  // an RDMA lane.
  bool Spent() const { return attempts_ >= kMostAttempts; }
  void ForgetAttempts() { attempts_ = 0; }
  // Returns whether a search is due after so many bytes.
  bool DueAfter(std::uint64_t bytes) const {
    return bytes >= at_bytes_.load(std::memory_order_relaxed);
  }

  // --- Set when the next search comes.  The caller may hold any latch
  // At the thresholds of the rules, from the connection's begin.
  void AtFirst();
  // At the next call.
  void AtOnce() {
    pace_ns_.store(kPaceKnown, std::memory_order_relaxed);
    at_call_.store(0, std::memory_order_relaxed);
  }
  // After as much traffic as the rules ask for, from now on.
  void Later() { After(0); }
  // As Later, for 2^shift times as much.
  void After(std::uint32_t shift);
  // After as much traffic as there has been.
  void AfterAsMuch();
  // A stream has left `demotions` lanes: each makes the next one farther away.
  void AfterLeaving(std::uint32_t demotions);

  // Lets searches begin, unless something speaks against a lane.  The stream is
  // connected, or what kept it on TCP is over.
  void Allow();
  // Begins a search behind the call at which it is due.  Keeps errno.
  [[gnu::noinline]] void BeginAfterCall();
  // Begins a search, if the past of the stream's service promises that a lane
  // is worth it.  Requires a stream that has just been connected, and whose
  // number is known.  Keeps errno.
  void BeginIfWorth();
  // Begins a search, unless one is under way.
  void Begin();
  // Ends a search, without a lane.
  void Cancel();
  // Returns the conductor, and starts it if there is none.  Null: there is no
  // conductor, with the reason in *why.  kPending: a thread of rcsock's starts
  // it, and then answers those that have waited.
  static rendezvous::Conductor* StartConductor(base::Reason* why);
  // Takes the peer's answer in the conductor's place, while it is awaited.
  // Keeps errno.
  [[gnu::noinline]] void LookForAnswer();

  // --- Require both latches of the stream
  // Ends a search, without a lane.  Wakes nobody.
  void EndLatched();
  // The search has found no lane.  `final`: none may come later.
  void FailedLatched(base::Reason reason, bool final);

  // Forgets all, for another connection.  Requires that the part PeerFacts has
  // been reset.
  void Reset();

 private:
  static constexpr int kMostAttempts = 5;
  // Of pace_ns_: the pace says nothing, or nothing more.
  static constexpr std::uint64_t kPaceKnown = 0;

  // Returns whether no other process holds the connection; if one does, a later
  // call asks again.
  bool AloneToSeek();
  // Returns whether the search that has begun goes on.  If not, MayAsk has
  // given the search up.
  bool MayAsk();
  void NeverLeavesTcp(base::Reason reason);
  // Sets when the first search comes, by what the service has moved before.
  void Foresee();
  // Asked before the first search.  Returns whether the stream is too slow for
  // a search yet.
  bool WaitsForPace();
  // Puts the next search at the thresholds above these counts.
  void AtNextPoint(std::uint32_t calls, std::uint64_t bytes);

  Sock* const sock_;
  std::atomic<std::uint32_t>& at_call_;
  std::atomic<std::uint64_t> at_bytes_{0};
  // When the pace of a stream was last noted that has yet to show it.
  std::atomic<std::uint64_t> pace_ns_{kPaceKnown};
  std::atomic<int> attempts_{0};
  std::atomic<base::Reason> reason_{base::Reason::kShortLived};
};

// Has the conductor find out whether every call comes through the hooks
// (AllCallsSeen), for a thread that could spare calls then.  Keeps
// errno.  Does nothing in a program of one thread: a conductor would cost it
// more than the calls do (I-LONE-1).
void LookAtCalls();

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_SOCKET_SOCK_SEARCH_H_
