#ifndef RCSOCK_LIB_POSIX_IOMUX_KEPT_TIMER_H_
#define RCSOCK_LIB_POSIX_IOMUX_KEPT_TIMER_H_

#include <atomic>
#include <cstdint>

#include "lib/base/latch.h"
#include "lib/posix/socket/interest_latch.h"

namespace rcsock::posix {

// A timer of the kernel that stays armed from one sleep in an epoll set to the
// next.
//
// A client waits until its next request is due.  An answer ends the wait, and
// the client waits again until that time.  The time-out of epoll_pwait2 is
// armed and cancelled by the first sleep, and armed by the second.  If it is
// the next timer of its processor, each of the three writes the processor's
// timer.  In a virtual machine that takes 5 us, more than the rest of a sleep.
// This timer is armed once for both.
//
// The timer is a timerfd in the kernel's part of the set, with EPOLLET, as the
// bell is.  The kernel gives its edge to one thread.  So it serves a set in
// which one thread sleeps at a time.  The sleep has a time-out as well, that
// is a nap longer.  That time-out ends the sleep if another thread has taken
// the edge.
//
// Threads: any.  An EpollSet owns it.
class KeptTimer {
 public:
  KeptTimer() = default;
  KeptTimer(const KeptTimer&) = delete;
  KeptTimer& operator=(const KeptTimer&) = delete;

  // Called by the only sleeper of a set.  Returns whether the timer ends a
  // sleep until `deadline_ns`: at that time or up to kSlackNs later, as the
  // kernel's time-outs do.  `set_fd` is the number of the set.
  bool Ends(const std::atomic<int>& set_fd, std::uint64_t deadline_ns)
      RC_EXCLUDES(interest_latch, latch_);
  // Whether a thread has ever relied on the timer.
  bool Used() const { return used_.load(std::memory_order_relaxed); }
  // From now on, until Close, the timer serves no sleep.  Several threads sleep
  // in the set, or others wait for the set from outside.  A sleep that relies
  // on the timer may last until its own time-out.
  void Refuse() RC_EXCLUDES(latch_);
  // The set is closed.
  void Close() RC_EXCLUDES(latch_);
  // In a child of fork.  The parent's timer stays in the kernel's set, which
  // both have.
  void ForkChild();

 private:
  // The time-out of a thread that has not asked for another
  // (PR_SET_TIMERSLACK).
  static constexpr std::uint64_t kSlackNs = 50'000;
  // A program computes its time-outs from times that it has read before.  So
  // the second sleep may end a little earlier than the first.
  static constexpr std::uint64_t kEarlierNs = 5'000;
  // The timer is used while more than a third of the sleeps go on until the
  // time of the sleep before.
  static constexpr int kGain = 2;
  static constexpr int kEnough = 4;
  static constexpr int kMost = 16;
  static constexpr int kMostThreads = 4;

  bool EndsLatched(std::uint64_t deadline_ns) RC_REQUIRES(latch_);
  bool Open(int set_fd) RC_REQUIRES(interest_latch, latch_);
  bool Arm() RC_REQUIRES(latch_);
  void CloseLatched() RC_REQUIRES(latch_);

  base::Latch latch_;
  std::atomic<bool> used_{false};
  int fd_ RC_GUARDED_BY(latch_) = -1;
  bool refused_ RC_GUARDED_BY(latch_) = false;
  bool armed_ RC_GUARDED_BY(latch_) = false;
  int score_ RC_GUARDED_BY(latch_) = 0;
  std::uint32_t arms_ RC_GUARDED_BY(latch_) = 0;
  int threads_ RC_GUARDED_BY(latch_) = 0;               // changes of thread_
  const void* thread_ RC_GUARDED_BY(latch_) = nullptr;  // the last sleeper
  std::uint64_t at_ns_ RC_GUARDED_BY(latch_) =
      0;  // where it is armed, if it is
};

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_IOMUX_KEPT_TIMER_H_
