#include "lib/base/scheduling.h"

#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <thread>

namespace rcsock::base {
namespace {

// A thread's nice value, and its slice; 0: the kernel does not tell slices.
struct Scheduling {
  std::int32_t nice = 0;
  std::uint32_t policy = 0;
  std::uint64_t slice = 0;
};

Scheduling Own() {
  std::uint32_t words[12] = {};  // size, policy, flags, nice, priority, runtime
  EXPECT_EQ(::syscall(SYS_sched_getattr, 0, words, sizeof words, 0), 0);
  Scheduling own;
  own.policy = words[1];
  own.nice = static_cast<std::int32_t>(words[4]);
  std::memcpy(&own.slice, words + 6, sizeof own.slice);
  return own;
}

template <typename Body>
void InThread(Body body) {
  std::thread(body).join();
}

TEST(Scheduling, ASliceIsShort) {
  // In a container, for instance.
  if (::prctl(PR_GET_SECCOMP) != 0) GTEST_SKIP() << "under a filter";
  InThread([] {
    const Scheduling before = Own();
    ASSERT_EQ(
        ::setpriority(PRIO_PROCESS, static_cast<id_t>(::syscall(SYS_gettid)),
                      before.nice + 3),
        0);
    ASSERT_TRUE(AskForShortSlice());
    const Scheduling after = Own();
    EXPECT_EQ(after.nice, before.nice + 3);
    EXPECT_EQ(after.policy, before.policy);
    if (before.slice == 0) GTEST_SKIP() << "this kernel knows no such slices";
    EXPECT_EQ(after.slice, kShortSliceNs);
  });
}

TEST(Scheduling, GivesWay) {
  if (::prctl(PR_GET_SECCOMP) != 0) GTEST_SKIP() << "under a filter";
  InThread([] {
    const Scheduling before = Own();
    ASSERT_TRUE(GiveWay());
    EXPECT_EQ(Own().nice, std::min(before.nice + kGivesWay, 19));
    EXPECT_EQ(Own().policy, static_cast<std::uint32_t>(SCHED_BATCH));
    if (before.slice != 0) {
      EXPECT_GT(Own().slice, before.slice);
    }
  });
}

// The kernel knows no more.
TEST(Scheduling, GivesWayAtTheLeastPriority) {
  if (::prctl(PR_GET_SECCOMP) != 0) GTEST_SKIP() << "under a filter";
  InThread([] {
    ASSERT_EQ(::setpriority(PRIO_PROCESS,
                            static_cast<id_t>(::syscall(SYS_gettid)), 19),
              0);
    EXPECT_TRUE(GiveWay());
    EXPECT_EQ(Own().nice, 19);
  });
}

TEST(Scheduling, OtherPoliciesStay) {
  InThread([] {
    const sched_param none{};
    ASSERT_EQ(::sched_setscheduler(0, SCHED_BATCH, &none), 0);
    const Scheduling before = Own();
    EXPECT_FALSE(AskForShortSlice());
    EXPECT_FALSE(GiveWay());
    EXPECT_EQ(Own().nice, before.nice);
    EXPECT_EQ(Own().slice, before.slice);
    EXPECT_EQ(Own().policy, static_cast<std::uint32_t>(SCHED_BATCH));
  });
}

// As systemd's SystemCallFilter=~@resources.
TEST(Scheduling, AFilterDoesNotEndTheProcess) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_sched_setattr, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const sock_fprog program{4, code};
    if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
      ::_exit(2);
    }
    ::_exit(AskForShortSlice() || GiveWay() ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status)) << status;
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace rcsock::base
