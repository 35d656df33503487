#ifndef RCSOCK_LIB_POSIX_SOCKET_SOCK_TALLY_H_
#define RCSOCK_LIB_POSIX_SOCKET_SOCK_TALLY_H_

#include <cstdint>

#include "lib/base/latch_pair.h"
#include "lib/base/reason.h"
#include "lib/lane/lane.h"

namespace rcsock::posix {

class Sock;
struct SnapshotStream;
struct Stats;

// What a stream is at one moment, and what its connection has moved in all.
struct StreamFacts {
  bool connected = false;
  bool on_lane = false;
  bool switching = false;  // the engine has it, with a lane or on the way
  lane::Kind kind = lane::Kind::kShm;  // of the last lane
  base::Reason reason = base::Reason::kNone;
  std::uint16_t service = 0;    // as Prospect numbers services
  std::uint64_t sought_ns = 0;  // when it began to look for its peer
  std::uint64_t tx_bytes = 0;
  std::uint64_t rx_bytes = 0;
  std::uint64_t lane_tx_bytes = 0;
  std::uint64_t lane_rx_bytes = 0;
  std::uint64_t demotions = 0;
  std::uint32_t epoch = 0;  // the lane's
};

// What this process has moved by a stream, and how often the stream has been on
// a lane.  The statistics, `rcsock stat` and later streams of the service use
// these counts.
//
// A part of its Sock.  Any thread may call it, and holds no latch of the
// stream, unless a method says otherwise.
class Tally {
 public:
  // `latches`: the stream's.
  Tally(Sock* sock, const base::LatchPair& latches)
      : sock_(sock), latches_(latches) {}

  // Returns what the stream is, and what its connection has moved.
  StreamFacts Describe() const;
  // Describes the stream for `rcsock stat`.  Returns false if it is no
  // connection, or no longer one.
  bool Describe(SnapshotStream* to) const;
  // Adds the counts to `to`, unless Account has.
  void Fold(Stats* to) const;
  // Adds the counts to the process's statistics, once, and gives up the share
  // in the connection.
  void Account();
  // Account of a stream that has looked for no lane, and that no other process
  // has.  Requires base::Lone() and a critical section.
  void AccountLone();

  // Returns whether Account has.  Instead of the latches it suffices that no
  // other thread has a reference.
  bool accounted() const {
    latches_.AssertUnshared();
    return accounted_;
  }

  // --- Require both latches of the stream
  void AccountLatched();
  // One direction has come onto a lane.
  void Promoted();
  bool promoted() const;
  // Both directions have come onto a lane.
  void CameOnLane();
  // The stream has left its lane, or the lane has failed (`failover`).
  void LeftLane(bool failover);
  // CountDemotion: this departure speaks against the next lane.
  // TakeDemotionBack: the last counted one does not.  Returns false if none was
  // counted.
  void CountDemotion();
  bool TakeDemotionBack();
  // Returns how many departures are counted.
  std::uint32_t demotions() const;
  // Another holder of the connection has moved so much.
  void OthersMoved(std::uint64_t tx, std::uint64_t rx);
  // This process begins with a connection that has moved so much.  Instead of
  // the latches it suffices that no other thread knows the stream.
  void JoinAt(std::uint64_t tx, std::uint64_t rx);

  // Notes that the connection comes from another process.  Requires that no
  // other thread knows the stream.
  void Inherit() { inherited_ = true; }
  bool inherited() const { return inherited_; }

  // Forgets all, for another connection.
  void Reset() {
    latches_.AssertUnshared();
    begun_tx_ = begun_rx_ = 0;
    promotions_ = left_ = failed_over_ = demotions_ = 0;
    promoted_ = accounted_ = inherited_ = false;
  }
  // In the child of a fork.  The parent counts what it did.
  void OnForkChild();

 private:
  void BeginAt(std::uint64_t tx, std::uint64_t rx);
  // Bytes that this process has moved, and those of them that went over a lane.
  struct Traffic {
    std::uint64_t tx;
    std::uint64_t rx;
    std::uint64_t lane_tx;
    std::uint64_t lane_rx;
  };
  Traffic TrafficOf(const StreamFacts& facts) const;
  void Add(const StreamFacts& facts, Stats* to) const;
  // Accounts for a stream that has looked for no lane.  kLone: as AccountLone.
  template <bool kLone>
  void AddOnTcp() const;
  void Learn(const StreamFacts& facts) const;

  Sock* const sock_;
  const base::LatchPair latches_;
  // Offsets at which this process began.
  std::uint64_t begun_tx_ RC_GUARDED_BY_BOTH(latches_.tx, latches_.rx) = 0;
  std::uint64_t begun_rx_ RC_GUARDED_BY_BOTH(latches_.tx, latches_.rx) = 0;
  std::uint32_t promotions_ RC_GUARDED_BY_BOTH(latches_.tx, latches_.rx) = 0;
  std::uint32_t left_ RC_GUARDED_BY_BOTH(latches_.tx, latches_.rx) = 0;
  std::uint32_t failed_over_ RC_GUARDED_BY_BOTH(latches_.tx, latches_.rx) = 0;
  std::uint32_t demotions_ RC_GUARDED_BY_BOTH(latches_.tx, latches_.rx) = 0;
  bool promoted_ RC_GUARDED_BY_BOTH(latches_.tx, latches_.rx) = false;
  bool accounted_ RC_GUARDED_BY_BOTH(latches_.tx, latches_.rx) = false;
  bool inherited_ = false;
};

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_SOCKET_SOCK_TALLY_H_
