// What comes between two instructions of a call that waits for it: none may be
// slept on.
#include <poll.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <thread>
#include <vector>

#include "tests/posix/pair.h"
#include "tests/posix/stepping.h"

namespace {

using namespace pair;
using namespace steps;

// Far longer than anything takes here.
constexpr int kLongest = 8'000;

// The rounds of one call: the instruction of the next one is the same where the
// thread has not come to it, unless it seems that it sleeps before.
class Rounds {
 public:
  Rounds(const char* what, int parts) : what_(what), parts_(parts) {
    Standing::due = 0;
    HandleTraps(&Standing::OnTrap);
  }
  // Whether there is another one.
  bool Next(bool found, bool stood) {
    if (!found && ++wrong_ == 1) {
      std::fprintf(stderr, "%s, step %d\n", what_, Standing::due);
    }
    if (!stood) return ++missed_ < 3;
    missed_ = 0;
    Standing::due += 1 + Standing::due / parts_;
    return Standing::due < 6'000;
  }
  void Conclude() const {
    std::fprintf(stderr, "%s: %d steps\n", what_, Standing::due);
    Log("%s: slept on: %d", what_, wrong_);
  }

 private:
  const char* const what_;
  const int parts_;
  int missed_ = 0;
  int wrong_ = 0;
};

// `wait` in a thread that stands at an instruction, if it comes there before it
// sleeps (*stood); `come` is called meanwhile.  What `wait` says.
bool Found(const std::function<bool()>& wait, const std::function<void()>& come,
           bool* stood) {
  Standing::stands = Standing::goes = false;
  bool found = false;
  std::thread waiter([&] { Standing::Run([&] { found = wait(); }); });
  const std::uint64_t end = NowMs() + 30;
  while (!Standing::stands && NowMs() < end) std::this_thread::yield();
  *stood = Standing::stands;
  come();
  Standing::goes = true;
  waiter.join();
  return found;
}

// `wait` waits for the byte that the peer sends when it is told to: while the
// waiting thread stands, an instruction later in each round; or, in every other
// round, as it goes on.
void ArrivesAtEachStep(const char* what, const std::function<bool()>& wait,
                       int fd) {
  Rounds rounds(what, 30);
  bool stood = false;
  bool found = false;
  int round = 0;
  do {
    found = Found(
        wait,
        [&] {
          // (Or it may reach that instruction yet.)
          Tell(round % 2);
          if (round % 2 == 0) Barrier();
        },
        &stood);
    if (round % 2 != 0) Barrier();
    char byte = 0;
    RecvAll(fd, &byte, 1);
    ++round;
  } while (rounds.Next(found, stood));
  Tell(-1);
  rounds.Conclude();
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

// --- What else comes

// What the peer does when it is told to: each ends the wait.
enum : std::int64_t { kBehindAFork, kCloses, kShuts };

// A connection for each round, which is on its lane.
void EndsAtEachStep(const char* what, std::int64_t act, int listener,
                    const std::function<bool(int)>& wait) {
  Rounds rounds(what, 20);
  bool stood = false;
  bool found = false;
  do {
    Tell(act);
    const int fd = Accept(listener);
    Warm(fd);
    found = Found([&] { return wait(fd); },
                  [] {
                    Barrier();
                    // (Half of what follows comes while it stands.)
                    if (Standing::due % 2 == 0) ::usleep(500);
                  },
                  &stood);
    ::close(fd);
  } while (rounds.Next(found, stood));
  rounds.Conclude();
}

Case ends(
    "ends_at_each_step",
    [](int) {
      const int listener = ListenAndTell();
      const char* const names[] = {"behind a fork", "closed", "shut"};
      for (const std::int64_t act : {kBehindAFork, kCloses, kShuts}) {
        const ssize_t n = act == kBehindAFork ? 1 : 0;
        char byte;
        Log("%s", names[act]);
        EndsAtEachStep("recv", act, listener, [&](int fd) {
          const timeval limit{kLongest / 1000, 0};
          ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
          return ::recv(fd, &byte, 1, 0) == n;
        });
        EndsAtEachStep("poll", act, listener, [&](int fd) {
          pollfd one{fd, POLLIN, 0};
          return ::poll(&one, 1, kLongest) == 1 && ::recv(fd, &byte, 1, 0) == n;
        });
        EndsAtEachStep("epoll", act, listener, [&](int fd) {
          const int set = ::epoll_create1(0);
          epoll_event event{};
          event.events = EPOLLIN;
          ::epoll_ctl(set, EPOLL_CTL_ADD, fd, &event);
          const bool told = ::epoll_wait(set, &event, 1, kLongest) == 1 &&
                            ::recv(fd, &byte, 1, 0) == n;
          ::close(set);
          return told;
        });
      }
      Tell(-1);
      ::close(listener);
    },
    [](int) {
      const int port = HearPort();
      for (;;) {
        const std::int64_t act = Hear();
        if (act < 0) break;
        const int fd = Connect(port);
        Warm(fd);
        Barrier();
        if (act == kBehindAFork) {
          const pid_t child = ::fork();
          if (child == 0) ::_exit(0);
          ::waitpid(child, nullptr, 0);
          SendAll(fd, "a", 1);
        } else if (act == kShuts) {
          ::shutdown(fd, SHUT_WR);
        }
        // (Until it has been read.)
        if (act != kCloses) {
          char byte;
          ::recv(fd, &byte, 1, 0);
        }
        ::close(fd);
      }
    },
    {.seconds = 400});

// --- Room

// The peer reads all that there is room for, and more comes behind it.
void RoomAtEachStep(const char* what, const std::function<bool()>& wait,
                    int fd) {
  Rounds rounds(what, 20);
  bool stood = false;
  bool found = false;
  do {
    const std::vector<char> text(60'000);
    std::int64_t sent = 0;
    // (TCP goes on for a while, as its window grows.)
    for (int calm = 0; calm < 3; ++calm) {
      for (const std::size_t size : {text.size(), std::size_t{1}}) {
        ssize_t n;
        while ((n = ::send(fd, text.data(), size, MSG_DONTWAIT)) > 0) {
          sent += n;
          calm = 0;
        }
      }
      ::usleep(1000);
    }
    found = Found(
        wait,
        [&] {
          Tell(sent);
          if (Standing::due % 2 == 0) ::usleep(500);
        },
        &stood);
    SendAll(fd, "b", 1);
    Barrier();
  } while (rounds.Next(found, stood));
  Tell(-1);
  rounds.Conclude();
}

Case room(
    "room_at_each_step",
    [](int fd) {
      const timeval limit{kLongest / 1000, 0};
      CHECK_THAT(
          ::setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit) == 0);
      RoomAtEachStep(
          "send", [&] { return ::send(fd, "a", 1, 0) == 1; }, fd);
      RoomAtEachStep(
          "poll",
          [&] {
            pollfd one{fd, POLLOUT, 0};
            return ::poll(&one, 1, kLongest) == 1 &&
                   ::send(fd, "a", 1, MSG_DONTWAIT) == 1;
          },
          fd);
      for (const std::uint32_t mode :
           {std::uint32_t{0}, static_cast<std::uint32_t>(EPOLLET)}) {
        RoomAtEachStep(
            mode == 0 ? "epoll" : "epoll, by edges",
            [&] {
              const int set = ::epoll_create1(0);
              epoll_event event{};
              event.events = EPOLLOUT | mode;
              CHECK_THAT(::epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
              bool told = false;
              bool sent = false;
              do {
                told = ::epoll_wait(set, &event, 1, kLongest) == 1;
                sent = ::send(fd, "a", 1, MSG_DONTWAIT) == 1;
              } while (told && !sent);
              ::close(set);
              return sent;
            },
            fd);
      }
    },
    [](int fd) {
      std::vector<char> text(100'000);
      for (int waits = 0; waits < 4; ++waits) {
        for (;;) {
          std::int64_t left = Hear();
          if (left < 0) break;
          for (left += 2; left > 0;) {
            const ssize_t n =
                ::recv(fd, text.data(),
                       std::min<std::size_t>(static_cast<std::size_t>(left),
                                             text.size()),
                       0);
            if (n <= 0) Fail("%zd", n);
            left -= n;
          }
          Barrier();
        }
      }
    },
    {.seconds = 400});

// --- Who brings it stands

// `bring` is stepped; the peer, who goes to sleep meanwhile (in every third
// round before), must be woken by what follows.
void BroughtAtEachStep(const char* what, const std::function<void()>& bring) {
  HandleTraps(&Standing::OnTrap);
  Standing::due = 0;
  int round = 0;
  for (bool stood = true; stood;
       Standing::due += 1 + Standing::due / 40, ++round) {
    Standing::stands = Standing::goes = false;
    std::atomic<bool> over{false};
    const bool before = round % 3 == 0;
    if (before) {
      Tell(1);
      ::usleep(300);
    }
    std::thread thread([&] {
      Standing::Run(bring);
      over = true;
    });
    while (!Standing::stands && !over) std::this_thread::yield();
    stood = Standing::stands;
    if (!before) Tell(1);
    ::usleep(round % 3 == 1 ? 300 : 30);
    Standing::goes = true;
    thread.join();
    Barrier();
  }
  Tell(-1);
  std::fprintf(stderr, "%s: %d steps\n", what, Standing::due);
}

// The other end of it.
void AwaitEach(const char* what, const std::function<bool()>& wait) {
  int wrong = 0;
  while (Hear() >= 0) {
    if (!wait()) ++wrong;
    Barrier();
  }
  Log("%s: slept on: %d", what, wrong);
}

Case brought(
    "brought_at_each_step",
    [](int fd) {
      for (int waits = 0; waits < 3; ++waits) {
        BroughtAtEachStep("send", [&] { SendAll(fd, "a", 1); });
      }
    },
    [](int fd) {
      char byte;
      timeval limit{kLongest / 1000, 0};
      ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
      const int set = ::epoll_create1(0);
      epoll_event event{};
      event.events = EPOLLIN | static_cast<std::uint32_t>(EPOLLET);
      CHECK_THAT(::epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
      AwaitEach("recv", [&] { return ::recv(fd, &byte, 1, 0) == 1; });
      AwaitEach("poll", [&] {
        pollfd one{fd, POLLIN, 0};
        return ::poll(&one, 1, kLongest) == 1 && ::recv(fd, &byte, 1, 0) == 1;
      });
      AwaitEach("epoll, by edges", [&] {
        do {
          if (::epoll_wait(set, &event, 1, kLongest) != 1) return false;
        } while (::recv(fd, &byte, 1, MSG_DONTWAIT) != 1);
        return true;
      });
      ::close(set);
    },
    {.seconds = 400});

// --- The connection leaves TCP

// A wait in a set that a connection is in, which another thread uses meanwhile,
// so that it goes to its lane.  What comes last there is told.
void TakenAtEachStep(const char* what, std::uint32_t mode, int listener) {
  Rounds rounds(what, 20);
  bool stood = false;
  bool found = false;
  do {
    Tell(1);
    const int fd = Accept(listener);
    const int set = ::epoll_create1(0);
    epoll_event event{};
    event.events = EPOLLIN | mode;
    CHECK_THAT(::epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
    const auto wait = [&] {
      for (;;) {
        epoll_event told{};
        if (::epoll_wait(set, &told, 1, kLongest) != 1) return false;
        char byte = 0;
        ::recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
        if (byte == 'z') return true;
        if ((mode & EPOLLONESHOT) != 0) {
          CHECK_THAT(::epoll_ctl(set, EPOLL_CTL_MOD, fd, &event) == 0);
        }
      }
    };
    std::thread user;
    found = Found(
        wait,
        [&] {
          user = std::thread([&] {
            Warm(fd);
            Tell(2);
          });
          ::usleep(Standing::due % 2 == 0 ? 5'000 : 500);
        },
        &stood);
    user.join();
    Barrier();
    ::close(set);
    ::close(fd);
  } while (rounds.Next(found, stood));
  rounds.Conclude();
}

Case taken(
    "taken_at_each_step",
    [](int) {
      const int listener = ListenAndTell();
      TakenAtEachStep("level", 0, listener);
      TakenAtEachStep("edge", static_cast<std::uint32_t>(EPOLLET), listener);
      TakenAtEachStep("once", EPOLLONESHOT, listener);
      Tell(-1);
      ::close(listener);
    },
    [](int) {
      const int port = HearPort();
      while (Hear() >= 0) {
        const int fd = Connect(port);
        Warm(fd);
        Hear();
        SendAll(fd, "z", 1);
        Barrier();
        ::close(fd);
      }
    },
    {.seconds = 400});

}  // namespace
