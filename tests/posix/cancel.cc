// pthread_cancel ends a thread that waits for a connection, as in the kernel's
// calls, and the connection goes on.
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <threads.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

#include "tests/posix/pair.h"

namespace {

using namespace pair;

struct Work {
  int fd;
  void (*call)(int fd);
  std::atomic<bool> started{false};
  std::atomic<bool> cleaned{false};
};

void Cancel(const char* what, int fd, void (*call)(int fd)) {
  Work work{fd, call};
  pthread_t thread;
  CHECK_THAT(::pthread_create(
                 &thread, nullptr,
                 [](void* argument) -> void* {
                   auto* mine = static_cast<Work*>(argument);
                   struct Last {
                     Work* of;
                     ~Last() { of->cleaned = true; }
                   } last{mine};
                   mine->started = true;
                   mine->call(mine->fd);
                   return nullptr;
                 },
                 &work) == 0);
  while (!work.started) ::sched_yield();
  // Asleep by now, mostly; it must end either way.
  ::poll(nullptr, 0, 20);
  CHECK_THAT(::pthread_cancel(thread) == 0);
  void* result = nullptr;
  CHECK_THAT(::pthread_join(thread, &result) == 0);
  Log("%s: %s, cleaned up %d", what,
      result == PTHREAD_CANCELED ? "cancelled" : "returned",
      work.cleaned.load());
}

void Say(int fd, int count) {
  char text[4];
  for (int i = 0; i < count; ++i) {
    RecvAll(fd, text, 4);
    SendAll(fd, text, 4);
  }
}

void Ask(int fd) {
  char text[4];
  for (int i = 0; i < 50; ++i) {
    SendAll(fd, "ping", 4);
    RecvAll(fd, text, 4);
  }
}

Case waits(
    "cancel_waits", [](int fd) { Say(fd, 300); },
    [](int fd) {
      Cancel("recv", fd, [](int on) {
        char byte;
        ::recv(on, &byte, 1, 0);
      });
      Ask(fd);
      Cancel("recv with a time-out", fd, [](int on) {
        timeval limit{30, 0};
        ::setsockopt(on, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
        char byte;
        ::recv(on, &byte, 1, 0);
      });
      Ask(fd);
      Cancel("poll", fd, [](int on) {
        pollfd one{on, POLLIN, 0};
        ::poll(&one, 1, -1);
      });
      Ask(fd);
      Cancel("select", fd, [](int on) {
        fd_set in;
        FD_ZERO(&in);
        FD_SET(on, &in);
        ::select(on + 1, &in, nullptr, nullptr, nullptr);
      });
      Ask(fd);
      Cancel("epoll_wait", fd, [](int on) {
        const int set = ::epoll_create1(0);
        epoll_event event{};
        event.events = EPOLLIN;
        ::epoll_ctl(set, EPOLL_CTL_ADD, on, &event);
        ::epoll_wait(set, &event, 1, -1);
      });
      Ask(fd);
      // Many times, at whatever point of the call.
      for (int i = 0; i < 200; ++i) {
        pthread_t thread;
        CHECK_THAT(::pthread_create(
                       &thread, nullptr,
                       [](void* on) -> void* {
                         char byte;
                         ::recv(*static_cast<int*>(on), &byte, 1, 0);
                         return nullptr;
                       },
                       &fd) == 0);
        for (int k = 0; k < i % 7; ++k) ::sched_yield();
        if (i % 20 == 0) ::poll(nullptr, 0, 1);
        CHECK_THAT(::pthread_cancel(thread) == 0);
        void* result = nullptr;
        CHECK_THAT(::pthread_join(thread, &result) == 0);
        CHECK_THAT(result == PTHREAD_CANCELED);
      }
      Ask(fd);
      Log("done");
      ::close(fd);
    });

// Before there is a lane: the call was the kernel's.
Case early(
    "cancel_before_lane",
    [](int) {
      const int listener = ListenAndTell();
      const int fd = Accept(listener);
      Warm(fd);
      Say(fd, 50);
    },
    [](int) {
      const int fd = Connect(HearPort());
      Cancel("recv", fd, [](int on) {
        char byte;
        ::recv(on, &byte, 1, 0);
      });
      Cancel("poll", fd, [](int on) {
        pollfd one{on, POLLIN, 0};
        ::poll(&one, 1, -1);
      });
      Cancel("select", fd, [](int on) {
        fd_set in;
        FD_ZERO(&in);
        FD_SET(on, &in);
        ::select(on + 1, &in, nullptr, nullptr, nullptr);
      });
      Warm(fd);
      Ask(fd);
      ::close(fd);
    },
    {.warm = false, .connect = false});

Case sender(
    "cancel_send",
    [](int fd) {
      Barrier();
      int error;
      const std::size_t n = Drain(fd, &error);
      Log("something came %d, %s", n > 0,
          error == 0 ? "EOF" : ErrorName(error));
    },
    [](int fd) {
      Cancel("send", fd, [](int on) {
        std::vector<char> much(16 << 20);
        // Else the cancellation may come before anything was sent.
        int state;
        ::pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
        SendAll(on, "1", 1);
        ::pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &state);
        for (;;) ::send(on, much.data(), much.size(), 0);
      });
      Barrier();
      ::close(fd);
    });

Case disabled(
    "cancel_disabled",
    [](int fd) {
      char text[4];
      RecvAll(fd, text, 4);
      SendAll(fd, "late", 4);
      Say(fd, 50);
    },
    [](int fd) {
      Cancel("disabled, recv", fd, [](int on) {
        int state;
        ::pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
        ::poll(nullptr, 0, 50);  // the cancellation comes in here
        char text[4];
        SendAll(on, "now!", 4);
        RecvAll(on, text, 4);
        Log("%.4s", text);
      });
      Ask(fd);
      ::close(fd);
    });

// A thread that does nothing but `again` until it is cancelled.
void CancelLoop(const char* what, int fd, void (*again)(int fd),
                bool anywhere = false) {
  struct Loop {
    int fd;
    void (*again)(int fd);
    bool anywhere;
    std::atomic<int> rounds{0};
  } loop{fd, again, anywhere};
  pthread_t thread;
  CHECK_THAT(::pthread_create(
                 &thread, nullptr,
                 [](void* argument) -> void* {
                   auto* mine = static_cast<Loop*>(argument);
                   if (mine->anywhere) {
                     ::pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS,
                                             nullptr);
                   }
                   for (;; ++mine->rounds) mine->again(mine->fd);
                 },
                 &loop) == 0);
  while (loop.rounds < 100) ::sched_yield();
  CHECK_THAT(::pthread_cancel(thread) == 0);
  timespec limit;
  ::clock_gettime(CLOCK_REALTIME, &limit);
  limit.tv_sec += 5;
  void* result = nullptr;
  if (::pthread_timedjoin_np(thread, &result, &limit) != 0) {
    Fail("%s: not cancelled", what);
  }
  if (what != nullptr) {
    Log("%s: %s", what, result == PTHREAD_CANCELED ? "cancelled" : "returned");
  }
}

// What finds at once what it asks for is a cancellation point all the same.
Case at_once(
    "cancel_at_once",
    [](int fd) {
      SendAll(fd, "x", 1);
      Barrier();
      Barrier();
      char sink[4096];
      while (::recv(fd, sink, sizeof sink, 0) > 0) continue;
      ::close(fd);
    },
    [](int fd) {
      Barrier();
      pollfd there{fd, POLLIN, 0};
      ::poll(&there, 1, -1);
      CancelLoop("recv that peeks", fd, [](int on) {
        char byte;
        ::recv(on, &byte, 1, MSG_PEEK);
      });
      CancelLoop("poll", fd, [](int on) {
        pollfd one{on, POLLIN, 0};
        ::poll(&one, 1, -1);
      });
      CancelLoop("poll of two", fd, [](int on) {
        pollfd two[2] = {{on, POLLIN, 0}, {on, POLLOUT, 0}};
        ::poll(two, 2, 0);
      });
      CancelLoop("select", fd, [](int on) {
        fd_set in;
        FD_ZERO(&in);
        FD_SET(on, &in);
        ::select(on + 1, &in, nullptr, nullptr, nullptr);
      });
      static int set;
      set = ::epoll_create1(0);
      epoll_event event{};
      event.events = EPOLLIN;
      ::epoll_ctl(set, EPOLL_CTL_ADD, fd, &event);
      CancelLoop("epoll_wait", fd, [](int) {
        epoll_event one;
        ::epoll_wait(set, &one, 1, -1);
      });
      char byte;
      RecvAll(fd, &byte, 1);
      CancelLoop("recv of nothing", fd, [](int on) {
        char one;
        ::recv(on, &one, 1, MSG_DONTWAIT);
      });
      CancelLoop("epoll_wait of nothing", fd, [](int) {
        epoll_event one;
        ::epoll_wait(set, &one, 1, 0);
      });
      Barrier();
      CancelLoop("send", fd, [](int on) { ::send(on, "x", 1, 0); });
      CancelLoop("write", fd, [](int on) { ::write(on, "x", 1); });
      ::close(set);
      ::close(fd);
    });

// A thread that may be cancelled anywhere leaves a connection that works.
Case anywhere(
    "cancel_anywhere",
    [](int) {
      const int listener = ListenAndTell();
      for (;;) {
        const int fd = Accept(listener);
        Warm(fd);
        char first;
        RecvAll(fd, &first, 1);
        std::vector<char> piece(4096);
        if (first == 'f') {
          while (::send(fd, piece.data(), piece.size(), MSG_NOSIGNAL) > 0) {
          }
        } else {
          for (;;) {
            const ssize_t n = ::recv(fd, piece.data(), piece.size(), 0);
            if (n <= 0) break;
            if (first == 'e') {
              ::send(fd, piece.data(), static_cast<std::size_t>(n),
                     MSG_NOSIGNAL);
            }
          }
        }
        ::close(fd);
        if (first == 'q') break;
      }
      ::close(listener);
    },
    [](int) {
      const int port = HearPort();
      struct Way {
        char first;
        void (*again)(int fd);
      };
      static constexpr Way kWays[] = {{'d',
                                       [](int on) {
                                         char piece[4096] = {};
                                         ::send(on, piece, sizeof piece, 0);
                                       }},
                                      {'f',
                                       [](int on) {
                                         char piece[4096];
                                         ::recv(on, piece, sizeof piece, 0);
                                       }},
                                      {'e', [](int on) {
                                         char piece[100] = {};
                                         ::write(on, piece, sizeof piece);
                                         ::read(on, piece, sizeof piece);
                                       }}};
      for (int i = 0; i < 10; ++i) {
        for (const Way& way : kWays) {
          const int fd = Connect(port);
          Warm(fd);
          SendAll(fd, &way.first, 1);
          CancelLoop(nullptr, fd, way.again, true);
          // Takes both latches of the stream.
          ::shutdown(fd, SHUT_RDWR);
          ::close(fd);
        }
      }
      Log("connections end");
      // Where there is no call at all it is cancelled too.
      CancelLoop(
          "computes", -1, [](int) {}, true);
      const int fd = Connect(port);
      Warm(fd);
      SendAll(fd, "q", 1);
      ::close(fd);
    },
    {.warm = false, .connect = false, .seconds = 60});

// The first thread of a process, which has been the only one so far.
pthread_t first;

void CancelSoon() {
  // Asleep by now, mostly; it must end either way.
  ::poll(nullptr, 0, 20);
  ::pthread_cancel(first);
}

void* ByThread(void*) {
  CancelSoon();
  return nullptr;
}

int ByC11Thread(void*) {
  CancelSoon();
  return 0;
}

void ByTimer(sigval) { CancelSoon(); }

// A child that has no thread waits for `fd`, where nothing comes, is cancelled
// by what `prepare` has made, and says so by its status.
void CancelFirst(const char* what, int fd, void (*prepare)(),
                 void (*wait)(int fd)) {
  const pid_t child = ::fork();
  CHECK_THAT(child >= 0);
  if (child == 0) {
    ::alarm(10);
    struct Last {
      ~Last() { ::_exit(42); }
    } last;
    first = ::pthread_self();
    char byte;
    ::recv(fd, &byte, 1, MSG_DONTWAIT);
    prepare();
    wait(fd);
    ::_exit(1);
  }
  int status = 0;
  CHECK_THAT(::waitpid(child, &status, 0) == child);
  Log("%s: exit status %d, signal %d", what, WEXITSTATUS(status),
      WTERMSIG(status));
}

void WaitInRecv(int fd) {
  char byte;
  ::recv(fd, &byte, 1, 0);
}

void WaitInRead(int fd) {
  char byte;
  ::read(fd, &byte, 1);
}

void WaitInEpoll(int fd) {
  const int set = ::epoll_create1(0);
  epoll_event event{};
  event.events = EPOLLIN;
  ::epoll_ctl(set, EPOLL_CTL_ADD, fd, &event);
  ::epoll_wait(set, &event, 1, -1);
}

Case lone(
    "cancel_first_thread", [](int fd) { Say(fd, 50); },
    [](int fd) {
      for (auto* wait : {&WaitInRecv, &WaitInRead, &WaitInEpoll}) {
        CancelFirst(
            "by a thread", fd,
            [] {
              pthread_t thread;
              ::pthread_create(&thread, nullptr, &ByThread, nullptr);
            },
            wait);
        CancelFirst(
            "by a thread of C11", fd,
            [] {
              thrd_t thread;
              ::thrd_create(&thread, &ByC11Thread, nullptr);
            },
            wait);
        CancelFirst(
            "by a timer's thread", fd,
            [] {
              sigevent event{};
              event.sigev_notify = SIGEV_THREAD;
              event.sigev_notify_function = &ByTimer;
              timer_t timer;
              ::timer_create(CLOCK_MONOTONIC, &event, &timer);
              const itimerspec soon{{0, 0}, {0, 1'000'000}};
              ::timer_settime(timer, 0, &soon, nullptr);
            },
            wait);
        CancelFirst(
            "by itself", fd, [] { ::pthread_cancel(first); }, wait);
      }
      Ask(fd);
      ::close(fd);
    });

// A child of vfork leaves its parent's thread as it was.
Case vfork_type(
    "vfork_keeps_the_cancel_type", [](int) {},
    [](int) {
      std::thread([] {
        int before;
        ::pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &before);
        const auto look = [](const char* what) {
          int type;
          ::pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &type);
          Log("%s: %s", what,
              type == PTHREAD_CANCEL_ASYNCHRONOUS ? "anywhere" : "deferred");
        };
        pid_t child = ::vfork();
        if (child == 0) ::_exit(0);
        CHECK_THAT(::waitpid(child, nullptr, 0) == child);
        look("after _exit");
        child = ::vfork();
        if (child == 0) {
          ::execl("/bin/true", "true", static_cast<char*>(nullptr));
          ::_exit(1);
        }
        CHECK_THAT(::waitpid(child, nullptr, 0) == child);
        look("after execl");
        child = ::vfork();
        if (child == 0) {
          static char name[] = "true";
          static char* const words[] = {name, nullptr};
          ::execv("/bin/true", words);
          ::_exit(1);
        }
        CHECK_THAT(::waitpid(child, nullptr, 0) == child);
        look("after execv");
      }).join();
    });

// A cancellation that waits for the next such point ends none of the calls that
// are none, whatever they do here.
void WithPending(const char* what, int fd, long (*call)(int fd)) {
  struct Asked {
    const char* what;
    int fd;
    long (*call)(int fd);
  } asked{what, fd, call};
  pthread_t thread;
  CHECK_THAT(::pthread_create(
                 &thread, nullptr,
                 [](void* argument) -> void* {
                   const auto* mine = static_cast<Asked*>(argument);
                   ::pthread_cancel(::pthread_self());
                   const long n = mine->call(mine->fd);
                   ::pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, nullptr);
                   Result(mine->what, n);
                   return nullptr;
                 },
                 &asked) == 0);
  void* result = nullptr;
  CHECK_THAT(::pthread_join(thread, &result) == 0);
  Log("%s", result == PTHREAD_CANCELED ? "cancelled" : "returned");
}

// (Its peer does not answer, so what waits for it waits.)
void AnswerLate(int fd) {
  Tell(::getpid());
  Say(fd, 50);
}

void AskLate(const char* what, int fd, long (*call)(int fd)) {
  const auto server = static_cast<pid_t>(Hear());
  Stop(server);
  WithPending(what, fd, call);
  ::kill(server, SIGCONT);
  Ask(fd);
  ::close(fd);
}

Case pending_fork("cancel_pending_fork", &AnswerLate, [](int fd) {
  AskLate("fork", fd, [](int) -> long {
    const pid_t child = ::fork();
    if (child == 0) ::_exit(0);
    int status = 0;
    ::pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, nullptr);
    return ::waitpid(child, &status, 0) == child ? status : -1;
  });
});

Case pending_fcntl("cancel_pending_fcntl", &AnswerLate, [](int fd) {
  AskLate("fcntl", fd,
          [](int number) -> long { return ::fcntl(number, F_SETFL, O_ASYNC); });
});

}  // namespace
