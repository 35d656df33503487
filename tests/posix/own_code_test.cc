#include "lib/posix/own_code.h"

#include <dlfcn.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace rcsock::posix {
namespace {

std::vector<OwnCode::Range> List() {
  OwnCode code;
  std::vector<OwnCode::Range> ranges;
  EXPECT_TRUE(code.List(&ranges));
  return ranges;
}

// What the system has under every C++ program is not read, so that the first
// stream of a process waits for nothing.
TEST(OwnCode, RuntimeIsNotRead) {
  ASSERT_NE(::dlopen("libm.so.6", RTLD_NOW), nullptr);
  for (const OwnCode::Range& one : List()) {
    for (const char* name : {"/ld-linux", "/libc.so", "/libm.so",
                             "/libstdc++.so", "/libgcc_s.so", "[vdso]"}) {
      EXPECT_EQ(one.path.find(name), std::string::npos) << one.path;
    }
  }
}

TEST(OwnCode, MemoryWithoutAFile) {
  constexpr std::size_t kSize = 4096;
  void* const at = ::mmap(nullptr, kSize, PROT_READ | PROT_EXEC,
                          MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(at, MAP_FAILED);
  const auto begin = reinterpret_cast<std::uint64_t>(at);
  const std::vector<OwnCode::Range> ranges = List();
  const auto one =
      std::find_if(ranges.begin(), ranges.end(), [&](const auto& range) {
        return range.code.begin <= begin && begin < range.code.end;
      });
  ASSERT_NE(one, ranges.end());
  EXPECT_TRUE(one->path.empty());
  EXPECT_TRUE(one->code.loose);
  ::munmap(at, kSize);
}

}  // namespace
}  // namespace rcsock::posix
