// Signal handlers amid the sleeps of lib/lane/rdma/sleepers.h.
#include "lib/lane/rdma/sleepers.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <csetjmp>
#include <ctime>
#include <functional>
#include <utility>

#include "lib/base/clock.h"
#include "lib/base/critical.h"

namespace rcsock::lane::rdma {
namespace {

// A source that has nothing.
class Silent final : public Source {
 public:
  Silent() : fd_(::eventfd(0, EFD_CLOEXEC)) {}
  ~Silent() override { ::close(fd_); }
  void Drain() override {}
  void Arm() override {
    ++armed_;
    ++arms_;
  }
  void Disarm(bool) override { --armed_; }
  int fd() const override { return fd_; }
  int armed() const { return armed_; }
  int arms() const { return arms_; }

 private:
  const int fd_;
  int armed_ = 0;
  int arms_ = 0;  // sleeps
};

// The handler that runs at the end of the next critical section, where signals
// that have been put off are delivered.
int depth = 0;
bool handling = false;
std::function<void()> handler;

void Leave() {
  if (--depth != 0 || handler == nullptr) return;
  const bool outer = std::exchange(handling, true);
  std::exchange(handler, nullptr)();
  handling = outer;
}

constexpr base::CriticalHooks kHooks{[] { ++depth; }, &Leave,
                                     [] { return handling; }};

constexpr std::uint64_t kLongNs = 20'000'000'000;

class SleepersTest : public testing::Test {
 protected:
  SleepersTest() {
    base::critical_hooks.store(&kHooks);
    EXPECT_TRUE(group_.Open());
    words_ = group_.Get();
    other_ = group_.Get();
  }
  ~SleepersTest() override {
    group_.Close();
    base::critical_hooks.store(nullptr);
    EXPECT_EQ(source_.armed(), 0);
  }

  int Sleep(Sleepers::Words* words, std::uint64_t ns) {
    const timespec time{static_cast<time_t>(ns / 1'000'000'000),
                        static_cast<long>(ns % 1'000'000'000)};
    return group_.Sleep(words, true, Sleepers::Token(words, true), &time);
  }
  // What the wrapper of a handler does first.
  void Interrupt() { group_.WakeLocal(words_); }
  // Whether a sleep that handlers interrupt ends by them, and not by its time.
  bool Ends() {
    const std::uint64_t begun = base::NowNs();
    EXPECT_EQ(Sleep(words_, kLongNs), 0);
    return base::NowNs() - begun < kLongNs / 2;
  }

  Silent source_;
  Sleepers group_{&source_};
  Sleepers::Words* words_;
  Sleepers::Words* other_;
};

TEST_F(SleepersTest, HandlerBeforeTheSleep) {
  handler = [&] { Interrupt(); };
  EXPECT_TRUE(Ends());
}

// The inner sleep must not take the edge that is to end the outer one; nor does
// it spin.
TEST_F(SleepersTest, HandlerThatSleeps) {
  handler = [&] {
    Interrupt();
    EXPECT_EQ(Sleep(words_, 10'000'000), -ETIMEDOUT);
  };
  EXPECT_TRUE(Ends());
  EXPECT_LT(source_.arms(), 10);
}

TEST_F(SleepersTest, HandlerThatSleepsOnAnotherLane) {
  handler = [&] {
    Interrupt();
    EXPECT_EQ(Sleep(other_, 1'000'000), -ETIMEDOUT);
    EXPECT_EQ(Sleep(other_, 1'000'000), -ETIMEDOUT);
  };
  EXPECT_TRUE(Ends());
}

TEST_F(SleepersTest, HandlersThatSleepAboveEachOther) {
  handler = [&] {
    Interrupt();
    handler = [&] {
      Interrupt();
      EXPECT_EQ(Sleep(words_, 1'000'000), -ETIMEDOUT);
    };
    EXPECT_TRUE(Ends());
  };
  EXPECT_TRUE(Ends());
}

// An inner sleep is one of another group.
TEST_F(SleepersTest, HandlerThatSleepsElsewhere) {
  Silent source;
  Sleepers elsewhere{&source};
  ASSERT_TRUE(elsewhere.Open());
  Sleepers::Words* const words = elsewhere.Get();
  const timespec brief{0, 1'000'000};
  handler = [&] {
    Interrupt();
    EXPECT_EQ(
        elsewhere.Sleep(words, true, Sleepers::Token(words, true), &brief),
        -ETIMEDOUT);
    EXPECT_EQ(Sleep(words_, 1'000'000), -ETIMEDOUT);
  };
  EXPECT_TRUE(Ends());
  elsewhere.Close();
}

// Who jumps out of a sleep leaves its set to the thread's next sleep.
TEST_F(SleepersTest, HandlerThatJumps) {
  for (int i = 0; i < 20; ++i) {
    static std::jmp_buf away;
    if (setjmp(away) == 0) {
      handler = [&] {
        Interrupt();
        handling = false;
        std::longjmp(away, 1);
      };
      Sleep(words_, kLongNs);
      ADD_FAILURE() << "nobody has jumped";
    }
    EXPECT_EQ(Sleep(words_, 1'000'000), -ETIMEDOUT);
  }
}

}  // namespace
}  // namespace rcsock::lane::rdma
