// A number that is closed, or given to another file, while a call with it is
// under way: that call means what the number names, or what it has named, and
// never a third one.  The thread of the call is held where it is about to take
// its first latch, by the trap flag; meanwhile the number goes, and so many
// connections come that whatever was kept for the old one is in use again.
#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <ucontext.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "tests/posix/pair.h"
#include "tests/posix/stepping.h"

namespace {

using namespace pair;
using namespace steps;

bool OnLanes() {
  const char* warm = std::getenv("PAIR_WARM");
  return warm != nullptr && std::strcmp(warm, "lane") == 0;
}

// --- Connections within this process

struct Ends {
  int a = -1;
  int b = -1;
};

class Maker {
 public:
  Maker() : listener_(Listen(&port_)) {}
  ~Maker() { ::close(listener_); }
  Maker(const Maker&) = delete;
  Maker& operator=(const Maker&) = delete;
  Ends Make() const {
    Ends ends;
    ends.a = Connect(port_);
    ends.b = Accept(listener_);
    return ends;
  }

 private:
  int port_ = 0;
  const int listener_;
};

void Pass(int from, int to) {
  char text[16] = {};
  SendAll(from, text, sizeof text);
  RecvAll(to, text, sizeof text);
}

// Until nothing goes by TCP any more, where it is to leave it.
void WarmBoth(const Ends& ends) {
  std::uint64_t before = 0;
  for (int i = 0, still = 0; still < 4; ++i) {
    if (i == 4000) Fail("no lane");
    for (int k = 0; k < 4; ++k) {
      Pass(ends.a, ends.b);
      Pass(ends.b, ends.a);
    }
    if (!OnLanes() && i == 4) return;
    const std::uint64_t now = TcpBytes(ends.a);
    still = now == before ? still + 1 : 0;
    before = now;
    if (still == 0) ::poll(nullptr, 0, 1);
  }
}

void Close(const Ends& ends) {
  ::close(ends.a);
  ::close(ends.b);
}

// What takes a number's place: nothing that any of these calls could move.
int Other() {
  const int fd = ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  CHECK_THAT(fd >= 0);
  return fd;
}

// --- The thread that is held

std::atomic<bool> held{false};    // it stands
std::atomic<bool> asleep{false};  // ... is about to sleep in the kernel
std::atomic<bool> over{false};    // its call is
std::atomic<bool> go{false};

thread_local volatile bool after_sleep = false;  // it is to have slept before
thread_local volatile bool sleeps = false;       // by the next instruction
thread_local volatile int latches = 0;           // that it takes before

bool IsSyscall(const unsigned char* at) { return at[0] == 0x0f && at[1] == 5; }
bool TakesLatch(const unsigned char* at) {
  if (*at++ != 0xf0) return false;        // lock
  if ((*at & 0xf0) == 0x40) ++at;         // (of other registers)
  return at[0] == 0x0f && at[1] == 0xb1;  // cmpxchg
}

void OnTrap(int, siginfo_t*, void* context) {
  KeepTraps(context);
  greg_t* regs = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  const auto* at = reinterpret_cast<const unsigned char*>(regs[REG_RIP]);
  if (after_sleep) {
    if (sleeps) after_sleep = false;
    sleeps = IsSyscall(at) &&
             (regs[REG_RAX] == SYS_futex || regs[REG_RAX] == SYS_recvfrom);
    if (sleeps) asleep = true;
    return;
  }
  if (!TakesLatch(at)) return;
  if (latches > 0) {
    latches = latches - 1;
    return;
  }
  regs[REG_EFL] &= ~kTrap;
  held = true;
  while (!go) Raw(SYS_sched_yield, 0, 0, 0, 0);
}

// `call`, held at the latch behind `skipped` others (and a sleep).
class Held {
 public:
  Held(std::function<void()> call, int skipped, bool slept) {
    HandleTraps(&OnTrap);
    held = asleep = over = go = false;
    thread_ = std::thread([call = std::move(call), skipped, slept] {
      latches = skipped;
      sleeps = false;
      after_sleep = slept;
      BeginSteps();
      call();
      EndSteps();
      over = true;
    });
  }
  ~Held() { thread_.join(); }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
  // Until it stands; false: it does not.
  bool Await() const {
    while (!held && !over) std::this_thread::yield();
    return held;
  }
  void AwaitSleep() const {
    while (!asleep && !over) std::this_thread::yield();
  }
  void Go() const { go = true; }

 private:
  std::thread thread_;
};

// --- The others

// Connections enough for all objects that are free, with a byte that has come
// for each end.
class Others {
 public:
  Others() {
    for (Ends& ends : all_) {
      ends = maker_.Make();
      WarmBoth(ends);
      SendAll(ends.a, "y", 1);
      SendAll(ends.b, "y", 1);
      // (What has been closed is looked through when enough lies there.)
      for (int i = 0; i < 4; ++i) Close(brief_.Make());
    }
  }
  void Check() const {
    for (const Ends& ends : all_) {
      for (const int fd : {ends.a, ends.b}) {
        char bytes[2] = {};
        // (Over TCP it may be on its way still.)
        pollfd one{fd, POLLIN, 0};
        CHECK_THAT(::poll(&one, 1, 5000) == 1);
        const ssize_t n = ::recv(fd, bytes, sizeof bytes, MSG_DONTWAIT);
        if (n != 1 || bytes[0] != 'y') Fail("of another: %zd", n);
        const ssize_t m = ::recv(fd, bytes, sizeof bytes, MSG_DONTWAIT);
        if (m >= 0 || errno != EAGAIN) Fail("of another, then: %zd", m);
      }
      Close(ends);
    }
  }

 private:
  static constexpr int kCount = 50;
  Maker maker_;
  Maker brief_;
  Ends all_[kCount];
};

// `call` of a number that goes meanwhile, held at a latch behind others (and
// behind a sleep).
void Reuse(const char* what, const std::function<void(int)>& call,
           int skipped = 0, bool slept = false) {
  const Maker maker;
  const Ends ends = maker.Make();
  WarmBoth(ends);
  const int other = Other();
  if (!slept) SetNonblock(ends.a, true);
  {
    const Held thread([&] { call(ends.a); }, skipped, slept);
    if (slept) {
      thread.AwaitSleep();
      CHECK_THAT(::dup2(other, ends.a) == ends.a);
      // (The call keeps the connection, whose end alone wakes it.)
      ::close(ends.b);
      thread.Await();
    } else {
      CHECK_THAT(thread.Await() || !OnLanes());
      CHECK_THAT(::dup2(other, ends.a) == ends.a);
    }
    if (!slept) ::close(ends.b);
    const Others others;
    thread.Go();
    while (!over) std::this_thread::yield();
    others.Check();
  }
  ::close(ends.a);
  ::close(other);
  Log("%s: the others' is theirs", what);
}

constexpr Options kAlone{.warm = false, .connect = false, .seconds = 120};
void Nothing(int) {}

Case receiving(
    "reused_by_receiving",
    [](int) {
      char bytes[64];
      Reuse("recv", [&](int fd) {
        if (::recv(fd, bytes, 1, MSG_DONTWAIT) > 0) Fail("a byte");
      });
      Reuse("read", [&](int fd) {
        if (::read(fd, bytes, 1) > 0) Fail("a byte");
      });
      Reuse("MSG_PEEK", [&](int fd) {
        if (::recv(fd, bytes, 1, MSG_DONTWAIT | MSG_PEEK) > 0) Fail("a byte");
      });
      Reuse("readv", [&](int fd) {
        const iovec two[2] = {{bytes, 1}, {bytes + 1, 1}};
        msghdr message{};
        message.msg_iov = const_cast<iovec*>(two);
        message.msg_iovlen = 2;
        if (::recvmsg(fd, &message, MSG_DONTWAIT) > 0) Fail("a byte");
      });
    },
    &Nothing, kAlone);

Case sleeping(
    "reused_by_sleeping",
    [](int) {
      for (int skipped = 0; skipped < 3; ++skipped) {
        Reuse(
            "recv",
            [](int fd) {
              char bytes[64];
              if (::recv(fd, bytes, sizeof bytes, 0) > 0) Fail("a byte");
            },
            skipped, true);
      }
    },
    &Nothing, kAlone);

Case sending(
    "reused_by_sending",
    [](int) {
      const std::vector<char> bytes(4000, 'z');
      Reuse("send", [&](int fd) { ::send(fd, "z", 1, MSG_NOSIGNAL); });
      Reuse("write", [&](int fd) {
        if (::write(fd, "z", 1) > 0) Fail("written");
      });
      Reuse("writev", [&](int fd) {
        const iovec two[2] = {{const_cast<char*>(bytes.data()), 2000},
                              {const_cast<char*>(bytes.data()), 2000}};
        if (::writev(fd, two, 2) > 0 && OnLanes()) Fail("written");
      });
      Reuse("shutdown", [&](int fd) { ::shutdown(fd, SHUT_WR); });
    },
    &Nothing, kAlone);

Case asking(
    "reused_by_asking",
    [](int) {
      // (The second latch of one that asks for both is that of its room.)
      const auto look = [](short events, int skipped) {
        Reuse(
            "poll",
            [events](int fd) {
              pollfd one{fd, events, 0};
              if (::poll(&one, 1, 0) > 0 && one.revents != POLLOUT) {
                Fail("ready");
              }
            },
            skipped);
      };
      look(POLLIN, 0);
      look(POLLIN | POLLOUT, 0);
      look(POLLIN | POLLOUT, 1);
      // (The first is of a look that finds nothing.)
      for (int skipped = 0; skipped < 2; ++skipped) {
        Reuse(
            "poll with a time",
            [](int fd) {
              pollfd two[2] = {{fd, POLLIN, 0}, {fd, POLLIN, 0}};
              if (::poll(two, 2, 1) > 0) Fail("ready");
            },
            skipped);
      }
    },
    &Nothing, kAlone);

// What a library does once in a while does not end the program that is traced.
Case blocking(
    "reused_by_blocking_signals",
    [](int) {
      std::atomic<int> children{0};
      Held thread(
          [&] {
            sigset_t all;
            sigset_t before;
            ::sigfillset(&all);
            ::pthread_sigmask(SIG_SETMASK, &all, &before);
            ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
            std::thread([&] { ++children; }).join();
          },
          1'000'000, false);
      thread.Go();
      while (!over) std::this_thread::yield();
      Log("%d children", children.load());
    },
    &Nothing, kAlone);

// The same with the number of an epoll set.
void ReuseSet(const char* what, int (*wait)(int set, epoll_event* event)) {
  const Maker maker;
  const Ends ends = maker.Make();
  WarmBoth(ends);
  const int other = Other();
  const int set = ::epoll_create1(EPOLL_CLOEXEC);
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = 1;
  CHECK_THAT(::epoll_ctl(set, EPOLL_CTL_ADD, ends.a, &event) == 0);
  // (What its coming has made is looked at.)
  epoll_event found{};
  CHECK_THAT(::epoll_wait(set, &found, 1, 0) == 0);
  const Ends next = maker.Make();
  WarmBoth(next);
  SendAll(next.b, "y", 1);
  {
    int n = 0;
    const Held thread([&] { n = wait(set, &found); }, 0, false);
    CHECK_THAT(thread.Await() || !OnLanes());
    CHECK_THAT(::dup2(other, set) == set);
    const int second = ::epoll_create1(EPOLL_CLOEXEC);
    event.events = EPOLLIN | EPOLLET;
    event.data.u64 = 2;
    CHECK_THAT(::epoll_ctl(second, EPOLL_CTL_ADD, next.a, &event) == 0);
    thread.Go();
    while (!over) std::this_thread::yield();
    if (n > 0) Fail("an event of another set");
    CHECK_THAT(::epoll_wait(second, &found, 1, 5000) == 1);
    CHECK_THAT(found.data.u64 == 2);
    ::close(second);
  }
  ::close(set);
  ::close(other);
  Close(ends);
  Close(next);
  Log("%s: the other set's event is its own", what);
}

Case sets(
    "reused_sets",
    [](int) {
      ReuseSet("epoll_wait", [](int set, epoll_event* event) {
        return ::epoll_wait(set, event, 1, 0);
      });
      ReuseSet("epoll_pwait", [](int set, epoll_event* event) {
        sigset_t mask;
        ::sigemptyset(&mask);
        return ::epoll_pwait(set, event, 1, 0, &mask);
      });
    },
    &Nothing, kAlone);

// A child of fork has what another thread was closing, and whose latches that
// thread had: a set that others have waited for.
Case forked(
    "forked_while_a_set_is_closed",
    [](int fd) {
      Barrier();
      const linger hard{1, 0};
      ::setsockopt(fd, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
      ::close(fd);
      Barrier();
    },
    [](int fd) {
      const int other = ::epoll_create1(EPOLL_CLOEXEC);
      // (Its object is that of each set below.)
      const int first = ::epoll_create1(EPOLL_CLOEXEC);
      epoll_event event{};
      event.events = EPOLLIN;
      CHECK_THAT(::epoll_ctl(first, EPOLL_CTL_ADD, fd, &event) == 0);
      ::close(first);
      // An error that only this library knows of, in a child: its waits look at
      // all sets.
      Barrier();
      AwaitPoll(fd, POLLIN, POLLERR | POLLHUP);
      for (int latch = 0; latch < 24; ++latch) {
        const int set = ::epoll_create1(EPOLL_CLOEXEC);
        CHECK_THAT(::epoll_ctl(other, EPOLL_CTL_ADD, set, &event) == 0);
        pid_t child;
        {
          const Held thread([&] { ::close(set); }, latch, false);
          thread.Await();
          std::atomic<bool> made{false};
          // (It may have a latch that fork() waits for.)
          std::thread lets_go([&] {
            const std::uint64_t until = NowMs() + 100;
            while (!made && NowMs() < until) std::this_thread::yield();
            thread.Go();
          });
          child = ::fork();
          if (child == 0) {
            ::alarm(10);
            ::_exit(::epoll_wait(other, &event, 1, 0));
          }
          made = true;
          lets_go.join();
        }
        LogChild(child);
      }
      Barrier();
    },
    {.seconds = 120});

// The peer has said its end, behind bytes that a look has shown: who reads them
// has them, or what the number names by then, but not the end.  (The object is
// still that of the connection which is being closed: the conductor has others
// to close before.)
Case shown(
    "shown_and_replaced",
    [](int) {
      const Maker maker;
      // (The third is between a look and the next, with nothing held.)
      for (const int latch : {0, 1, 2, 2, 2, 2, 2, 2, 3}) {
        const Ends ends = maker.Make();
        WarmBoth(ends);
        Ends others[40];
        for (Ends& one : others) {
          one = maker.Make();
          WarmBoth(one);
          SendAll(one.b, "y", 1);
        }
        SendAll(ends.b, "yyyy", 4);
        CHECK_THAT(::shutdown(ends.b, SHUT_WR) == 0);
        pollfd end{ends.a, POLLRDHUP, 0};
        CHECK_THAT(::poll(&end, 1, 5000) == 1);
        char bytes[8];
        CHECK_THAT(::recv(ends.a, bytes, sizeof bytes, MSG_PEEK) == 4);
        const int other = Other();
        ssize_t n = 0;
        {
          const Held thread(
              [&] { n = ::recv(ends.a, bytes, sizeof bytes, MSG_DONTWAIT); },
              latch, false);
          thread.Await();
          std::atomic<bool> replaced{false};
          std::thread replaces([&] {
            for (const Ends& one : others) ::close(one.a);
            CHECK_THAT(::dup2(other, ends.a) == ends.a);
            thread.Go();
            replaced = true;
          });
          // (It may need a latch that the held one has.)
          const std::uint64_t late = posix_test::NowMs() + 500;
          while (!replaced && posix_test::NowMs() < late) {
            std::this_thread::yield();
          }
          thread.Go();
          replaces.join();
        }
        if (n != 4 && n != -1) Fail("%d: %zd of 4", latch, n);
        for (const Ends& one : others) ::close(one.b);
        ::close(other);
        Close(ends);
      }
      Log("never the end");
    },
    &Nothing, kAlone);

// A connection has three numbers.  One goes while another does: what the stream
// goes by is the third.
Case numbers(
    "one_number_of_three",
    [](int) {
      const Maker maker;
      for (int latch = 0; latch < 7; ++latch) {
        const Ends ends = maker.Make();
        WarmBoth(ends);
        const int second = ::dup(ends.a);
        const int third = ::dup(ends.a);
        const int other = Other();
        {
          const Held thread(
              [&] { CHECK_THAT(::dup2(other, ends.a) == ends.a); }, latch,
              false);
          thread.Await();
          std::atomic<bool> closed{false};
          std::thread closes([&] {
            CHECK_THAT(::dup2(other, second) == second);
            closed = true;
          });
          // (It may need a latch that the held one has.)
          const std::uint64_t late = posix_test::NowMs() + 100;
          while (!closed && posix_test::NowMs() < late) {
            std::this_thread::yield();
          }
          thread.Go();
          closes.join();
        }
        // Back to TCP, which is done by the stream's number.
        const int most = 2;
        CHECK_THAT(::setsockopt(third, SOL_SOCKET, SO_RCVLOWAT, &most,
                                sizeof most) == 0);
        for (int i = 0; i < 4; ++i) {
          Pass(third, ends.b);
          Pass(ends.b, third);
        }
        ::close(third);
        char byte;
        CHECK_THAT(::recv(ends.b, &byte, 1, 0) == 0);
        ::close(second);
        ::close(other);
        Close(ends);
      }
      Log("all goes by the third");
    },
    &Nothing, kAlone);

}  // namespace
