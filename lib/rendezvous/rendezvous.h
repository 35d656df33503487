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

// The two ends of a connection: addresses as IPv6 (IPv4 mapped), ports in host
// order; `c` is the connector's.
struct Tuple {
  std::uint8_t c_addr[16];
  std::uint8_t s_addr[16];
  std::uint16_t c_port;
  std::uint16_t s_port;
  bool operator==(const Tuple&) const = default;
};

// A stream that looks for a lane.  Reference-counted by shared_ptr; every call
// comes from the conductor thread, or from within Seek, Adopted and Look; none
// holds a latch that others wait for.
class Seeker {
 public:
  virtual ~Seeker() = default;
  virtual stream::Role role() const = 0;
  // getsockname/getpeername of the anchor; false if it is closed.
  virtual bool Names(sockaddr_storage* local, sockaddr_storage* peer) = 0;
  // The number of the anchor; -1: it is closed.  A lane on this host is only
  // for who can show the anchor.
  // After each call that has given a number: it is not used any more.  close()
  // waits for that: a call that is under way holds the open file, which would
  // outlive the close.
  virtual int Descriptor() { return -1; }
  virtual void DescriptorUsed() {}
  // What the application has asked for its packets, IP_TOS or IPV6_TCLASS (`v4`
  // or not); 0: nothing.
  virtual std::uint8_t TrafficClass(bool /*v4*/) { return 0; }
  // The lanes it may have.
  virtual bool MayShm() const { return base::GetConfig().shm; }
  virtual bool MayRdma() const { return base::GetConfig().rdma; }
  // A lane on a device is about to be made, on this end: may there be one more?
  // Each one that may is followed by LeavePlace, when its lane is open
  // (LaneOpen has returned) or will not be.  False: *why.
  virtual bool TakePlace(base::Reason* /*why*/) { return true; }
  virtual void LeavePlace() {}
  // Asks the stream to be adopted by the engine.  When it is (now, or at the
  // next gap between the application's calls), it calls
  // Conductor::Adopted(this).
  virtual void Adopt() = 0;
  // The bell of the poller that will watch the stream, for what is bound to one
  // when it is made (rdma).
  virtual int Bell() { return 1; }
  // Both ends are adopted.  The lane comes with the shared state it lives in.
  // `lane` is given back with Conductor::ReturnLane.
  virtual void LaneOpen(std::unique_ptr<lane::Lane> lane, std::uint32_t epoch,
                        const stream::Nonce& mine, const stream::Nonce& peers,
                        bool authenticated) = 0;
  // The lane's owner link, for pollers: called just before LaneOpen.
  virtual void OnLink(std::shared_ptr<lane::shm::Link> link, int index) = 0;
  // After LaneOpen: the peer process is gone or broke the rules; the lane's
  // State() says why, and nobody else may be told.  Not called once the lane
  // has been returned.
  virtual void LinkLost(base::Reason /*reason*/) {}
  // No lane this time.  `final`: never try again on this connection.
  virtual void SeekFailed(base::Reason reason, bool final) = 0;
};

// The number of a seeker's anchor, for as long as this object lives: hardly
// longer than one system call.
class BorrowedNumber {
 public:
  explicit BorrowedNumber(Seeker* seeker)
      : seeker_(seeker), number_(seeker->Descriptor()) {}
  ~BorrowedNumber() {
    if (number_ >= 0) seeker_->DescriptorUsed();
  }
  BorrowedNumber(const BorrowedNumber&) = delete;
  BorrowedNumber& operator=(const BorrowedNumber&) = delete;
  operator int() const { return number_; }  // -1: it is closed

 private:
  Seeker* const seeker_;
  const int number_;
};

// What the conductor does for the layer above, besides rendezvous.
class AnchorWatcher {
 public:
  virtual ~AnchorWatcher() = default;
  // epoll events of a watched anchor; conductor thread.
  virtual void OnAnchor(std::uint32_t events) = 0;
};

// The one background thread of a process, a Boost.Asio io_context.  Started by
// the first Seek.  All signals blocked in it.
//
// Threads: every method from any thread, unless said otherwise.
class Conductor {
 public:
  // The process's conductor; started if need be.  Null if it can't be (reason
  // in *why), in which case the stream stays on TCP.
  static Conductor* Get(base::Reason* why);
  static Conductor* IfRunning();
  // Joins the thread, if one runs: before unshare and the like.  Links die;
  // seekers fail; the pointers of Get() stay valid and do nothing any more.
  // Hold no latch that a seeker or watcher takes.  A later Get() starts a new
  // one.
  static void Stop();
  // fork: Prepare in the parent before (nothing of it may be mid-way), then
  // ParentAfter or ChildAfter.  The child abandons the parent's io_context
  // (never destroyed), closes the inherited internal fds and has no conductor.
  //
  // Prepare waits for the end of the conductor's turn, in which it may call
  // seekers and watchers: call it before taking latches that they take.  A
  // thread that holds such latches may call anything here meanwhile: only the
  // conductor itself stands still.
  static void ForkPrepare();
  static void ForkParent();
  // `asleep`: a signal handler has forked that had come in a sleep on a lane.
  // What ends that sleep looks at the lane's memory: it stays.
  static void ForkChild(bool asleep = false);

  // Looks for the peer of a stream, once.  Ends in LaneOpen or SeekFailed, at
  // once maybe.  Hold no latch that the seeker takes; so for Adopted and Look.
  void Seek(const std::shared_ptr<Seeker>& seeker);
  // The stream is closed or pinned: forget it; nothing is called afterwards
  // except what is already running.
  void Cancel(Seeker* seeker);
  void Adopted(Seeker* seeker);
  // Takes the peer's answer, in the conductor's place, if it is there and the
  // conductor is not at work: it would come to it in any case.  Never waits,
  // and wakes nobody.
  void Look(Seeker* seeker);
  // The stream has let go of its lane (after Stream::kSettled or its end).
  void ReturnLane(const std::shared_ptr<Seeker>& seeker,
                  std::unique_ptr<lane::Lane> lane);

  // Level-triggered watch of an anchor (EPOLLIN, EPOLLOUT, EPOLLRDHUP), in one
  // internal epoll set.  `events` 0 keeps only HUP and ERR; Unwatch forgets it:
  // call it before the fd is closed.  The watcher must outlive Unwatch plus any
  // OnAnchor already running (hold it by shared_ptr).
  bool Watch(int fd, std::shared_ptr<AnchorWatcher> watcher,
             std::uint32_t events);
  void Rewatch(int fd, std::uint32_t events);
  void Unwatch(int fd);

  // The process is about to end, or to become another program: nobody finds it
  // by way of its RDMA ports any more, and who has asked there has an answer.
  // (On iWARP the kernel, as it closes what a process leaves, waits for the
  // answers to what that has asked: for ten seconds, if they were to come from
  // its own port, or from that of a process that ends too.  And all the while
  // the port is taken, and silent.)
  static void LeaveRdma();

  // Runs `task` on the conductor thread.  Returns false if it will not run:
  // there is no memory, or the conductor has been stopped.
  bool Post(std::function<void()> task);
  // Runs `task` on the conductor thread after `ms`; returns a handle for
  // Cancel.
  std::uint64_t After(std::uint32_t ms, std::function<void()> task);
  void CancelTimer(std::uint64_t handle);

  // Called on the conductor thread with each completion of bell 0.
  void SetCompletionHandler(
      std::function<void(const lane::Completion&)> handler);

  // Called on the conductor thread when somebody asks what this process does
  // (`rcsock stat`): a new descriptor of the answer, or -1.
  void SetInspector(int (*inspector)());

  lane::shm::Bells* bells();
  // Where the drains of sources put what they find; polled for bell 0 here.
  lane::Board* board();
  // `delta` more lanes of this source ring bell 0: while there is one, the
  // conductor keeps the source armed and drains it.
  void SourceWanted(lane::Source* source, int delta);
  // Every live link, for new pollers.
  std::vector<std::shared_ptr<lane::shm::Link>> Links();
  bool OnThread() const;  // is the caller the conductor thread?

  // Bells::EnsureBell(k) has made a bell: tells every peer, and those to come.
  void AnnounceBell(int k);

 private:
  friend class Core;
  Conductor();
  Core* core_;
};

// Whether this host has an RDMA device at all.  Looks at most once a second.
bool RdmaPossible();

}  // namespace rcsock::rendezvous

#endif  // RCSOCK_LIB_RENDEZVOUS_RENDEZVOUS_H_
