// Threads and signals on one connection; much data.
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "tests/posix/pair.h"

namespace {

using namespace pair;

void SendBulk(int fd, std::uint64_t seed, std::uint64_t total) {
  Random random{seed};
  std::vector<char> buffer(200'000);
  for (std::uint64_t at = 0; at < total;) {
    const std::size_t most = random.Below(4) == 0 ? buffer.size() : 3000;
    const std::size_t n =
        std::min<std::uint64_t>(1 + random.Below(most), total - at);
    Pattern(seed, at, buffer.data(), n);
    SendAll(fd, buffer.data(), n);
    at += n;
  }
}

void RecvBulk(int fd, std::uint64_t seed, std::uint64_t total) {
  Random random{seed + 1};
  std::vector<char> buffer(200'000);
  for (std::uint64_t at = 0; at < total;) {
    const std::size_t want =
        std::min<std::uint64_t>(1 + random.Below(buffer.size()), total - at);
    const ssize_t n = ::recv(fd, buffer.data(), want, 0);
    if (n <= 0)
      Fail("recv at %llu: %zd %s", static_cast<unsigned long long>(at), n,
           ErrorName(errno));
    if (!IsPattern(seed, at, buffer.data(), static_cast<std::size_t>(n))) {
      Fail("wrong bytes near %llu", static_cast<unsigned long long>(at));
    }
    at += static_cast<std::uint64_t>(n);
  }
}

std::uint64_t Much() { return static_cast<std::uint64_t>(Scale(60)) << 20; }

void Duplex(int fd) {
  const std::uint64_t mine = IsClient() ? 100 : 200;
  std::thread writer([&] { SendBulk(fd, mine, Much()); });
  RecvBulk(fd, 300 - mine, Much());
  writer.join();
  Log("done");
}

Case duplex("duplex", Duplex, Duplex, {.seconds = 60});
// The same, promoted somewhere in the middle.
Case duplex_cold("duplex_cold", Duplex, Duplex, {.warm = false, .seconds = 60});

// Several readers and several writers: every byte once.
Case crowd(
    "crowd",
    [](int fd) {
      std::atomic<std::uint64_t> bytes{0};
      std::atomic<std::uint64_t> sum{0};
      std::vector<std::thread> readers;
      for (int i = 0; i < 3; ++i) {
        readers.emplace_back([&] {
          std::vector<unsigned char> buffer(10'000);
          for (;;) {
            const ssize_t n = ::recv(fd, buffer.data(), buffer.size(), 0);
            if (n < 0) Fail("recv: %s", ErrorName(errno));
            if (n == 0) break;
            std::uint64_t local = 0;
            for (ssize_t k = 0; k < n; ++k) local += buffer[k];
            bytes += static_cast<std::uint64_t>(n);
            sum += local;
          }
        });
      }
      for (auto& one : readers) one.join();
      Log("%llu bytes, sum %llu", static_cast<unsigned long long>(bytes.load()),
          static_cast<unsigned long long>(sum.load()));
    },
    [](int fd) {
      std::vector<std::thread> writers;
      for (int i = 0; i < 3; ++i) {
        writers.emplace_back([&, i] { SendBulk(fd, 10 + i, 3'000'000); });
      }
      for (auto& one : writers) one.join();
      ::shutdown(fd, SHUT_WR);
    });

// A thread in recv(), and the end comes from this side.
void ShutUnderRecv(int fd, int how) {
  std::atomic<bool> started{false};
  ssize_t got = -2;
  std::thread reader([&] {
    char byte;
    started = true;
    got = ::recv(fd, &byte, 1, 0);
  });
  while (!started) std::this_thread::yield();
  pollfd none{-1, 0, 0};
  ::poll(&none, 1, 30);
  ::shutdown(fd, how);
  reader.join();
  Log("recv: %zd", got);
  Barrier();
}

// Several threads that wait for the same connection by poll() and then read
// what is there: a message wakes somebody, the end wakes all.
Case crowd_polls(
    "crowd_polls",
    [](int fd) {
      std::atomic<std::uint64_t> sum{0};
      std::vector<std::thread> readers;
      for (int i = 0; i < 4; ++i) {
        readers.emplace_back([&, i] {
          for (;;) {
            pollfd one{fd, POLLIN | POLLPRI, 0};
            // With a time and without.
            const int n = ::poll(&one, 1, i % 2 == 0 ? -1 : 15'000);
            if (n != 1) Fail("poll: %d %s", n, ErrorName(errno));
            unsigned char bytes[3];
            const ssize_t got = ::recv(fd, bytes, sizeof bytes, MSG_DONTWAIT);
            if (got == 0) break;
            for (ssize_t k = 0; k < got; ++k) sum += bytes[k];
            if (got < 0 && errno != EAGAIN) Fail("recv: %s", ErrorName(errno));
          }
        });
      }
      for (auto& reader : readers) reader.join();
      Log("sum %llu", static_cast<unsigned long long>(sum));
    },
    [](int fd) {
      Random random{Seed()};
      for (int i = 0; i < Scale(4000); ++i) {
        const unsigned char bytes[] = {1, 2, 3, 4, 5, 6};
        SendAll(fd, bytes, 1 + random.Below(sizeof bytes));
        // Now and then long enough for all to have gone to sleep.
        const timespec pause{0, static_cast<long>(random.Below(200'000))};
        if (random.Below(4) == 0) ::nanosleep(&pause, nullptr);
      }
      ::shutdown(fd, SHUT_WR);
      char byte;
      Result("recv", ::recv(fd, &byte, 1, 0));
    },
    {.seconds = 60});

Case shut_under(
    "shutdown_under_recv",
    [](int fd) {
      int error;
      Drain(fd, &error);
      Barrier();
    },
    [](int fd) { ShutUnderRecv(fd, SHUT_RDWR); });

Case shut_read_under(
    "shutdown_read_under_recv", [](int) { Barrier(); },
    [](int fd) { ShutUnderRecv(fd, SHUT_RD); });

// Not to be inlined: its name is in the suppression below.
[[gnu::noinline]] int CloseUnderOther(int fd) {
  const int result = ::close(fd);
  return result;
}
[[gnu::noinline]] int CloseUnderOther(int fd, int over) {
  const int result = ::dup2(over, fd);
  return result;
}

// In the kernel a recv() that has begun outlives a close() by another thread:
// it still gets what comes.
Case close_under(
    "close_under_recv",
    [](int fd) {
      Barrier();
      ::send(fd, "x", 1, MSG_NOSIGNAL);
      Barrier();
    },
    [](int fd) {
      std::atomic<bool> started{false};
      std::atomic<bool> ended{false};
      std::thread reader([&] {
        char byte;
        started = true;
        ::recv(fd, &byte, 1, 0);
        ended = true;
      });
      while (!started) std::this_thread::yield();
      pollfd none{-1, 0, 0};
      ::poll(&none, 1, 30);
      Result("close", CloseUnderOther(fd));
      Barrier();
      reader.join();
      Log("recv ends");
      Barrier();
    });

// A call may find the number good, or closed, or another file's; never what
// lies under the stream, whose bytes are no application's.
constexpr int kClosedBeside = 60;
void ServeClosedBeside(int) {
  const int listener = ListenAndTell();
  int good = 0;
  for (int i = 0; i < kClosedBeside; ++i) {
    const int fd = Accept(listener);
    Warm(fd);
    Barrier();
    ::shutdown(fd, SHUT_WR);
    char text[4096];
    ssize_t n;
    bool own = true;
    while ((n = ::recv(fd, text, sizeof text, 0)) > 0) {
      for (ssize_t k = 0; k < n; ++k) own = own && text[k] == 'x';
    }
    if (own && n == 0) ++good;
    ::close(fd);
    Barrier();
  }
  Log("%d good", good);
}
// `over`: what takes the number; -1: nothing.
void CloseBeside(int over) {
  const int port = HearPort();
  int strange = 0;
  for (int i = 0; i < kClosedBeside; ++i) {
    const int fd = Connect(port);
    Warm(fd);
    std::atomic<int> calls{0};
    std::atomic<bool> done{false};
    std::thread other([&] {
      while (!done) {
        char text[512];
        if (::recv(fd, text, sizeof text, MSG_DONTWAIT) > 0) ++strange;
        if (calls % 4 == 0) ::send(fd, "x", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
        ++calls;
      }
    });
    Barrier();
    const int before = calls;
    while (calls < before + i % 8) std::this_thread::yield();
    over >= 0 ? CloseUnderOther(fd, over) : CloseUnderOther(fd);
    const int after = calls;
    while (calls < after + 4) std::this_thread::yield();
    done = true;
    other.join();
    Barrier();
    if (over >= 0) ::close(fd);
  }
  Log("%d strange", strange);
}

Case close_beside("close_beside_calls", ServeClosedBeside,
                  [](int) { CloseBeside(-1); },
                  {.warm = false, .connect = false, .seconds = 60});
Case dup_beside("dup2_beside_calls", ServeClosedBeside,
                [](int) {
                  CloseBeside(::open("/dev/null", O_RDWR | O_CLOEXEC));
                },
                {.warm = false, .connect = false, .seconds = 60});

Case shut_under_poll(
    "shutdown_under_poll",
    [](int fd) {
      Barrier();
      (void)fd;
    },
    [](int fd) {
      std::atomic<bool> started{false};
      int got = -2;
      pollfd one{fd, POLLIN, 0};
      std::thread waiter([&] {
        started = true;
        got = ::poll(&one, 1, -1);
      });
      while (!started) std::this_thread::yield();
      pollfd none{-1, 0, 0};
      ::poll(&none, 1, 30);
      ::shutdown(fd, SHUT_RD);
      waiter.join();
      Log("poll: %d %x", got, static_cast<unsigned>(one.revents));
      Barrier();
    });

volatile sig_atomic_t signals = 0;

void Handle(int number, int flags) {
  struct sigaction action {};
  action.sa_handler = [](int) { signals = signals + 1; };
  action.sa_flags = flags;
  CHECK_THAT(::sigaction(number, &action, nullptr) == 0);
}

void AlarmIn(int ms) {
  itimerval time{{0, 0}, {ms / 1000, (ms % 1000) * 1000}};
  CHECK_THAT(::setitimer(ITIMER_REAL, &time, nullptr) == 0);
}

// Again and again: on a slow machine the first may come before the call.
template <class Call>
void Interrupted(const char* what, int ms, Call&& call) {
  const itimerval often{{ms / 1000, (ms % 1000) * 1000},
                        {ms / 1000, (ms % 1000) * 1000}};
  CHECK_THAT(::setitimer(ITIMER_REAL, &often, nullptr) == 0);
  Result(what, call());
  AlarmIn(0);
}

Case interrupted(
    "eintr",
    [](int fd) {
      Barrier();
      (void)fd;
    },
    [](int fd) {
      Handle(SIGALRM, 0);
      char byte;
      for (const int ms : {2, 5, 20, 50}) {
        Interrupted("recv", ms, [&] { return ::recv(fd, &byte, 1, 0); });
        Interrupted("peek", ms, [&] { return ::recv(fd, &byte, 1, MSG_PEEK); });
        pollfd one{fd, POLLIN, 0};
        Interrupted("poll", ms, [&] { return ::poll(&one, 1, -1); });
        fd_set in;
        FD_ZERO(&in);
        FD_SET(fd, &in);
        Interrupted("select", ms, [&] {
          return ::select(fd + 1, &in, nullptr, nullptr, nullptr);
        });
        const int set = ::epoll_create1(0);
        epoll_event event{};
        event.events = EPOLLIN;
        ::epoll_ctl(set, EPOLL_CTL_ADD, fd, &event);
        Interrupted("epoll_wait", ms,
                    [&] { return ::epoll_wait(set, &event, 1, -1); });
        Interrupted("epoll_wait", ms,
                    [&] { return ::epoll_wait(set, &event, 1, 4000); });
        ::close(set);
      }
      Log("signals %d", signals >= 24);
      Barrier();
    });

// What signal() is in a program that is compiled for POSIX alone.
extern "C" sighandler_t __sysv_signal(int, sighandler_t);

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

void CountAgain(int) {
  signals = signals + 1;
  ::__sysv_signal(SIGALRM, CountAgain);
}

Case old_signals(
    "eintr_of_old_signals",
    [](int fd) {
      Barrier();
      (void)fd;
    },
    [](int fd) {
      char byte;
      pollfd one{fd, POLLIN, 0};
      CHECK_THAT(::__sysv_signal(SIGALRM, CountAgain) == SIG_DFL);
      Interrupted("recv", 20, [&] { return ::recv(fd, &byte, 1, 0); });
      Interrupted("poll", 20, [&] { return ::poll(&one, 1, -1); });
      Log("signals %d", signals >= 2);
      const auto count = [](int) { signals = signals + 1; };
      CHECK_THAT(::__sysv_signal(SIGALRM, count) == CountAgain);
      ::raise(SIGALRM);
      Log("once %d", ::sigset(SIGALRM, count) == SIG_DFL);
      Interrupted("recv", 20, [&] { return ::recv(fd, &byte, 1, 0); });
      Log("stays %d", ::sigset(SIGALRM, SIG_HOLD) == +count);
      Log("held %d", ::sigset(SIGALRM, SIG_DFL) == SIG_HOLD);
      Barrier();
    });

#pragma GCC diagnostic pop

Case restarted(
    "restart",
    [](int fd) {
      Barrier();
      pollfd none{-1, 0, 0};
      ::poll(&none, 1, 150);
      SendAll(fd, "x", 1);
      Barrier();
    },
    [](int fd) {
      Handle(SIGALRM, SA_RESTART);
      itimerval time{{0, 10'000}, {0, 10'000}};
      ::setitimer(ITIMER_REAL, &time, nullptr);
      char byte;
      Barrier();
      Result("recv", ::recv(fd, &byte, 1, 0));
      Log("signals came %d", signals > 0);
      // poll and epoll_wait are never restarted.
      pollfd one{fd, POLLIN, 0};
      Result("poll", ::poll(&one, 1, -1));
      const int set = ::epoll_create1(0);
      epoll_event event{};
      event.events = EPOLLIN;
      ::epoll_ctl(set, EPOLL_CTL_ADD, fd, &event);
      Result("epoll_wait", ::epoll_wait(set, &event, 1, -1));
      time = {};
      ::setitimer(ITIMER_REAL, &time, nullptr);
      Barrier();
    });

// A time-out makes recv() not restartable.
Case restart_timeout(
    "restart_with_timeout",
    [](int fd) {
      Barrier();
      (void)fd;
    },
    [](int fd) {
      Handle(SIGALRM, SA_RESTART);
      timeval time{2, 0};
      ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time);
      AlarmIn(20);
      char byte;
      Result("recv", ::recv(fd, &byte, 1, 0));
      Barrier();
    });

Case interrupted_send(
    "eintr_send",
    [](int fd) {
      Barrier();
      int error;
      Log("rest %d", Drain(fd, &error) > 0);
    },
    [](int fd) {
      Handle(SIGALRM, 0);
      std::vector<char> big(32 << 20);
      AlarmIn(300);
      ssize_t n = ::send(fd, big.data(), big.size(), 0);
      Log("some went %d", n > 0 && n < static_cast<ssize_t>(big.size()));
      AlarmIn(100);
      // The buffers may still drain a little.
      do {
        n = ::send(fd, big.data(), big.size(), 0);
        if (n > 0) AlarmIn(100);
      } while (n > 0);
      Result("send", n);
      Barrier();
    });

// Every signal is handled, however the calls are cut by them.
Case storm(
    "signal_storm",
    [](int fd) {
      char text[16];
      do {
        RecvAll(fd, text, 16);
        SendAll(fd, text, 16);
      } while (text[0] != 'e');
    },
    [](int fd) {
      Handle(SIGUSR1, SA_RESTART);
      std::atomic<bool> stop{false};
      const pthread_t target = ::pthread_self();
      std::thread sender([&] {
        while (!stop) {
          ::pthread_kill(target, SIGUSR1);
          std::this_thread::yield();
        }
      });
      // (All of them may be done before a busy machine lets the sender run.)
      char text[16] = "0123456789abcde";
      for (int i = 0; i < 20'000 || signals <= 10; ++i) {
        SendAll(fd, text, 16);
        RecvAll(fd, text, 16);
      }
      stop = true;
      sender.join();
      text[0] = 'e';
      SendAll(fd, text, 16);
      RecvAll(fd, text, 16);
      Log("signals came %d", signals > 10);
    });

// More at once than can be put off: each runs, and none in the middle of a
// call.
int burst_fd;
std::atomic<int> bursts_handled;
void OnBurst(int, siginfo_t*, void*) {
  const int saved = errno;
  CHECK_THAT(::write(burst_fd, "h", 1) == 1);
  bursts_handled.fetch_add(1);
  errno = saved;
}
// The other end of both: a byte for each signal that was handled, and how many
// there should be.
void CountHandled(int fd) {
  int error;
  const std::size_t n = Drain(fd, &error);
  Log("%s, all are here %d", ErrorName(error),
      n == static_cast<std::size_t>(Hear()));
}
Case bursts("signal_bursts", &CountHandled,
            [](int fd) {
              constexpr int kBursts = 1500;
              constexpr int kBurst = 24;
              burst_fd = fd;
              struct sigaction action {};
              action.sa_sigaction = &OnBurst;
              action.sa_flags = SA_SIGINFO | SA_RESTART;
              CHECK_THAT(::sigaction(SIGRTMIN, &action, nullptr) == 0);
              const pthread_t self = ::pthread_self();
              std::atomic<bool> done{false};
              std::thread sender([&] {
                for (int sent = 0; sent < kBursts * kBurst;) {
                  for (int i = 0; i < kBurst; ++i) {
                    while (::pthread_sigqueue(self, SIGRTMIN, sigval{}) != 0) {
                      ::sched_yield();
                    }
                  }
                  sent += kBurst;
                  while (bursts_handled.load() < sent) ::sched_yield();
                }
                done.store(true);
              });
              std::vector<char> text(1 << 16);
              std::int64_t written = 0;
              while (!done.load()) {
                const ssize_t n = ::write(fd, text.data(), text.size());
                CHECK_THAT(n > 0);
                written += n;
              }
              sender.join();
              Log("%d handlers", bursts_handled.load());
              sigset_t mask;
              ::pthread_sigmask(SIG_SETMASK, nullptr, &mask);
              Log("blocked %d %d", ::sigismember(&mask, SIGRTMIN),
                  ::sigismember(&mask, SIGTERM));
              ::close(fd);
              Tell(written + bursts_handled.load());
            },
            {.seconds = 60});

// The same with as many numbers as a burst has signals: the kernel lays their
// handlers' frames one upon the other before any of them runs.  (On one CPU, so
// that a whole burst comes while the writer is anywhere.)
constexpr int kNumbers = 26;
std::atomic<int> number_handled[kNumbers];
int NumberOf(int i) {
  return i == 0 ? SIGUSR1 : i == 1 ? SIGUSR2 : SIGRTMIN + i - 2;
}
void OnNumber(int number, siginfo_t* info, void* context) {
  OnBurst(number, info, context);
  for (int i = 0; i < kNumbers; ++i) {
    if (NumberOf(i) == number) number_handled[i].fetch_add(1);
  }
}
Case bursts_of_numbers(
    "signal_bursts_of_numbers", &CountHandled,
    [](int fd) {
      constexpr int kBursts = 1500;
      burst_fd = fd;
      cpu_set_t all, one;
      CHECK_THAT(::sched_getaffinity(0, sizeof all, &all) == 0);
      CPU_ZERO(&one);
      int cpu = 0;
      while (!CPU_ISSET(cpu, &all)) ++cpu;
      CPU_SET(cpu, &one);
      CHECK_THAT(::sched_setaffinity(0, sizeof one, &one) == 0);
      struct sigaction action {};
      action.sa_sigaction = &OnNumber;
      action.sa_flags = SA_SIGINFO | SA_RESTART;
      for (int i = 0; i < kNumbers; ++i) {
        CHECK_THAT(::sigaction(NumberOf(i), &action, nullptr) == 0);
      }
      const pthread_t self = ::pthread_self();
      std::atomic<bool> done{false};
      std::thread sender([&] {
        for (int round = 1; round <= kBursts; ++round) {
          for (int i = 0; i < kNumbers; ++i) {
            while (::pthread_sigqueue(self, NumberOf(i), sigval{}) != 0) {
              ::sched_yield();
            }
          }
          while (bursts_handled.load() < round * kNumbers) ::sched_yield();
        }
        done.store(true);
      });
      std::vector<char> text(1 << 16);
      std::int64_t written = 0;
      while (!done.load()) {
        const ssize_t n = ::write(fd, text.data(), text.size());
        CHECK_THAT(n > 0);
        written += n;
      }
      sender.join();
      sigset_t mask, pending;
      ::pthread_sigmask(SIG_SETMASK, nullptr, &mask);
      CHECK_THAT(::sigpending(&pending) == 0);
      for (int i = 0; i < kNumbers; ++i) {
        Log("signal %d: %d handlers, blocked %d, pending %d", NumberOf(i),
            number_handled[i].load(), ::sigismember(&mask, NumberOf(i)),
            ::sigismember(&pending, NumberOf(i)));
      }
      ::close(fd);
      Tell(written + bursts_handled.load());
    },
    {.seconds = 60});

Case once(
    "reset_handler",
    [](int fd) {
      Barrier();
      (void)fd;
    },
    [](int fd) {
      // Handlers that the kernel takes away at delivery.
      for (int i = 0; i < 30; ++i) {
        Handle(SIGALRM, SA_RESETHAND);
        AlarmIn(20 + i % 3);
        char byte;
        const ssize_t n = ::recv(fd, &byte, 1, 0);
        CHECK_THAT(n < 0 && errno == EINTR);
        struct sigaction now {};
        ::sigaction(SIGALRM, nullptr, &now);
        CHECK_THAT(now.sa_handler == SIG_DFL);
      }
      Log("%d signals", static_cast<int>(signals));
      Barrier();
    });

Case old_action(
    "sigaction_old",
    [](int fd) {
      Barrier();
      (void)fd;
    },
    [](int fd) {
      void (*handler)(int) = [](int) {};
      struct sigaction action {};
      struct sigaction old {};
      action.sa_handler = handler;
      action.sa_flags = SA_RESTART | SA_NODEFER;
      ::sigaddset(&action.sa_mask, SIGUSR2);
      Result("sigaction", ::sigaction(SIGUSR1, &action, nullptr));
      Result("sigaction", ::sigaction(SIGUSR1, nullptr, &old));
      Log("same handler %d, flags %x, mask %d", old.sa_handler == handler,
          static_cast<unsigned>(old.sa_flags & (SA_RESTART | SA_NODEFER |
                                                SA_SIGINFO | SA_RESETHAND)),
          ::sigismember(&old.sa_mask, SIGUSR2));
      Log("signal says %d", ::signal(SIGUSR1, SIG_IGN) == handler);
      Log("signal says %d", ::signal(SIGUSR1, SIG_DFL) == SIG_IGN);
      Log("signal says %d", ::signal(SIGUSR1, handler) == SIG_DFL);
      ::signal(SIGUSR1, SIG_IGN);
      ::raise(SIGUSR1);
      Result("sigaction KILL", ::sigaction(SIGKILL, &action, nullptr));
      Result("sigaction 99", ::sigaction(99, &action, nullptr));
      Barrier();
      (void)fd;
    });

Case interrupt_off(
    "siginterrupt",
    [](int fd) {
      Barrier();
      (void)fd;
    },
    [](int fd) {
      ::signal(SIGALRM, [](int) { signals = signals + 1; });
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
      ::siginterrupt(SIGALRM, 1);
#pragma GCC diagnostic pop
      AlarmIn(20);
      char byte;
      Result("recv", ::recv(fd, &byte, 1, 0));
      Barrier();
    });

// Before there is a handler, it is for those that signal() installs later.
Case interrupt_first(
    "siginterrupt_first",
    [](int fd) {
      Barrier();
      (void)fd;
    },
    [](int fd) {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
      const auto ask = [](bool interrupt) {
        Result("siginterrupt", ::siginterrupt(SIGALRM, interrupt ? 1 : 0));
        ::signal(SIGALRM, [](int) { signals = signals + 1; });
        struct sigaction now {};
        ::sigaction(SIGALRM, nullptr, &now);
        Log("restarts %d, mask %d", (now.sa_flags & SA_RESTART) != 0,
            ::sigismember(&now.sa_mask, SIGALRM));
      };
#pragma GCC diagnostic pop
      ask(true);
      char byte;
      Interrupted("recv", 20, [&] { return ::recv(fd, &byte, 1, 0); });
      ask(false);
      Barrier();
    });

// The kernel passes all three, whatever SA_SIGINFO says.
Case arguments(
    "handler_arguments",
    [](int fd) {
      Barrier();
      (void)fd;
    },
    [](int fd) {
      static void* volatile told;
      static void* volatile context;
      struct sigaction action {};
      action.sa_handler = reinterpret_cast<void (*)(int)>(
          reinterpret_cast<void*>(+[](int, siginfo_t* info, void* at) {
            told = info;
            context = at;
          }));
      CHECK_THAT(::sigaction(SIGUSR1, &action, nullptr) == 0);
      ::raise(SIGUSR1);
      char here;
      const auto below = [&](void* at) {
        return reinterpret_cast<std::uintptr_t>(&here) -
                   reinterpret_cast<std::uintptr_t>(at) <
               65536;
      };
      Log("both on the stack: %d", below(told) && below(context));
      Barrier();
      (void)fd;
    });

sigjmp_buf jump;

// Out of the handler, past the call that was interrupted; then all goes on.
Case jumps(
    "siglongjmp",
    [](int fd) {
      char text[8];
      for (int i = 0; i < 40; ++i) {
        RecvAll(fd, text, 8);
        SendAll(fd, text, 8);
      }
      int error;
      const auto drained = Drain(fd, &error);
      Log("%zu, %d", drained, error);
    },
    [](int fd) {
      struct sigaction action {};
      action.sa_handler = [](int) { ::siglongjmp(jump, 1); };
      ::sigaction(SIGALRM, &action, nullptr);
      const int set = ::epoll_create1(0);
      epoll_event event{};
      event.events = EPOLLIN;
      ::epoll_ctl(set, EPOLL_CTL_ADD, fd, &event);
      volatile int jumped = 0;
      for (int turn = 0; turn < 40; ++turn) {
        volatile int i = turn;
        char text[8] = "1234567";
        SendAll(fd, text, 8);
        RecvAll(fd, text, 8);
        if (::sigsetjmp(jump, 1) == 0) {
          AlarmIn(1 + i % 5);
          switch (i % 4) {
            case 0:
              ::recv(fd, text, 1, 0);
              break;
            case 1:
              ::epoll_wait(set, &event, 1, -1);
              break;
            case 2: {
              pollfd one{fd, POLLIN, 0};
              ::poll(&one, 1, -1);
              break;
            }
            default: {
              fd_set in;
              FD_ZERO(&in);
              FD_SET(fd, &in);
              ::select(fd + 1, &in, nullptr, nullptr, nullptr);
            }
          }
        } else {
          jumped = jumped + 1;
        }
      }
      Log("%d jumps", static_cast<int>(jumped));
      Result("close", ::close(fd));
      ::close(set);
    });

// The same out of the kernel, before there is a lane; the connection that comes
// after it is as any other.
Case jumps_early(
    "siglongjmp_before_lane",
    [](int) {
      const int listener = ListenAndTell();
      for (int i = 0; i < 3; ++i) {
        const int fd = Accept(listener);
        if (i == 2) Warm(fd);
        int error;
        const auto drained = Drain(fd, &error);
        Log("%zu, %d", drained, error);
        ::close(fd);
      }
    },
    [](int) {
      const int port = HearPort();
      struct sigaction action {};
      action.sa_handler = [](int) { ::siglongjmp(jump, 1); };
      ::sigaction(SIGALRM, &action, nullptr);
      for (int turn = 0; turn < 3; ++turn) {
        volatile int i = turn;
        volatile int fd = Connect(port);
        if (i == 2) {
          Warm(fd);
        } else if (::sigsetjmp(jump, 1) == 0) {
          AlarmIn(5);
          char byte;
          pollfd one{fd, POLLIN, 0};
          i == 0 ? ::recv(fd, &byte, 1, 0) : ::poll(&one, 1, -1);
        }
        ::close(fd);
      }
      Log("done");
    },
    {.warm = false, .connect = false});

// epoll_wait with a mask that lets a blocked signal in.
Case masks(
    "pwait_masks",
    [](int fd) {
      Barrier();
      (void)fd;
    },
    [](int fd) {
      Handle(SIGALRM, 0);
      sigset_t blocked, open;
      ::sigemptyset(&open);
      ::sigemptyset(&blocked);
      ::sigaddset(&blocked, SIGALRM);
      ::pthread_sigmask(SIG_BLOCK, &blocked, nullptr);
      const int set = ::epoll_create1(0);
      epoll_event event{};
      event.events = EPOLLIN;
      ::epoll_ctl(set, EPOLL_CTL_ADD, fd, &event);
      ::raise(SIGALRM);
      Result("epoll_pwait", ::epoll_pwait(set, &event, 1, 2000, &open));
      Log("%d", static_cast<int>(signals));
      ::raise(SIGALRM);
      Result("epoll_wait", ::epoll_wait(set, &event, 1, 20));
      Log("%d", static_cast<int>(signals));
      pollfd one{fd, POLLIN, 0};
      timespec time{2, 0};
      Result("ppoll", ::ppoll(&one, 1, &time, &open));
      Log("%d", static_cast<int>(signals));
      AlarmIn(20);
      fd_set in;
      FD_ZERO(&in);
      FD_SET(fd, &in);
      Result("pselect",
             ::pselect(fd + 1, &in, nullptr, nullptr, nullptr, &open));
      Log("%d", static_cast<int>(signals));
      sigset_t now;
      ::pthread_sigmask(SIG_SETMASK, nullptr, &now);
      Log("blocked again %d", ::sigismember(&now, SIGALRM));
      Barrier();
    });

// Many threads in one set: each message is taken once.
void ManyWaiters(int fd, std::uint32_t flags) {
  SetNonblock(fd, true);
  const int set = ::epoll_create1(0);
  epoll_event event{};
  event.events = EPOLLIN | flags;
  event.data.fd = fd;
  CHECK_THAT(::epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
  std::atomic<int> got{0};
  std::atomic<bool> stop{false};
  std::atomic<int> inside{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      while (!stop) {
        epoll_event one{};
        const int n = ::epoll_wait(set, &one, 1, 100);
        if (n != 1) continue;
        // One report, one thread, until it is armed again.
        const bool alone = inside++ == 0;
        CHECK_THAT(alone || (flags & EPOLLONESHOT) == 0);
        char byte;
        while (::recv(fd, &byte, 1, 0) == 1) {
          ++got;
          SendAll(fd, &byte, 1);
        }
        --inside;
        if (flags & EPOLLONESHOT) {
          epoll_event again{};
          again.events = EPOLLIN | flags;
          ::epoll_ctl(set, EPOLL_CTL_MOD, fd, &again);
        }
      }
    });
  }
  Barrier();
  stop = true;
  for (auto& one : threads) one.join();
  Log("%d messages", got.load());
}

void FeedWaiters(int fd) {
  for (int i = 0; i < 2000; ++i) {
    char byte = 'x';
    SendAll(fd, &byte, 1);
    RecvAll(fd, &byte, 1);
  }
  Barrier();
}

Case waiters_edge(
    "waiters_edge", [](int fd) { ManyWaiters(fd, EPOLLET); }, FeedWaiters);
Case waiters_once(
    "waiters_oneshot", [](int fd) { ManyWaiters(fd, EPOLLONESHOT); },
    FeedWaiters);
// So many that the kernel is asked about several of them together when they
// leave it for a lane.
constexpr int kOnceMany = 600;
Case waiters_once_many(
    "waiters_oneshot_many",
    [](int) {
      const int listener = ListenAndTell();
      const int set = ::epoll_create1(0);
      struct Flow {
        int fd;
        std::atomic<bool> told{false};
      };
      std::vector<Flow> flows(kOnceMany);
      for (Flow& flow : flows) {
        flow.fd = Accept(listener);
        epoll_event event{};
        event.events = EPOLLIN | EPOLLONESHOT;
        event.data.ptr = &flow;
        CHECK_THAT(::epoll_ctl(set, EPOLL_CTL_ADD, flow.fd, &event) == 0);
      }
      std::atomic<int> open{kOnceMany};
      std::atomic<int> twice{0};
      std::atomic<int> vain{0};
      std::vector<std::thread> threads;
      for (int i = 0; i < 3; ++i) {
        threads.emplace_back([&] {
          while (open > 0) {
            epoll_event events[16];
            const int n = ::epoll_wait(set, events, 16, 100);
            for (int k = 0; k < n; ++k) {
              Flow& flow = *static_cast<Flow*>(events[k].data.ptr);
              if (flow.told.exchange(true)) ++twice;
              char text[16];
              const ssize_t got =
                  ::recv(flow.fd, text, sizeof text, MSG_DONTWAIT);
              if (got == 0) {
                --open;
                continue;  // and stays told
              }
              if (got < 0) ++vain;
              if (got > 0) SendAll(flow.fd, text, sizeof text);
              flow.told = false;
              epoll_event again{};
              again.events = EPOLLIN | EPOLLONESHOT;
              again.data.ptr = &flow;
              ::epoll_ctl(set, EPOLL_CTL_MOD, flow.fd, &again);
            }
          }
        });
      }
      for (auto& one : threads) one.join();
      Log("%d told twice, %d in vain", twice.load(), vain.load());
    },
    [](int) {
      const int port = HearPort();
      std::vector<int> fds;
      for (int i = 0; i < kOnceMany; ++i) fds.push_back(Connect(port));
      for (int round = 0; round < 40; ++round) {
        char text[16] = "abcdefghijklmno";
        for (const int fd : fds) SendAll(fd, text, sizeof text);
        for (const int fd : fds) RecvAll(fd, text, sizeof text);
      }
      for (const int fd : fds) ::close(fd);
      Log("done");
    },
    {.warm = false, .connect = false, .seconds = 120});

Case waiters_level(
    "waiters_level", [](int fd) { ManyWaiters(fd, 0); }, FeedWaiters);

// Two threads wait for one connection, level-triggered.  Who is told of it does
// not read (in the other rounds: reads only a part): then the other one is told
// as well, at once.
constexpr int kLeftRounds = 24;
Case left_behind(
    "epoll_level_left_behind",
    [](int fd) {
      const int set = ::epoll_create1(0);
      epoll_event event{};
      event.events = EPOLLIN;
      CHECK_THAT(::epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
      pthread_barrier_t turn;
      CHECK_THAT(::pthread_barrier_init(&turn, nullptr, 3) == 0);
      std::atomic<int> told{0};
      std::atomic<int> missed{0};
      std::vector<std::thread> threads;
      for (int t = 0; t < 2; ++t) {
        threads.emplace_back([&] {
          for (int round = 0; round < kLeftRounds; ++round) {
            ::pthread_barrier_wait(&turn);
            epoll_event one{};
            if (::epoll_wait(set, &one, 1, missed == 0 ? 5000 : 10) != 1) {
              ++missed;
            } else {
              ++told;
              char byte;
              if (round % 2 == 1) RecvAll(fd, &byte, 1);
            }
            ::pthread_barrier_wait(&turn);
          }
        });
      }
      for (int round = 0; round < kLeftRounds; ++round) {
        ::pthread_barrier_wait(&turn);
        Barrier();
        ::pthread_barrier_wait(&turn);
        char rest[2];
        while (::recv(fd, rest, sizeof rest, MSG_DONTWAIT) > 0) {
        }
        SendAll(fd, rest, 1);
      }
      for (auto& one : threads) one.join();
      Log("%s", missed == 0 ? "both were told" : "one slept on");
      ::close(set);
    },
    [](int fd) {
      for (int round = 0; round < kLeftRounds; ++round) {
        Barrier();
        // (Longer than anybody spins.)
        ::poll(nullptr, 0, 5);
        SendAll(fd, "xy", 2);
        char done;
        RecvAll(fd, &done, 1);
      }
    },
    {.seconds = 60});

// Several threads wait in one set; handlers return into their waits and jump
// out of them.  No message is left lying when that is over.
thread_local sigjmp_buf out_of_wait;
thread_local volatile bool waits = false;

Case jumping_waiters(
    "siglongjmp_of_waiters",
    [](int fd) {
      struct sigaction action {};
      action.sa_handler = [](int) {
        if (!waits) return;
        waits = false;
        ::siglongjmp(out_of_wait, 1);
      };
      ::sigaction(SIGUSR1, &action, nullptr);
      action.sa_handler = [](int) {};
      ::sigaction(SIGUSR2, &action, nullptr);
      const int set = ::epoll_create1(0);
      const int end = ::eventfd(0, EFD_CLOEXEC);
      for (const int one : {fd, end}) {
        epoll_event event{};
        event.events = EPOLLIN;
        event.data.fd = one;
        CHECK_THAT(::epoll_ctl(set, EPOLL_CTL_ADD, one, &event) == 0);
      }
      std::atomic<int> got{0};
      std::vector<std::thread> threads;
      for (int t = 0; t < 3; ++t) {
        threads.emplace_back([&] {
          for (;;) {
            volatile int n = 0;
            epoll_event one{};
            if (::sigsetjmp(out_of_wait, 1) == 0) {
              waits = true;
              n = ::epoll_wait(set, &one, 1, -1);
            }
            waits = false;
            if (n != 1) continue;
            if (one.data.fd == end) return;
            char byte;
            if (::recv(fd, &byte, 1, MSG_DONTWAIT) != 1) continue;
            ++got;
            SendAll(fd, &byte, 1);
          }
        });
      }
      for (int i = 0; i < 300; ++i) {
        ::pthread_kill(threads[static_cast<std::size_t>(i % 3)].native_handle(),
                       i % 5 < 3 ? SIGUSR1 : SIGUSR2);
        ::poll(nullptr, 0, 1);
      }
      Barrier();
      Barrier();
      const std::uint64_t one = 1;
      CHECK_THAT(::write(end, &one, sizeof one) == sizeof one);
      for (auto& thread : threads) thread.join();
      Log("%s", got > 1000 ? "all were taken" : "too few");
      ::close(set);
      ::close(end);
    },
    [](int fd) {
      int count = 0;
      std::atomic<bool> over{false};
      const auto ask = [&] {
        char byte = 'x';
        SendAll(fd, &byte, 1);
        RecvAll(fd, &byte, 1);
        ++count;
      };
      std::thread quiet([&] {
        Barrier();
        over = true;
      });
      while (!over) ask();
      quiet.join();
      while (count % 1000 != 0) ask();
      for (int i = 0; i < 1000; ++i) ask();
      Barrier();
      Log("done");
    },
    {.seconds = 60});

// Both ends write more than a ring holds before they read the most of it: TCP
// has room for that.  Each writer has waited for room before, and got some.
void BothWrite(int fd) {
  constexpr std::size_t kAll = 1'200'000;
  constexpr std::size_t kSome = 100'000;
  for (int i = 0; i < 4; ++i) {
    Barrier();
    std::vector<char> bytes(kAll);
    std::thread writer([&] { SendAll(fd, bytes.data(), kAll); });
    ::poll(nullptr, 0, 20 + 20 * i);
    std::vector<char> got(kAll);
    RecvAll(fd, got.data(), kSome);
    writer.join();
    RecvAll(fd, got.data(), kAll - kSome);
  }
  Log("done");
}

Case both_write("both_write", BothWrite, BothWrite);

// The reader takes a little of a full ring, too little to wake the writer for,
// and then no more before all is written: TCP has room for that.
Case reader_pauses(
    "reader_pauses",
    [](int fd) {
      std::vector<char> bytes(1'200'000);
      Barrier();
      SendAll(fd, bytes.data(), bytes.size());
      Barrier();
    },
    [](int fd) {
      std::vector<char> got(1'200'000);
      Barrier();
      // (What has come before counts towards the first wake-up.)
      for (int i = 0; i < 2; ++i) {
        ::poll(nullptr, 0, 20);
        RecvAll(fd, got.data(), 40'000);
      }
      Barrier();
      RecvAll(fd, got.data(), got.size() - 80'000);
      Log("done");
    });

// Who is slow, as a program is that writes to a disk what it reads, is no
// faster over TCP: the stream is soon back on its lane, and its peer learns to
// wait.
Case slow_reader(
    "slow_reader",
    [](int fd) {
      Barrier();
      SendBulk(fd, 21, 96 << 20);
      Barrier();
    },
    [](int fd) {
      const std::uint64_t before = TcpBytes(fd);
      Barrier();
      std::uint64_t at = 0;
      std::vector<char> got(1 << 20);
      for (int i = 0; i < 96; ++i) {
        if (i % 8 == 0) ::poll(nullptr, 0, 400);
        RecvAll(fd, got.data(), got.size());
        CHECK_THAT(IsPattern(21, at, got.data(), got.size()));
        at += got.size();
      }
      const char* warm = ::getenv("PAIR_WARM");
      Log("on the lane %d", warm == nullptr || TcpBytes(fd) - before < at / 2);
      Barrier();
    },
    {.seconds = 60});

constexpr std::size_t kSlowBytes = 16 << 20;

// Many connections of one service, whose reader stops for all of them: TCP
// would take megabytes of each, so one of them tries whether that is of use.
Case slow_reader_of_many(
    "slow_reader_of_many",
    [](int) {
      const int listener = ListenAndTell();
      std::vector<std::thread> senders;
      // (In one call, and clearly more than TCP's buffers take: who is slow to
      // fill them is not in vain there.)
      std::vector<char> all(kSlowBytes);
      Pattern(22, 0, all.data(), all.size());
      for (int i = 0; i < 10; ++i) {
        const int fd = Accept(listener);
        WarmAs(fd, false);
        senders.emplace_back([fd, &all] {
          char go;
          RecvAll(fd, &go, 1);
          SendAll(fd, all.data(), all.size());
          ::close(fd);
        });
      }
      for (std::thread& sender : senders) sender.join();
    },
    [](int) {
      const int port = HearPort();
      std::vector<int> fds;
      std::vector<std::uint64_t> before;
      for (int i = 0; i < 10; ++i) {
        fds.push_back(Connect(port));
        WarmAs(fds.back(), true);
      }
      for (const int fd : fds) {
        before.push_back(TcpBytes(fd));
        SendAll(fd, "g", 1);
      }
      ::poll(nullptr, 0, 450);
      // (What has come, read or not.)
      int left = 0;
      for (std::size_t i = 0; i < fds.size(); ++i) {
        if (TcpBytes(fds[i]) - before[i] > 16 << 10) ++left;
      }
      const char* warm = ::getenv("PAIR_WARM");
      Log("most stay %d", warm == nullptr || left <= 5);
      std::vector<char> got(64 << 10);
      for (std::uint64_t at = 0; at < kSlowBytes; at += got.size()) {
        for (const int fd : fds) {
          RecvAll(fd, got.data(), got.size());
          CHECK_THAT(IsPattern(22, at, got.data(), got.size()));
        }
      }
      for (const int fd : fds) {
        Result("end", ::recv(fd, got.data(), 1, 0));
        ::close(fd);
      }
    },
    {.warm = false, .connect = false, .seconds = 60});

// A program that talks to itself: more than a ring before it reads.
Case self_talk(
    "self_talk",
    [](int) {
      int port;
      const int listener = Listen(&port);
      const int out = Connect(port);
      const int in = Accept(listener);
      char text[64] = {};
      for (int i = 0; i < 500; ++i) {
        SendAll(out, text, 64);
        RecvAll(in, text, 64);
        SendAll(in, text, 64);
        RecvAll(out, text, 64);
      }
      // TCP over loopback takes this much without a reader.
      std::vector<char> big(1 << 20);
      Pattern(12, 0, big.data(), big.size());
      SendAll(out, big.data(), big.size());
      std::vector<char> got(1 << 20);
      RecvAll(in, got.data(), got.size());
      CHECK_THAT(IsPattern(12, 0, got.data(), got.size()));
      std::thread reader([&] { RecvBulk(in, 13, 20 << 20); });
      SendBulk(out, 13, 20 << 20);
      reader.join();
      Result("close", ::close(out));
      int error;
      Log("rest %zu", Drain(in, &error));
    },
    [](int) {}, {.warm = false, .connect = false, .seconds = 30});

// Many connections, nonblocking, one thread each side; sizes and moments vary.
struct Flow {
  int fd;
  std::uint64_t sent = 0;
  std::uint64_t got = 0;
  std::uint64_t total;
  bool shut = false;
  bool ended = false;
};

void Pump(std::vector<Flow>& flows, bool client, std::uint32_t flags) {
  const int set = ::epoll_create1(0);
  for (std::size_t i = 0; i < flows.size(); ++i) {
    SetNonblock(flows[i].fd, true);
    epoll_event event{};
    event.events = EPOLLIN | EPOLLOUT | flags;
    event.data.u64 = i;
    CHECK_THAT(::epoll_ctl(set, EPOLL_CTL_ADD, flows[i].fd, &event) == 0);
  }
  std::size_t left = flows.size();
  Random random{Seed() + client};
  std::vector<char> buffer(70'000);
  while (left > 0) {
    epoll_event events[32];
    const int n = ::epoll_wait(set, events, 32, 10'000);
    if (n <= 0) Fail("%zu connections are stuck", left);
    for (int e = 0; e < n; ++e) {
      const std::uint64_t i = events[e].data.u64;
      Flow& flow = flows[i];
      const std::uint64_t out = 2 * i + client;
      const std::uint64_t in = 2 * i + !client;
      bool more_out = true;
      bool more_in = true;
      for (int turn = 0; (flags & EPOLLET) || turn < 2; ++turn) {
        if (flow.sent < flow.total) {
          const std::size_t want = std::min<std::uint64_t>(
              1 + random.Below(buffer.size()), flow.total - flow.sent);
          Pattern(out, flow.sent, buffer.data(), want);
          const ssize_t k = ::send(flow.fd, buffer.data(), want, MSG_NOSIGNAL);
          if (k < 0 && errno != EAGAIN)
            Fail("send on %d of %llu: %s", flow.fd,
                 static_cast<unsigned long long>(i), ErrorName(errno));
          more_out = k > 0;
          if (k > 0) flow.sent += static_cast<std::uint64_t>(k);
        } else if (!flow.shut) {
          flow.shut = true;
          more_out = false;
          ::shutdown(flow.fd, SHUT_WR);
          epoll_event event{};
          event.events = EPOLLIN | flags;
          event.data.u64 = i;
          ::epoll_ctl(set, EPOLL_CTL_MOD, flow.fd, &event);
        } else {
          more_out = false;
        }
        if (!flow.ended) {
          const ssize_t k = ::recv(flow.fd, buffer.data(),
                                   1 + random.Below(buffer.size() - 1), 0);
          if (k < 0 && errno != EAGAIN)
            Fail("recv on %d of %llu: %s", flow.fd,
                 static_cast<unsigned long long>(i), ErrorName(errno));
          more_in = k > 0;
          if (k > 0) {
            if (!IsPattern(in, flow.got, buffer.data(),
                           static_cast<std::size_t>(k))) {
              Fail("wrong bytes in %llu", static_cast<unsigned long long>(i));
            }
            flow.got += static_cast<std::uint64_t>(k);
          }
          if (k == 0) flow.ended = true;
        } else {
          more_in = false;
        }
        if (!more_in && !more_out) break;
      }
      if (flow.ended && flow.shut && flow.fd >= 0) {
        CHECK_THAT(flow.got == flow.total);
        ::epoll_ctl(set, EPOLL_CTL_DEL, flow.fd, nullptr);
        ::close(flow.fd);
        flow.fd = -1;
        --left;
      }
    }
  }
  ::close(set);
  Log("done");
}

void ManyServer(int count, std::uint32_t flags, std::uint64_t most) {
  const int listener = ListenAndTell();
  std::vector<Flow> flows;
  Random sizes{Seed() * 31};
  for (int i = 0; i < count; ++i) {
    // In the order of connect(): one at a time.
    const int fd = Accept(listener);
    Tell(0);
    flows.push_back({.fd = fd, .total = 1 + sizes.Below(most)});
  }
  ::close(listener);
  Pump(flows, false, flags);
}

void ManyClient(int count, std::uint32_t flags, std::uint64_t most) {
  const int port = HearPort();
  std::vector<Flow> flows;
  Random sizes{Seed() * 31};
  for (int i = 0; i < count; ++i) {
    const int fd = Connect(port);
    Hear();
    flows.push_back({.fd = fd, .total = 1 + sizes.Below(most)});
  }
  Pump(flows, true, flags);
}

constexpr Options kAlone{.warm = false, .connect = false, .seconds = 60};
Case many_level(
    "many_level", [](int) { ManyServer(50, 0, 1'500'000); },
    [](int) { ManyClient(50, 0, 1'500'000); }, kAlone);
Case many_edge(
    "many_edge", [](int) { ManyServer(200, EPOLLET, 300'000); },
    [](int) { ManyClient(200, EPOLLET, 300'000); }, kAlone);
Case one_edge(
    "one_edge", [](int) { ManyServer(1, EPOLLET, 60'000'000); },
    [](int) { ManyClient(1, EPOLLET, 60'000'000); }, kAlone);

// --- Several threads sleep in one set, since before its first connection has
// left the kernel.  Each must be there for the next message, however few of
// them were told of that.

constexpr int kHands = 4;

void HandAnswer(int fd, std::atomic<int>* held) {
  char what = 0;
  // (Two may be told of one byte.)
  if (::recv(fd, &what, 1, MSG_DONTWAIT) != 1) return;
  if (what == 'h') held->fetch_add(1);
  SendAll(fd, &what, 1);
  // Until all the others have something to do, too.
  while (what == 'h' && held->load() < kHands) ::poll(nullptr, 0, 1);
  if (what == 'g') held->store(kHands);
}

// A byte there and back.
void AskHand(int fd, char what) {
  SendAll(fd, &what, 1);
  char got = 0;
  RecvAll(fd, &got, 1);
  CHECK_THAT(got == what);
}

// As Warm does, whose other end is no event loop.
void WarmHands(int fd, int other) {
  const char* warm = std::getenv("PAIR_WARM");
  const bool lane = warm != nullptr && std::strcmp(warm, "lane") == 0;
  const std::uint64_t start = NowMs();
  std::uint64_t before = 0;
  for (int still = 0, round = 0; lane ? still < 3 : round < 10; ++round) {
    for (int i = 0; i < 10; ++i) {
      AskHand(fd, '.');
      AskHand(other, '.');
    }
    const std::uint64_t now = TcpBytes(fd) + TcpBytes(other);
    still = now == before ? still + 1 : 0;
    before = now;
    if (lane && NowMs() - start > 10'000) Fail("still on TCP");
  }
}

void ServeHands(int listener) {
  int fds[2];
  for (int& fd : fds) {
    fd = Accept(listener);
  }
  const int set = ::epoll_create1(EPOLL_CLOEXEC);
  const int end = ::eventfd(0, EFD_CLOEXEC);
  for (const int one : {fds[0], fds[1], end}) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = one;
    CHECK_THAT(::epoll_ctl(set, EPOLL_CTL_ADD, one, &event) == 0);
  }
  std::atomic<int> held{0};
  std::vector<std::thread> hands;
  for (int i = 0; i < kHands; ++i) {
    hands.emplace_back([&held, end, set] {
      for (;;) {
        epoll_event event{};
        CHECK_THAT(::epoll_wait(set, &event, 1, -1) == 1);
        if (event.data.fd == end) return;
        HandAnswer(event.data.fd, &held);
      }
    });
  }
  Barrier();
  Barrier();
  const std::uint64_t one = 1;
  CHECK_THAT(::write(end, &one, sizeof one) == sizeof one);
  for (std::thread& hand : hands) hand.join();
  for (const int fd : {fds[0], fds[1], end, set}) ::close(fd);
}

void AskHands(int port) {
  const int fd = Connect(port);
  const int other = Connect(port);
  Barrier();
  // One thread serves all this, mostly, and both connections leave TCP.
  WarmHands(fd, other);
  for (int i = 1; i < kHands; ++i) AskHand(fd, 'h');
  AskHand(other, 'g');
  Log("all were there");
  ::close(fd);
  ::close(other);
  Barrier();
}

int HandRounds() { return Scale(12); }

Case many_hands(
    "epoll_threads_of_one_set",
    [](int) {
      const int listener = ListenAndTell();
      for (int i = 0; i < HandRounds(); ++i) ServeHands(listener);
      ::close(listener);
    },
    [](int) {
      const int port = HearPort();
      for (int i = 0; i < HandRounds(); ++i) AskHands(port);
    },
    {.warm = false, .connect = false, .seconds = 60});

// --- Several threads in poll(), each for a connection of its own

constexpr int kPolls = 5;

// Accepts so many, and warms them.
std::vector<int> AcceptPolls() {
  const int listener = ListenAndTell();
  std::vector<int> fds;
  for (int i = 0; i < kPolls; ++i) {
    fds.push_back(Accept(listener));
    Warm(fds.back());
  }
  ::close(listener);
  return fds;
}

std::vector<int> ConnectPolls() {
  const int port = HearPort();
  std::vector<int> fds;
  for (int i = 0; i < kPolls; ++i) {
    fds.push_back(Connect(port));
    Warm(fds.back());
  }
  return fds;
}

// poll() for a stream, and for a descriptor of the kernel's that stays silent;
// then a byte of it comes and goes back.
void PollAndAnswer(int fd, int silent) {
  pollfd both[2] = {{fd, POLLIN, 0}, {silent, POLLIN, 0}};
  CHECK_THAT(::poll(both, 2, -1) == 1 && both[0].revents == POLLIN);
  char byte;
  RecvAll(fd, &byte, 1);
  SendAll(fd, &byte, 1);
}

// A message wakes who waits for it, and none of the others.  (Over RDMA they
// have one completion channel between them.)
Case poll_wakes_one(
    "poll_wakes_one",
    [](int) {
      const std::vector<int> fds = AcceptPolls();
      const int silent = ::eventfd(0, EFD_CLOEXEC);
      std::atomic<long> most{0};
      std::vector<std::thread> threads;
      for (int t = 1; t < kPolls; ++t) {
        threads.emplace_back([&, t] {
          rusage before{};
          rusage after{};
          ::getrusage(RUSAGE_THREAD, &before);
          PollAndAnswer(fds[static_cast<std::size_t>(t)], silent);
          ::getrusage(RUSAGE_THREAD, &after);
          const long sleeps = after.ru_nvcsw - before.ru_nvcsw;
          for (long known = most; known < sleeps;) {
            if (most.compare_exchange_weak(known, sleeps)) break;
          }
        });
      }
      for (int i = 0; i < 200; ++i) PollAndAnswer(fds[0], silent);
      for (auto& one : threads) one.join();
      const bool one_source = std::getenv("PAIR_ADDRESS") != nullptr;
      Log("%s",
          one_source || most < 100 ? "the others slept on" : "all were woken");
      for (const int fd : fds) ::close(fd);
      ::close(silent);
    },
    [](int) {
      const std::vector<int> fds = ConnectPolls();
      char byte = 'x';
      for (int i = 0; i < 200; ++i) {
        // (Longer than anybody spins.)
        ::poll(nullptr, 0, 2);
        SendAll(fds[0], &byte, 1);
        RecvAll(fds[0], &byte, 1);
      }
      for (const int fd : fds) {
        if (fd == fds[0]) continue;
        SendAll(fd, &byte, 1);
        RecvAll(fd, &byte, 1);
      }
      for (const int fd : fds) ::close(fd);
    },
    {.warm = false, .connect = false, .seconds = 60});

// The connections go round among the threads, and meanwhile in and out of an
// epoll set: each rings a bell that another thread has given it, or the set's.
int PollTurns() { return Scale(40); }
constexpr int kPollsEach = 30;

Case polls_pass_on(
    "polls_pass_on",
    [](int) {
      const std::vector<int> fds = AcceptPolls();
      const int silent = ::eventfd(0, EFD_CLOEXEC);
      const int set = ::epoll_create1(EPOLL_CLOEXEC);
      pthread_barrier_t turn;
      ::pthread_barrier_init(&turn, nullptr, kPolls);
      std::atomic<bool> over{false};
      std::vector<std::thread> threads;
      for (int t = 0; t < kPolls; ++t) {
        threads.emplace_back([&, t] {
          for (int i = 0; i < PollTurns(); ++i) {
            ::pthread_barrier_wait(&turn);
            const auto which = static_cast<std::size_t>((t + i) % kPolls);
            for (int n = 0; n < kPollsEach; ++n) {
              PollAndAnswer(fds[which], silent);
            }
          }
        });
      }
      std::thread registrar([&] {
        for (unsigned i = 0; !over; ++i) {
          epoll_event event{};
          event.events = EPOLLIN | EPOLLET;
          const int fd = fds[i % kPolls];
          CHECK_THAT(::epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
          ::epoll_wait(set, &event, 1, 1);
          CHECK_THAT(::epoll_ctl(set, EPOLL_CTL_DEL, fd, &event) == 0);
        }
      });
      for (auto& one : threads) one.join();
      over = true;
      registrar.join();
      Log("done");
      for (const int fd : fds) ::close(fd);
      ::close(silent);
      ::close(set);
    },
    [](int) {
      const std::vector<int> fds = ConnectPolls();
      std::vector<std::thread> threads;
      for (const int fd : fds) {
        threads.emplace_back([fd] {
          char byte = 'x';
          for (int i = 0; i < PollTurns() * kPollsEach; ++i) {
            SendAll(fd, &byte, 1);
            RecvAll(fd, &byte, 1);
          }
        });
      }
      for (auto& one : threads) one.join();
      Log("done");
      for (const int fd : fds) ::close(fd);
    },
    {.warm = false, .connect = false, .seconds = 60});

// --- Who is inside the kernel when a stream is to leave TCP

// A handler that interrupts a blocking call uses the same connection: its calls
// end, and the one that it has interrupted goes on.
int nested_fd;
volatile sig_atomic_t nested_done;

void OnNested(int) {
  for (int i = 0; i < 40; ++i) {
    char byte = 'q';
    if (::send(nested_fd, &byte, 1, 0) != 1) ::_exit(71);
    if (::recv(nested_fd, &byte, 1, 0) != 1 || byte != 'a') ::_exit(72);
  }
  nested_done = 1;
}

Case nested(
    "handler_within_call",
    [](int fd) {
      for (int i = 0; i < 40; ++i) {
        char byte = 0;
        RecvAll(fd, &byte, 1);
        CHECK_THAT(byte == 'q');
        byte = 'a';
        SendAll(fd, &byte, 1);
      }
      // What the handler has made due has had its time.
      for (int i = 0; i < 20; ++i) ::poll(nullptr, 0, 10);
      const char last[] = "last";
      SendAll(fd, last, 4);
      char back[4];
      RecvAll(fd, back, 4);
      CHECK_THAT(std::memcmp(back, "back", 4) == 0);
    },
    [](int fd) {
      nested_fd = fd;
      struct sigaction action {};
      action.sa_handler = OnNested;
      action.sa_flags = SA_RESTART;
      CHECK_THAT(::sigaction(SIGALRM, &action, nullptr) == 0);
      AlarmIn(50);
      char last[4];
      RecvAll(fd, last, 4);
      CHECK_THAT(nested_done == 1);
      CHECK_THAT(std::memcmp(last, "last", 4) == 0);
      SendAll(fd, "back", 4);
      Log("nested");
    },
    {.warm = false});

// A thread that has its maker's own variables, and is in the kernel while that
// makes short calls of its own.
struct Sharing {
  int fd;
  int rounds;
  std::atomic<int> bad{0};
};

int EchoBySharing(void* argument) {
  auto* const sharing = static_cast<Sharing*>(argument);
  for (int i = 0; i < sharing->rounds; ++i) {
    unsigned char byte = 0;
    if (::recv(sharing->fd, &byte, 1, 0) != 1 ||
        byte != static_cast<unsigned char>(i) ||
        ::send(sharing->fd, &byte, 1, 0) != 1) {
      sharing->bad = 1;
      break;
    }
  }
  return 0;
}

constexpr int kSharingRounds = 40;

Case sharing_thread(
    "thread_with_its_makers_variables",
    [](int) {
      const int listener = ListenAndTell();
      for (int i = 0; i < 20; ++i) {
        const int fd = Accept(listener);
        for (int j = 0; j < kSharingRounds; ++j) {
          auto byte = static_cast<unsigned char>(j);
          SendAll(fd, &byte, 1);
          unsigned char back = 0;
          RecvAll(fd, &back, 1);
          CHECK_THAT(back == byte);
          if (j % 8 == 0) ::poll(nullptr, 0, 1);
        }
        ::close(fd);
      }
      const int fd = Accept(listener);
      for (int i = 0; i < 300; ++i) {
        char text[64];
        RecvAll(fd, text, sizeof text);
        SendAll(fd, text, sizeof text);
      }
      ::close(fd);
      ::close(listener);
    },
    [](int) {
      const int port = HearPort();
      // A call on it says at once that there is no connection.
      const int none = ::socket(AF_INET, SOCK_STREAM, 0);
      static char stack[256 * 1024];
      for (int i = 0; i < 20; ++i) {
        Sharing sharing{Connect(port), kSharingRounds, {}};
        // (The kernel clears it at the thread's end.)
        std::atomic<pid_t> alive{1};
        const int flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND |
                          CLONE_THREAD | CLONE_SYSVSEM | CLONE_CHILD_CLEARTID;
        CHECK_THAT(::clone(EchoBySharing, stack + sizeof stack, flags, &sharing,
                           nullptr, nullptr, &alive) > 0);
        char byte;
        while (alive.load() != 0) ::recv(none, &byte, 1, MSG_DONTWAIT);
        CHECK_THAT(sharing.bad == 0);
        ::close(sharing.fd);
      }
      ::close(none);
      // No lane is sound from here on: it counts on what is a thread's own.
      const int fd = Connect(port);
      std::uint64_t before = 0;
      for (int i = 0; i < 300; ++i) {
        if (i % 8 == 0) ::poll(nullptr, 0, 1);
        if (i == 200) before = TcpBytes(fd);
        char text[64] = {};
        SendAll(fd, text, sizeof text);
        RecvAll(fd, text, sizeof text);
      }
      Log("on TCP: %d", TcpBytes(fd) - before >= std::uint64_t{100 * 64});
      ::close(fd);
    },
    {.warm = false, .connect = false, .seconds = 60});

// A call that comes out of the kernel after its number has been closed, and
// what it brings, is of no other connection.
constexpr int kAfterLate = 24;
constexpr int kParts = 40;
using Part = char[300];

void EchoParts(int fd) {
  for (int i = 0; i < kParts; ++i) {
    Part part;
    RecvAll(fd, part, sizeof part);
    SendAll(fd, part, sizeof part);
  }
}

void AskParts(int fd) {
  for (int i = 0; i < kParts; ++i) {
    Part part;
    Part back;
    Pattern(9, static_cast<std::uint64_t>(i), part, sizeof part);
    SendAll(fd, part, sizeof part);
    RecvAll(fd, back, sizeof back);
    CHECK_THAT(std::memcmp(part, back, sizeof part) == 0);
  }
}

Case late_call(
    "call_of_a_closed_connection",
    [](int) {
      const int listener = ListenAndTell();
      const auto next = [listener] { return Accept(listener); };
      const int late = next();
      for (int i = 0; i < 2 * kAfterLate; ++i) ::close(next());
      int fds[kAfterLate];
      for (int& fd : fds) fd = next();
      Barrier();
      char text[100] = {};
      SendAll(late, text, sizeof text);
      Barrier();
      for (int fd : fds) {
        EchoParts(fd);
        RecvBulk(fd, 7, 200'000);
        SendBulk(fd, 8, 200'000);
        Part part;
        while (::recv(fd, part, sizeof part, MSG_WAITALL) == sizeof part) {
          SendAll(fd, part, sizeof part);
        }
        ::close(fd);
      }
      ::close(late);
      ::close(listener);
    },
    [](int) {
      const int port = HearPort();
      const int late = Connect(port);
      std::atomic<bool> begins{false};
      long got = 0;
      std::thread reader([&] {
        char text[100];
        begins = true;
        got = ::recv(late, text, sizeof text, MSG_WAITALL);
      });
      while (!begins) ::sched_yield();
      ::poll(nullptr, 0, 100);
      // (By a copy of something else: the number is not free for a call that
      // has not begun.)
      const int other = ::eventfd(0, 0);
      CloseUnderOther(late, other);
      ::close(other);
      for (int i = 0; i < 2 * kAfterLate; ++i) ::close(Connect(port));
      int fds[kAfterLate];
      for (int& fd : fds) fd = Connect(port);
      Barrier();
      reader.join();
      Barrier();
      const bool lane = ::getenv("PAIR_WARM") != nullptr;
      int left = 0;  // TCP, by the end
      for (int fd : fds) {
        AskParts(fd);
        SendBulk(fd, 7, 200'000);
        RecvBulk(fd, 8, 200'000);
        bool on_tcp = true;
        const std::uint64_t end = NowMs() + 4000;
        do {
          const std::uint64_t before = TcpBytes(fd);
          AskParts(fd);
          on_tcp = TcpBytes(fd) - before >= kParts * sizeof(Part);
        } while (lane && on_tcp && NowMs() < end);
        left += !on_tcp;
        ::close(fd);
      }
      ::close(late);
      // No lane comes where the ends have counted differently.
      Log("late: %ld, %d", got, !lane || left == kAfterLate);
    },
    {.warm = false, .connect = false, .seconds = 60});

}  // namespace

#if defined(__SANITIZE_THREAD__)
// What close_under_recv does on purpose, as TSan sees it while TCP has the
// connection: a number closed under a call.
extern "C" [[gnu::visibility("default")]] const char*
__tsan_default_suppressions();
extern "C" const char* __tsan_default_suppressions() {
  return "race:CloseUnderOther\n";
}
#endif
