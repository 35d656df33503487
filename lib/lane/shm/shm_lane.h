#ifndef RCSOCK_LIB_LANE_SHM_SHM_LANE_H_
#define RCSOCK_LIB_LANE_SHM_SHM_LANE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <utility>

#include "lib/base/guard.h"
#include "lib/gpu/memory.h"
#include "lib/lane/lane.h"
#include "lib/lane/shm/layout.h"
#include "lib/lane/shm/link_state.h"
#include "lib/lane/shm/passing.h"
#include "lib/lane/shm/record_copy.h"
#include "lib/ring/rx.h"
#include "lib/ring/tx.h"

namespace rcsock::lane {
class LandedReader;
}

namespace rcsock::lane::shm {

// One end of a stream in shared memory. Lane says which thread may call what.
class ShmLane final : public Lane {
 public:
  // Requires that `index` is open in `link` (LinkState::Open) and its memory
  // scrubbed. Lanes come from a pool of their own. Null: out of memory.
  static ShmLane* New(const std::shared_ptr<LinkState>& link, int index);
  ~ShmLane() override;
  static void operator delete(void* at) noexcept;

  lane::Kind kind() const override { return lane::Kind::kShm; }
  Region RxRegion() const override;
  Region TxRegion() const override;

  std::size_t Post(const iovec* iov, int count, std::size_t skip,
                   std::size_t limit) override;
  bool PostCtl(const void* message, std::size_t length) override;
  std::size_t Writable() override;
  std::uint64_t Posted() const override { return tx_.posted(); }
  // Messages since the lane opened. Any thread may ask: another one may send.
  std::uint64_t Sent() const { return tx_.SentByNow(); }
  void BoundUnread(std::uint64_t bytes) override;
  std::uint64_t Acked() override;
  Credits credits() const override;
  std::size_t CopyUnacked(std::uint64_t from, void* to,
                          std::size_t length) override;

  Head Peek() override;
  std::size_t Read(const iovec* iov, int count, std::size_t skip,
                   std::size_t limit, bool peek) override;
  std::size_t ReadCtl(void* message, std::size_t capacity) override;
  std::size_t Readable() override;
  bool HalfFull() override;
  bool Arrived() override;
  std::uint64_t Came() const override {
    return peer().came.load(std::memory_order_relaxed);
  }
  void Credit() override;

  // PostQuick is Post of what fits in a slot, PostRecord of what fits in a
  // record, whole. ReadQuick is Read. For callers that know the lane's kind.
  // Return 0, with nothing moved, if Post or Read must decide.
  [[gnu::always_inline]] std::size_t PostQuick(const void* from,
                                               std::size_t length);
  [[gnu::noinline]] std::size_t PostRecord(const void* from,
                                           std::size_t length);
  [[gnu::always_inline]] std::size_t ReadQuick(void* to, std::size_t length);

  // From now on *hint is the line that the next message probably goes to, or
  // `hint` itself. Senders write it. The caller holds the tx latch.
  void KeepHint(std::atomic<const void*>* hint) { hint_ = hint; }

  // Returns true if the next message has landed and is a control message. For
  // the caller of Read, who has to know whether the end comes next; takes
  // nothing.
  bool CtlNext() {
    // A read that had room left has accepted the control message, and left it.
    if (rx_.active()) return !rx_.data();
    std::uint32_t imm;
    return Landed(&rx_, &imm) && ring::Decode(imm).kind == ring::Kind::kCtl;
  }

  // Returns true if the next message has landed and is data, and the lane
  // works.
  bool DataNext() {
    if (Closed()) [[unlikely]]
      return false;
    if (rx_.active()) return rx_.data();
    std::uint32_t imm;
    return Landed(&rx_, &imm) && ring::Decode(imm).kind == ring::Kind::kData;
  }

  // State() == kNone, in line.
  [[gnu::always_inline]] bool Works() const { return !Closed(); }
  // RxPending(), in line. *works: whether the lane works.
  [[gnu::always_inline]] bool RxPendingIfWorks(bool* works) const {
    *works = Works();
    return RxPendingQuick();
  }

  void SetNotify(std::uint32_t bits, int bell) override;
  // SetNotify without the fence. A caller that wishes for more than before
  // makes the fence, and looks after it.
  void Wish(std::uint32_t bits, int bell);
  bool RxPending() const override;
  // How far the send ring has been written to. The caller holds the tx latch.
  std::uint32_t touched() const { return touched_; }
  std::uint32_t SleepToken(bool tx) const override;
  int SleepRx(std::uint32_t token, const timespec* timeout) override;
  int SleepTx(std::uint32_t token, const timespec* timeout) override;
  void WakeLocal() override;

  base::Reason State() const override;
  void Freeze() override;
  bool Thaw() override;
  bool Outlives() const override { return true; }
  void TellLeft(Left left) override;
  Left PeerLeft() const override;
  void Forgo() override;
  bool PeerForgoes() const override {
    return peer().forgoes.load(std::memory_order_acquire) != 0;
  }
  void SayReset() override { own().resets.store(1, std::memory_order_release); }
  void TakeBackReset() override {
    own().resets.store(0, std::memory_order_release);
  }
  bool PeerSaysReset() const override {
    return peer().resets.load(std::memory_order_acquire) != 0;
  }

  // --- Copies of a device, straight into the ring and out of it ------------
  //
  // docs/shm-lane.md describes these copies. The caller pins the lane until
  // its copies have ended.
  //
  // Has the driver pin the ring, once for a lane and context. Needs no latch.
  // False: the copies go through slots.
  bool NeedPages(bool tx, gpu::Memory* memory);
  // Under the tx latch. From BeginFill, which returns false if another call
  // fills or the ring is bounded, to EndFill other sends find no room in the
  // byte ring.
  bool BeginFill();
  // Claims up to `want` bytes of the ring, in a row, for a copy. Returns how
  // many; 0: no room now.
  std::size_t Claim(std::size_t want, std::byte** at);
  // Sends the first `n` of the claimed bytes. Returns how many it has sent.
  std::size_t PostClaimed(std::size_t n);
  // Returns true if a thread has found no room meanwhile, or before.
  bool EndFill();
  // A copy into a ring or out of it did not end: the stream has to leave, and
  // the memory stays.
  void LoseRing() {
    lost_.store(true, std::memory_order_release);
    Fail(base::Reason::kLaneError);
  }
  bool Lost() const override { return lost_.load(std::memory_order_acquire); }
  // Under the rx latch. BeginDrain returns false if another call copies out of
  // the ring. RxNow is where a look ahead begins.
  bool BeginDrain() { return !std::exchange(drains_, true); }
  void EndDrain() { drains_ = false; }
  ring::Rx RxNow() const { return rx_; }
  // Finds up to `want` bytes of data that have landed in the byte ring behind
  // those that `ahead` has seen, in a row. Returns how many.
  std::size_t LookAhead(ring::Rx* ahead, std::size_t want,
                        const std::byte** at) const;
  bool HasPages() const override {
    return tx_pages_.pages != nullptr || rx_pages_.pages != nullptr ||
           imports_ != nullptr;
  }
  void EndPages() override;

  // --- A device's memory is passed to the peer ------------------------------
  // Returns true if a thread of the peer looks for an offer now.
  bool PeerTakesOffers() const;
  // Offers bytes, within BeginFill. Returns false if the receiver has not yet
  // taken all that was sent, or the lane is over. Until Withdraw nothing else
  // is sent. Needs the tx latch.
  bool Offer(const gpu::Passed& what);
  // How many of them the peer says to have taken by now.
  std::uint64_t OfferTaken() const;
  // Returns how many bytes the last offer has sent, once it is withdrawn.
  std::uint64_t offer_sent() const { return offer_.taken; }
  std::uint64_t Withdraw() override;
  // From TakeOffers to TakeNoOffers the peer may offer bytes to the thread that
  // drains the ring. TakeOffers returns false if this end takes none.
  bool TakeOffers(const gpu::Memory& memory);
  void TakeNoOffers();
  // Returns whether there is an offer, and the bytes that are next. Needs the
  // rx latch, as TakeOffered does.
  bool SeeOffer(SeenOffer* seen) const;
  Imports* imports() { return imports_.get(); }
  // Sends the peer a descriptor of the allocation if it needs one to open what
  // is to be offered. Returns false if none can be sent now.
  bool NeedMemory(gpu::Memory* memory, const void* at, const gpu::Passed& what);
  // The peer has taken nothing of it.
  void ForgetMemory(const gpu::Passed& what) { sent_memories_.Forget(what.id); }
  // Returns whether a descriptor of what the peer offers is yet to come.
  bool AwaitsMemory(const gpu::Memory& memory, const gpu::Passed& what) const;
  // Opens what the peer offers. Null: the driver refuses.
  std::shared_ptr<gpu::Import> FindImport(gpu::Memory* memory,
                                          const gpu::Passed& what);
  // Takes the next bytes of that offer, which have been copied. Returns false
  // if it has been withdrawn: then none of them count. Changes *word.
  bool TakeOffered(std::uint64_t* word, std::uint64_t bytes);

 private:
  friend class lane::LandedReader;
  struct Pages {
    std::shared_ptr<gpu::HostPages> pages;
    const void* refused = nullptr;  // the context that did not pin the ring
  };
  // Bounds the unread bytes, or puts that off while a device fills the ring.
  void SetBound(std::uint32_t bytes);
  void RingConductor();
  // The ring has been written to as far as `end`.
  void Touch(std::uint32_t end);
  // Sleeps on a word of this end that the peer maps, while `token` is current.
  int Sleep(const std::atomic<std::uint32_t>& word, std::uint32_t token,
            const timespec* timeout) const;
  ShmLane(std::shared_ptr<LinkState> link, int index, ring::Sent* table);

  static constexpr std::uint64_t kNoLimit = ~std::uint64_t{0};

  bool Closed() const {
    return over_.load(std::memory_order_acquire) ||
           link_->why_dead() != base::Reason::kNone;
  }
  // Ends the lane: the peer broke the rules, or `why`.
  void Fail(base::Reason why = base::Reason::kProtocol);
  // From now on accepts no message behind those that have landed.
  void Latch();
  // What Readable returns, and as how many messages.
  std::size_t Unread(std::uint32_t* messages);

  // What this end states with a message. With kMore, the peer learns that the
  // message is not in slot 0 (ControlLine::more), with kAlone, that it is. With
  // kHinted, this end also learns that the next message is likely to be in slot
  // 0 too (KeepHint).
  enum class Told : std::uint8_t { kMore, kAlone, kHinted };
  // A longer message gives no hint: its bytes are copied first, and the peer,
  // which looks at the slot's line meanwhile, would take the line back.
  static Told ToldOf(bool first, const ring::Imm& imm) {
    if (!first) return Told::kMore;
    return (imm.flags & ring::kFlagInline) != 0 ? Told::kHinted : Told::kAlone;
  }

  // Sending, under the tx latch.
  Slot& TxSlot(std::uint64_t number) const {
    const std::uint32_t at = tx_.At(number);
    return at < kHotSlots ? hot_->slots[at][side_]
                          : more_[at - kHotSlots][side_];
  }
  ring::Placement Reserve(std::size_t want);
  void LookForCredit();
  void TakeCredit(std::uint64_t credit);
  // Takes the credit that has come with messages.
  void TakeHeard() {
    const std::uint64_t heard = heard_.load(std::memory_order_acquire);
    if (heard == tx_.sent() && !starved_) [[likely]] {
      tx_.OnAllCredited();
    } else if (heard > tx_.credited()) {
      TakeCredit(heard);
    }
  }
  void SetStarved();
  // How the bytes of a send of `length` get into the ring.
  RecordCopy* CopyFor(std::size_t length) {
    return length <= kRecordMax && tx_.outstanding() == 0 ? &alone_ : &bulk_;
  }
  [[gnu::always_inline]] void Publish(Slot& slot, std::uint64_t number,
                                      Told told, std::uint32_t imm) {
    if (told_ != told) [[unlikely]]
      TellAnew(told);
    PublishTold(slot, number, imm);
  }
  // Publish, once TellAnew has written the new hint.
  void PublishTold(Slot& slot, std::uint64_t number, std::uint32_t imm);
  // The immediate of data in a slot, without the length.
  static constexpr std::uint32_t kQuickBits =
      ring::Encode({ring::Kind::kData, ring::kFlagInline, 0});
  static constexpr int BellOf(std::uint32_t poll) {
    return static_cast<int>(poll >> 8) & (kBells - 1);
  }
  static_assert((kBells & (kBells - 1)) == 0);
  // Sequence numbers come again after 2^32 messages, and light traffic leaves
  // all but the first slots alone for longer. So twice in that time each free
  // slot gets a number that has been consumed.
  static constexpr std::uint64_t kRenewEvery = std::uint64_t{1} << 31;
  void RenewSlots();
  // Called before a message is published.
  [[gnu::noinline]] void TellAnew(Told told);
  // Returns true if something may have landed behind the small message just
  // taken. A message that the peer begins after this look rings after it.
  bool RxMore() const {
    if (rx_.slot() == 1 && peer().more.load(std::memory_order_acquire) == 0)
        [[likely]] {
      return Sequence(quick_slots_) ==
             static_cast<std::uint32_t>(rx_.next() + 1);
    }
    return RxPendingQuick();
  }
  ControlLine& own() const { return hot_->control[side_]; }
  ControlLine& peer() const { return hot_->control[1 - side_]; }
  [[gnu::noinline]] void AfterPublish(std::uint32_t sleepers,
                                      std::uint32_t poll);
  void Stamp(int bell);
  // PostQuick in three cases. PostAlone: all that was sent has been consumed,
  // and `number` is the next message. PostFirst: likewise, and this is news.
  // PostBehind: not all has been consumed, or the sender starves.
  [[gnu::always_inline]] std::size_t PostAlone(const void* from,
                                               std::size_t length,
                                               std::uint64_t number);
  [[gnu::noinline]] std::size_t PostFirst(const void* from, std::size_t length,
                                          std::uint64_t number);
  [[gnu::noinline]] std::size_t PostBehind(const void* from, std::size_t length,
                                           std::uint64_t heard);
  [[gnu::noinline]] std::size_t PostAny(const iovec* iov, int count,
                                        std::size_t skip, std::size_t limit);

  // Receiving, under the rx latch.
  const Slot& RxSlot(std::uint32_t slot) const {
    return *reinterpret_cast<const Slot*>(QuickSlot(slot));
  }
  // Returns true if the next message of `rx` has landed; *imm is its immediate.
  // Finds the message's slot, which may be slot 0 again.
  bool Landed(ring::Rx* rx, std::uint32_t* imm) const {
    if (rx->next() >= rx_limit_) return false;
    const auto sequence = static_cast<std::uint32_t>(rx->next() + 1);
    std::uint64_t head = RxSlot(0).head.load(std::memory_order_acquire);
    if (static_cast<std::uint32_t>(head >> 32) == sequence) {
      rx->ToFirstSlot();
    } else {
      head = RxSlot(rx->slot()).head.load(std::memory_order_acquire);
      if (static_cast<std::uint32_t>(head >> 32) != sequence) return false;
    }
    *imm = static_cast<std::uint32_t>(head);
    return true;
  }
  // Returns true if the message `ahead` > 0 behind the next one has landed too.
  // Requires that the next has landed. So not all before the later message is
  // consumed, and its sender cannot have gone back to slot 0 for it.
  bool LandedToo(std::uint64_t ahead) const {
    const std::uint64_t number = rx_.next() + ahead;
    const auto slot =
        static_cast<std::uint32_t>(rx_.slot() + ahead) & (kSlots - 1);
    return number < rx_limit_ &&
           RxSlot(slot).head.load(std::memory_order_acquire) >> 32 ==
               static_cast<std::uint32_t>(number + 1);
  }
  // Notes the credit that a message carries.
  void Hear(const Slot& slot) {
    // Release, for TakeHeard: the sender overwrites nothing that the peer still
    // reads.
    heard_.store(slot.credit.load(std::memory_order_relaxed),
                 std::memory_order_release);
  }
  // Makes the next message the current one, if it has landed and is well
  // formed. True: there is a current message.
  bool Fill();
  // For a look ahead: whether the current message of `at` is data. Once that
  // message is consumed, takes the next.
  bool LandedData(ring::Rx* at) const;
  const std::byte* Bytes(const ring::Rx& rx) const {
    return (rx.in_slot() ? RxSlot(rx.slot()).payload : rx_bytes_) + rx.offset();
  }
  // Consumes `n` bytes of the current message, and notifies the sender if it is
  // time.
  void Take(std::uint32_t n);
  // The current message has been consumed to its end. `due`: what has been
  // consumed since the last credit makes another due.
  void Taken(bool due);
  [[gnu::noinline]] std::size_t ReadAny(const iovec* iov, int count,
                                        std::size_t skip, std::size_t limit,
                                        bool peek);
  [[gnu::noinline]] std::size_t ReadMore(void* to, std::size_t length);
  [[gnu::noinline]] void PublishCredit();

  // Read writes the number, and Publish, perhaps in another thread, sees it.
  std::uint64_t Consumed() const {
    return quick_next_.load(std::memory_order_acquire) >> kQuickShift;
  }

  // A server of thousands of streams finds none of these fields in its caches.
  // So what a small message needs is in three lines (LinkState::kLaneLines).
  // The first is this line, with the base's part.
  HotMemory* const hot_;
  Slot (*const more_)[2];
  LinkState* const link_;
  std::atomic<base::Reason> failed_{base::Reason::kNone};
  std::atomic<bool> over_{false};  // failed or frozen
  bool light_fence_ = false;       // Publish's fence is the light one
  bool starved_ = false;           // kStarved is set; under the tx latch
  Told told_ = Told::kAlone;       // of the last message; under the tx latch
  const std::uint8_t side_;
  // In this line, since a peer with many streams wants bits (AfterPublish).
  const std::uint16_t index_;
  static_assert(kMaxSegments * kSegmentStreams <= 1 << 16);

  // The second, which the tx latch guards, but for the atomic. The line behind
  // it is for other messages.
  alignas(64) std::atomic<std::uint64_t> heard_{0};  // see Slot::credit
  ring::Tx tx_;
  std::atomic<std::uint64_t> credit_seen_{0};  // in the control line; SleepTx

  // The third, which the rx latch guards.
  alignas(64) std::uint64_t rx_limit_ =
      kNoLimit;  // from this number on no message is accepted
  // Consumed since the sender was last woken.
  std::uint32_t unnotified_bytes_ = 0;
  std::uint32_t unnotified_slots_ = 0;
  ring::Rx rx_;
  std::uint64_t arrived_ = 0;  // messages that Arrived() has reported

  const std::shared_ptr<LinkState> link_owner_;
  bool frozen_ = false;  // under both latches
  FutexLine& own_futex_;
  std::atomic<std::uint32_t>& own_wake_;
  FutexLine& peer_futex_;
  std::byte* const tx_bytes_;
  const std::byte* const rx_bytes_;

  // Guarded by the tx latch.
  std::uint32_t touched_ = 0;  // how far the ring has been written to
  RecordCopy bulk_{RecordCopy::kBulk};
  RecordCopy alone_{RecordCopy::kAlone};
  std::atomic<const void*>* hint_ = nullptr;  // see KeepHint; null: none
  std::uint64_t stamped_ = 0;  // the bell's generation that `came` belongs to
  ring::Filling filling_;
  bool fills_ = false;         // between BeginFill and EndFill
  std::uint32_t put_off_ = 0;  // the bound to set behind it; 0: none
  bool drains_ = false;        // between BeginDrain and EndDrain
  // The pages of the thread that fills, and of the thread that drains.
  Pages tx_pages_;
  Pages rx_pages_;
  std::unique_ptr<Imports> imports_;
  OwnOffer offer_;  // under the tx latch
  SentMemories sent_memories_;
  std::atomic<bool> lost_{false};

  // Apart, so that the lanes of thousands of streams lie on few pages.
  ring::Sent* const table_;
};

// --- What a small message takes

[[gnu::always_inline]] inline void ShmLane::PublishTold(Slot& slot,
                                                        std::uint64_t number,
                                                        std::uint32_t imm) {
  const std::uint64_t sequence = static_cast<std::uint32_t>(number + 1);
  slot.credit.store(Consumed(), std::memory_order_relaxed);
  slot.head.store(sequence << 32 | imm, std::memory_order_release);
  // The message is stored before the peer's wishes are loaded. A receiver
  // stores its wish (SleepRx, SetNotify, Arm), fences, and looks at the slot.
  // One of the two sees the other. A full fence here would wait, for each
  // message, until the slot's line comes from the peer. So the thread that goes
  // to sleep pays for both fences.
  if (light_fence_) [[likely]] {
    base::LightFence();
  } else {
    FullFence();
  }
  const std::uint32_t sleepers =
      peer().sleepers.load(std::memory_order_relaxed);
  const std::uint32_t poll = peer().poll.load(std::memory_order_relaxed);
  if (((sleepers & kRxSleeper) | (poll & kNotifyRxBits)) != 0 ||
      ((poll & kNotifyRxPoller) != 0 && link_->Rings(BellOf(poll))) ||
      static_cast<std::uint32_t>(number + 1) % kRenewEvery == 0) [[unlikely]] {
    AfterPublish(sleepers, poll);
  }
}

inline std::size_t ShmLane::PostQuick(const void* from, std::size_t length) {
  if (length - 1 >= kInlineMax || Closed()) [[unlikely]]
    return 0;
  const std::uint64_t heard = heard_.load(std::memory_order_acquire);
  if (heard != tx_.sent() || starved_) [[unlikely]]
    return PostBehind(from, length, heard);
  if (told_ != Told::kHinted) [[unlikely]]
    return PostFirst(from, length, heard);
  return PostAlone(from, length, heard);
}

inline std::size_t ShmLane::PostAlone(const void* from, std::size_t length,
                                      std::uint64_t number) {
  // The bytes are copied before the message counts. After a fault nothing has
  // happened, and the long way meets the fault again and reports it.
  Slot& slot = hot_->slots[0][side_];
  if (!base::TrySmall(slot.payload, from, length)) [[unlikely]]
    return 0;
  const auto bytes = static_cast<std::uint32_t>(length);
  tx_.ReserveAlone(number, bytes);
  PublishTold(slot, number, kQuickBits | bytes);
  return length;
}

inline void ShmLane::Taken(bool due) {
  ++unnotified_slots_;
  const std::uint64_t next = rx_.next();
  // Release: what is consumed has been read. See PublishTold.
  quick_next_.store(next << kQuickShift | rx_.slot(),
                    std::memory_order_release);
  hot_->reached[side_].messages.store(next, std::memory_order_release);
  if (due) [[unlikely]] {
    PublishCredit();
    return;
  }
  // A waiting sender gets smaller credits, once nothing is left to take:
  // PublishCredit() decides. This load may miss a sender that has only just
  // begun to wait. After that the sender has read a credit. If the credit
  // leaves less than what makes credit due, the sender has room. If the credit
  // is older, the PublishCredit() that the sender missed saw it waiting, and so
  // do the loads since.
  const std::uint32_t sleepers =
      peer().sleepers.load(std::memory_order_relaxed);
  if ((sleepers & (kStarved | kTxSleeper)) != 0) {
    std::uint32_t imm;
    if ((sleepers & kBounded) != 0 || !Landed(&rx_, &imm)) PublishCredit();
  }
}

inline std::size_t ShmLane::ReadQuick(void* to, std::size_t length) {
  std::uint32_t imm;
  if (rx_.active()) [[unlikely]]
    return ReadMore(to, length);
  if (!Landed(&rx_, &imm)) return 0;
  // The immediate of any other message has a larger difference.
  const std::uint32_t n = imm - kQuickBits;
  if (n - 1 >= kInlineMax || n > length) return ReadMore(to, length);
  const Slot& slot = RxSlot(rx_.slot());
  // After a fault nothing has been consumed, and ReadMore meets the fault
  // again. The call above passes the arguments in the registers that this call
  // needs.
  if (!base::TrySmall(to, slot.payload, n)) [[unlikely]]
    return ReadMore(to, length);
  Hear(slot);
  rx_.TakeInline();
  Taken(rx_.SlotsDue());
  // Takes the next messages too if they have landed.
  if (n == length || !RxMore()) return n;
  return n + ReadMore(static_cast<std::byte*>(to) + n, length - n);
}

}  // namespace rcsock::lane::shm

#endif  // RCSOCK_LIB_LANE_SHM_SHM_LANE_H_
