// Sets of epoll: several of one connection, copied, passed on, nested, closed.
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/uio.h>
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
      AwaitAsleep(::getpid(), waits);
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

// A thread sleeps in a set; a signal for it comes together with the set's first
// stream: the call that it sleeps in ends by the signal.
Case signal_as_a_stream_comes(
    "set_signal_as_a_stream_comes",
    [](int fd) {
      (void)fd;
      Barrier();
    },
    [](int fd) {
      constexpr int kRounds = 50;
      struct sigaction action {};
      action.sa_handler = [](int) {};
      CHECK_THAT(::sigaction(SIGUSR1, &action, nullptr) == 0);
      const int set = NewSet();
      std::atomic<pid_t> waits{0};
      std::atomic<int> back{0};
      std::atomic<int> interrupted{0};
      std::thread waiter([&] {
        waits = ::gettid();
        for (int i = 0; i < kRounds; ++i) {
          epoll_event event;
          const int n = ::epoll_wait(set, &event, 1, -1);
          if (n == -1 && errno == EINTR) ++interrupted;
          ++back;
        }
      });
      while (waits == 0) std::this_thread::yield();
      for (int i = 0; i < kRounds; ++i) {
        AwaitAsleep(::getpid(), waits);
        Ctl(set, EPOLL_CTL_ADD, fd, EPOLLIN);
        CHECK_THAT(::pthread_kill(waiter.native_handle(), SIGUSR1) == 0);
        while (back == i) std::this_thread::yield();
        Ctl(set, EPOLL_CTL_DEL, fd, 0);
      }
      waiter.join();
      Log("interrupted %d of %d", interrupted.load(), kRounds);
      ::close(set);
      Barrier();
    });

// The process may open nothing more when a stream that has left TCP comes to an
// epoll set which has had none.
Case set_at_the_limit(
    "set_at_the_limit",
    [](int fd) {
      const int listener = ListenAndTell();
      const int other = Accept(listener);
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
      const int other = Connect(HearPort());
      Warm(other);
      for (const int one : {fd, other}) SendAll(one, "a", 1);
      Barrier();
      ::close(other);
    });

// A client that writes to one connection and then to another, while the server
// sleeps, finds that it has been heard in this order: the kernel tells of what
// has come since a set was empty by when it came.
constexpr int kHeard = 4;

// All that it hears it answers by how much it has heard.
void AnswerByTurns(int set, int open) {
  std::int32_t turn = 0;
  while (open > 0) {
    epoll_event events[2 * kHeard];
    const int n = ::epoll_wait(set, events, 2 * kHeard, -1);
    CHECK_THAT(n > 0 || (n < 0 && errno == EINTR));
    for (int i = 0; i < n; ++i) {
      char byte;
      if (::recv(events[i].data.fd, &byte, 1, 0) != 1) {
        ::close(events[i].data.fd);
        --open;
        continue;
      }
      ++turn;
      SendAll(events[i].data.fd, &turn, sizeof turn);
    }
  }
}

bool HeardInOrder(int first, int then) {
  std::int32_t turns[2];
  RecvAll(first, &turns[0], sizeof turns[0]);
  RecvAll(then, &turns[1], sizeof turns[1]);
  return turns[0] < turns[1];
}

Case order_of_coming(
    "told_in_the_order_of_coming",
    [](int) {
      const int listener = ListenAndTell();
      const int set = NewSet();
      for (int i = 0; i < kHeard; ++i) {
        const int fd = Accept(listener);
        Warm(fd);
        Ctl(set, EPOLL_CTL_ADD, fd, EPOLLIN);
      }
      Tell(::getpid());
      // From here on it sleeps in epoll_wait alone.
      AnswerByTurns(set, kHeard);
    },
    [](int) {
      const int port = HearPort();
      int fds[kHeard];
      for (int& fd : fds) {
        fd = Connect(port);
        Warm(fd);
      }
      const auto server = static_cast<pid_t>(Hear());
      int wrong = 0;
      for (int first = 0; first < kHeard; ++first) {
        for (int step = 1; step < kHeard; ++step) {
          const int then = (first + step) % kHeard;
          AwaitAsleep(server, server);
          Stop(server);
          SendAll(fds[first], "a", 1);
          SendAll(fds[then], "b", 1);
          CHECK_THAT(::kill(server, SIGCONT) == 0);
          if (!HeardInOrder(fds[first], fds[then])) ++wrong;
        }
      }
      Log("out of order: %d", OnLanesInMemory() ? wrong : 0);
      for (const int fd : fds) ::close(fd);
    },
    {.warm = false, .connect = false});

// The same of a connection that leaves TCP and another that stays there.
//
// The server of the first is stopped while it sleeps; that of the second
// sleeps, and does not run before both have been written to, since it has the
// client's processor; that of the third may be awake, and looks all the time.
// So does the last, which has heard nothing for a while before that.
enum class Hears { kStopped, kAsleep, kAwake, kAgain };

void ShareProcessor(int processor) {
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(processor, &one);
  CHECK_THAT(::sched_setaffinity(0, sizeof one, &one) == 0);
}

void HearBoth(Hears how) {
  const int listener = ListenAndTell();
  const int set = NewSet();
  const int leaves = Accept(listener);
  Warm(leaves);
  const int beside = Accept(listener);
  Warm(beside);
  const int stays = Accept(listener);
  StayOnTcp(stays);
  for (const int fd : {leaves, beside, stays}) {
    Ctl(set, EPOLL_CTL_ADD, fd, EPOLLIN);
  }
  Tell(::getpid());
  if (how == Hears::kAsleep) {
    // (Who is woken so does not take the waker's place.)
    const sched_param none{};
    CHECK_THAT(::sched_setscheduler(0, SCHED_BATCH, &none) == 0);
    ShareProcessor(static_cast<int>(Hear()));
  }
  AnswerByTurns(set, 3);
  ::close(set);
  ::close(listener);
}

void WriteToBoth(Hears how, int rounds) {
  const int port = HearPort();
  const int leaves = Connect(port);
  Warm(leaves);
  const int beside = Connect(port);
  Warm(beside);
  const int stays = Connect(port);
  StayOnTcp(stays);
  const auto server = static_cast<pid_t>(Hear());
  if (how == Hears::kAsleep) {
    const int processor = ::sched_getcpu();
    ShareProcessor(processor);
    Tell(processor);
  }
  if (how == Hears::kAgain) {
    ::poll(nullptr, 0, 1500);
    for (const int fd : {beside, stays}) {
      std::int32_t turn;
      SendAll(fd, "c", 1);
      RecvAll(fd, &turn, sizeof turn);
    }
  }
  int wrong[2] = {};
  for (int i = 0; i < rounds; ++i) {
    const bool tcp_first = i % 2 == 0;
    const int first = tcp_first ? stays : leaves;
    const int then = tcp_first ? leaves : stays;
    if (how == Hears::kAwake || how == Hears::kAgain) {
      // What the set was told of before is done with: the kernel itself tells
      // that in its old place when it comes again before the next wait.
      std::int32_t turn;
      SendAll(beside, "c", 1);
      RecvAll(beside, &turn, sizeof turn);
    } else {
      AwaitAsleep(server, server);
    }
    if (how == Hears::kStopped) Stop(server);
    SendAll(first, "a", 1);
    SendAll(then, "b", 1);
    if (how == Hears::kStopped) CHECK_THAT(::kill(server, SIGCONT) == 0);
    if (!HeardInOrder(first, then)) ++wrong[i % 2];
  }
  // On a busy machine either may lose its processor between two looks.
  for (const bool tcp_first : {true, false}) {
    const int n = wrong[tcp_first ? 0 : 1];
    const bool most = !OnLanesInMemory() || n <= rounds / 2 / 5;
    Log("%s first: %s", tcp_first ? "TCP" : "lane",
        most ? "in order" : std::to_string(n).c_str());
  }
  for (const int fd : {leaves, beside, stays}) ::close(fd);
}

Case order_when_stopped(
    "with_tcp_in_the_order_of_coming_when_stopped",
    [](int) { HearBoth(Hears::kStopped); },
    [](int) { WriteToBoth(Hears::kStopped, 40); },
    {.warm = false, .connect = false});

Case order_when_asleep(
    "with_tcp_in_the_order_of_coming_when_asleep",
    [](int) { HearBoth(Hears::kAsleep); },
    [](int) { WriteToBoth(Hears::kAsleep, 100); },
    {.warm = false, .connect = false});

Case order_when_awake(
    "with_tcp_in_the_order_of_coming_when_awake",
    [](int) { HearBoth(Hears::kAwake); },
    [](int) { WriteToBoth(Hears::kAwake, 1000); },
    {.warm = false, .connect = false});

Case order_again(
    "with_tcp_in_the_order_of_coming_behind_a_silence",
    [](int) { HearBoth(Hears::kAgain); },
    [](int) { WriteToBoth(Hears::kAgain, 1000); },
    {.warm = false, .connect = false});

// The same of a server that works, in no wait, while the clients write.
//
// It has heard 'w' and works for a while.  Behind that it looks without waiting
// until it finds nothing, with room for `room` events.
constexpr int kWorkMs = 60;

void AnswerBehindWork(int set, int open, int room) {
  std::int32_t turn = 0;
  for (bool looks = false; open > 0;) {
    epoll_event events[2 * kHeard];
    const int n = ::epoll_wait(set, events, room, looks ? 0 : -1);
    CHECK_THAT(n >= 0 || errno == EINTR);
    if (n == 0) looks = false;
    for (int i = 0; i < n; ++i) {
      const int fd = events[i].data.fd;
      char byte;
      ssize_t got;
      while ((got = ::recv(fd, &byte, 1, MSG_DONTWAIT)) == 1) {
        if (byte == 'w') {
          looks = true;
          Tell(0);
          ::poll(nullptr, 0, kWorkMs);
        } else {
          ++turn;
          SendAll(fd, &turn, sizeof turn);
        }
      }
      if (got == 0) {
        ::close(fd);
        --open;
      }
    }
  }
}

// Of these streams the last one stays on TCP, if `tcp`.
void HearBehindWork(bool tcp, int room, std::uint32_t events) {
  const int listener = ListenAndTell();
  const int set = NewSet();
  for (int i = 0; i < kHeard; ++i) {
    const int fd = Accept(listener);
    tcp&& i == kHeard - 1 ? StayOnTcp(fd) : Warm(fd);
    Ctl(set, EPOLL_CTL_ADD, fd, events);
  }
  Tell(0);
  AnswerBehindWork(set, kHeard, room);
}

void WriteBehindWork(bool tcp) {
  constexpr int kRounds = 8;
  const int port = HearPort();
  int fds[kHeard];
  for (int i = 0; i < kHeard; ++i) {
    fds[i] = Connect(port);
    tcp&& i == kHeard - 1 ? StayOnTcp(fds[i]) : Warm(fds[i]);
  }
  Hear();
  int wrong = 0;
  for (int i = 0; i < kRounds; ++i) {
    // Two of the lanes, or one and the stream on TCP.
    const int one = tcp ? kHeard - 1 : 1 + i % (kHeard - 1);
    const int other = tcp ? 1 : one % (kHeard - 1) + 1;
    const int first = fds[i % 2 == 0 ? one : other];
    const int then = fds[i % 2 == 0 ? other : one];
    SendAll(fds[0], "w", 1);
    Hear();
    ::poll(nullptr, 0, kWorkMs / 2);
    SendAll(first, "a", 1);
    SendAll(then, "b", 1);
    if (!HeardInOrder(first, then)) ++wrong;
  }
  // (A machine may be too busy to see within kWorkMs / 2 that the server
  // works.)
  const bool most = !OnLanesInMemory() || wrong <= kRounds / 4;
  Log("%s", most ? "in order" : std::to_string(wrong).c_str());
  for (const int fd : fds) ::close(fd);
}

constexpr auto kEdges = static_cast<std::uint32_t>(EPOLLET);

Case lanes_behind_work(
    "in_the_order_of_coming_behind_work",
    [](int) { HearBehindWork(false, 2 * kHeard, EPOLLIN); },
    [](int) { WriteBehindWork(false); }, {.warm = false, .connect = false});

Case lanes_behind_work_by_edges(
    "in_the_order_of_coming_behind_work_by_edges",
    [](int) { HearBehindWork(false, 2 * kHeard, EPOLLIN | EPOLLOUT | kEdges); },
    [](int) { WriteBehindWork(false); }, {.warm = false, .connect = false});

Case lanes_behind_work_one_by_one(
    "in_the_order_of_coming_behind_work_one_by_one",
    [](int) { HearBehindWork(false, 1, EPOLLIN); },
    [](int) { WriteBehindWork(false); }, {.warm = false, .connect = false});

Case with_tcp_behind_work(
    "with_tcp_in_the_order_of_coming_behind_work",
    [](int) { HearBehindWork(true, 2 * kHeard, EPOLLIN); },
    [](int) { WriteBehindWork(true); }, {.warm = false, .connect = false});

}  // namespace
