// Readiness: poll, select and epoll.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "tests/posix/pair.h"

namespace {

using namespace pair;

// A count that the compiler has no opinion on.
int Opaque(int value) {
  static volatile int kept;
  kept = value;
  return kept;
}

int NewSet() {
  const int set = ::epoll_create1(EPOLL_CLOEXEC);
  CHECK_THAT(set >= 0);
  return set;
}

int Ctl(int set, int op, int fd, std::uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.fd = fd;
  return ::epoll_ctl(set, op, fd, &event);
}

// Long enough for what is on its way to arrive, to see that nothing does.
constexpr int kQuiet = 20;
constexpr int kLong = 5000;

// One event, or none: "in out", "-", within the time.
void LogWait(const char* what, int set, int timeout) {
  epoll_event event{};
  const int n = ::epoll_wait(set, &event, 1, timeout);
  if (n < 0) {
    Log("%s: %s", what, ErrorName(errno));
  } else if (n == 0) {
    Log("%s: nothing", what);
  } else {
    Log("%s: %x", what, event.events);
  }
}

// Nothing, to an edge-triggered set.  A stream that leaves TCP makes one edge
// more for what is there (docs/compatibility.md), which on a busy machine may
// be now: `moves` of them are no news.  One that is on its lane has none.
void LogNoEdge(const char* what, int set, int* moves) {
  const char* warm = std::getenv("PAIR_WARM");
  epoll_event event{};
  while (warm == nullptr && *moves > 0 &&
         ::epoll_wait(set, &event, 1, kQuiet) == 1) {
    --*moves;
  }
  LogWait(what, set, kQuiet);
}

// The kernel may tell of a FIN as input alone, to who looks between its taking
// its place in the queue and the mark of the end: asked again behind FIONREAD,
// which waits for the mark, it tells both.
bool OnlyFin(int fd, std::uint32_t events) {
  if ((events & (EPOLLIN | EPOLLRDHUP)) != EPOLLIN) return false;
  int bytes = 0;
  CHECK_THAT(::ioctl(fd, FIONREAD, &bytes) == 0);
  return bytes == 0;
}

// LogWait at the end of a stream.
void LogEnd(const char* what, int set, int fd) {
  epoll_event event{};
  CHECK_THAT(::epoll_wait(set, &event, 1, kLong) == 1);
  if (OnlyFin(fd, event.events)) {
    CHECK_THAT(::epoll_wait(set, &event, 1, 0) == 1);
  }
  Log("%s: %x", what, event.events);
}

// Edges end: at most a few come from the same cause.
void SkipEdges(int set) {
  epoll_event event{};
  for (int i = 0; i < 4; ++i) {
    if (::epoll_wait(set, &event, 1, 20) == 0) return;
  }
  Log("edges do not end");
}

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
        while ((n = ::send(fd, text.data(), text.size(), 0)) > 0) {
          sent += static_cast<std::uint64_t>(n);
        }
        CHECK_THAT(errno == EAGAIN);
        // Throw away edges of before.
        while (::epoll_wait(set, &event, 1, 0) == 1) {
        }
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

Case out_level(
    "poll_out_level",
    [](int fd) {
      const auto total = static_cast<std::uint64_t>(Hear());
      std::vector<char> text(100'000);
      for (std::uint64_t left = total; left > 0;) {
        const std::size_t n = std::min<std::uint64_t>(left, text.size());
        RecvAll(fd, text.data(), n);
        left -= n;
      }
      Barrier();
    },
    [](int fd) {
      SetNonblock(fd, true);
      const int set = NewSet();
      Ctl(set, EPOLL_CTL_ADD, fd, EPOLLOUT);
      LogWait("writable", set, 0);
      std::vector<char> text(60'000);
      std::int64_t sent = 0;
      ssize_t n;
      while ((n = ::send(fd, text.data(), text.size(), 0)) > 0) sent += n;
      Log("%s", ErrorName(errno));
      LogWait("full", set, 0);
      pollfd one{fd, POLLOUT | POLLIN, 0};
      Result("poll", ::poll(&one, 1, 0));
      fd_set out;
      FD_ZERO(&out);
      FD_SET(fd, &out);
      timeval none{0, 0};
      Result("select", ::select(fd + 1, nullptr, &out, nullptr, &none));
      Tell(sent);
      LogWait("drained", set, kLong);
      Result("poll", ::poll(&one, 1, kLong));
      FD_SET(fd, &out);
      Result("select", ::select(fd + 1, nullptr, &out, nullptr, nullptr));
      Barrier();
    });

Case poll_select(
    "poll_select",
    [](int fd) {
      Barrier();
      SendAll(fd, "abc", 3);
      Barrier();
      Barrier();
      ::close(fd);
      Barrier();
    },
    [](int fd) {
      pollfd one{fd, POLLIN | POLLPRI | POLLRDHUP, 0};
      Result("poll quiet", ::poll(&one, 1, kQuiet));
      one.events = POLLOUT | POLLWRNORM | POLLWRBAND;
      Result("poll out", ::poll(&one, 1, -1));
      Log("revents %x", static_cast<unsigned>(one.revents));
      Barrier();
      one.events = POLLIN | POLLRDNORM | POLLRDBAND | POLLPRI;
      Result("poll in", ::poll(&one, 1, -1));
      Log("revents %x", static_cast<unsigned>(one.revents));
      one.events = 0;
      Result("poll nothing", ::poll(&one, 1, 0));
      pollfd twice[3] = {
          {fd, POLLIN, 0}, {-1, POLLIN, 7}, {fd, POLLIN | POLLOUT, 0}};
      Result("poll twice", ::poll(twice, 3, 0));
      Log("revents %x %x %x", static_cast<unsigned>(twice[0].revents),
          static_cast<unsigned>(twice[1].revents),
          static_cast<unsigned>(twice[2].revents));
      fd_set in, out, except;
      FD_ZERO(&in);
      FD_ZERO(&out);
      FD_ZERO(&except);
      FD_SET(fd, &in);
      FD_SET(fd, &out);
      FD_SET(fd, &except);
      timeval time{1, 0};
      Result("select", ::select(fd + 1, &in, &out, &except, &time));
      Log("in %d out %d except %d", FD_ISSET(fd, &in), FD_ISSET(fd, &out),
          FD_ISSET(fd, &except));
      char text[8];
      RecvAll(fd, text, 3);
      FD_ZERO(&in);
      FD_SET(fd, &in);
      time = {0, 30'000};
      const std::uint64_t start = NowMs();
      Result("select quiet", ::select(fd + 1, &in, nullptr, nullptr, &time));
      const std::uint64_t took = NowMs() - start;
      Log("not early %d, in %d, left %ld", took >= 29, FD_ISSET(fd, &in),
          static_cast<long>(time.tv_sec * 1'000'000 + time.tv_usec));
      timespec brief{0, 20'000'000};
      sigset_t mask;
      ::sigfillset(&mask);
      FD_SET(fd, &in);
      Result("pselect",
             ::pselect(fd + 1, &in, nullptr, nullptr, &brief, &mask));
      one.events = POLLIN;
      Result("ppoll", ::ppoll(&one, 1, &brief, &mask));
      brief.tv_nsec = -1;
      Result("ppoll bad", ::ppoll(&one, 1, &brief, &mask));
      time = {-1, 0};
      Result("select bad", ::select(fd + 1, &in, nullptr, nullptr, &time));
      Barrier();
      Barrier();
      one.events = POLLIN | POLLRDHUP;
      Result("poll end", ::poll(&one, 1, -1));
      if (OnlyFin(fd, static_cast<std::uint16_t>(one.revents))) {
        CHECK_THAT(::poll(&one, 1, 0) == 1);
      }
      Log("revents %x", static_cast<unsigned>(one.revents));
      FD_SET(fd, &in);
      Result("select end", ::select(fd + 1, &in, nullptr, nullptr, nullptr));
      Result("recv", ::recv(fd, text, 1, 0));
      Barrier();
    });

// poll() tells of a hung-up connection whatever it is asked for; select() only
// who reads, and else waits to its end.
Case select_hung_up(
    "select_hung_up",
    [](int fd) {
      char end;
      ::shutdown(fd, SHUT_WR);
      CHECK_THAT(::recv(fd, &end, 1, 0) == 0);
      Barrier();
    },
    [](int fd) {
      char end;
      CHECK_THAT(::recv(fd, &end, 1, 0) == 0);
      ::shutdown(fd, SHUT_WR);
      Barrier();
      int ended[2];
      CHECK_THAT(::pipe(ended) == 0);
      ::close(ended[1]);
      const auto select = [](const char* what, int out, int except) {
        fd_set outs, excepts;
        FD_ZERO(&outs);
        FD_ZERO(&excepts);
        if (out >= 0) FD_SET(out, &outs);
        for (const int one : {except, out}) {
          if (one >= 0) FD_SET(one, &excepts);
        }
        timeval time{0, 250'000};
        const std::uint64_t start = NowMs();
        Result(what, ::select(64, nullptr, &outs, &excepts, &time));
        Log("to its end %d, left %ld", NowMs() - start >= 249,
            static_cast<long>(time.tv_sec * 1'000'000 + time.tv_usec));
      };
      select("hung up", -1, fd);
      select("both", ended[0], fd);
      int other[2];
      CHECK_THAT(::pipe(other) == 0);
      std::thread writer([&] { CHECK_THAT(::write(other[1], "x", 1) == 1); });
      fd_set in, except;
      FD_ZERO(&in);
      FD_ZERO(&except);
      FD_SET(other[0], &in);
      FD_SET(fd, &except);
      FD_SET(ended[0], &except);
      Result("one written to", ::select(64, &in, nullptr, &except, nullptr));
      Log("in %d except %d %d", FD_ISSET(other[0], &in), FD_ISSET(fd, &except),
          FD_ISSET(ended[0], &except));
      writer.join();
      FD_ZERO(&in);
      FD_SET(fd, &in);
      Result("read", ::select(64, &in, nullptr, nullptr, nullptr));
      for (const int one : {ended[0], other[0], other[1]}) ::close(one);
    });

Case timeouts(
    "wait_times",
    [](int fd) {
      Barrier();
      (void)fd;
    },
    [](int fd) {
      const int set = NewSet();
      Ctl(set, EPOLL_CTL_ADD, fd, EPOLLIN);
      epoll_event event{};
      int early = 0;
      int late = 0;
      for (const int ms : {1, 2, 5, 10, 20, 40, 0, 3, 7, 60}) {
        for (int way = 0; way < 5; ++way) {
          timespec start, end;
          pollfd one{fd, POLLIN, 0};
          fd_set in;
          FD_ZERO(&in);
          FD_SET(fd, &in);
          timeval time{0, ms * 1000};
          timespec spec{0, ms * 1'000'000};
          ::clock_gettime(CLOCK_MONOTONIC, &start);
          int n = -1;
          switch (way) {
            case 0:
              n = ::epoll_wait(set, &event, 1, ms);
              break;
            case 1:
              n = ::poll(&one, 1, ms);
              break;
            case 2:
              n = ::select(fd + 1, &in, nullptr, nullptr, &time);
              break;
            case 3:
              n = ::epoll_pwait2(set, &event, 1, &spec, nullptr);
              break;
            case 4:
              n = ::ppoll(&one, 1, &spec, nullptr);
              break;
          }
          ::clock_gettime(CLOCK_MONOTONIC, &end);
          CHECK_THAT(n == 0);
          const long us = (end.tv_sec - start.tv_sec) * 1'000'000 +
                          (end.tv_nsec - start.tv_nsec) / 1000;
          if (us < ms * 1000L) ++early;
          // (A busy machine is late by itself.)
          if (us > ms * 1000L + 5'000'000) ++late;
        }
      }
      Log("early %d, late %d", early, late);
      Barrier();
    });

// Kernel descriptors beside a stream that is always ready.
Case mixed(
    "mixed_not_starved",
    [](int fd) {
      SendAll(fd, "never read", 10);
      Barrier();
      Barrier();
    },
    [](int fd) {
      Barrier();
      const int set = NewSet();
      const int event_fd = ::eventfd(0, EFD_NONBLOCK);
      const int timer = ::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
      int pipe_fds[2];
      CHECK_THAT(::pipe(pipe_fds) == 0);
      int port;
      const int listener = Listen(&port);
      for (const int one : {fd, event_fd, timer, pipe_fds[0], listener}) {
        CHECK_THAT(Ctl(set, EPOLL_CTL_ADD, one, EPOLLIN) == 0);
      }
      const int caller = Connect(port);
      itimerspec soon{{0, 0}, {0, 1'000'000}};
      CHECK_THAT(::timerfd_settime(timer, 0, &soon, nullptr) == 0);
      std::uint64_t value = 1;
      CHECK_THAT(::write(event_fd, &value, 8) == 8);
      CHECK_THAT(::write(pipe_fds[1], "p", 1) == 1);
      for (const int capacity : {1, 2, 8}) {
        bool seen[5] = {};
        const std::uint64_t end = NowMs() + 3000;
        bool all = false;
        while (!all && NowMs() < end) {
          epoll_event events[8];
          const int n = ::epoll_wait(set, events, capacity, -1);
          CHECK_THAT(n > 0 && n <= capacity);
          for (int i = 0; i < n; ++i) {
            const int from = events[i].data.fd;
            seen[0] |= from == fd;
            seen[1] |= from == event_fd;
            seen[2] |= from == timer;
            seen[3] |= from == pipe_fds[0];
            seen[4] |= from == listener;
          }
          all = seen[0] && seen[1] && seen[2] && seen[3] && seen[4];
        }
        Log("capacity %d: %d %d %d %d %d", capacity, seen[0], seen[1], seen[2],
            seen[3], seen[4]);
      }
      pollfd fds[5] = {{fd, POLLIN, 0},
                       {event_fd, POLLIN, 0},
                       {timer, POLLIN, 0},
                       {pipe_fds[0], POLLIN, 0},
                       {listener, POLLIN, 0}};
      // A look without waiting is complete.
      Result("poll", ::poll(fds, 5, 0));
      for (int i = 0; i < 100; ++i) {
        if (::poll(fds, 5, -1) == 5) break;
      }
      Result("poll", ::poll(fds, 5, 0));
      ::close(caller);
      Barrier();
    });

// A pipe wakes a thread that waits on a stream too.
Case pipe_wakes(
    "pipe_wakes",
    [](int fd) {
      Barrier();
      (void)fd;
    },
    [](int fd) {
      const int set = NewSet();
      int pipe_fds[2];
      CHECK_THAT(::pipe(pipe_fds) == 0);
      Ctl(set, EPOLL_CTL_ADD, fd, EPOLLIN);
      Ctl(set, EPOLL_CTL_ADD, pipe_fds[0], EPOLLIN | EPOLLET);
      const int timer = ::timerfd_create(CLOCK_MONOTONIC, 0);
      Ctl(set, EPOLL_CTL_ADD, timer, EPOLLIN);
      itimerspec soon{{0, 0}, {0, 30'000'000}};
      ::timerfd_settime(timer, 0, &soon, nullptr);
      epoll_event event{};
      Result("wait", ::epoll_wait(set, &event, 1, -1));
      Log("timer %d", event.data.fd == timer);
      CHECK_THAT(::write(pipe_fds[1], "x", 1) == 1);
      pollfd fds[2] = {{fd, POLLIN, 0}, {pipe_fds[0], POLLIN, 0}};
      Result("poll", ::poll(fds, 2, -1));
      Barrier();
    });

Case two_sets(
    "two_sets",
    [](int fd) {
      for (int i = 0; i < 500; ++i) {
        SendAll(fd, "x", 1);
        char byte;
        RecvAll(fd, &byte, 1);
      }
    },
    [](int fd) {
      const int first = NewSet();
      const int second = NewSet();
      Ctl(first, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLET);
      Ctl(second, EPOLL_CTL_ADD, fd, EPOLLIN);
      epoll_event event{};
      for (int i = 0; i < 500; ++i) {
        if (i % 2 == 0) {
          CHECK_THAT(::epoll_wait(first, &event, 1, kLong) == 1);
          CHECK_THAT(::epoll_wait(second, &event, 1, kLong) == 1);
        } else {
          CHECK_THAT(::epoll_wait(second, &event, 1, kLong) == 1);
          CHECK_THAT(::epoll_wait(first, &event, 1, kLong) == 1);
        }
        char byte;
        RecvAll(fd, &byte, 1);
        CHECK_THAT(::epoll_wait(second, &event, 1, 0) == 0);
        SendAll(fd, "y", 1);
      }
      Log("done");
    });

Case copies(
    "dup_keeps",
    [](int fd) {
      Barrier();
      SendAll(fd, "abc", 3);
      Barrier();
    },
    [](int fd) {
      const int set = NewSet();
      Ctl(set, EPOLL_CTL_ADD, fd, EPOLLIN);
      const int copy = ::dup(fd);
      Result("add copy", Ctl(set, EPOLL_CTL_ADD, copy, EPOLLIN | EPOLLET));
      Barrier();
      pollfd one{fd, POLLIN, 0};
      ::poll(&one, 1, -1);
      epoll_event events[4];
      int n = ::epoll_wait(set, events, 4, kLong);
      // The second may need a second look.
      if (n == 1) n += ::epoll_wait(set, events + 1, 3, kQuiet);
      Log("both %d", n >= 2);
      Result("close the original", ::close(fd));
      // The copy's edge is spent, but a move to a lane would make another.
      n = ::epoll_wait(set, events, 4, kQuiet);
      int first = 0;
      for (int i = 0; i < n; ++i) first += events[i].data.fd == fd;
      Log("the original %d", first);
      char text[8];
      Result("recv by copy", ::recv(copy, text, 3, 0));
      Result("wait", ::epoll_wait(set, events, 4, kQuiet));
      ::close(copy);
      Result("wait", ::epoll_wait(set, events, 4, kQuiet));
      Barrier();
    });

// A set that came from elsewhere, by SCM_RIGHTS: all that this process knows of
// it is what it does there.
Case foreign_set(
    "foreign_set",
    [](int fd) {
      for (int i = 0; i < 2; ++i) {
        Barrier();
        SendAll(fd, "abc", 3);
        Barrier();
      }
      char text[8];
      RecvAll(fd, text, 3);
      SendAll(fd, text, 3);
    },
    [](int fd) {
      int pair_fds[2];
      CHECK_THAT(::socketpair(AF_UNIX, SOCK_STREAM, 0, pair_fds) == 0);
      int set = NewSet();
      alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
      char byte = 'f';
      iovec part{&byte, 1};
      msghdr message{};
      message.msg_iov = &part;
      message.msg_iovlen = 1;
      message.msg_control = control;
      message.msg_controllen = sizeof control;
      cmsghdr* header = CMSG_FIRSTHDR(&message);
      header->cmsg_level = SOL_SOCKET;
      header->cmsg_type = SCM_RIGHTS;
      header->cmsg_len = CMSG_LEN(sizeof set);
      std::memcpy(CMSG_DATA(header), &set, sizeof set);
      CHECK_THAT(::sendmsg(pair_fds[0], &message, 0) == 1);
      ::close(set);
      CHECK_THAT(::recvmsg(pair_fds[1], &message, 0) == 1);
      std::memcpy(&set, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof set);
      Result("add", Ctl(set, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLET));
      for (int i = 0; i < 2; ++i) {
        LogWait("quiet", set, kQuiet);
        Barrier();
        LogWait("wait", set, kLong);
        char text[8];
        RecvAll(fd, text, 3);
        if (i == 0) {
          Result("change", Ctl(set, EPOLL_CTL_MOD, fd, EPOLLIN));
        }
        Barrier();
      }
      SendAll(fd, "def", 3);
      LogWait("wait", set, kLong);
    });

Case nested(
    "nested",
    [](int fd) {
      Barrier();
      SendAll(fd, "abc", 3);
      Barrier();
      SendAll(fd, "def", 3);
      Barrier();
    },
    [](int fd) {
      const int inner = NewSet();
      Ctl(inner, EPOLL_CTL_ADD, fd, EPOLLIN);
      pollfd one{inner, POLLIN, 0};
      Result("poll quiet", ::poll(&one, 1, kQuiet));
      Barrier();
      Result("poll", ::poll(&one, 1, kLong));
      Log("revents %x", static_cast<unsigned>(one.revents));
      fd_set in;
      FD_ZERO(&in);
      FD_SET(inner, &in);
      Result("select", ::select(inner + 1, &in, nullptr, nullptr, nullptr));
      LogWait("inner", inner, 0);
      char text[8];
      RecvAll(fd, text, 3);
      Result("poll quiet", ::poll(&one, 1, kQuiet));
      const int outer = NewSet();
      Ctl(outer, EPOLL_CTL_ADD, inner, EPOLLIN);
      LogWait("outer quiet", outer, kQuiet);
      Barrier();
      LogWait("outer", outer, kLong);
      LogWait("inner", inner, kLong);
      RecvAll(fd, text, 3);
      LogWait("outer quiet", outer, kQuiet);
      Barrier();
    });

// "Demote now": stdio on a copy moves a stream to TCP for good.
void Demote(int fd) {
  std::FILE* file = ::fdopen(::dup(fd), "r");
  CHECK_THAT(file != nullptr);
  std::fclose(file);
}

// Registrations of every kind across a demotion: nothing lost, nothing spent.
Case demotion(
    "epoll_across_demotion",
    [](int fd) {
      Barrier();
      SendAll(fd, "abc", 3);
      Barrier();
      Barrier();
      SendAll(fd, "def", 3);
      Barrier();
    },
    [](int fd) {
      const int level_set = NewSet();
      const int edge_set = NewSet();
      const int spent_set = NewSet();
      const int armed_set = NewSet();
      Ctl(level_set, EPOLL_CTL_ADD, fd, EPOLLIN);
      Ctl(edge_set, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLET);
      Ctl(spent_set, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLONESHOT);
      Ctl(armed_set, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLONESHOT);
      Barrier();
      LogWait("level", level_set, kLong);
      LogWait("edge", edge_set, kLong);
      LogWait("spent", spent_set, kLong);
      char text[8];
      RecvAll(fd, text, 3);
      Demote(fd);
      LogWait("level quiet", level_set, kQuiet);
      LogWait("spent quiet", spent_set, kQuiet);
      Barrier();
      Barrier();
      LogWait("level", level_set, kLong);
      LogWait("edge", edge_set, kLong);
      LogWait("still spent", spent_set, kQuiet);
      LogWait("still armed", armed_set, kLong);
      Result("mod", Ctl(spent_set, EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLONESHOT));
      LogWait("armed", spent_set, kLong);
      Result("del", Ctl(level_set, EPOLL_CTL_DEL, fd, 0));
      RecvAll(fd, text, 3);
      Barrier();
    });

// One report of each registration, however many others the set has: those that
// the kernel has made are not made again when the streams leave TCP.
constexpr int kCrowd = 3000;
constexpr int kSpent = 6;

Case oneshot_crowd(
    "oneshot_in_a_crowd",
    [](int) {
      Barrier();
      const int port = static_cast<int>(Hear());
      int fds[kSpent];
      for (int& fd : fds) {
        fd = Connect(port);
        SendAll(fd, "a", 1);
      }
      Barrier();
      for (const int fd : fds) Warm(fd);
      for (const int fd : fds) SendAll(fd, "b", 1);
      Barrier();
      Barrier();
      for (const int fd : fds) ::close(fd);
    },
    [](int) {
      rlimit limit{};
      ::getrlimit(RLIMIT_NOFILE, &limit);
      limit.rlim_cur = limit.rlim_max;
      ::setrlimit(RLIMIT_NOFILE, &limit);
      const int set = NewSet();
      // Among which the streams stand anywhere: the kernel sorts by address.
      std::vector<int> crowd;
      for (int i = 0; i < kCrowd; ++i) {
        crowd.push_back(::eventfd(0, EFD_CLOEXEC));
        CHECK_THAT(Ctl(set, EPOLL_CTL_ADD, crowd.back(), EPOLLIN) == 0);
      }
      int port = 0;
      const int listener = Listen(&port);
      Barrier();
      Tell(port);
      int fds[kSpent];
      char byte;
      for (int& fd : fds) {
        fd = ::accept(listener, nullptr, nullptr);
        CHECK_THAT(fd >= 0);
        Ctl(set, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLONESHOT);
        LogWait("once", set, kLong);
        RecvAll(fd, &byte, 1);
      }
      Barrier();
      for (const int fd : fds) Warm(fd);
      Barrier();
      LogWait("spent", set, kQuiet);
      for (const int fd : fds) {
        Result("mod", Ctl(set, EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLONESHOT));
        LogWait("armed", set, kLong);
        RecvAll(fd, &byte, 1);
      }
      Barrier();
      for (const int fd : crowd) ::close(fd);
      for (const int fd : fds) ::close(fd);
      ::close(listener);
    },
    {.warm = false, .connect = false, .seconds = 40});

// A thread of the peer demotes while this end sleeps in each kind of wait.
Case demotion_asleep(
    "demotion_asleep",
    [](int fd) {
      char byte;
      for (int i = 0; i < 4; ++i) {
        RecvAll(fd, &byte, 1);
        if (i == 1) Demote(fd);
        pollfd none{-1, 0, 0};
        ::poll(&none, 1, 30);  // so that the other end sleeps, usually
        SendAll(fd, "a", 1);
      }
    },
    [](int fd) {
      const int set = NewSet();
      Ctl(set, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLET);
      char byte;
      for (int i = 0; i < 4; ++i) {
        SendAll(fd, "q", 1);
        if (i % 2 == 0) {
          pollfd one{fd, POLLIN, 0};
          Result("poll", ::poll(&one, 1, kLong));
        } else {
          epoll_event event{};
          do {
            CHECK_THAT(::epoll_wait(set, &event, 1, kLong) == 1);
          } while (::recv(fd, &byte, 1, MSG_DONTWAIT | MSG_PEEK) != 1);
        }
        RecvAll(fd, &byte, 1);
      }
      Log("done");
    });

// Promotion while this end sleeps in a wait: each connection is new, so that it
// comes at a different moment of the exchange.
void SleepyServer(int way) {
  int port;
  const int listener = Listen(&port);
  Tell(port);
  for (int round = 0; round < Scale(6); ++round) {
    const int fd = ::accept(listener, nullptr, nullptr);
    CHECK_THAT(fd >= 0);
    const int set = NewSet();
    Ctl(set, EPOLL_CTL_ADD, fd, way == 1 ? EPOLLIN | EPOLLET : EPOLLIN);
    for (;;) {
      pollfd one{fd, POLLIN, 0};
      epoll_event event{};
      fd_set in;
      FD_ZERO(&in);
      FD_SET(fd, &in);
      int n = 1;
      switch (way) {
        case 0:
          n = ::poll(&one, 1, kLong);
          break;
        case 1:
        case 2:
          n = ::epoll_wait(set, &event, 1, kLong);
          break;
        case 3: {
          timeval time{5, 0};
          n = ::select(fd + 1, &in, nullptr, nullptr, &time);
          break;
        }
        default:
          break;  // sleeps in recv
      }
      if (n != 1) Fail("way %d, round %d: %d", way, round, n);
      char text[16];
      const ssize_t got =
          ::recv(fd, text, sizeof text, way == 1 ? MSG_DONTWAIT : 0);
      if (got < 0 && errno == EAGAIN) continue;
      if (got == 0) break;
      CHECK_THAT(got > 0);
      SendAll(fd, text, static_cast<std::size_t>(got));
    }
    ::close(set);
    ::close(fd);
  }
  ::close(listener);
  Log("done");
}

void SleepyClient() {
  const int port = static_cast<int>(Hear());
  Random random{Seed()};
  for (int round = 0; round < Scale(6); ++round) {
    const int fd = Connect(port);
    for (int i = 0; i < 150; ++i) {
      char text[16] = "hello, hello";
      SendAll(fd, text, 10);
      RecvAll(fd, text, 10);
      if (random.Below(20) == 0) {
        pollfd none{-1, 0, 0};
        ::poll(&none, 1, static_cast<int>(random.Below(8)));
      }
    }
    ::close(fd);
  }
}

constexpr Options kAlone{.warm = false, .connect = false, .seconds = 40};
Case sleepy0(
    "promoted_in_poll", [](int) { SleepyServer(0); },
    [](int) { SleepyClient(); }, kAlone);
Case sleepy1(
    "promoted_in_epoll_edge", [](int) { SleepyServer(1); },
    [](int) { SleepyClient(); }, kAlone);
Case sleepy2(
    "promoted_in_epoll_level", [](int) { SleepyServer(2); },
    [](int) { SleepyClient(); }, kAlone);
Case sleepy3(
    "promoted_in_select", [](int) { SleepyServer(3); },
    [](int) { SleepyClient(); }, kAlone);
Case sleepy4(
    "promoted_in_recv", [](int) { SleepyServer(4); },
    [](int) { SleepyClient(); }, kAlone);

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

// select() of as many numbers as there may be: the kernel looks no further than
// its table is large.
Case select_of_all(
    "select_of_all_numbers",
    [](int) {
      int port;
      const int listener = Listen(&port);
      Tell(port);
      const int fd = ::accept(listener, nullptr, nullptr);
      Warm(fd);
      Barrier();
      SendAll(fd, "abc", 3);
      Barrier();
    },
    [](int) {
      constexpr int kNumbers = 20'000;
      rlimit limit{};
      CHECK_THAT(::getrlimit(RLIMIT_NOFILE, &limit) == 0);
      limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, kNumbers);
      CHECK_THAT(::setrlimit(RLIMIT_NOFILE, &limit) == 0);
      const int fd = Connect(static_cast<int>(Hear()));
      Warm(fd);
      int ends[2];
      CHECK_THAT(::pipe(ends) == 0);
      static struct {
        fd_set set;
        unsigned char behind[16'384];
      } x;
      const auto look = [&](const char* what, int one, long us) {
        std::memset(x.behind, 0xff, sizeof x.behind);
        FD_ZERO(&x.set);
        FD_SET(one, &x.set);
        timeval time{us / 1'000'000, us % 1'000'000};
        Result(what, ::select(kNumbers, &x.set, nullptr, nullptr, &time));
        FD_ZERO(&x.set);
        FD_SET(one, &x.set);
        const timespec spec{us / 1'000'000, us % 1'000'000 * 1000};
        Result(what,
               ::pselect(kNumbers, &x.set, nullptr, nullptr, &spec, nullptr));
        long changed = 0;
        for (const unsigned char byte : x.behind) changed += byte != 0xff;
        Log("%ld bytes behind it changed", changed);
      };
      // (What is behind the set says that all is wanted, and is not open.)
      look("pipe", ends[0], 1000);
      look("stream", fd, 1000);
      Barrier();
      look("stream with bytes", fd, 5'000'000);
      CHECK_THAT(::write(ends[1], "x", 1) == 1);
      look("pipe with a byte", ends[0], 5'000'000);
      // A number past the usual set, in one that has room for it.
      const int high = ::fcntl(ends[0], F_DUPFD, 3000);
      if (high >= 0) {
        std::vector<unsigned long> large(kNumbers / 64 + 1);
        auto* const set = reinterpret_cast<fd_set*>(large.data());
        const auto mark = [&] {
          large[static_cast<std::size_t>(high) / 64] |= 1ul << high % 64;
        };
        mark();
        timeval now{0, 0};
        Result("high", ::select(high + 1, set, nullptr, nullptr, &now));
        Result("high", ::select(kNumbers, set, nullptr, nullptr, &now));
        ::close(high);
        mark();
        Result("closed", ::select(kNumbers, set, nullptr, nullptr, &now));
      }
      Barrier();
    },
    {.warm = false, .connect = false});

// Of waits in turn, each finds what the kernel has, too.
Case waits_in_turn(
    "waits_in_turn",
    [](int fd) {
      int ends[2];
      CHECK_THAT(::pipe(ends) == 0);
      CHECK_THAT(::write(ends[1], "x", 1) == 1);
      for (int others = 0; others < 4; ++others) {
        bool polled = false;
        bool selected = false;
        for (int i = 0; i < 4096; ++i) {
          pollfd two[2] = {{ends[0], POLLIN, 0}, {fd, POLLOUT, 0}};
          CHECK_THAT(::poll(two, 2, 1000) >= 1);
          polled = polled || two[0].revents == POLLIN;
          for (int k = 0; k < others; ++k) {
            pollfd other[2] = {{ends[1], POLLIN, 0}, {fd, POLLOUT, 0}};
            CHECK_THAT(::poll(other, 2, 1000) >= 1);
          }
          fd_set in, out;
          FD_ZERO(&in);
          FD_ZERO(&out);
          FD_SET(ends[0], &in);
          FD_SET(fd, &out);
          timeval time{1, 0};
          CHECK_THAT(::select(std::max(fd, ends[0]) + 1, &in, &out, nullptr,
                              &time) >= 1);
          selected = selected || FD_ISSET(ends[0], &in);
        }
        Log("%d others: %d %d", others, polled, selected);
      }
      Barrier();
    },
    [](int fd) {
      (void)fd;
      Barrier();
    });

// The variables of the thread that calls exit have had their end by then.
pollfd late[2];
Case late_poll(
    "poll_in_atexit",
    [](int fd) {
      Barrier();
      SendAll(fd, "late", 4);
      Barrier();
    },
    [](int fd) {
      // (Of two it sleeps otherwise than of one.)
      late[0] = {fd, POLLIN, 0};
      late[1] = {::dup(fd), POLLIN, 0};
      Result("poll", ::poll(late, 2, kQuiet));
      CHECK_THAT(
          std::atexit([] {
            Result("nothing", ::poll(late, 2, kQuiet));
            Barrier();
            // (One is looked at before the other.)
            Log("%d", ::poll(late, 2, kLong) > 0);
            Log("%x", static_cast<unsigned>(late[0].revents | late[1].revents));
            Barrier();
          }) == 0);
      ::exit(0);
    });

// The end lies behind what a read has taken that had room for more.
Case end_behind_a_read(
    "end_behind_a_read_with_room",
    [](int) {
      int port = 0;
      const int listener = Listen(&port);
      Tell(port);
      for (int i = 0; i < 20; ++i) {
        const int fd = ::accept(listener, nullptr, nullptr);
        CHECK_THAT(fd >= 0);
        Warm(fd);
        SendAll(fd, "behind", 6);
        ::shutdown(fd, SHUT_WR);
        Tell(0);
        char byte;
        CHECK_THAT(::recv(fd, &byte, 1, 0) == 0);
        ::close(fd);
      }
    },
    [](int) {
      const int port = static_cast<int>(Hear());
      constexpr std::uint32_t kEnd = EPOLLIN | EPOLLRDHUP;
      int by_epoll = 0;
      int by_poll = 0;
      for (int i = 0; i < 20; ++i) {
        const int fd = Connect(port);
        Warm(fd);
        const int set = NewSet();
        Ctl(set, EPOLL_CTL_ADD, fd, kEnd);
        Hear();
        char got[64];
        CHECK_THAT(::recv(fd, got, sizeof got, 0) == 6);
        epoll_event event{};
        pollfd one{fd, POLLIN | POLLRDHUP, 0};
        if (i % 2 == 0) {
          CHECK_THAT(::epoll_wait(set, &event, 1, kLong) == 1);
          by_epoll += event.events == kEnd;
        } else {
          CHECK_THAT(::poll(&one, 1, kLong) == 1);
          by_poll += one.revents == (POLLIN | POLLRDHUP);
        }
        ::close(set);
        ::close(fd);
      }
      Log("told of: %d %d", by_epoll, by_poll);
    },
    {.warm = false, .connect = false, .seconds = 60});

// Returns when a thread of this process sleeps.
void AwaitAsleep(pid_t thread) {
  char path[64];
  std::snprintf(path, sizeof path, "/proc/self/task/%d/stat",
                static_cast<int>(thread));
  for (;;) {
    std::FILE* const file = std::fopen(path, "r");
    CHECK_THAT(file != nullptr);
    char text[256] = {};
    CHECK_THAT(std::fread(text, 1, sizeof text - 1, file) > 0);
    std::fclose(file);
    const char* const name_end = std::strrchr(text, ')');
    CHECK_THAT(name_end != nullptr);
    if (name_end[2] == 'S') return;
    std::this_thread::yield();
  }
}

// A set that is closed while a thread sleeps in it is not the next set.
Case closed_under_a_wait(
    "set_closed_under_a_wait",
    [](int fd) {
      (void)fd;
      Barrier();
    },
    [](int fd) {
      const int set = NewSet();
      Ctl(set, EPOLL_CTL_ADD, fd, EPOLLIN);
      std::atomic<pid_t> waits{0};
      std::thread([&waits, set] {
        waits = ::gettid();
        epoll_event event;
        (void)::epoll_wait(set, &event, 1, -1);
        ::poll(nullptr, 0, -1);
      }).detach();
      while (waits == 0) std::this_thread::yield();
      AwaitAsleep(waits);
      ::close(set);
      // (Nor has the next one its number, if the thread has been woken since.)
      CHECK_THAT(::dup2(1, set) == set);
      const int next = NewSet();
      int ends[2];
      CHECK_THAT(::pipe(ends) == 0);
      Ctl(next, EPOLL_CTL_ADD, ends[0], EPOLLIN | EPOLLET);
      // (Naps end meanwhile.)
      ::poll(nullptr, 0, 50);
      CHECK_THAT(::write(ends[1], "x", 1) == 1);
      ::poll(nullptr, 0, 20);
      epoll_event event;
      Log("next set: %d", ::epoll_wait(next, &event, 1, kQuiet));
      Barrier();
      ::_exit(0);
    });

// The peer's end after one's own is that of the connection, and told as such in
// one report.
Case hup_at_once(
    "hup_with_the_end",
    [](int) {
      int port;
      const int listener = Listen(&port);
      Tell(port);
      for (int i = 0; i < 3; ++i) {
        const int fd = ::accept(listener, nullptr, nullptr);
        Warm(fd);
        char byte;
        Result("recv", ::recv(fd, &byte, 1, 0));
        Barrier();
        ::shutdown(fd, SHUT_WR);
        Barrier();
        Barrier();
        ::close(fd);
      }
    },
    [](int) {
      const int port = static_cast<int>(Hear());
      for (const std::uint32_t events :
           {std::uint32_t{EPOLLIN},
            EPOLLIN | static_cast<std::uint32_t>(EPOLLET),
            std::uint32_t{EPOLLIN | EPOLLRDHUP}}) {
        const int fd = Connect(port);
        Warm(fd);
        const int set = NewSet();
        CHECK_THAT(Ctl(set, EPOLL_CTL_ADD, fd, events) == 0);
        LogWait("quiet", set, 0);
        ::shutdown(fd, SHUT_WR);
        LogWait("shut", set, 0);
        Barrier();
        Barrier();
        // (It has come: see OnlyFin.)
        int bytes = 0;
        CHECK_THAT(::ioctl(fd, FIONREAD, &bytes) == 0);
        LogWait("end", set, kLong);
        Barrier();
        ::close(fd);
        ::close(set);
      }
    },
    {.warm = false, .connect = false});

// Room to write is no edge for who asks for input alone, though the peer's end
// is there all the time.
Case room_is_no_edge(
    "room_is_no_edge_of_input",
    [](int fd) {
      ::shutdown(fd, SHUT_WR);
      Barrier();
      std::vector<char> got(4 << 20);
      RecvAll(fd, got.data(), got.size());
      Barrier();
      Barrier();
    },
    [](int fd) {
      const int set = NewSet();
      CHECK_THAT(Ctl(set, EPOLL_CTL_ADD, fd,
                     EPOLLIN | static_cast<std::uint32_t>(EPOLLET)) == 0);
      Barrier();
      // (It has come: see OnlyFin.)
      int bytes = 0;
      CHECK_THAT(::ioctl(fd, FIONREAD, &bytes) == 0);
      LogWait("end", set, kLong);
      char byte;
      Result("recv", ::recv(fd, &byte, 1, 0));
      SkipEdges(set);
      SetNonblock(fd, true);
      const std::vector<char> all(4 << 20);
      SendAll(fd, all.data(), all.size());
      Barrier();
      int moves = 2;
      LogNoEdge("room", set, &moves);
      Barrier();
    });

// Room for one event, and one of two streams has something: it is told by each
// look, also where the other one has just been registered anew.
Case room_for_one(
    "room_for_one",
    [](int fd) {
      int port = 0;
      const int listener = Listen(&port);
      Tell(port);
      const int other = ::accept(listener, nullptr, nullptr);
      CHECK_THAT(other >= 0);
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
      const int other = Connect(static_cast<int>(Hear()));
      Warm(other);
      SendAll(fd, "a", 1);
      Barrier();
      Barrier();
      ::close(other);
    });

// The process may open nothing more when a stream that has left TCP comes to an
// epoll set which has had none.
Case set_at_the_limit(
    "set_at_the_limit",
    [](int fd) {
      int port = 0;
      const int listener = Listen(&port);
      Tell(port);
      const int other = ::accept(listener, nullptr, nullptr);
      CHECK_THAT(other >= 0);
      Warm(other);
      const int sets[2] = {NewSet(), NewSet()};
      CHECK_THAT(Ctl(sets[0], EPOLL_CTL_ADD, fd, EPOLLIN) == 0);
      rlimit before{};
      CHECK_THAT(::getrlimit(RLIMIT_NOFILE, &before) == 0);
      rlimit limit = before;
      limit.rlim_cur = 200;
      CHECK_THAT(::setrlimit(RLIMIT_NOFILE, &limit) == 0);
      std::vector<int> taken;
      for (int copy; (copy = ::dup(listener)) >= 0;) taken.push_back(copy);
      Log("dup: %s", ErrorName(errno));
      Result("add", Ctl(sets[1], EPOLL_CTL_ADD, other, EPOLLIN));
      Barrier();
      LogWait("its input", sets[1], kLong);
      LogWait("another's", sets[0], kLong);
      CHECK_THAT(::setrlimit(RLIMIT_NOFILE, &before) == 0);
      for (const int copy : taken) ::close(copy);
      for (const int set : sets) ::close(set);
      ::close(other);
      ::close(listener);
    },
    [](int fd) {
      const int other = Connect(static_cast<int>(Hear()));
      Warm(other);
      for (const int one : {fd, other}) SendAll(one, "a", 1);
      Barrier();
      ::close(other);
    });

// A pipe is always ready, and is told by each look that has room for one event,
// while streams come to the set and leave TCP.
Case room_beside_news(
    "room_beside_news",
    [](int) {
      int port = 0;
      const int listener = Listen(&port);
      Tell(port);
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

// A server that has room for one client: who comes when the one before has
// closed is not seen before that.
constexpr int kGuests = 30;

int StillThere(int listener, bool by_poll) {
  const int set = NewSet();
  Ctl(set, EPOLL_CTL_ADD, listener, EPOLLIN);
  int still = 0;
  std::vector<int> guests;
  for (int come = 0; come < kGuests;) {
    std::vector<int> ready;
    if (by_poll) {
      std::vector<pollfd> all = {{listener, POLLIN, 0}};
      for (const int guest : guests) all.push_back({guest, POLLIN, 0});
      CHECK_THAT(::poll(all.data(), all.size(), kLong) > 0);
      for (std::size_t i = all.size(); i-- > 0;) {
        if (all[i].revents != 0) ready.push_back(all[i].fd);
      }
    } else {
      epoll_event events[4];
      const int n = ::epoll_wait(set, events, 4, kLong);
      CHECK_THAT(n > 0);
      for (int i = 0; i < n; ++i) ready.push_back(events[i].data.fd);
    }
    // (In one report the kernel itself has them in any order.)
    std::stable_partition(ready.begin(), ready.end(),
                          [&](int fd) { return fd != listener; });
    for (const int fd : ready) {
      if (fd == listener) {
        if (!guests.empty()) ++still;
        guests.push_back(::accept(listener, nullptr, nullptr));
        CHECK_THAT(guests.back() >= 0);
        Warm(guests.back());
        Ctl(set, EPOLL_CTL_ADD, guests.back(), EPOLLIN);
        ++come;
        continue;
      }
      char byte;
      CHECK_THAT(::recv(fd, &byte, 1, 0) == 0);
      ::close(fd);
      std::erase(guests, fd);
    }
  }
  for (const int guest : guests) ::close(guest);
  ::close(set);
  return still;
}

Case one_at_a_time(
    "closed_before_the_next",
    [](int) {
      int port = 0;
      const int listener = Listen(&port);
      Tell(port);
      const int by_epoll = StillThere(listener, false);
      const int by_poll = StillThere(listener, true);
      // (Else some close while they are on their way to a lane: then the end
      // comes when they are there.  From another host it comes by TCP.)
      const char* warm = ::getenv("PAIR_WARM");
      const char* lanes = ::getenv("RCSOCK_LANES");
      const bool lane = warm != nullptr && std::strcmp(warm, "lane") == 0 &&
                        (lanes == nullptr || std::strcmp(lanes, "rdma") != 0);
      Log("still there: %d %d", lane ? by_epoll : 0, lane ? by_poll : 0);
    },
    [](int) {
      const int port = static_cast<int>(Hear());
      for (int i = 0; i < 2 * kGuests; ++i) {
        const int fd = Connect(port);
        Warm(fd);
        ::close(fd);
      }
    },
    {.warm = false, .connect = false, .seconds = 60});

}  // namespace
