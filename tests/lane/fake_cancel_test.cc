// A thread that has been cancelled and is in the midst of a lane's call, which
// its caller makes with latches that nobody would unlock.

#include <gtest/gtest.h>
#include <pthread.h>

#include <atomic>
#include <thread>

#include "tests/lane/fake_ends.h"

namespace rcsock::lane::test {
namespace {

class Cancelled : public FakeEnds {
 protected:
  template <class Call>
  static bool Returns(Call&& call) {
    std::atomic<bool> returned{false};
    std::thread thread([&] {
      EXPECT_EQ(::pthread_cancel(::pthread_self()), 0);
      call();
      returned = true;
      // (ASan takes the end of one that is cancelled for an error.)
      ::pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, nullptr);
    });
    thread.join();
    return returned;
  }
};

TEST_P(Cancelled, LeavesALaneInOrder) {
  EXPECT_TRUE(Returns([this] { lane_->Freeze(); }));
}

INSTANTIATE_TEST_SUITE_P(Device, Cancelled, testing::Bool());

}  // namespace
}  // namespace rcsock::lane::test
