#ifndef RCSOCK_LIB_RENDEZVOUS_RENDEZVOUS_H_
#define RCSOCK_LIB_RENDEZVOUS_RENDEZVOUS_H_

#include <sys/socket.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "lib/base/config.h"
#include "lib/base/reason.h"
#include "lib/lane/board.h"
#include "lib/lane/lane.h"
#include "lib/lane/shm/link.h"
#include "lib/stream/stream.h"

namespace rcsock::rendezvous {

class Core;

// The two ends of a connection.  Addresses are in IPv6 form, IPv4 mapped; ports
// are in host order.  `c` is the end that connected.
struct Tuple {
  std::uint8_t c_addr[16];
  std::uint8_t s_addr[16];
  std::uint16_t c_port;
  std::uint16_t s_port;
  bool operator==(const Tuple&) const = default;
};

// A stream that looks for a lane, held by shared_ptr.  The conductor's thread
// makes every call, or a thread within Seek, Adopted or Look.  No caller holds
// a latch that other threads wait for.
class Seeker {
 public:
  virtual ~Seeker() = default;
  virtual stream::Role role() const = 0;
  // Returns the anchor's two addresses.  Returns false if the anchor is closed.
  virtual bool Names(sockaddr_storage* local, sockaddr_storage* peer) = 0;
  // Returns the number of the anchor, or -1 if the anchor is closed.  Only a
  // process that can show its anchor gets a lane on this host.  The caller
  // calls DescriptorUsed after each call that has returned a number.  close()
  // waits for DescriptorUsed: a system call under way holds the open file,
  // which would outlive the close.
  virtual int Descriptor() { return -1; }
  virtual void DescriptorUsed() {}
  // Returns the traffic class that the application has set for its packets:
  // IP_TOS if `v4`, else IPV6_TCLASS.  Returns 0 if it has set none.
  virtual std::uint8_t TrafficClass(bool /*v4*/) { return 0; }
  // Which lanes the stream may have.
  virtual bool MayShm() const { return base::GetConfig().shm; }
  virtual bool MayRdma() const { return base::GetConfig().rdma; }
  // Returns whether this end may make one more lane on a device.  If not, sets
  // *why.  LeavePlace follows each success: once the lane is open (LaneOpen has
  // returned), or once it is certain that no lane comes.
  virtual bool TakePlace(base::Reason* /*why*/) { return true; }
  virtual void LeavePlace() {}
  // Asks the stream to have itself adopted by the engine.  Once it is adopted,
  // at once or at the next gap between the application's calls, the stream
  // calls Conductor::Adopted(this).
  virtual void Adopt() = 0;
  // Returns the bell of the poller that will watch the stream.  An RDMA lane is
  // bound to a bell when it is made.
  virtual int Bell() { return 1; }
  // Gives the stream its lane: both ends are adopted.  The lane keeps the
  // shared state that it uses.  The stream returns `lane` by
  // Conductor::ReturnLane.
  virtual void LaneOpen(std::unique_ptr<lane::Lane> lane, std::uint32_t epoch,
                        const stream::Nonce& mine, const stream::Nonce& peers,
                        bool authenticated) = 0;
  // Names the link of the lane, for pollers.  Called just before LaneOpen.
  virtual void OnLink(std::shared_ptr<lane::shm::Link> link, int index) = 0;
  // Called after LaneOpen, when the peer's process has gone or has broken the
  // rules.  The lane's State() says why.  This call may be the only report.  It
  // never comes once the lane has been returned.
  virtual void LinkLost(base::Reason /*reason*/) {}
  // The search has found no lane.  `final`: the stream must never try again on
  // this connection.
  virtual void SeekFailed(base::Reason reason, bool final) = 0;
};

// Holds the number of a seeker's anchor while this object lives.  Keep it
// hardly longer than one system call.
class BorrowedNumber {
 public:
  explicit BorrowedNumber(Seeker* seeker)
      : seeker_(seeker), number_(seeker->Descriptor()) {}
  ~BorrowedNumber() {
    if (number_ >= 0) seeker_->DescriptorUsed();
  }
  BorrowedNumber(const BorrowedNumber&) = delete;
  BorrowedNumber& operator=(const BorrowedNumber&) = delete;
  operator int() const { return number_; }  // -1: the anchor is closed

 private:
  Seeker* const seeker_;
  const int number_;
};

// What the conductor reports of an anchor to the layer above.
class AnchorWatcher {
 public:
  virtual ~AnchorWatcher() = default;
  // Called on the conductor thread with the epoll events of a watched anchor.
  virtual void OnAnchor(std::uint32_t events) = 0;
};

// What works in the background of a process: a Boost.Asio io_context, which one
// of two threads runs at a time (Shifts).  The first stream that looks for a
// lane starts it.  Its threads block all signals.
//
// Threads: any, unless a method says otherwise.
class Conductor {
 public:
  // Returns the process's conductor, and starts it if need be.  Returns null
  // and sets *why if it cannot run.  The stream then stays on TCP.
  static Conductor* Get(base::Reason* why);
  static Conductor* IfRunning();
  // How many threads the conductor has; 0: there is none.
  static int Threads();
  // Has the thread that gives way to nobody take all turns but the next.  For a
  // process that is about to lose system calls, or its last thread.
  static void PromptOnly();
  // As PromptOnly, and waits until it is so, for 0.1 s at most.
  static void AwaitPromptOnly();
  // Returns why Get would return null at once, or kNone.  Does not wait for a
  // start that is under way.
  static base::Reason FailedLately();
  // Joins the threads if it runs, for instance before unshare.  Links die and
  // seekers fail.  Pointers from Get() stay valid and do nothing any more.  The
  // caller holds no latch that a seeker or watcher takes.  A later Get() starts
  // a new conductor.
  static void Stop();
  // The three steps of a fork.  The parent calls ForkPrepare before the fork,
  // and ForkParent after it.  The child calls ForkChild, which abandons the
  // parent's io_context and never destroys it.  ForkChild closes the internal
  // descriptors that the child inherited.  The child has no conductor then.
  //
  // ForkPrepare waits for the end of the conductor's turn, in which the
  // conductor may call seekers and watchers.  So the caller must hold no latch
  // that seekers or watchers take.  A thread that holds such a latch may call
  // anything here meanwhile: only the conductor stands still.
  static void ForkPrepare();
  static void ForkParent();
  // `asleep`: a signal handler has forked, and has interrupted a sleep on a
  // lane.  What ends that sleep reads the lane's memory, so the child keeps
  // that memory.
  static void ForkChild(bool asleep = false);

  // Looks for the peer of a stream, once.  The search ends in LaneOpen or
  // SeekFailed, maybe before this returns.  The caller of Seek, Adopted or Look
  // holds no latch that the seeker takes.
  //
  // kNow: this thread begins the search, if it can.  kSoon: a thread of the
  // conductor's does, so that this one can go on with its requests.
  enum class When : bool { kNow, kSoon };
  void Seek(const std::shared_ptr<Seeker>& seeker, When when = When::kNow);
  // Forgets a stream that is closed or pinned.  Afterwards the conductor calls
  // nothing of the seeker.  A call that is under way goes on.
  void Cancel(Seeker* seeker);
  void Adopted(Seeker* seeker);
  // If the peer's answer is there, and no turn is under way, takes the answer
  // in the conductor's place.  Otherwise the conductor takes it later.  Never
  // waits, and wakes no thread.
  void Look(Seeker* seeker);
  // Takes back the lane of a stream that has settled (Stream::kSettled) or
  // ended.
  void ReturnLane(const std::shared_ptr<Seeker>& seeker,
                  std::unique_ptr<lane::Lane> lane);

  // Watches an anchor for EPOLLIN, EPOLLOUT and EPOLLRDHUP, level-triggered, in
  // one internal epoll set.  With `events` 0 only HUP and ERR remain.  The
  // caller calls Unwatch before it closes the descriptor.  The watcher must
  // outlive Unwatch and any OnAnchor under way: hold it by shared_ptr.
  bool Watch(int fd, std::shared_ptr<AnchorWatcher> watcher,
             std::uint32_t events);
  void Rewatch(int fd, std::uint32_t events);
  void Unwatch(int fd);

  // Called when the process is about to end, or to execute another program.  No
  // peer finds the process at its RDMA ports any more.  Each peer that has
  // asked there gets an answer.
  //
  // On iWARP the kernel keeps an ending process until its own requests are
  // answered.  The kernel waits ten seconds if the process itself, or another
  // process that ends, was to answer.  Meanwhile the port is taken and silent.
  static void LeaveRdma();

  // Runs `task` on the conductor thread.  Returns false if the task will not
  // run: there is no memory, or the conductor has stopped.
  bool Post(std::function<void()> task);
  // Runs `task` on the conductor thread after `ms`.  Returns a handle for
  // CancelTimer, or 0 if there is no memory.
  std::uint64_t After(std::uint32_t ms, std::function<void()> task);
  void CancelTimer(std::uint64_t handle);

  // Sets what the conductor thread calls with each completion of bell 0.
  void SetCompletionHandler(
      std::function<void(const lane::Completion&)> handler);

  // Sets what the conductor calls when `rcsock stat` asks this process.  The
  // inspector returns a new descriptor of the answer, or -1.
  void SetInspector(int (*inspector)());

  lane::shm::Bells* bells();
  // The board takes what drains of sources find.  The conductor polls it for
  // bell 0.
  lane::Board* board();
  // Counts `delta` more lanes of `source` that ring bell 0.  While there are
  // any, the conductor keeps the source armed and drains it.
  void SourceWanted(lane::Source* source, int delta);
  // Returns every live link, for a new poller.
  std::vector<std::shared_ptr<lane::shm::Link>> Links();
  bool OnThread() const;  // whether the caller is one of its threads

  // Called when Bells::EnsureBell(k) has made a bell.  Announces it to all
  // peers with a link; a later link starts with it.
  void AnnounceBell(int k);

 private:
  friend class Core;
  Conductor();
  // The calling thread is one of the conductor's.
  static void Enter(Core* core);
  Core* core_;
};

// Returns whether this host has an RDMA device.  Looks at most once a second.
bool RdmaPossible();

}  // namespace rcsock::rendezvous

#endif  // RCSOCK_LIB_RENDEZVOUS_RENDEZVOUS_H_
