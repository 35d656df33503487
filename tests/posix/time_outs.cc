// Waits in an epoll set until a time, which messages interrupt: they end at
// that time, and tell of nothing but the program's own descriptors.
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <ctime>
#include <thread>
#include <vector>

#include "tests/posix/pair.h"
#include "tests/posix/waiting.h"

namespace {

using namespace pair;

constexpr std::int64_t kMs = 1'000'000;

std::int64_t Now() {
  timespec now{};
  CHECK_THAT(::clock_gettime(CLOCK_MONOTONIC, &now) == 0);
  return std::int64_t{now.tv_sec} * 1000 * kMs + now.tv_nsec;
}

// A client that asks, and takes answers until a time.
class Asker {
 public:
  explicit Asker(int fd, int room = 8) : fd_(fd), room_(room), set_(NewSet()) {
    CHECK_THAT(Ctl(set_, EPOLL_CTL_ADD, fd, EPOLLIN) == 0);
  }
  ~Asker() { ::close(set_); }
  int set() const { return set_; }

  // One wait, to this time at most.
  void Wait(std::int64_t until) {
    const std::int64_t left = std::max<std::int64_t>(0, until - Now());
    const timespec time{left / (1000 * kMs), left % (1000 * kMs)};
    epoll_event events[8];
    const int n = ::epoll_pwait2(set_, events, room_, &time, nullptr);
    CHECK_THAT(n >= 0 && n <= 1);
    if (n == 0) early_ += Now() < until ? 1 : 0;
    if (n == 1) foreign_ += events[0].data.fd != fd_ ? 1 : 0;
    char byte;
    if (n == 1 && ::recv(fd_, &byte, 1, MSG_DONTWAIT) == 1) answered_ = true;
  }
  void Ask() {
    SendAll(fd_, "?", 1);
    answered_ = false;
  }
  // The answer ends the first wait, and the time the second.
  void Cycle(std::int64_t ns = 2 * kMs) {
    const std::int64_t until = Now() + ns;
    Ask();
    while (Now() < until) Wait(until);
    late_.push_back(Now() - until);
    while (!answered_) Wait(Now() + 100 * kMs);
  }
  // Until its answer only.
  void AskOnce(std::int64_t ns) {
    Ask();
    const std::int64_t until = Now() + ns;
    while (!answered_) Wait(std::max(until, Now() + kMs));
  }
  void Cycles(int count) {
    for (int i = 0; i < count; ++i) Cycle();
  }
  // A machine at work is late now and then.
  void Tell(const char* what) {
    std::sort(late_.begin(), late_.end());
    const bool late = !late_.empty() && late_[late_.size() / 2] > 3 * kMs;
    Log("%s: %d early, %d of others, late: %d", what, early_, foreign_, late);
    late_.clear();
    early_ = foreign_ = 0;
  }

 private:
  const int fd_;
  const int room_;
  const int set_;
  bool answered_ = true;
  int early_ = 0;
  int foreign_ = 0;
  std::vector<std::int64_t> late_;
};

// Answers after a while, so that the client sleeps meanwhile.
void Answer(int fd) {
  char byte;
  while (::recv(fd, &byte, 1, 0) == 1) {
    ::usleep(300);
    SendAll(fd, &byte, 1);
  }
}

constexpr Options kSeconds{.seconds = 60};

Case again(
    "until_the_time_again", Answer,
    [](int fd) {
      Asker asker(fd);
      asker.Cycles(100);
      asker.Tell("told");
    },
    kSeconds);

Case one(
    "room_for_one_until_the_time", Answer,
    [](int fd) {
      Asker asker(fd, 1);
      asker.Cycles(100);
      asker.Tell("told");
    },
    kSeconds);

// A longer wait behind such waits does not end by their time.
Case longer(
    "longer_than_before", Answer,
    [](int fd) {
      Asker asker(fd);
      for (int i = 0; i < 10; ++i) {
        asker.Cycles(10);
        asker.AskOnce(2 * kMs);
        asker.Wait(Now() + 12 * kMs);
        asker.Wait(Now() + 3 * kMs);
        asker.Wait(Now() + kMs / 2);
      }
      asker.Tell("told");
    },
    kSeconds);

// Another thread comes to sleep in the set, behind the answer and before the
// time.  The kernel wakes first who came last.
Case beside(
    "beside_another_sleeper", Answer,
    [](int fd) {
      Asker asker(fd);
      asker.Cycles(20);
      asker.Tell("alone");
      constexpr int kTimes = 50;
      std::atomic<int> turns{0};
      std::atomic<int> ended{0};
      std::thread other([&] {
        for (int i = 0; i < kTimes; ++i) {
          while (turns <= i) ::usleep(100);
          ::usleep(900);
          epoll_event event;
          CHECK_THAT(::epoll_wait(asker.set(), &event, 1, 6) >= 0);
          ++ended;
        }
      });
      for (int i = 0; i < kTimes; ++i) {
        ++turns;
        asker.Cycle();
        while (ended <= i) ::usleep(100);
      }
      other.join();
      asker.Tell("told");
    },
    kSeconds);

// Threads take turns.
Case turns(
    "each_in_a_thread_of_its_own", Answer,
    [](int fd) {
      Asker asker(fd);
      for (int i = 0; i < 10; ++i) {
        std::thread([&] { asker.Cycles(10); }).join();
      }
      asker.Tell("told");
    },
    kSeconds);

// The time of a wait that is over makes the set readable for nobody.
Case outside(
    "not_readable_by_its_time", Answer,
    [](int fd) {
      for (int way = 0; way < 3; ++way) {
        Asker asker(fd);
        asker.Cycles(20);
        const int outer = NewSet();
        asker.AskOnce(2 * kMs);
        if (way == 0)
          CHECK_THAT(Ctl(outer, EPOLL_CTL_ADD, asker.set(), EPOLLIN) == 0);
        ::usleep(10'000);
        if (way == 1)
          CHECK_THAT(Ctl(outer, EPOLL_CTL_ADD, asker.set(), EPOLLIN) == 0);
        if (way < 2) LogWait("in a set", outer, 0);
        pollfd polled{asker.set(), POLLIN, 0};
        Result("poll", ::poll(&polled, 1, 0));
        asker.Cycles(20);
        if (way < 2) LogWait("in a set", outer, kQuiet);
        asker.Tell("told");
        ::close(outer);
      }
    },
    kSeconds);

// A child waits in the set, too.
Case forked(
    "forked_until_the_time", Answer,
    [](int fd) {
      Asker asker(fd);
      asker.Cycles(20);
      asker.AskOnce(2 * kMs);
      const pid_t child = ::fork();
      CHECK_THAT(child >= 0);
      if (child == 0) {
        epoll_event event;
        ::_exit(::epoll_wait(asker.set(), &event, 1, 30) == 0 ? 0 : 1);
      }
      LogChild(child);
      asker.Tell("told");
      asker.Cycles(20);
      asker.Tell("told behind");
    },
    kSeconds);

// Somebody else looks at the set again and again, and never sleeps long.
void Look(int set, int ms) {
  epoll_event event;
  CHECK_THAT(::epoll_wait(set, &event, 1, ms) >= 0);
}

Case thread_looks(
    "beside_a_thread_that_looks", Answer,
    [](int fd) {
      Asker asker(fd);
      asker.Cycles(20);
      std::atomic<bool> over{false};
      std::thread other([&] {
        while (!over) Look(asker.set(), 0);
      });
      asker.Cycles(100);
      over = true;
      other.join();
      asker.Tell("told");
    },
    kSeconds);

Case child_looks(
    "beside_a_child_that_looks", Answer,
    [](int fd) {
      Asker asker(fd);
      asker.Cycles(20);
      const pid_t child = ::fork();
      CHECK_THAT(child >= 0);
      if (child == 0) ::close(fd);
      while (child == 0) Look(asker.set(), 1);
      asker.Cycles(100);
      CHECK_THAT(::kill(child, SIGKILL) == 0);
      LogChild(child);
      asker.Tell("told");
    },
    kSeconds);

// Sets come and go, and take no descriptors with them.
Case closed(
    "closed_until_the_time", Answer,
    [](int fd) {
      const int before = ::dup(fd);
      ::close(before);
      for (int i = 0; i < 30; ++i) {
        Asker asker(fd);
        asker.Cycles(8);
        asker.AskOnce(2 * kMs);
        asker.Tell("told");
      }
      const int behind = ::dup(fd);
      ::close(behind);
      Log("the lowest number is %s",
          before == behind ? "as before" : "another");
    },
    kSeconds);

}  // namespace
