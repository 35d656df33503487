// The stretches without handlers (lib/base/critical.h).
#include "lib/base/critical.h"

#include <gtest/gtest.h>

namespace rcsock::base {
namespace {

int depth = 0;
constexpr CriticalHooks kHooks{[] { ++depth; }, [] { --depth; },
                               [] { return false; }};

// A stretch that has begun before there were hooks does not leave by them.
TEST(Critical, HooksSetInside) {
  {
    const Critical before;
    critical_hooks.store(&kHooks);
    EXPECT_EQ(depth, 0);
    {
      const Critical after;
      EXPECT_EQ(depth, 1);
    }
    EXPECT_EQ(depth, 0);
  }
  EXPECT_EQ(depth, 0);
  critical_hooks.store(nullptr);
}

}  // namespace
}  // namespace rcsock::base
