// What a wait does with a signal mask, at the limit of descriptors, and under a
// filter of system calls that does not know the newest of them.
#include <dlfcn.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cstddef>
#include <vector>

#include "tests/posix/pair.h"

namespace {

using namespace pair;

volatile sig_atomic_t handled;

// Blocks SIGUSR1, which `*through` lets through.
void Prepare(sigset_t* through) {
  struct sigaction action {};
  action.sa_handler = [](int) { handled = handled + 1; };
  ::sigaction(SIGUSR1, &action, nullptr);
  sigset_t block;
  ::sigemptyset(&block);
  ::sigaddset(&block, SIGUSR1);
  ::pthread_sigmask(SIG_BLOCK, &block, through);
  ::sigdelset(through, SIGUSR1);
}

void Forget() {
  sigset_t one;
  ::sigemptyset(&one);
  ::sigaddset(&one, SIGUSR1);
  const timespec now{0, 0};
  while (::sigtimedwait(&one, nullptr, &now) > 0) continue;
  handled = 0;
}

struct Wait {
  const char* name;
  int (*call)(int fd, int set, const timespec& timeout, const sigset_t* mask);
};
constexpr Wait kWaits[] = {
    {"ppoll",
     [](int fd, int, const timespec& timeout, const sigset_t* mask) {
       pollfd two[2] = {{fd, POLLIN, 0}, {fd, POLLIN, 0}};
       return ::ppoll(two, 2, &timeout, mask);
     }},
    {"ppoll of one",
     [](int fd, int, const timespec& timeout, const sigset_t* mask) {
       pollfd one{fd, POLLIN, 0};
       return ::ppoll(&one, 1, &timeout, mask);
     }},
    {"ppoll of others, too",
     [](int fd, int, const timespec& timeout, const sigset_t* mask) {
       static int pipe[2] = {-1, -1};
       if (pipe[0] < 0) CHECK_THAT(::pipe(pipe) == 0);
       pollfd two[2] = {{fd, POLLIN, 0}, {pipe[0], POLLIN, 0}};
       return ::ppoll(two, 2, &timeout, mask);
     }},
    {"pselect",
     [](int fd, int, const timespec& timeout, const sigset_t* mask) {
       fd_set in;
       FD_ZERO(&in);
       FD_SET(fd, &in);
       return ::pselect(fd + 1, &in, nullptr, nullptr, &timeout, mask);
     }},
    {"epoll_pwait",
     [](int, int set, const timespec& timeout, const sigset_t* mask) {
       epoll_event events[4];
       const auto ms = timeout.tv_sec * 1000 + timeout.tv_nsec / 1'000'000;
       return ::epoll_pwait(set, events, 4, static_cast<int>(ms), mask);
     }},
    {"epoll_pwait2",
     [](int, int set, const timespec& timeout, const sigset_t* mask) {
       epoll_event events[4];
       return ::epoll_pwait2(set, events, 4, &timeout, mask);
     }},
};

int SetOf(int fd) {
  const int set = ::epoll_create1(0);
  epoll_event event{};
  event.events = EPOLLIN;
  CHECK_THAT(::epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
  return set;
}

void Echo(int fd) {
  char byte;
  while (::recv(fd, &byte, 1, 0) == 1) SendAll(fd, &byte, 1);
  ::close(fd);
}

void Tried(const char* name, int n) {
  const int error = errno;
  Log("%s: %d %s, handler ran %d", name, n, n < 0 ? ErrorName(error) : "",
      handled);
}

// A signal that waits for the mask.
Case pending("mask_and_pending", &Echo, [](int fd) {
  sigset_t through;
  Prepare(&through);
  const int set = SetOf(fd);
  const timespec second{1, 0};
  const timespec none{0, 0};
  Log("nothing there");
  for (const Wait& one : kWaits) {
    ::raise(SIGUSR1);
    Tried(one.name, one.call(fd, set, second, &through));
    Forget();
  }
  Log("nothing there, no time");
  for (const Wait& one : kWaits) {
    ::raise(SIGUSR1);
    Tried(one.name, one.call(fd, set, none, &through));
    Forget();
  }
  SendAll(fd, "x", 1);
  pollfd there{fd, POLLIN, 0};
  CHECK_THAT(::poll(&there, 1, -1) == 1);
  Log("a byte there");
  for (const Wait& one : kWaits) {
    ::raise(SIGUSR1);
    Tried(one.name, one.call(fd, set, second, &through));
    Forget();
  }
  Log("a byte there, no time");
  for (const Wait& one : kWaits) {
    ::raise(SIGUSR1);
    Tried(one.name, one.call(fd, set, none, &through));
    Forget();
  }
  ::close(set);
  ::close(fd);
});

// A signal that comes as the sleep begins (tests/posix/signal_at_wait.cc;
// without it, before the call).
Case asleep("mask_and_sleep", &Echo, [](int fd) {
  auto* const between =
      static_cast<volatile int*>(::dlsym(RTLD_DEFAULT, "between_signal"));
  sigset_t through;
  Prepare(&through);
  const int set = SetOf(fd);
  for (const Wait& one : kWaits) {
    for (int i = 0; i < 5; ++i) {
      if (between != nullptr) {
        *between = SIGUSR1;
      } else {
        ::raise(SIGUSR1);
      }
      Tried(one.name, one.call(fd, set, {1, 0}, &through));
      CHECK_THAT(between == nullptr || *between == 0);
      Forget();
    }
  }
  ::close(set);
  ::close(fd);
});

// A handler that runs as an endless sleep begins, and waits for another
// connection while the one of the interrupted wait gets its byte.
int other_fd;
bool other_woke;
void WaitForOther(int) {
  const int saved = errno;
  Tell(1);
  pollfd two[2] = {{other_fd, POLLIN, 0}, {other_fd, POLLIN, 0}};
  other_woke = ::poll(two, 2, -1) == 2;
  char byte;
  RecvAll(other_fd, &byte, 1);
  errno = saved;
}

Case waits_inside(
    "handler_waits_amid_a_wait",
    [](int fd) {
      const int listener = ListenAndTell();
      const int other = Accept(listener);
      Warm(other);
      while (Hear() != 0) {
        // A byte that comes before the handler sleeps would try nothing.
        ::poll(nullptr, 0, 15);
        SendAll(fd, "x", 1);
        ::poll(nullptr, 0, 5);
        SendAll(other, "y", 1);
      }
    },
    [](int fd) {
      auto* const between =
          static_cast<volatile int*>(::dlsym(RTLD_DEFAULT, "between_signal"));
      auto* const endless =
          static_cast<volatile int*>(::dlsym(RTLD_DEFAULT, "between_endless"));
      other_fd = Connect(HearPort());
      Warm(other_fd);
      struct sigaction action {};
      action.sa_handler = &WaitForOther;
      action.sa_flags = SA_RESTART;
      CHECK_THAT(::sigaction(SIGUSR1, &action, nullptr) == 0);
      int pipe[2];
      CHECK_THAT(::pipe(pipe) == 0);
      const int set = SetOf(fd);
      for (int i = 0; i < 12; ++i) {
        if (between != nullptr) {
          *endless = 1;
          *between = SIGUSR1;
        } else {
          ::raise(SIGUSR1);
        }
        // A wait for input of one connection has no set, so it names two.
        pollfd fds[2] = {{fd, POLLIN, 0},
                         {i % 2 == 0 ? fd : pipe[0], POLLIN, 0}};
        fd_set in;
        FD_ZERO(&in);
        FD_SET(pipe[0], &in);
        FD_SET(fd, &in);
        epoll_event event{};
        const char* const what = i % 3 == 0   ? "poll"
                                 : i % 3 == 1 ? "select"
                                              : "epoll_wait";
        const auto call = [&] {
          return i % 3 == 0 ? ::poll(fds, 2, -1)
                 : i % 3 == 1
                     ? ::select(pipe[0] + 1, &in, nullptr, nullptr, nullptr)
                     : ::epoll_wait(set, &event, 1, -1);
        };
        // A handler ends a wait that the kernel has begun.
        int n;
        do {
          n = call();
        } while (n < 0 && errno == EINTR);
        Log("%s: %d", what, n > 0);
        Log("the other woke %d", other_woke);
        char byte;
        RecvAll(fd, &byte, 1);
      }
      Tell(0);
      ::close(set);
    });

// A signal that the mask keeps out comes after the wait.
Case kept_out("mask_keeps_out", &Echo, [](int fd) {
  sigset_t block;
  Prepare(&block);
  ::pthread_sigmask(SIG_SETMASK, &block, nullptr);
  ::sigaddset(&block, SIGUSR1);
  const int set = SetOf(fd);
  for (const Wait& one : kWaits) {
    sigevent how{};
    how.sigev_notify = SIGEV_SIGNAL;
    how.sigev_signo = SIGUSR1;
    timer_t timer;
    CHECK_THAT(::timer_create(CLOCK_MONOTONIC, &how, &timer) == 0);
    const itimerspec soon{{0, 0}, {0, 50'000'000}};
    handled = 0;
    ::timer_settime(timer, 0, &soon, nullptr);
    Tried(one.name, one.call(fd, set, {0, 200'000'000}, &block));
    ::timer_delete(timer);
  }
  ::close(set);
  ::close(fd);
});

// As many as a process may have, and the others of them are left out.
Case limit(
    "poll_at_limit",
    [](int) {
      const int listener = ListenAndTell();
      const int fd = Accept(listener);
      Warm(fd);
      Echo(fd);
    },
    [](int) {
      constexpr nfds_t kMost = 256;
      const rlimit few{kMost, kMost};
      CHECK_THAT(::setrlimit(RLIMIT_NOFILE, &few) == 0);
      const int fd = Connect(HearPort());
      Warm(fd);
      int pipe[2];
      CHECK_THAT(::pipe(pipe) == 0);
      std::vector<pollfd> all(kMost + 1, {-1, 0, 0});
      all[0] = {fd, POLLIN, 0};
      all[5] = {pipe[0], POLLIN, 0};
      for (nfds_t count = kMost - 1; count <= kMost + 1; ++count) {
        Result("poll", ::poll(all.data(), count, 100));
      }
      CHECK_THAT(::write(pipe[1], "x", 1) == 1);
      Result("poll, the other", ::poll(all.data(), kMost, -1));
      Log("%x %x", static_cast<unsigned>(all[0].revents),
          static_cast<unsigned>(all[5].revents));
      all[5].fd = -1;
      SendAll(fd, "x", 1);
      Result("poll, the stream", ::poll(all.data(), kMost, -1));
      Log("%x", static_cast<unsigned>(all[0].revents));
      ::close(fd);
    },
    {.warm = false, .connect = false});

[[gnu::always_inline]] inline long Raw(long number, long a, long b, long c,
                                       long d) {
  register long r10 asm("r10") = d;
  register long r8 asm("r8") = 0;
  asm volatile("syscall"
               : "+a"(number)
               : "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8)
               : "rcx", "r11", "memory");
  return number;
}

// As a container's filter would that is older than the call.
void Refuse(int number, int error) {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<unsigned>(number), 0, 1),
      BPF_STMT(BPF_RET | BPF_K,
               SECCOMP_RET_ERRNO | static_cast<unsigned>(error)),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  sock_fprog program{4, filter};
  // (Past libc: a program that is started under a filter makes no such call.)
  CHECK_THAT(Raw(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0) == 0);
  CHECK_THAT(Raw(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0,
                 reinterpret_cast<long>(&program), 0) == 0);
}

Case refused("wait_refused", &Echo, [](int fd) {
  Refuse(SYS_epoll_pwait2, EPERM);
  const int set = SetOf(fd);
  epoll_event events[4];
  pollfd two[2] = {{fd, POLLIN, 0}, {-1, 0, 0}};
  for (int i = 0; i < 3; ++i) {
    Result("epoll_wait", ::epoll_wait(set, events, 4, 20));
    Result("poll", ::poll(two, 2, 20));
    SendAll(fd, "x", 1);
    Result("epoll_wait, a byte", ::epoll_wait(set, events, 4, -1));
    Result("poll, a byte", ::poll(two, 2, -1));
    char byte;
    RecvAll(fd, &byte, 1);
  }
  ::close(set);
  ::close(fd);
});

}  // namespace
