#include <gtest/gtest.h>

#include "lib/posix/budget.h"

namespace rcsock::posix {
namespace {

constexpr std::uint64_t kSecond = 1'000'000'000;

TEST(Heartbeat, OnceAMinuteWhileTheLaneCarriesSomething) {
  Remote remote;
  remote.beat_ns = 1000 * kSecond;
  remote.beat_off = 100;
  int beats = 0;
  for (std::uint64_t quarter = 0; quarter < 4 * 600; ++quarter) {
    beats +=
        remote.Beats(1000 * kSecond + quarter * kSecond / 4, 101 + quarter);
  }
  EXPECT_EQ(beats, 9);
}

TEST(Heartbeat, SilentWhereTcpWouldBe) {
  Remote remote;
  remote.beat_ns = 1000 * kSecond;
  remote.beat_off = 100;
  EXPECT_FALSE(remote.Beats(9000 * kSecond, 100));
  // TCP would send now, after two hours; and nothing behind it.
  EXPECT_TRUE(remote.Beats(9000 * kSecond, 101));
  EXPECT_FALSE(remote.Beats(18'000 * kSecond, 101));
}

}  // namespace
}  // namespace rcsock::posix
