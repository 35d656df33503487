#ifndef RCSOCK_LIB_RENDEZVOUS_CORE_H_
#define RCSOCK_LIB_RENDEZVOUS_CORE_H_

#include <pthread.h>

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <memory>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lib/base/identity.h"
#include "lib/base/process_latch.h"
#include "lib/rendezvous/address.h"
#include "lib/rendezvous/anchors.h"
#include "lib/rendezvous/channel.h"
#include "lib/rendezvous/inspection.h"
#include "lib/rendezvous/neighbours.h"
#include "lib/rendezvous/recent.h"
#include "lib/rendezvous/rendezvous.h"
#include "lib/rendezvous/shifts.h"
#include "lib/rendezvous/silent.h"
#include "lib/rendezvous/socket_diag.h"
#include "lib/rendezvous/sources.h"
#include "lib/rendezvous/step.h"
#include "lib/rendezvous/waiting_line.h"
#include "lib/rendezvous/wire.h"

namespace rcsock::rendezvous {

class Connection;
class PeerLink;
class Rdma;
class Session;

// The state of the conductor, which Conductor hides.  A core is never
// destroyed: any thread may use a raw Conductor pointer when the conductor
// stops.  A stop gives back what costs something, such as descriptors and
// links.
//
// Threads: any thread may use what is marked (any), under its latch.
// Everything else belongs to a Step, of a thread of the conductor's or of a
// thread that has taken its place (Here).
class Core {
 public:
  explicit Core(Conductor* conductor);

  // The life of the prompt thread, and so the conductor's.  `state` and `why`
  // report how it goes.
  void Run();
  // Takes turns in the thread's shifts, until the conductor ends.
  void TakeTurns(Shifts::Shift own);
  void RequestStop();
  Conductor* conductor() const { return conductor_; }

  // --- Sessions and links
  Session* FindSession(const Tuple& tuple, stream::Role role);
  bool AddSession(Session* session);  // false: its tuple has a session
  void RemoveSession(Session* session);
  // Returns the live link with that process of that user, or null.  `decider`:
  // this end decides on the link.
  std::shared_ptr<PeerLink> FindLink(const Uuid& uuid, uid_t uid, bool decider);
  // Returns the link whose peer has offered what this session looks for.
  std::shared_ptr<PeerLink> FindOffer(const Tuple& tuple, stream::Role role);
  void AddLink(std::shared_ptr<PeerLink> link);
  void RemoveLink(PeerLink* link);
  // Rings those of these bells that are armed.
  void RingBells(lane::BellMask which);
  // Takes what this process has just sent itself over its own link: the
  // message, the answer, and the message after that.
  void LookAtSelf();
  std::uint32_t NextEpoch();
  bool RandomBytes(void* to, std::size_t length);
  // Whether the rings of this process have all the memory that they may have
  // (max_shared).
  bool SharedMemoryIsSpent();
  bool MayBind() const { return binders < max_binders; }
  // Sessions that may bind once fewer others do.
  WaitingLine<Session> queue;
  // Called when a binder has gone.
  void NextInQueue();

  // --- RDMA
  // Makes the RDMA state on first use.  Returns null and sets *why_not if it
  // cannot.
  Rdma* GetRdma(base::Reason* why_not);
  Rdma* rdma() const {
    // A connection that outlives the conductor finds null.
    step.AssertUnshared();
    return rdma_.get();
  }
  // Keeps the connection of a stream's lane until ReturnLane.
  void AddRdmaLane(const lane::Lane* lane,
                   std::shared_ptr<Connection> connection);

  // Services where a connector found no peer under rcsock.
  Recent plain{1'000'000'000};
  // Services where a connector found its peer.  A peer that is missing there is
  // late, not plain.
  Recent met{10'000'000'000};
  // Services whose peers were not in the meeting directory.
  Recent nobody_far{1'000'000'000};
  // Services where an RDMA handshake got no answer.
  Silent silent{5'000'000'000, 5'000'000'000};
  // Own addresses whose device is known to be hardware, at port 0.
  Recent hardware{10'000'000'000};
  Neighbours neighbours;

  // --- Called by Conductor (any)
  void Seek(const std::shared_ptr<Seeker>& seeker, Conductor::When when);
  void Cancel(Seeker* seeker);
  void Adopted(Seeker* seeker);
  void Look(Seeker* seeker);
  void ReturnLane(std::unique_ptr<lane::Lane> lane);
  // ReturnLane of a lane whose memory a driver has pinned.
  void ReturnPages(std::unique_ptr<lane::Lane> lane);
  bool PostTask(std::function<void()> task);
  std::uint64_t After(std::uint32_t ms, std::function<void()> task);
  void CancelTimer(std::uint64_t handle);
  void LeaveRdma();
  void AnnounceBell(int k);
  void SetHandler(std::function<void(const lane::Completion&)> handler);
  void SetInspector(int (*inspector)()) {
    inspector_.store(inspector, std::memory_order_release);
  }
  std::vector<std::shared_ptr<lane::shm::Link>> Links();
  // Returns false if the seeker has no such session any more.
  bool ForgetSeeker(const Seeker* seeker, const Session* session);

  // Returns a descriptor of this process's answer to `rcsock stat`, or -1.
  int Inspect() const {
    int (*inspector)() = inspector_.load(std::memory_order_acquire);
    return inspector == nullptr ? -1 : inspector();
  }

  // Called in the child of fork.
  void Abandon(bool asleep);

  // Destroyed with its descriptors when the conductor ends.  A thread posts
  // under table_latch_, so that none posts to an io_context that has gone.
  std::optional<boost::asio::io_context> io_holder{std::in_place, 1};
  boost::asio::io_context& io = *io_holder;
  // Held in each turn of the conductor.  Its holder sees no half-done change.
  base::ProcessLatch step{base::ProcessLatchOf::kConductor};
  Uuid uuid{};
  // The bells and the board last as long as the process: pollers outlive a
  // conductor.
  lane::shm::Bells* bells = nullptr;
  lane::Board* board = nullptr;
  Shifts shifts{this};
  Sources sources{this};
  Anchors anchors;
  HostAddresses host;
  SocketDiag diag;
  int binders = 0;
  int max_binders = 256;

  struct LaneHome {
    std::weak_ptr<PeerLink> link;
    int index;
    std::uint32_t epoch;
  };
  std::unordered_map<const lane::Lane*, LaneHome> lanes;

  // Notes on its own thread which user owns the process.
  void NoteOwner();
  // Returns base::OwnUid() of this turn, which asks once.  What makes or takes
  // a socket asks again.
  uid_t OwnUid() const { return owner_.load(std::memory_order_relaxed); }

  pthread_t thread{};               // the prompt one
  std::uint32_t thread_number = 0;  // as /proc names it
  enum : std::uint32_t { kStarting, kRunning, kFailed, kEnded };
  std::atomic<std::uint32_t> state{kStarting};
  base::Reason why = base::Reason::kNoThread;

 private:
  bool SetUp();
  void TearDown();
  void WaitBell();
  void OnBell();
  // Returns true if nothing was left, and false after a bounded number of
  // completions.
  bool DrainBell();
  void WaitAnchors();
  void ServeStreams();
  // Returns true if this has ended a wait for the anchors.
  bool DispatchAnchors();
  void NoteAsioFds();
  // Ends links that never carry a lane.  A process of our own uid, or of a
  // named user, may begin links and never prove that it has a connection.  Each
  // new link ends those that have waited for ten seconds, and the oldest of too
  // many.
  void EndVainLinks();
  void ReturnRdmaLane(std::unique_ptr<lane::Lane> lane);
  template <typename Call>
  bool PostLocked(Call&& call) RC_REQUIRES(table_latch_);
  template <typename Call>
  bool Here(Call&& call, bool meets = true);
  void SetAlarm();
  void OnAlarm();
  std::shared_ptr<Session> SessionOf(Seeker* seeker);  // null: none

  Conductor* const conductor_;
  std::atomic<uid_t> owner_{base::kNoUid};
  std::atomic<int (*)()> inspector_{nullptr};
  Inspection inspection_{this};
  std::unique_ptr<lane::shm::ShmPoller> poller_;
  std::unique_ptr<boost::asio::posix::stream_descriptor> bell_;
  std::unique_ptr<boost::asio::posix::stream_descriptor> anchor_set_;
  int asio_fds_[3] = {-1, -1, -1};

  // One session for each end of a connection.  This process may have both.
  std::unordered_map<Tuple, Session*, TupleHash> sessions_[2] RC_GUARDED_BY(
      step);
  std::vector<std::shared_ptr<PeerLink>> links_ RC_GUARDED_BY(step);
  std::uint64_t max_shared_ = 0;  // once it has been read
  // LookAtSelf is under way.
  bool at_self_ RC_GUARDED_BY(step) = false;
  std::unique_ptr<Rdma> rdma_ RC_GUARDED_BY(step);
  std::atomic<bool> had_rdma_{false};
  std::uint32_t epoch_ RC_GUARDED_BY(step) = 0;
  std::optional<boost::asio::steady_timer> alarm_ RC_GUARDED_BY(step);

  using Clock = std::chrono::steady_clock;
  struct Task {
    Clock::time_point due;
    std::shared_ptr<std::function<void()>> run;
  };
  using Tasks = std::unordered_map<std::uint64_t, Task>;
  using Handler =
      std::shared_ptr<const std::function<void(const lane::Completion&)>>;
  base::ProcessLatch table_latch_{base::ProcessLatchOf::kTables};  // (any)
  bool accepting_ RC_GUARDED_BY(table_latch_) = true;
  std::unordered_map<const Seeker*, std::shared_ptr<Session>> seekers_
      RC_GUARDED_BY(table_latch_);
  Tasks tasks_ RC_GUARDED_BY(table_latch_);
  std::set<std::pair<Clock::time_point, std::uint64_t>> due_
      RC_GUARDED_BY(table_latch_);  // those of tasks_
  // No task is due before the alarm is.
  Clock::time_point alarm_at_ RC_GUARDED_BY(table_latch_) =
      Clock::time_point::max();
  std::uint64_t next_timer_ RC_GUARDED_BY(table_latch_) = 0;
  Handler handler_ RC_GUARDED_BY(table_latch_);
  std::vector<std::shared_ptr<lane::shm::Link>> live_links_
      RC_GUARDED_BY(table_latch_);
  // The lanes that streams have.  They may outlive the thread.
  std::unordered_map<const lane::Lane*, std::shared_ptr<Connection>> rdma_lanes_
      RC_GUARDED_BY(table_latch_);
  // Set in a child of fork.
  bool abandoned_ RC_GUARDED_BY(table_latch_) = false;
};

}  // namespace rcsock::rendezvous

#endif  // RCSOCK_LIB_RENDEZVOUS_CORE_H_
