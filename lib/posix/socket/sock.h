#ifndef RCSOCK_LIB_POSIX_SOCKET_SOCK_H_
#define RCSOCK_LIB_POSIX_SOCKET_SOCK_H_

#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <new>
#include <vector>

#include "lib/base/reason.h"
#include "lib/posix/socket/call_wait.h"
#include "lib/posix/socket/io_result.h"
#include "lib/posix/socket/sock_layout.h"
#include "lib/posix/socket/sock_number.h"
#include "lib/posix/thread/signals.h"
#include "lib/rendezvous/rendezvous.h"
#include "lib/stream/stream.h"

namespace rcsock::posix {

// A TCP connection of the application, or a socket that may become one: one for
// each open description.
//
// A Sock owns its Stream, its lane, and the bytes that were read ahead of the
// application.  It shares the memory of its link.  It does not own the anchor:
// the descriptors do, until CloseLast keeps a copy for the conductor.
//
// Threads: any thread may call any method, unless the method says otherwise.  A
// method takes tx_latch before rx_latch.  A transition of the stream takes
// both.  The caller of a public method holds neither latch, unless RC_REQUIRES
// says so.  Where a method only loads a member, the caller may hold them.  No
// thread sleeps with a latch.  The mode enters and leaves kEngine under both
// latches (I-MODE-1, I-MODE-2).
//
// Life: `fds` counts the descriptors.  `refs_` counts one reference for all
// descriptors together, and one for each other user, such as the conductor.  At
// zero the object goes back to the pool.  The pool never frees it.
//
// Parts: each has a header and private fields of its own, and an accessor of
// SockLayout, which owns it by value:
// - TCP: PlainCalls, TcpAnchor, AnchorWatch, KeptOptions, Ancillary,
//   ZeroCopyUse.
// - The way to a lane: LaneState, LaneSearch, PeerFacts, SendGate,
//   ProgramControl.
// - On a lane: LaneNotice, Sleepers, Starvation, RemoteLane, Tally.
// - The way back: WayBack, Settling, ReadAhead.
// - Several processes: Holders, ClaimKeeper, UnusedCopy, NotedShare,
//   AcrossExec.
// - The end: Ending, LeftCalls.
//
// Views have no fields, and a caller makes one where it needs it: Route, Looks,
// Answers, Settings, Placement, AfterFork.  What a call on a lane touches is no
// part, but lies in one cache line of SockLayout.
class Sock final : public SockLayout {
 public:
  // Returns a stream from the pool, not connected, with one reference, which is
  // the caller's.  Returns null if there is no memory.
  static Sock* New(stream::Role role, bool nonblock);
  // Adds a reference.  Requires that the caller has one.
  void Ref() { refs_.fetch_add(1, std::memory_order_relaxed); }
  // Takes a reference back.  The last one ends the stream, and gives the object
  // to the pool.
  void Unref();
  // Adds a reference for a caller that has none.  Returns false, and adds none,
  // if the object has no reference left.
  bool TryRef();

  // --- The application's calls: bytes or 0, or -1 with errno
  // In `flags` of Send: the call has sent a part before (LaterPart), so it has
  // nothing to restart.  Any handler ends such a call where the call would
  // sleep.  The kernel has no such flag.
  static constexpr int kLater = 1 << 24;
  // Send and Recv carry out a call on the number `fd` of this stream, wherever
  // the stream is.  `total` is the length of `iov`.  `raw` makes that call on
  // the kernel, and returns what the kernel returns.  Both return the bytes, or
  // -1 with errno.  They may sleep, unless a flag or O_NONBLOCK forbids it.
  template <class Raw>
  ssize_t Send(int fd, const iovec* iov, int count, std::size_t total,
               int flags, Raw&& raw);
  template <class Raw>
  ssize_t Recv(int fd, const iovec* iov, int count, std::size_t total,
               int flags, Raw&& raw);
  // A mark on a call into the kernel that may be under way when the stream is
  // to be adopted (sock_plain.h).  The mark stands from the construction to the
  // destruction, also if cancellation ends the call.  If a handler jumps out of
  // the call, a mark stands for good, and a count for the life of the
  // connection.
  class InKernel;
  // Keeps an error for the next call.  The kernel has reported the error to a
  // call on `fd` that had moved bytes before, and reports it once.  Ends a
  // search.  Does nothing if the kernel would report the error again, or if
  // `fd` is not this stream's any more.
  [[gnu::cold]] void KeepError(int fd, int error);
  // The longest message that QuickSend and QuickRecv take.
  static constexpr std::size_t kQuickMost = lane::shm::kRecordMax;
  // QuickSend and QuickRecv carry out a call of one record on a lane in shared
  // memory, with no flag but MSG_DONTWAIT (sock_quick.h).  `still` returns
  // whether the caller's number is this stream's.  They return what the call
  // returns, or 0 if nothing has happened: then the caller takes Send or Recv.
  template <class Still>
  ssize_t QuickSend(Still&& still, const void* from, std::size_t length);
  template <class Still>
  ssize_t QuickRecv(Still&& still, void* to, std::size_t length, int flags);
  // Carries out shutdown(2) on the number `fd`.  Returns 0, or -1 with errno.
  // Ends a search.  On TCP it pins the stream (HalfClosed).
  int Shutdown(int fd, int how);
  // Returns what the stream is, and what its connection has moved.
  StreamFacts FactsLatched() const RC_REQUIRES(tx_latch, rx_latch);

  // Returns where calls of the stream go.  Holds while the caller has a latch
  // (I-MODE-1).
  Mode mode(std::memory_order order = std::memory_order_acquire) const {
    return mode_.Read().load(order);
  }
  // Sets kUnread, or kPlain again.  Only a call that receives tells the two
  // apart (I-MODE-2).  For ReadAhead, which has the bytes.
  void SetUnread(bool unread) RC_REQUIRES(rx_latch);
  // Returns the engine's stream, or null if the engine does not have it.
  // Requires either latch.
  stream::Stream* engine() const {
    return mode() == Mode::kEngine ? stream_.get() : nullptr;
  }
  // Returns the number by which rcsock uses the anchor, or -1.
  int fd() const { return anchor_.number(); }
  // Returns the stream's lane, or null.  Without a latch the lane may go at any
  // moment.
  lane::Lane* lane() const { return lane_.get(); }
  // Returns whether the number is this stream's.  The answer holds for as long
  // as the caller holds a latch of this stream, or a mark (fd_table).
  bool IsAt(int fd) const {
    if (Entry(fd) == this) [[likely]]
      return true;
    return Named(fd) == this;
  }
  // Returns whether both directions are on the lane, and the stream is not
  // leaving.
  bool OnLane() const { return on_lane_.load(std::memory_order_acquire); }

  // --- For its parts
  // Acts on what the stream reports as changed.
  void HandleChanges() RC_REQUIRES(tx_latch, rx_latch);
  // Wakes the threads that wait for room if `tx`, or else for input.  Requires
  // either latch.
  void Wake(bool tx);
  // Acts on what a poller has found for the stream: control messages, a dead
  // lane.
  void OnCompletion() RC_EXCLUDES(interest_latch);
  // Ends a call that PlainCalls::Enter has counted.  The last one finishes an
  // adoption that waits for it.
  void LeaveCall(std::uint32_t entered);
  // Ends the adoption, once the stream's registrations are in user space.
  void Moved();
  // Gives the stream to the kernel, if it has left its lane and the kernel may
  // have it.  Returns whether it did.
  bool BackToPlain() RC_EXCLUDES(tx_latch, rx_latch, interest_latch);
  // Takes the lane from a stream that needs it no more.
  std::unique_ptr<lane::Lane> TakeLane() RC_REQUIRES(tx_latch, rx_latch);
  // The connection is over: no call goes to the engine any more.
  void EndEngine(rendezvous::Conductor* conductor)
      RC_REQUIRES(tx_latch, rx_latch);

 private:
  // The pool, and the parts and views that use private members.
  friend struct SockPool;
  friend class AfterFork;
  friend class Ending;
  friend class Looks;
  friend class Placement;
  friend class SendGate;

  // The part of Wake for threads that wait for this stream alone.
  void WakeThreads(bool tx);
  // Makes an edge for each registration that asks for what the stream itself,
  // without the kernel's queue, has: input (`rx`), room (`tx`), its end.
  void TellLatched(bool rx, bool tx) RC_REQUIRES(tx_latch, rx_latch);

  // --- rendezvous::Seeker, AnchorWatcher
  // lib/rendezvous/rendezvous.h says what these do.  The conductor calls them,
  // by its own interfaces, and holds no latch.
  stream::Role role() const override { return peer_.role(); }
  bool MayShm() const override { return peer_.terms().shm; }
  bool MayRdma() const override { return peer_.terms().rdma; }
  bool Names(sockaddr_storage* local, sockaddr_storage* peer) override;
  int Descriptor() override;
  void DescriptorUsed() override;
  std::uint8_t TrafficClass(bool v4) override;
  void Adopt() override;
  void OnLink(std::shared_ptr<lane::shm::Link> link, int index) override;
  void LaneOpen(std::unique_ptr<lane::Lane> lane, std::uint32_t epoch,
                const stream::Nonce& mine, const stream::Nonce& peers,
                bool authenticated) override;
  int Bell() override;
  bool TakePlace(base::Reason* why) override { return remote_.TakePlace(why); }
  void LeavePlace() override { RdmaBudget::LeavePlace(); }
  void SeekFailed(base::Reason reason, bool final) override;
  void LinkLost(base::Reason reason) override;
  void OnAnchor(std::uint32_t events) override;

  using Wait = CallWait;
  // Returns whether the object became another connection during a sleep.
  bool GoneSince(Wait& wait, int fd) const {
    if (wait.life == calls_.Life()) [[likely]]
      return false;
    return GoneSinceToo(wait, fd);
  }
  [[gnu::cold, gnu::noinline]] bool GoneSinceToo(Wait& wait, int fd) const;

  // Enters or leaves kEngine.
  void SetMode(Mode mode) RC_REQUIRES(tx_latch, rx_latch) {
    RC_DCHECK(mode != Mode::kEngine || this->mode() == Mode::kPlain);
    mode_.Write(tx_latch, rx_latch).store(mode, std::memory_order_seq_cst);
  }
  // Checks I-LANE-1 and I-LANE-2.  Requires either latch.
  void CheckQuick() const {
    RC_DCHECK(lane_state_.InEngine() == (mode() == Mode::kEngine));
    RC_DCHECK(!(quick_.may_send || quick_.may_receive) ||
              (mode() == Mode::kEngine && stream_.get() != nullptr &&
               lane_.get() != nullptr));
  }

  // --- Its life (sock.cc)
  Sock();
  static void* operator new(std::size_t size, const std::nothrow_t&) noexcept;
  // Makes the object another connection.  Requires that no other thread knows
  // the stream.
  void Reset();
  void ResetSettings();
  void ResetPath() RC_REQUIRES(tx_latch, rx_latch);
  void ResetEngine() RC_REQUIRES(tx_latch, rx_latch);
  void ResetLife() RC_REQUIRES(tx_latch, rx_latch);
  void ResetSharing() RC_REQUIRES(tx_latch, rx_latch);
  // The last reference is gone.  EndsOnTcp returns whether nothing is left to
  // end: the stream has been on TCP alone, and is accounted for.
  bool EndsOnTcp() const;
  void EndLast();
  // Of a stream that Ending::EndLone ends.  EndsLone returns whether it may:
  // `number` is all that names the stream, nothing is left to end, and no call
  // is inside.  GiveLone gives the object to the pool.
  bool EndsLone(int number) const;
  void GiveLone();

  // --- Calls of a stream on TCP (sock_plain.h)
  // Counts `n` bytes of a call.  `entered`: what Enter has returned, or null.
  void Count(PlainCalls::Way way, ssize_t n, const std::uint32_t* entered);

  // --- Looking for a lane, and adoption (sock_seek.cc, sock_control.cc)
  bool AwaitsAnswer() const {
    return lane_state_.Seeking(LaneState::kWeak) && peer_.local();
  }
  // What came of an adoption.  kNotYet: a later call tries again.  kNever: the
  // search is to be given up.
  enum class Adoption : std::uint8_t { kDone, kNotYet, kNever };
  Adoption TakeFromKernelLatched() RC_REQUIRES(tx_latch, rx_latch);
  void BeginEngineLatched() RC_REQUIRES(tx_latch, rx_latch);
  // The parts of LaneOpen.
  struct Opening {
    std::uint32_t epoch;
    const stream::Nonce& mine;
    const stream::Nonce& peers;
    bool authenticated;
  };
  bool MayOpenLatched() RC_REQUIRES(tx_latch, rx_latch);
  void OpenLatched(std::unique_ptr<lane::Lane> lane, const Opening& by)
      RC_REQUIRES(tx_latch, rx_latch);
  [[gnu::noinline]] void LastOut();
  bool TryAdopt() RC_EXCLUDES(tx_latch, rx_latch, interest_latch);
  // Tells the peer of the adoption, if the registrations are in user space.
  void SayAdopted() RC_EXCLUDES(tx_latch, rx_latch, interest_latch);
  // Returns whether bytes of the connection went past rcsock.  A program with
  // librcsock may also make plain calls.
  bool UsedPastUs() RC_REQUIRES(tx_latch, rx_latch);

  // --- Bytes by way of the engine (sock_io.cc)
  // Returns the stream that the number names, or null.
  static Sock* LookupHere(int fd);
  IoResult EngineSend(int fd, const iovec* iov, int count, std::size_t total,
                      int flags, std::size_t* done);
  IoResult EngineRecv(int fd, const iovec* iov, int count, std::size_t total,
                      int flags, std::size_t* done);
  // Continue EngineSend and EngineRecv when not everything went at once.
  // Require the latch of the direction, and release it.
  [[gnu::noinline]] IoResult SendLatched(int fd, const iovec* iov, int count,
                                         std::size_t total, int flags,
                                         std::size_t* done)
      RC_RELEASE(tx_latch);
  [[gnu::noinline]] IoResult RecvLatched(int fd, const iovec* iov, int count,
                                         std::size_t total, int flags,
                                         std::size_t* done)
      RC_RELEASE(rx_latch);
  // Return what the kernel would say of an address that a lane cannot read or
  // write.
  [[gnu::noinline]] IoResult SendNull(int fd, int flags, std::size_t* done);
  [[gnu::noinline]] IoResult RecvNull(int fd, const iovec* iov, int count,
                                      int flags, std::size_t* done);
  // The parts of SendLatched and RecvLatched.
  struct SendCall;
  struct RecvCall;
  enum class Turn : std::uint8_t { kEnds, kLooks, kWaits };
  void WriteSome(SendCall& call) RC_REQUIRES(tx_latch);
  [[gnu::noinline]] void WriteWithBoth(SendCall& call) RC_REQUIRES(tx_latch);
  IoResult::Status ReadSome(RecvCall& call, int fd) RC_REQUIRES(rx_latch);
  [[gnu::noinline]] IoResult::Status ReadWithBoth(RecvCall& call, int fd)
      RC_REQUIRES(rx_latch);
  Turn NextTurn(RecvCall& call) RC_REQUIRES(rx_latch);
  int WaitForMore(RecvCall& call, std::uint32_t seq) RC_REQUIRES(rx_latch);
  IoResult LeaveRecv(bool peek, IoResult::Status status, std::size_t* done)
      RC_RELEASE(rx_latch);
  // Sends the rest of a blocking send that began on a lane.
  ssize_t SendRest(int fd, const iovec* iov, int count, std::size_t skip,
                   int flags);
  // Receives the rest of a MSG_WAITALL that began on a lane.  Returns bytes, or
  // -1 if none came.
  ssize_t RecvRest(int fd, const iovec* iov, int count, std::size_t skip,
                   int flags);
  // Takes bytes for MSG_TRUNC without a lane, and forgets them.
  ssize_t Drop(std::size_t limit, bool peek) RC_REQUIRES(tx_latch, rx_latch);

  // --- Sleeps on the stream (sock_wait.cc)
  // The waits require the latch of the direction, and hold it on return;
  // SleepOn releases it for the sleep.  Return 0 to look again, -EINTR, -EAGAIN
  // after the time, or kJoinsLeft.  kJoinsLeft: the number was closed under the
  // sleep, and the call goes on by RecvLeft or SendLeft.
  static constexpr int kJoinsLeft = 1;
  void Begin(Wait& wait, const std::atomic<std::uint64_t>& timeout_ns) const;
  int WaitRx(Wait& wait, std::uint32_t seq) RC_REQUIRES(rx_latch);
  void CountForSpin() RC_REQUIRES(rx_latch);
  int WaitBehind(Wait& wait, std::uint32_t seq) RC_REQUIRES(rx_latch);
  // Waits for the rest of a send whose beginning has been read.
  int WaitRest(Wait& wait, std::uint32_t seq) RC_REQUIRES(rx_latch);
  int WaitTx(Wait& wait, std::uint32_t seq) RC_REQUIRES(tx_latch);
  // Not inlined: its frame must lie below the frames of its callers
  // (CountedSleep).
  [[gnu::noinline]] int SleepOn(Wait& wait, bool tx, std::uint32_t token,
                                std::uint32_t seq, lane::Lane* lane);
  // Returns false if the call is not to sleep after all.
  bool MayBlock(const Wait& wait);

  // --- What has changed (sock_events.cc)
  // The parts of HandleChanges.
  void OnPromoted() RC_REQUIRES(tx_latch, rx_latch);
  void OnLeftLane() RC_REQUIRES(tx_latch, rx_latch);
  void SetTimer(std::uint32_t changes) RC_REQUIRES(tx_latch, rx_latch);
  // `was_there`: the stream was on its lane, and not only on the way there.
  void CountLeave(bool was_there) RC_REQUIRES(tx_latch, rx_latch);
  void UpdateWatch() RC_REQUIRES(tx_latch, rx_latch);
  void OnTimer() RC_EXCLUDES(tx_latch, rx_latch);

  // --- Back to TCP (sock_leave.cc)
  // The parts of BackToPlain.  LeavesEngineLatched returns whether the kernel
  // may have the stream.  It sets *spilled if bytes that were read ahead lie in
  // read_ahead_ now.
  bool LeavesEngineLatched(bool* spilled) RC_REQUIRES(tx_latch, rx_latch);
  void LeaveEngineLatched(bool spilled) RC_REQUIRES(tx_latch, rx_latch);
  // Puts bytes that were read ahead into read_ahead_ (sock_unread.cc).  Returns
  // false if others hold the stream, or there is no memory.
  bool SpillLatched() RC_REQUIRES(tx_latch, rx_latch);

  // --- Calls under whose sleep the number was closed (sock_left.cc)
  [[gnu::cold]] IoResult RecvLeft(const iovec* iov, int count,
                                  std::size_t total, int flags,
                                  std::size_t* done);
  [[gnu::cold]] IoResult SendLeft(const iovec* iov, int count,
                                  std::size_t total, int flags,
                                  std::size_t* done);

  // --- Bytes that were read ahead and are shared (sock_unread.cc)
  IoResult UnreadRecv(int fd, const iovec* iov, int count, std::size_t total,
                      int flags, std::size_t* done);
  // The parts of UnreadRecv.
  struct UnreadCall;
  void TakeUnread(UnreadCall& call) RC_REQUIRES(rx_latch);
  void CountUnread(const UnreadCall& call, ssize_t n);
  IoResult RecvBehindUnread(const UnreadCall& call);
  // Returns whether a completion of MSG_ZEROCOPY waits to be read.
  bool Completions() const {
    return completions_.load(std::memory_order_relaxed);
  }
};

// Holds both latches of a stream, and holds back the signals of this thread.
class RC_SCOPED_CAPABILITY Latched {
 public:
  explicit Latched(Sock* sock) RC_ACQUIRE(sock->tx_latch, sock->rx_latch)
      RC_EXCLUDES(interest_latch)
      : sock_(sock) {
    sock->tx_latch.lock();
    sock->rx_latch.lock();
  }
  ~Latched() RC_RELEASE() {
    sock_->rx_latch.unlock();
    sock_->tx_latch.unlock();
  }
  Latched(const Latched&) = delete;
  Latched& operator=(const Latched&) = delete;

 private:
  Critical critical_;
  Sock* const sock_;
};

// Tell the analysis that the caller holds both latches of the stream, or that
// no other thread knows the stream.
inline void AssertLatched(const Sock* sock)
    RC_ASSERT_HELD(sock->tx_latch, sock->rx_latch) {
  sock->tx_latch.AssertHeld();
  sock->rx_latch.AssertHeld();
}
inline void AssertUnshared(const Sock* sock)
    RC_ASSERT_HELD(sock->tx_latch, sock->rx_latch) {
  sock->tx_latch.AssertUnshared();
  sock->rx_latch.AssertUnshared();
}

// Share returns a reference, for a caller that has one.  Hold returns one for a
// caller that has none, or null if the last reference has gone.
std::shared_ptr<Sock> Share(Sock* sock);
std::shared_ptr<Sock> Hold(Sock* sock);

// Raises SIGPIPE in this thread, as a write to a closed connection does.
void RaiseSigpipe();

// Take and release, around fork, the latches that no object owns.
void SockForkLock();
void SockForkUnlock(bool child);

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_SOCKET_SOCK_H_
