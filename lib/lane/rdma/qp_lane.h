#ifndef RCSOCK_LIB_LANE_RDMA_QP_LANE_H_
#define RCSOCK_LIB_LANE_RDMA_QP_LANE_H_

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "lib/base/latch.h"
#include "lib/lane/board.h"
#include "lib/lane/iov_cursor.h"
#include "lib/lane/rdma/late_key.h"
#include "lib/lane/rdma/layout.h"
#include "lib/lane/rdma/memory.h"
#include "lib/lane/rdma/pace.h"
#include "lib/lane/rdma/qp_lane_parts.h"
#include "lib/lane/rdma/rdma_lane.h"
#include "lib/lane/rdma/rdma_poller.h"
#include "lib/lane/rdma/sleepers.h"
#include "lib/lane/rdma/target.h"
#include "lib/lane/rdma/user_memory.h"
#include "lib/ring/rx.h"
#include "lib/ring/tx.h"

namespace rcsock::lane {
class LandedReader;
}

namespace rcsock::lane::rdma {

class Chain;
class Deferred;

// Set in the wr_id of a request. Its completion says that what was placed
// before the request is in the peer's memory.
constexpr std::uint64_t kTicket = std::uint64_t{1} << 62;

// One end of a stream on a QP. Lane says which thread may call what. Three
// latches of other objects cover most members: the stream's tx and rx latch,
// and the poller's drain latch for what comes in. The send queue, which all
// three use, has post_latch_. A thread that holds post_latch_ takes no other
// latch.
//
// Credit. Now and then the receiver writes the number of messages that it has
// consumed into the sender's credit word, and wakes no thread. A sender that
// finds no room there sleeps. So once the receiver must suppose that a sender
// sleeps, it sends its next credit with an immediate of kind kCredit, a
// wake-up. It supposes so when a sender with the credit of the last wake-up
// (told_) would have no room, given the messages that have landed. That covers
// every sender that sleeps: a sender knows at least that credit, or the last
// wake-up is still on its way. And all that a sender has sent will land. The
// receiver checks where it publishes credit and where messages land, under
// post_latch_. Whichever check comes second sees both.
//
// A message takes along what has been consumed, in its immediate, or on iWARP
// in its SEND. From a length of 128 KiB on the immediate has no room for the
// credit. Only a thread that has drained the message knows that credit. So a
// credit without a wake-up counts for told_ only once the sender shows that it
// knows the credit. A sender that finds no room, or waits for Acked(), drains.
//
// An immediate has the low 8 bits of the credit. When the message lands, this
// end has sent at most kMessages more than the credit says. Until the message
// is drained, this end can send as many more as the send queue holds. A request
// needs room in the send queue, and only drained completions make room. What is
// in the queue from before the message had been sent when the message was.
//
// The credit word is no message, so nothing says when it is in its place.
// Devices of InfiniBand and RoCE write the word at once. But siw writes what
// TCP brings, and a segment may end within the word. Then the low bytes are new
// and the high bytes old for a while. As the word grows by kMessages at most,
// such a value is less than the old credit, or it is the new credit. A value
// less than what is known says nothing.
//
// Coalescing. Small sends are put together while Pace::window writes are in
// flight and nothing has come from the peer since the last write. They go into
// the mirror and into one record that waits, `waiting_`. The record goes out
// when a write completes, or with the next message that cannot join it. The
// record also goes before a thread of this process sleeps or looks for
// something to receive (Deferred::Flush), and within Pace::flush_us.
//
// If the device has Pace::joins_bursts, the sends of a burst are put together
// too. A burst is kBurst sends with nothing from the peer in between, by a
// thread that does next to nothing but send. In a burst completions do not send
// the record, so that records fill up: a device may complete a write before the
// call returns.
class QpLane final : public RdmaLane {
 public:
  // Null: out of memory; the QP stays the id's.
  static std::unique_ptr<QpLane> Make(QpLaneParts parts);
  ~QpLane() override;

  lane::Kind kind() const override { return lane::Kind::kRdma; }
  Source* source() const override { return poller_; }
  Region RxRegion() const override;
  Region TxRegion() const override;

  std::size_t Post(const iovec* iov, int count, std::size_t skip,
                   std::size_t limit) override;
  bool PostCtl(const void* message, std::size_t length) override;
  std::size_t Writable() override;
  std::uint64_t Posted() const override { return tx_ ? tx_->posted() : 0; }
  std::uint64_t Acked() override;
  Credits credits() const override;
  const char* device() const override;
  std::size_t CopyUnacked(std::uint64_t from, void* to,
                          std::size_t length) override;

  int Expose(void* at, std::size_t length, std::uint32_t* key) override;
  void Hide(std::uint32_t key) override;
  std::int64_t Place(const void* from, std::size_t length, std::uint64_t to,
                     std::uint32_t key) override;
  bool Placed(std::int64_t ticket) override;

  // The caller holds the tx latch. Until a call with null, what this thread
  // posts may be sent straight from this memory, if it lies there. No thread
  // may change the bytes meanwhile.
  void SendFrom(std::shared_ptr<UserMemory> memory);
  // --- Receiving into the caller's memory (qp_lane_target.cc), under the rx
  // latch.
  // Lets the peer write what it sends next to the `length` bytes at `at`, where
  // the next unread byte belongs. `window` outlives the target. Returns false,
  // with `window` closed, in these cases: a target is open; `exact` and
  // something is unread; too little is left behind what is unread; the peer may
  // still use the last target; the lane cannot.
  bool OpenTarget(std::byte* at, std::size_t length, bool exact,
                  Window* window);
  bool TargetOpen() const { return target_.length != 0; }
  // Whether to try a target. If the last ones were not used, few are tried.
  bool TargetIsWorth() {
    if (target_skips_ == 0) return true;
    --target_skips_;
    return false;
  }
  // Whether the device is the kernel's own.
  bool software() const { return software_; }
  // Whether all that the peer may write to the target has been read.
  bool TargetIsOver() const {
    return target_.length == 0 ||
           rx_.next() > target_end_.load(std::memory_order_relaxed);
  }
  // Returns whether the bytes that have been read end within a send that goes
  // on in an exact target. Returns false from some time after the first look
  // on, since the peer may say so for ever.
  bool TargetGoesOn();
  // Closes the window. Unread bytes of the target go where they would be
  // without the target.
  void CloseTarget(Window* window);

  // A number that no other lane of the process has.
  std::uint32_t serial() const { return serial_; }
  // Returns a ticket for what has been posted so far. SentDone(ticket, posted)
  // returns whether the memory that was sent from is needed no more: the peer
  // has taken the bytes, or they are in the peer's memory. In the second case
  // *copied says whether the bytes were copied, in case they must go again by
  // another way. `copy`: makes that copy now, if need be.
  std::int64_t SentTicket() const {
    return static_cast<std::int64_t>(direct_wrs_);
  }
  bool SentDone(std::int64_t ticket, std::uint64_t posted, bool copy,
                bool* copied);

  Head Peek() override;
  std::size_t Read(const iovec* iov, int count, std::size_t skip,
                   std::size_t limit, bool peek) override;
  // Copies data from `skip` bytes behind the next byte on, and leaves it there.
  std::size_t CopyAhead(std::size_t skip, std::byte* to, std::size_t limit);
  std::size_t ReadCtl(void* message, std::size_t capacity) override;
  std::size_t Readable() override;
  bool HalfFull() override;
  bool Arrived() override;
  void Credit() override;
  void AssureCredit() override;

  void SetNotify(std::uint32_t bits, int bell) override;
  bool RxPending() const override;
  bool RxLanded() const override;
  std::uint32_t SleepToken(bool tx) const override;
  int SleepRx(std::uint32_t token, const timespec* timeout) override;
  int SleepTx(std::uint32_t token, const timespec* timeout) override;
  void WakeLocal() override;
  base::Reason State() const override {
    return failed_.load(std::memory_order_acquire);
  }
  void Freeze() override;

  Offer offer() const override;
  void SetPeer(const Offer& offer) override;
  void SetCookie(void* cookie) override;
  void SetReadyMacs(const ReadyMac& mine, const ReadyMac& theirs) override;
  bool SendReady() override;
  bool PeerReady() override;
  void Nudge() override;
  void OnNextPost(void (*fn)()) override { next_post_ = fn; }
  void Connected() override;
  void MayReceive() override;
  bool OwesLastWqe() const override { return last_wqe_ == LastWqe::kOwed; }
  void LastWqeReached() override { last_wqe_ = LastWqe::kReported; }
  std::size_t Pinned() const override;
  void Lost(base::Reason reason) override;

  // Posts the records that wait, if the send queue has room. Returns true if
  // nothing waits any more. Any thread may call it.
  bool Flush();

  // For tests.
  bool closed() const { return Closed(); }
  bool Quiet() const {
    base::LatchGuard hold(post_latch_);
    return waiting_.length == 0 && !tell_owed_;
  }
  std::uint64_t sent_messages() const { return tx_ ? tx_->sent() : 0; }
  std::uint64_t landed_messages() const {
    return landed_.load(std::memory_order_acquire);
  }
  std::uint64_t published() const {
    return published_.load(std::memory_order_acquire);
  }
  std::uint64_t credit_seen() const { return Consumed(); }
  std::uint32_t wakes_sent() const {
    base::LatchGuard hold(post_latch_);
    return wakes_sent_;
  }
  std::uint64_t wakes_seen() const {
    return wakes_seen_.load(std::memory_order_acquire);
  }

 private:
  friend class RdmaPoller;
  friend class Chain;
  friend class Deferred;
  friend class lane::LandedReader;

  static constexpr std::uint64_t kNoLimit = ~std::uint64_t{0};
  struct Direct;

  explicit QpLane(QpLaneParts parts);

  // What Readable returns, and as how many messages.
  std::size_t Unread(std::uint32_t* messages);

  bool Closed() const {
    return closing_.load(std::memory_order_relaxed) ||
           State() != base::Reason::kNone;
  }
  // Sending, under the tx latch.
  std::byte* TxSlot(std::uint64_t number) const {
    return tx_block_.base() + kSlotsAt + (number % kMessages) * kSlotBytes;
  }
  std::byte* TxRing() const { return tx_ring_.mirror; }
  std::atomic<std::uint64_t>& CreditWord() const {
    return *reinterpret_cast<std::atomic<std::uint64_t>*>(rx_block_.base());
  }
  // Where data goes now: the mirror, and the peer's ring.
  struct TxRingPlace {
    std::byte* mirror = nullptr;
    std::uint64_t address = 0;
    std::uint32_t lkey = 0;
    std::uint32_t rkey = 0;
  };
  // Messages that the peer has consumed, by its credit word and the drained
  // messages.
  std::uint64_t Consumed() const {
    return std::max(
        CreditWord().load(std::memory_order_acquire) & kConsumedMask,
        carried_.load(std::memory_order_acquire));
  }
  bool TakeCredit();
  void LookForCredit();
  void LookForRoom();
  void TakeRing();
  bool EnsureRoom();
  std::size_t PostSmall(IovCursor from, std::size_t all);
  bool PostShort(IovCursor from, std::uint32_t all) RC_REQUIRES(post_latch_);
  // Writes bytes behind the record that waits. Returns how many.
  std::size_t Extend(IovCursor* from, std::size_t all) RC_REQUIRES(post_latch_);
  // Sends what the chain has, with the last record and the credit that is due.
  void SendWaiting(Chain* chain) RC_REQUIRES(post_latch_);
  void LetWait(bool burst) RC_REQUIRES(post_latch_);
  std::size_t PostLarge(IovCursor from, std::size_t all);
  // Whether the device can read send_from_, by *lkey.
  bool MayPostDirect(std::uint32_t* lkey);
  std::size_t PostDirect(const std::byte* from, std::size_t all);
  void NoteDirect(const ring::Placement& place, const std::byte* from);
  // The check of the peer's target; 0: the peer has none.
  std::uint64_t TargetCheck() const { return HeadWord(kTargetCheckAt).load(); }
  std::atomic<std::uint64_t>& HeadWord(std::size_t at) const {
    return *reinterpret_cast<std::atomic<std::uint64_t>*>(rx_block_.base() +
                                                          at);
  }
  bool TakesTarget(std::size_t all);
  std::size_t PostToTarget(IovCursor from, std::size_t all,
                           const std::byte* direct);
  void PostPiece(ring::Placement* place, const std::byte* from,
                 std::uint32_t lkey, bool direct, std::uint64_t to, bool last);
  void DropDirect(Direct* one);
  void DropCredited();
  static std::uint32_t NextSerial();
  bool PostControl(const void* message, std::size_t length, ring::Kind kind);

  // Under post_latch_.
  std::uint32_t Room() const RC_REQUIRES(post_latch_) {
    return send_depth_ -
           static_cast<std::uint32_t>(
               posted_wrs_ - done_wrs_.load(std::memory_order_acquire));
  }
  std::uint64_t InFlight() const RC_REQUIRES(post_latch_);
  // Takes post_latch_ itself.
  bool HasRoom(std::uint32_t wrs) const RC_EXCLUDES(post_latch_) {
    base::LatchGuard hold(post_latch_);
    return Room() >= wrs;
  }
  // Whether the window is full, and nothing has come since the last write.
  bool Streaming() const RC_REQUIRES(post_latch_);
  bool Bursts(bool reply);  // under the tx latch
  bool CreditAlong() RC_REQUIRES(post_latch_);
  // Returns whether this much, consumed since the last credit, is worth a write
  // of its own.
  bool CreditDue(std::uint64_t messages, std::uint64_t bytes) const {
    return messages >= kMessages / pace_.credit_part ||
           bytes > rx_ring_bytes_.load(std::memory_order_relaxed) /
                       pace_.credit_part;
  }
  void PublishAlong(Chain* chain, std::uint32_t length)
      RC_REQUIRES(post_latch_);
  bool FlushLocked() RC_REQUIRES(post_latch_);
  // Whether a sender that knows no newer credit than the last wake-up's has no
  // room.
  bool Starves() const;
  bool StarvesForBytes(std::uint64_t landed) const;
  // Writes the credit word; with a wake-up if the sender may sleep. With
  // `along`, the next message carries a credit without wake-up. False: no room
  // in the send queue.
  bool PublishLocked(Chain* chain, bool along = false) RC_REQUIRES(post_latch_);
  // The credit word for `consumed`; with `wake` that of a wake-up.
  std::uint64_t Word(std::uint64_t consumed, bool wake)
      RC_REQUIRES(post_latch_);
  void PublishCredit();

  // Receiving, under the rx latch.
  std::byte* RxSlot(std::uint64_t number) const {
    return rx_block_.base() + kSlotsAt + (number % kMessages) * kSlotBytes;
  }
  bool Landed(std::uint64_t number, std::uint32_t* imm) const {
    if (number >= landed_.load(std::memory_order_acquire)) return false;
    *imm = inbox_[number % kMessages].load(std::memory_order_relaxed);
    return true;
  }
  bool LandedOrDrain(std::uint64_t number, std::uint32_t* imm);
  bool Fill();
  // For a look ahead: whether the current message of `at` is data. Once that
  // message is consumed, takes the next.
  bool LandedData(ring::Rx* at);
  const std::byte* Bytes(const ring::Rx& rx) const {
    if (target_.length != 0) [[unlikely]] {
      if (const std::byte* at = InTarget(rx)) return at;
    }
    return (rx.in_slot() ? RxSlot(rx.next()) : rx_rings_[rx.ring()]) +
           rx.offset();
  }
  void CountRecord(std::uint32_t length);
  void GrowRing();
  void RingChanged();
  // Where the current message lies in the target; null: it is in the ring.
  const std::byte* InTarget(const ring::Rx& rx) const;
  std::size_t ReadTarget(const iovec* iov, int count, std::size_t skip,
                         std::size_t limit, bool peek);
  template <class Each>
  void EachUnread(Each each);
  std::size_t UnreadOfRing();
  // False: the send queue has no room.
  bool SayTarget(const Target& target);
  bool SayWithdrawn();
  void WithdrawTarget();
  bool MoveToRing();
  void KeepLateKey();
  void NoteUse();
  void Take(std::uint32_t n);
  void Taken();

  // Called by the poller, under its latch. On iWARP `bytes` are what came
  // before the immediate.
  void OnReceive(std::uint32_t imm, const std::byte* bytes,
                 std::uint32_t length);
  // Takes the credit of a message, the bits of `mask`. Returns false if the
  // credit is impossible.
  bool OnCarried(std::uint32_t bits, std::uint32_t mask);
  // OnTarget and the functions below return kNone if the message is in order.
  // OnTarget takes a message while a target is open, or a placed message, which
  // is data from here on.
  base::Reason OnTarget(std::uint64_t number, ring::Imm* imm);
  base::Reason OnSetup(std::uint64_t number, ring::Imm imm);
  // Takes away the credit that data brings. Returns false if the credit is
  // impossible.
  bool TakeCarried(ring::Imm* imm, const std::byte* bytes,
                   std::uint32_t* length);
  void OnWakeup(const ring::Imm& imm);
  void TakeRingOffer();
  void Land(std::uint64_t number, ring::Imm imm, bool in_slot);
  void AcceptNoMore(base::Reason why);
  void OnSent(std::uint64_t wrs);
  // While the lane wants them, the completions of its sends wake sleepers.
  void WantSent() {
    if (!wants_sent_.exchange(true, std::memory_order_seq_cst)) {
      poller_->WantSent();
    }
  }
  void UnwantSent() {
    if (wants_sent_.exchange(false, std::memory_order_seq_cst)) {
      poller_->UnwantSent();
    }
  }
  // Gives used receives back to the device, if they are the lane's own.
  void PostReceives();
  void OnError(int status, bool receive);
  void Tell();

  // Set once.
  const std::shared_ptr<Domain> domain_;
  RdmaPoller* const poller_;
  CqSet* const set_;
  Sleepers::Words* const words_;
  Memory* const memory_;
  Deferred* const deferred_;
  const std::shared_ptr<std::atomic<std::uint32_t>> lanes_;
  rdma_cm_id* const id_;
  ibv_qp* qp_ RC_GUARDED_BY(post_latch_);  // null: destroyed
  const std::uint32_t qp_num_;
  const std::uint32_t send_depth_;
  const std::uint32_t inline_bytes_;
  const bool iwarp_;
  const bool routed_;
  Sink* const sink_;
  const Pace pace_;
  bool added_ = false;
  const std::unique_ptr<Receives>
      receives_;  // its content: under the drain latch
  const PinCount queue_;
  Block rx_block_;
  const std::uint32_t ring_bytes_;  // of rx_block_'s ring
  // How large a ring may grow, and how large this end's ring may grow so that
  // the peer goes along.
  const std::size_t most_ring_;
  std::atomic<std::size_t> most_rx_ring_;
  Offer peer_{};
  Block tx_block_;

  std::atomic<base::Reason> failed_{base::Reason::kNone};
  std::atomic<bool> closing_{false};      // Freeze or the destructor has begun
  std::atomic<std::uint32_t> notify_{0};  // bell << 8 | kNotify*
  Board::Mark mark_;
  bool ready_wanted_ = false;  // used by the conductor alone, as ready_sent_
  bool ready_sent_ = false;
  const bool reports_last_wqe_;
  const bool software_;
  enum class LastWqe : std::uint8_t { kNone, kOwed, kReported };
  LastWqe last_wqe_ = LastWqe::kNone;
  ReadyMac ready_mac_{};
  ReadyMac peers_ready_mac_{};
  std::vector<Registered> exposed_;           // under the rx latch
  std::shared_ptr<UserMemory> placing_from_;  // under the tx latch, to serial_
  std::uint64_t placed_wrs_ = 0;              // of the last that places
  std::uint64_t fence_wrs_ = 0;               // of the last whose end says so
  std::atomic<std::uint64_t> fenced_wrs_{0};  // ... and that has ended
  // What is sent from the application's memory, by message % kMessages. The
  // bytes of the mirror lie there instead.
  struct Direct {
    std::uint64_t number = 0;
    std::uint64_t start = 0;           // in the byte stream
    const std::byte* bytes = nullptr;  // null: not in use
    std::uint32_t length = 0;
    std::byte* mirror = nullptr;
    std::shared_ptr<UserMemory> memory;
  };
  std::array<Direct, kMessages> direct_;
  std::uint32_t directs_ = 0;  // how many are in use
  std::uint64_t direct_wrs_ = 0;
  std::shared_ptr<UserMemory> send_from_;
  const void* send_thread_ = nullptr;
  const std::uint32_t serial_ = NextSerial();

  // The peer's target that this end took last. Guarded by the tx latch.
  Target to_{};
  std::uint64_t to_check_ = 0;
  bool to_void_ = true;
  bool to_used_ = false;

  // Guarded by the tx latch, but for the atomics.
  alignas(64) std::optional<ring::Tx> tx_;
  std::array<ring::Sent, kMessages> sent_table_;
  std::uint64_t landed_at_post_ = 0;
  std::uint32_t burst_ = 0;  // sends, up to kBurst
  bool bursting_ = false;    // from kBurst on, until half are left
  void (*next_post_)() = nullptr;
  std::uint16_t wakes_drained_ = 0;
  std::atomic<std::uint64_t> credit_seen_{0};  // for SleepTx
  std::atomic<bool> queue_full_{false};        // Post found the send queue full
  std::uint32_t rings_taken_ = 0;              // how many of ring_offers_
  // The mirrors, by Tx::ring(). Mirrors of offered rings are blocks of their
  // own.
  std::byte* tx_mirrors_[2] = {};
  Block tx_grown_[2];
  bool old_mirror_ = false;  // the old mirror is still there

  mutable base::Latch post_latch_;
  std::uint64_t posted_wrs_ RC_GUARDED_BY(post_latch_) = 0;
  std::uint64_t signalled_wrs_ RC_GUARDED_BY(post_latch_) = 0;
  // So many WRs have had an answer.
  std::uint64_t reply_wrs_ RC_GUARDED_BY(post_latch_) = 0;
  std::uint64_t switch_wrs_ = 0;  // WRs posted before the ring was changed
  TxRingPlace tx_ring_;           // written under the tx latch as well
  // Length 0: nothing waits.
  ring::Placement waiting_ RC_GUARDED_BY(post_latch_){};
  // A credit is owed: the queue had no room for it.
  bool tell_owed_ RC_GUARDED_BY(post_latch_) = false;
  // The peer has asked: the next credit that the peer may not know is a
  // wake-up.
  bool assures_ RC_GUARDED_BY(post_latch_) = false;
  std::uint32_t wakes_sent_ RC_GUARDED_BY(post_latch_) = 0;
  // Written under post_latch_: the last wake-up's credit, the last credit, and
  // the bytes that were consumed at each of the two.
  std::atomic<std::uint64_t> told_{0};
  std::atomic<std::uint64_t> told_bytes_{0};
  std::atomic<std::uint64_t> published_{0};
  std::atomic<std::uint64_t> published_bytes_{0};
  std::atomic<bool> waits_{false};  // waiting_ or tell_owed_
  std::atomic<bool> wants_sent_{false};
  std::atomic<bool> bursts_{false};         // ... and no completion sends it
  std::atomic<std::uint64_t> done_wrs_{0};  // written by the draining thread
  std::atomic<bool> listed_{false};         // in the list of deferred_
  QpLane* next_deferred_ = nullptr;

  // Guarded by the rx latch, but for the atomics.
  alignas(64) ring::Rx rx_;
  std::uint64_t rx_limit_ = kNoLimit;  // accepts no message from here on
  std::uint64_t arrived_ = 0;
  std::atomic<std::uint64_t> consumed_{0};
  const std::byte* rx_rings_[2] = {};  // by Rx::ring()
  Block rx_grown_[2];
  std::uint8_t ring_seen_ = 0;
  bool grow_stopped_ = false;
  bool credit_asked_ = false;  // Credit() has found something unread
  std::uint32_t longest_ = 0;  // the longest record since the last offer
  std::uint64_t read_bytes_ = 0;
  // How often the ring has been small since the last offer: see kGrowAfter.
  std::atomic<std::uint32_t> starves_{0};
  std::atomic<std::uint32_t> offered_bytes_{0};  // ring not yet gone over to
  // Written under the rx latch and the drain latch, read under either. The
  // drain latch alone guards `landed`.
  OwnTarget target_;
  LateKey late_key_;  // of the last target, if the peer may still use it
  std::uint64_t goes_on_until_ns_ = 0;  // 0: no look yet
  bool target_made_ = false;            // a target has been open
  bool target_used_ = false;
  std::uint32_t target_misses_ = 0;  // in a row
  std::uint32_t target_skips_ = 0;

  // Guarded by the drain latch, but for the atomics.
  alignas(64) std::atomic<std::uint64_t> landed_{0};
  std::array<std::atomic<std::uint32_t>, kMessages> inbox_{};
  std::atomic<std::uint64_t> carried_{0};  // the last that a message brought
  // Where in the target the messages since its opening begin; null: in the
  // ring. By message % kMessages, as inbox_.
  std::array<std::byte*, kMessages> placed_at_{};
  // The message that ends the target: the peer writes nothing there after it.
  static constexpr std::uint64_t kNoEnd = ~std::uint64_t{0};
  std::atomic<std::uint64_t> target_end_{kNoEnd};
  // The ring bytes of messages before number n, at n % 64. A publisher looks
  // back at most 32 messages.
  std::array<std::atomic<std::uint64_t>, 64> bytes_before_{};
  std::atomic<std::uint64_t> wakes_seen_{0};
  std::atomic<std::uint32_t> rx_ring_bytes_;  // the ring of what has landed
  // The ring that the peer has offered last, and how many rings it has offered.
  std::atomic<std::uint64_t> ring_address_{0};
  std::atomic<std::uint64_t> ring_key_bytes_{0};  // key << 32 | bytes
  std::atomic<std::uint32_t> ring_offers_{0};
  std::atomic<std::uint64_t> sent_for_wakes_{0};  // messages sent, to compare
  bool latched_ = false;                          // accepts nothing more
  std::uint32_t news_ = 0;
  std::uint64_t rewound_ = 0;  // a credit that the sender has shown to know
  bool touched_ = false;
  QpLane* next_touched_ = nullptr;
  // The peer's setup message.
  std::atomic<bool> setup_seen_{false};
  Offer setup_{};  // written before setup_seen_
};

}  // namespace rcsock::lane::rdma

#endif  // RCSOCK_LIB_LANE_RDMA_QP_LANE_H_
