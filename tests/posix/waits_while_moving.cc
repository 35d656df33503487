// Waits while a connection moves to a lane or back: nothing is lost, and
// nothing told twice.
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "tests/posix/pair.h"
#include "tests/posix/waiting.h"

namespace {

using namespace pair;

// "Demote now": stdio that asks for a map of a copy moves a stream to TCP for
// good.
void Demote(int fd) {
  std::FILE* file = ::fdopen(::dup(fd), "rm");
  CHECK_THAT(file != nullptr);
  std::fclose(file);
}

// Registrations of every kind across a demotion: nothing lost, nothing spent.
Case demotion(
    "epoll_across_demotion",
    [](int fd) {
      Barrier();
      SendAll(fd, "abc", 3);
      Barrier();
      Barrier();
      SendAll(fd, "def", 3);
      Barrier();
    },
    [](int fd) {
      const int level_set = NewSet();
      const int edge_set = NewSet();
      const int spent_set = NewSet();
      const int armed_set = NewSet();
      Ctl(level_set, EPOLL_CTL_ADD, fd, EPOLLIN);
      Ctl(edge_set, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLET);
      Ctl(spent_set, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLONESHOT);
      Ctl(armed_set, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLONESHOT);
      Barrier();
      LogWait("level", level_set, kLong);
      LogWait("edge", edge_set, kLong);
      LogWait("spent", spent_set, kLong);
      char text[8];
      RecvAll(fd, text, 3);
      Demote(fd);
      LogWait("level quiet", level_set, kQuiet);
      LogWait("spent quiet", spent_set, kQuiet);
      Barrier();
      Barrier();
      LogWait("level", level_set, kLong);
      LogWait("edge", edge_set, kLong);
      LogWait("still spent", spent_set, kQuiet);
      LogWait("still armed", armed_set, kLong);
      Result("mod", Ctl(spent_set, EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLONESHOT));
      LogWait("armed", spent_set, kLong);
      Result("del", Ctl(level_set, EPOLL_CTL_DEL, fd, 0));
      RecvAll(fd, text, 3);
      Barrier();
    });

// One report of each registration, however many others the set has: those that
// the kernel has made are not made again when the streams leave TCP.
constexpr int kCrowd = 3000;
constexpr int kSpent = 6;

Case oneshot_crowd(
    "oneshot_in_a_crowd",
    [](int) {
      Barrier();
      const int port = static_cast<int>(Hear());
      int fds[kSpent];
      for (int& fd : fds) {
        fd = Connect(port);
        SendAll(fd, "a", 1);
      }
      Barrier();
      for (const int fd : fds) Warm(fd);
      for (const int fd : fds) SendAll(fd, "b", 1);
      Barrier();
      Barrier();
      for (const int fd : fds) ::close(fd);
    },
    [](int) {
      rlimit limit{};
      ::getrlimit(RLIMIT_NOFILE, &limit);
      limit.rlim_cur = limit.rlim_max;
      ::setrlimit(RLIMIT_NOFILE, &limit);
      const int set = NewSet();
      // Among which the streams stand anywhere: the kernel sorts by address.
      std::vector<int> crowd;
      for (int i = 0; i < kCrowd; ++i) {
        crowd.push_back(::eventfd(0, EFD_CLOEXEC));
        CHECK_THAT(Ctl(set, EPOLL_CTL_ADD, crowd.back(), EPOLLIN) == 0);
      }
      int port = 0;
      const int listener = Listen(&port);
      Barrier();
      Tell(port);
      int fds[kSpent];
      char byte;
      for (int& fd : fds) {
        fd = ::accept(listener, nullptr, nullptr);
        CHECK_THAT(fd >= 0);
        Ctl(set, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLONESHOT);
        LogWait("once", set, kLong);
        RecvAll(fd, &byte, 1);
      }
      Barrier();
      for (const int fd : fds) Warm(fd);
      Barrier();
      LogWait("spent", set, kQuiet);
      for (const int fd : fds) {
        Result("mod", Ctl(set, EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLONESHOT));
        LogWait("armed", set, kLong);
        RecvAll(fd, &byte, 1);
      }
      Barrier();
      for (const int fd : crowd) ::close(fd);
      for (const int fd : fds) ::close(fd);
      ::close(listener);
    },
    {.warm = false, .connect = false, .seconds = 40});

// One report of each registration, too, where no /proc tells what the kernel
// has told: of a connection that begins there, and of one that was there
// before.
Case oneshot_chroot(
    "oneshot_in_chroot",
    [](int fd) {
      const int port = static_cast<int>(Hear());
      const int other = Connect(port);
      for (const int one : {fd, other}) {
        SendAll(one, "a", 1);
        Echo(one, 3000);
        SendAll(one, "b", 1);
        Barrier();
        Echo(one, 100);
        LogDrain(one);
      }
      ::close(other);
    },
    [](int fd) {
      int port = 0;
      const int listener = Listen(&port);
      char empty[] = "/tmp/rcsock-moves.XXXXXX";
      CHECK_THAT(::mkdtemp(empty) != nullptr);
      if (::chroot(empty) != 0) {
        std::fprintf(stderr, "SKIPPED: no chroot here: %s\n", ErrorName(errno));
      }
      ::rmdir(empty);
      Tell(port);
      const int other = Accept(listener);
      const int set = NewSet();
      const int armed_set = NewSet();
      char byte;
      for (const int one : {fd, other}) {
        Ctl(set, EPOLL_CTL_ADD, one, EPOLLIN | EPOLLONESHOT);
        LogWait("once", set, kLong);
        RecvAll(one, &byte, 1);
        Ctl(armed_set, EPOLL_CTL_ADD, one, EPOLLIN | EPOLLONESHOT);
        Call(one, 3000);
        AwaitBytes(one, 1);
        LogWait("spent", set, kQuiet);
        LogWait("armed", armed_set, kLong);
        LogWait("spent, too", armed_set, kQuiet);
        Result("mod", Ctl(set, EPOLL_CTL_MOD, one, EPOLLIN | EPOLLONESHOT));
        LogWait("armed again", set, kLong);
        LogWait("spent again", set, kQuiet);
        RecvAll(one, &byte, 1);
        Barrier();
        Call(one, 100);
        ::shutdown(one, SHUT_WR);
      }
      for (const int one : {set, armed_set, other, listener}) ::close(one);
    },
    {.warm = false});

// A thread of the peer demotes while this end sleeps in each kind of wait.
Case demotion_asleep(
    "demotion_asleep",
    [](int fd) {
      char byte;
      for (int i = 0; i < 4; ++i) {
        RecvAll(fd, &byte, 1);
        if (i == 1) Demote(fd);
        pollfd none{-1, 0, 0};
        ::poll(&none, 1, 30);  // so that the other end sleeps, usually
        SendAll(fd, "a", 1);
      }
    },
    [](int fd) {
      const int set = NewSet();
      Ctl(set, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLET);
      char byte;
      for (int i = 0; i < 4; ++i) {
        SendAll(fd, "q", 1);
        if (i % 2 == 0) {
          pollfd one{fd, POLLIN, 0};
          Result("poll", ::poll(&one, 1, kLong));
        } else {
          epoll_event event{};
          do {
            CHECK_THAT(::epoll_wait(set, &event, 1, kLong) == 1);
          } while (::recv(fd, &byte, 1, MSG_DONTWAIT | MSG_PEEK) != 1);
        }
        RecvAll(fd, &byte, 1);
      }
      Log("done");
    });

// Promotion while this end sleeps in a wait: each connection is new, so that it
// comes at a different moment of the exchange.
void SleepyServer(int way) {
  const int listener = ListenAndTell();
  for (int round = 0; round < Scale(6); ++round) {
    const int fd = Accept(listener);
    const int set = NewSet();
    Ctl(set, EPOLL_CTL_ADD, fd, way == 1 ? EPOLLIN | EPOLLET : EPOLLIN);
    for (;;) {
      pollfd one{fd, POLLIN, 0};
      epoll_event event{};
      fd_set in;
      FD_ZERO(&in);
      FD_SET(fd, &in);
      int n = 1;
      switch (way) {
        case 0:
          n = ::poll(&one, 1, kLong);
          break;
        case 1:
        case 2:
          n = ::epoll_wait(set, &event, 1, kLong);
          break;
        case 3: {
          timeval time{5, 0};
          n = ::select(fd + 1, &in, nullptr, nullptr, &time);
          break;
        }
        default:
          break;  // sleeps in recv
      }
      if (n != 1) Fail("way %d, round %d: %d", way, round, n);
      char text[16];
      const ssize_t got =
          ::recv(fd, text, sizeof text, way == 1 ? MSG_DONTWAIT : 0);
      if (got < 0 && errno == EAGAIN) continue;
      if (got == 0) break;
      CHECK_THAT(got > 0);
      SendAll(fd, text, static_cast<std::size_t>(got));
    }
    ::close(set);
    ::close(fd);
  }
  ::close(listener);
  Log("done");
}

void SleepyClient() {
  const int port = static_cast<int>(Hear());
  Random random{Seed()};
  for (int round = 0; round < Scale(6); ++round) {
    const int fd = Connect(port);
    for (int i = 0; i < 150; ++i) {
      char text[16] = "hello, hello";
      SendAll(fd, text, 10);
      RecvAll(fd, text, 10);
      if (random.Below(20) == 0) {
        pollfd none{-1, 0, 0};
        ::poll(&none, 1, static_cast<int>(random.Below(8)));
      }
    }
    ::close(fd);
  }
}

constexpr Options kAlone{.warm = false, .connect = false, .seconds = 40};
Case sleepy0(
    "promoted_in_poll", [](int) { SleepyServer(0); },
    [](int) { SleepyClient(); }, kAlone);
Case sleepy1(
    "promoted_in_epoll_edge", [](int) { SleepyServer(1); },
    [](int) { SleepyClient(); }, kAlone);
Case sleepy2(
    "promoted_in_epoll_level", [](int) { SleepyServer(2); },
    [](int) { SleepyClient(); }, kAlone);
Case sleepy3(
    "promoted_in_select", [](int) { SleepyServer(3); },
    [](int) { SleepyClient(); }, kAlone);
Case sleepy4(
    "promoted_in_recv", [](int) { SleepyServer(4); },
    [](int) { SleepyClient(); }, kAlone);

}  // namespace
