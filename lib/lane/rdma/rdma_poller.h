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
#include "lib/lane/rdma/event_watch.h"
#include "lib/lane/rdma/limits.h"
#include "lib/lane/rdma/memory.h"
#include "lib/lane/rdma/shared_receives.h"
#include "lib/lane/rdma/sleepers.h"
#include "lib/verbs/verbs.h"

namespace rcsock::lane::rdma {

class Deferred;
class QpLane;

// A completion queue, the shared receive queue that feeds it, and as many lanes
// as the completion queue has room for. Whatever these lanes do, it does not
// overrun.
struct CqSet {
  PinCount pin;  // of both queues, which go before it
  verbs::Cq cq;
  SharedReceives shared;       // its srq() null: each lane has its own
  std::uint32_t capacity = 0;  // in lanes
  std::uint32_t lanes = 0;     // under the poller's latch, as what follows
  bool armed = false;          // and no completion taken since
  bool solicited = false;      // ... for solicited completions only
  bool fired = false;          // armed, and completions taken since
  // The set has lost an event or completions, and takes no new lane.
  bool broken = false;
  EventWatch watch;           // not with Limits::lazy_events
  std::uint32_t unacked = 0;  // events not yet acknowledged
};

// Where the completions of one bell's lanes come in.
//
// No lost wake-up. An invariant holds while any thread sleeps, which armed_
// counts. At the end of each drain every CQ is armed, and has been found empty
// after that. Or its device has refused the arming, and its lanes are lost.
// Then whatever comes makes fd() readable.
//
// `CqSet::armed` is true only while no completion has been taken since the CQ
// was armed. So it may be false for an armed CQ, which is then armed once more.
// It is never true for a CQ that has fired. Arm() counts the sleeper. Then a
// drain says that there is work, and tries the latch. If another thread has the
// latch, that thread sees the work when it lets go, and drains once more, with
// armed_ in sight. Any thread may drain completions of any lane: they are
// handed to their lanes at once.
//
// Sends. What peers send is solicited, and a CQ is armed for solicited
// completions alone. So the end of a send wakes no thread that sleeps for an
// answer, but failures always do. While some lane waits for room in its send
// queue, CQs are armed for all completions. A lane says so (WantSent), and
// drains: a CQ that is armed for solicited completions is armed once more, and
// polled. That is right whether or not the CQ has fired. If the CQ has fired,
// its event is there and wakes the sleeper. If not, the device takes the second
// request in place of the first.
//
// DrainToSleep may find that something has come behind the arming. If no thread
// sleeps but its caller, it leaves the CQ as it is: the caller will not sleep,
// or will call again. If another thread comes, that thread drains. If that
// thread cannot have the latch, the thread that has it drains again.
//
// Events. A poll of the CQ finds all that the channel's events report. Threads
// sleep edge-triggered, so an event that no thread reads wakes no thread twice.
// Providers of real devices count the events that are fetched, and arm by that
// count. There a CQ that was armed and has given completions is armed anew only
// when its event has been fetched. If the event is not there yet, it may still
// come, and is an edge for a thread that sleeps now. Or the completions were
// older than the arming, which then still holds.
//
// Lost events. If a device counts fetched events, and an event of a CQ is lost,
// the device arms that CQ no more. Then threads would sleep until the peer asks
// over TCP, for each message anew. So each CQ has an EventWatch. If an event is
// overdue, the CQ is armed for all completions: what a peer sends may not be
// solicited. If an event is overdue even so, the CQ is broken. Its lanes end,
// and new lanes get another CQ. A CQ whose poll fails is broken, too.
class RdmaPoller final : public Source {
 public:
  // `cpu`: where the bell's thread runs; -1: not known.
  // Null: failure. The arguments outlive the poller, or last until Retire at
  // the device's end. `deferred` stays even then.
  static std::unique_ptr<RdmaPoller> Make(ibv_context* context, ibv_pd* pd,
                                          Memory* memory, Board* board,
                                          Deferred* deferred,
                                          const Limits& limits, int bell,
                                          int cpu, verbs::Error* error);
  ~RdmaPoller() override;
  // The poller's device ends: lets go of all that is the device's. The object
  // itself stays for ever, and does nothing: epoll sets may still refer to it.
  static void Retire(std::unique_ptr<RdmaPoller> poller);
  RdmaPoller(const RdmaPoller&) = delete;
  RdmaPoller& operator=(const RdmaPoller&) = delete;

  void Drain() override;
  bool DrainToSleep() override;
  void Arm() override;
  // With false, may be called in a signal handler.
  void Disarm(bool rang) override;
  // -1: retired.
  int fd() const override { return fd_.load(std::memory_order_relaxed); }
  // Drain, but not more than about ten times a microsecond from all threads:
  // for threads that look in a loop.
  void DrainThrottled();
  // A lane waits until its send queue has room. From the next drain on, its
  // completions wake sleepers.
  void WantSent() { wants_sent_.fetch_add(1, std::memory_order_seq_cst); }
  void UnwantSent() { wants_sent_.fetch_sub(1, std::memory_order_seq_cst); }
  // Drain for a sender: small sends that wait to be joined go on waiting.
  void Collect();

  // A set with room for one more lane, which is counted. Makes a set if
  // `may_grow`. Null: none can be had.
  CqSet* Admit(bool may_grow, verbs::Error* error);
  // The QP of a lane in the set has been destroyed. `clean`: it held no receive
  // of the set any more.
  void Leave(CqSet* set, bool clean);
  // The device reports SRQ_LIMIT_REACHED for `srq`, which may be another
  // poller's.
  void OnSrqLimit(const ibv_srq* srq);
  // From now on the QP's completions go to the lane. False: out of memory.
  bool Add(QpLane* lane, std::uint32_t qp_num);
  // The QP has been destroyed: takes its last completions. Nothing touches the
  // lane after that.
  void Remove(std::uint32_t qp_num);
  // The device is gone, and so are all lanes.
  void LoseAll(base::Reason reason);
  // Runs `f` when all that has come has been given out, and no thread drains.
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
  void LoseLanesOf(const CqSet* set) RC_REQUIRES(latch_);
  void LoseCompletions(CqSet* set, int error) RC_REQUIRES(latch_);
  void FetchEventsOfFired() RC_REQUIRES(latch_);
  void MissEvent(CqSet* set) RC_REQUIRES(latch_);
  void DropBrokenSets() RC_REQUIRES(latch_);
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

  // Guards the receiving ends of all lanes, too.
  alignas(64) base::Latch latch_;
  std::vector<std::unique_ptr<CqSet>> sets_ RC_GUARDED_BY(latch_);
  // Its size is a power of two; open addressing.
  std::vector<Entry> table_ RC_GUARDED_BY(latch_);
  std::size_t lanes_ RC_GUARDED_BY(latch_) = 0;
  QpLane* touched_ RC_GUARDED_BY(latch_) = nullptr;
  // Whether the device arms for solicited completions.
  bool solicits_ RC_GUARDED_BY(latch_);
  // How many may wait in the channel; lazy_events.
  std::uint32_t events_ RC_GUARDED_BY(latch_) = 0;
};

}  // namespace rcsock::lane::rdma

#endif  // RCSOCK_LIB_LANE_RDMA_RDMA_POLLER_H_
