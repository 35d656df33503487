#ifndef RCSOCK_LIB_LANE_LANE_H_
#define RCSOCK_LIB_LANE_LANE_H_

#include <sys/uio.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <ctime>

#include "lib/base/reason.h"
#include "lib/lane/poller.h"

namespace rcsock::lane {

enum class Kind : std::uint8_t { kShm, kRdma, kSim };

// What is at the head of the receive ring.
enum class Head : std::uint8_t {
  kEmpty,
  kData,  // Read() yields bytes
  kCtl,   // ReadCtl() yields one control message
  kDead,  // the lane has failed (error completion, malformed peer) and no more
          // bytes can be taken from it
};

// Messages that a sender may still send before it hears from the receiver, and
// how many at most.
struct Credits {
  std::uint32_t left = 0;
  std::uint32_t most = 0;
};

// Memory that the lane's peer or device can reach.
struct Region {
  std::byte* base = nullptr;
  std::size_t length = 0;
  std::uint64_t key = 0;  // rdma: rkey; shm: segment number
};

// How this end wants to be told of what the other end does.  Or-ed together.
enum Notify : std::uint32_t {
  kNotifyNone = 0,
  kNotifyRxPoller = 1,    // new data or control: the poller must see it
  kNotifyRxBits = 2,      // ... even without looking at this lane itself (it
                          // watches many): sets the bit in its ready bitmap
  kNotifyTxPoller = 4,    // credit came back: one completion kCompletionTx
  kNotifyRxSleeper = 8,   // a thread sleeps in SleepRx
  kNotifyTxSleeper = 16,  // a thread sleeps in SleepTx
};

// One end of one stream's lane: a ring in each direction, written by the
// sender, credits back.
//
// Threads: the tx calls under the stream's tx latch, the rx calls under its rx
// latch, Freeze and the destructor under both; SleepRx/SleepTx under none (the
// caller pins the lane, see posix::Sock); WakeLocal, and State from anywhere.
class Lane {
 public:
  virtual ~Lane() = default;

  virtual Kind kind() const = 0;
  // What must be drained, by whoever waits for this lane, and can be slept on;
  // null if the peer rings the bell itself.  Outlives the lane.
  virtual Source* source() const { return nullptr; }
  virtual Region RxRegion() const = 0;
  virtual Region TxRegion() const = 0;

  // --- Sending ---------------------------------------------------------------
  // Posts up to `limit` bytes of iov[0..count) from byte `skip` of it on, as
  // one or more writes with immediate, and tells the receiver as it asked.
  // Returns the bytes taken: fewer than asked, 0 included, when credit runs
  // out.
  virtual std::size_t Post(const iovec* iov, int count, std::size_t skip,
                           std::size_t limit) = 0;
  // Posts one control message of at most kCtlMax bytes.  A slot is kept free
  // for each, so that data never keeps a control message back; false: no room
  // even so (a hostile peer) or dead.
  static constexpr std::size_t kCtlMax = 56;
  virtual bool PostCtl(const void* message, std::size_t length) = 0;
  // Bytes that Post would take now, at least 1 if any; looks for new credit.
  virtual std::size_t Writable() = 0;
  // Data bytes posted since the lane opened, and how many of them the receiver
  // has consumed (its credit, never a mere completion).
  virtual std::uint64_t Posted() const = 0;
  virtual std::uint64_t Acked() = 0;
  // From now on no more than so many of them are to be posted and not consumed,
  // but for what has been posted.  Under the tx latch.  (A lane whose rings are
  // no larger than TCP's buffers may ignore it.)
  virtual void BoundUnread(std::uint64_t) {}
  virtual Credits credits() const { return {}; }
  // Copies posted bytes [from, from + length) out of the send ring; only those
  // that are not acked are still there.  Returns the bytes copied.
  virtual std::size_t CopyUnacked(std::uint64_t from, void* to,
                                  std::size_t length) = 0;

  // --- Direct placement -----------------------------------------------------
  // RDMA alone.  Lets the peer write to this memory, by a key, for as long as
  // the lane works; under the rx latch, as Hide.  -errno.
  virtual int Expose(void*, std::size_t, std::uint32_t*) { return -EOPNOTSUPP; }
  virtual void Hide(std::uint32_t) {}
  // Writes to what the peer has exposed, before anything that is posted later;
  // under the tx latch, as Placed.  `from` lies in registered memory of the
  // application (rdma::UserMemory) and stays as it is until Placed says so.  A
  // ticket; 0: no room now; or -errno.
  virtual std::int64_t Place(const void*, std::size_t, std::uint64_t,
                             std::uint32_t) {
    return -EOPNOTSUPP;
  }
  // Whether it is in the peer's memory for certain.
  virtual bool Placed(std::int64_t) { return false; }

  // --- Receiving -------------------------------------------------------------
  virtual Head Peek() = 0;
  // Copies up to `limit` data bytes to iov[0..count) from byte `skip` of it on.
  // Stops at a control message.  With `peek` nothing is consumed.  A null iov
  // with count 0 drops the bytes.
  virtual std::size_t Read(const iovec* iov, int count, std::size_t skip,
                           std::size_t limit, bool peek) = 0;
  // Takes one control message; returns its length, 0 if none is at the head.
  virtual std::size_t ReadCtl(void* message, std::size_t capacity) = 0;
  // Data bytes landed before the next control message.
  virtual std::size_t Readable() = 0;
  // Whether they, or the messages that they came as, take half of what the ring
  // has room for.
  virtual bool HalfFull() { return Readable() >= RxRegion().length / 2; }
  // True if anything landed since the last call: the edge of edge-triggered
  // readiness.  Costs one look at the next slot.
  virtual bool Arrived() = 0;
  // Publishes the credit now, however little it is; for what is here and
  // unread, as soon as it has been read.
  virtual void Credit() = 0;

  // --- Notification ----------------------------------------------------------
  // Replaces the poller bits (kNotifyRxPoller, kNotifyRxBits, kNotifyTxPoller)
  // and the bell they go to; sleepers' bits are the lane's own.  Full fence:
  // what the peer posted before it could see the change is seen by a look at
  // the ring after this call.
  virtual void SetNotify(std::uint32_t bits, int bell) = 0;
  // For spinning without the latch: true if SleepRx would return at once.
  virtual bool RxPending() const = 0;
  // The same by a caller that has drained source() just now.
  virtual bool RxLanded() const { return RxPending(); }
  // The same for the innermost loop, without a call where the lane has slots in
  // memory; may miss that the lane is dead.
  [[gnu::always_inline]] bool RxPendingQuick() const {
    if (quick_slots_ == nullptr) return RxPending();
    const std::uint64_t next = quick_next_.load(std::memory_order_relaxed);
    const auto sequence = static_cast<std::uint32_t>((next >> kQuickShift) + 1);
    return Sequence(quick_slots_) == sequence ||
           Sequence(QuickSlot(next & kQuickSlot)) == sequence;
  }
  // It has slots in memory.
  bool InMemory() const { return quick_slots_ != nullptr; }
  // Sleep until data (credit) may have come, WakeLocal was called, the time-out
  // (relative, null: none) passed or a signal came.  0, -EAGAIN (did not sleep:
  // look again), -EINTR, -ETIMEDOUT.  `token` comes from SleepToken(), taken
  // before the caller last looked.
  virtual std::uint32_t SleepToken(bool tx) const = 0;
  virtual int SleepRx(std::uint32_t token, const timespec* timeout) = 0;
  virtual int SleepTx(std::uint32_t token, const timespec* timeout) = 0;
  // Makes every sleeper of this end return.
  virtual void WakeLocal() = 0;

  // --- End -------------------------------------------------------------------
  // kNone while the lane works; else why it does not.
  virtual base::Reason State() const = 0;
  // Rule 11: from now on nothing that arrives is accepted; what had landed by
  // now stays readable (Read, CopyUnacked go on working).  Idempotent.
  virtual void Freeze() = 0;
  // The peer's process is dead, and what it had put into the ring after Freeze
  // is there: from now on that is readable too, as it is now (a peer that lives
  // on adds nothing).  False: nothing outlives the peer here.
  virtual bool Thaw() { return false; }
  // How far an end is out of a lane whose memory outlives its process.  What it
  // has written there is only there, as long as TCP does not have all of it for
  // certain; so the other end keeps the memory until it is told this.
  enum class Left : std::uint32_t {
    kNot,
    kTold,  // it reads no frame any more: no reset of theirs drops what it
            // sends
    kAll,   // ... and what was to go back to TCP is there
  };
  // (Without such memory nobody is waited for.)
  virtual bool Outlives() const { return false; }
  virtual void TellLeft(Left) {}
  virtual Left PeerLeft() const { return Left::kAll; }

  // When the first of what is unread came, by base::Ticks(), if that was since
  // this end has armed its bell; else any time, which may be a lie.
  virtual std::uint64_t Came() const { return 0; }

 protected:
  Lane() = default;
  // For lanes in plain memory, which the explorer copies.
  Lane(const Lane& other)
      : quick_slots_(other.quick_slots_),
        quick_more_(other.quick_more_),
        quick_next_(other.quick_next_.load(std::memory_order_relaxed)) {}
  Lane& operator=(const Lane& other) {
    quick_slots_ = other.quick_slots_;
    quick_more_ = other.quick_more_;
    quick_next_.store(other.quick_next_.load(std::memory_order_relaxed),
                      std::memory_order_relaxed);
    return *this;
  }

  // Where RxPendingQuick looks: slots so far apart, the upper half of whose
  // first word is the number of the message plus one.  The next message is in
  // slot 0, or in the one behind that of the last.
  static constexpr std::size_t kQuickStride = 256;
  static constexpr std::uint64_t kQuickFirst = 1;  // slots before quick_more_
  static constexpr int kQuickShift = 8;
  static constexpr std::uint64_t kQuickSlot = (1 << kQuickShift) - 1;
  const std::byte* QuickSlot(std::uint64_t slot) const {
    return slot < kQuickFirst
               ? quick_slots_ + slot * kQuickStride
               : quick_more_ + (slot - kQuickFirst) * kQuickStride;
  }
  static std::uint32_t Sequence(const std::byte* slot) {
    return static_cast<std::uint32_t>(
        reinterpret_cast<const std::atomic<std::uint64_t>*>(slot)->load(
            std::memory_order_acquire) >>
        32);
  }
  const std::byte* quick_slots_ = nullptr;
  const std::byte* quick_more_ = nullptr;
  // The next message, and below kQuickShift the slot behind that of the last.
  // (A lane without slots may keep something else here.)
  std::atomic<std::uint64_t> quick_next_{0};
};

}  // namespace rcsock::lane

#endif  // RCSOCK_LIB_LANE_LANE_H_
