// Many connections of one service: what earlier ones have come to decides when
// the next looks for a lane.  Where they were long it does so while it is being
// connected; fork, signals and pthread_cancel come into that here.
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <ctime>
#include <functional>
#include <vector>

#include "tests/posix/pair.h"

namespace {

using namespace pair;

constexpr Options kApart{.warm = false, .connect = false, .seconds = 40};
constexpr std::size_t kRecord = 4;

// Echoes what comes on `count` connections, one after the other.
void Echo(int listener, int count) {
  std::vector<char> bytes(64 << 10);
  for (int i = 0; i < count; ++i) {
    const int fd = Accept(listener);
    for (;;) {
      const ssize_t n = ::recv(fd, bytes.data(), bytes.size(), 0);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) break;
      SendAll(fd, bytes.data(), static_cast<std::size_t>(n));
    }
    CHECK_THAT(::close(fd) == 0);
  }
}

void Serve(int count) {
  const int listener = ListenAndTell();
  Echo(listener, count);
  Log("%d served", count);
}

void Ask(int fd, int times) {
  char text[kRecord];
  for (int i = 0; i < times; ++i) {
    SendAll(fd, "ping", kRecord);
    RecvAll(fd, text, kRecord);
    CHECK_THAT(std::memcmp(text, "ping", kRecord) == 0);
  }
}

// Short ones: one request each.
void AskBriefly(int port, int count) {
  for (int i = 0; i < count; ++i) {
    const int fd = Connect(port);
    Ask(fd, 1);
    CHECK_THAT(::close(fd) == 0);
  }
}

// Ten long ones, some of which have a lane.
constexpr int kLong = 10;
void AskAtLength(int port) {
  std::vector<char> out(16 << 10);
  std::vector<char> in(out.size());
  Pattern(7, 0, out.data(), out.size());
  for (int i = 0; i < kLong; ++i) {
    const int fd = Connect(port);
    for (int k = 0; k < 200; ++k) {
      SendAll(fd, out.data(), out.size());
      RecvAll(fd, in.data(), in.size());
      CHECK_THAT(in == out);
    }
    CHECK_THAT(::close(fd) == 0);
  }
}

// A request every two milliseconds, until TCP carries nothing any more: under
// TCP, and for one that gets no lane, 300.
void AskSlowly(int port) {
  const int fd = Connect(port);
  std::uint64_t before = 0;
  for (int i = 0, still = 0; i < 300 && still < 3; ++i) {
    Ask(fd, 1);
    const timespec pause{0, 2'000'000};
    ::nanosleep(&pause, nullptr);
    if (i % 5 != 4) continue;
    const std::uint64_t now = TcpBytes(fd);
    still = now == before ? still + 1 : 0;
    before = now;
  }
  CHECK_THAT(::close(fd) == 0);
}

void InChild(const std::function<void()>& what) {
  const pid_t child = ::fork();
  CHECK_THAT(child >= 0);
  if (child == 0) {
    what();
    ::_exit(0);
  }
  int status = 1;
  CHECK_THAT(::waitpid(child, &status, 0) == child);
  Log("child: %d", status);
}

// --- Short ones, then a long, slow one: it has a lane in the end, whatever
// each end has learnt (services_test.sh counts).
constexpr int kShort = 12;

Case slow_known(
    "slow_known", [](int) { Serve(kShort + 1); },
    [](int) {
      const int port = HearPort();
      AskBriefly(port, kShort);
      AskSlowly(port);
    },
    kApart);

Case slow_new_client(
    "slow_new_client", [](int) { Serve(kShort + 1); },
    [](int) {
      const int port = HearPort();
      InChild([port] { AskBriefly(port, kShort); });
      AskSlowly(port);
    },
    kApart);

Case slow_new_server(
    "slow_new_server",
    [](int) {
      const int listener = ListenAndTell();
      InChild([listener] { Echo(listener, kShort); });
      Barrier();
      Echo(listener, 1);
    },
    [](int) {
      const int port = HearPort();
      AskBriefly(port, kShort);
      Barrier();
      AskSlowly(port);
    },
    kApart);

// --- Long ones, then some that look from the start

// (Too few calls to look for any other reason: services_test.sh counts.)
constexpr int kGuessed = 2;
Case at_once(
    "at_once", [](int) { Serve(kLong + kGuessed); },
    [](int) {
      const int port = HearPort();
      AskAtLength(port);
      for (int i = 0; i < kGuessed; ++i) {
        const int fd = Connect(port);
        Ask(fd, 3);
        CHECK_THAT(::close(fd) == 0);
      }
    },
    kApart);

Case forks(
    "guessed_fork", [](int) { Serve(kLong + 12); },
    [](int) {
      const int port = HearPort();
      AskAtLength(port);
      for (int i = 0; i < 12; ++i) {
        const int fd = Connect(port);
        Ask(fd, i / 2);
        InChild([fd] { Ask(fd, 20); });
        Ask(fd, 30);
        CHECK_THAT(::close(fd) == 0);
      }
    },
    kApart);

std::atomic<int> signalled_fd{-1};
std::atomic<int> signalled{0};

void OnAlarm(int) {
  const int saved = errno;
  const int fd = signalled_fd.load();
  if (fd >= 0 && ::send(fd, "sign", kRecord, MSG_NOSIGNAL) ==
                     static_cast<ssize_t>(kRecord)) {
    signalled.fetch_add(1);
  }
  errno = saved;
}

void SetAlarm(int us) {
  const itimerval timer{{0, us}, {0, us}};
  CHECK_THAT(::setitimer(ITIMER_REAL, &timer, nullptr) == 0);
}

Case signals(
    "guessed_signal", [](int) { Serve(kLong + 10); },
    [](int) {
      const int port = HearPort();
      AskAtLength(port);
      struct sigaction action {};
      action.sa_handler = OnAlarm;
      CHECK_THAT(::sigaction(SIGALRM, &action, nullptr) == 0);
      for (int i = 0; i < 10; ++i) {
        signalled = 0;
        const int fd = Connect(port);
        signalled_fd = fd;
        SetAlarm(150);
        int echoed = 0;
        char text[kRecord];
        // True: an echo of ours, not of the handler's.
        const auto take = [&] {
          RecvAll(fd, text, kRecord);
          const bool ours = std::memcmp(text, "ping", kRecord) == 0;
          if (!ours) {
            CHECK_THAT(std::memcmp(text, "sign", kRecord) == 0);
            ++echoed;
          }
          return ours;
        };
        for (int k = 0; k < 300 || signalled == 0; ++k) {
          SendAll(fd, "ping", kRecord);
          while (!take()) continue;
        }
        SetAlarm(0);
        signalled_fd = -1;
        while (echoed < signalled) CHECK_THAT(!take());
        CHECK_THAT(::close(fd) == 0);
      }
      Log("no record lost");
    },
    kApart);

Case cancels(
    "guessed_cancel", [](int) { Serve(kLong + 40); },
    [](int) {
      const int port = HearPort();
      AskAtLength(port);
      for (int i = 0; i < 40; ++i) {
        const int fd = Connect(port);
        struct Talk {
          int fd;
          std::atomic<int> rounds{0};
        } talk{fd};
        pthread_t thread;
        CHECK_THAT(::pthread_create(
                       &thread, nullptr,
                       [](void* argument) -> void* {
                         auto* mine = static_cast<Talk*>(argument);
                         for (;;) {
                           Ask(mine->fd, 1);
                           mine->rounds.fetch_add(1);
                         }
                       },
                       &talk) == 0);
        while (talk.rounds < i / 4) ::sched_yield();
        CHECK_THAT(::pthread_cancel(thread) == 0);
        void* result = nullptr;
        CHECK_THAT(::pthread_join(thread, &result) == 0);
        CHECK_THAT(result == PTHREAD_CANCELED);
        // Whole again: what had been asked for comes, and then the end.
        CHECK_THAT(::shutdown(fd, SHUT_WR) == 0);
        int error = 0;
        CHECK_THAT(Drain(fd, &error) <= kRecord && error == 0);
        CHECK_THAT(::close(fd) == 0);
      }
      Log("all cancelled");
    },
    kApart);

}  // namespace
