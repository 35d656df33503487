// Programs that make some of their system calls by machine code of their own
// and the others by libc's functions.
#include "tests/posix/own_syscalls.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <thread>

#include "tests/posix/pair.h"

namespace {

using namespace pair;

constexpr int kRounds = 300;

void Caller(int fd) {
  Call(fd, kRounds);
  ::shutdown(fd, SHUT_WR);
  LogDrain(fd);
}

// Gives back what comes, each time that `wait` says so.
template <class Wait>
void EchoWhen(int fd, Wait&& wait) {
  SetNonblock(fd, true);
  char bytes[512];
  std::size_t all = 0;
  for (;;) {
    wait();
    const ssize_t n = ::recv(fd, bytes, sizeof bytes, 0);
    if (n == 0) break;
    if (n < 0) {
      CHECK_THAT(errno == EAGAIN);
      continue;
    }
    all += static_cast<std::size_t>(n);
    CHECK_THAT(::send(fd, bytes, static_cast<std::size_t>(n), 0) == n);
  }
  Log("%zu bytes", all);
  ::close(fd);
}

// --- Sets

long MakeSet(int fd, std::uint32_t events) {
  epoll_event event{.events = events, .data = {.fd = fd}};
  const long set = OwnCall<SYS_epoll_create1>(EPOLL_CLOEXEC);
  CHECK_THAT(set >= 0);
  CHECK_THAT(OwnCall<SYS_epoll_ctl>(set, EPOLL_CTL_ADD, fd, Word(&event)) == 0);
  return set;
}

void AwaitSet(long set) {
  epoll_event event;
  CHECK_THAT(OwnCall<SYS_epoll_wait>(set, Word(&event), 1, 8000) == 1);
}

Case level(
    "own_epoll_level",
    [](int fd) {
      const long set = MakeSet(fd, EPOLLIN);
      EchoWhen(fd, [&] { AwaitSet(set); });
    },
    Caller);

Case oneshot(
    "own_epoll_oneshot",
    [](int fd) {
      const long set = MakeSet(fd, EPOLLIN | EPOLLONESHOT);
      EchoWhen(fd, [&] {
        AwaitSet(set);
        epoll_event event{.events = EPOLLIN | EPOLLONESHOT, .data = {.fd = fd}};
        OwnCall<SYS_epoll_ctl>(set, EPOLL_CTL_MOD, fd, Word(&event));
      });
    },
    Caller);

// Another thread waits.
Case thread(
    "own_epoll_thread",
    [](int fd) {
      const long set = MakeSet(fd, EPOLLIN);
      std::thread([&] { EchoWhen(fd, [&] { AwaitSet(set); }); }).join();
    },
    Caller);

// The set is libc's, the wait is not; and the other way.
Case wait_alone(
    "own_epoll_wait",
    [](int fd) {
      const int set = ::epoll_create1(0);
      epoll_event event{.events = EPOLLIN, .data = {.fd = fd}};
      CHECK_THAT(::epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
      EchoWhen(fd, [&] { AwaitSet(set); });
    },
    Caller);

Case made_alone(
    "own_epoll_create",
    [](int fd) {
      const int set = static_cast<int>(OwnCall<SYS_epoll_create1>(0));
      epoll_event event{.events = EPOLLIN, .data = {.fd = fd}};
      CHECK_THAT(::epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
      EchoWhen(fd, [&] {
        epoll_event got;
        CHECK_THAT(::epoll_wait(set, &got, 1, 8000) == 1);
      });
    },
    Caller);

// --- poll, select

Case polls(
    "own_poll",
    [](int fd) {
      EchoWhen(fd, [&] {
        pollfd one{fd, POLLIN, 0};
        CHECK_THAT(OwnCall<SYS_poll>(Word(&one), 1, 8000) == 1);
      });
    },
    Caller);

Case selects(
    "own_select",
    [](int fd) {
      EchoWhen(fd, [&] {
        fd_set in;
        FD_ZERO(&in);
        FD_SET(fd, &in);
        timeval limit{8, 0};
        CHECK_THAT(OwnCall<SYS_select>(fd + 1, Word(&in), 0, 0, Word(&limit)) ==
                   1);
      });
    },
    Caller);

// --- Bytes

// Some of them by libc's functions.
void EchoByOwn(int fd) {
  char bytes[512];
  std::size_t all = 0;
  for (int i = 0;; ++i) {
    iovec part{bytes, sizeof bytes};
    long n = 0;
    switch (i % 4) {
      case 0:
        n = OwnCall<SYS_read>(fd, Word(bytes), sizeof bytes);
        break;
      case 1:
        n = ::recv(fd, bytes, sizeof bytes, 0);
        break;
      case 2:
        n = OwnCall<SYS_readv>(fd, Word(&part), 1);
        break;
      default:
        n = OwnCall<SYS_recvfrom>(fd, Word(bytes), sizeof bytes);
    }
    if (n <= 0) break;
    all += static_cast<std::size_t>(n);
    long sent = 0;
    switch (i % 3) {
      case 0:
        sent = OwnCall<SYS_write>(fd, Word(bytes), n);
        break;
      case 1:
        sent = ::write(fd, bytes, static_cast<std::size_t>(n));
        break;
      default:
        sent = OwnCall<SYS_sendto>(fd, Word(bytes), n);
    }
    CHECK_THAT(sent == n);
  }
  Log("%zu bytes", all);
  ::close(fd);
}

Case data("own_data", EchoByOwn, Caller);

Case in_child(
    "own_data_in_child",
    [](int fd) {
      const pid_t child = ::fork();
      CHECK_THAT(child >= 0);
      if (child == 0) {
        EchoByOwn(fd);
        ::_exit(0);
      }
      ::close(fd);
      int status = 0;
      CHECK_THAT(::waitpid(child, &status, 0) == child && status == 0);
    },
    Caller);

// --- Numbers

Case numbers(
    "own_dup_and_close",
    [](int fd) {
      const int copy = static_cast<int>(OwnCall<SYS_dup>(fd));
      CHECK_THAT(copy >= 0);
      Echo(copy, 50);
      CHECK_THAT(OwnCall<SYS_close>(fd) == 0);
      // The same number, and another file.
      const int other = ::open("/dev/null", O_RDWR | O_CLOEXEC);
      CHECK_THAT(::dup2(other, fd) == fd && ::write(fd, "x", 1) == 1);
      const int last =
          static_cast<int>(OwnCall<SYS_fcntl>(copy, F_DUPFD_CLOEXEC, 100));
      CHECK_THAT(last >= 100 && ::close(copy) == 0);
      Echo(last, kRounds - 50);
      CHECK_THAT(OwnCall<SYS_shutdown>(last, SHUT_WR) == 0);
      LogDrain(last);
    },
    [](int fd) {
      Call(fd, kRounds);
      LogDrain(fd);
    });

}  // namespace
