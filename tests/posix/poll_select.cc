// poll and select, and descriptors of other kinds beside a connection.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "tests/posix/pair.h"
#include "tests/posix/waiting.h"

namespace {

using namespace pair;

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

// A look without waiting is complete each time, however lately the kernel was
// asked.
Case mere_look(
    "mere_look",
    [](int fd) {
      SendAll(fd, "never read", 10);
      Barrier();
      Barrier();
    },
    [](int fd) {
      Barrier();
      pollfd input{fd, POLLIN, 0};
      CHECK_THAT(::poll(&input, 1, -1) == 1);
      int pipe_fds[2];
      CHECK_THAT(::pipe(pipe_fds) == 0);
      const int from = pipe_fds[0];
      int polled = 0;
      int selected = 0;
      for (int i = 0; i < 1000; ++i) {
        pollfd fds[2] = {{fd, POLLIN, 0}, {from, POLLIN, 0}};
        // (Who waits need not ask the kernel again at once.)
        CHECK_THAT(::poll(fds, 2, -1) == 1);
        char byte = 'p';
        if (i % 2 == 0) CHECK_THAT(::write(pipe_fds[1], &byte, 1) == 1);
        const int ready = i % 2 == 0 ? 2 : 1;
        polled += ::poll(fds, 2, 0) == ready ? 1 : 0;
        fd_set in;
        FD_ZERO(&in);
        FD_SET(fd, &in);
        FD_SET(from, &in);
        timeval now{0, 0};
        const int n =
            ::select(std::max(fd, from) + 1, &in, nullptr, nullptr, &now);
        selected += n == ready ? 1 : 0;
        if (i % 2 == 0) CHECK_THAT(::read(from, &byte, 1) == 1);
      }
      Log("complete: %d and %d of 1000", polled, selected);
      ::close(from);
      ::close(pipe_fds[1]);
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

// select() of as many numbers as there may be: the kernel looks no further than
// its table is large.
Case select_of_all(
    "select_of_all_numbers",
    [](int) {
      const int listener = ListenAndTell();
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
      const int fd = Connect(HearPort());
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
        for (int i = 0; i < 4096 && !(polled && selected); ++i) {
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

}  // namespace
