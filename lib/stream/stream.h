#ifndef RCSOCK_LIB_STREAM_STREAM_H_
#define RCSOCK_LIB_STREAM_STREAM_H_

#include <sys/uio.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <new>
#include <optional>

#include "lib/base/guard.h"
#include "lib/base/reason.h"
#include "lib/lane/lane.h"
#include "lib/stream/byte_queue.h"
#include "lib/stream/frames.h"

namespace rcsock::stream {

enum class Role : std::uint8_t { kConnector, kAcceptor };
constexpr Role OtherRole(Role role) {
  return role == Role::kConnector ? Role::kAcceptor : Role::kConnector;
}
// C, S
enum class Tx : std::uint8_t { kRaw, kProp, kComm, kStg, kLane, kDown };
enum class Rx : std::uint8_t { kRaw, kArm, kArmF, kFrames };

// The kernel's TCP connection. Its calls never block, and return -errno.
class Anchor {
 public:
  virtual ~Anchor() = default;
  virtual ssize_t Send(const iovec* iov,
                       int count) = 0;  // -EAGAIN, -EPIPE, ...
  virtual ssize_t Recv(void* to, std::size_t length) = 0;  // 0 is EOF
  // Reads straight into the application's buffers, while only raw bytes can
  // come.
  virtual ssize_t RecvV(const iovec* iov, int count, bool peek) = 0;
  virtual int ShutdownWrite() = 0;
  // Returns true if the next byte lies behind the mark of urgent data. A call
  // that has read something does not go past it.
  virtual bool AtMark() { return false; }
  // Returns true if a reset or the peer's end has come. Then TCP answers the
  // next write, and no switch could be completed.
  virtual bool Ended() { return false; }
};

struct Limits {
  // The most bytes read ahead from TCP (rules 4, 7, 21); one byte more is
  // allowed. A bulk sender has as many bytes on their way as the kernel's
  // buffers hold: 6 MiB by default. With a smaller limit, the receiver would
  // refuse a bulk stream its lane again and again.
  std::size_t stash = 8 * 1024 * 1024;
};

// What a call changed. The owner calls TakeChanges after every call that may
// set them.
enum Change : std::uint32_t {
  kRxReady = 1,     // reading may go on: data, EOF or error; wake readers
  kTxReady = 2,     // writing may go on, or fails now; wake writers
  kPromotedTx = 4,  // tx has entered LANE
  kPromotedRx = 8,  // the peer's COMMIT is verified: rx comes from the lane
  kLeftLane = 16,   // the lane is frozen; the stream is on its way to TCP
  kSettled = 32,    // tx RAW, rx raw, lane unused: call ReleaseLane()
  kTimerOn = 64,    // start timer T (rule 23); Timer() when it fires
  kTimerOff = 128,
  kFinished = 256,  // after Close: all is delivered or lost; close the anchor
  kMustReset =
      512,  // with kFinished: close with SO_LINGER {1, 0}; the peer gets RST
};

// Returns true for an error that the kernel reports to one call, and not to the
// next.
constexpr bool IsToldOnce(int error) {
  return error == ECONNRESET || error == ETIMEDOUT || error == ECONNREFUSED ||
         error == ECONNABORTED || error == EHOSTUNREACH ||
         error == ENETUNREACH || error == EHOSTDOWN || error == ENETDOWN ||
         error == ENETRESET || error == ENONET || error == EPROTO ||
         error == ENOPROTOOPT;
}

// Returns true if the lane, or what it runs over, has failed.
constexpr bool IsFailover(base::Reason reason) {
  using base::Reason;
  return reason == Reason::kLaneError || reason == Reason::kLaneStalled ||
         reason == Reason::kDeviceLost || reason == Reason::kRdmaError ||
         reason == Reason::kPeerGone || reason == Reason::kProtocol;
}

// For an owner that posts to the lane and reads from the lane past the Stream.
// The struct lies in a line that the owner touches anyway, so a call past the
// Stream needs no line of the Stream's. The owner counts here what it has
// moved, for ever. The Stream sets may_send and may_receive.
struct Quick {
  std::uint64_t tx = 0;
  std::uint64_t rx = 0;
  bool may_send = false;     // FastTx()
  bool may_receive = false;  // FastRx()
};

// One end of one stream: rules 1 to 23 of docs/protocol.md, as a state machine
// without I/O, threads, locks or clock. Its owner hands it a lane and an
// anchor. Once the stream is adopted, every byte of either direction passes
// through it.
//
// The comments name the ends as docs/protocol.md does. P proposes, and R
// responds. C has connected, and S has accepted.
//
// The owner holds the tx and rx latches around every call except the fast
// paths: Write while FastTx() under the tx latch alone, Read while FastRx()
// under the rx latch alone. Transitions happen under both latches. So what
// FastTx() says under one latch stays true as long as that latch is held.
class Stream {
 public:
  // `quick` is null, or outlives the Stream, or its owner uses the Stream no
  // longer.
  Stream(Role role, Anchor* anchor, Limits limits, Quick* quick = nullptr);
  // Allocates from a pool of Streams; null when out of memory.
  static void* operator new(std::size_t size) noexcept;
  static void* operator new(std::size_t size, const std::nothrow_t&) noexcept;
  static void* operator new(std::size_t, void* at) noexcept { return at; }
  static void operator delete(void* at) noexcept;

  // --- The application's calls. They return bytes, or -errno; -EAGAIN: not
  // now. They never block. The owner handles signals and flags.
  ssize_t Write(const iovec* iov, int count, std::size_t total) {
    if (fast_tx_) [[likely]] {
      std::size_t n = lane_->Post(iov, count, 0, total);
      tx_off_ += n;
      return n != 0 || total == 0 ? static_cast<ssize_t>(n) : Nothing();
    }
    return WriteSlow(iov, count, total);
  }
  // Returns 0 at EOF.
  ssize_t Read(const iovec* iov, int count, std::size_t total, bool peek) {
    if (fast_rx_) [[likely]] {
      std::size_t n = lane_->Read(iov, count, 0, total, peek);
      if (!peek) rx_off_ += n;
      return n != 0 || total == 0 ? static_cast<ssize_t>(n) : Nothing();
    }
    return ReadSlow(iov, count, total, peek);
  }
  // SHUT_WR. Returns 0 or -errno. The shutdown takes effect when the state
  // resolves (rule 16).
  int ShutdownWrite();
  // Returns true after ShutdownWrite or Close. Requires either latch.
  bool Shut() const { return shut_; }
  // The last close. `reset`: there is unread data or SO_LINGER {1,0}, and the
  // peer must get RST. The stream lives on, driven by Progress, until
  // kFinished.
  void Close(bool reset);
  // Says in a frame, if one is legal, why the anchor is about to be reset: the
  // application wants it, or there is unread data. Otherwise the peer cannot
  // distinguish this reset from one that only an unread frame has caused.
  void TellReset();
  // SO_ERROR: returns the error that the next call would report, once. 0: none.
  int TakeError();
  // For a call that got an error after it had moved bytes, and reports the
  // bytes: the next call reports the error. No effect if that call gets an
  // error anyway.
  void KeepError(int error);

  // --- Events ----------------------------------------------------------------
  // Takes over a connection that the owner has used directly so far.
  void Adopt(std::uint64_t tx_off, std::uint64_t rx_off);
  // Both ends have adopted the stream and hold this lane: rule 1. `lane` stays
  // valid until ReleaseLane. The peer's COMMIT must show the nonce `mine`; this
  // end shows `peers`.
  //
  // `min_tail` serves a lane whose other end is not known to be the peer. First
  // that end must prove to know that many raw bytes sent after this call, 64 at
  // most. Until then it gets no COMMIT and no byte of the application's.
  void LaneUp(lane::Lane* lane, std::uint32_t epoch, const Nonce& mine,
              const Nonce& peers, bool may_propose, std::uint8_t min_tail = 0);
  // Call it when the anchor may be readable or writable, or the lane has news.
  // Does all that can be done now: flushes, reads frames, reads ahead what the
  // switch waits for, takes lane control messages, and notices a dead lane.
  void Progress();
  // The process is about to end. Takes back what the peer has not agreed to,
  // and begins no switch. Switching() may still hold.
  void EndSoon();
  // Returns true if this end has agreed to a switch, and TCP may still have to
  // carry what it has sent.
  bool Switching() const { return tx_ == Tx::kStg; }
  void Timer();
  // Call it now and then for a lane that can silently lose what it has taken,
  // by a dead link or a transport that retries for ever. Unless credit covers
  // all, asks the peer by TCP what has landed. If nothing moves in several
  // answers, gives the lane up. Returns true if something is still to be
  // confirmed.
  bool Probe();
  // Asks as Probe does, for an application that wants to know what is unsent.
  // Unacked() has the answer. The answer never ends the lane.
  void AskLanded();
  // The heartbeat: a frame without content, for middleboxes that forget a
  // silent connection.
  void Beat();
  // Returns true if the stream is closed by a reset and bytes may still be on
  // their way on a lane to another host. Over TCP the reset would come after
  // them. So the reset waits until they have landed, or for Hurry. The owner
  // calls Hurry soon.
  bool AwaitsLanding() const;
  void Hurry();
  // Leaves the lane by this end's own will (rule 11 ff.), or because its owner
  // has found it dead.
  //
  // `leave`: a user that does not know this stream, another process or stdio
  // for instance, is about to get the anchor too. What has landed and is unread
  // is left to the peer, which sends it again over TCP. So the bytes end in the
  // kernel's queue, which all can read. For that, bytes read ahead are handed
  // back to the peer.
  void Demote(base::Reason reason, bool leave = false);
  // Returns true if only Read may take what TCP has, so the owner must ask the
  // kernel what is there. Only what a switch waits for is read ahead. Bytes in
  // the kernel's queue are subject to its flow control, urgent data may follow
  // them, and the kernel resets them if this process dies.
  bool AtKernel() const {
    return rx_ == Rx::kRaw && ahead_ == 0 && !eof_ && !failed_ && !closed_;
  }
  // How many of the next bytes from TCP the application already has.
  std::size_t Ahead() const { return ahead_; }
  // Returns true if the peer has sent bytes that this end has not taken. A
  // close, or the end of the process, is then a reset.
  bool Untaken() const;
  // Returns true if nothing but bytes read ahead, and an error that the kernel
  // has reported, keeps the owner from using the anchor directly. After
  // TakeStash the owner may use it.
  bool OnlyStash() const;
  // Returns the error that a reader would get behind these bytes.
  int ErrorBehindStash() const;
  ByteQueue TakeStash();
  void GiveStash(ByteQueue bytes) { stash_.Swap(bytes); }
  // Tells the peer that this end does not take the lane. So the peer need not
  // wait for an answer to its PROPOSE.
  static void Refuse(lane::Lane* lane, std::uint32_t epoch);
  // Call it after kSettled. The caller may then destroy the lane.
  void ReleaseLane();
  // For the simulator: points a copy at the copies of its lane and anchor.
  void Rebind(lane::Lane* lane, Anchor* anchor) {
    lane_ = lane_ == nullptr ? nullptr : lane;
    anchor_ = anchor;
  }

  // Returns the changes since the last call, or-ed, and clears them.
  std::uint32_t TakeChanges();

  // --- State
  Tx tx() const { return tx_; }
  Rx rx() const { return rx_; }
  // FastTx: Write is only lane->Post and a counter. FastRx: Read is only
  // lane->Read and a counter.
  bool FastTx() const { return fast_tx_; }
  bool FastRx() const { return fast_rx_; }
  // Returns true if the next byte comes from the lane. The end may be known
  // already: FIN goes by TCP, and may overtake the bytes of a lane to another
  // host.
  bool ReadsLane() const { return accept_ && stash_.empty() && so_error_ == 0; }
  // Returns true if only the end or an error follows the next `bytes` bytes,
  // which are here.
  bool EndsIn(std::size_t bytes) const {
    return eof_ || so_error_ != 0 || (pfin_known_ && rx_off() + bytes == pfin_);
  }
  // Readable: bytes that the application could read now. Unacked: bytes that
  // are not yet acknowledged.
  std::size_t Readable() const;
  std::uint64_t Unacked() const;
  // POLLIN | POLLOUT | POLLRDHUP | POLLHUP | POLLERR as poll(2) would say, as
  // far as this end knows. Ask the kernel too: while rx is raw, the anchor may
  // hold more to read; while tx is RAW, POLLOUT holds only if the anchor is
  // writable.
  std::uint32_t Readiness() const;
  bool WantsAnchorWrite()
      const;                     // bytes wait for the anchor to become writable
  bool WantsAnchorRead() const;  // the stash has room, or frames may come
  bool Adopted() const;
  // Returns true if nothing of the engine is in use: tx RAW, rx raw, no lane,
  // nothing queued and nothing stashed. The owner may then use the anchor
  // directly again.
  bool Idle() const;
  // Every write fails from now on, whatever the kernel would answer to the
  // next.
  bool TxBroken() const { return tx_broken_; }
  // As TCP sees it, the connection has been reset, and the application could
  // know it.
  bool Gone() const { return tx_broken_ && !last_write_; }
  // The stream has ended as if reset, and stays so until Close: the anchor must
  // not be used directly again.
  bool Failed() const { return failed_; }
  // Returns whether the peer has said that it sends no more. The application
  // may have bytes still to read before that end.
  bool PeerEnded() const { return eof_ || pfin_known_; }
  bool FinSent() const { return fin_sent_; }
  // Both directions have ended, also on TCP.
  bool Ended() const { return kshut_ && eof_; }
  // Frames have ended both directions: none of the application's bytes are
  // under way.
  bool EndedInOrder() const { return eof_ && pfin_known_ && shut_; }
  std::uint64_t tx_off() const {
    return quick_ != nullptr ? tx_off_ + quick_->tx : tx_off_;
  }
  std::uint64_t rx_off() const {
    return quick_ != nullptr ? rx_off_ + quick_->rx : rx_off_;
  }
  base::Reason why_left() const { return why_left_; }
  // An end has proposed on this lane, or on the last one.
  bool Tried() const { return used_; }
  // Nothing is written to TCP before the peer's RAW has been read, whatever
  // room TCP has (rule 13).
  bool AwaitsRaw() const { return awaits_raw_; }

 private:
  friend struct StreamTestAccess;

  // What the bytes in the receive ring wait for while they are not trusted, and
  // so where they would begin.
  enum class Waiting : std::uint8_t {
    kNothing,
    kTie,  // S's PROPOSE that C ignores: dropped when S's next message comes
    kPropose,  // a PROPOSE that waits for TCP to reach X_p
    kArm,      // ACCEPT sent
    kSwitch,   // a SWITCH that waits for TCP to reach X_r
    kGot,      // GOT sent, or (R) COMMIT verified and GOT awaited
  };
  // Switches single rules off, so that tests show that they notice a broken
  // rule.
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
    kDeafToForgo = 16384,
  };

  // The most bytes that S may have staged behind a PROPOSE that C ignores.
  static constexpr std::size_t kMaxTie = 64 * 1024;

  // The result of a call that has moved nothing.
  static ssize_t Nothing() { return base::TakeFault() ? -EFAULT : -EAGAIN; }

  // The application's calls (stream.cc).
  ssize_t WriteSlow(const iovec* iov, int count, std::size_t total);
  ssize_t ReadSlow(const iovec* iov, int count, std::size_t total, bool peek);
  // One look at all that there is to read. If another look may find more, since
  // TCP has brought a frame or the end, returns nothing.
  std::optional<ssize_t> ReadOnce(const iovec* iov, int count,
                                  std::size_t total, bool peek);
  std::optional<ssize_t> ReadKernel(const iovec* iov, int count, bool peek);
  ssize_t WriteNow(const iovec* iov, int count, std::size_t total);
  ssize_t StageOrPost(const iovec* iov, int count, std::size_t total);
  // Limits the copy of what is staged while in PROP.
  std::size_t CopyLimit() const;
  std::size_t TakeBuffered(const iovec* iov, int count, std::size_t total,
                           bool peek);
  bool AtEof() const;
  // Ends every slow call: shutdown, close, settle, fast-path flags.
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
  void OnRaw(std::uint64_t offset);
  void OnFin(std::uint64_t offset, std::uint8_t flags);
  const Nonce& ConnectorNonce() const;
  const Nonce& AcceptorNonce() const;

  // Promotion (promote.cc).
  bool MayPropose() const;
  void ProposeAhead();
  bool Propose(const std::uint8_t* first);
  void OnPropose(const Ctl& ctl);
  void OnAccept(const Ctl& ctl);
  void OnSwitch(const Ctl& ctl);
  void CheckPending();
  void Withdraw();
  bool PostHeld();
  void BeginStaging();
  void Disarm();
  void TakeForgone();
  void OnArmBytes();
  void OnCommitFrame();
  void OnGot();

  // Demotion and failover (demote.cc).
  void Trigger(base::Reason reason);
  void LeaveIfAsked();
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
  // Rule 21. One byte more shows whether TCP ends there.
  bool StashIsFull() const { return stash_.size() > limits_.stash; }
  bool PeerIsDead() const;
  void OnTcpEnd(int error);
  bool SendsRaw() const;
  void PeerDied(int error, bool raw_tx);
  void SayUnread();
  void TakeBackUnread();
  bool TakeLastBytes(bool tcp_reset);
  int ErrorOfEnd(int error, bool raw_tx, bool raw_rx) const;
  bool MayHaveLeft() const;
  void TakeLeft();
  void Fail(base::Reason reason);

  void Emit(std::uint32_t changes) { changes_ |= changes; }
  bool LaneUsable() const { return lane_ != nullptr && !frozen_; }
  // In PROP: staged bytes stay here until the peer is proven.
  bool Holds() const { return !proven_ && (broken_ & kStageEarly) == 0; }
  // A stranger's bytes are not taken for the peer's last words.
  bool Trusted() const { return proven_ || (broken_ & kTrustEarly) != 0; }
  // Staged bytes are kept here: instead of in the ring, or beside it for a tie.
  bool Copies() const { return Holds() || role_ == Role::kAcceptor; }
  // Bytes accepted from the peer: those that the application took, and the
  // stash. Bytes that the application took, and that are still to come by TCP,
  // do not count.
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
  std::uint64_t tx_off_ = 0;  // accepted from the application
  std::uint64_t rx_off_ = 0;  // taken by it; both without quick_'s counts
  bool fast_tx_ = false;
  bool fast_rx_ = false;
  Role role_;
  Tx tx_ = Tx::kRaw;
  Rx rx_ = Rx::kRaw;
  base::Reason why_left_ = base::Reason::kNone;
  bool adopted_ = false;

  // State of the present lane.
  bool frozen_ = false;  // rule 11
  bool settled_ = false;
  bool leave_ = false;                               // within Demote
  base::Reason leaves_later_ = base::Reason::kNone;  // once in LANE
  bool may_propose_ = false;
  std::uint8_t min_tail_ = 0;
  std::uint64_t tail_from_ = 0;  // earlier raw bytes do not count
  // Probe: the offset confirmed so far, and the offset last asked about. Then
  // what the last answer said of landed and of acknowledged bytes, and how many
  // answers have said no more.
  std::uint64_t probed_ = 0;
  std::uint64_t probe_at_ = 0;
  std::uint64_t probe_landed_ = 0;
  std::uint64_t probe_acked_ = 0;
  std::uint8_t probe_stalled_ = 0;
  std::uint64_t ping_ns_ = 0;  // when pings_ was last lowered
  std::uint32_t pings_ = 0;    // pings that have come, less one for each second
  bool probe_out_ = false;
  bool probe_asked_ = false;  // by AskLanded
  bool landing_ = false;      // AwaitsLanding
  bool used_ = false;  // proposed or accepted: one attempt per lane (rule 1)
  bool flip_ =
      false;  // own PROPOSE's, or the peer's: the roles exclude each other
  bool got_sent_ = false;
  bool accept_ = false;  // ring bytes may be taken
  // The process at the lane's other end also holds the connection's other end.
  // That is known from the start, or by that process's ACCEPT (of min_tail_
  // bytes) or COMMIT.
  bool proven_ = true;
  bool lane_down_seen_ = false;
  bool left_comm_ = false;    // P has gone from COMM back to RAW
  bool says_unread_ = false;  // SayReset, for bytes that were read ahead
  Waiting waiting_ = Waiting::kNothing;
  std::uint8_t their_tail_ = 0;  // tail_len of the peer's PROPOSE
  std::uint32_t epoch_ = 0;
  Nonce mine_{};
  Nonce peers_{};
  std::uint64_t x_ = 0;            // own X_p or X_r
  std::uint64_t posted_base_ = 0;  // lane_->Posted() at x_
  std::uint64_t rx_x_ = 0;         // the peer's X, while waiting_ != kNothing
  // The staged bytes while in PROP, if Copies(). An unproven peer gets no
  // staged byte into the ring: the credit for it would be a stranger's claim.
  // On a tie C drops S's bytes from the ring, before S knows of the tie.
  ByteQueue copy_;
  // What waited in the ring, not trusted, when the lane was frozen, or what a
  // tie dropped. It is delivered only if TCP ends exactly at rx_x_: then the
  // peer died staging (rule 18).
  //
  // With returns_: what the application could read when the lane was left to
  // the peer, which sends these bytes again from rx_x_ on. The application may
  // have peeked at them, so it reads them here until the peer has gone raw. The
  // ahead_ bytes that it has read here come by TCP too, and are dropped there.
  // stash_ is empty then: the application has read it first.
  ByteQueue limbo_;
  bool returns_ = false;
  std::size_t ahead_ = 0;
  // left_known_: when the lane was frozen, the next byte in the ring was known
  // to be byte left_at_ of the stream. left_taken_: that byte is the
  // application's.
  bool left_known_ = false;
  bool left_taken_ = false;
  std::uint64_t left_at_ = 0;
  // For a lane whose memory outlives its process. told_left_: how far this end
  // has told the peer that it has left the lane. hands_over_: a user here waits
  // for the connection, and not for all that the peer sends again.
  lane::Lane::Left told_left_ = lane::Lane::Left::kNot;
  bool hands_over_ = false;
  // What was left to the peer, from kept_at_ on. These bytes come by TCP, and
  // the ring does not have all of them.
  ByteQueue kept_;
  std::uint64_t kept_at_ = 0;
  // This end has gone raw, and the peer has not.
  bool awaits_raw_ = false;
  // Own bytes that the peer has handed back, to go before those from x_ on; and
  // how many of them are still to come.
  ByteQueue back_;
  std::size_t back_left_ = 0;

  // Ends.
  bool shut_ = false;   // the application's shutdown or close
  bool kshut_ = false;  // the kernel's
  bool closed_ = false;
  bool reset_ = false;
  bool finished_ = false;
  bool fin_sent_ = false;
  bool fin_second_ = false;  // behind the peer's FIN
  bool fin_acked_ = false;
  bool ack_sent_ = false;
  bool pfin_known_ = false;
  bool pclosed_ = false;      // pfin_known_, and no application reads there
  bool end_seen_ = false;     // pfin_known_ by the lane's END
  bool fin_seen_ = false;     // pfin_known_ by FIN itself
  bool peer_resets_ = false;  // the peer has said RESET
  bool eof_ = false;          // TCP has ended
  bool tx_broken_ = false;    // no written byte can arrive
  bool last_write_ = false;   // tx_broken_, but TCP would not know it yet
  bool failed_ = false;       // the peer broke the rules
  int so_error_ = 0;          // reported once
  int send_error_ = 0;        // a frame's send has reported it: OnTcpEnd judges
                              // it
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
