// Sets of epoll that are waited for by others: inside another set, in poll,
// select and their kin, and by `syscall`.
#include <poll.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "tests/posix/pair.h"
#include "tests/posix/waiting.h"

namespace {

using namespace pair;

// More than the frames of a connection on a lane.
constexpr std::size_t kMessage = 2000;

// What has been promoted once stays on its lane.
class LaneKept {
 public:
  explicit LaneKept(int fd) : fd_(fd), before_(TcpBytes(fd)) {}
  ~LaneKept() {
    const char* warm = std::getenv("PAIR_WARM");
    const bool lane = warm != nullptr && std::strcmp(warm, "lane") == 0;
    Log("lane kept: %d", !lane || TcpBytes(fd_) < before_ + kMessage / 2);
  }

 private:
  const int fd_;
  const std::uint64_t before_;
};

// A message for each that is asked for; asked for past the connection.
void SendAsked(int fd) {
  for (std::int64_t n; (n = Hear()) > 0;) {
    static constexpr char kText[kMessage] = {};
    for (; n > 0; --n) SendAll(fd, kText, kMessage);
    Tell(0);
  }
}
void Ask(int count) {
  Tell(count);
  if (count > 0) Hear();
}

void Read(int fd, int count) {
  char text[kMessage];
  for (; count > 0; --count) RecvAll(fd, text, kMessage);
}

// `inner` is in the first of a chain of so many sets, each in the next.
std::vector<int> Chain(int inner, int depth, std::uint32_t events = EPOLLIN) {
  std::vector<int> sets;
  for (int i = 0; i < depth; ++i) {
    const int set = NewSet();
    CHECK_THAT(Ctl(set, EPOLL_CTL_ADD, inner, events) == 0);
    sets.push_back(set);
    inner = set;
  }
  return sets;
}

// The set is asked in each way.
enum class How {
  kEpoll,
  kPoll,
  kPpoll,
  kSelect,
  kPselect,
  kRawPoll,
  kRawEpoll
};
constexpr How kHows[] = {How::kEpoll,   How::kPoll,    How::kPpoll,
                         How::kSelect,  How::kPselect, How::kRawPoll,
                         How::kRawEpoll};

int WaitOnce(How how, int set, int outer, int timeout) {
  pollfd one{set, POLLIN, 0};
  fd_set in;
  FD_ZERO(&in);
  FD_SET(set, &in);
  timespec spec{timeout / 1000, timeout % 1000 * 1'000'000l};
  timeval val{timeout / 1000, timeout % 1000 * 1000l};
  epoll_event event{};
  switch (how) {
    case How::kEpoll:
      return ::epoll_wait(outer, &event, 1, timeout);
    case How::kPoll:
      return ::poll(&one, 1, timeout);
    case How::kPpoll:
      return ::ppoll(&one, 1, &spec, nullptr);
    case How::kSelect:
      return ::select(set + 1, &in, nullptr, nullptr, &val);
    case How::kPselect:
      return ::pselect(set + 1, &in, nullptr, nullptr, &spec, nullptr);
    case How::kRawPoll:
      return static_cast<int>(::syscall(SYS_poll, &one, 1, timeout));
    case How::kRawEpoll:
      return static_cast<int>(
          ::syscall(SYS_epoll_wait, outer, &event, 1, timeout));
  }
  return -1;
}

Case each_way(
    "nested_each_way", [](int fd) { SendAsked(fd); },
    [](int fd) {
      const int inner = NewSet();
      Ctl(inner, EPOLL_CTL_ADD, fd, EPOLLIN);
      const int outer = Chain(inner, 1)[0];
      {
        const LaneKept kept(fd);
        for (const How how : kHows) {
          Log("quiet %d", WaitOnce(how, inner, outer, kQuiet));
          Ask(1);
          Log("there %d", WaitOnce(how, inner, outer, kLong));
          Log("still %d", WaitOnce(how, inner, outer, 0));
          LogWait("inner", inner, 0);
          Log("untouched %d", WaitOnce(how, inner, outer, 0));
          Read(fd, 1);
          Log("read %d", WaitOnce(how, inner, outer, 0));
          // What is read without a wait of the set itself.
          Ask(2);
          Log("two %d", WaitOnce(how, inner, outer, kLong));
          Read(fd, 2);
          Log("read past it %d", WaitOnce(how, inner, outer, 0));
          LogWait("inner", inner, 0);
        }
      }
      Ask(0);
    });

// The kernel lets five sets be nested.
Case depths(
    "nested_depths", [](int fd) { SendAsked(fd); },
    [](int fd) {
      const int inner = NewSet();
      Ctl(inner, EPOLL_CTL_ADD, fd, EPOLLIN);
      const std::vector<int> sets = Chain(inner, 4);
      {
        const LaneKept kept(fd);
        for (int i = 0; i < 3; ++i) {
          for (const int set : sets) LogWait("quiet", set, 0);
          Ask(1);
          LogWait("outermost", sets.back(), kLong);
          for (const int set : sets) LogWait("each", set, 0);
          LogWait("inner", inner, 0);
          Read(fd, 1);
        }
      }
      Ask(0);
    });

// `depth`: of sets around the inner one; the last has the one before by edges.
void HearEdges(int fd, int depth) {
  constexpr auto kEdges = static_cast<std::uint32_t>(EPOLLET);
  const int inner = NewSet();
  Ctl(inner, EPOLL_CTL_ADD, fd, EPOLLIN);
  const int within = depth == 1 ? inner : Chain(inner, depth - 1).back();
  const int outer = Chain(within, 1, EPOLLIN | kEdges)[0];
  SkipEdges(outer);
  for (int i = 0; i < 3; ++i) {
    Ask(1);
    LogWait("edge", outer, kLong);
    SkipEdges(outer);
    // Each arrival is one, whatever has been read.
    Ask(1);
    LogWait("another", outer, kLong);
    SkipEdges(outer);
    LogWait("inner", inner, 0);
    Read(fd, 2);
    LogWait("no edge", outer, kQuiet);
  }
  Ask(0);
}

Case edges_outside(
    "nested_outer_by_edges", [](int fd) { SendAsked(fd); },
    [](int fd) { HearEdges(fd, 1); });

Case edges_far_outside(
    "nested_outermost_by_edges", [](int fd) { SendAsked(fd); },
    [](int fd) { HearEdges(fd, 3); });

// Who waits by edges comes to a set that others have waited for before, and
// that has something already.
Case edges_later(
    "nested_edges_that_come_later", [](int fd) { SendAsked(fd); },
    [](int fd) {
      const int inner = NewSet();
      Ctl(inner, EPOLL_CTL_ADD, fd, EPOLLIN);
      const int first = Chain(inner, 1)[0];
      Ask(1);
      LogWait("by level", first, kLong);
      const int outer =
          Chain(inner, 1, EPOLLIN | static_cast<std::uint32_t>(EPOLLET))[0];
      LogWait("there", outer, kLong);
      SkipEdges(outer);
      for (int i = 0; i < 3; ++i) {
        Ask(1);
        LogWait("edge", outer, kLong);
        SkipEdges(outer);
      }
      Read(fd, 4);
      LogWait("quiet", first, kQuiet);
      Ask(0);
    });

Case once_outside(
    "nested_outer_oneshot", [](int fd) { SendAsked(fd); },
    [](int fd) {
      const int inner = NewSet();
      Ctl(inner, EPOLL_CTL_ADD, fd, EPOLLIN);
      const int outer = Chain(inner, 1, EPOLLIN | EPOLLONESHOT)[0];
      const LaneKept kept(fd);
      for (int i = 0; i < 3; ++i) {
        LogWait("quiet", outer, kQuiet);
        Ask(1);
        LogWait("once", outer, kLong);
        Ask(1);
        LogWait("spent", outer, kQuiet);
        Ctl(outer, EPOLL_CTL_MOD, inner, EPOLLIN | EPOLLONESHOT);
        LogWait("armed again", outer, kLong);
        Read(fd, 2);
        Ctl(outer, EPOLL_CTL_MOD, inner, EPOLLIN | EPOLLONESHOT);
      }
      Ask(0);
    });

// The set is readable as long as a wait in it would tell something.
Case modes_inside(
    "nested_inner_by_edges_and_once", [](int fd) { SendAsked(fd); },
    [](int fd) {
      const int inner = NewSet();
      const int outer = Chain(inner, 1)[0];
      Ctl(inner, EPOLL_CTL_ADD, fd,
          EPOLLIN | static_cast<std::uint32_t>(EPOLLET));
      SkipEdges(inner);
      int moves = 2;
      for (int i = 0; i < 3; ++i) {
        LogWait("quiet", outer, kQuiet);
        Ask(1);
        LogWait("edge", outer, kLong);
        LogWait("still", outer, 0);
        LogWait("inner", inner, 0);
        // (A stream that leaves TCP makes one edge more.)
        while (std::getenv("PAIR_WARM") == nullptr && moves > 0 &&
               WaitOnce(How::kEpoll, inner, outer, kQuiet) == 1) {
          --moves;
          SkipEdges(inner);
        }
        LogWait("taken", outer, kQuiet);
        Read(fd, 1);
      }
      Ctl(inner, EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLONESHOT);
      for (int i = 0; i < 3; ++i) {
        LogWait("quiet", outer, kQuiet);
        Ask(1);
        LogWait("once", outer, kLong);
        LogWait("inner", inner, 0);
        LogWait("spent", outer, kQuiet);
        Ctl(inner, EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLONESHOT);
        LogWait("armed again", outer, kLong);
        LogWait("inner", inner, 0);
        Read(fd, 1);
        Ctl(inner, EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLONESHOT);
      }
      Ctl(inner, EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLOUT);
      LogWait("room", outer, kLong);
      LogWait("inner", inner, 0);
      Ctl(inner, EPOLL_CTL_DEL, fd, 0);
      LogWait("deleted", outer, kQuiet);
      Ask(0);
    });

// Each byte wakes who sleeps in the outermost, and no wake-up is lost.
Case asleep(
    "nested_asleep", [](int fd) { Call(fd, 1000); },
    [](int fd) {
      const int inner = NewSet();
      Ctl(inner, EPOLL_CTL_ADD, fd, EPOLLIN);
      const int outer = Chain(inner, 2)[1];
      const LaneKept kept(fd);
      int woken = 0;
      for (int i = 0; i < 1000; ++i) {
        epoll_event event{};
        woken += ::epoll_wait(outer, &event, 1, kLong);
        char text[16];
        RecvAll(fd, text, sizeof text);
        SendAll(fd, text, sizeof text);
      }
      Log("woken %d", woken);
    });

// Threads sleep in the set itself, in the one around it, and in poll.
Case threads(
    "nested_threads",
    [](int fd) {
      for (int i = 0; i < 60; ++i) {
        SendAll(fd, "x", 1);
        char byte;
        RecvAll(fd, &byte, 1);
      }
      Barrier();
    },
    [](int fd) {
      const int inner = NewSet();
      Ctl(inner, EPOLL_CTL_ADD, fd, EPOLLIN);
      const int outer = Chain(inner, 1)[0];
      int ends[2];
      CHECK_THAT(::pipe(ends) == 0);
      Ctl(inner, EPOLL_CTL_ADD, ends[0], EPOLLIN);
      std::atomic<int> heard{0};
      std::atomic<int> idle{0};
      const auto serve = [&](How how) {
        while (heard < 60) {
          epoll_event event{};
          const int n = how == How::kPselect
                            ? ::epoll_wait(inner, &event, 1, -1)
                            : WaitOnce(how, inner, outer, kLong);
          if (n == 0) ++idle;
          char byte;
          if (::recv(fd, &byte, 1, MSG_DONTWAIT) != 1) continue;
          if (++heard == 60) CHECK_THAT(::write(ends[1], "e", 1) == 1);
          SendAll(fd, &byte, 1);
        }
      };
      std::vector<std::thread> all;
      for (const How how :
           {How::kEpoll, How::kEpoll, How::kPoll, How::kPselect}) {
        all.emplace_back(serve, how);
      }
      for (auto& one : all) one.join();
      Log("heard %d, idle %d", heard.load(), idle.load());
      Barrier();
    });

// Others than streams on lanes, in the same set: each makes it readable.
Case beside_others(
    "nested_beside_others", [](int fd) { SendAsked(fd); },
    [](int fd) {
      const int inner = NewSet();
      int ends[2];
      CHECK_THAT(::pipe(ends) == 0);
      Ctl(inner, EPOLL_CTL_ADD, ends[0], EPOLLIN);
      const int outer = Chain(inner, 1)[0];
      Ctl(inner, EPOLL_CTL_ADD, fd, EPOLLIN);
      LogWait("quiet", outer, kQuiet);
      for (int i = 0; i < 3; ++i) {
        CHECK_THAT(::write(ends[1], "p", 1) == 1);
        LogWait("pipe", outer, kLong);
        epoll_event event{};
        Log("inner %d, is the pipe %d", ::epoll_wait(inner, &event, 1, 0),
            event.data.fd == ends[0]);
        char byte;
        CHECK_THAT(::read(ends[0], &byte, 1) == 1);
        LogWait("quiet", outer, kQuiet);
        Ask(1);
        LogWait("stream", outer, kLong);
        Log("inner %d, is the stream %d", ::epoll_wait(inner, &event, 1, 0),
            event.data.fd == fd);
        CHECK_THAT(::write(ends[1], "p", 1) == 1);
        // Both are told soon, also where there is room for one.
        for (const int room : {1, 4}) {
          bool seen[2] = {};
          const auto until = NowMs() + kLong;
          while (!(seen[0] && seen[1]) && NowMs() < until) {
            epoll_event both[4];
            const int n = ::epoll_wait(inner, both, room, 0);
            for (int k = 0; k < n; ++k) seen[both[k].data.fd == fd] = true;
          }
          Log("stream %d, pipe %d", seen[1], seen[0]);
        }
        Read(fd, 1);
        LogWait("pipe", outer, 0);
        CHECK_THAT(::read(ends[0], &byte, 1) == 1);
        LogWait("quiet", outer, kQuiet);
      }
      Ask(0);
    });

Case its_end(
    "nested_end",
    [](int fd) {
      Barrier();
      SendAll(fd, "x", 1);
      ::shutdown(fd, SHUT_WR);
      Barrier();
    },
    [](int fd) {
      const int inner = NewSet();
      Ctl(inner, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLRDHUP);
      const int outer = Chain(inner, 1)[0];
      LogWait("quiet", outer, kQuiet);
      Barrier();
      LogWait("there", outer, kLong);
      char byte;
      RecvAll(fd, &byte, 1);
      LogWait("end", outer, kLong);
      LogEnd("inner", inner, fd);
      Result("recv", ::recv(fd, &byte, 1, 0));
      LogWait("stays", outer, 0);
      ::close(fd);
      LogWait("closed", outer, kQuiet);
      Barrier();
    });

// A set whose object has had streams on lanes in another life, and has had none
// since: all that a wait tells is the program's.
Case unread_in_it(
    "nested_unread_bytes_in_a_new_set", [](int fd) { SendAsked(fd); },
    [](int fd) {
      const int before = NewSet();
      Ctl(before, EPOLL_CTL_ADD, fd, EPOLLIN);
      LogWait("quiet", before, kQuiet);
      ::close(before);
      const int inner = NewSet();
      const int outer = Chain(inner, 1)[0];
      LogWait("empty", outer, 0);
      Ask(1);
      pollfd one{fd, POLLIN, 0};
      Log("there %d", ::poll(&one, 1, kLong));
      StayOnTcp(fd);
      Ctl(inner, EPOLL_CTL_ADD, fd, EPOLLIN);
      for (int i = 0; i < 3; ++i) {
        LogWait("outer", outer, kLong);
        epoll_event events[4];
        const int n = ::epoll_wait(inner, events, 4, kLong);
        Log("inner %d, the stream's %d", n, n > 0 && events[0].data.fd == fd);
      }
      Read(fd, 1);
      LogWait("quiet", outer, kQuiet);
      Ask(0);
    });

// A set whose object has had streams on lanes in another life, and has had none
// since: all that a wait tells is the program's.
Case failed_in_it(
    "nested_failed_stream_in_a_new_set",
    [](int fd) {
      Barrier();
      const linger hard{1, 0};
      ::setsockopt(fd, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
      ::close(fd);
      Barrier();
    },
    [](int fd) {
      const int before = NewSet();
      Ctl(before, EPOLL_CTL_ADD, fd, EPOLLIN);
      LogWait("quiet", before, kQuiet);
      ::close(before);
      const int inner = NewSet();
      const int outer = Chain(inner, 1)[0];
      LogWait("empty", outer, 0);
      Barrier();
      AwaitPoll(fd, POLLIN, POLLERR | POLLHUP);
      // (The stream goes back to TCP with the error that it has been told.)
      const pid_t child = ::fork();
      if (child == 0) ::_exit(0);
      LogChild(child);
      Ctl(inner, EPOLL_CTL_ADD, fd, EPOLLIN);
      for (int i = 0; i < 3; ++i) {
        LogWait("outer", outer, kLong);
        epoll_event events[4];
        const int n = ::epoll_wait(inner, events, 4, kLong);
        Log("inner %d, the stream's %d", n, n > 0 && events[0].data.fd == fd);
      }
      Barrier();
    });

// The set becomes another's member while a thread sleeps in it.
Case as_it_sleeps(
    "nested_while_a_thread_sleeps",
    [](int fd) {
      Barrier();
      SendAll(fd, "x", 1);
      Barrier();
    },
    [](int fd) {
      const int inner = NewSet();
      Ctl(inner, EPOLL_CTL_ADD, fd, EPOLLIN);
      std::atomic<pid_t> waits{0};
      std::thread waiter([&] {
        waits = ::gettid();
        LogWait("inner", inner, kLong);
      });
      while (waits == 0) std::this_thread::yield();
      AwaitAsleep(::getpid(), waits);
      const int outer = Chain(inner, 1)[0];
      LogWait("quiet", outer, kQuiet);
      Barrier();
      waiter.join();
      LogWait("outer", outer, kLong);
      char byte;
      RecvAll(fd, &byte, 1);
      LogWait("quiet", outer, kQuiet);
      Barrier();
    });

// A child has both sets; its parent goes on with the connection when the child
// has closed it.
Case shared(
    "nested_shared_by_fork",
    [](int fd) {
      Call(fd, 20);
      Barrier();
      Call(fd, 200);
    },
    [](int fd) {
      const int inner = NewSet();
      Ctl(inner, EPOLL_CTL_ADD, fd, EPOLLIN);
      const int outer = Chain(inner, 1)[0];
      const auto answer = [&](int count) {
        int woken = 0;
        for (int i = 0; i < count; ++i) {
          epoll_event event{};
          woken += ::epoll_wait(outer, &event, 1, kLong);
          woken += ::epoll_wait(inner, &event, 1, 0);
          char text[16];
          RecvAll(fd, text, sizeof text);
          SendAll(fd, text, sizeof text);
        }
        return woken;
      };
      int stop[2];
      CHECK_THAT(::pipe(stop) == 0);
      const pid_t child = ::fork();
      if (child == 0) {
        ::close(stop[1]);
        const int woken = answer(20);
        ::close(fd);
        char byte;
        (void)!::read(stop[0], &byte, 1);
        ::_exit(woken == 40 ? 0 : 1);
      }
      Barrier();
      Log("woken %d", answer(200));
      ::close(stop[1]);
      LogChild(child);
      LogWait("quiet", outer, kQuiet);
    });

}  // namespace
