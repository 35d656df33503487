// The same addresses again: what a close, an exit or a death has ended is as
// free, and at once, as TCP leaves it.
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <thread>

#include "tests/posix/pair.h"

namespace {

using namespace pair;

constexpr Options kAlone{.warm = false, .connect = false};
constexpr int kLives = 12;

// No SO_REUSEADDR: it is free, or EADDRINUSE.
int Bound(const char* what, int port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = posix_test::Loopback(port);
  errno = 0;
  if (::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
    Log("%s: %s", what, ErrorName(errno));
    ::close(fd);
    return -1;
  }
  return fd;
}

int PortOf(int fd) {
  sockaddr_in own{};
  socklen_t length = sizeof own;
  CHECK_THAT(::getsockname(fd, reinterpret_cast<sockaddr*>(&own), &length) ==
             0);
  return ntohs(own.sin_port);
}

int ConnectFrom(int from, int to) {
  const int fd = Bound("bind", from);
  if (fd < 0) return -1;
  sockaddr_in address = posix_test::Loopback(to);
  if (Result("connect", ::connect(fd, reinterpret_cast<sockaddr*>(&address),
                                  sizeof address)) != 0) {
    ::close(fd);
    return -1;
  }
  return fd;
}

void ResetOnClose(int fd) {
  const linger now{1, 0};
  CHECK_THAT(::setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now) == 0);
}

// A port that nobody else takes meanwhile by chance: below those that the
// kernel gives out, and its own of each case.
int SourcePort(int place) {
  return 20000 + static_cast<int>(::getpid()) % 10000 + place;
}

enum class Way { kClose, kDup2, kDup3, kRange, kSyscall };
constexpr Way kWays[] = {Way::kClose, Way::kDup2, Way::kDup3, Way::kRange,
                         Way::kSyscall};

void CloseBy(Way way, int fd) {
  const int null = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  switch (way) {
    case Way::kClose:
      Result("close", ::close(fd));
      break;
    case Way::kDup2:
      CHECK_THAT(::dup2(null, fd) == fd);
      ::close(fd);
      break;
    case Way::kDup3:
      CHECK_THAT(::dup3(null, fd, O_CLOEXEC) == fd);
      ::close(fd);
      break;
    case Way::kRange:
      Result("close_range", ::close_range(static_cast<unsigned>(fd),
                                          static_cast<unsigned>(fd), 0));
      break;
    case Way::kSyscall:
      Result("close", ::syscall(SYS_close, fd));
      break;
  }
  ::close(null);
}

// A few messages of a life that ends before, amid or behind a promotion.
void Talk(int fd, int life, bool asks) {
  if (life % 3 == 0) return WarmAs(fd, asks);
  asks ? Call(fd, 1 + 2 * life) : Echo(fd, 1 + 2 * life);
}

// --- Reset, and the same four numbers again

void ServeLives(int lives) {
  const int listener = ListenAndTell();
  for (int life = 0; life < lives; ++life) {
    const int fd = Accept(listener);
    Talk(fd, life, false);
    LogDrain(fd);
    // (The client has its next connection before this end of the last one is
    // closed.)
    if (life % 2 == 0) ::close(fd);
  }
  Barrier();
}

Case reset_and_again(
    "reset_and_again", [](int) { ServeLives(kLives); },
    [](int) {
      const int to = HearPort();
      const int from = SourcePort(0);
      for (int life = 0; life < kLives; ++life) {
        const int fd = ConnectFrom(from, to);
        CHECK_THAT(fd >= 0);
        Talk(fd, life, true);
        ResetOnClose(fd);
        CloseBy(kWays[life % 5], fd);
      }
      Barrier();
    },
    kAlone);

// By the end of a process, or by exec.
Case reset_by_exit_and_again(
    "reset_by_exit_and_again", [](int) { ServeLives(6); },
    [](int) {
      const int to = HearPort();
      const int from = SourcePort(1);
      for (int life = 0; life < 6; ++life) {
        const pid_t child = ::fork();
        if (child == 0) {
          const int fd = ConnectFrom(from, to);
          CHECK_THAT(fd >= 0);
          Talk(fd, life, true);
          ResetOnClose(fd);
          if (life % 3 == 1) {
            ::execl("/bin/true", "true", nullptr);
            ::_exit(9);
          }
          // (exit closes what close leaves open.)
          if (life % 3 == 2) ::close(::dup(fd));
          ::_exit(0);
        }
        LogChild(child);
      }
      Barrier();
    },
    kAlone);

// What nobody has read is a reset.
Case unread_and_again(
    "unread_and_again",
    [](int) {
      const int listener = ListenAndTell();
      for (int life = 0; life < kLives; ++life) {
        const int fd = Accept(listener);
        Talk(fd, life, false);
        SendAll(fd, "unread", 6);
        Barrier();
        LogDrain(fd);
        ::close(fd);
      }
    },
    [](int) {
      const int to = HearPort();
      const int from = SourcePort(2);
      for (int life = 0; life < kLives; ++life) {
        const int fd = ConnectFrom(from, to);
        CHECK_THAT(fd >= 0);
        Talk(fd, life, true);
        AwaitBytes(fd, 6);
        CloseBy(kWays[life % 5], fd);
        Barrier();
      }
    },
    kAlone);

// --- The end that closes last keeps nothing

// A server that comes again, without SO_REUSEADDR.
Case server_again(
    "server_again",
    [](int) {
      int listener = ListenAndTell();
      const int port = PortOf(listener);
      for (int life = 0; life < kLives; ++life) {
        const int fd = Accept(listener);
        Talk(fd, life, false);
        LogDrain(fd);
        ::close(listener);
        CloseBy(kWays[life % 5], fd);
        listener = Bound("bind again", port);
        CHECK_THAT(listener >= 0);
        Result("listen", ::listen(listener, 8));
        Barrier();
      }
    },
    [](int) {
      const int to = HearPort();
      for (int life = 0; life < kLives; ++life) {
        const int fd = Connect(to);
        Talk(fd, life, true);
        if (life % 2 == 0) {
          ::close(fd);
        } else {
          ResetOnClose(fd);
          ::close(fd);
        }
        Barrier();
      }
    },
    kAlone);

// ... whose clients are killed.
Case server_again_behind_the_killed(
    "server_again_behind_the_killed",
    [](int) {
      int listener = ListenAndTell();
      const int port = PortOf(listener);
      for (int life = 0; life < 6; ++life) {
        const int fd = Accept(listener);
        Talk(fd, life, false);
        LogDrain(fd);
        ::close(listener);
        ::close(fd);
        listener = Bound("bind again", port);
        CHECK_THAT(listener >= 0);
        Result("listen", ::listen(listener, 8));
        Barrier();
      }
    },
    [](int) {
      const int to = HearPort();
      for (int life = 0; life < 6; ++life) {
        const pid_t child = ::fork();
        if (child == 0) {
          const int fd = Connect(to);
          Talk(fd, life, true);
          ::raise(SIGKILL);
        }
        LogChild(child);
        Barrier();
      }
    },
    kAlone);

// ... that has not read the end, and whose client has closed first.
Case server_again_without_a_look(
    "server_again_without_a_look",
    [](int) {
      int listener = ListenAndTell();
      const int port = PortOf(listener);
      for (int life = 0; life < kLives; ++life) {
        const int fd = Accept(listener);
        Talk(fd, life, false);
        Barrier();  // the client has closed
        ::close(listener);
        CloseBy(kWays[life % 5], fd);
        listener = Bound("bind again", port);
        CHECK_THAT(listener >= 0);
        Result("listen", ::listen(listener, 8));
        Barrier();
      }
    },
    [](int) {
      const int to = HearPort();
      for (int life = 0; life < kLives; ++life) {
        const int fd = Connect(to);
        Talk(fd, life, true);
        ::close(fd);
        Barrier();
        Barrier();
      }
    },
    kAlone);

// ... as a child of the process that has closed.
Case server_again_as_a_child(
    "server_again_as_a_child",
    [](int) {
      int listener = ListenAndTell();
      const int port = PortOf(listener);
      for (int life = 0; life < 6; ++life) {
        const int fd = Accept(listener);
        Talk(fd, life, false);
        LogDrain(fd);
        ::close(listener);
        ::close(fd);
        const pid_t child = ::fork();
        if (child == 0) ::_exit(Bound("bind again", port) < 0);
        LogChild(child);
        listener = Bound("bind again", port);
        CHECK_THAT(listener >= 0);
        Result("listen", ::listen(listener, 8));
        Barrier();
      }
    },
    [](int) {
      const int to = HearPort();
      for (int life = 0; life < 6; ++life) {
        const int fd = Connect(to);
        Talk(fd, life, true);
        ::close(fd);
        Barrier();
      }
    },
    kAlone);

// ... that ends, and is started again: by close and exit, by exit alone, by
// exec of a program that ends.
Case server_started_again(
    "server_started_again",
    [](int) {
      int listener = ListenAndTell();
      const int port = PortOf(listener);
      for (int life = 0; life < 6; ++life) {
        const pid_t child = ::fork();
        if (child == 0) {
          const int fd = Accept(listener);
          WarmAs(fd, false);
          LogDrain(fd);
          if (life % 3 == 0) ::close(fd);
          if (life % 3 == 2) {
            ::fcntl(fd, F_SETFD, FD_CLOEXEC);
            ::execl("/bin/true", "true", nullptr);
          }
          ::_exit(0);
        }
        ::close(listener);
        LogChild(child);
        listener = Bound("bind again", port);
        CHECK_THAT(listener >= 0);
        Result("listen", ::listen(listener, 8));
        Barrier();
      }
    },
    [](int) {
      const int to = HearPort();
      for (int life = 0; life < 6; ++life) {
        const int fd = Connect(to);
        WarmAs(fd, true);
        ::close(fd);
        Barrier();
      }
    },
    kAlone);

// --- The same client again, whose server has closed first

Case client_again(
    "client_again",
    [](int) {
      const int listener = ListenAndTell();
      for (int life = 0; life < kLives; ++life) {
        const int fd = Accept(listener);
        Talk(fd, life, false);
        CloseBy(kWays[life % 5], fd);
      }
      Barrier();
    },
    [](int) {
      const int to = HearPort();
      const int from = SourcePort(3);
      for (int life = 0; life < kLives; ++life) {
        const int fd = ConnectFrom(from, to);
        CHECK_THAT(fd >= 0);
        Talk(fd, life, true);
        LogDrain(fd);
        CloseBy(kWays[life % 5], fd);
      }
      Barrier();
    },
    kAlone);

// Two threads, each with a port of its own.
Case two_clients_again(
    "two_clients_again",
    [](int) {
      const int listener = ListenAndTell();
      for (int i = 0; i < 2 * kLives; ++i) {
        const int fd = Accept(listener);
        Talk(fd, 0, false);
        ::close(fd);
      }
      Barrier();
    },
    [](int) {
      const int to = HearPort();
      std::atomic<int> made{0};
      const auto live = [&](int from) {
        for (int life = 0; life < kLives; ++life) {
          const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
          sockaddr_in own = posix_test::Loopback(from);
          sockaddr_in peer = posix_test::Loopback(to);
          CHECK_THAT(
              ::bind(fd, reinterpret_cast<sockaddr*>(&own), sizeof own) == 0);
          CHECK_THAT(::connect(fd, reinterpret_cast<sockaddr*>(&peer),
                               sizeof peer) == 0);
          Talk(fd, 0, true);
          int error = 0;
          CHECK_THAT(Drain(fd, &error) == 0 && error == 0);
          ::close(fd);
          ++made;
        }
      };
      std::thread one(live, SourcePort(4));
      std::thread two(live, SourcePort(5));
      one.join();
      two.join();
      Log("made %d", made.load());
      Barrier();
    },
    kAlone);

}  // namespace
