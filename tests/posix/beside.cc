// What one thread does beside another: it closes a connection while that one
// forks, which may take a while, or an epoll set whose number that one has at
// once.
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <thread>
#include <vector>

#include "tests/posix/pair.h"

namespace {

using namespace pair;

// --- A set whose number another one has at once

// So many that the kernel is busy with the end of their set for a while: the
// number is free by then.
constexpr int kCrowd = 12'000;

epoll_event Event(std::uint32_t events, std::uint64_t data) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = data;
  return event;
}

constexpr std::uint64_t kOld = 0x01d;

void ExpectNothing(int set) {
  epoll_event event{};
  const int n = ::epoll_wait(set, &event, 1, 0);
  CHECK_THAT(n >= 0);
  if (n > 0) {
    Fail("told of %llx, %x", static_cast<unsigned long long>(event.data.u64),
         event.events);
  }
}

Case next_set(
    "set_of_the_same_number",
    [](int) {
      int port;
      const int listener = Listen(&port);
      Tell(port);
      for (int i = 0; i < 10; ++i) {
        const int fd = ::accept(listener, nullptr, nullptr);
        CHECK_THAT(fd >= 0);
        Warm(fd);
        SendAll(fd, "something to be told of", 23);
        Barrier();
        Barrier();
        ::close(fd);
      }
    },
    [](int) {
      const int port = static_cast<int>(Hear());
      rlimit limit{};
      CHECK_THAT(::getrlimit(RLIMIT_NOFILE, &limit) == 0);
      limit.rlim_cur = limit.rlim_max;
      CHECK_THAT(::setrlimit(RLIMIT_NOFILE, &limit) == 0);
      // (Before the others: their numbers are higher than those of the sets.)
      const int place = ::eventfd(0, EFD_CLOEXEC);
      CHECK_THAT(place >= 0);
      std::vector<int> fds;
      for (int i = 0; i < 10; ++i) fds.push_back(Connect(port));
      std::vector<int> crowd;
      for (int i = 0; i < kCrowd; ++i) {
        const int one = i == 0 ? ::eventfd(0, EFD_CLOEXEC) : ::dup(crowd[0]);
        if (one < 0) break;
        crowd.push_back(one);
      }
      ::close(place);
      for (const int fd : fds) {
        Warm(fd);
        const int set = ::epoll_create1(EPOLL_CLOEXEC);
        CHECK_THAT(set == place);
        epoll_event event = Event(EPOLLIN, kOld);
        CHECK_THAT(::epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
        for (const int one : crowd) {
          CHECK_THAT(::epoll_ctl(set, EPOLL_CTL_ADD, one, &event) == 0);
        }
        Barrier();
        CHECK_THAT(::epoll_wait(set, &event, 1, -1) == 1);
        std::thread closes([set] { CHECK_THAT(::close(set) == 0); });
        int next;
        while ((next = ::epoll_create1(EPOLL_CLOEXEC)) != set) ::close(next);
        // By this it leaves its lane.
        const int two = 2;
        CHECK_THAT(
            ::setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &two, sizeof two) == 0);
        ExpectNothing(next);
        closes.join();
        ExpectNothing(next);
        ::close(next);
        Barrier();
        ::close(fd);
      }
      Log("each is told of its own");
    },
    {.warm = false, .connect = false, .seconds = 60});

}  // namespace
