#include "lib/posix/iomux/kept_timer.h"

#include <sched.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>

#include "lib/base/critical.h"
#include "lib/base/real.h"
#include "lib/base/spin_budget.h"
#include "lib/base/unique_fd.h"
#include "lib/posix/sys/identity.h"

namespace rcsock::posix {

namespace {

// A real-time thread, which has no slack, or one with less of it, wants its
// time-outs more exact than the timer is.
bool HasSlack(std::uint64_t ns) {
  return ::prctl(PR_GET_TIMERSLACK) >= static_cast<int>(ns);
}
bool IsRealTime() {
  switch (::sched_getscheduler(0) & ~SCHED_RESET_ON_FORK) {
    case SCHED_FIFO:
    case SCHED_RR:
    case 6:  // SCHED_DEADLINE
      return true;
    default:
      return false;
  }
}

}  // namespace

// A filter of system calls that does not know a call may end the process.  The
// timer can be done without, so it takes no number of the program's.
bool KeptTimer::Open(int set_fd) {
  if (::prctl(PR_GET_SECCOMP) != 0 || IsRealTime()) return false;
  int low = -1;
  fd_ = base::OpenHighForParent([&low] {
    low = static_cast<int>(::syscall(SYS_timerfd_create, CLOCK_MONOTONIC,
                                     TFD_CLOEXEC | TFD_NONBLOCK));
    return low;
  });
  if (fd_ < 0) return false;
  // The data is an address that no program can know.
  epoll_event event{};
  event.events = EPOLLIN | EPOLLET;
  event.data.ptr = this;
  if (fd_ != low && real::epoll_ctl(set_fd, EPOLL_CTL_ADD, fd_, &event) == 0) {
    return true;
  }
  CloseLatched();
  return false;
}

// This undoes an expiry that no wait has seen yet.
bool KeptTimer::Arm() {
  // The thread may have changed its slack since.
  constexpr std::uint32_t kAskEach = 64;
  if (arms_++ % kAskEach == 0 && !HasSlack(kSlackNs)) {
    refused_ = true;
    CloseLatched();
    return false;
  }
  constexpr std::uint64_t kSecond = 1'000'000'000;
  const itimerspec at{{},
                      {static_cast<time_t>(at_ns_ / kSecond),
                       static_cast<long>(at_ns_ % kSecond)}};
  armed_ =
      ::syscall(SYS_timerfd_settime, fd_, TFD_TIMER_ABSTIME, &at, nullptr) == 0;
  return armed_;
}

// Whether the timer is to end this sleep.
bool KeptTimer::EndsLatched(std::uint64_t deadline_ns) {
  if (refused_) return false;
  if (thread_ != &base::tls_spin) {
    refused_ = thread_ != nullptr && ++threads_ > kMostThreads;
    thread_ = &base::tls_spin;
    score_ = 0;
    arms_ = 0;
  }
  if (at_ns_ - deadline_ns <= kSlackNs) {
    score_ = std::min(score_ + kGain, kMost);
  } else {
    score_ = std::max(score_ - 1, 0);
    at_ns_ = deadline_ns + kSlackNs - kEarlierNs;
    armed_ = false;
  }
  return score_ >= kEnough;
}

bool KeptTimer::Ends(const std::atomic<int>& set_fd,
                     std::uint64_t deadline_ns) {
  const base::Critical critical;
  if (!latch_.try_lock()) return false;
  const int saved = errno;
  bool ends = EndsLatched(deadline_ns);
  if (ends && fd_ < 0) {
    // The first time.  The set keeps its number while its latch is held.
    latch_.unlock();
    interest_latch.lock();
    latch_.lock();
    // -1: the set has just been closed.
    const int number = set_fd.load(std::memory_order_relaxed);
    if (fd_ < 0 && !refused_ && number >= 0 && !InBorrowedMemory()) {
      refused_ = !Open(number);
    }
    ends = fd_ >= 0;
    if (ends) used_.store(true, std::memory_order_seq_cst);
    interest_latch.unlock();
  }
  ends = ends && (armed_ || Arm());
  latch_.unlock();
  errno = saved;
  return ends;
}

// The file has no other number, so this takes it out of the kernel's set.  Only
// a child that has yet to execute its program may have it for a moment.  A
// filter that has come since may forbid any other call.
void KeptTimer::CloseLatched() {
  if (fd_ >= 0) base::CloseRaw(fd_);
  fd_ = -1;
  armed_ = false;
  used_.store(false, std::memory_order_seq_cst);
}

void KeptTimer::Refuse() {
  const base::Critical critical;
  const base::LatchGuard hold(latch_);
  refused_ = true;
  CloseLatched();
}

void KeptTimer::Close() {
  const base::Critical critical;
  const base::LatchGuard hold(latch_);
  CloseLatched();
  refused_ = false;
  score_ = 0;
  threads_ = 0;
  thread_ = nullptr;
}

void KeptTimer::ForkChild() {
  latch_.Reset();
  latch_.AssertUnshared();
  fd_ = -1;  // has been closed (base::CloseParentFds)
  refused_ = true;
  used_.store(false, std::memory_order_relaxed);
}

}  // namespace rcsock::posix
