// Numbers that a child of vfork has closed are its parent's still, also where
// nobody has looked them up since.
#include <fcntl.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <thread>

#include "tests/posix/pair.h"

namespace {

using namespace pair;

void Ask(const char* what, int fd) {
  char text[16] = "lent";
  SendAll(fd, text, 16);
  char back[16] = {};
  RecvAll(fd, back, 16);
  Log("%s: %s", what, back);
}

// A child of vfork that closes all but 0 to 2 (the case's pipes too, which are
// its own copies) and becomes another program.
void CloseAllInChild() {
  const pid_t child = ::vfork();
  CHECK_THAT(child >= 0);
  if (child == 0) {
    for (int fd = 3; fd < 1024; ++fd) ::close(fd);
    ::execl("/bin/true", "true", nullptr);
    ::_exit(1);
  }
  int status = 0;
  CHECK_THAT(::waitpid(child, &status, 0) == child);
  Log("child: %d", status);
}

// One of two numbers is closed: the other is found, and is what a fork hands
// on.
Case two_numbers(
    "two_numbers",
    [](int fd) {
      const int other = ::fcntl(fd, F_DUPFD_CLOEXEC, 0);
      CHECK_THAT(other >= 0);
      CloseAllInChild();
      // The first of them, which names the stream; and the case's own again.
      ::close(fd);
      const pid_t child = ::fork();
      CHECK_THAT(child >= 0);
      if (child == 0) {
        Ask("child", other);
        ::_exit(0);
      }
      int status = 0;
      CHECK_THAT(::waitpid(child, &status, 0) == child);
      Log("%d", status);
      for (int i = 0; i < 3; ++i) Ask("parent", other);
      CHECK_THAT(::dup2(other, fd) == fd);
      ::close(other);
      Ask("under its first number again", fd);
      Barrier();
    },
    [](int fd) {
      Echo(fd, 5);
      Barrier();
    });

// A set that is closed forgets a stream whose number is lent.
Case closed_set(
    "closed_set",
    [](int fd) {
      constexpr std::uint64_t kOld = 17;
      for (int i = 0; i < 8; ++i) {
        const int set = ::epoll_create1(EPOLL_CLOEXEC);
        CHECK_THAT(set >= 0);
        epoll_event event{EPOLLIN, {.u64 = kOld}};
        CHECK_THAT(::epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
        CloseAllInChild();
        CHECK_THAT(::close(set) == 0);
        const int next = ::epoll_create1(EPOLL_CLOEXEC);
        CHECK_THAT(next >= 0);
        Barrier();
        char text[16];
        // There is something to read, but the new set was told of nothing.
        CHECK_THAT(::recv(fd, text, 1, MSG_PEEK) == 1);
        Result("of an empty set", ::epoll_wait(next, &event, 1, 0));
        RecvAll(fd, text, 16);
        ::close(next);
      }
      Barrier();
    },
    [](int fd) {
      const char text[16] = "something";
      for (int i = 0; i < 8; ++i) {
        Barrier();
        SendAll(fd, text, 16);
      }
      Barrier();
    });

// Another thread of the parent goes on with the stream while the child lives.
Case beside_child(
    "beside_child",
    [](int fd) {
      int pipe[2];
      CHECK_THAT(::pipe2(pipe, O_CLOEXEC) == 0);
      int closed[2];
      CHECK_THAT(::pipe2(closed, O_CLOEXEC) == 0);
      int status = 0;
      std::thread forks([&] {
        const pid_t child = ::vfork();
        if (child == 0) {
          ::close(fd);
          char byte = 'c';
          // The child ends when the parent's other thread has had its answers.
          if (::write(closed[1], &byte, 1) != 1) ::_exit(2);
          if (::read(pipe[0], &byte, 1) != 1) ::_exit(3);
          ::_exit(0);
        }
        ::waitpid(child, &status, 0);
      });
      char byte;
      CHECK_THAT(::read(closed[0], &byte, 1) == 1);
      for (int i = 0; i < 3; ++i) Ask("beside", fd);
      CHECK_THAT(::write(pipe[1], "x", 1) == 1);
      forks.join();
      Log("child: %d", status);
      Ask("after", fd);
      Barrier();
    },
    [](int fd) {
      Echo(fd, 4);
      Barrier();
    });

// A handler that runs as vfork returns forks.  Its child comes back from a
// vfork that it has not called, and lends its own memory next.
volatile bool handled = false;
volatile pid_t worker = -1;
void ForkOnce(int) {
  if (handled) return;
  handled = true;
  worker = ::fork();
}
Case forked_within(
    "forked_within",
    [](int fd) {
      struct sigaction action {};
      action.sa_handler = &ForkOnce;
      CHECK_THAT(::sigaction(SIGUSR1, &action, nullptr) == 0);
      const pid_t child = ::vfork();
      CHECK_THAT(child >= 0);
      if (child == 0) {
        // It waits for the parent, which goes on when this child has ended.
        ::kill(::getppid(), SIGUSR1);
        ::_exit(0);
      }
      CHECK_THAT(handled);
      if (worker == 0) {
        const pid_t lent = ::vfork();
        CHECK_THAT(lent >= 0);
        if (lent == 0) {
          ::close(fd);
          ::_exit(0);
        }
        ::waitpid(lent, nullptr, 0);
        Ask("worker", fd);
        ::_exit(0);
      }
      int status = -1;
      CHECK_THAT(::waitpid(child, nullptr, 0) == child);
      CHECK_THAT(::waitpid(worker, &status, 0) == worker);
      Log("worker: %d", status);
      Ask("parent", fd);
      Barrier();
    },
    [](int fd) {
      Echo(fd, 2);
      Barrier();
    });

}  // namespace
