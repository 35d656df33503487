#include "lib/rendezvous/timer.h"

#include <gtest/gtest.h>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <chrono>
#include <memory>
#include <thread>

#include "lib/rendezvous/core.h"

namespace rcsock::rendezvous {
namespace {

using std::chrono::milliseconds;
constexpr std::chrono::hours kNever{1};

struct Owner {
  explicit Owner(Core* core) : timer(core) {}
  void First() { ++first; }
  void Second() { ++second; }
  Timer timer;
  int first = 0;
  int second = 0;
};

// A core of which only the io_context runs, in a thread that stands for the
// conductor's.
class TimerTest : public ::testing::Test {
 protected:
  ~TimerTest() override { Join(); }

  // Runs `meanwhile` in a turn in which the timer has become due and the
  // conductor waits for its own.
  template <typename Task>
  void AfterDue(Task meanwhile) {
    Step step(core_);
    owner_->timer.Start(milliseconds(0), owner_, &Owner::First);
    while (!core_->step.Contended()) std::this_thread::yield();
    meanwhile();
  }
  // All that has become due has run then.
  void Join() {
    if (!conductor_.joinable()) return;
    boost::asio::post(core_->io, [this] { core_->io.stop(); });
    conductor_.join();
  }

  Core* const core_ = new Core(nullptr);  // leaked, as ever
  std::shared_ptr<Owner> owner_ = std::make_shared<Owner>(core_);
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type>
      work_{core_->io.get_executor()};
  std::thread conductor_{[this] { core_->io.run(); }};
};

TEST_F(TimerTest, RunsWhenDue) {
  AfterDue([] {});
  Join();
  EXPECT_EQ(owner_->first, 1);
}

TEST_F(TimerTest, SetAnewWhileTheConductorWaitsForItsTurn) {
  AfterDue([this] { owner_->timer.Start(kNever, owner_, &Owner::Second); });
  Join();
  EXPECT_EQ(owner_->first, 0);
  EXPECT_EQ(owner_->second, 0);
}

TEST_F(TimerTest, StoppedWhileTheConductorWaitsForItsTurn) {
  AfterDue([this] { owner_->timer.Stop(); });
  Join();
  EXPECT_EQ(owner_->first, 0);
}

TEST_F(TimerTest, AnOwnerThatIsHeldWeakly) {
  const std::weak_ptr<Owner> weak = owner_;
  {
    Step step(core_);
    owner_->timer.Start(milliseconds(0), weak, &Owner::First);
    while (!core_->step.Contended()) std::this_thread::yield();
    owner_.reset();
  }
  Join();
  EXPECT_TRUE(weak.expired());
}

}  // namespace
}  // namespace rcsock::rendezvous
