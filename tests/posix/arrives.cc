// What comes between two instructions of a call that waits for it: none may be
// slept on.
#include <poll.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <thread>

#include "tests/posix/pair.h"
#include "tests/posix/steps.h"

namespace {

using namespace pair;
using namespace steps;

// Far longer than anything takes here.
constexpr int kLongest = 8'000;

// `wait` waits for the byte that the peer sends when it is told to: while the
// waiting thread stands, an instruction later in each round; or, in every other
// round, as it goes on.
void ArrivesAtEachStep(const char* what, const std::function<bool()>& wait,
                       int fd) {
  HandleTraps(&Standing::OnTrap);
  int wrong = 0;
  // Behind these it sleeps, or looks again and again.
  constexpr int kMost = 6'000;
  Standing::due = 0;
  for (int round = 0; Standing::due < kMost; ++round) {
    Standing::stands = Standing::goes = false;
    bool found = false;
    std::thread waiter([&] { Standing::Run([&] { found = wait(); }); });
    const std::uint64_t end = NowMs() + 30;
    while (!Standing::stands && NowMs() < end) std::this_thread::yield();
    const bool stands = Standing::stands;
    // (Or it may reach that instruction yet.)
    Tell(round % 2);
    if (round % 2 == 0) Barrier();
    Standing::goes = true;
    waiter.join();
    if (round % 2 != 0) Barrier();
    if (!found && ++wrong == 1) {
      std::fprintf(stderr, "%s, step %d\n", what, Standing::due);
    }
    char byte = 0;
    RecvAll(fd, &byte, 1);
    if (!stands) break;  // asleep before
    Standing::due += 1 + Standing::due / 30;
  }
  Tell(-1);
  std::fprintf(stderr, "%s: %d steps\n", what, Standing::due);
  Log("%s: slept on: %d", what, wrong);
}

Case arrives(
    "arrives_at_each_step",
    [](int fd) {
      const timeval limit{kLongest / 1000, 0};
      CHECK_THAT(
          ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) == 0);
      char byte;
      ArrivesAtEachStep(
          "recv", [&] { return ::recv(fd, &byte, 1, MSG_PEEK) == 1; }, fd);
      pollfd one{fd, POLLIN, 0};
      ArrivesAtEachStep(
          "poll", [&] { return ::poll(&one, 1, kLongest) == 1; }, fd);
      ArrivesAtEachStep(
          "select",
          [&] {
            fd_set set;
            FD_ZERO(&set);
            FD_SET(fd, &set);
            timeval left{kLongest / 1000, 0};
            return ::select(fd + 1, &set, nullptr, nullptr, &left) == 1;
          },
          fd);
      for (const std::uint32_t mode :
           {std::uint32_t{0}, static_cast<std::uint32_t>(EPOLLET)}) {
        const int set = ::epoll_create1(0);
        epoll_event event{};
        event.events = EPOLLIN | mode;
        CHECK_THAT(::epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
        ArrivesAtEachStep(
            mode == 0 ? "epoll" : "epoll, by edges",
            [&] {
              epoll_event told{};
              // (An edge more may be told, of nothing.)
              for (;;) {
                if (::epoll_wait(set, &told, 1, kLongest) != 1) return false;
                char seen;
                if (::recv(fd, &seen, 1, MSG_PEEK | MSG_DONTWAIT) == 1) {
                  return true;
                }
              }
            },
            fd);
        ::close(set);
      }
    },
    [](int fd) {
      for (int waits = 0; waits < 5; ++waits) {
        for (;;) {
          const std::int64_t turn = Hear();
          if (turn < 0) break;
          SendAll(fd, "a", 1);
          Barrier();
        }
      }
    },
    {.seconds = 240});

}  // namespace
