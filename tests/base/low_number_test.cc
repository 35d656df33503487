// dup2 onto a number that is free, while rcsock or a library opens something.

#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <optional>
#include <string>
#include <thread>

#include "lib/base/unique_fd.h"

namespace rcsock::base {
namespace {

// Whether a thread of this process sleeps in the kernel.
bool Sleeps(long tid) {
  const std::string path = "/proc/self/task/" + std::to_string(tid) + "/stat";
  char text[256] = {};
  std::FILE* file = std::fopen(path.c_str(), "r");
  if (file == nullptr) return false;
  const std::size_t n = std::fread(text, 1, sizeof text - 1, file);
  std::fclose(file);
  const char* name_end = std::strrchr(text, ')');
  return n > 0 && name_end != nullptr && name_end[2] == 'S';
}

// A thread that asks for a free number.
class Asks {
 public:
  Asks()
      : thread_([this] {
          tid_ = ::syscall(SYS_gettid);
          const FreeNumber number;
          over_ = may_.load();
          has_ = true;
        }) {}
  ~Asks() { thread_.join(); }
  // Until it sleeps, or has it.
  void Settle() {
    while (tid_ == 0 || !(has_ || Sleeps(tid_))) std::this_thread::yield();
  }
  void May() { may_ = true; }
  bool has() const { return has_; }
  bool over() const { return over_; }

 private:
  std::atomic<long> tid_{0};
  std::atomic<bool> may_{false};
  std::atomic<bool> over_{false};
  std::atomic<bool> has_{false};
  std::thread thread_;
};

TEST(LowNumber, WaitsForLibraries) {
  std::optional<LibraryOpens> one(std::in_place);
  std::optional<LibraryOpens> two(std::in_place);
  bool over = false;
  {
    std::optional<Asks> asks(std::in_place);
    asks->Settle();
    EXPECT_FALSE(asks->has());
    one.reset();
    asks->Settle();
    EXPECT_FALSE(asks->has());
    // Meanwhile others of rcsock's open theirs.
    const UniqueFd file(OpenHigh([] { return ::dup(0); }));
    EXPECT_TRUE(file.ok());
    asks->May();
    two.reset();
    while (!asks->has()) std::this_thread::yield();
    over = asks->over();
  }
  EXPECT_TRUE(over);
}

TEST(LowNumber, NotForEver) {
  std::optional<LibraryOpens> stuck(std::in_place);
  { const FreeNumber number(1'000'000); }
  // What one has given up nobody waits for.
  { const FreeNumber number; }
  stuck.reset();
  stuck.emplace();
  Asks asks;
  asks.Settle();
  EXPECT_FALSE(asks.has());
  stuck.reset();
}

}  // namespace
}  // namespace rcsock::base
