// Short connections that send as fast as they can: under rcsock a blocking send
// may wait there for the lane that is about to come.  Whatever happens in that
// wait, the program must not see more of it than of a full buffer of TCP's.
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "tests/posix/pair.h"

namespace {

using namespace pair;

constexpr std::size_t kMuch = 1 << 20;
// What TCP takes of a connection that nobody reads.
constexpr std::size_t kFits = 96 << 10;
// So that the processes have met, and expect much of the next connection.
constexpr int kLessons = 12;

void SendPattern(int fd, std::uint64_t seed, std::size_t length,
                 std::size_t piece) {
  char text[8192];
  for (std::size_t at = 0; at < length; at += piece) {
    const std::size_t n = std::min(piece, length - at);
    Pattern(seed, at, text, n);
    SendAll(fd, text, n);
  }
}

// To the end; how many bytes, all as they were sent.
std::size_t TakePattern(int fd, std::uint64_t seed) {
  char text[8192];
  std::size_t total = 0;
  for (;;) {
    const ssize_t n = ::recv(fd, text, sizeof text, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return total;
    CHECK_THAT(IsPattern(seed, total, text, static_cast<std::size_t>(n)));
    total += static_cast<std::size_t>(n);
  }
}

void TeachServer(int listener) {
  for (int i = 0; i < kLessons; ++i) {
    const int fd = Accept(listener);
    SendPattern(fd, 1, kMuch, 8192);
    ::close(fd);
  }
}

void TeachClient(int port) {
  for (int i = 0; i < kLessons; ++i) {
    const int fd = Connect(port);
    CHECK_THAT(TakePattern(fd, 1) == kMuch);
    ::close(fd);
  }
}

int ListenAndTeach() {
  const int listener = ListenAndTell();
  TeachServer(listener);
  return listener;
}

int LearnPort() {
  const int port = HearPort();
  TeachClient(port);
  return port;
}

const Options kAlone{.warm = false, .connect = false, .seconds = 40};

Case shorts(
    "shorts",
    [](int) {
      const int listener = ListenAndTeach();
      const std::size_t pieces[] = {16, 1000, 8192};
      for (int i = 0; i < Scale(30); ++i) {
        const int fd = Accept(listener);
        SendPattern(fd, 2, i % 3 == 0 ? kMuch / 16 : kMuch, pieces[i % 3]);
        ::close(fd);
      }
    },
    [](int) {
      const int port = LearnPort();
      for (int i = 0; i < Scale(30); ++i) {
        const int fd = Connect(port);
        Log("%zu", TakePattern(fd, 2));
        ::close(fd);
      }
    },
    kAlone);

// All in one call, and one that says where its parts are.
Case large(
    "large",
    [](int) {
      const int listener = ListenAndTeach();
      std::string all(2 * kMuch, 0);
      Pattern(3, 0, all.data(), all.size());
      for (int i = 0; i < 12; ++i) {
        const int fd = Accept(listener);
        iovec parts[40];
        std::size_t at = 0;
        for (iovec& part : parts) {
          part = {all.data() + at, 0};
          part.iov_len = &part == &parts[39] ? all.size() - at : 777;
          at += part.iov_len;
        }
        SendAll(fd, all.data(), 20'000);
        Result("sent", i % 2 == 0 ? ::send(fd, all.data() + 20'000,
                                           all.size() - 20'000, 0)
                                  : ::writev(fd, parts, 40));
        ::close(fd);
      }
    },
    [](int) {
      const int port = LearnPort();
      std::string all(2 * kMuch, 0);
      Pattern(3, 0, all.data(), all.size());
      for (int i = 0; i < 12; ++i) {
        const int fd = Connect(port);
        std::string got(i % 2 == 0 ? all.size() : all.size() + 20'000, 0);
        RecvAll(fd, got.data(), got.size());
        const std::string want = i % 2 == 0 ? all : all.substr(0, 20'000) + all;
        Log("%s", got == want ? "as sent" : "something else");
        ::close(fd);
      }
    },
    kAlone);

// A large file in one call, which in the kernel would leave no gap to adopt the
// stream in.  (64 times the same, 1 MiB each.)
constexpr int kTimes = 64;

Case large_file(
    "file",
    [](int) {
      const int listener = ListenAndTeach();
      const int file = ::memfd_create("file", 0);
      CHECK_THAT(file >= 0);
      std::string all(kMuch, 0);
      Pattern(7, 0, all.data(), all.size());
      for (int i = 0; i < kTimes; ++i) {
        CHECK_THAT(::write(file, all.data(), all.size()) ==
                   static_cast<ssize_t>(all.size()));
      }
      const bool lane = ::getenv("RCSOCK_PROMOTE_OPS") != nullptr;
      for (int i = 0; i < 4; ++i) {
        const int fd = Accept(listener);
        off_t at = 0;
        CHECK_THAT(::lseek(file, 0, SEEK_SET) == 0);
        // (The second half of the connections says where; and more than there
        // is.)
        Result("sent", ::sendfile(fd, file, i < 2 ? nullptr : &at,
                                  kTimes * kMuch + (i % 2) * 1000));
        Log("at %lld %lld", static_cast<long long>(at),
            static_cast<long long>(::lseek(file, 0, SEEK_CUR)));
        Log("%d", !lane || TcpBytes(fd) < kTimes * kMuch / 2);
        ::close(fd);
      }
    },
    [](int) {
      const int port = LearnPort();
      std::string got(kMuch, 0);
      for (int i = 0; i < 4; ++i) {
        const int fd = Connect(port);
        for (int k = 0; k < kTimes; ++k) {
          RecvAll(fd, got.data(), got.size());
          CHECK_THAT(IsPattern(7, 0, got.data(), got.size()));
        }
        Result("end", ::recv(fd, got.data(), 1, 0));
        ::close(fd);
      }
    },
    kAlone);

// The first connection of a service, of which nothing is known.  One that does
// not block, and that nobody waits for by edges, is given a part of a large
// file at a time while a lane may come; poll(2) says when there is more room.
// (How much goes before the lane is there is a matter of time, and not asked.)
Case file_in_parts(
    "file_in_parts",
    [](int) {
      const int listener = ListenAndTell();
      const int file = ::memfd_create("file", 0);
      CHECK_THAT(file >= 0);
      std::string all(kMuch, 0);
      Pattern(8, 0, all.data(), all.size());
      for (int i = 0; i < kTimes; ++i) {
        CHECK_THAT(::write(file, all.data(), all.size()) ==
                   static_cast<ssize_t>(all.size()));
      }
      const int fd = Accept(listener);
      SetNonblock(fd, true);
      constexpr off_t kAll = off_t{kTimes} * kMuch;
      off_t at = 0;
      // (TCP's buffers take more than this, which nobody reads yet.)
      const ssize_t first = ::sendfile(fd, file, &at, kAll);
      CHECK_THAT(first > 0 && at == first);
      Barrier();
      while (at < kAll) {
        pollfd room{fd, POLLOUT, 0};
        const off_t before = at;
        CHECK_THAT(::poll(&room, 1, 10'000) == 1 && room.revents == POLLOUT);
        const ssize_t n = ::sendfile(fd, file, &at, kAll - at);
        CHECK_THAT(n > 0 || (n < 0 && errno == EAGAIN));
        CHECK_THAT(at == before + std::max<ssize_t>(n, 0));
      }
      ::close(fd);
    },
    [](int) {
      const int fd = Connect(HearPort());
      Barrier();
      std::string got(kMuch, 0);
      for (int k = 0; k < kTimes; ++k) {
        RecvAll(fd, got.data(), got.size());
        CHECK_THAT(IsPattern(8, 0, got.data(), got.size()));
      }
      Result("end", ::recv(fd, got.data(), 1, 0));
      ::close(fd);
    },
    kAlone);

// Both send at once, and neither reads before it has sent.
Case both_ways(
    "both_ways",
    [](int) {
      const int listener = ListenAndTeach();
      for (int i = 0; i < Scale(20); ++i) {
        const int fd = Accept(listener);
        SendPattern(fd, 4, kFits, 4096);
        ::shutdown(fd, SHUT_WR);
        Log("%zu", TakePattern(fd, 5));
        ::close(fd);
      }
    },
    [](int) {
      const int port = LearnPort();
      for (int i = 0; i < Scale(20); ++i) {
        const int fd = Connect(port);
        SendPattern(fd, 5, kFits, 4096);
        ::shutdown(fd, SHUT_WR);
        Log("%zu", TakePattern(fd, 4));
        ::close(fd);
      }
    },
    kAlone);

// So many connections to a process that is stopped once it has made them (and
// may have offered a lane for each), or, with `early`, has only begun to: then
// it is this end that offers, to one that does not answer.
constexpr int kMany = 48;

void StoppedClient(int port, bool early) {
  Tell(::getpid());
  int fds[kMany];
  sockaddr_in address = posix_test::Loopback(port);
  for (int& fd : fds) {
    fd = ::socket(AF_INET, SOCK_STREAM | (early ? SOCK_NONBLOCK : 0), 0);
    CHECK_THAT(fd >= 0);
    const int r = ::connect(fd, reinterpret_cast<const sockaddr*>(&address),
                            sizeof address);
    CHECK_THAT(r == 0 || (early && errno == EINPROGRESS));
  }
  Barrier();
  CHECK_THAT(Hear() == 1);
  for (const int fd : fds) {
    SetNonblock(fd, false);
    Log("%zu", TakePattern(fd, 6));
    ::close(fd);
  }
}

template <class Body>
void StoppedServer(Body&& body) {
  const int listener = ListenAndTeach();
  const pid_t client = static_cast<pid_t>(Hear());
  Barrier();
  Stop(client);
  const std::uint64_t start = NowMs();
  for (int i = 0; i < kMany; ++i) {
    const int fd = Accept(listener);
    body(fd, i);
  }
  // (No wait of a second for each.)
  Log("%s", NowMs() - start < 15'000 ? "in time" : "late");
  CHECK_THAT(::kill(client, SIGCONT) == 0);
  Tell(1);
}

void SendAndClose(int fd, int) {
  SendPattern(fd, 6, kFits, 4096);
  ::close(fd);
}

// Both ends send more than there is room for, each by a thread beside one that
// receives, and both are in the kernel all the time: there is a moment at which
// neither is only if a send waits elsewhere.
void Fill(int fd) {
  const bool lane = std::getenv("PAIR_WARM") != nullptr;
  std::vector<char> message(kMuch);
  Pattern(5, 0, message.data(), kMuch);
  std::atomic<bool> enough{false};
  std::thread sender([&] {
    while (!enough) SendAll(fd, message.data(), kMuch);
    ::shutdown(fd, SHUT_WR);
  });
  const std::uint64_t start = NowMs();
  std::uint64_t before = 0;
  std::vector<char> text(kMuch);
  int by_lane = 0;
  for (int i = 1;; ++i) {
    const ssize_t n = ::recv(fd, text.data(), kMuch, MSG_WAITALL);
    if (n == 0) break;
    CHECK_THAT(n == static_cast<ssize_t>(kMuch));
    if (i % 8 == 0 || enough) CHECK_THAT(text == message);
    if (enough || i % 8 != 0) continue;
    const std::uint64_t now = TcpBytes(fd);
    by_lane = now == before ? by_lane + 1 : 0;
    before = now;
    if (by_lane == 2 || (!lane && i >= 64)) enough = true;
    if (lane && NowMs() - start > 1500) Fail("still on TCP");
  }
  enough = true;
  sender.join();
  ::close(fd);
}
Case both_fill("both_fill", Fill, Fill, {.warm = false});

Case stopped(
    "stopped", [](int) { StoppedServer(SendAndClose); },
    [](int) { StoppedClient(LearnPort(), false); }, kAlone);

Case stopped_early(
    "stopped_early", [](int) { StoppedServer(SendAndClose); },
    [](int) { StoppedClient(LearnPort(), true); }, kAlone);

std::atomic<int> handled{0};

// Signals come all the time, and a send that TCP has room for is not ended by
// one, whatever its handler's flags are.
void WithSignals(int flags) {
  struct sigaction action {};
  action.sa_handler = [](int) { ++handled; };
  action.sa_flags = flags;
  CHECK_THAT(::sigaction(SIGALRM, &action, nullptr) == 0);
  StoppedServer([](int fd, int) {
    const itimerval often{{0, 300}, {0, 300}};
    const itimerval never{};
    handled = 0;
    char text[4096];
    int cut = 0;
    ::setitimer(ITIMER_REAL, &often, nullptr);
    for (std::size_t at = 0; at < kFits; at += sizeof text) {
      Pattern(6, at, text, sizeof text);
      if (::send(fd, text, sizeof text, 0) != sizeof text) ++cut;
    }
    while (handled == 0) ::sched_yield();
    ::setitimer(ITIMER_REAL, &never, nullptr);
    Log("cut: %d", cut);
    ::close(fd);
  });
}

Case signals(
    "signals", [](int) { WithSignals(0); },
    [](int) { StoppedClient(LearnPort(), false); }, kAlone);

Case signals_restart(
    "signals_restart", [](int) { WithSignals(SA_RESTART); },
    [](int) { StoppedClient(LearnPort(), false); }, kAlone);

void* SendFor(void* argument) {
  SendPattern(*static_cast<int*>(argument), 6, kFits, 4096);
  return nullptr;
}

// (A yield may take a slice of each of many others.)
void YieldTimes(int times) {
  const std::uint64_t bound = NowMs() + 50;
  for (int k = 0; k < times && NowMs() < bound; ++k) ::sched_yield();
}

// A client that counts nothing: what had been sent by then is anybody's guess.
void DrainStopped(int port) {
  Tell(::getpid());
  int fds[kMany];
  for (int& fd : fds) fd = Connect(port);
  Barrier();
  CHECK_THAT(Hear() == 1);
  for (const int fd : fds) {
    TakePattern(fd, 6);
    ::close(fd);
  }
  Log("all as sent");
}

// A thread is cancelled while it sends; the connection goes on.
Case cancelled(
    "cancelled",
    [](int) {
      StoppedServer([](int fd, int i) {
        pthread_t thread;
        CHECK_THAT(::pthread_create(&thread, nullptr, SendFor, &fd) == 0);
        YieldTimes(i * 40);
        ::pthread_cancel(thread);
        void* result = nullptr;
        CHECK_THAT(::pthread_join(thread, &result) == 0);
        ::close(fd);
      });
    },
    [](int) { DrainStopped(LearnPort()); }, kAlone);

// Another thread closes the descriptor meanwhile.
Case closed(
    "closed",
    [](int) {
      StoppedServer([](int fd, int i) {
        std::atomic<bool> begun{false};
        std::thread sender([fd, &begun] {
          char text[4096];
          begun = true;
          for (std::size_t at = 0; at < kFits; at += sizeof text) {
            Pattern(6, at, text, sizeof text);
            const ssize_t n = ::send(fd, text, sizeof text, MSG_NOSIGNAL);
            if (n == sizeof text) continue;
            CHECK_THAT(n >= 0 || errno == EBADF || errno == EPIPE);
            return;
          }
        });
        while (!begun) ::sched_yield();
        YieldTimes(i * 40);
        ::close(fd);
        sender.join();
      });
    },
    [](int) { DrainStopped(LearnPort()); }, kAlone);

// The process forks while another thread sends.
Case forked(
    "forked",
    [](int) {
      const int listener = ListenAndTeach();
      for (int i = 0; i < Scale(20); ++i) {
        int fd = Accept(listener);
        std::thread sender([fd] { SendPattern(fd, 6, kMuch, 4096); });
        for (int k = 0; k < i * 20; ++k) ::sched_yield();
        const pid_t child = ::fork();
        CHECK_THAT(child >= 0);
        if (child == 0) ::_exit(0);
        int status = 0;
        CHECK_THAT(::waitpid(child, &status, 0) == child && status == 0);
        sender.join();
        ::close(fd);
      }
    },
    [](int) {
      const int port = LearnPort();
      for (int i = 0; i < Scale(20); ++i) {
        const int fd = Connect(port);
        Log("%zu", TakePattern(fd, 6));
        ::close(fd);
      }
    },
    kAlone);

// A poll for room that waits for a lane is ended by a signal as any is; what
// there is room for is told all the same.
Case polls_and_signals(
    "polls_and_signals",
    [](int) {
      struct sigaction action {};
      action.sa_handler = [](int) { ++handled; };
      action.sa_flags = SA_RESTART;
      CHECK_THAT(::sigaction(SIGALRM, &action, nullptr) == 0);
      StoppedServer([](int fd, int) {
        SetNonblock(fd, true);
        const itimerval often{{0, 300}, {0, 300}};
        const itimerval never{};
        handled = 0;
        char text[4096];
        int cut = 0;
        ::setitimer(ITIMER_REAL, &often, nullptr);
        for (std::size_t at = 0; at < kFits; at += sizeof text) {
          pollfd room{fd, POLLOUT, 0};
          if (::poll(&room, 1, -1) != 1) ++cut;
          Pattern(6, at, text, sizeof text);
          if (::send(fd, text, sizeof text, 0) != sizeof text) ++cut;
        }
        while (handled == 0) ::sched_yield();
        ::setitimer(ITIMER_REAL, &never, nullptr);
        Log("cut: %d", cut);
        ::close(fd);
      });
    },
    [](int) { StoppedClient(LearnPort(), false); }, kAlone);

// A send of a socket that does not block is never held.
Case nonblocking(
    "nonblocking",
    [](int) {
      StoppedServer([](int fd, int i) {
        if (i % 2 == 0) SetNonblock(fd, true);
        char text[4096];
        int cut = 0;
        for (std::size_t at = 0; at < kFits; at += sizeof text) {
          Pattern(6, at, text, sizeof text);
          if (::send(fd, text, sizeof text, i % 2 == 0 ? 0 : MSG_DONTWAIT) !=
              sizeof text) {
            ++cut;
          }
        }
        Log("cut: %d", cut);
        ::close(fd);
      });
    },
    [](int) { StoppedClient(LearnPort(), false); }, kAlone);

}  // namespace
