#ifndef RCSOCK_LIB_BASE_BACKOFF_H_
#define RCSOCK_LIB_BASE_BACKOFF_H_

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>

namespace rcsock::base {

// For a thread that waits for another thread to finish a step: Backoff backoff;
// while (!done) backoff.Wait();
//
// Wait sleeps. A waiter of real-time priority that only yielded would keep the
// CPU from the thread that it waits for.
class Backoff {
 public:
  void Wait() {
    const int saved = errno;
    if (turns_++ < kYields) {
      ::sched_yield();
    } else {
      const timespec brief{0, sleep_ns_};
      // A raw call: nanosleep() would be a cancellation point.
      ::syscall(SYS_nanosleep, &brief, nullptr);
      sleep_ns_ = std::min(2 * sleep_ns_, kLongestNs);
    }
    errno = saved;
  }

 private:
  static constexpr int kYields = 4;
  static constexpr long kLongestNs = 1'000'000;
  int turns_ = 0;
  long sleep_ns_ = 20'000;
};

}  // namespace rcsock::base

#endif  // RCSOCK_LIB_BASE_BACKOFF_H_
