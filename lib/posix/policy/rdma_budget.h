#ifndef RCSOCK_LIB_POSIX_POLICY_RDMA_BUDGET_H_
#define RCSOCK_LIB_POSIX_POLICY_RDMA_BUDGET_H_

#include <cstdint>

// Which streams may have one of the few rdma lanes.  This room decides, and
// knows no stream: lib/posix/socket/budget.cc has the streams, and moves them.
namespace rcsock::posix {

// What a stream moves, over at least a second. span 0: not known yet.
struct Pace {
  std::uint64_t rate = 0;  // bytes a second
  std::uint64_t span_ns = 0;
  std::uint32_t ops = 0;
};

// What a stream has moved.  The latches of its stream guard it.
struct Activity {
  // Two earlier looks; the first is older.
  struct Look {
    std::uint64_t ns = 0;
    std::uint64_t bytes = 0;
    std::uint32_t ops = 0;
  } looks[2];
  std::uint64_t active_ns = 0;    // the last look that found traffic
  std::uint64_t grown_bytes = 0;  // its bytes at the last use of large rings
  std::uint64_t grown_ns = 0;     // when that was
  // Takes a look, and returns the pace since the older look.
  Pace Take(std::uint64_t now, std::uint64_t bytes, std::uint32_t ops);
  // The stream has a lane from `now` on, and has moved so much before.
  void Begin(std::uint64_t now, std::uint64_t bytes);
  // The looks on a lane say nothing about the traffic on TCP.
  void Forget() { looks[0] = looks[1] = {}; }
};

// When a stream on a lane has to show that it is alive.  The latches of its
// stream guard the object.
struct Heartbeat {
  std::uint64_t off = 0;  // tx_off at the last heartbeat
  std::uint64_t ns = 0;   // when that was
  // Returns whether a heartbeat is due for a stream that has sent so much.  On
  // TCP a firewall would have seen traffic, and has seen none for a while.
  bool Due(std::uint64_t now, std::uint64_t tx_off);
};

// The places of the process.  Any thread may call these functions.
class RdmaBudget {
 public:
  // A stream is measured over this time at least.
  static constexpr std::uint64_t kSpanNs = 1'000'000'000;
  // A newcomer must be this many times hotter than the stream that goes for it.
  static constexpr std::uint64_t kHotter = 4;
  // Returns what an idle lane pins: the block that the peer writes to, and the
  // mirror of the peer's block.
  static std::uint64_t IdlePinned();

  // Returns whether one more lane may be made now.
  static bool Room();
  // Returns whether a newcomer of this pace, which finds no room, may have
  // another stream evicted.
  static bool MayChallenge(const Pace& mine);
  // For a while after an eviction only streams of at least half the newcomer's
  // rate may take the place.  Contested returns whether that time lasts, and
  // Admits whether a stream has that rate.
  static bool Contested(std::uint64_t now);
  static bool Admits(const Pace& mine);

  // Handshakes under way.
  static void TakePlace();
  static void LeavePlace();
  // Streams with lanes.
  static void Add();
  static void Remove();
  static bool Any();
  // Streams with lanes that are on their way to TCP.
  static void BeginLeaving();
  static void EndLeaving();
  static bool AnyLeaves();

  // Returns whether enough time has passed since the last search for a stream
  // to evict.  If so, the caller searches.
  static bool MaySearch(std::uint64_t now);
  // Returns whether no stream must go: enough are leaving already, or no stream
  // has taken the free place yet.
  static bool NoneMustGo();
  // A stream goes for this newcomer.
  static void Evicted(std::uint64_t now, const Pace& newcomer);

  // In the child of fork, which has no lanes.
  static void ForkChild();
};

// The search for the stream that goes for a newcomer.  Only one thread uses it.
class Eviction {
 public:
  Eviction(const Pace& newcomer, std::uint64_t now)
      : newcomer_(newcomer), now_(now) {}
  // Returns whether the resident is known, and colder than those before it.
  bool Coldest(const Pace& pace, std::uint64_t active_ns);
  // Returns whether the coldest goes.  Requires that there was one.
  bool Worthwhile() const;
  std::uint64_t rate() const { return rate_; }

 private:
  const Pace newcomer_;
  const std::uint64_t now_;
  bool any_ = false;
  std::uint64_t rate_ = 0;
  std::uint64_t active_ns_ = 0;
};

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_POLICY_RDMA_BUDGET_H_
