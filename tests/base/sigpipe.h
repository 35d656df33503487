#ifndef RCSOCK_TESTS_BASE_SIGPIPE_H_
#define RCSOCK_TESTS_BASE_SIGPIPE_H_

#include <fcntl.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>

// Signals of the thread that asks, SIGPIPE above all.
namespace rcsock {

// The kernel's own, to this thread, as of any write that nobody can read.
inline void RaiseSigpipe() {
  const int saved = errno;
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  ::close(ends[0]);
  EXPECT_EQ(::write(ends[1], "x", 1), -1);
  EXPECT_EQ(errno, EPIPE);
  ::close(ends[1]);
  errno = saved;
}

inline bool SigpipePending() {
  sigset_t set;
  return ::sigpending(&set) == 0 && ::sigismember(&set, SIGPIPE) == 1;
}

inline bool SignalBlocked(int number) {
  sigset_t now;
  ::pthread_sigmask(SIG_BLOCK, nullptr, &now);
  return ::sigismember(&now, number) == 1;
}

}  // namespace rcsock

#endif  // RCSOCK_TESTS_BASE_SIGPIPE_H_
