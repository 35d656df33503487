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
#include "lib/posix/socket/io_result.h"
#include "lib/posix/socket/sock_answers.h"
#include "lib/posix/socket/sock_layout.h"
#include "lib/posix/socket/sock_number.h"
#include "lib/posix/socket/sock_place.h"
#include "lib/posix/thread/signals.h"
#include "lib/rendezvous/rendezvous.h"
#include "lib/stream/stream.h"

namespace rcsock::lane::rdma {
class QpLane;
}

namespace rcsock::posix {

struct Holding;
struct Interest;
struct Successor;

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
  // nothing to restart.  Any handler ends it where it would sleep.  The kernel
  // has no such flag.
  static constexpr int kLater = 1 << 24;
  // Send and Recv carry out a call on the number `fd` of this stream, wherever
  // the stream is.  `total` is the length of `iov`.  `raw` makes that call on
  // the kernel, and returns what the kernel returns.  Return the bytes, or -1
  // with errno.  They may sleep, unless a flag or O_NONBLOCK forbids it.
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
  // Returns what carries out a call whose flags do not matter.  kKernels: the
  // kernel alone, see Kernels.  kPlain: the kernel, if InKernel::May agrees.
  // kWanted: neither is certain, since the engine has the stream or a lane is
  // awaited.
  LaneState::Call WhoseCall() const {
    return mode() == Mode::kPlain ? lane_state_.ForCall()
                                  : LaneState::Call::kWanted;
  }
  // Returns whether a lane may take what is sent next, even if none has it now.
  bool MayTakeLane() const {
    return mode() == Mode::kEngine || lane_state_.MayTakeLane(LaneState::kWeak);
  }
  // Returns whether rcsock carries out the requests of io_uring on the stream.
  // After kMostOnTcp calls on TCP without a lane, the kernel does.
  bool MayBeCarried() const {
    constexpr std::uint32_t kMostOnTcp = 4096;
    return MayTakeLane() &&
           (mode() == Mode::kEngine || calls_.count() < kMostOnTcp);
  }
  // Returns whether no lane will ever come, and nothing is left over from one.
  // Then a call goes to the kernel, and Sent or Received gets its result.
  bool Kernels() const {
    return lane_state_.Never(LaneState::kWeak) && mode() == Mode::kPlain;
  }
  // Sent and Received count `n` bytes of such a call, and return `n`.
  ssize_t Sent(ssize_t n);
  ssize_t Received(ssize_t n);
  // Keeps an error for the next call.  The kernel has reported the error to a
  // call on `fd` that had moved bytes before, and reports it once.  Ends a
  // search.  Does nothing if the kernel would report the error again, or if
  // `fd` is not this stream's any more.
  [[gnu::cold]] void KeepError(int fd, int error);
  // The longest message that QuickSend and QuickRecv take.
  static constexpr std::size_t kQuickMost = lane::shm::kRecordMax;
  // Returns whether data lies in the ring of a working lane, so that Readiness
  // would return POLLIN and nothing else.  False means that the caller asks
  // Readiness.  Requires a Critical.
  bool HasInput();
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
  // Ends the stream, whose last descriptor is `fd`.  On return `fd` is closed,
  // or names what `next` says.  Returns what close or dup2 returns, with errno.
  // Takes the descriptors' reference.  Requires that `fds` has become 0.  It
  // waits for the peer only where SO_LINGER asks for that.
  int CloseLast(int fd, const Successor& next);
  // Takes the number `fd` from a stream that has other numbers.  If fd() was
  // `fd`, the stream goes on by another number.  May pin a stream that has
  // registrations by `fd`.  Requires that `fds` no longer counts the number.
  void LoseFd(int fd) RC_EXCLUDES(interest_latch);
  // Ends the stream after its last descriptor was closed past rcsock.  Takes
  // the descriptors' reference.
  void Vanished();
  // In the result of Readiness, if `events` asks for it: there is something to
  // read in the ring itself, and nothing before it in the stash.  A look at the
  // ring alone finds it.
  static constexpr std::uint32_t kInRing = 1u << 16;
  // Returns whether the lane's next message is no data, so that it may be the
  // peer's end.
  bool EndNext() RC_EXCLUDES(tx_latch, rx_latch, interest_latch);
  // As EndNext, for a caller that holds the rx_latch.
  bool EndNextLatched() const RC_REQUIRES(rx_latch);
  // Returns whether the stream is on a lane that takes more.  If `number` is
  // not -1, it must be this stream's.  If `lane` is not null, it must be this
  // stream's lane.  Requires a Critical.
  bool HasRoom(int number, const lane::Lane* lane);
  // If EndNext, takes the peer's end, and makes the edge that follows from it.
  void TakeEnd() RC_EXCLUDES(tx_latch, rx_latch, interest_latch);
  // Returns those of `events`, and of POLLERR and POLLHUP, that hold now.
  // `number` must be this stream's, or -1 if the caller keeps the stream by a
  // reference.  If the engine does not have the stream, or `number` is another
  // stream's, sets *plain and returns 0.  `drained`: the caller has just
  // drained source().  May take an end, and watch for room.
  std::uint32_t Readiness(int number, std::uint32_t events, bool* plain,
                          bool drained = false) {
    const std::uint32_t ready = EngineReadiness(number, events, plain, drained);
    if (Completions() && !*plain) [[unlikely]]
      return ready | POLLERR;
    return ready;
  }
  // Returns what Readiness would, for a stream on a lane.  Returns kNotLooked
  // if only Readiness can tell.  Requires a Critical.
  static constexpr int kNotLooked = -1;
  int QuickLook(int number, int events, bool drained);
  // Tells this thread's SpinAccount what the stream has sent.
  void CountForPoll();
  // Bounds what a lane takes, after the program has set SO_SNDBUF.
  void BoundSends();

  // --- Parts, each with a header of its own
  LaneState& lane_state() { return lane_state_; }
  PlainCalls& calls() { return calls_; }
  Holders& holders() { return holders_; }
  LaneNotice& notice() { return notice_; }
  Tally& tally() { return tally_; }
  WayBack& way_back() { return way_back_; }
  ReadAhead& read_ahead() { return read_ahead_; }
  Answers answers() { return Answers(this); }
  ProgramControl& control() { return control_; }
  TcpAnchor& anchor() { return anchor_; }
  KeptOptions& options() { return options_; }
  Ancillary& ancillary() { return ancillary_; }
  ZeroCopyUse& zero_copy() { return zero_copy_; }
  ClaimKeeper& claim() { return claim_; }
  UnusedCopy& copy() { return copy_; }
  NotedShare& noted() { return noted_; }
  AcrossExec& across_exec() { return across_exec_; }
  SendGate& send_gate() { return send_gate_; }
  Placement placement() { return Placement(this); }

  // Returns what the stream is, and what its connection has moved.
  StreamFacts FactsLatched() const RC_REQUIRES(tx_latch, rx_latch);

  // Drops the bytes that were read ahead.  Requires a pinned stream, whose
  // connection the kernel has ended by connect() to no address.
  void Disconnected() RC_EXCLUDES(interest_latch);
  // --- Set by the hooks
  // Learns the peer's address, and applies the rules for that peer.  `fd` is
  // the stream's number.  Requires that the role is set.
  void SetPeer(int fd, const sockaddr* address, socklen_t length);
  void SetRole(stream::Role role) { role_ = role; }
  bool HasLocalPeer() const {
    return local_peer_.load(std::memory_order_relaxed);
  }
  // Notes that the socket listens, at the address of `fd`.
  void SetListening(int fd);
  // Begins a search, if the past of the stream's service promises that a lane
  // is worth it.  Requires a stream that has just been connected, and whose
  // number is known.
  void SeekIfWorth() {
    if (lane_state_.AtOnce()) [[unlikely]]
      SeekAfterCall();
  }
  // Takes over what an accepted socket inherits from its listener.  Requires
  // that no other thread knows this stream.
  void Inherit(const Sock& listener);
  // As Inherit, from a listener that this process was started with.  `number`
  // is the accepted socket's.
  void InheritFromUnknown(int number);
  // Lets searches begin, unless something speaks against a lane.  The stream is
  // connected, or what kept it on TCP is over.
  void AllowLane();

  // EnterKernelWait notes that a thread is about to wait in the kernel for a
  // stream on TCP.  Adoption would take away what the thread waits for, so
  // adoption comes after LeaveKernelWait.  Returns kEntered if the wait is
  // noted: then the caller passes *entered to LeaveKernelWait.  Returns
  // kNotNeeded if no adoption may come, and kNotTheKernels if the engine has
  // the stream.
  enum class KernelWait : std::uint8_t { kNotNeeded, kEntered, kNotTheKernels };
  KernelWait EnterKernelWait(std::uint32_t* entered);
  void LeaveKernelWait(std::uint32_t entered);

  // Returns where calls of the stream go.  Holds while the caller has a latch
  // (I-MODE-1).
  Mode mode() const { return mode_.Read().load(std::memory_order_acquire); }
  // Returns the number by which rcsock uses the anchor, or -1.
  int fd() const { return anchor_.number(); }

  // --- Readiness (interests.cc, poll.cc)
  // Ends the adoption, once the stream's registrations are in user space.
  void Moved();
  // Returns the stream's lane, or null.  Without a latch the lane may go at any
  // moment.
  lane::Lane* lane() const { return lane_.get(); }
  // Returns whether the application has closed the last descriptor.
  bool Closed() const { return closed_.load(std::memory_order_seq_cst); }
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
  // Returns whether OnLane holds, and this end has not shut down.  Then a
  // thread that waits for input may take the peer's end for input, and finds
  // the end when it reads.  Otherwise the peer's end ends the connection, and
  // EPOLLHUP comes with it.
  bool TellsInputAlone() const {
    return input_alone_.load(std::memory_order_acquire);
  }
  // Sleeps where a read of the stream would sleep, so that the peer wakes this
  // thread directly.  Requires a caller that waits for input here alone.
  // Returns true after input may have come, after a handler has run since the
  // caller read tls_signals.any as `signals`, or after the deadline; 0: no
  // deadline.  Returns false, without a sleep, if the stream is not on a lane
  // in full.
  bool SleepForInput(int number, std::uint64_t deadline_ns,
                     std::uint32_t signals);

  // --- Processes (process.cc)
  // Returns whether an error comes behind the bytes of ReadAhead, or a
  // completion of MSG_ZEROCOPY waits in the error queue.
  bool HasError() RC_EXCLUDES(interest_latch);
  // Takes over bytes of ReadAhead from `memory`, in the program that was
  // executed.  The anchor has the inode number of their connection then.
  // Returns false if `memory` has none.  Requires that no other thread knows
  // the stream.
  bool InheritUnread(int memory);
  // --- For a program about to be executed that will follow it (handover.cc)
  // Returns the stream of the Holding `number`, in the program that was
  // executed.  `fd` is a descriptor of the connection.  Returns null if there
  // is no such connection, or no memory.
  static Sock* Inherited(int number, int fd);
  // Makes the stream what it is in the child of a fork.  Requires that the
  // child has no other thread.  A stream that the engine had is the parent's
  // alone.
  void ForkChild();
  // In the child, after all ForkChild: closes the number by which the stream
  // went on for sleeping calls.  These calls are the parent's.
  void ForgetLeft();
  // Returns whether the engine has the stream, or a search is under way.
  bool Engaged() const {
    return mode() == Mode::kEngine || lane_state_.Seeking();
  }

 private:
  friend struct SockPool;
  friend class TcpAnchor;
  friend class ClosedStreams;
  friend class UnusedCopy;
  friend class SendGate;
  friend class AcrossExec;
  friend class NotedShare;
  friend class ZeroCopyUse;
  friend class Placement;
  friend class RemoteLanes;
  friend class WayBack;
  friend class ProgramControl;
  friend class Answers;

  // --- rendezvous::Seeker, AnchorWatcher
  // lib/rendezvous/rendezvous.h says what these do.  The conductor calls them,
  // by its own interfaces, and holds no latch.
  stream::Role role() const override { return role_; }
  bool MayShm() const override { return terms_.shm; }
  bool MayRdma() const override { return terms_.rdma; }
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
  bool TakePlace(base::Reason* why) override;
  void LeavePlace() override;
  void SeekFailed(base::Reason reason, bool final) override;
  void LinkLost(base::Reason reason) override;
  void OnAnchor(std::uint32_t events) override;
  struct Wait {
    std::uint64_t deadline_ns = 0;  // 0: none
    std::uint32_t signals = 0;
    bool timed = false;
    // The call is a poll: any handler ends it, whatever the handler's flags
    // are.
    bool poll = false;
    // The call has moved something, which is its result.  Any handler ends the
    // call, since it has nothing to restart.
    bool part = false;
    // The part was moved by an earlier step: a handler counts from the call's
    // begin.
    bool later = false;
    std::uint32_t any = 0;  // as `signals`, for all handlers
    // The connection that the call waits for, and the process.
    std::uint32_t life = 0;
    long process = 0;
  };
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
  // Sets kUnread, or kPlain again.  Only a call that receives tells the two
  // apart (I-MODE-2).
  void SetUnread(bool unread) RC_REQUIRES(rx_latch);
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
  void ApplyRules(int fd, const sockaddr* address);
  void TryAgainLater();
  void LookAfterAsMuch();
  void Foresee();
  // Puts the next search at the thresholds above these counts.
  void NextLook(std::uint32_t ops, std::uint64_t bytes);
  std::shared_ptr<Sock> Share();

  // --- Calls of a stream on TCP (sock_plain.h)
  // Ends a call that PlainCalls::Enter has counted.  The last one finishes an
  // adoption that waits for it.
  void LeaveCall(std::uint32_t entered);
  // Counts `n` bytes of a call.  `entered`: what Enter has returned, or null.
  void Count(PlainCalls::Way way, ssize_t n, const std::uint32_t* entered);
  // Counts for the statistics alone.  The object may already be another
  // connection.
  void CountOnly(PlainCalls::Way way, ssize_t n);

  // --- Looking for a lane, and adoption (sock_seek.cc, sock_control.cc)
  [[gnu::noinline]] void SeekAfterCall();
  void StartSeek();
  // The parts of StartSeek.  AloneToSeek returns whether no other process holds
  // the connection; if one does, a later call asks again.  MayAsk returns
  // whether the search that has begun goes on; if not, it has given it up.
  bool AloneToSeek();
  bool MayAsk();
  static void Introduce(rendezvous::Conductor* conductor);
  // Ends a search, without a lane.
  void EndSearchLatched() RC_REQUIRES(tx_latch, rx_latch);
  // Returns whether the peer has another host's address.
  bool SeeksRemote() const;
  // Returns whether the peer may be found in the meeting directory: it may be
  // of another network namespace of this host.
  bool MayMeetFar() const;
  // Returns whether the stream's lane would be an RDMA lane, and no other.
  bool SeeksRdma() const;
  void CancelSeek() RC_EXCLUDES(interest_latch);
  // Takes the peer's answer in the conductor's place, while it is awaited.
  [[gnu::noinline]] void LookForAnswer() RC_EXCLUDES(tx_latch, rx_latch);
  bool AwaitsAnswer() const {
    return lane_state_.Seeking(LaneState::kWeak) &&
           local_peer_.load(std::memory_order_relaxed);
  }
  bool NobodyInside() const;
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
  // Returns whether bytes of the connection went past rcsock.  A program with
  // librcsock may also make plain calls.
  bool UsedPastUs() RC_REQUIRES(tx_latch, rx_latch);
  // Takes over the options that plain calls may have set.
  void LearnOptions(int number);

  // --- A send waits for the lane that is about to come (sock_hold.cc)
  // Returns how many bytes of the application TCP has got.
  std::uint64_t GivenToTcp();
  // Waits until SendGate::AwaitsLane changes, or as SleepOn.
  int AwaitLane(Wait& wait, std::uint64_t until_ns);
  // Sends at most `most` bytes from `skip` on, as much as TCP has room for.
  // `bytes` of an error is -errno.
  IoResult SendNow(int fd, const iovec* iov, int count, std::size_t skip,
                   std::size_t most);
  // Wakes threads in AwaitLane: what SendGate::AwaitsLane says has
  // changed.
  void WakeHeld();

  // --- Bytes by way of the stream (sock_io.cc)
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
  // Returns the error that a stream in kUnread has kept for a call, and clears
  // it.  Returns 0 if there is none.
  [[gnu::cold]] int TakeKept();
  int TakeKeptLatched() RC_REQUIRES(rx_latch);
  // Takes bytes for MSG_TRUNC without a lane, and forgets them.
  ssize_t Drop(std::size_t limit, bool peek) RC_REQUIRES(tx_latch, rx_latch);
  // Returns whether TCP's end is not yet the stream's.
  bool HoldsEnd() const;
  // Returns whether what the engine reads from TCP is the application's.
  bool ReadsRaw() const RC_REQUIRES(rx_latch) {
    return stream_->rx() == stream::Rx::kRaw;
  }

  // --- Sleeping on it (sock_wait.cc)
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
  void OnStarved() RC_EXCLUDES(tx_latch, rx_latch);
  void WatchStarved() RC_REQUIRES(tx_latch);
  // A stream has left its lane because its receiver did not read.  These
  // offsets say what the sender has moved since.
  struct Starved {
    std::uint64_t left_at;  // offset when the stream left
    std::uint64_t seen_at;  // offset at the last look
    int looks = 0;
  };
  void JudgeSoon(Starved starved);
  void JudgeStarved(Starved starved);
  // At the receiving end: whether the peer leaves because no thread reads here.
  bool RingIsFull() const;

  // --- What it is ready for (sock_state.cc, sock_zero_copy.cc)
  std::uint32_t EngineReadiness(int number, std::uint32_t events, bool* plain,
                                bool drained);
  // The parts of EngineReadiness.  RingReadinessLatched tells what the ring
  // alone tells.  It sets *fast if the lane works, and the next message is no
  // end, and *end if that may be an end.
  std::uint32_t RingReadinessLatched(std::uint32_t events, bool drained,
                                     bool* fast, bool* end)
      RC_REQUIRES(rx_latch);
  std::uint32_t WholeReadinessLatched(std::uint32_t events)
      RC_REQUIRES(tx_latch, rx_latch);
  // As TakeEnd.  If TCP has closed the anchor, takes that end, too, and returns
  // true.
  bool TakeTcpEnd() RC_EXCLUDES(tx_latch, rx_latch, interest_latch);
  // Returns what FIONREAD says of a stream that the engine has, or in kUnread.
  std::size_t ReadableLatched() RC_REQUIRES(tx_latch, rx_latch);
  // Returns whether the end, or urgent data, follows what TCP has.
  bool TcpEndsNext() RC_REQUIRES(rx_latch);

  // --- What has changed (sock_events.cc)
  // Acts on what a poller has found for the stream: control messages, a dead
  // lane.
  void OnCompletion(std::uint32_t flags) RC_EXCLUDES(interest_latch);
  // Acts on what the stream reports as changed.
  void HandleChanges() RC_REQUIRES(tx_latch, rx_latch);
  // The parts of HandleChanges.
  void OnPromoted() RC_REQUIRES(tx_latch, rx_latch);
  void OnLeftLane() RC_REQUIRES(tx_latch, rx_latch);
  void SetTimer(std::uint32_t changes) RC_REQUIRES(tx_latch, rx_latch);
  // `was_there`: the stream was on its lane, and not only on the way there.
  void CountLeave(bool was_there) RC_REQUIRES(tx_latch, rx_latch);
  void UpdateWatch() RC_REQUIRES(tx_latch, rx_latch);
  void WakeRx();
  void WakeTx();
  void OnTimer() RC_EXCLUDES(tx_latch, rx_latch);

  // --- Back to TCP (sock_leave.cc, sock_options.cc)
  bool IsHalfClosed() RC_EXCLUDES(tx_latch, rx_latch, interest_latch);
  // Pins a stream that is half closed.
  void HalfClosed() RC_REQUIRES(tx_latch, rx_latch);
  // Settle runs on the conductor's thread.  It gives the lane back, then the
  // anchor to the kernel, or ends the stream.  PostSettle has it called.
  void PostSettle();
  void Settle() RC_EXCLUDES(tx_latch, rx_latch, interest_latch);
  // The parts of Settle.  GiveLaneBack returns false if threads sleep on two
  // lanes; then Settle is called again.  TakeLaneLatched returns null if the
  // lane is parked, since threads sleep on it.
  bool GiveLaneBack(rendezvous::Conductor* conductor)
      RC_EXCLUDES(tx_latch, rx_latch, interest_latch);
  std::unique_ptr<lane::Lane> TakeLaneLatched(bool slept_on)
      RC_REQUIRES(tx_latch, rx_latch);
  // Gives back a lane that the stream left while threads slept on the lane.
  // Returns false if threads still sleep there; it has woken them.
  bool Unpark() RC_EXCLUDES(tx_latch, rx_latch, interest_latch);
  void UnparkLater(std::uint32_t ms);
  bool BackToPlain() RC_EXCLUDES(tx_latch, rx_latch, interest_latch);
  // The parts of BackToPlain.  LeavesEngineLatched returns whether the kernel
  // may have the stream.  It sets *spilled if bytes that were read ahead lie in
  // read_ahead_ now.
  bool LeavesEngineLatched(bool* spilled) RC_REQUIRES(tx_latch, rx_latch);
  void LeaveEngineLatched(bool spilled) RC_REQUIRES(tx_latch, rx_latch);
  void LookAfterLeaving() RC_REQUIRES(tx_latch, rx_latch);
  void BoundSendsLatched() RC_REQUIRES(tx_latch);

  // --- Its end (sock_close.cc)
  void Finish(bool reset) RC_EXCLUDES(tx_latch, rx_latch);
  // The part of Finish before the reference goes.  Returns whether it is the
  // first Finish.
  bool FinishOnce(bool reset) RC_EXCLUDES(tx_latch, rx_latch);
  // The parts of CloseLast.  EndCalls takes away what may still use the number.
  // EndsNothingLatched returns whether another process holds the connection,
  // and this end owes nothing: then this close ends nothing.
  struct Closing;
  bool EndCalls(int number, bool sought, rendezvous::Conductor* conductor)
      RC_EXCLUDES(tx_latch, rx_latch, interest_latch);
  bool EndsNothingLatched() const RC_REQUIRES(tx_latch, rx_latch);
  void CloseSharedLatched(Closing& closing) RC_REQUIRES(tx_latch, rx_latch);
  void CloseKeptLatched(Closing& closing) RC_REQUIRES(tx_latch, rx_latch);
  void BoundCloseLatched(rendezvous::Conductor* conductor)
      RC_REQUIRES(tx_latch, rx_latch);
  // Returns whether the closed stream has this local port, and is ending.
  bool EndsOn(std::uint16_t port);
  ClosedStreams::Place& closed_place() { return closed_place_; }
  void OnLinger();
  void NeverLeavesTcp(base::Reason reason);
  int LeaveKeptLatched() RC_REQUIRES(tx_latch, rx_latch);

  // --- Closed under calls that sleep on it (sock_left.cc)
  class LeftCall;
  // Leaves the stream to the calls that sleep on it, in place of its end.
  // Returns false if no call sleeps on it.
  bool LeaveToCalls(int fd, const Successor& next, int* result);
  // Ends such a stream, if its last call has returned.
  void EndLeft() RC_EXCLUDES(tx_latch, rx_latch, interest_latch);
  void EndLeftLater(std::uint32_t ms);
  bool LastLeftLatched(int* number) RC_REQUIRES(tx_latch, rx_latch);
  int SleepersLatched() const;
  // Called when a call that has slept, or has let others have the latch, has
  // the latch again.  Returns whether the stream was left to this call; then
  // the call says kJoinsLeft.  `result`: what the call would say otherwise.
  bool JoinsLeft(const Wait& wait, int result) {
    if (left_fd_ < 0) [[likely]]
      return false;
    return JoinsLeftToo(wait, result);
  }
  [[gnu::cold, gnu::noinline]] bool JoinsLeftToo(const Wait& wait, int result);
  // Note that such a call goes to sleep, and that it has woken.  SleepsLeft
  // returns whether this thread is in such a call.
  [[gnu::cold, gnu::noinline]] bool SleepsLeft();
  [[gnu::cold, gnu::noinline]] void WakesLeft();
  // Returns when the time of such a call is over, or 0 if that is not known.
  [[gnu::cold, gnu::noinline]] std::uint64_t LeftDeadline() const;
  // Lets other threads have the latch of the direction, which the caller holds.
  // Returns true for kJoinsLeft.
  [[gnu::cold, gnu::noinline]] bool GiveWay(const Wait& wait, bool tx);
  [[gnu::cold]] IoResult RecvLeft(const iovec* iov, int count,
                                  std::size_t total, int flags,
                                  std::size_t* done);
  [[gnu::cold]] IoResult SendLeft(const iovec* iov, int count,
                                  std::size_t total, int flags,
                                  std::size_t* done);

  // --- Its other holders (sock_share.cc)
  IoResult UnreadRecv(int fd, const iovec* iov, int count, std::size_t total,
                      int flags, std::size_t* done);
  // The parts of UnreadRecv.
  struct UnreadCall;
  void TakeUnread(UnreadCall& call) RC_REQUIRES(rx_latch);
  void CountUnread(const UnreadCall& call, ssize_t n);
  IoResult RecvBehindUnread(const UnreadCall& call);
  // The parts of ForkChild.
  void ForgetCalls() RC_REQUIRES(tx_latch, rx_latch);
  void LoseToParent() RC_REQUIRES(tx_latch, rx_latch);
  void ForgetMoved() RC_REQUIRES(tx_latch, rx_latch);
  bool SpillLatched() RC_REQUIRES(tx_latch, rx_latch);
  // Enters kUnread: read_ahead_ of this stream on TCP has just been made.  The
  // stream is not adopted before these bytes are read, see BackToPlain.
  void BecomeUnread() RC_REQUIRES(rx_latch);
  void PutDeadSocket(const char* why);
  // In the child of fork, whose parent keeps the engine: the kernel has the
  // stream here.
  void ForgetEngine() RC_REQUIRES(tx_latch, rx_latch);
  // What the parts of copies ask for (sock_hidden.cc).  ForgetParentsEngine: in
  // the child, the engine is the parent's.  LoseConnection puts a dead socket
  // in the place of the connection.
  void ForgetParentsEngine();
  void LoseConnection(const char* why);
  bool TakeOverLatched(const Holding& all) RC_REQUIRES(tx_latch, rx_latch);
  void EndUnreadLatched() RC_REQUIRES(rx_latch);
  // Tells whether a completion of MSG_ZEROCOPY waits to be read.
  void SetCompletions(bool some) RC_REQUIRES(rx_latch);
  bool Completions() const {
    return completions_.load(std::memory_order_relaxed);
  }
  // The rest of the application's close: waits until the connection is over, or
  // for `seconds`, and closes the number.  Requires that no latch is held.
  void Linger(int number, int seconds);
  // Closes a number of the connection, in a thread that others wait for.
  void CloseWithoutWaiting(int number) const;
  void TakeSettings(int number);
  // This process begins with the connection there.  It has no latch only where
  // no other thread knows the stream.
  void BeginAt(std::uint64_t tx, std::uint64_t rx) {
    calls_.SetMoved(tx, rx);
    tally_.BeginAt(tx, rx);
  }

  // --- Lanes of rdma (budget.cc, sock_place.cc)
  void ListRemote() RC_REQUIRES(tx_latch, rx_latch);
  void UnlistRemote() RC_REQUIRES(tx_latch, rx_latch);
  void LeavesRemote() RC_REQUIRES(tx_latch, rx_latch);
  static std::vector<std::shared_ptr<Sock>> Remotes();
  // Returns a reference, or null if the last reference has gone.
  static std::shared_ptr<Sock> Hold(Sock* sock);
  bool RoomForRemote();
  void Challenge(const Pace& mine);
  static void EvictFor(const Pace& newcomer);
  void Evict(base::Reason reason);
  static void ProbeRemotes();
  static void ProbeSoon();
  std::uint64_t OnItsWay();
  // Requires either latch.  The analysis cannot say "either".
  lane::Lane* PlacingLane(std::uint32_t epoch);
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

// Raises SIGPIPE in this thread, as a write to a closed connection does.
void RaiseSigpipe();

// Take and release, around fork, the latches that no object owns.
void SockForkLock();
void SockForkUnlock(bool child);

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_SOCKET_SOCK_H_
