#include "lib/base/pool.h"

#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <thread>

namespace rcsock::base {
namespace {

constinit Pool used(64);
constinit Pool unused(128);

// It sleeps in the kernel.
bool Sleeps(long thread) {
  char path[64];
  std::snprintf(path, sizeof path, "/proc/self/task/%ld/stat", thread);
  std::FILE* file = std::fopen(path, "r");
  char state = '?';
  if (file != nullptr) {
    if (std::fscanf(file, "%*d %*s %c", &state) != 1) state = '?';
    std::fclose(file);
  }
  return state == 'S';
}

// A thread that comes to a pool for the first time while another forks: the
// child, which has no such thread, may use that pool.
TEST(Pool, FirstUseBesideAFork) {
  ASSERT_NE(used.Take(), nullptr);
  PoolsForkLock();
  std::atomic<long> thread{0};
  std::thread beside([&] {
    thread = ::syscall(SYS_gettid);
    EXPECT_NE(unused.Take(), nullptr);
  });
#if !defined(__SANITIZE_ADDRESS__)  // which makes no use of pools
  while (thread == 0 || !Sleeps(thread)) ::usleep(100);
#endif
  const pid_t child = ::fork();
  PoolsForkUnlock(child == 0);
  if (child == 0) {
    ::alarm(10);
    ::_exit(unused.Take() != nullptr ? 0 : 1);
  }
  beside.join();
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace rcsock::base
