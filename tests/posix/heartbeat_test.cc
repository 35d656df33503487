#include <gtest/gtest.h>

#include "lib/posix/policy/rdma_budget.h"

namespace rcsock::posix {
namespace {

constexpr std::uint64_t kSecond = 1'000'000'000;

TEST(Heartbeat, OnceAMinuteWhileTheLaneCarriesSomething) {
  Heartbeat heartbeat{100, 1000 * kSecond};
  int beats = 0;
  for (std::uint64_t quarter = 0; quarter < 4 * 600; ++quarter) {
    beats +=
        heartbeat.Due(1000 * kSecond + quarter * kSecond / 4, 101 + quarter);
  }
  EXPECT_EQ(beats, 9);
}

TEST(Heartbeat, SilentWhereTcpWouldBe) {
  Heartbeat heartbeat{100, 1000 * kSecond};
  EXPECT_FALSE(heartbeat.Due(9000 * kSecond, 100));
  // TCP would send now, after two hours; and nothing behind it.
  EXPECT_TRUE(heartbeat.Due(9000 * kSecond, 101));
  EXPECT_FALSE(heartbeat.Due(18'000 * kSecond, 101));
}

}  // namespace
}  // namespace rcsock::posix
