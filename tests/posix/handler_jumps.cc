// Handlers that jump out of the call that they have interrupted.
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

#include "tests/posix/pair.h"

namespace {

using namespace pair;

void AlarmIn(int ms) {
  itimerval time{{0, 0}, {ms / 1000, (ms % 1000) * 1000}};
  CHECK_THAT(::setitimer(ITIMER_REAL, &time, nullptr) == 0);
}

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

}  // namespace
