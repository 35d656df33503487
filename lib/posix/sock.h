#ifndef RCSOCK_LIB_POSIX_SOCK_H_
#define RCSOCK_LIB_POSIX_SOCK_H_

#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <new>
#include <vector>

#include "lib/base/reason.h"
#include "lib/posix/io_result.h"
#include "lib/posix/signals.h"
#include "lib/posix/sock_layout.h"
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

// A TCP socket of the application: one per open description.
//
// Latches: tx before rx; both for every transition of the stream.  Neither is
// held while a thread sleeps.  `mode` changes under both.
//
// Life: `fds` counts descriptors, `refs_` those plus what the conductor holds;
// at zero the object goes back to the pool.
class Sock final : public SockLayout {
 public:
  Sock();
  // From the pool; null when out of memory.  One reference: the caller's.
  static Sock* New(stream::Role role, bool nonblock);
  static void* operator new(std::size_t size, const std::nothrow_t&) noexcept;
  void Ref() { refs_.fetch_add(1, std::memory_order_relaxed); }
  void Unref();
  // Ref() by one who has none; false: it is gone.
  bool TryRef();

  // --- The application's calls: bytes or 0, or -1 with errno
  // `raw` makes the same call on the kernel.
  // In `flags`: part of a call that has sent before (LaterPart), which any
  // handler ends where it would sleep.  It has nothing to restart.  (No flag of
  // the kernel's.)
  static constexpr int kLater = 1 << 24;
  template <class Raw>
  ssize_t Send(int fd, const iovec* iov, int count, std::size_t total,
               int flags, Raw&& raw);
  template <class Raw>
  ssize_t Recv(int fd, const iovec* iov, int count, std::size_t total,
               int flags, Raw&& raw);
  // A call of the kernel by a thread that may be in it when the stream is to be
  // adopted: from the construction to the end, which may come by cancellation.
  // A handler may jump out of it: then it stands for good (with a mark), or for
  // the life of the connection.  (sock_plain.h, as all that is inline of such a
  // call.)
  class InKernel;
  // Whose a call is that has no flags that matter to it: the kernel's alone
  // (Kernels), the kernel's if InKernel::May, or neither for certain: the
  // engine may have the stream, or it waits for a lane.
  LaneState::Call WhoseCall() const {
    return mode() == Mode::kPlain ? lane_state_.ForCall()
                                  : LaneState::Call::kWanted;
  }
  // It may get a lane, or is looking for one.
  bool MayLeaveTcp() const { return lane_state_.MayLeaveTcp(LaneState::kWeak); }
  // A lane may take what is sent next, even if none has it now.
  bool MayTakeLane() const {
    return mode() == Mode::kEngine || lane_state_.MayTakeLane(LaneState::kWeak);
  }
  // Whether rcsock carries out the requests of io_uring on it.  A connection
  // that has got no lane by then is the kernel's.
  bool MayBeCarried() const {
    constexpr std::uint32_t kMostOnTcp = 4096;
    return MayTakeLane() && (mode() == Mode::kEngine ||
                             ops_.load(std::memory_order_relaxed) < kMostOnTcp);
  }
  // One of shared memory is about to come: a send may wait for it.
  bool AwaitsLane() const;
  // A poll that asks for room here alone, which TCP might not have yet: it may
  // wait for that lane, too, a moment each time.  False: a handler has run.
  bool HoldPoll(std::int64_t timeout_ns);
  // One that does not block, and that nobody waits for by edges: a large call
  // does part of its work while the lane is awaited.
  bool SendsParts();
  // No lane will ever come, and nothing is left over from one: Sent or Received
  // of what the call itself says is all there is to do, and says it again.
  bool Kernels() const {
    return lane_state_.Never(LaneState::kWeak) && mode() == Mode::kPlain;
  }
  ssize_t Sent(ssize_t n);
  ssize_t Received(ssize_t n);
  // What the kernel has said to a call that has moved something before, and
  // will say to no other, is for the next one.
  [[gnu::cold]] void KeepError(int fd, int error);
  // The same for a message of one record of a stream that is on a lane in
  // shared memory, with no flag but MSG_DONTWAIT: what that call says, or 0:
  // nothing has happened, and it must be made.
  static constexpr std::size_t kQuickMost = lane::shm::kRecordMax;
  bool HasInput();
  template <class Still>
  ssize_t QuickSend(Still&& still, const void* from, std::size_t length);
  template <class Still>
  ssize_t QuickRecv(Still&& still, void* to, std::size_t length, int flags);
  int Shutdown(int fd, int how);
  // The last descriptor goes: `fd` is closed on return, or is what comes next.
  int CloseLast(int fd, const Successor& next);
  // One of several descriptors goes.
  void LoseFd(int fd) RC_EXCLUDES(interest_latch);
  // The last descriptor was closed past us.
  void Vanished();
  // POLL* of `events` (and POLLERR, POLLHUP) that hold now.  kEngine only; a
  // stream that has gone back to the kernel meanwhile sets *plain.
  // With `drained` the caller has drained source() just now.
  // kInRing, if asked for: there is something to read in the ring itself, so
  // that a look at it alone finds it (and nothing comes before it in the
  // stash).
  static constexpr std::uint32_t kInRing = 1u << 16;
  // What comes next from its lane is no data: the peer's end.
  bool EndNext() RC_EXCLUDES(tx_latch, rx_latch, interest_latch);
  bool EndNextLatched() const RC_REQUIRES(rx_latch);  // the rx latch held
  // It is on a lane that takes more; by its number, if that is not -1, and on
  // this lane, if that is not null.  Within a Critical.
  bool HasRoom(int number, const lane::Lane* lane);
  // If so, notes the end; the edge that comes of it is made here.
  void TakeEnd() RC_EXCLUDES(tx_latch, rx_latch, interest_latch);
  // The same, and what TCP has heard of it.  True: the anchor is closed.
  bool TakeTcpEnd() RC_EXCLUDES(tx_latch, rx_latch, interest_latch);
  // By `number`; of one that is another's by now it sets *plain, too.  (-1: it
  // is kept.)
  std::uint32_t Readiness(int number, std::uint32_t events, bool* plain,
                          bool drained = false) {
    const std::uint32_t ready = EngineReadiness(number, events, plain, drained);
    if (Completions() && !*plain) [[unlikely]]
      return ready | POLLERR;
    return ready;
  }
  // The same of a stream that is on a lane; kNotLooked: there is more to it,
  // and Readiness() knows.  Within a Critical.
  static constexpr int kNotLooked = -1;
  int QuickLook(int number, int events, bool drained);
  bool ReadableBytes(int* bytes) RC_EXCLUDES(interest_latch);
  // There are bytes that the kernel has not, and which come before its own.
  bool HasReadAhead() RC_EXCLUDES(interest_latch);
  // SIOCOUTQ; with `not_sent` SIOCOUTQNSD.
  bool UnsentBytes(bool not_sent, int* bytes);
  // SO_ERROR of the stream itself, once; 0: none.
  int TakeError() RC_EXCLUDES(interest_latch);
  // What TCP_INFO says of a connection whose anchor is in the state `anchors`.
  std::uint8_t TcpState(std::uint8_t anchors);
  // TCP_CORK, TCP_NODELAY.  KeepOption: false if the kernel is to be told.
  bool KeepOption(int name, bool on);
  // SO_SNDBUF has been set.
  void BoundSends();
  bool KeptOption(int name, int* value);

  // --- What recvmsg tells beside the bytes (sock_ancillary.cc)
  enum Ancillary : std::uint8_t {
    kTellsLeft = 1,  // TCP_INQ: how much there is left
    kTellsTime = 2,  // SO_TIMESTAMP: when they came, which a lane cannot say
  };
  void SetAncillary(Ancillary what, bool on);
  bool Tells(Ancillary what) const {
    return (ancillary_.load(std::memory_order_relaxed) & what) != 0;
  }
  bool TellsAny() const {
    return ancillary_.load(std::memory_order_relaxed) != 0;
  }
  // A recvmsg is about to be made.
  void BeforeRecvMsg() {
    if (Tells(kTellsTime) && !Kernels()) [[unlikely]]
      Pin(base::Reason::kPinnedOption);
  }
  // For a recvmsg that the kernel has not answered, and which has found
  // `length` bytes: what it would have added.
  void TellBeside(msghdr* message, ssize_t length);
  // By the state that TCP_INFO would tell.
  bool PeerMayHaveEnded();

  // --- MSG_ZEROCOPY (sock_zero_copy.cc)
  // SO_ZEROCOPY has been set.
  void SetZeroCopy(bool on);
  // A call with the flag is about to be made: where it is counted; null: the
  // flag means nothing, or is the kernel's alone (the stream is pinned then).
  ZeroCopy* ForZeroCopy();
  // It was copied.
  void CopiedInstead();
  // recvmsg with MSG_ERRQUEUE.
  ssize_t RecvErrors(int fd, msghdr* message, int flags);
  bool Completions() const {
    return completions_.load(std::memory_order_relaxed);
  }

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
    std::uint32_t epoch = 0;  // of the lane
  };
  Info Describe();
  // Direct placement (sock_place.cc); errno ESTALE: not on that lane.  Expose:
  // 0 or an errno.  Place: a ticket or -errno.  Placed: 1, 0 or -errno.
  int Expose(void* at, std::size_t length, std::uint32_t* epoch,
             std::uint32_t* key);
  void Hide(std::uint32_t epoch, std::uint32_t key);
  std::int64_t Place(std::uint32_t epoch, const void* from, std::size_t length,
                     std::uint64_t to, std::uint32_t key);
  int Placed(std::uint32_t epoch, std::int64_t ticket);
  // The rdma lane that is read from; null: there is none.
  lane::rdma::QpLane* ReceivingLane() RC_REQUIRES(rx_latch);
  // The lane with that serial number, also when the stream has left it; null:
  // its queue pair has gone, or is about to.
  lane::rdma::QpLane* LaneOfSerial(std::uint32_t serial) RC_REQUIRES(rx_latch);
  void SetPolicy(Policy policy);
  Policy policy() const { return policy_.load(std::memory_order_relaxed); }
  // 0 or an errno.
  int PromoteNow();
  int DemoteNow(std::uint64_t deadline_ns);

  // Off the lane, and never on one again: before fdopen, SCM_RIGHTS and the
  // like.  Waits (bounded) until the stream is the kernel's, but for bytes that
  // were read ahead of the application (UnreadBytes).  False: the peer did not
  // answer.
  //
  // Where several are asked, all have one time to answer in (LeaveDeadline);
  // each is looked at once behind it.  0: this one alone.
  bool Pin(base::Reason reason, std::uint64_t deadline_ns = 0)
      RC_EXCLUDES(interest_latch);
  static std::uint64_t LeaveDeadline();
  // The same where what comes after is still counted: once this process has let
  // go of the connection, one that holds it alone may have a lane again.
  bool PinHere(base::Reason reason, std::uint64_t deadline_ns);
  // This process ends, and can do no more than say so.
  void LetGo() RC_EXCLUDES(interest_latch);
  // The kernel has ended the connection of a pinned stream, by connect() to no
  // address: what was read ahead of it goes too.
  void Disconnected() RC_EXCLUDES(interest_latch);
  // The same without the "never again".
  bool ToPlain(base::Reason reason, std::uint64_t deadline_ns = 0);

  // --- Set by the hooks
  // `fd` is its number; the role is set.
  void SetPeer(int fd, const sockaddr* address, socklen_t length);
  void SetRole(stream::Role role) { role_ = role; }
  // Pin() for an option that accepted sockets inherit.
  void PinByOption() {
    lane_state_.SetPinnedByOption();
    Pin(base::Reason::kPinnedOption);
  }
  bool HasLocalPeer() const {
    return local_peer_.load(std::memory_order_relaxed);
  }
  // It listens, at the address of `fd`.
  void SetListening(int fd);
  // It has just been connected, and its number is known: where connections of
  // its kind are worth a lane it looks for one at once.
  void SeekIfWorth() {
    if (lane_state_.AtOnce()) [[unlikely]]
      SeekAfterCall();
  }
  // What an accepted socket has from its listener.
  void Inherit(const Sock& listener);
  // The same where that is one that this process was started with: `number` is
  // the accepted one's.
  void InheritFromUnknown(int number);
  // By the kernel's word: an interposer behind this one (libsocket_wrapper,
  // mptcpize) makes something else of what the program has asked for.
  static bool IsTcp(int number);
  // It is connected, or what kept it on TCP is over: a search may begin, unless
  // something speaks against it.
  void AllowLane();

  // A thread is about to wait in the kernel for a stream that is on TCP.
  // Adoption would take what it waits for out of its sight, so it comes after.
  enum class KernelWait : std::uint8_t { kNotNeeded, kEntered, kNotTheKernels };
  KernelWait EnterKernelWait(std::uint32_t* entered);
  void LeaveKernelWait(std::uint32_t entered);

  Mode mode() const { return mode_.Read().load(std::memory_order_acquire); }
  int fd() const { return fd_.load(std::memory_order_relaxed); }
  void set_fd(int fd) { fd_.store(fd, std::memory_order_relaxed); }

  // --- Readiness (interests.cc, poll.cc)
  // Its registrations are in user space: the end of its adoption.
  void Moved();
  lane::Lane* lane() const { return lane_.get(); }
  bool Closed() const { return closed_.load(std::memory_order_seq_cst); }
  // The number is this stream's: for good while a latch of its is held, or a
  // mark stands (fd_table).
  bool IsAt(int fd) const {
    if (Entry(fd) == this) [[likely]]
      return true;
    return Named(fd) == this;
  }
  // Promoted in both directions, and not leaving.
  bool OnLane() const { return on_lane_.load(std::memory_order_acquire); }
  // So it is, and this end has not shut down: who wants to be told of input may
  // take the peer's end for some, which it finds when it reads.  (Else that is
  // the end of the connection, and EPOLLHUP with it.)
  bool TellsInputAlone() const {
    return input_alone_.load(std::memory_order_acquire);
  }
  const std::shared_ptr<lane::shm::Link>& link() const { return link_; }
  // What whoever waits for the stream must drain; null: nothing.  Any thread.
  lane::Source* source() const {
    return source_.load(std::memory_order_acquire);
  }
  // A poller is about to sleep: a lane that rings nobody rings this bell.
  void RingForPoll(int bell) RC_EXCLUDES(interest_latch);
  // A thread that waits for nothing but input here sleeps where a read would:
  // it is woken alone, and by the peer itself.  Until there may be some, any
  // handler has run since `signals` (tls_signals.any) was read, or the deadline
  // (0: none) has come.  False: it cannot be slept so now.
  bool SleepForInput(int number, std::uint64_t deadline_ns,
                     std::uint32_t signals);
  // Replaces the notify bits of the lane, if there is one.
  void SetNotify(std::uint32_t bits, int bell) RC_REQUIRES(tx_latch, rx_latch);
  // The same for a lane in shared memory, without the fence behind it.
  void Wish(std::uint32_t bits) RC_REQUIRES(tx_latch, rx_latch);
  int bell() const { return bell_.load(std::memory_order_relaxed); }
  std::uint32_t notify_bits() const {
    return notify_.load(std::memory_order_relaxed);
  }
  // Its registration, if there is only one: fetched, with what else of this
  // process is touched then, before the stream is reported.
  void ReportedBy(const Interest* interest) {
    if (link_ == nullptr) return;
    link_->SetBeside(index_, 0, interest);
    link_->SetBeside(index_, 1, TablePlace(fd()));
  }
  // Something came for it on a poller: control messages, a dead lane.
  void OnCompletion(std::uint32_t flags) RC_EXCLUDES(interest_latch);

  // --- rendezvous::Seeker, AnchorWatcher, stream::Anchor
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
  ssize_t Send(const iovec* iov, int count) override;
  ssize_t Recv(void* to, std::size_t length) override;
  ssize_t RecvV(const iovec* iov, int count, bool peek) override;
  int ShutdownWrite() override;
  bool AtMark() override;
  bool Broken() const;
  bool Ended() override;

  // --- Processes (process.cc)
  // One step of ToPlain, without waiting.  True: it is the kernel's.
  bool StepToPlain(base::Reason reason);
  // The same for good, without waiting for the peer.
  void LeaveForGood(base::Reason reason);
  // It did not get there.
  void StopLeaving();
  // The same asked by a child that borrows our memory, but not our descriptors:
  // the conductor does it.
  void AskFromBorrowed();
  std::uint64_t inode() const { return inode_.load(std::memory_order_relaxed); }
  void set_inode(std::uint64_t inode) {
    inode_.store(inode, std::memory_order_relaxed);
  }
  // There is a Holding, which other processes may be counted in.
  bool Hold();
  // Counts one more process that holds the connection.  While there are
  // several, none may promote it.  With the latches of a fork held.
  void ShareByFork(std::uint32_t fork);
  // There was no fork after all.
  void UnshareByFork(std::uint32_t fork);
  // Bytes read ahead that are shared; kUnread only.
  std::size_t UnreadBytes() RC_EXCLUDES(interest_latch);
  // An error is behind them, or an answer of zero copy in the error queue.
  bool HasError() RC_EXCLUDES(interest_latch);
  std::uint64_t UnreadSocket() const {
    rx_latch.AssertUnshared();  // it has just inherited them
    return unread_.socket();
  }
  // A descriptor of them for a program about to be executed; -1: none.
  int UnreadFd();
  // This program was executed with bytes of this connection left over.
  bool InheritUnread(int memory);
  // A program that is not followed may hold it from now on.
  // seq_cst: whoever gives it away looks at mode_ after, and TryAdopt, which
  // sets mode_, at this after: one of the two sees the other.
  void GivenAway() { given_away_.fetch_add(1, std::memory_order_seq_cst); }
  // There is no such program after all; `life`: what Life() was then.
  void TakenBack(std::uint32_t life) {
    if (Life() == life) given_away_.fetch_sub(1, std::memory_order_seq_cst);
  }
  // Which connection of those that the object has been; while no latch is held
  // it may become another.
  std::uint32_t Life() const {
    return gate_.load(std::memory_order_relaxed) & kLife;
  }
  // Tells the offsets to who will hold it too, once the stream is plain.
  void MarkFork() RC_EXCLUDES(tx_latch, rx_latch, interest_latch);
  int holding() const { return holders_.load(); }
  // --- Passed by SCM_RIGHTS to a process that may follow it (sock_travel.cc)
  // A message that names it by `number` is about to be sent to the AF_UNIX
  // socket with the inode number `to`.  True: it is the kernel's, and noted.
  bool Travel(int number, std::uint64_t to, std::uint32_t tag);
  // One that has come to that socket, as `number`.  Null: nobody has noted it.
  // `until_ns`: as of Notes.
  static Sock* Arrived(int number, std::uint64_t to, bool peek,
                       std::uint64_t until_ns);
  bool Travels() const { return travels_.load(std::memory_order_seq_cst); }
  // This process holds it no more, by any number; `number` is open still.
  void LeaveShare(int number);
  // --- For a program about to be executed that will follow it (handover.cc)
  // Whether it could.
  bool MayBequeath();
  // It cannot.  Such a program still takes what it finds as `number`: what no
  // lane can follow here holds there, too.
  void SpoilForNext(int number) const;
  // ... in another process: one more holder.
  void Lend();
  // The number of the Holding; -1: it is not the kernel's yet.
  int Bequeath(std::uint64_t inode);
  // There: `fd` is one of its numbers.  Null: not such a connection.
  static Sock* Inherited(int number, int fd);
  // A connection that came with the program (`exec`) or by SCM_RIGHTS, from a
  // process that told nothing; Bind is the caller's.  Null: no memory.
  static Sock* Unknown(int number, bool exec, std::uint64_t until_ns = 0);
  void ForkChild();
  // In the child, behind all that: the calls that it was left to are the
  // parent's.
  void ForgetLeft();
  bool Engaged() const {
    return mode() == Mode::kEngine || lane_state_.Seeking();
  }
  // Pin(), until Unpin(): for an exec that may fail.
  // Its end is a reset, which the kernel does not know of yet.
  bool ResetsAtClose();
  bool PinForExec(std::uint64_t deadline_ns);
  void AskForExec();  // the same, without waiting
  void Unpin();
  // Adds the counts to `to`, unless Account() has.
  void Fold(Stats* to) { Fold(to, false); }
  // For `rcsock stat`; false: it is no connection (any more).
  bool Describe(SnapshotStream* to);
  // Folds the counts into the process's statistics, once, and gives up the
  // share in the connection.
  void Account();
  // For a descriptor that exec closes; taken back if there was no exec.
  void LeaveForExec();
  // What a peer on another host has not taken yet dies with this process's
  // queue pairs: those bytes go to TCP, whose buffers outlive us.  Every such
  // stream, closed ones too; blocks until the peers have answered, or none has
  // for a second.
  static void LeaveRemoteLanes(std::uint64_t deadline_ns);
  // Streams that have grown rings and do not use them leave their lanes.
  static void MemoryLook();
  // The same of rings in shared memory.
  static void SharedLook();
  // Blocks (bounded) until what TCP still owes is with the kernel.
  // What the kernel has not got by then makes the end a reset: an orderly one
  // would hide that it is lost.  Without `last`, until TakeResetBack().
  void FlushAtExit(std::uint64_t deadline_ns, bool last = false);
  // A closed stream may still have this local port (network order), though its
  // peer has ended: it goes with the peer's answer, or is going.
  static bool EndsOnPort(std::uint16_t port);
  // An exit or exec begins to flush: 0.2 s from now its peers may end first.
  static void BeginToEnd();
  // As FlushAtExit, for the streams that are closed and not yet finished.
  static void FlushClosed(std::uint64_t deadline_ns, bool last);
  // There was no exec.
  void TakeResetBack();
  static void TakeResetsBack();
  // The process ends, and the kernel closes the connection: with a reset if
  // what the peer has sent was not read, also where the kernel can't know that.
  void ResetAtExit();

 private:
  friend struct SockPool;
  struct Wait {
    std::uint64_t deadline_ns = 0;  // 0: none
    std::uint32_t signals = 0;
    bool timed = false;
    // A poll: any handler ends it, whatever the descriptor's flags are.
    bool poll = false;
    // The call has moved something, which is its result: any handler ends it,
    // too, as there is nothing to restart.
    bool part = false;
    // That was before this part of it: any handler since it began.
    bool later = false;
    std::uint32_t any = 0;  // as `signals`, of all handlers
    // The connection that it waits for, in which process.
    std::uint32_t life = 0;
    long process = 0;
  };
  // Behind a sleep: the object is another connection by now.
  bool GoneSince(Wait& wait, int fd) const {
    if (wait.life == Life()) [[likely]]
      return false;
    return GoneSinceToo(wait, fd);
  }
  [[gnu::cold, gnu::noinline]] bool GoneSinceToo(Wait& wait, int fd) const;

  // Into and out of kEngine.
  void SetMode(Mode mode) RC_REQUIRES(tx_latch, rx_latch) {
    RC_DCHECK(mode != Mode::kEngine || this->mode() == Mode::kPlain);
    mode_.Write(tx_latch, rx_latch).store(mode, std::memory_order_seq_cst);
  }
  // kUnread, or kPlain again: only who receives asks which of the two it is.
  void SetUnread(bool unread) RC_REQUIRES(rx_latch);
  // I-LANE-1 and I-LANE-2, by who has one of the latches.
  void CheckQuick() const {
    RC_DCHECK(lane_state_.InEngine() == (mode() == Mode::kEngine));
    RC_DCHECK(!(quick_.may_send || quick_.may_receive) ||
              (mode() == Mode::kEngine && stream_.get() != nullptr &&
               lane_.get() != nullptr));
  }

  // --- Its life (sock.cc)
  void Reset();
  void ApplyRules(int fd, const sockaddr* address);
  void TryAgainLater();
  void LookAfterAsMuch();
  void Foresee();
  // The next look is at the thresholds above these.
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
  // Of a call that was counted in gate_; `entered`: what that was before.  A
  // handler may jump out of one, whose count then stays: it ends with the life
  // of the connection, and who comes out later still finds another.
  void LeaveGate(std::uint32_t entered);
  // `entered`, if not null: of such a call.
  void Count(std::atomic<std::uint64_t>& bytes, ssize_t n,
             const std::uint32_t* entered);
  // For the statistics alone: threads that send at once may lose a count.  (The
  // descriptor may have been closed meanwhile, and this be another connection.)
  template <class Bytes>
  void CountOnly(Bytes& bytes, ssize_t n);

  // --- Looking for a lane, and adoption (sock_seek.cc, sock_control.cc)
  [[gnu::noinline]] void SeekAfterCall();
  void StartSeek();
  // One that goes on is over, without a lane.
  void EndSearchLatched() RC_REQUIRES(tx_latch, rx_latch);
  // Its lane would be an rdma one.
  bool SeeksRemote() const;
  void CancelSeek() RC_EXCLUDES(interest_latch);
  // While its peer's answer is awaited: takes it, in the conductor's place.  No
  // latch held.
  [[gnu::noinline]] void LookForAnswer() RC_EXCLUDES(tx_latch, rx_latch);
  bool AwaitsAnswer() const {
    return lane_state_.Seeking(LaneState::kWeak) &&
           local_peer_.load(std::memory_order_relaxed);
  }
  bool NobodyInside() const;
  [[gnu::noinline]] void LastOut();
  bool TryAdopt() RC_EXCLUDES(tx_latch, rx_latch, interest_latch);
  // Whether bytes of the connection went past us, in a program that also makes
  // plain calls; what such calls have set is taken over.  Both latches held.
  bool UsedPastUs() RC_REQUIRES(tx_latch, rx_latch);
  void LearnOptions(int number);
  // Whether one is set that no lane honours.
  static bool OptionsPin(int number);

  // --- A send waits for the lane that is about to come (sock_hold.cc)
  // Retry: it goes on as it would have, what *done says already sent.  No latch
  // held.
  [[gnu::noinline]] IoResult HeldSend(int fd, const iovec* iov, int count,
                                      std::size_t total, int flags,
                                      std::size_t* done);
  bool MayHold(int flags) const;
  bool AwaitsGap(int flags) const;
  IoResult SendAside(int fd, const iovec* iov, int count, std::size_t total,
                     int flags, std::size_t* done);
  // When the hold ends, which begins here if none has yet; kNoHold: there is
  // none (any more).
  std::uint64_t HoldEnd(std::uint64_t now);
  // No latch held.
  void EndHold() RC_EXCLUDES(tx_latch, rx_latch);
  // The part of it that needs none: what came of it.  False: there was none.
  bool TakeHold();
  // One that Bulky has begun is, and nobody has noticed.
  bool HoldOver() const;
  static constexpr std::uint64_t kNoHold = 1;
  // Much has been sent in the time of the search: what its service comes to is
  // not known, but what it does is.  The hold begins here.
  [[gnu::noinline]] void Bulky();
  static constexpr ssize_t kBulkCall = 4096;
  std::uint64_t GivenToTcp();
  // Until AwaitsLane() has changed, or as SleepOn.
  int AwaitLane(Wait& wait, std::uint64_t until_ns);
  // At most `most` bytes from `skip` on, as much as TCP has room for.  Of an
  // error `bytes` is -errno.
  IoResult SendNow(int fd, const iovec* iov, int count, std::size_t skip,
                   std::size_t most);
  // What AwaitsLane() says has changed.
  void WakeHeld();

  // --- Bytes by way of the stream (sock_io.cc)
  // What the number names.
  static Sock* LookupHere(int fd);
  IoResult EngineSend(int fd, const iovec* iov, int count, std::size_t total,
                      int flags, std::size_t* done);
  IoResult EngineRecv(int fd, const iovec* iov, int count, std::size_t total,
                      int flags, std::size_t* done);
  // The same when not everything went at once: the latch of that direction is
  // held, and released on return.
  [[gnu::noinline]] IoResult SendLatched(int fd, const iovec* iov, int count,
                                         std::size_t total, int flags,
                                         std::size_t* done)
      RC_RELEASE(tx_latch);
  [[gnu::noinline]] IoResult RecvLatched(int fd, const iovec* iov, int count,
                                         std::size_t total, int flags,
                                         std::size_t* done)
      RC_RELEASE(rx_latch);
  // What the kernel would say of an address where a lane could not read or
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
  // Recv of an Anchor where recvmsg is to tell when the bytes came.
  [[gnu::noinline]] long RecvStamped(void* to, std::size_t length);
  // The rest of a blocking send that began on a lane.
  ssize_t SendRest(int fd, const iovec* iov, int count, std::size_t skip,
                   int flags);
  // The rest of a MSG_WAITALL that began on a lane; bytes, or -1 if none.
  ssize_t RecvRest(int fd, const iovec* iov, int count, std::size_t skip,
                   int flags);
  // ... of a stream on TCP: kUnread.  0: none.
  [[gnu::cold]] int TakeKept();
  int TakeKeptLatched() RC_REQUIRES(rx_latch);
  // MSG_TRUNC without a lane: takes and forgets; both latches held.
  ssize_t Drop(std::size_t limit, bool peek) RC_REQUIRES(tx_latch, rx_latch);
  // TCP's end is not yet the stream's.
  bool HoldsEnd() const;

  // --- Sleeping on it (sock_wait.cc)
  // With the latch of that direction held, on return too; released for a sleep.
  // 0: look again; -EINTR, -EAGAIN (time-out), kJoinsLeft.
  // The number has been closed under the sleep: ClosedInUse.
  static constexpr int kJoinsLeft = 1;
  void Begin(Wait& wait, const std::atomic<std::uint64_t>& timeout_ns) const;
  int WaitRx(Wait& wait, std::uint32_t seq) RC_REQUIRES(rx_latch);
  int WaitBehind(Wait& wait, std::uint32_t seq) RC_REQUIRES(rx_latch);
  // For the rest of a send whose beginning has been read.
  int WaitRest(Wait& wait, std::uint32_t seq) RC_REQUIRES(rx_latch);
  int WaitTx(Wait& wait, std::uint32_t seq) RC_REQUIRES(tx_latch);
  // Not inlined: its frame must be below those of its callers (CountedSleep).
  [[gnu::noinline]] int SleepOn(Wait& wait, bool tx, std::uint32_t token,
                                std::uint32_t seq, lane::Lane* lane);
  std::atomic<int>& LanePins() { return pins_[lane_pins_]; }
  void OnStarved() RC_EXCLUDES(tx_latch, rx_latch);
  void WatchStarved() RC_REQUIRES(tx_latch);
  // It has left for its receiver's sake: what that has brought.
  struct Starved {
    std::uint64_t left_at;  // offset
    std::uint64_t seen_at;  // ... at the last look
    int looks = 0;
  };
  void JudgeSoon(Starved starved);
  void JudgeStarved(Starved starved);
  // At the receiving end: its peer leaves because nobody reads here.
  bool RingIsFull() const;

  // --- What it is ready for (sock_state.cc, sock_zero_copy.cc)
  std::uint32_t EngineReadiness(int number, std::uint32_t events, bool* plain,
                                bool drained);
  // TCP takes no more at this moment.
  bool KernelIsFull() const;
  // ReadableBytes of a stream that is not the kernel's.
  std::size_t ReadableLatched() RC_REQUIRES(tx_latch, rx_latch);
  // What TCP has is followed by its end, or by urgent data; the rx latch held.
  bool TcpEndsNext() RC_REQUIRES(rx_latch);
  void LookForErrorsLatched() RC_REQUIRES(tx_latch, rx_latch);
  void CompletionsChanged() RC_REQUIRES(rx_latch);
  void ForgetCompletions() RC_REQUIRES(rx_latch);

  // --- What has changed (sock_events.cc)
  // Acts on what the stream says has changed; both latches held.
  void HandleChanges() RC_REQUIRES(tx_latch, rx_latch);
  // Whether it was on its lane, and not only on its way there.
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
  void HalfClosed() RC_REQUIRES(tx_latch, rx_latch);  // both latches held
  // On the conductor thread, no latch held: gives the lane back, then the
  // anchor to the kernel, or ends the stream.
  void PostSettle();
  void Settle() RC_EXCLUDES(tx_latch, rx_latch, interest_latch);
  // Gives back a lane that the stream has left while threads still slept on it,
  // once none does; false: some do, and have been woken.
  bool Unpark() RC_EXCLUDES(tx_latch, rx_latch, interest_latch);
  void UnparkLater(std::uint32_t ms);
  bool BackToPlain() RC_EXCLUDES(tx_latch, rx_latch, interest_latch);
  bool StuckOnStash();
  bool AwaitsLane(base::Reason reason);
  void TakeOptions() RC_REQUIRES(tx_latch);
  void BoundSendsLatched() RC_REQUIRES(tx_latch);  // the tx latch held
  void PushOptions() RC_REQUIRES(tx_latch);

  // --- Its end (sock_close.cc)
  void Finish(bool reset) RC_EXCLUDES(tx_latch, rx_latch);
  void ListClosed(Sock** head);
  // With each stream that is closed and not yet finished; none is locked.
  template <class Each>
  static void EachClosed(Each&& each);
  void UnlistClosed();
  void OnLinger();
  bool ResetsAtCloseLatched() const;
  void NeverLeavesTcp(base::Reason reason);
  int LeaveKeptLatched() RC_REQUIRES(tx_latch, rx_latch);
  // Until no call of the conductor's uses the number; bounded.  No latch is
  // held.
  void AwaitBorrowers() const;

  // --- Closed under calls that sleep on it (sock_left.cc)
  class LeftCall;
  // Instead of the end: true if there are some.
  bool LeaveToCalls(int fd, const Successor& next, int* result);
  // The last of them has returned, perhaps.
  void EndLeft() RC_EXCLUDES(tx_latch, rx_latch, interest_latch);
  void EndLeftLater(std::uint32_t ms);
  bool LastLeftLatched(int* number) RC_REQUIRES(tx_latch, rx_latch);
  int SleepersLatched() const;
  // A call that has slept, or has let others have its latch, has it again:
  // whether it is one of them from now on, and says kJoinsLeft.  `result`: what
  // it would say else.
  bool JoinsLeft(const Wait& wait, int result) {
    if (left_fd_ < 0) [[likely]]
      return false;
    return JoinsLeftToo(wait, result);
  }
  [[gnu::cold, gnu::noinline]] bool JoinsLeftToo(const Wait& wait, int result);
  // One that is goes to sleep: true; and has woken.
  [[gnu::cold, gnu::noinline]] bool SleepsLeft();
  [[gnu::cold, gnu::noinline]] void WakesLeft();
  // When its time is over; 0: not known.
  [[gnu::cold, gnu::noinline]] std::uint64_t LeftDeadline() const;
  // Who holds the latch of that direction lets others have it.  True:
  // kJoinsLeft.
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
  bool SpillLatched() RC_REQUIRES(tx_latch, rx_latch);
  // Of a stream on TCP whose unread_ has been made.  Not adopted before that is
  // read: see BackToPlain.
  void BecomeUnread() RC_REQUIRES(rx_latch);
  void PutDeadSocket();
  void EndUnreadLatched() RC_REQUIRES(rx_latch);
  // No other process holds the connection, nor will: a child that is about to
  // come might.
  bool SoleHolder() const;
  // The same before the child of a fork that is under way comes.
  bool SoleHolderBeforeFork() const;
  // The end that this one makes of it is the connection's.
  bool EndsHere() const;
  // The rest of the application's close: waits until the connection is over, or
  // for so long, and closes the number.  No latch is held.
  void Linger(int number, int seconds);
  // Closes a number of the connection's, in a thread that others wait for.
  void CloseWithoutWaiting(int number) const;
  void TellGivenAway(Holding* all) const;
  void LeaveHolders() RC_REQUIRES(tx_latch, rx_latch);
  void Spoil();
  // No other process of its fork's family has it.
  bool EndsOfFamily() const;
  static void TravelledByFork();
  void TakeSettings(int number);
  static Sock* Foreign(int number, int role, std::uint64_t share,
                       base::Reason reason);
  // Of one that came from a program without rcsock (sock_foreign.cc): the role,
  // by what TCP has counted; -1: nobody can tell.
  static int RoleByTcp(int number);
  static std::uint64_t BornNs(int number);  // 0: not known
  // Later, and in another thread.
  void AskForHolders();
  static void LookForStrangers();
  bool OnlyOurNumbers() const;
  // Among the processes that it was passed to.
  bool AloneByNotes(bool unspoilt) const;
  // What TCP has carried of it by now, as the application counts; false: nobody
  // can tell, or it is half closed.
  bool TcpOffsets(std::uint64_t* tx, std::uint64_t* rx) const;
  void MeasureDriftLatched() RC_REQUIRES(tx_latch, rx_latch);
  bool TakeOffsetsLatched() RC_REQUIRES(tx_latch, rx_latch);
  // To the other holders, and from them; both latches held.
  void TellMovedLatched() RC_REQUIRES(tx_latch, rx_latch);
  void HearMovedLatched() RC_REQUIRES(tx_latch, rx_latch);

  // --- What it has moved (sock_account.cc)
  void Fold(Stats* to, bool last);
  void FoldLatched(Stats* to) const RC_REQUIRES(tx_latch, rx_latch);
  // Bytes of this process; those over a lane apart.
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
  // A reference, or null where the last one has gone.
  static std::shared_ptr<Sock> Hold(Sock* sock);
  bool RoomForRemote();
  void Challenge(const Pace& mine);
  static void EvictFor(const Pace& newcomer);
  void Evict(base::Reason reason);
  static void ProbeRemotes();
  static void ProbeSoon();
  std::uint64_t OnItsWay();
  // With either latch.  (The analysis cannot say "either".)
  lane::Lane* PlacingLane(std::uint32_t epoch);
};

// Both latches of a stream, and the signals of this thread held back.
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

// The notify bits and bell that the stream's registrations ask of its lane.
void InterestsNotifyLatched(Sock* sock)
    RC_REQUIRES(sock->tx_latch, sock->rx_latch);

// Raises SIGPIPE in this thread, as a write to a closed connection does.
void RaiseSigpipe();

// Latches that no object owns, around fork.
void SockForkLock();
void ClosedForkLock();
void ClosedForkUnlock(bool child);
void SockForkUnlock(bool child);

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_SOCK_H_
