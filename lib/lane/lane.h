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
  kDead,  // the lane has failed, by an error completion or a malformed peer,
          // and nothing more can be taken from it
};

// How many messages the sender may send before it gets more credit, and the
// most that number can be.
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

// Bits that say how the peer notifies this end of what the peer does.
enum Notify : std::uint32_t {
  kNotifyNone = 0,
  kNotifyRxPoller = 1,    // new data or control: the poller must see it
  kNotifyRxBits = 2,      // ... even if it does not look at this lane, since it
                          // watches many; shm sets the lane's ready bit
  kNotifyTxPoller = 4,    // credit came back: one completion kCompletionTx
  kNotifyRxSleeper = 8,   // a thread sleeps in SleepRx
  kNotifyTxSleeper = 16,  // a thread sleeps in SleepTx
};

// One end of one stream's lane. A lane has a ring in each direction. The sender
// writes the ring, and the receiver gives credit back.
//
// Threads: callers of the tx calls hold the stream's tx latch, callers of the
// rx calls its rx latch. Callers of Freeze and the destructor hold both.
// SleepRx and SleepTx need no latch, but a caller that pins the lane
// (posix::Sock). Any thread may call WakeLocal and State.
class Lane {
 public:
  virtual ~Lane() = default;

  virtual Kind kind() const = 0;
  // What a thread that waits for this lane must drain, and may sleep on. Null:
  // the peer rings the bell itself. The source outlives the lane.
  virtual Source* source() const { return nullptr; }
  virtual Region RxRegion() const = 0;
  virtual Region TxRegion() const = 0;

  // --- Sending ---------------------------------------------------------------
  //
  // Posts up to `limit` bytes of iov[0..count) from byte `skip` on, as one or
  // more writes with immediate. Notifies the receiver as the receiver has
  // asked. Returns the bytes taken: fewer than asked, perhaps 0, when credit
  // runs out.
  virtual std::size_t Post(const iovec* iov, int count, std::size_t skip,
                           std::size_t limit) = 0;
  // Posts one control message of at most kCtlMax bytes. The lane keeps slots
  // free for control messages, so data never keeps a control message back.
  // False: the lane is dead, or has no room even so, which takes a hostile
  // peer.
  static constexpr std::size_t kCtlMax = 56;
  virtual bool PostCtl(const void* message, std::size_t length) = 0;
  // Looks for new credit. Returns the bytes that Post would take now, at least
  // 1 if any.
  virtual std::size_t Writable() = 0;
  // Posted: data bytes posted since the lane opened. Acked: how many of these
  // the receiver has consumed, by its credit and never by a completion.
  virtual std::uint64_t Posted() const = 0;
  virtual std::uint64_t Acked() = 0;
  // Bounds the bytes that are posted and not consumed. What is posted already
  // may exceed the bound. The caller holds the tx latch. A lane whose rings are
  // no larger than TCP's buffers may ignore the bound.
  virtual void BoundUnread(std::uint64_t) {}
  virtual Credits credits() const { return {}; }
  // Copies posted bytes [from, from + length) out of the send ring. Only bytes
  // that are not acked are still there. Returns the bytes copied.
  virtual std::size_t CopyUnacked(std::uint64_t from, void* to,
                                  std::size_t length) = 0;

  // --- Direct placement -----------------------------------------------------
  // Only on RDMA. Expose lets the peer write to this memory, by a key, for as
  // long as the lane works. Hide ends that. Both need the rx latch. Expose
  // returns 0 or -errno.
  virtual int Expose(void*, std::size_t, std::uint32_t*) { return -EOPNOTSUPP; }
  virtual void Hide(std::uint32_t) {}
  // Writes to memory that the peer has exposed, before anything that is posted
  // later. `from` lies in registered memory of the application
  // (rdma::UserMemory), and stays unchanged until Placed returns true. Returns
  // a ticket, 0 if there is no room now, or -errno. Place and Placed need the
  // tx latch.
  virtual std::int64_t Place(const void*, std::size_t, std::uint64_t,
                             std::uint32_t) {
    return -EOPNOTSUPP;
  }
  // Returns true if the bytes are in the peer's memory for certain.
  virtual bool Placed(std::int64_t) { return false; }

  // --- Receiving -------------------------------------------------------------
  virtual Head Peek() = 0;
  // Copies up to `limit` data bytes to iov[0..count) from byte `skip` on. Stops
  // at a control message. With `peek` nothing is consumed. A null iov with
  // count 0 drops the bytes. Returns the bytes taken.
  virtual std::size_t Read(const iovec* iov, int count, std::size_t skip,
                           std::size_t limit, bool peek) = 0;
  // Takes one control message. Returns its length, 0 if none is at the head.
  virtual std::size_t ReadCtl(void* message, std::size_t capacity) = 0;
  // Data bytes landed before the next control message.
  virtual std::size_t Readable() = 0;
  // Returns true if these bytes, or the messages that they came in, take half
  // of what the ring has room for.
  virtual bool HalfFull() { return Readable() >= RxRegion().length / 2; }
  // Returns true if anything has landed since the last call: the edge of
  // edge-triggered readiness. Costs one look at the next slot.
  virtual bool Arrived() = 0;
  // Publishes the credit now, however little it is. For bytes that are here and
  // unread, publishes it as soon as they have been read.
  virtual void Credit() = 0;
  // As Credit, for a peer that has asked. The credit comes with a completion,
  // and wakes the peer's threads that wait for credit.
  virtual void AssureCredit() { Credit(); }

  // --- Notification ----------------------------------------------------------
  // Replaces the poller bits (kNotifyRxPoller, kNotifyRxBits, kNotifyTxPoller)
  // and the bell that they name. The lane itself keeps the sleepers' bits. A
  // look at the ring after the call sees whatever the peer posted before the
  // peer could see the change. The call is a full fence if there is a change.
  virtual void SetNotify(std::uint32_t bits, int bell) = 0;
  // Returns true if SleepRx would return at once. A thread that spins may ask
  // without the latch.
  virtual bool RxPending() const = 0;
  // RxPending for a caller that has drained source() just now.
  virtual bool RxLanded() const { return RxPending(); }
  // RxPending for the innermost loop, without a call if the lane has slots in
  // memory. May miss that the lane is dead.
  [[gnu::always_inline]] bool RxPendingQuick() const {
    if (quick_slots_ == nullptr) return RxPending();
    const std::uint64_t next = quick_next_.load(std::memory_order_relaxed);
    const auto sequence = static_cast<std::uint32_t>((next >> kQuickShift) + 1);
    return Sequence(quick_slots_) == sequence ||
           Sequence(QuickSlot(next & kQuickSlot)) == sequence;
  }
  // Returns true if the lane has slots in memory.
  bool InMemory() const { return quick_slots_ != nullptr; }
  // SleepRx waits for data, SleepTx for credit. A sleep also ends by WakeLocal,
  // a signal, or after the relative `timeout`, if that is not null. Returns 0
  // if something may have come, -EAGAIN if it did not sleep and the caller must
  // look again, -EINTR or -ETIMEDOUT. The caller takes `token` from
  // SleepToken() before its last look.
  virtual std::uint32_t SleepToken(bool tx) const = 0;
  virtual int SleepRx(std::uint32_t token, const timespec* timeout) = 0;
  virtual int SleepTx(std::uint32_t token, const timespec* timeout) = 0;
  // Makes every sleeper of this end return.
  virtual void WakeLocal() = 0;

  // --- End -------------------------------------------------------------------
  // kNone while the lane works; else why it does not.
  virtual base::Reason State() const = 0;
  // Rule 11: from now on nothing that arrives is accepted. What has landed
  // before stays readable: Read and CopyUnacked go on working. Idempotent.
  virtual void Freeze() = 0;
  // The caller knows that the peer's process is dead. What the peer has put
  // into the ring since Freeze becomes readable, as the ring is now; a peer
  // that lives on adds nothing. False: nothing outlives the peer here.
  virtual bool Thaw() { return false; }
  // How far an end has left a lane whose memory outlives its process. What the
  // end has written lies only there, until TCP has every byte for certain. So
  // the other end keeps the memory until it learns that state.
  enum class Left : std::uint32_t {
    kNot,
    kTold,  // the end reads no frame any more: no reset of the peer's drops
            // what the end sends
    kAll,   // ... and what was to go back to TCP is there
  };
  // If the memory does not outlive its process, no end waits for the other.
  virtual bool Outlives() const { return false; }
  virtual void TellLeft(Left) {}
  virtual Left PeerLeft() const { return Left::kAll; }
  // The end forgoes the COMMIT of its PROPOSE: its next bytes on TCP are the
  // application's, whatever they look like. It says so before it sends them, so
  // a peer that has read one of them sees it. Only where the memory outlives
  // its process.
  virtual void Forgo() {}
  virtual bool PeerForgoes() const { return false; }
  // The end is about to reset TCP, since its application wants that. Said there
  // it cannot be lost, and it can be said at any time.  Also said while the
  // stream holds bytes from TCP that its application has not read, and then
  // taken back.
  virtual void SayReset() {}
  virtual void TakeBackReset() {}
  virtual bool PeerSaysReset() const { return false; }

  // Returns true if a driver has pinned memory of the lane. Then the caller
  // calls EndPages before the destructor, with no copy under way, in a thread
  // for which nothing waits.
  virtual bool HasPages() const { return false; }
  virtual void EndPages() {}
  // Returns true if a device may touch the memory for ever: the lane is never
  // destroyed.
  virtual bool Lost() const { return false; }
  // Takes back bytes that the peer has been offered. Returns how many of them
  // it has taken, for the stream to count. The tx latch is held.
  virtual std::uint64_t Withdraw() { return 0; }

  // When the first unread message came, by base::Ticks(). The time is right
  // only if the message came after this end armed its bell. Otherwise it is any
  // time, perhaps a lie.
  virtual std::uint64_t Came() const { return 0; }

 protected:
  Lane() = default;
  // For lanes in plain memory: the explorer of the tests copies them.
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

  // RxPendingQuick looks at slots that are kQuickStride apart. The upper half
  // of a slot's first word is the number of its message plus one. The next
  // message is in slot 0, or in the slot behind the last message's.
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
  // The next message's number, and below kQuickShift the slot behind the last
  // message's. A lane without slots may keep something else here.
  std::atomic<std::uint64_t> quick_next_{0};
};

}  // namespace rcsock::lane

#endif  // RCSOCK_LIB_LANE_LANE_H_
