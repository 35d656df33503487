#ifndef RCSOCK_TESTS_POSIX_CHURN_H_
#define RCSOCK_TESTS_POSIX_CHURN_H_

// What fork_epoll_churn and concurrent_cuts share: waits of every kind, and
// forks beside them.

#include <poll.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <thread>

#include "tests/posix/pair.h"

namespace churn {

using pair::Fail;
using pair::Random;

constexpr std::size_t kLongest = 150'000;  // of one call
inline std::atomic<std::uint64_t> ids{1};

inline bool Again() { return errno == EAGAIN || errno == EINTR; }

// By a set that nobody else has, and whose number another one has soon.
inline void WaitBySet(int fd, std::uint32_t events, bool forever,
                      Random* random) {
  const int set = ::epoll_create1(EPOLL_CLOEXEC);
  CHECK_THAT(set >= 0);
  epoll_event event{};
  event.events = events | (random->Below(2) == 0 ? 0u : EPOLLET);
  const std::uint64_t id = ids++;
  event.data.u64 = id;
  CHECK_THAT(::epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
  const int ms = forever ? -1 : static_cast<int>(random->Below(20));
  const int n = ::epoll_wait(set, &event, 1, ms);
  CHECK_THAT(n >= 0 || errno == EINTR);
  if (n > 0 && event.data.u64 != id) Fail("an event of another set");
  CHECK_THAT(::close(set) == 0);
}

// `bounded`: what it waits for may never be told.
inline void Wait(int fd, short events, Random* random, bool bounded = false) {
  const bool forever = random->Below(2) == 0 && !bounded;
  const auto us = static_cast<long>(random->Below(20'000));
  switch (random->Below(12)) {
    case 0: {
      pollfd one{fd, events, 0};
      ::poll(&one, 1, forever ? -1 : static_cast<int>(us / 1000));
      return;
    }
    case 1: {
      if (fd >= FD_SETSIZE) return;
      fd_set set;
      FD_ZERO(&set);
      FD_SET(fd, &set);
      timeval time{0, us};
      ::select(fd + 1, events == POLLIN ? &set : nullptr,
               events == POLLIN ? nullptr : &set, nullptr,
               forever ? nullptr : &time);
      return;
    }
    case 2: {
      pollfd some[3] = {{fd, events, 0},
                        {-1, 0, 0},
                        {fd, static_cast<short>(events | POLLRDHUP), 0}};
      timespec time{0, us * 1000};
      ::ppoll(some, 3, forever ? nullptr : &time, nullptr);
      return;
    }
    default:
      WaitBySet(fd, events == POLLIN ? EPOLLIN : EPOLLOUT, forever, random);
  }
}

// Of one call, more often a short one.
inline std::size_t Length(Random* random, std::size_t often) {
  switch (random->Below(6)) {
    case 0:
      return 1 + random->Below(kLongest);
    case 1:
    case 2:
      return 1 + random->Below(64);
    default:
      return 1 + random->Below(often);
  }
}

// `forks`: another thread does, now and then, until all is done.
template <class Function>
void Beside(bool forks, Function&& work) {
  std::atomic<bool> done{false};
  std::thread forker([&] {
    Random random{pair::Seed()};
    while (forks && !done) {
      ::usleep(static_cast<useconds_t>(5000 + random.Below(40'000)));
      const pid_t child = ::fork();
      CHECK_THAT(child >= 0);
      if (child == 0) ::_exit(0);
      CHECK_THAT(::waitpid(child, nullptr, 0) == child);
    }
  });
  work();
  done = true;
  forker.join();
}

}  // namespace churn

#endif  // RCSOCK_TESTS_POSIX_CHURN_H_
