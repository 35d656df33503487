// What a handler may call wherever it has interrupted its thread: in malloc,
// too, which the calls of a socket do not need.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/time.h>
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

}  // namespace
