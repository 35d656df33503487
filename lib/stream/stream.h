#ifndef RCSOCK_LIB_STREAM_STREAM_H_
#define RCSOCK_LIB_STREAM_STREAM_H_

#include <sys/uio.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <new>

#include "lib/base/guard.h"
#include "lib/base/reason.h"
#include "lib/lane/lane.h"
#include "lib/stream/byte_queue.h"
#include "lib/stream/frames.h"

namespace rcsock::stream {

enum class Role : std::uint8_t { kConnector, kAcceptor };  // C, S
enum class Tx : std::uint8_t { kRaw, kProp, kComm, kStg, kLane, kDown };
enum class Rx : std::uint8_t { kRaw, kArm, kArmF, kFrames };

// The kernel's TCP connection, never blocking.  Calls return -errno.
class Anchor {
 public:
  virtual ~Anchor() = default;
  virtual ssize_t Send(const iovec* iov,
                       int count) = 0;  // -EAGAIN, -EPIPE, ...
  virtual ssize_t Recv(void* to, std::size_t length) = 0;  // 0 is EOF
  // Straight into the application's buffers while nothing but raw bytes can
  // come.
  virtual ssize_t RecvV(const iovec* iov, int count, bool peek) = 0;
  virtual int ShutdownWrite() = 0;
  // What comes next lies behind the mark of urgent data, which no call that has
  // read something goes past.
  virtual bool AtMark() { return false; }
  // It has been reset, or the peer's end has come.  TCP answers the next write,
  // and no switch could be completed.
  virtual bool Ended() { return false; }
};

struct Limits {
  // Most bytes read ahead from TCP (rules 4, 7, 21), but for one.  A bulk
  // sender has as much on its way as the kernel's buffers hold (6 MiB by
  // default): with less, the receiver would refuse such a stream its lane again
  // and again.
  std::size_t stash = 8 * 1024 * 1024;
};

// What a call changed.  The owner looks after every call that may set them.
enum Change : std::uint32_t {
  kRxReady = 1,     // reading may go on: data, EOF or error; wake readers
  kTxReady = 2,     // writing may go on, or fails now; wake writers
  kPromotedTx = 4,  // tx has entered LANE
  kPromotedRx = 8,  // the peer's COMMIT is verified: rx comes from the lane
  kLeftLane = 16,   // the lane is frozen; the stream is on its way to TCP
  kSettled = 32,    // tx RAW, rx raw, lane not needed any more: ReleaseLane()
  kTimerOn = 64,    // start timer T (rule 23); Timer() when it fires
  kTimerOff = 128,
  kFinished = 256,  // after Close: all is delivered or lost; close the anchor
  kMustReset =
      512,  // ... and close it with SO_LINGER {1, 0}: the peer gets RST
};

// What the kernel says of a connection to one call, and not to the next.
constexpr bool IsToldOnce(int error) {
  return error == ECONNRESET || error == ETIMEDOUT || error == ECONNREFUSED ||
         error == ECONNABORTED || error == EHOSTUNREACH ||
         error == ENETUNREACH || error == EHOSTDOWN || error == ENETDOWN ||
         error == ENETRESET || error == ENONET || error == EPROTO ||
         error == ENOPROTOOPT;
}

// Whether it is the lane, or what it runs over, that has failed.
constexpr bool IsFailover(base::Reason reason) {
  using base::Reason;
  return reason == Reason::kLaneError || reason == Reason::kLaneStalled ||
         reason == Reason::kDeviceLost || reason == Reason::kRdmaError ||
         reason == Reason::kPeerGone || reason == Reason::kProtocol;
}

// Where the owner posts to the lane and reads from it past the Stream: kept in
// a line that it touches anyway, so that such a call needs none of the
// Stream's. The owner counts what it has moved so, for ever; the Stream says
// whether it may.
struct Quick {
  std::uint64_t tx = 0;
  std::uint64_t rx = 0;
  bool may_send = false;     // FastTx()
  bool may_receive = false;  // FastRx()
};

// One end of one stream: rules 1 to 23 of docs/protocol.md, as a state machine
// without I/O, threads, locks or clock.  It is handed a lane and an anchor, and
// every byte of either direction passes through it once it is adopted.
//
// Threads: none of its own.  The owner holds tx and rx latches around every
// call but the fast paths: Write while FastTx() under the tx latch alone, Read
// while FastRx() under the rx latch alone.  Transitions happen under both, so
// what FastTx() said under one latch stays true as long as that is held.
class Stream {
 public:
  // `quick`, if any, outlives it, or is not used any more by the owner either.
  Stream(Role role, Anchor* anchor, Limits limits, Quick* quick = nullptr);
  // From a pool of their own; null when out of memory.
  static void* operator new(std::size_t size) noexcept;
  static void* operator new(std::size_t size, const std::nothrow_t&) noexcept;
  static void* operator new(std::size_t, void* at) noexcept { return at; }
  static void operator delete(void* at) noexcept;

  // --- The application's calls.  Bytes, or -errno; -EAGAIN: not now.  They
  // never block; signals and flags are the owner's business.
  ssize_t Write(const iovec* iov, int count, std::size_t total) {
    if (fast_tx_) [[likely]] {
      std::size_t n = lane_->Post(iov, count, 0, total);
      tx_off_ += n;
      return n != 0 || total == 0 ? static_cast<ssize_t>(n) : Nothing();
    }
    return WriteSlow(iov, count, total);
  }
  // 0: EOF.
  ssize_t Read(const iovec* iov, int count, std::size_t total, bool peek) {
    if (fast_rx_) [[likely]] {
      std::size_t n = lane_->Read(iov, count, 0, total, peek);
      if (!peek) rx_off_ += n;
      return n != 0 || total == 0 ? static_cast<ssize_t>(n) : Nothing();
    }
    return ReadSlow(iov, count, total, peek);
  }
  // SHUT_WR; 0 or -errno.  Acts when the state resolves (rule 16).
  int ShutdownWrite();
  // It has been asked for, by close too; either latch.
  bool Shut() const { return shut_; }
  // The last close.  `reset`: unread data or SO_LINGER {1,0}: the peer must get
  // RST.  The stream lives on, driven by Progress, until kFinished.
  void Close(bool reset);
  // The anchor is about to be reset, for unread data or by the application's
  // wish: says so while frames can, for the peer cannot tell it from a reset
  // that only a frame left unread has caused.
  void TellReset();
  // SO_ERROR: the error that the next call would be told (0: none), once.
  int TakeError();
  // A call that has been told it has moved bytes before, which is what it says:
  // the next one is told.  Of no effect where that is told all the same.
  void KeepError(int error);

  // --- Events ----------------------------------------------------------------
  // Takes over a connection that has so far been used directly.
  void Adopt(std::uint64_t tx_off, std::uint64_t rx_off);
  // Both ends have adopted the stream and hold this lane: rule 1.  `lane` stays
  // valid until ReleaseLane.  Nonces: mine is the one that my peer's COMMIT
  // must show me, `peers` the one that I show.  With `min_tail`, the peer must
  // prove to know that many raw bytes sent after this call (at most 64) before
  // it is shown COMMIT or any byte of the application's: for a lane whose other
  // end is not known to be the peer.
  void LaneUp(lane::Lane* lane, std::uint32_t epoch, const Nonce& mine,
              const Nonce& peers, bool may_propose, std::uint8_t min_tail = 0);
  // The anchor may be readable or writable, or the lane has news.  Does all
  // that can be done now: flushes, reads frames (and ahead into the stash what
  // the switch waits for), takes lane control messages, notices a dead lane.
  void Progress();
  void Timer();
  // Now and then, for a lane that can lose what it has taken without a word (a
  // dead link, a transport that retries for ever): asks the peer by TCP what
  // has landed, unless its credit says so already; a lane on which nothing
  // moves in several answers is given up.  True: something is still to be
  // confirmed.
  bool Probe();
  // Probe's question for an application that wants to know what is unsent:
  // Unacked() tells the answer.  It judges nothing.
  void AskLanded();
  // The heartbeat: a frame that says nothing, for whoever on TCP's way forgets
  // a connection that is silent.
  void Beat();
  // Closed by a reset, which TCP would bring behind all that has been sent, and
  // some of it is on its way on a lane of another host: the reset waits until
  // it has landed, or for Hurry, which its owner calls soon.
  bool AwaitsLanding() const;
  void Hurry();
  // Own will (rule 11 ff.); also for a lane found dead by its owner.
  //
  // `leave`: the anchor is about to be shared with somebody who does not know
  // this stream (another process, stdio).  What has landed on the lane and is
  // unread stays the peer's, who sends it again over TCP: so it ends in the
  // kernel's queue, which all can read.  What was read ahead is handed back to
  // the peer for that.
  void Demote(base::Reason reason, bool leave = false);
  // What TCP has is for Read alone to take, so the owner must ask the kernel
  // what there is.  Nothing is read ahead of the application but what a switch
  // waits for: what is in the kernel's queue is reset by the kernel if this
  // process dies, is subject to its flow control, and may be followed by urgent
  // data.
  bool AtKernel() const {
    return rx_ == Rx::kRaw && ahead_ == 0 && !eof_ && !failed_ && !closed_;
  }
  // So much of what TCP brings next the application has already.
  std::size_t Ahead() const { return ahead_; }
  // The peer has sent what nobody here has taken: a close, or the end of the
  // process, is a reset.
  bool Untaken() const;
  // Bytes read ahead, and an error that the kernel has told, are all that keeps
  // the owner from using the anchor directly: TakeStash, and it may.
  bool OnlyStash() const;
  // The error that a reader would be told behind the bytes.
  int ErrorBehindStash() const;
  ByteQueue TakeStash();
  void GiveStash(ByteQueue bytes) { stash_.Swap(bytes); }
  // Tells the peer that a lane is not taken: it need not wait for an answer to
  // its PROPOSE.
  static void Refuse(lane::Lane* lane, std::uint32_t epoch);
  // After kSettled: the caller may destroy the lane.
  void ReleaseLane();
  // Points a copy at the copies of its lane and anchor: simulator only.
  void Rebind(lane::Lane* lane, Anchor* anchor) {
    lane_ = lane_ == nullptr ? nullptr : lane;
    anchor_ = anchor;
  }

  // The changes since the last call, or-ed; clears them.
  std::uint32_t TakeChanges();

  // --- What is so
  Tx tx() const { return tx_; }
  Rx rx() const { return rx_; }
  // Write is lane->Post and a counter; Read is lane->Read and a counter.
  bool FastTx() const { return fast_tx_; }
  bool FastRx() const { return fast_rx_; }
  // What comes next comes from the lane.  (Its end may be known already: FIN
  // goes by TCP, and may be here before bytes of a lane to another host.)
  bool ReadsLane() const { return accept_ && stash_.empty() && so_error_ == 0; }
  // Nothing comes behind the next so many bytes, which are here, but the end or
  // an error.
  bool EndsIn(std::size_t bytes) const {
    return eof_ || so_error_ != 0 || (pfin_known_ && rx_off() + bytes == pfin_);
  }
  // Bytes the application could read now; and that are not yet acknowledged.
  std::size_t Readable() const;
  std::uint64_t Unacked() const;
  // POLLIN | POLLOUT | POLLRDHUP | POLLHUP | POLLERR as poll(2) would say, as
  // far as this end knows: while rx is raw the anchor may hold more to read,
  // and while tx is RAW POLLOUT holds only if the anchor is writable: ask the
  // kernel too.
  std::uint32_t Readiness() const;
  bool WantsAnchorWrite()
      const;                     // bytes wait for the anchor to become writable
  bool WantsAnchorRead() const;  // the stash has room, or frames may come
  bool Adopted() const;
  // Nothing of the engine is in use: tx RAW, rx raw, no lane, nothing queued
  // and nothing stashed: the owner may use the anchor directly again.
  bool Idle() const;
  // Every write fails from now on, whatever the kernel would say to the next.
  bool TxBroken() const { return tx_broken_; }
  // To TCP the connection has been reset, and the application could know it.
  bool Gone() const { return tx_broken_ && !last_write_; }
  // The peer has said that there will be no more from it, read or not; this end
  // has told it the same.
  bool PeerEnded() const { return eof_ || pfin_known_; }
  bool FinSent() const { return fin_sent_; }
  // Both directions have ended, TCP's too.
  bool Ended() const { return kshut_ && eof_; }
  // Both directions, and by frames: nothing of the application's is under way.
  bool EndedInOrder() const { return eof_ && pfin_known_ && shut_; }
  std::uint64_t tx_off() const {
    return quick_ != nullptr ? tx_off_ + quick_->tx : tx_off_;
  }
  std::uint64_t rx_off() const {
    return quick_ != nullptr ? rx_off_ + quick_->rx : rx_off_;
  }
  base::Reason why_left() const { return why_left_; }
  // One end has proposed on this lane, or on the last one.
  bool Tried() const { return used_; }
  // Nothing is written to TCP before the peer's RAW has been read, whatever
  // room TCP has (rule 13).
  bool AwaitsRaw() const { return awaits_raw_; }

 private:
  friend struct StreamTestAccess;

  // Where the bytes that wait in the receive ring, not yet trusted, would
  // begin.
  enum class Waiting : std::uint8_t {
    kNothing,
    kTie,  // S's PROPOSE that C ignores: dropped when S's next message comes
    kPropose,  // a PROPOSE that waits for TCP to reach X_p
    kArm,      // ACCEPT sent
    kSwitch,   // a SWITCH that waits for TCP to reach X_r
    kGot,      // GOT sent, or (R) COMMIT verified and GOT awaited
  };
  // Single rules switched off, so that tests show that they see it.
  enum Broken : std::uint16_t {
    kNoFreeze = 1,
    kRawFirst = 2,
    kStageEarly = 4,
    kAcceptEarly = 8,
    kNoLimbo = 16,
    kLatePropose = 32,
    kNoTimer = 64,
    kLoseBack = 128,
    kTrustEarly = 256,
    kHideReturns = 512,
    kRepeatReturns = 1024,
    kNoThaw = 2048,
    kForgetRing = 4096,
    kWriteBehindRaw = 8192,
  };

  // What S may have staged behind a PROPOSE that C ignores.
  static constexpr std::size_t kMaxTie = 64 * 1024;

  // What it is that has moved nothing.
  static ssize_t Nothing() { return base::TakeFault() ? -EFAULT : -EAGAIN; }

  // The application's calls (stream.cc).
  ssize_t WriteSlow(const iovec* iov, int count, std::size_t total);
  ssize_t ReadSlow(const iovec* iov, int count, std::size_t total, bool peek);
  ssize_t WriteNow(const iovec* iov, int count, std::size_t total);
  ssize_t StageOrPost(const iovec* iov, int count, std::size_t total);
  // Of the copy that is kept of what is staged while in PROP.
  std::size_t CopyLimit() const;
  std::size_t TakeBuffered(const iovec* iov, int count, std::size_t total,
                           bool peek);
  bool AtEof() const;
  // The end of every slow call: shutdown, close, settle, fast-path flags.
  void Settle();

  // The anchor (anchor.cc).
  ssize_t SendRaw(const iovec* iov, int count);
  bool FlushOut();
  ssize_t RecvRaw(const iovec* iov, int count, bool peek);
  std::size_t RecvRest(const iovec* iov, int count, std::size_t skip,
                       bool peek);
  void PumpTcp();
  bool DropAhead();
  void PumpRaw(std::size_t want);
  void TookRaw();

  // Messages of the switch (switch.cc).
  void SendFrame(FrameKind kind, std::uint64_t offset, std::uint8_t flags = 0);
  bool PostCtl(const Ctl& ctl);
  void TakeCtl();
  void OnCtl(const Ctl& ctl);
  void OnFrame();
  const Nonce& ConnectorNonce() const;
  const Nonce& AcceptorNonce() const;

  // Promotion (promote.cc).
  bool MayPropose() const;
  bool Propose(std::uint8_t first);
  void OnPropose(const Ctl& ctl);
  void OnAccept(const Ctl& ctl);
  void OnSwitch(const Ctl& ctl);
  void CheckPending();
  void Withdraw();
  bool PostHeld();
  void OnArmBytes();
  void OnCommitFrame();
  void OnGot();

  // Demotion and failover (demote.cc).
  void Trigger(base::Reason reason);
  void FreezeLane(base::Reason reason);
  void SendLaneDown();
  void OnLaneDown(std::uint64_t r, std::uint8_t flags);
  void GoRaw(std::uint64_t from, bool with_frame);
  bool MayHandBack() const;
  void HandBack();
  void OnBack(std::uint64_t offset);

  // What has landed (probe.cc).
  void SendProbe();
  void AskWhatIsRead();
  void OnPing();
  void OnProbe();
  void OnLanded(std::uint64_t offset);

  // Ends (ends.cc).
  void SendFin();
  void OnEnd(const Ctl& ctl);
  void KernelShutdown();
  void MaybeShutdown();
  void LetGo();
  void MaybeFinish();
  void TellLeft();
  bool MayLetGo() const;
  std::size_t WantedAhead() const;
  // Rule 21.  (One byte more tells whether TCP ends there.)
  bool StashIsFull() const { return stash_.size() > limits_.stash; }
  bool PeerIsDead() const;
  void OnTcpEnd(int error);
  void PeerDied(int error);
  bool MayHaveLeft() const;
  void TakeLeft();
  void Fail(base::Reason reason);

  void Emit(std::uint32_t changes) { changes_ |= changes; }
  bool LaneUsable() const { return lane_ != nullptr && !frozen_; }
  // In PROP: what is staged stays here until the peer is proven ...
  bool Holds() const { return !proven_ && (broken_ & kStageEarly) == 0; }
  // (Nor are words of a stranger's the last ones of the peer.)
  bool Trusted() const { return proven_ || (broken_ & kTrustEarly) != 0; }
  // ... or is kept beside what is in the ring, for a tie.
  bool Copies() const { return Holds() || role_ == Role::kAcceptor; }
  // Bytes accepted from the peer: what the application took, and the stash; but
  // not what it took of bytes that are still to come by TCP.
  std::uint64_t InOff() const { return rx_off() + stash_.size() - ahead_; }
  bool ReadsLimbo() const {
    return returns_ && !limbo_.empty() && (broken_ & kHideReturns) == 0;
  }
  void KeepReturns();
  void DropLimbo() {
    limbo_.Clear();
    returns_ = false;
  }
  std::uint64_t AckedOff() const;

  Anchor* anchor_;
  lane::Lane* lane_ = nullptr;
  Quick* quick_;
  std::uint64_t tx_off_ = 0;  // accepted from the application, ...
  std::uint64_t rx_off_ = 0;  // taken by it, but for what is quick_'s
  bool fast_tx_ = false;
  bool fast_rx_ = false;
  Role role_;
  Tx tx_ = Tx::kRaw;
  Rx rx_ = Rx::kRaw;
  base::Reason why_left_ = base::Reason::kNone;
  bool adopted_ = false;

  // Of the present lane.
  bool frozen_ = false;  // rule 11
  bool settled_ = false;
  bool leave_ = false;  // within Demote
  bool may_propose_ = false;
  std::uint8_t min_tail_ = 0;
  std::uint64_t tail_from_ = 0;  // raw bytes before this one do not count
  // Probe: up to where it has been confirmed, where it was asked, what the last
  // answer said, how many answers have said the same.
  std::uint64_t probed_ = 0;
  std::uint64_t probe_at_ = 0;
  std::uint64_t probe_landed_ = 0;
  std::uint64_t probe_acked_ = 0;
  std::uint8_t probe_stalled_ = 0;
  std::uint64_t ping_ns_ = 0;  // when pings_ was last let go down
  std::uint32_t pings_ = 0;    // that have come, less one for each second
  bool probe_out_ = false;
  bool probe_asked_ = false;  // by AskLanded
  bool landing_ = false;      // AwaitsLanding
  bool used_ = false;  // proposed or accepted: one attempt per lane (rule 1)
  bool flip_ =
      false;  // own PROPOSE, or the peer's (the roles exclude each other)
  bool got_sent_ = false;
  bool accept_ = false;  // ring bytes may be taken
  // Who holds the other end of the lane holds that of the connection: known
  // from the start, or by its ACCEPT (of min_tail_ bytes) or COMMIT.
  bool proven_ = true;
  bool lane_down_seen_ = false;
  Waiting waiting_ = Waiting::kNothing;
  std::uint8_t their_tail_ = 0;  // tail_len of the peer's PROPOSE
  std::uint32_t epoch_ = 0;
  Nonce mine_{};
  Nonce peers_{};
  std::uint64_t x_ = 0;            // own X_p or X_r
  std::uint64_t posted_base_ = 0;  // lane_->Posted() at x_
  std::uint64_t rx_x_ = 0;         // the peer's X, while waiting_ != kNothing
  // The staged bytes while in PROP, if Copies(): of a peer that is not proven
  // nothing may be in the ring, whose credit would be a stranger's word; and C
  // drops S's from the ring on a tie, before S knows that there is one.
  ByteQueue copy_;
  // What waited in the ring, not trusted, when the lane was frozen (or dropped
  // by a tie).  Delivered only if TCP ends exactly at rx_x_: then the peer died
  // staging (rule 19).
  //
  // Or (returns_) what was the application's to read when the lane was left to
  // the peer, who sends it again from rx_x_ on.  It has been shown, so it is
  // read here until the peer has gone raw.  What is read so (ahead_) comes by
  // TCP, too, and is dropped there.  (Then stash_ is empty: it goes before.)
  ByteQueue limbo_;
  bool returns_ = false;
  std::size_t ahead_ = 0;
  // When the lane was frozen it was known (left_known_) that what comes next in
  // the ring is the byte left_at_ of the stream, and (left_taken_) that it is
  // the application's.
  bool left_known_ = false;
  bool left_taken_ = false;
  std::uint64_t left_at_ = 0;
  // The memory of a lane outlives its process: what the peer has been told of
  // our leaving, whether somebody waits here for the connection (and not for
  // all that the peer sends again);
  lane::Lane::Left told_left_ = lane::Lane::Left::kNot;
  bool hands_over_ = false;
  // what was left to it, from kept_at_ on, which comes by TCP, and of which the
  // ring does not have all, ...
  ByteQueue kept_;
  std::uint64_t kept_at_ = 0;
  // ... and that we have gone raw, and the peer has not.
  bool awaits_raw_ = false;
  // Own bytes that the peer has handed back, to go before those from x_ on; how
  // many of them are still to come.
  ByteQueue back_;
  std::size_t back_left_ = 0;

  // Ends.
  bool shut_ = false;   // the application's shutdown or close
  bool kshut_ = false;  // the kernel's
  bool closed_ = false;
  bool reset_ = false;
  bool finished_ = false;
  bool fin_sent_ = false;
  bool fin_second_ = false;  // behind the peer's
  bool fin_acked_ = false;
  bool ack_sent_ = false;
  bool pfin_known_ = false;
  bool pclosed_ = false;      // ... and nobody reads there any more
  bool end_seen_ = false;     // ... by the lane's END
  bool fin_seen_ = false;     // ... or by FIN itself
  bool peer_resets_ = false;  // it has said RESET
  bool eof_ = false;          // TCP has ended
  bool tx_broken_ = false;    // nothing that is written can arrive
  bool last_write_ = false;   // ... but TCP would not know it yet
  bool failed_ = false;       // the peer broke the rules
  int so_error_ = 0;          // told once
  int send_error_ = 0;        // heard by a frame: for OnTcpEnd to judge
  std::uint64_t pfin_ = 0;

  std::uint8_t hs_[kFrameSize] = {};  // a frame or COMMIT, partly read
  std::uint8_t hs_have_ = 0;
  std::uint16_t broken_ = 0;  // Broken; tests only
  std::uint32_t changes_ = 0;
  Limits limits_;
  ByteQueue out_;    // frames and raw bytes for TCP, in order
  ByteQueue stash_;  // raw read-ahead, then ring leftovers, then raw again
  Tail tail_tx_;
  Tail tail_rx_;
};

}  // namespace rcsock::stream

#endif  // RCSOCK_LIB_STREAM_STREAM_H_
