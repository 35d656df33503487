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
struct SnapshotStream;
struct Stats;
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
  Sock();
  // Returns a stream from the pool, not connected, with one reference, which is
  // the caller's.  Returns null if there is no memory.
  static Sock* New(stream::Role role, bool nonblock);
  static void* operator new(std::size_t size, const std::nothrow_t&) noexcept;
  // Adds a reference.  Requires that the caller has one.
  void Ref() { refs_.fetch_add(1, std::memory_order_relaxed); }
  // Takes a reference back.  The last one ends the stream, and gives the object
  // to the pool.
  void Unref();
  // Adds a reference for a caller that has none.  Returns false, and adds none,
  // if the object has no reference left.
  bool TryRef();

  // --- The application's calls: bytes or 0, or -1 with errno
  // The parts of a blocking send on TCP (SendParts).
  static constexpr std::size_t kSendPart = 256 << 10;
  // Goes on with a blocking send of which `done` bytes have gone, by parts, so
  // that the stream can be adopted between two of them.  `life` and `signals`
  // are Life() and tls_signals.any of the call's beginning.  `goes_on` waits for
  // room, and says whether the call goes on.  Returns all its bytes.
  using GoesOn = bool(int fd, short events, std::uint32_t signals,
                      std::uint64_t* left_ns);
  ssize_t SendParts(int fd, const iovec* iov, int count, std::size_t total,
                    std::size_t done, int flags, std::uint32_t life,
                    std::uint32_t signals, GoesOn* goes_on);
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
  // Returns whether a search for a lane may begin, or is under way.
  bool MayLeaveTcp() const { return lane_state_.MayLeaveTcp(LaneState::kWeak); }
  // Returns whether a lane may take what is sent next, even if none has it now.
  bool MayTakeLane() const {
    return mode() == Mode::kEngine || lane_state_.MayTakeLane(LaneState::kWeak);
  }
  // Returns whether rcsock carries out the requests of io_uring on the stream.
  // After kMostOnTcp calls on TCP without a lane, the kernel does.
  bool MayBeCarried() const {
    constexpr std::uint32_t kMostOnTcp = 4096;
    return MayTakeLane() && (mode() == Mode::kEngine ||
                             ops_.load(std::memory_order_relaxed) < kMostOnTcp);
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
  // Stores what FIONREAD says into *bytes, and returns true.  Returns false if
  // the kernel has the stream, and must be asked.
  bool ReadableBytes(int* bytes) RC_EXCLUDES(interest_latch);
  // Returns whether the process holds bytes that come before those in the
  // kernel.
  bool HasReadAhead() RC_EXCLUDES(interest_latch);
  // Stores what SIOCOUTQ says into *bytes, or with `not_sent` SIOCOUTQNSD.
  // Returns false if the kernel must be asked.
  bool UnsentBytes(bool not_sent, int* bytes);
  // Returns SO_ERROR of the stream itself, and clears it.  Returns 0 if there
  // is none.
  int TakeError() RC_EXCLUDES(interest_latch);
  // Returns the state that TCP_INFO tells, for an anchor in the state
  // `anchors`.  May take an end.
  std::uint8_t TcpState(std::uint8_t anchors);
  // Bounds what a lane takes, after the program has set SO_SNDBUF.
  void BoundSends();

  // --- Parts, each with a header of its own
  TcpAnchor& anchor() { return anchor_; }
  const TcpAnchor& anchor() const { return anchor_; }
  KeptOptions& options() { return options_; }
  Ancillary& ancillary() { return ancillary_; }
  ZeroCopyUse& zero_copy() { return zero_copy_; }
  ClaimKeeper& claim() { return claim_; }
  UnusedCopy& copy() { return copy_; }
  NotedShare& noted() { return noted_; }
  AcrossExec& across_exec() { return across_exec_; }
  SendGate& send_gate() { return send_gate_; }
  const SendGate& send_gate() const { return send_gate_; }
  Placement placement() { return Placement(this); }

  // --- What a program that is linked with rcsock may ask (sock_control.cc)
  struct Info {
    bool on_lane = false;
    lane::Kind kind = lane::Kind::kShm;
    base::Reason reason = base::Reason::kNone;
    std::uint64_t tx_bytes = 0;
    std::uint64_t rx_bytes = 0;
    std::uint64_t lane_tx_bytes = 0;
    std::uint64_t lane_rx_bytes = 0;
    std::uint64_t demotions = 0;
    std::uint32_t epoch = 0;  // the lane's
  };
  // Returns what the stream is, and what it has moved.
  Info Describe();
  // Sets what the program wants.  kTcp pins the stream.  A later policy takes
  // that pin back.
  void SetPolicy(Policy policy);
  Policy policy() const { return policy_.load(std::memory_order_relaxed); }
  // Begins a search at once.  Returns 0, or an errno if no lane may come.
  int PromoteNow();
  // Takes the stream off its lane, and waits for that until the deadline.
  // Returns 0, or ETIMEDOUT.
  int DemoteNow(std::uint64_t deadline_ns);

  // Takes the stream off its lane, and pins it, so that no lane comes again:
  // before fdopen, for instance.  Waits until the kernel has the stream, but
  // for bytes that were read ahead (UnreadBytes).  Returns false if the peer
  // did not answer in time.  Tells other holders that no lane may come.
  //
  // If the caller pins several streams, LeaveDeadline gives one deadline for
  // all; behind it Pin looks once at each stream.  Deadline 0: a time of this
  // stream's own.
  bool Pin(base::Reason reason, std::uint64_t deadline_ns = 0)
      RC_EXCLUDES(interest_latch);
  // As Pin, but tells no other holder.  What comes next is still counted: a
  // process that holds the connection alone may later have a lane again.
  bool PinHere(base::Reason reason, std::uint64_t deadline_ns);
  // Leaves the other holders.  The process ends, and can do nothing else for
  // the stream.
  void LetGo() RC_EXCLUDES(interest_latch);
  // Drops the bytes that were read ahead.  Requires a pinned stream, whose
  // connection the kernel has ended by connect() to no address.
  void Disconnected() RC_EXCLUDES(interest_latch);
  // As Pin, but pins nothing, and tells no other holder.
  bool ToPlain(base::Reason reason, std::uint64_t deadline_ns = 0);

  // --- Set by the hooks
  // Learns the peer's address, and applies the rules for that peer.  `fd` is
  // the stream's number.  Requires that the role is set.
  void SetPeer(int fd, const sockaddr* address, socklen_t length);
  void SetRole(stream::Role role) { role_ = role; }
  // Pins the stream for an option that accepted sockets inherit.
  void PinByOption() {
    lane_state_.SetPinnedByOption();
    Pin(base::Reason::kPinnedOption);
  }
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
  // Returns the link of the stream's lane in shared memory, or null.
  const std::shared_ptr<lane::shm::Link>& link() const { return link_; }
  // Returns what a thread that waits for the stream must drain, or null.
  lane::Source* source() const {
    return source_.load(std::memory_order_acquire);
  }
  // Has a lane that rings no bell ring this one.  The caller is about to sleep
  // in poll.
  void RingForPoll(int bell) RC_EXCLUDES(interest_latch);
  // Sleeps where a read of the stream would sleep, so that the peer wakes this
  // thread directly.  Requires a caller that waits for input here alone.
  // Returns true after input may have come, after a handler has run since the
  // caller read tls_signals.any as `signals`, or after the deadline; 0: no
  // deadline.  Returns false, without a sleep, if the stream is not on a lane
  // in full.
  bool SleepForInput(int number, std::uint64_t deadline_ns,
                     std::uint32_t signals);
  // Replaces the notify bits of the lane, if there is a lane.
  void SetNotify(std::uint32_t bits, int bell) RC_REQUIRES(tx_latch, rx_latch);
  // As SetNotify for a lane in shared memory, without the fence behind it.
  void Wish(std::uint32_t bits) RC_REQUIRES(tx_latch, rx_latch);
  int bell() const { return bell_.load(std::memory_order_relaxed); }
  std::uint32_t notify_bits() const {
    return notify_.load(std::memory_order_relaxed);
  }
  // Tells the link which lines to fetch before it reports the stream: its only
  // registration, and its entry of the table.
  void ReportedBy(const Interest* interest) {
    if (link_ == nullptr) return;
    link_->SetBeside(index_, 0, interest);
    link_->SetBeside(index_, 1, TablePlace(fd()));
  }
  // Acts on what a poller has found for the stream: control messages, a dead
  // lane.
  void OnCompletion(std::uint32_t flags) RC_EXCLUDES(interest_latch);

  // --- Processes (process.cc)
  // Takes one step of ToPlain, without a wait.  Returns whether the kernel has
  // the stream.
  bool StepToPlain(base::Reason reason);
  // Pins the stream, tells other holders that no lane may come, and takes one
  // step of ToPlain.  Does not wait for the peer.
  void LeaveForGood(base::Reason reason);
  // Has the conductor take one step of ToPlain.  The caller is a child that
  // borrows this process's memory, but not its descriptors.
  void AskFromBorrowed();
  // Makes a Holding, in which other processes may be counted, if there is none.
  // Returns false if there is no memory.
  bool Hold();
  // Counts one more process that holds the connection.  While there are
  // several, none promotes the stream.  Without memory it pins the stream.
  // Requires the latches of a fork.
  // `hides`: an unused copy need not be counted (PrepareToHide).
  void ShareByFork(std::uint32_t fork, bool hides);
  // Takes that count back, after a fork that has failed.
  void UnshareByFork(std::uint32_t fork);
  // Returns how many bytes that were read ahead are shared.  They exist in
  // kUnread only.
  std::size_t UnreadBytes() RC_EXCLUDES(interest_latch);
  // Returns whether an error comes behind these bytes, or a completion of
  // MSG_ZEROCOPY waits in the error queue.
  bool HasError() RC_EXCLUDES(interest_latch);
  // Returns the inode number that these bytes are for.  Requires InheritUnread,
  // and that no other thread knows the stream.
  std::uint64_t UnreadSocket() const {
    rx_latch.AssertUnshared();  // no other thread knows the stream yet
    return unread_.socket();
  }
  // Returns a descriptor of these bytes, for a program about to be executed, or
  // -1 if there are none.
  int UnreadFd();
  // Takes over such bytes from `memory`, in the program that was executed.
  // Returns false if `memory` has none.  Requires that no other thread knows
  // the stream.
  bool InheritUnread(int memory);
  // Notes that a program without rcsock may hold the connection from now on.
  // seq_cst: the thread that gives the connection away looks at mode_ after
  // this.  TryAdopt sets mode_, and looks at this after.  One of the two sees
  // the other.
  void GivenAway() { given_away_.fetch_add(1, std::memory_order_seq_cst); }
  // Takes GivenAway back: there is no such program.  `life`: what Life returned
  // before GivenAway.
  void TakenBack(std::uint32_t life) {
    if (Life() == life) given_away_.fetch_sub(1, std::memory_order_seq_cst);
  }
  // Returns which of its connections the object is now.  While no latch is held
  // the object may become another connection.
  std::uint32_t Life() const {
    return gate_.load(std::memory_order_relaxed) & kLife;
  }
  // Tells the offsets to other holders.  Requires that the kernel has the
  // stream.
  void MarkFork() RC_EXCLUDES(tx_latch, rx_latch, interest_latch);
  // Returns the number of the Holding, or -1.
  int holding() const { return holders_.load(); }
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
  // Returns whether this process's end will be a reset that the kernel does not
  // know of yet.
  bool ResetsAtClose();
  // Adds the counts to `to`, unless Account has.
  void Fold(Stats* to) { Fold(to, false); }
  // Describes the stream for `rcsock stat`.  Returns false if it is no
  // connection, or no longer one.
  bool Describe(SnapshotStream* to);
  // Adds the counts to the process's statistics, once, and gives up the share
  // in the connection.
  void Account();
  // Blocks until the kernel has what TCP still owes, or the deadline.  What the
  // kernel has not got by then makes the end a reset: an orderly end would hide
  // the loss.  Without `last`,
  // AcrossExec::TakeResetBack takes this back.
  void FlushAtExit(std::uint64_t deadline_ns, bool last = false);
  // Makes the kernel's end a reset if the application has not read all that the
  // peer sent.  The process ends, and the kernel cannot always know of unread
  // bytes.
  void ResetAtExit();

 private:
  friend struct SockPool;
  friend class TcpAnchor;
  friend class ClosedStreams;
  friend class ClaimKeeper;
  friend class UnusedCopy;
  friend class SendGate;
  friend class AcrossExec;
  friend class NotedShare;
  friend class ZeroCopyUse;
  friend class Placement;
  friend class RemoteLanes;

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
    if (wait.life == Life()) [[likely]]
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
  std::uint32_t ops() const { return ops_.load(std::memory_order_relaxed); }
  std::uint64_t RawBytes() const {
    return tx_raw_.load(std::memory_order_relaxed) +
           rx_raw_.load(std::memory_order_relaxed);
  }
  bool InGate() const {
    return (gate_.load(std::memory_order_seq_cst) & kInside) != 0;
  }
  // Ends a call that was counted in gate_.  `entered`: what gate_ was before.
  // If a handler jumps out of the call, its count stays until the life of the
  // connection ends.  A call that comes out after that finds another life, and
  // takes nothing back.
  void LeaveGate(std::uint32_t entered);
  // Counts `n` bytes.  `entered`, if not null, is that of a call counted in
  // gate_.
  void Count(std::atomic<std::uint64_t>& bytes, ssize_t n,
             const std::uint32_t* entered);
  // Counts for the statistics alone.  Threads that send at once may lose a
  // count.  The object may already be another connection.
  template <class Bytes>
  void CountOnly(Bytes& bytes, ssize_t n);

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
  bool MayPlain(const InKernel& in, int fd) const;
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
  std::atomic<int>& LanePins() { return pins_[lane_pins_]; }
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
  // ReadableBytes of a stream that the engine has, or in kUnread.
  std::size_t ReadableLatched() RC_REQUIRES(tx_latch, rx_latch);
  // Returns whether the end, or urgent data, follows what TCP has.
  bool TcpEndsNext() RC_REQUIRES(rx_latch);

  // --- What has changed (sock_events.cc)
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
  void KickPollers();
  void TellLane(std::uint32_t bits, int bell) RC_REQUIRES(tx_latch, rx_latch);
  void WantSource(bool wanted) RC_REQUIRES(tx_latch, rx_latch);
  void OnTimer() RC_EXCLUDES(tx_latch, rx_latch);

  // --- Back to TCP (sock_leave.cc, sock_options.cc)
  void KeepPlain();
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
  // unread_ now.
  bool LeavesEngineLatched(bool* spilled) RC_REQUIRES(tx_latch, rx_latch);
  void LeaveEngineLatched(bool spilled) RC_REQUIRES(tx_latch, rx_latch);
  void LookAfterLeaving() RC_REQUIRES(tx_latch, rx_latch);
  // Ends ToPlain for a stream that did not reach the kernel in time.
  void StopLeaving();
  bool StuckOnStash();
  bool AwaitsLane(base::Reason reason);
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
  void EndCalls(int number, bool sought, rendezvous::Conductor* conductor)
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
  bool ResetsAtCloseLatched() const;
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
  // Enters kUnread: unread_ of this stream on TCP has just been made.  The
  // stream is not adopted before these bytes are read, see BackToPlain.
  void BecomeUnread() RC_REQUIRES(rx_latch);
  void PutDeadSocket(const char* why);
  // In the child of fork, whose parent keeps the engine: the kernel has the
  // stream here.
  void ForgetEngine() RC_REQUIRES(tx_latch, rx_latch);
  void ResetAtLastClose();
  // What the parts of copies ask for (sock_hidden.cc).  MayLeaveCopies returns
  // whether a child could have a copy.  ForgetParentsEngine: in the child, the
  // engine is the parent's.  LoseConnection puts a dead socket in the place of
  // the connection.  SharedUnreadLatched returns the descriptor of bytes that
  // were read ahead and are shared, or -1.
  bool MayLeaveCopies() const;
  void ForgetParentsEngine();
  void LoseConnection(const char* why);
  int SharedUnreadLatched() const RC_REQUIRES(tx_latch, rx_latch);
  bool TakeOverLatched(const Holding& all) RC_REQUIRES(tx_latch, rx_latch);
  void EndUnreadLatched() RC_REQUIRES(rx_latch);
  // Returns whether no other process has ever held the connection, or will.
  bool AlwaysAlone() const;
  // Tells whether a completion of MSG_ZEROCOPY waits to be read.
  void SetCompletions(bool some) RC_REQUIRES(rx_latch);
  bool Completions() const {
    return completions_.load(std::memory_order_relaxed);
  }
  // Returns whether no other process holds the connection, or will.  The child
  // of a fork under way might.
  bool SoleHolder() const;
  // As SoleHolder, before the child of a fork under way comes.
  bool SoleHolderBeforeFork() const;
  // Returns whether this process's end of the stream is the connection's end.
  bool EndsHere() const;
  // The rest of the application's close: waits until the connection is over, or
  // for `seconds`, and closes the number.  Requires that no latch is held.
  void Linger(int number, int seconds);
  // Closes a number of the connection, in a thread that others wait for.
  void CloseWithoutWaiting(int number) const;
  void TellGivenAway(Holding* all) const;
  void LeaveHolders() RC_REQUIRES(tx_latch, rx_latch);
  void Spoil();
  // Returns whether no other process of this fork's family holds the
  // connection.
  bool EndsOfFamily() const;
  void TakeSettings(int number);
  // Tell the other holders what this process has moved, and hear what they have
  // moved.
  void TellMovedLatched() RC_REQUIRES(tx_latch, rx_latch);
  void HearMovedLatched() RC_REQUIRES(tx_latch, rx_latch);

  // --- What it has moved (sock_account.cc)
  void Fold(Stats* to, bool last);
  void FoldLatched(Stats* to) const RC_REQUIRES(tx_latch, rx_latch);
  // Bytes that this process has moved, and those of them that went over a lane.
  struct Traffic {
    std::uint64_t tx;
    std::uint64_t rx;
    std::uint64_t lane_tx;
    std::uint64_t lane_rx;
  };
  Traffic TrafficLatched() const RC_REQUIRES(tx_latch, rx_latch);
  std::uint64_t LaneTx() const RC_REQUIRES(tx_latch) {
    return lane_tx_ + quick_.tx;
  }
  std::uint64_t LaneRx() const RC_REQUIRES(rx_latch) {
    return lane_rx_ + quick_.rx;
  }
  void LearnLatched() const RC_REQUIRES(tx_latch, rx_latch);

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

// Tells the lane which notify bits and bell the stream's registrations ask for.

// Returns the time until which peers may answer a Pin that begins now.
std::uint64_t LeaveDeadline();

// Raises SIGPIPE in this thread, as a write to a closed connection does.
void RaiseSigpipe();

// Take and release, around fork, the latches that no object owns.
void SockForkLock();
void SockForkUnlock(bool child);

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_SOCKET_SOCK_H_
