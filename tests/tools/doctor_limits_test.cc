// Limits of cgroups, in a tree of files that looks like proc and sys.

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "tools/rcsock/doctor/limits.h"

namespace rcsock::tools {
namespace {

namespace fs = std::filesystem;

class Limits : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "/limits.XXXXXX";
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    root_ = name;
  }
  void TearDown() override { fs::remove_all(root_); }
  void Write(const std::string& path, const std::string& text) {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text << "\n";
  }
  std::string Found() {
    Findings findings;
    ExamineLimits(&findings, root_);
    return findings.Json();
  }
  static bool Has(const std::string& text, const std::string& what) {
    return text.find(what) != std::string::npos;
  }
  fs::path root_;
};

TEST_F(Limits, NothingIsToldWithoutLimits) {
  Write("proc/self/cgroup", "0::/a/b");
  Write("sys/fs/cgroup/a/b/pids.max", "max");
  Write("sys/fs/cgroup/a/b/pids.current", "5");
  Write("sys/fs/cgroup/a/b/memory.max", "max");
  Write("sys/fs/cgroup/a/b/memory.current", "5");
  const std::string found = Found();
  EXPECT_FALSE(Has(found, "pids")) << found;
  EXPECT_FALSE(Has(found, "memory.max")) << found;
}

TEST_F(Limits, TheTightestGroupAboveCounts) {
  Write("proc/self/cgroup", "0::/a/b");
  Write("sys/fs/cgroup/a/b/pids.max", "1000");
  Write("sys/fs/cgroup/a/b/pids.current", "5");
  Write("sys/fs/cgroup/a/pids.max", "10");
  Write("sys/fs/cgroup/a/pids.current", "8");
  Write("sys/fs/cgroup/a/memory.max", "134217728");
  Write("sys/fs/cgroup/a/memory.current", "104857600");
  const std::string found = Found();
  EXPECT_TRUE(Has(found, "a/pids.max allows 10 threads, 2 are left")) << found;
  EXPECT_TRUE(Has(found, "allows 128 MiB, 28 MiB are left")) << found;
  Write("sys/fs/cgroup/a/pids.current", "12");
  EXPECT_TRUE(Has(Found(), "0 are left: all stays on TCP"));
}

TEST_F(Limits, GroupsOfVersionOne) {
  Write("proc/self/cgroup", "5:memory:/m\n3:pids:/p");
  Write("sys/fs/cgroup/pids/p/pids.max", "9");
  Write("sys/fs/cgroup/pids/p/pids.current", "9");
  Write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712");
  Write("sys/fs/cgroup/memory/memory.usage_in_bytes", "1");
  const std::string found = Found();
  EXPECT_TRUE(Has(found, "p/pids.max allows 9 threads, 0 are left")) << found;
  EXPECT_FALSE(Has(found, "limit_in_bytes")) << found;
}

TEST_F(Limits, ThreadsOfAUser) {
  Write("proc/12/status", "Name:\tx 77\nUid:\t5\t5\t5\t5\nThreads:\t3");
  Write("proc/13/status", "Name:\ty\nUid:\t6\t5\t5\t5\nThreads:\t4");
  Write("proc/14/status", "Name:\tz\nUid:\t5\t6\t6\t6\nThreads:\t8");
  Write("proc/x/status", "Uid:\t5\nThreads:\t100");
  EXPECT_EQ(11u, ThreadsOf(root_ / "proc", 5));
}

}  // namespace
}  // namespace rcsock::tools
