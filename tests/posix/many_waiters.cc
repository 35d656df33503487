// Several threads that wait at once: in one epoll set, or each in poll().
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "tests/posix/pair.h"

namespace {

using namespace pair;

// Many threads in one set: each message is taken once.
void ManyWaiters(int fd, std::uint32_t flags) {
  SetNonblock(fd, true);
  const int set = ::epoll_create1(0);
  epoll_event event{};
  event.events = EPOLLIN | flags;
  event.data.fd = fd;
  CHECK_THAT(::epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
  std::atomic<int> got{0};
  std::atomic<bool> stop{false};
  std::atomic<int> inside{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      while (!stop) {
        epoll_event one{};
        const int n = ::epoll_wait(set, &one, 1, 100);
        if (n != 1) continue;
        // One report, one thread, until it is armed again.
        const bool alone = inside++ == 0;
        CHECK_THAT(alone || (flags & EPOLLONESHOT) == 0);
        char byte;
        while (::recv(fd, &byte, 1, 0) == 1) {
          ++got;
          SendAll(fd, &byte, 1);
        }
        --inside;
        if (flags & EPOLLONESHOT) {
          epoll_event again{};
          again.events = EPOLLIN | flags;
          ::epoll_ctl(set, EPOLL_CTL_MOD, fd, &again);
        }
      }
    });
  }
  Barrier();
  stop = true;
  for (auto& one : threads) one.join();
  Log("%d messages", got.load());
}

void FeedWaiters(int fd) {
  const int messages = Scale(2000);
  for (int i = 0; i < messages; ++i) {
    char byte = 'x';
    SendAll(fd, &byte, 1);
    RecvAll(fd, &byte, 1);
  }
  Barrier();
}

Case waiters_edge(
    "waiters_edge", [](int fd) { ManyWaiters(fd, EPOLLET); }, FeedWaiters);
Case waiters_once(
    "waiters_oneshot", [](int fd) { ManyWaiters(fd, EPOLLONESHOT); },
    FeedWaiters);

// A connection that three threads wait for, each time for one report.
struct Flow {
  int fd = -1;
  std::atomic<bool> told{false};

  void Arm(int set, int op) {
    epoll_event event{};
    event.events = EPOLLIN | EPOLLONESHOT;
    event.data.ptr = this;
    CHECK_THAT(::epoll_ctl(set, op, fd, &event) == 0);
  }
};

void AcceptAll(int listener, int set, std::vector<Flow>* flows) {
  for (Flow& flow : *flows) {
    flow.fd = Accept(listener);
    flow.Arm(set, EPOLL_CTL_ADD);
  }
}

// Echoes what comes until `count` connections have ended.
class OnceEcho {
 public:
  OnceEcho(int set, int count) : set_(set), open_(count) {
    for (auto& one : threads_) one = std::thread([this] { Run(); });
  }
  void End() {
    for (auto& one : threads_) one.join();
    Log("%d told twice, %d in vain", twice_.load(), vain_.load());
  }

 private:
  void Run() {
    while (open_ > 0) {
      epoll_event events[16];
      const int n = ::epoll_wait(set_, events, 16, 100);
      for (int k = 0; k < n; ++k) Echo(static_cast<Flow*>(events[k].data.ptr));
    }
  }
  void Echo(Flow* flow) {
    if (flow->told.exchange(true)) ++twice_;
    char text[16];
    const ssize_t got = ::recv(flow->fd, text, sizeof text, MSG_DONTWAIT);
    if (got == 0) {
      --open_;
      return;  // and stays told
    }
    if (got < 0) ++vain_;
    if (got > 0) SendAll(flow->fd, text, sizeof text);
    flow->told = false;
    flow->Arm(set_, EPOLL_CTL_MOD);
  }

  const int set_;
  std::atomic<int> open_;
  std::atomic<int> twice_{0};
  std::atomic<int> vain_{0};
  std::thread threads_[3];
};

void TalkRounds(const std::vector<int>& fds, int rounds) {
  for (int round = 0; round < rounds; ++round) {
    char text[16] = "abcdefghijklmno";
    for (const int fd : fds) SendAll(fd, text, sizeof text);
    for (const int fd : fds) RecvAll(fd, text, sizeof text);
  }
}

// So many that the kernel is asked about several of them together when they
// leave it for a lane.
const int kOnceMany = std::max(40, Scale(600));
Case waiters_once_many(
    "waiters_oneshot_many",
    [](int) {
      const int listener = ListenAndTell();
      const int set = ::epoll_create1(0);
      std::vector<Flow> flows(static_cast<std::size_t>(kOnceMany));
      AcceptAll(listener, set, &flows);
      OnceEcho echo(set, kOnceMany);
      echo.End();
    },
    [](int) {
      const int port = HearPort();
      std::vector<int> fds;
      for (int i = 0; i < kOnceMany; ++i) fds.push_back(Connect(port));
      TalkRounds(fds, 40);
      for (const int fd : fds) ::close(fd);
      Log("done");
    },
    {.warm = false, .connect = false, .seconds = 120});

// They end as they take their lanes, or soon after.
const int kOnceShort = std::max(40, Scale(400));
Case waiters_once_short(
    "waiters_oneshot_short",
    [](int) {
      const int listener = ListenAndTell();
      const int set = ::epoll_create1(0);
      std::vector<Flow> flows(static_cast<std::size_t>(kOnceShort));
      OnceEcho echo(set, kOnceShort);
      AcceptAll(listener, set, &flows);
      echo.End();
    },
    [](int) {
      const int port = HearPort();
      constexpr int kTogether = 20;
      for (int i = 0; i < kOnceShort; i += kTogether) {
        std::vector<int> fds;
        for (int k = 0; k < kTogether; ++k) fds.push_back(Connect(port));
        TalkRounds(fds, 1 + i / kTogether % 8);
        for (const int fd : fds) ::close(fd);
      }
      Log("done");
    },
    {.warm = false, .connect = false, .seconds = 120});

Case waiters_level(
    "waiters_level", [](int fd) { ManyWaiters(fd, 0); }, FeedWaiters);

// Two threads wait for one connection, level-triggered.  Who is told of it does
// not read (in the other rounds: reads only a part): then the other one is told
// as well, at once.
constexpr int kLeftRounds = 24;
Case left_behind(
    "epoll_level_left_behind",
    [](int fd) {
      const int set = ::epoll_create1(0);
      epoll_event event{};
      event.events = EPOLLIN;
      CHECK_THAT(::epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
      pthread_barrier_t turn;
      CHECK_THAT(::pthread_barrier_init(&turn, nullptr, 3) == 0);
      std::atomic<int> told{0};
      std::atomic<int> missed{0};
      std::vector<std::thread> threads;
      for (int t = 0; t < 2; ++t) {
        threads.emplace_back([&] {
          for (int round = 0; round < kLeftRounds; ++round) {
            ::pthread_barrier_wait(&turn);
            epoll_event one{};
            if (::epoll_wait(set, &one, 1, missed == 0 ? 5000 : 10) != 1) {
              ++missed;
            } else {
              ++told;
              char byte;
              if (round % 2 == 1) RecvAll(fd, &byte, 1);
            }
            ::pthread_barrier_wait(&turn);
          }
        });
      }
      for (int round = 0; round < kLeftRounds; ++round) {
        ::pthread_barrier_wait(&turn);
        Barrier();
        ::pthread_barrier_wait(&turn);
        char rest[2];
        while (::recv(fd, rest, sizeof rest, MSG_DONTWAIT) > 0) {
        }
        SendAll(fd, rest, 1);
      }
      for (auto& one : threads) one.join();
      Log("%s", missed == 0 ? "both were told" : "one slept on");
      ::close(set);
    },
    [](int fd) {
      for (int round = 0; round < kLeftRounds; ++round) {
        Barrier();
        // (Longer than anybody spins.)
        ::poll(nullptr, 0, 5);
        SendAll(fd, "xy", 2);
        char done;
        RecvAll(fd, &done, 1);
      }
    },
    {.seconds = 60});

// --- Several threads sleep in one set, since before its first connection has
// left the kernel.  Each must be there for the next message, however few of
// them were told of that.

constexpr int kHands = 4;

void HandAnswer(int fd, std::atomic<int>* held) {
  char what = 0;
  // (Two may be told of one byte.)
  if (::recv(fd, &what, 1, MSG_DONTWAIT) != 1) return;
  if (what == 'h') held->fetch_add(1);
  SendAll(fd, &what, 1);
  // Until all the others have something to do, too.
  while (what == 'h' && held->load() < kHands) ::poll(nullptr, 0, 1);
  if (what == 'g') held->store(kHands);
}

// A byte there and back.
void AskHand(int fd, char what) {
  SendAll(fd, &what, 1);
  char got = 0;
  RecvAll(fd, &got, 1);
  CHECK_THAT(got == what);
}

// As Warm does, whose other end is no event loop.
void WarmHands(int fd, int other) {
  const char* warm = std::getenv("PAIR_WARM");
  const bool lane = warm != nullptr && std::strcmp(warm, "lane") == 0;
  const std::uint64_t start = NowMs();
  std::uint64_t before = 0;
  for (int still = 0, round = 0; lane ? still < 3 : round < 10; ++round) {
    for (int i = 0; i < 10; ++i) {
      AskHand(fd, '.');
      AskHand(other, '.');
    }
    const std::uint64_t now = TcpBytes(fd) + TcpBytes(other);
    still = now == before ? still + 1 : 0;
    before = now;
    if (lane && NowMs() - start > 10'000) Fail("still on TCP");
  }
}

void ServeHands(int listener) {
  int fds[2];
  for (int& fd : fds) {
    fd = Accept(listener);
  }
  const int set = ::epoll_create1(EPOLL_CLOEXEC);
  const int end = ::eventfd(0, EFD_CLOEXEC);
  for (const int one : {fds[0], fds[1], end}) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = one;
    CHECK_THAT(::epoll_ctl(set, EPOLL_CTL_ADD, one, &event) == 0);
  }
  std::atomic<int> held{0};
  std::vector<std::thread> hands;
  for (int i = 0; i < kHands; ++i) {
    hands.emplace_back([&held, end, set] {
      for (;;) {
        epoll_event event{};
        CHECK_THAT(::epoll_wait(set, &event, 1, -1) == 1);
        if (event.data.fd == end) return;
        HandAnswer(event.data.fd, &held);
      }
    });
  }
  Barrier();
  Barrier();
  const std::uint64_t one = 1;
  CHECK_THAT(::write(end, &one, sizeof one) == sizeof one);
  for (std::thread& hand : hands) hand.join();
  for (const int fd : {fds[0], fds[1], end, set}) ::close(fd);
}

void AskHands(int port) {
  const int fd = Connect(port);
  const int other = Connect(port);
  Barrier();
  // One thread serves all this, mostly, and both connections leave TCP.
  WarmHands(fd, other);
  for (int i = 1; i < kHands; ++i) AskHand(fd, 'h');
  AskHand(other, 'g');
  Log("all were there");
  ::close(fd);
  ::close(other);
  Barrier();
}

int HandRounds() { return Scale(12); }

Case many_hands(
    "epoll_threads_of_one_set",
    [](int) {
      const int listener = ListenAndTell();
      for (int i = 0; i < HandRounds(); ++i) ServeHands(listener);
      ::close(listener);
    },
    [](int) {
      const int port = HearPort();
      for (int i = 0; i < HandRounds(); ++i) AskHands(port);
    },
    {.warm = false, .connect = false, .seconds = 60});

// --- Several threads in poll(), each for a connection of its own

constexpr int kPolls = 5;

// Accepts so many, and warms them.
std::vector<int> AcceptPolls() {
  const int listener = ListenAndTell();
  std::vector<int> fds;
  for (int i = 0; i < kPolls; ++i) {
    fds.push_back(Accept(listener));
    Warm(fds.back());
  }
  ::close(listener);
  return fds;
}

std::vector<int> ConnectPolls() {
  const int port = HearPort();
  std::vector<int> fds;
  for (int i = 0; i < kPolls; ++i) {
    fds.push_back(Connect(port));
    Warm(fds.back());
  }
  return fds;
}

// poll() for a stream, and for a descriptor of the kernel's that stays silent;
// then a byte of it comes and goes back.
void PollAndAnswer(int fd, int silent) {
  pollfd both[2] = {{fd, POLLIN, 0}, {silent, POLLIN, 0}};
  CHECK_THAT(::poll(both, 2, -1) == 1 && both[0].revents == POLLIN);
  char byte;
  RecvAll(fd, &byte, 1);
  SendAll(fd, &byte, 1);
}

// A message wakes who waits for it, and none of the others.  (Over RDMA they
// have one completion channel between them.)
Case poll_wakes_one(
    "poll_wakes_one",
    [](int) {
      const std::vector<int> fds = AcceptPolls();
      const int silent = ::eventfd(0, EFD_CLOEXEC);
      std::atomic<long> most{0};
      std::vector<std::thread> threads;
      for (int t = 1; t < kPolls; ++t) {
        threads.emplace_back([&, t] {
          rusage before{};
          rusage after{};
          ::getrusage(RUSAGE_THREAD, &before);
          PollAndAnswer(fds[static_cast<std::size_t>(t)], silent);
          ::getrusage(RUSAGE_THREAD, &after);
          const long sleeps = after.ru_nvcsw - before.ru_nvcsw;
          for (long known = most; known < sleeps;) {
            if (most.compare_exchange_weak(known, sleeps)) break;
          }
        });
      }
      for (int i = 0; i < 200; ++i) PollAndAnswer(fds[0], silent);
      for (auto& one : threads) one.join();
      const bool one_source = std::getenv("PAIR_ADDRESS") != nullptr;
      Log("%s",
          one_source || most < 100 ? "the others slept on" : "all were woken");
      for (const int fd : fds) ::close(fd);
      ::close(silent);
    },
    [](int) {
      const std::vector<int> fds = ConnectPolls();
      char byte = 'x';
      for (int i = 0; i < 200; ++i) {
        // (Longer than anybody spins.)
        ::poll(nullptr, 0, 2);
        SendAll(fds[0], &byte, 1);
        RecvAll(fds[0], &byte, 1);
      }
      for (const int fd : fds) {
        if (fd == fds[0]) continue;
        SendAll(fd, &byte, 1);
        RecvAll(fd, &byte, 1);
      }
      for (const int fd : fds) ::close(fd);
    },
    {.warm = false, .connect = false, .seconds = 60});

// The connections go round among the threads, and meanwhile in and out of an
// epoll set: each rings a bell that another thread has given it, or the set's.
int PollTurns() { return Scale(40); }
constexpr int kPollsEach = 30;

Case polls_pass_on(
    "polls_pass_on",
    [](int) {
      const std::vector<int> fds = AcceptPolls();
      const int silent = ::eventfd(0, EFD_CLOEXEC);
      const int set = ::epoll_create1(EPOLL_CLOEXEC);
      pthread_barrier_t turn;
      ::pthread_barrier_init(&turn, nullptr, kPolls);
      std::atomic<bool> over{false};
      std::vector<std::thread> threads;
      for (int t = 0; t < kPolls; ++t) {
        threads.emplace_back([&, t] {
          for (int i = 0; i < PollTurns(); ++i) {
            ::pthread_barrier_wait(&turn);
            const auto which = static_cast<std::size_t>((t + i) % kPolls);
            for (int n = 0; n < kPollsEach; ++n) {
              PollAndAnswer(fds[which], silent);
            }
          }
        });
      }
      std::thread registrar([&] {
        for (unsigned i = 0; !over; ++i) {
          epoll_event event{};
          event.events = EPOLLIN | EPOLLET;
          const int fd = fds[i % kPolls];
          CHECK_THAT(::epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
          ::epoll_wait(set, &event, 1, 1);
          CHECK_THAT(::epoll_ctl(set, EPOLL_CTL_DEL, fd, &event) == 0);
        }
      });
      for (auto& one : threads) one.join();
      over = true;
      registrar.join();
      Log("done");
      for (const int fd : fds) ::close(fd);
      ::close(silent);
      ::close(set);
    },
    [](int) {
      const std::vector<int> fds = ConnectPolls();
      std::vector<std::thread> threads;
      for (const int fd : fds) {
        threads.emplace_back([fd] {
          char byte = 'x';
          for (int i = 0; i < PollTurns() * kPollsEach; ++i) {
            SendAll(fd, &byte, 1);
            RecvAll(fd, &byte, 1);
          }
        });
      }
      for (auto& one : threads) one.join();
      Log("done");
      for (const int fd : fds) ::close(fd);
    },
    {.warm = false, .connect = false, .seconds = 60});

}  // namespace
