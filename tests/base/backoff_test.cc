// Whoever waits for another thread sleeps: a thread of real-time priority that
// only yielded would keep the CPU from the one that it waits for.
#include "lib/base/backoff.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cerrno>

namespace rcsock::base {
namespace {

TEST(Backoff, Sleeps) {
  constexpr int kTurns = 40;
  rusage before{};
  rusage after{};
  ::getrusage(RUSAGE_THREAD, &before);
  errno = 7;
  Backoff backoff;
  for (int i = 0; i < kTurns; ++i) backoff.Wait();
  EXPECT_EQ(errno, 7);
  ::getrusage(RUSAGE_THREAD, &after);
  // A yield is none of these where nobody else wants the CPU.
  EXPECT_GE(after.ru_nvcsw - before.ru_nvcsw, kTurns - 8);
}

}  // namespace
}  // namespace rcsock::base
