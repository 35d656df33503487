// A program that has not loaded the driver has no memory of a GPU. So nothing
// loads it, although it could be found.

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <rcsock/rcsock.h>

#include <vector>

namespace {

TEST(NoDriver, RegisteringLoadsNothing) {
  std::vector<char> memory(100'000);
  ASSERT_EQ(rcs_register_buffer(memory.data(), memory.size()), 0);
  ASSERT_EQ(rcs_unregister_buffer(memory.data(), memory.size()), 0);
  EXPECT_EQ(::dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD), nullptr);
  // The test can fail: the driver is where the loader looks.
  EXPECT_NE(::dlopen("libcuda.so.1", RTLD_NOW), nullptr) << ::dlerror();
}

}  // namespace
