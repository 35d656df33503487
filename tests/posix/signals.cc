// Signals that come while a connection is used.
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "tests/posix/pair.h"

namespace {

using namespace pair;

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
      const int rounds = Scale(20'000);
      for (int i = 0; i < rounds || signals <= 10; ++i) {
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
              const int count = Scale(1500);
              constexpr int kBurst = 24;
              burst_fd = fd;
              struct sigaction action {};
              action.sa_sigaction = &OnBurst;
              action.sa_flags = SA_SIGINFO | SA_RESTART;
              CHECK_THAT(::sigaction(SIGRTMIN, &action, nullptr) == 0);
              const pthread_t self = ::pthread_self();
              std::atomic<bool> done{false};
              std::thread sender([&] {
                for (int sent = 0; sent < count * kBurst;) {
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
      const int count = Scale(1500);
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
        for (int round = 1; round <= count; ++round) {
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

}  // namespace
