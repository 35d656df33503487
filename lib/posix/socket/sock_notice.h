#ifndef RCSOCK_LIB_POSIX_SOCKET_SOCK_NOTICE_H_
#define RCSOCK_LIB_POSIX_SOCKET_SOCK_NOTICE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "lib/base/latch_pair.h"
#include "lib/lane/lane.h"
#include "lib/lane/shm/link.h"

namespace rcsock::lane::shm {
class ShmLane;
}

namespace rcsock::posix {

class Sock;

// What the lane of a stream does when something comes: which notify bits and
// bell it uses, through which link or source.  Also the threads that sleep in
// poll() for the stream.
//
// A part of its Sock.  Any thread may call it, and holds no latch of the
// stream, unless a method says otherwise.
class LaneNotice {
 public:
  // `latches`: the stream's.
  LaneNotice(Sock* sock, const base::LatchPair& latches)
      : sock_(sock), latches_(latches) {}

  // --- The caller may hold any latch.  Without one the lane may change at any
  // moment
  // Returns what a thread that waits for the stream must drain, or null.
  lane::Source* source() const {
    return source_.load(std::memory_order_acquire);
  }
  int bell() const { return bell_.load(std::memory_order_relaxed); }
  std::uint32_t bits() const { return bits_.load(std::memory_order_relaxed); }
  // Returns the link of a lane in shared memory, or null.
  const std::shared_ptr<lane::shm::Link>& link() const { return link_; }
  // Tells the link which lines to fetch before it reports the stream: the
  // stream's only registration, and its entry of the table.
  void ReportedBy(const void* registration, const void* entry) {
    if (link_ == nullptr) return;
    link_->SetBeside(index_, 0, registration);
    link_->SetBeside(index_, 1, entry);
  }

  // --- Require both latches of the stream
  // The stream's lane will be place `index` of the link, which then reports the
  // stream.  Returns the link that there was.
  std::shared_ptr<lane::shm::Link> Join(std::shared_ptr<lane::shm::Link> link,
                                        int index);
  // Gives up the link, and a lane that has not ended.  Returns the link.
  std::shared_ptr<lane::shm::Link> TakeLink();
  // The lane has come.
  void Begin(lane::Lane* lane);
  // Replaces the notify bits of the lane, if there is a lane.
  void Tell(std::uint32_t bits, int bell);
  // As Tell, for threads that may sleep in poll() on the bell before.
  void Set(std::uint32_t bits, int bell) {
    Tell(bits, bell);
    KickPollers();
  }
  // As Set for a lane in shared memory, without the fence behind it.
  void Wish(std::uint32_t bits);
  // The lane goes.
  void End();

  // The lane has gone: the link reports the stream no more.
  void Unreport() {
    if (link_ != nullptr) link_->SetCookie(index_, nullptr);
  }

  // --- Threads in poll()
  // Counts a thread that is about to sleep.  A lane that rings no bell rings
  // this one from now on.
  void EnterPoll(int bell);
  // Takes EnterPoll back.
  void LeavePoll() { polls_.fetch_sub(1, std::memory_order_seq_cst); }
  // Wakes such threads.  The caller may hold any latch of the stream.
  void KickPollers();

  // Forgets all, for another connection.  Threads in poll() take back their
  // counts, maybe late.
  void Reset() {
    latches_.AssertUnshared();
    link_.reset();
    index_ = -1;
    bits_.store(0, std::memory_order_relaxed);
    bell_.store(0, std::memory_order_relaxed);
    source_.store(nullptr, std::memory_order_relaxed);
    lane_ = nullptr;
    source_wanted_ = false;
  }
  // In the child of a fork: the lane, and the threads, are the parent's.
  void OnForkChild();

 private:
  // Returns the lane if it is in shared memory, or null.
  lane::shm::ShmLane* Shm() const RC_REQUIRES(latches_.tx, latches_.rx);
  // The thread that waits for a source's lanes drains the source.  For lanes
  // that ring the conductor's bell, the conductor does.
  void WantSource(bool wanted) RC_REQUIRES(latches_.tx, latches_.rx);

  // The members that a look touches come first, and lie in one cache line.
  std::atomic<std::uint32_t> bits_{0};
  std::atomic<int> bell_{0};
  // Threads that sleep in poll() on a bell for this stream.
  std::atomic<int> polls_{0};
  std::atomic<lane::Source*> source_{nullptr};
  std::shared_ptr<lane::shm::Link> link_;
  int index_ = -1;
  Sock* const sock_;
  const base::LatchPair latches_;
  lane::Lane* lane_ RC_GUARDED_BY_BOTH(latches_.tx, latches_.rx) = nullptr;
  // The conductor counts this stream as one that wants source_ drained.
  bool source_wanted_ RC_GUARDED_BY_BOTH(latches_.tx, latches_.rx) = false;
};

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_SOCKET_SOCK_NOTICE_H_
