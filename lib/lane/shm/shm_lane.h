#ifndef RCSOCK_LIB_LANE_SHM_SHM_LANE_H_
#define RCSOCK_LIB_LANE_SHM_SHM_LANE_H_

#include <array>
#include <atomic>
#include <memory>
#include <new>

#include "lib/lane/lane.h"
#include "lib/lane/shm/layout.h"
#include "lib/ring/rx.h"
#include "lib/ring/tx.h"

namespace rcsock::lane::shm {

class LinkState;

// One end of a stream in shared memory.  See Lane for who may call what.
class ShmLane final : public Lane {
 public:
  // `index` is open in `link` (LinkState::Open) and its memory scrubbed.
  ShmLane(std::shared_ptr<LinkState> link, int index);
  ~ShmLane() override;
  // From a pool of their own.
  static void* operator new(std::size_t size, const std::nothrow_t&) noexcept;
  static void operator delete(void* at) noexcept;

  lane::Kind kind() const override { return lane::Kind::kShm; }
  Region RxRegion() const override;
  Region TxRegion() const override;

  std::size_t Post(const iovec* iov, int count, std::size_t skip,
                   std::size_t limit) override;
  bool PostCtl(const void* message, std::size_t length) override;
  std::size_t Writable() override;
  std::uint64_t Posted() const override { return tx_.posted(); }
  std::uint64_t Acked() override;
  Credits credits() const override;
  std::size_t CopyUnacked(std::uint64_t from, void* to,
                          std::size_t length) override;

  Head Peek() override;
  std::size_t Read(const iovec* iov, int count, std::size_t skip,
                   std::size_t limit, bool peek) override;
  std::size_t ReadCtl(void* message, std::size_t capacity) override;
  std::size_t Readable() override;
  bool Arrived() override;
  void Credit() override;
  void Warm() const override;

  void SetNotify(std::uint32_t bits, int bell) override;
  bool RxPending() const override;
  std::uint32_t SleepToken(bool tx) const override;
  int SleepRx(std::uint32_t token, const timespec* timeout) override;
  int SleepTx(std::uint32_t token, const timespec* timeout) override;
  void WakeLocal() override;

  base::Reason State() const override;
  void Freeze() override;

 private:
  static constexpr std::uint64_t kNoLimit = ~std::uint64_t{0};

  bool Closed() const {
    return frozen_.load(std::memory_order_relaxed) ||
           State() != base::Reason::kNone;
  }
  // The lane is over: the peer broke the rules.
  void Fail();

  // Sending, under the tx latch.
  Slot& TxSlot(std::uint64_t number) const {
    return tx_slots_[2 * (number & (kSlots - 1))];
  }
  ring::Placement Reserve(std::size_t want);
  void LookForCredit();
  void TakeCredit(std::uint64_t credit);
  void SetStarved();
  void Publish(std::uint64_t number, std::uint32_t imm);
  [[gnu::noinline]] void TellReceiver(std::uint32_t sleepers,
                                      std::uint32_t poll);
  [[gnu::noinline]] std::size_t PostAny(const iovec* iov, int count,
                                        std::size_t skip, std::size_t limit);

  // Receiving, under the rx latch.
  Slot& RxSlot(std::uint64_t number) const {
    return rx_slots_[2 * (number & (kSlots - 1))];
  }
  // Message `number` has landed; its immediate.
  bool Landed(std::uint64_t number, std::uint32_t* imm) const {
    if (number >= rx_limit_) return false;
    const std::uint64_t head =
        RxSlot(number).head.load(std::memory_order_acquire);
    *imm = static_cast<std::uint32_t>(head);
    return static_cast<std::uint32_t>(head >> 32) ==
           static_cast<std::uint32_t>(number + 1);
  }
  // Makes the next message the current one, if it has landed and is well
  // formed.
  bool Fill();
  const std::byte* Bytes(const ring::Rx& rx) const {
    return (rx.in_slot() ? RxSlot(rx.next()).payload : rx_bytes_) + rx.offset();
  }
  // Consumes part of the current message, and tells the sender if it is time.
  void Take(std::uint32_t n);
  // The current message has been consumed to its end.
  void Taken();
  [[gnu::noinline]] std::size_t ReadAny(const iovec* iov, int count,
                                        std::size_t skip, std::size_t limit,
                                        bool peek);
  void PublishCredit();

  // Set once.
  const std::shared_ptr<LinkState> link_;
  const int index_;
  SideControl* const own_;
  SideControl* const peer_;
  Slot* const tx_slots_;  // every other one
  std::byte* const tx_bytes_;
  Slot* const rx_slots_;
  const std::byte* const rx_bytes_;
  std::atomic<base::Reason> failed_{base::Reason::kNone};
  std::atomic<bool> frozen_{false};  // written under both latches
  bool light_fence_ = false;  // Publish's fence is the light one; set once
  // Under the tx latch; here, so that a small message finds it in this line:
  bool starved_ = false;                // kStarved is set in own_->control
  std::atomic<std::uint64_t> sent_{0};  // messages; for Warm

  // Under the tx latch, but for the atomic.
  alignas(64) ring::Tx tx_;
  std::atomic<std::uint64_t> credit_seen_{0};  // for SleepTx

  // Under the rx latch, but for the atomic.
  alignas(64) ring::Rx rx_;
  std::uint64_t rx_limit_ = kNoLimit;  // no message from here on is accepted
  std::uint64_t arrived_ = 0;          // messages that Arrived() has told of
  std::uint32_t unnotified_bytes_ =
      0;  // consumed since the sender was last woken
  std::uint32_t unnotified_slots_ = 0;

  std::array<ring::Sent, kSlots> table_;
};

}  // namespace rcsock::lane::shm

#endif  // RCSOCK_LIB_LANE_SHM_SHM_LANE_H_
