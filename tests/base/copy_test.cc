#include "lib/base/copy.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <random>
#include <vector>

namespace rcsock::base {
namespace {

class Copy : public testing::TestWithParam<void (*)(
                 std::byte*, const std::byte*, std::size_t)> {};

TEST_P(Copy, CopiesEachByteAndNoOther) {
  std::mt19937 random(1);
  constexpr std::size_t kRoom = 20'000;
  std::vector<std::byte> from(kRoom);
  for (auto& byte : from) byte = static_cast<std::byte>(random());
  alignas(64) static std::byte to[kRoom];
  for (int i = 0; i < 2'000; ++i) {
    const std::size_t n =
        i < 300 ? static_cast<std::size_t>(i) : random() % (kRoom - 200);
    const std::size_t source = random() % 100;
    const std::size_t target = random() % 130;
    std::memset(to, 0xa5, sizeof to);
    GetParam()(to + target, from.data() + source, n);
    ASSERT_EQ(std::memcmp(to + target, from.data() + source, n), 0)
        << n << " from " << source << " to " << target;
    for (std::size_t at = 0; at < kRoom; ++at) {
      if (at == target) at += n;
      if (at < kRoom) {
        ASSERT_EQ(to[at], std::byte{0xa5}) << n << " to " << target;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ways, Copy,
                         testing::Values(LoopCopy, StreamCopy, LongCopy));

}  // namespace
}  // namespace rcsock::base
