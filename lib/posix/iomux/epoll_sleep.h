#ifndef RCSOCK_LIB_POSIX_IOMUX_EPOLL_SLEEP_H_
#define RCSOCK_LIB_POSIX_IOMUX_EPOLL_SLEEP_H_

#include <atomic>
#include <cstdint>

#include "lib/base/spin_budget.h"
#include "lib/lane/shm/shm_poller.h"
#include "lib/posix/iomux/epoll.h"
#include "lib/posix/thread/signals.h"

namespace rcsock::posix {

// A thread on its way into the kernel, and there: the thread is counted, and
// all is armed.  The destructor undoes both, on cancellation too.  The first
// part of a sleep is a nap of kNapNs at most, as in ShmLane::SleepRx.  There is
// no nap if the thread is likely to sleep for longer.
//
// A nap is armed without the heavy fence.  A sender may look at the armed word
// while its message is still in its store buffer, and then kicks nobody.  The
// nap ends by itself, and the look behind its end finds the message.  All other
// news comes from threads that have fenced in full: Mark, PublishCredit, the
// board, KickSleepers.  A sender that misses a napping thread misses no other
// thread for that reason: the nap makes a new generation, which only adds
// kicks.
//
// If the thread has an unlooked edge while others sleep, it must make sure of
// the others.  A sender that this look misses may believe that it has kicked,
// in the generation of the others.  A nap may end with the kernel's news, and
// the thread then leaves without another look.  So with an unlooked edge the
// thread naps only if no other sleeps here.  A thread that comes later arms and
// looks for itself.
class EpollSet::Sleep {
 public:
  // Arm() is a full fence, and so is the sender's side between its post and its
  // look at the armed word.  For what threads of this process put on the ready
  // list, sleepers_ has the fence.  `unlooked`: see Leave.
  //
  // `life` is the set's at the start of the wait.  The closing thread changes
  // the set's life, then looks at sleepers_; all is sequentially consistent.
  // Either the closing thread sees the count and leaves the poller, or the
  // counted thread sees the new life and touches nothing.
  // `brief`: the wait is no longer than a nap.
  Sleep(EpollSet* set, std::uint32_t life, bool unlooked, bool brief)
      : set_(set) {
    Critical critical;
    const int others = set_->sleepers_.fetch_add(1, std::memory_order_seq_cst);
    alone_ = others == 0;
    if (set_->life_.load(std::memory_order_seq_cst) != life) {
      set_->sleepers_.fetch_sub(1, std::memory_order_seq_cst);
      return;
    }
    tls_signals.wait.sleeper = true;
    // This thread may take the edge of the timer from another sleeper, which
    // goes to sleep without the timer now.
    if (!alone_ && set_->timer_.Used()) [[unlikely]] {
      set_->timer_.Refuse();
      set_->KickBell();
    }
    poller_ = set_->poller_.get();
    if (poller_ != nullptr) {
      naps_ = poller_->Fences() && (others == 0 || !unlooked) &&
              (brief || !base::tls_spin.SleepsLong());
      naps_ ? poller_->ArmForNap() : poller_->Arm();
    }
    count_ = set_->source_count_.load(std::memory_order_seq_cst);
    for (int i = 0; i < count_; ++i) (sources_[i] = set_->source(i))->Arm();
  }
  ~Sleep() {
    Critical critical;
    // Otherwise a handler ends the thread.
    if (tls_signals.wait.sleeper) {
      // The bell comes first: what the sources drain need not ring for this
      // thread.
      if (poller_ != nullptr) poller_->Disarm();
    }
    for (int i = 0; i < count_; ++i) sources_[i]->Disarm(rang);
    if (!tls_signals.wait.sleeper) return;
    tls_signals.wait.sleeper = false;
    set_->sleepers_.fetch_sub(1, std::memory_order_seq_cst);
  }
  Sleep(const Sleep&) = delete;
  Sleep& operator=(const Sleep&) = delete;

  bool naps() const { return naps_; }
  // No other thread slept in the set when this one was counted.
  bool alone() const { return alone_; }
  // Called when the nap is over, and has found nothing.  Arms for good, with a
  // new generation.  Then the caller looks.
  void Deepen() {
    Critical critical;
    naps_ = false;
    if (poller_ != nullptr) poller_->Renew();
  }

  bool rang = false;

 private:
  EpollSet* const set_;
  lane::shm::ShmPoller* poller_ = nullptr;  // armed by this sleep
  bool alone_ = false;
  bool naps_ = false;
  int count_ = 0;
  lane::Source* sources_[kMostSources];
};

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_IOMUX_EPOLL_SLEEP_H_
