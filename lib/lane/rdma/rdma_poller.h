#ifndef RCSOCK_LIB_LANE_RDMA_RDMA_POLLER_H_
#define RCSOCK_LIB_LANE_RDMA_RDMA_POLLER_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "lib/base/latch.h"
#include "lib/base/reason.h"
#include "lib/lane/board.h"
#include "lib/lane/poller.h"
#include "lib/lane/rdma/limits.h"
#include "lib/lane/rdma/memory.h"
#include "lib/lane/rdma/shared_receives.h"
#include "lib/lane/rdma/sleepers.h"
#include "lib/verbs/verbs.h"

namespace rcsock::lane::rdma {

class Deferred;
class QpLane;

// A completion queue with the shared receive queue that feeds it, and the lanes
// that it has room for: whatever they do, it does not overrun.
struct CqSet {
  verbs::Cq cq;
  SharedReceives shared;       // its srq() null: each lane has its own queue
  PinCount pin;                // of both
  std::uint32_t capacity = 0;  // lanes
  std::uint32_t lanes = 0;     // the poller's latch's
  bool armed = false;          // the drain latch's, as what follows
  bool solicited = false;      // ... for solicited completions only
  bool fired = false;          // armed once, and completions taken since
  std::uint32_t unacked = 0;   // events not yet acknowledged
};

// Where the completions of one bell's lanes come in.
//
// No lost wake-up.  The invariant is: while somebody sleeps (armed_ > 0), at
// the end of each drain every CQ is armed, and has been found empty after that
// (or its device has refused the arming, and its lanes are lost).
// Then whatever comes makes fd() readable.  `CqSet::armed` is true only while
// no completion has been taken since the CQ was armed, so it may be false for
// an armed CQ (which is then armed once more), never true for one that has
// fired.  Arm() counts, then (in Drain) says that there is work, then tries the
// latch: if somebody else has it, that thread sees the work when it lets go of
// the latch, and drains once more, with armed_ in sight.  Whose lane the found
// completions are does not matter: they are handed out at once.
//
// Sends.  What peers send is solicited, and a CQ is armed for that alone: the
// end of a send wakes nobody who sleeps for an answer.  (Failures always do.)
// While some lane waits for room in its send queue, CQs are armed for all
// completions.  A lane says so (WantSent), and drains: a CQ that is armed for
// solicited ones is armed once more, and polled.  That is right whether or not
// the CQ has fired: if it has, its event is there and wakes who sleeps; if not,
// the device takes the second request in place of the first.
//
// DrainToSleep, in which something has come behind the arming, leaves the CQ as
// it is if nobody sleeps but its caller, who will not sleep, or call it again.
// If somebody else comes, he drains; and if he can't have the latch, who has it
// drains again.
//
// Events.  What has been read from the channel tells nothing that polling does
// not; who sleeps does so edge-triggered, so an event that nobody reads wakes
// nobody twice.  Providers of real devices count the events that are fetched,
// and arm by that count: there, a CQ that has been armed and has given
// completions is armed anew only when its event has been fetched.  If that is
// not there yet, it either comes (and is an edge for who sleeps now) or the
// completions were older than the arming, which then still holds.
class RdmaPoller final : public Source {
 public:
  // Null on failure.  All that is handed in outlives it, but for the device's
  // end: Retire.  (`deferred` stays then too.)
  static std::unique_ptr<RdmaPoller> Make(ibv_context* context, ibv_pd* pd,
                                          Memory* memory, Board* board,
                                          Deferred* deferred,
                                          const Limits& limits, int bell,
                                          verbs::Error* error);
  ~RdmaPoller() override;
  // The end of its device: lets go of all that is the device's.  The object
  // itself stays for ever, doing nothing: epoll sets may still know it.
  static void Retire(std::unique_ptr<RdmaPoller> poller);
  RdmaPoller(const RdmaPoller&) = delete;
  RdmaPoller& operator=(const RdmaPoller&) = delete;

  void Drain() override;
  bool DrainToSleep() override;
  void Arm() override;
  // With false, in a signal handler too.
  void Disarm(bool rang) override;
  // -1: retired.
  int fd() const override { return fd_.load(std::memory_order_relaxed); }
  // Drain, but not more than about ten times a microsecond from all threads:
  // for who looks in a loop.
  void DrainThrottled();
  // Some lane waits for its send queue to have room: its completions wake who
  // sleeps, from the next drain on.
  void WantSent() { wants_sent_.fetch_add(1, std::memory_order_seq_cst); }
  void UnwantSent() { wants_sent_.fetch_sub(1, std::memory_order_seq_cst); }
  // Drain for a sender: what waits to be joined by more goes on waiting.
  void Collect();

  // A set with room for one more lane, counted; made if it may.  Null: none can
  // be had.
  CqSet* Admit(bool may_grow, verbs::Error* error);
  // The QP of a lane in the set has been destroyed.  `clean`: it had no receive
  // of the set's any more.
  void Leave(CqSet* set, bool clean);
  // The device reports SRQ_LIMIT_REACHED for `srq`, of whatever poller.
  void OnSrqLimit(const ibv_srq* srq);
  // From now on the QP's completions go to the lane.  False: out of memory.
  bool Add(QpLane* lane, std::uint32_t qp_num);
  // The QP has been destroyed: takes the last of its completions.  Nothing
  // touches the lane after that.
  void Remove(std::uint32_t qp_num);
  // The device is gone: so are all lanes.
  void LoseAll(base::Reason reason);
  // Runs `f` when all that has come has been given out and nobody drains.
  template <typename F>
  void Settled(F f) RC_EXCLUDES(latch_) {
    latch_.lock();
    DrainLocked();
    f();
    latch_.unlock();
    DrainIfAsked();
  }

  Sleepers& sleepers() { return sleepers_; }
  Board* board() const { return board_; }

 private:
  RdmaPoller(ibv_context* context, ibv_pd* pd, Memory* memory, Board* board,
             Deferred* deferred, const Limits& limits, std::uint32_t number)
      : context_(context),
        pd_(pd),
        memory_(memory),
        board_(board),
        deferred_(deferred),
        limits_(limits),
        number_(number),
        sleepers_(this),
        solicits_(!limits.lazy_events) {}

  struct Entry {
    std::uint32_t qp_num;
    QpLane* lane;  // null: free
  };

  bool MakeSet(verbs::Error* error) RC_REQUIRES(latch_);
  // Whether the set can take one more lane.
  static bool HasRoom(CqSet* set);
  // False: as DrainToSleep.
  bool DrainIfAsked(bool to_sleep = false) RC_EXCLUDES(latch_);
  bool DrainLocked(bool to_sleep = false) RC_REQUIRES(latch_);
  int PollSet(CqSet* set) RC_REQUIRES(latch_);
  bool ArmSet(CqSet* set) RC_REQUIRES(latch_);
  void Fired(CqSet* set) RC_REQUIRES(latch_);
  void Handle(CqSet* set, const ibv_wc& wc) RC_REQUIRES(latch_);
  void HandleReceive(CqSet* set, QpLane* lane, const ibv_wc& wc)
      RC_REQUIRES(latch_);
  void LoseLanesOf(const CqSet* set, int error) RC_REQUIRES(latch_);
  void FetchEvents() RC_REQUIRES(latch_);
  void ReadAllEvents() RC_REQUIRES(latch_);
  void ReadEvent(const ibv_cq* cq) RC_REQUIRES(latch_);
  void LetGo() RC_REQUIRES(latch_);
  void Tell() RC_REQUIRES(latch_);
  QpLane* Find(std::uint32_t qp_num) const RC_REQUIRES(latch_);

  ibv_context* const context_;
  ibv_pd* const pd_;
  Memory* const memory_;
  Board* const board_;
  Deferred* const deferred_;
  const Limits limits_;
  const std::uint32_t number_;  // see verbs::CreateCq
  verbs::Channel channel_;
  std::atomic<int> fd_{-1};
  RdmaPoller* next_retired_ = nullptr;
  Sleepers sleepers_;

  std::atomic<int> armed_{0};
  std::atomic<int> wants_sent_{0};  // lanes
  std::atomic<bool> asked_{false};
  std::atomic<std::uint64_t> drained_at_{0};  // Ticks()

  // All lanes' receiving ends are its, too.
  alignas(64) base::Latch latch_;
  std::vector<std::unique_ptr<CqSet>> sets_ RC_GUARDED_BY(latch_);
  // A power of two; open addressing.
  std::vector<Entry> table_ RC_GUARDED_BY(latch_);
  std::size_t lanes_ RC_GUARDED_BY(latch_) = 0;
  QpLane* touched_ RC_GUARDED_BY(latch_) = nullptr;
  // The device arms for solicited completions.
  bool solicits_ RC_GUARDED_BY(latch_);
  // May wait in the channel; lazy_events.
  std::uint32_t events_ RC_GUARDED_BY(latch_) = 0;
};

}  // namespace rcsock::lane::rdma

#endif  // RCSOCK_LIB_LANE_RDMA_RDMA_POLLER_H_
