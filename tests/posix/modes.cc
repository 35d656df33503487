// What a registration with epoll asks for, and when it is told: by level, by
// edge, once, exclusively.
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <vector>

#include "tests/posix/pair.h"
#include "tests/posix/waiting.h"

namespace {

using namespace pair;

Case level(
    "epoll_level",
    [](int fd) {
      SendAll(fd, "abcdef", 6);
      Barrier();
      Barrier();
      SendAll(fd, "g", 1);
      Barrier();
      ::close(fd);
      Barrier();
    },
    [](int fd) {
      const int set = NewSet();
      Result("add", Ctl(set, EPOLL_CTL_ADD, fd, EPOLLIN));
      Result("add again", Ctl(set, EPOLL_CTL_ADD, fd, EPOLLIN));
      Barrier();
      char text[8];
      LogWait("wait", set, kLong);
      LogWait("wait", set, 0);
      RecvAll(fd, text, 3);
      LogWait("after part", set, 0);
      RecvAll(fd, text, 3);
      LogWait("after all", set, 0);
      LogWait("quiet", set, kQuiet);
      Result("mod", Ctl(set, EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLOUT));
      LogWait("in out", set, 0);
      Result("mod", Ctl(set, EPOLL_CTL_MOD, fd, EPOLLOUT));
      LogWait("out", set, 0);
      Result("mod", Ctl(set, EPOLL_CTL_MOD, fd, 0));
      Barrier();
      Barrier();
      LogWait("none", set, kQuiet);
      Result("mod", Ctl(set, EPOLL_CTL_MOD, fd, EPOLLIN));
      LogWait("in", set, kLong);
      Result("del", Ctl(set, EPOLL_CTL_DEL, fd, 0));
      Result("del again", Ctl(set, EPOLL_CTL_DEL, fd, 0));
      Result("mod", Ctl(set, EPOLL_CTL_MOD, fd, EPOLLIN));
      LogWait("deleted", set, kQuiet);
      Result("add", Ctl(set, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLRDHUP));
      LogWait("in again", set, kLong);
      Barrier();
      RecvAll(fd, text, 1);
      LogEnd("rdhup", set, fd);
      Result("recv", ::recv(fd, text, 1, 0));
      LogWait("rdhup", set, 0);
      ::shutdown(fd, SHUT_WR);
      epoll_event event{};
      for (int i = 0; i < 1000 && (event.events & EPOLLHUP) == 0; ++i) {
        ::epoll_wait(set, &event, 1, 1);
      }
      Log("hup: %x", event.events);
      ::close(fd);
      LogWait("closed", set, kQuiet);
    });

Case edge(
    "epoll_edge",
    [](int fd) {
      SendAll(fd, "abcdef", 6);
      Barrier();
      Barrier();
      SendAll(fd, "ghi", 3);
      Barrier();
      Barrier();
    },
    [](int fd) {
      const int set = NewSet();
      int moves = 1;
      Barrier();
      char text[16];
      pollfd one{fd, POLLIN, 0};
      ::poll(&one, 1, -1);
      Ctl(set, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLET);
      LogWait("already there", set, 0);
      // The kernel may report an edge twice, and so may we; then it is quiet.
      SkipEdges(set);
      RecvAll(fd, text, 2);
      LogNoEdge("part read: no edge", set, &moves);
      Result("mod", Ctl(set, EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLET));
      LogWait("mod makes one", set, 0);
      SkipEdges(set);
      Barrier();
      LogWait("new data: an edge although some was left", set, kLong);
      Barrier();
      SkipEdges(set);
      RecvAll(fd, text, 7);
      LogWait("empty", set, kQuiet);
      Ctl(set, EPOLL_CTL_MOD, fd, EPOLLOUT | EPOLLET);
      LogWait("out", set, kLong);
      SkipEdges(set);
      Barrier();
    });

Case oneshot(
    "epoll_oneshot",
    [](int fd) {
      SendAll(fd, "abc", 3);
      Barrier();
      Barrier();
      SendAll(fd, "def", 3);
      Barrier();
      Barrier();
    },
    [](int fd) {
      const int set = NewSet();
      Ctl(set, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLONESHOT);
      Barrier();
      char text[16];
      LogWait("once", set, kLong);
      LogWait("not twice", set, kQuiet);
      Result("mod", Ctl(set, EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLONESHOT));
      LogWait("again", set, 0);
      RecvAll(fd, text, 3);
      Barrier();
      Barrier();
      LogWait("disarmed", set, kQuiet);
      Result("mod",
             Ctl(set, EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLET | EPOLLONESHOT));
      LogWait("armed", set, kLong);
      LogWait("disarmed", set, kQuiet);
      Barrier();
    });

Case exclusive(
    "epoll_exclusive",
    [](int fd) {
      SendAll(fd, "abc", 3);
      Barrier();
    },
    [](int fd) {
      const int set = NewSet();
      Result("add", Ctl(set, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLEXCLUSIVE));
      LogWait("wait", set, kLong);
      Result("mod", Ctl(set, EPOLL_CTL_MOD, fd, EPOLLIN));
      const int other = NewSet();
      Result("oneshot", Ctl(other, EPOLL_CTL_ADD, fd,
                            EPOLLIN | EPOLLEXCLUSIVE | EPOLLONESHOT));
      Result("del", Ctl(set, EPOLL_CTL_DEL, fd, 0));
      Barrier();
    });

Case bad_epoll(
    "epoll_bad",
    [](int fd) {
      Barrier();
      (void)fd;
    },
    [](int fd) {
      const int set = NewSet();
      epoll_event event{};
      Result("mod unknown", Ctl(set, EPOLL_CTL_MOD, fd, EPOLLIN));
      Result("del unknown", Ctl(set, EPOLL_CTL_DEL, fd, EPOLLIN));
      Result("op 9", Ctl(set, 9, fd, EPOLLIN));
      Result("set is no set", Ctl(fd, EPOLL_CTL_ADD, fd, EPOLLIN));
      Result("bad fd", Ctl(set, EPOLL_CTL_ADD, 777, EPOLLIN));
      Result("null", ::epoll_ctl(set, EPOLL_CTL_ADD, fd, nullptr));
      Ctl(set, EPOLL_CTL_ADD, fd, EPOLLIN);
      Result("wait 0", ::epoll_wait(set, &event, 0, 0));
      Result("wait -1", ::epoll_wait(set, &event, Opaque(-1), 0));
      Result("wait on it", ::epoll_wait(fd, &event, 1, 0));
      Barrier();
    });

// Writability after the buffers were full, by edge.
Case out_edge(
    "epoll_out_edge",
    [](int fd) {
      std::vector<char> text(100'000);
      for (int round = 0; round < 20; ++round) {
        auto left = static_cast<std::uint64_t>(Hear());
        while (left > 0) {
          const std::size_t n = std::min<std::uint64_t>(left, text.size());
          RecvAll(fd, text.data(), n);
          left -= n;
        }
      }
    },
    [](int fd) {
      SetNonblock(fd, true);
      const int set = NewSet();
      Ctl(set, EPOLL_CTL_ADD, fd, EPOLLOUT | EPOLLIN | EPOLLET);
      std::vector<char> text(60'000);
      epoll_event event{};
      for (int round = 0; round < 20; round += 2) {
        std::uint64_t sent = 0;
        ssize_t n;
        // TCP may make room behind the EAGAIN, while nothing is read, and tell
        // of it.  Another such edge comes only behind another EAGAIN.
        do {
          while ((n = ::send(fd, text.data(), text.size(), 0)) > 0) {
            sent += static_cast<std::uint64_t>(n);
          }
          CHECK_THAT(errno == EAGAIN);
        } while (::epoll_wait(set, &event, 1, 0) == 1);
        Tell(static_cast<std::int64_t>(sent));
        for (;;) {
          n = ::epoll_wait(set, &event, 1, kLong);
          if (n != 1) Fail("no edge in round %d", round);
          if (::send(fd, text.data(), 1, 0) == 1) break;
        }
        // The byte is one more than was told: a round of its own.
        Tell(1);
      }
      Log("done");
    });

// An edge is told of with all that holds at that moment: input, and room if
// there is some.
Case edge_tells_all(
    "edge_tells_all",
    [](int fd) {
      for (int round = 0; round < 20; ++round) {
        Barrier();
        SendAll(fd, "a", 1);
        Barrier();
        SendAll(fd, "b", 1);
        auto left = static_cast<std::uint64_t>(Hear());
        std::vector<char> text(100'000);
        while (left > 0) {
          const std::size_t n = std::min<std::uint64_t>(left, text.size());
          RecvAll(fd, text.data(), n);
          left -= n;
        }
        SendAll(fd, "c", 1);
        Barrier();
      }
    },
    [](int fd) {
      SetNonblock(fd, true);
      const int set = NewSet();
      Ctl(set, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET);
      const std::vector<char> text(60'000);
      // What is told until there is the byte to read.
      const auto await = [&](const char* what) {
        epoll_event event{};
        char byte;
        do {
          if (::epoll_wait(set, &event, 1, kLong) != 1) Fail("%s", what);
        } while (::recv(fd, &byte, 1, 0) != 1);
        return event.events;
      };
      int without_room = 0;
      int untrue = 0;
      for (int round = 0; round < 20; ++round) {
        SkipEdges(set);
        Barrier();
        // (Or the byte has come behind an edge of something else.)
        const std::uint32_t told = await("a");
        if ((told & EPOLLIN) != 0 && (told & EPOLLOUT) == 0) ++without_room;
        std::uint64_t sent = 0;
        // (TCP goes on for a while, as its window grows; and where there is no
        // room for much there may be some for a byte.)
        for (int calm = 0; calm < 10; ++calm) {
          for (const std::size_t size : {text.size(), std::size_t{1}}) {
            ssize_t n;
            while ((n = ::send(fd, text.data(), size, 0)) > 0) {
              sent += static_cast<std::uint64_t>(n);
              calm = 0;
            }
          }
          ::usleep(1000);
        }
        epoll_event event{};
        while (::epoll_wait(set, &event, 1, 0) == 1) {
        }
        Barrier();
        // (TCP may have made some, by a larger buffer.)
        if ((await("b") & EPOLLOUT) != 0) {
          ::send(fd, text.data(), 1, 0) == 1 ? ++sent : ++untrue;
        }
        Tell(static_cast<std::int64_t>(sent));
        await("c");
        Barrier();
      }
      Log("without room: %d; of room that there was not: %d", without_room,
          untrue);
    });

// Edges only, 100,000 of them: one that is missed hangs.
void EdgePing(int fd, bool first) {
  SetNonblock(fd, true);
  const int set = NewSet();
  Ctl(set, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLOUT | EPOLLET);
  const int rounds = Scale(100'000);
  const std::uint64_t end = NowMs() + 12'000;
  int done = 0;
  if (first) SendAll(fd, "p", 1);
  while (done < rounds) {
    epoll_event event{};
    const int n = ::epoll_wait(set, &event, 1, kLong);
    if (n != 1) Fail("no edge after %d", done);
    char byte;
    ssize_t got;
    while ((got = ::recv(fd, &byte, 1, 0)) == 1) {
      ++done;
      // Who runs out of time says so with its byte; the other follows.
      const bool stop =
          byte == 's' || done >= rounds || (done % 1000 == 0 && NowMs() > end);
      const char answer = stop ? 's' : 'p';
      if (!(byte == 's')) SendAll(fd, &answer, 1);
      if (stop) return;
    }
    CHECK_THAT(got < 0 && errno == EAGAIN);
  }
}

Case edge_ping(
    "edge_ping",
    [](int fd) {
      EdgePing(fd, false);
      Barrier();
    },
    [](int fd) {
      EdgePing(fd, true);
      Barrier();
    });

// Room for one event, and one of two streams has something: it is told by each
// look, also where the other one has just been registered anew.
Case room_for_one(
    "room_for_one",
    [](int fd) {
      const int listener = ListenAndTell();
      const int other = Accept(listener);
      Warm(other);
      const int set = NewSet();
      CHECK_THAT(Ctl(set, EPOLL_CTL_ADD, fd, EPOLLIN) == 0);
      CHECK_THAT(Ctl(set, EPOLL_CTL_ADD, other, EPOLLIN) == 0);
      Barrier();
      LogWait("first", set, kLong);
      int missed = 0;
      for (int i = 0; i < 100; ++i) {
        CHECK_THAT(Ctl(set, EPOLL_CTL_MOD, other, EPOLLIN) == 0);
        epoll_event event{};
        for (int look = 0; look < 2; ++look) {
          missed += ::epoll_wait(set, &event, 1, 0) != 1 || event.data.fd != fd;
        }
      }
      Log("missed: %d", missed);
      Barrier();
      ::close(set);
      ::close(other);
      ::close(listener);
    },
    [](int fd) {
      const int other = Connect(HearPort());
      Warm(other);
      SendAll(fd, "a", 1);
      Barrier();
      Barrier();
      ::close(other);
    });

// A pipe is always ready, and is told by each look that has room for one event,
// while streams come to the set and leave TCP.
Case room_beside_news(
    "room_beside_news",
    [](int) {
      const int listener = ListenAndTell();
      int pipe[2];
      CHECK_THAT(::pipe(pipe) == 0 && ::write(pipe[1], "a", 1) == 1);
      const int set = NewSet();
      CHECK_THAT(Ctl(set, EPOLL_CTL_ADD, pipe[0], EPOLLIN) == 0);
      int missed = 0;
      std::vector<int> others;
      for (int i = 0; i < 10; ++i) {
        others.push_back(::accept(listener, nullptr, nullptr));
        CHECK_THAT(others.back() >= 0);
        CHECK_THAT(Ctl(set, EPOLL_CTL_ADD, others.back(), EPOLLIN) == 0);
        Warm(others.back());
        epoll_event event{};
        for (int look = 0; look < 20; ++look) {
          missed += ::epoll_wait(set, &event, 1, 0) != 1;
        }
      }
      Log("missed: %d", missed);
      for (const int other : others) ::close(other);
      for (const int end : pipe) ::close(end);
      ::close(set);
      ::close(listener);
    },
    [](int) {
      const int port = static_cast<int>(Hear());
      std::vector<int> others;
      for (int i = 0; i < 10; ++i) {
        others.push_back(Connect(port));
        Warm(others.back());
      }
      for (const int other : others) ::close(other);
    });

// One stream always has something to read; the room of another is told beside
// it all the same, and soon: here at best of several rounds, by level and edge.
Case room_beside_a_busy_one(
    "room_beside_a_busy_one",
    [](int fd) {
      const int listener = ListenAndTell();
      const int full = Accept(listener);
      Warm(full);
      SetNonblock(full, true);
      Barrier();
      for (const std::uint32_t mode : {0u, std::uint32_t{EPOLLET}}) {
        const int set = NewSet();
        CHECK_THAT(Ctl(set, EPOLL_CTL_ADD, fd, EPOLLIN) == 0);
        CHECK_THAT(Ctl(set, EPOLL_CTL_ADD, full, EPOLLOUT | mode) == 0);
        auto least = std::chrono::nanoseconds::max();
        for (int round = 0; round < 10; ++round) {
          const std::vector<char> text(60'000);
          std::uint64_t sent = 0;
          for (int calm = 0; calm < 5; ++calm) {
            ssize_t n;
            while ((n = ::send(full, text.data(), text.size(), 0)) > 0) {
              sent += static_cast<std::uint64_t>(n);
              calm = 0;
            }
            ::usleep(1000);
          }
          epoll_event events[4];
          // Until nothing is told but of the busy one.
          for (int calm = 0; calm < 100;) {
            const int n = ::epoll_wait(set, events, 4, 0);
            calm = n == 1 && events[0].data.fd == fd ? calm + 1 : 0;
          }
          Tell(static_cast<std::int64_t>(sent));
          Barrier();
          const auto start = std::chrono::steady_clock::now();
          for (bool told = false; !told;) {
            const int n = ::epoll_wait(set, events, 4, kLong);
            if (n < 1) Fail("%d", n);
            for (int i = 0; i < n; ++i) told |= events[i].data.fd == full;
          }
          least = std::min(least, std::chrono::steady_clock::now() - start);
        }
        Log("%s: late: %d", mode != 0 ? "edge" : "level",
            least > std::chrono::microseconds(800));
        ::close(set);
      }
      Barrier();
      ::close(full);
      ::close(listener);
    },
    [](int fd) {
      const int full = Connect(HearPort());
      Warm(full);
      SendAll(fd, "a", 1);
      Barrier();
      std::vector<char> text(100'000);
      for (int round = 0; round < 20; ++round) {
        for (auto left = static_cast<std::uint64_t>(Hear()); left > 0;) {
          const std::size_t n = std::min<std::uint64_t>(left, text.size());
          RecvAll(full, text.data(), n);
          left -= n;
        }
        Barrier();
      }
      Barrier();
      ::close(full);
    });

// Room for one, and all have something: those on TCP have their turn beside
// those on lanes.
constexpr int kTurns = 6;

Case beside_tcp(
    "room_for_one_beside_tcp",
    [](int) {
      for (const int on_tcp : {1, 3}) {
        const int listener = ListenAndTell();
        for (int i = 0; i < kTurns; ++i) {
          const int fd = Accept(listener);
          if (i >= on_tcp) Warm(fd);
          SendAll(fd, "abc", 3);
        }
        ::close(listener);
        Barrier();
      }
    },
    [](int) {
      for (const int on_tcp : {1, 3}) {
        const int port = HearPort();
        const int set = NewSet();
        int fds[kTurns];
        int told[kTurns] = {};
        for (int i = 0; i < kTurns; ++i) {
          fds[i] = Connect(port);
          i < on_tcp ? StayOnTcp(fds[i]) : Warm(fds[i]);
          pollfd one{fds[i], POLLIN, 0};
          CHECK_THAT(::poll(&one, 1, kLong) == 1);
          epoll_event event{};
          event.events = EPOLLIN;
          event.data.u32 = static_cast<std::uint32_t>(i);
          CHECK_THAT(::epoll_ctl(set, EPOLL_CTL_ADD, fds[i], &event) == 0);
        }
        for (int k = 0; k < 100 * kTurns; ++k) {
          epoll_event event{};
          CHECK_THAT(::epoll_wait(set, &event, 1, kLong) == 1);
          ++told[event.data.u32];
        }
        for (const int times : told) Log("told %d", times >= 50);
        for (const int fd : fds) ::close(fd);
        ::close(set);
        Barrier();
      }
    },
    {.warm = false, .connect = false});

}  // namespace
