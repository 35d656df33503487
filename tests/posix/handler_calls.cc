// What a handler may call wherever it has interrupted its thread: in malloc,
// too, which the calls of a socket do not need.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <vector>

#include "tests/posix/pair.h"

namespace {

using namespace pair;

constexpr int kConnections = 24;
int connections[kConnections];
volatile sig_atomic_t left;
volatile sig_atomic_t bad;
void (*volatile use)(int fd);

void OnTick(int) {
  const int saved = errno;
  if (left > 0) {
    left = left - 1;
    use(connections[left]);
  }
  errno = saved;
}

// Calls `each` by a handler for one connection after the other, while the
// thread does nothing but take memory and give it back.
void ByHandler(void (*each)(int fd)) {
  struct sigaction action {};
  action.sa_handler = &OnTick;
  action.sa_flags = SA_RESTART;
  CHECK_THAT(::sigaction(SIGALRM, &action, nullptr) == 0);
  use = each;
  left = kConnections;
  const itimerval often{{0, 1000}, {0, 1000}};
  CHECK_THAT(::setitimer(ITIMER_REAL, &often, nullptr) == 0);
  void* blocks[64] = {};
  for (unsigned i = 0; left > 0; ++i) {
    void*& block = blocks[(i * 1103515245u + 12345u) >> 10 & 63];
    std::free(block);
    block = std::malloc(2000 + (i * 7919u) % 60000);
    // (It must not be left out.)
    asm volatile("" : : "r"(block) : "memory");
  }
  const itimerval never{};
  CHECK_THAT(::setitimer(ITIMER_REAL, &never, nullptr) == 0);
  for (void* block : blocks) std::free(block);
  Log("bad: %d", static_cast<int>(bad));
}

void AcceptAll() {
  const int listener = ListenAndTell();
  for (int& fd : connections) {
    fd = Accept(listener);
    Warm(fd);
  }
  ::close(listener);
}

void ConnectAll() {
  const int port = HearPort();
  for (int& fd : connections) {
    fd = Connect(port);
    Warm(fd);
  }
}

// What each of them still brings.
void DrainAll() {
  for (const int fd : connections) {
    int error = 0;
    Log("%zu bytes, %s", Drain(fd, &error), ErrorName(error));
  }
}

Case closes(
    "handler_closes",
    [](int) {
      AcceptAll();
      ByHandler([](int fd) {
        if (::close(fd) != 0) bad = bad + 1;
      });
    },
    [](int) {
      ConnectAll();
      DrainAll();
    },
    {.warm = false, .connect = false, .seconds = 60});

Case sends(
    "handler_sends_and_shuts",
    [](int) {
      AcceptAll();
      static char bytes[1 << 16];
      Pattern(3, 0, bytes, sizeof bytes);
      ByHandler([](int fd) {
        // More than there is room for.
        while (::send(fd, bytes, sizeof bytes, MSG_DONTWAIT | MSG_NOSIGNAL) ==
               static_cast<ssize_t>(sizeof bytes)) {
        }
        if (::shutdown(fd, SHUT_WR) != 0) bad = bad + 1;
      });
      Barrier();
      for (const int fd : connections) {
        char byte;
        Result("end", ::recv(fd, &byte, 1, 0));
        ::close(fd);
      }
    },
    [](int) {
      ConnectAll();
      Barrier();
      for (const int fd : connections) {
        std::vector<char> got(1 << 16);
        bool good = true;
        std::size_t at = 0;
        for (;;) {
          const ssize_t n = ::recv(fd, got.data(), got.size() - at, 0);
          if (n <= 0) break;
          good = good && IsPattern(3, at, got.data(), std::size_t(n));
          at = (at + std::size_t(n)) % got.size();
        }
        Log("good: %d", good);
        ::close(fd);
      }
    },
    {.warm = false, .connect = false, .seconds = 60});

Case polls(
    "handler_polls_and_sets",
    [](int) {
      AcceptAll();
      ByHandler([](int fd) {
        pollfd two[2] = {{fd, POLLIN, 0}, {connections[0], POLLIN, 0}};
        if (::poll(two, 2, 2) != 0) bad = bad + 1;
        // (It takes the stream to TCP.)
        const int two_bytes = 2;
        if (::fcntl(fd, F_SETFL, O_NONBLOCK) != 0 ||
            ::setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &two_bytes,
                         sizeof two_bytes) != 0) {
          bad = bad + 1;
        }
      });
      for (const int fd : connections) SendAll(fd, "after", 5);
      Barrier();
    },
    [](int) {
      ConnectAll();
      for (const int fd : connections) {
        char text[5];
        RecvAll(fd, text, sizeof text);
        Log("%.5s", text);
      }
      Barrier();
    },
    {.warm = false, .connect = false, .seconds = 60});

Case exits(
    "handler_exits",
    [](int) {
      AcceptAll();
      ByHandler([](int fd) {
        if (::send(fd, "last", 4, MSG_NOSIGNAL) != 4) ::_exit(9);
        if (left == 0) ::_exit(3);
      });
    },
    [](int) {
      ConnectAll();
      DrainAll();
    },
    {.warm = false, .connect = false, .seconds = 60});

// A fork in the midst of a wait: the child's ends as its parent's does, and its
// connection goes on.
volatile pid_t forked;
volatile sig_atomic_t waits;

void OnFork(int) {
  if (waits == 0) return;
  waits = 0;
  forked = ::fork();
}

void HandleAlarm(void (*handler)(int), int flags) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = flags;
  CHECK_THAT(::sigaction(SIGALRM, &action, nullptr) == 0);
  const itimerval often{{0, 50'000}, {0, 50'000}};
  CHECK_THAT(::setitimer(ITIMER_REAL, &often, nullptr) == 0);
}

void StopAlarm() {
  const itimerval never{};
  CHECK_THAT(::setitimer(ITIMER_REAL, &never, nullptr) == 0);
}

int ByRecv(int fd) {
  char byte;
  return static_cast<int>(::recv(fd, &byte, 1, MSG_PEEK));
}
int ByPollOfOne(int fd) {
  pollfd one{fd, POLLIN, 0};
  return ::poll(&one, 1, -1);
}
int ByPollOfTwo(int fd) {
  pollfd two[2] = {{fd, POLLIN, 0}, {fd, POLLRDHUP, 0}};
  return ::poll(two, 2, -1);
}
int ByEpoll(int fd) {
  static const int set = ::epoll_create1(EPOLL_CLOEXEC);
  epoll_event event{};
  event.events = EPOLLIN;
  ::epoll_ctl(set, EPOLL_CTL_ADD, fd, &event);
  return ::epoll_wait(set, &event, 1, -1);
}

// Of the child's, each of which it is told by that the peer has left it.
constexpr int kLanes = 2;

void ServeForked(int fd) {
  for (int i = 0; i < kLanes; ++i) {
    WarmAs(fd, false);
    // (On its lane.)
    const auto peer = static_cast<pid_t>(Hear());
    AwaitAsleep(peer, peer);
    const pid_t child = ::fork();
    CHECK_THAT(child >= 0);
    if (child == 0) ::_exit(0);
    CHECK_THAT(::waitpid(child, nullptr, 0) == child);
    SendAll(fd, "x", 1);
  }
  int error = 0;
  Log("%zu more, %s", Drain(fd, &error), ErrorName(error));
}

void ForkWithin(int fd, int (*wait)(int fd)) {
  forked = -1;
  waits = 0;
  HandleAlarm(&OnFork, 0);
  do {
    waits = 1;
    const int n = wait(fd);
    CHECK_THAT(n < 0 && errno == EINTR);
  } while (forked < 0);
  if (forked != 0) {
    StopAlarm();
    ::close(fd);
    int status = 0;
    CHECK_THAT(::waitpid(forked, &status, 0) == forked);
    Log("child: %x", static_cast<unsigned>(status));
    return;
  }
  for (int i = 0; i < kLanes; ++i) {
    WarmAs(fd, true);
    Tell(::getpid());
    Log("told: %d", wait(fd));
    char byte;
    RecvAll(fd, &byte, 1);
  }
  SendAll(fd, "abc", 3);
  ::close(fd);
  ::_exit(0);
}

Case forks_in_recv("handler_forks_in_recv", ServeForked,
                   [](int fd) { ForkWithin(fd, ByRecv); }, {.seconds = 40});
Case forks_in_poll_of_one("handler_forks_in_poll_of_one", ServeForked,
                          [](int fd) { ForkWithin(fd, ByPollOfOne); },
                          {.seconds = 40});
Case forks_in_poll_of_two("handler_forks_in_poll_of_two", ServeForked,
                          [](int fd) { ForkWithin(fd, ByPollOfTwo); },
                          {.seconds = 40});
Case forks_in_epoll("handler_forks_in_epoll", ServeForked,
                    [](int fd) { ForkWithin(fd, ByEpoll); }, {.seconds = 40});

// ... in a recv of what comes by TCP, while what is sent goes over the lane.
constexpr int kOneWay = 50;

void SendOneWay(int fd) {
  // By one of these that way leaves TCP.
  for (int i = 0; i < kOneWay; ++i) {
    SendAll(fd, "x", 1);
    ::usleep(1000);
  }
}

Case forks_in_one_way(
    "handler_forks_in_recv_one_way",
    [](int fd) {
      char text[2 * kOneWay];
      RecvAll(fd, text, sizeof text);
      const auto peer = static_cast<pid_t>(Hear());
      AwaitAsleep(peer, peer);
      SendAll(fd, "y", 1);
      LogDrain(fd);
    },
    [](int fd) {
      SendOneWay(fd);
      forked = -1;
      waits = 0;
      HandleAlarm(&OnFork, 0);
      do {
        waits = 1;
        CHECK_THAT(ByRecv(fd) < 0 && errno == EINTR);
      } while (forked < 0);
      if (forked != 0) {
        StopAlarm();
        ::close(fd);
        LogChild(forked);
        return;
      }
      SendOneWay(fd);
      Tell(::getpid());
      Log("told: %d", ByRecv(fd));
      ::close(fd);
      ::_exit(0);
    },
    {.warm = false, .seconds = 40});

// ... and one that goes on behind the handler, in both processes; the parent's
// comes back when the child has ended.
void OnForkAndWait(int) {
  if (waits == 0) return;
  waits = 0;
  forked = ::fork();
  if (forked <= 0) return;
  Tell(0);
  int status = 0;
  if (::waitpid(forked, &status, 0) != forked || status != 0) ::_exit(9);
}

Case forks_in_restarted(
    "handler_forks_in_restarted_recv",
    [](int fd) {
      Hear();
      SendAll(fd, "x", 1);
      Hear();
      SendAll(fd, "y", 1);
      Warm(fd);
      LogDrain(fd);
    },
    [](int fd) {
      waits = 1;
      HandleAlarm(&OnForkAndWait, SA_RESTART);
      char byte;
      RecvAll(fd, &byte, 1);
      Log("%c", byte);
      if (byte == 'x') {
        Tell(0);
        ::_exit(0);
      }
      StopAlarm();
      Warm(fd);
      SendAll(fd, "end", 3);
      ::close(fd);
    },
    {.seconds = 40});

// A send that waits for room.
Case forks_in_send(
    "handler_forks_in_send",
    [](int fd) {
      const auto total = static_cast<std::size_t>(Hear());
      std::vector<char> bytes(total);
      RecvAll(fd, bytes.data(), total);
      LogDrain(fd);
    },
    [](int fd) {
      const std::vector<char> bytes(1 << 20);
      std::size_t total = 0;
      const auto take = [&total](ssize_t n) {
        if (n > 0) total += static_cast<std::size_t>(n);
        return n > 0;
      };
      forked = -1;
      waits = 0;
      HandleAlarm(&OnFork, 0);
      while (forked < 0) {
        while (take(::send(fd, bytes.data(), bytes.size(), MSG_DONTWAIT))) {
        }
        waits = 1;
        take(::send(fd, bytes.data(), bytes.size(), 0));
      }
      if (forked == 0) {
        sockaddr_storage peer;
        socklen_t length = sizeof peer;
        Result("in the child",
               ::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &length));
        ::_exit(0);
      }
      StopAlarm();
      int status = 0;
      CHECK_THAT(::waitpid(forked, &status, 0) == forked && status == 0);
      Tell(static_cast<std::int64_t>(total));
      ::close(fd);
    },
    {.seconds = 40});

}  // namespace
