// Threads on one connection: what each of them gets, and what one does under
// the others.
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/posix/bulk.h"
#include "tests/posix/pair.h"

namespace {

using namespace pair;

std::uint64_t Much() { return static_cast<std::uint64_t>(Scale(60)) << 20; }

void Duplex(int fd) {
  const std::uint64_t mine = IsClient() ? 100 : 200;
  std::thread writer([&] { SendBulk(fd, mine, Much()); });
  RecvBulk(fd, 300 - mine, Much());
  writer.join();
  Log("done");
}

Case duplex("duplex", Duplex, Duplex, {.seconds = 60});
// The same, promoted somewhere in the middle.
Case duplex_cold("duplex_cold", Duplex, Duplex, {.warm = false, .seconds = 60});

// Several readers and several writers: every byte once.
Case crowd(
    "crowd",
    [](int fd) {
      std::atomic<std::uint64_t> bytes{0};
      std::atomic<std::uint64_t> sum{0};
      std::vector<std::thread> readers;
      for (int i = 0; i < 3; ++i) {
        readers.emplace_back([&] {
          std::vector<unsigned char> buffer(10'000);
          for (;;) {
            const ssize_t n = ::recv(fd, buffer.data(), buffer.size(), 0);
            if (n < 0) Fail("recv: %s", ErrorName(errno));
            if (n == 0) break;
            std::uint64_t local = 0;
            for (ssize_t k = 0; k < n; ++k) local += buffer[k];
            bytes += static_cast<std::uint64_t>(n);
            sum += local;
          }
        });
      }
      for (auto& one : readers) one.join();
      Log("%llu bytes, sum %llu", static_cast<unsigned long long>(bytes.load()),
          static_cast<unsigned long long>(sum.load()));
    },
    [](int fd) {
      std::vector<std::thread> writers;
      for (int i = 0; i < 3; ++i) {
        writers.emplace_back([&, i] { SendBulk(fd, 10 + i, 3'000'000); });
      }
      for (auto& one : writers) one.join();
      ::shutdown(fd, SHUT_WR);
    });

// A thread in recv(), and the end comes from this side.
void ShutUnderRecv(int fd, int how) {
  std::atomic<bool> started{false};
  ssize_t got = -2;
  std::thread reader([&] {
    char byte;
    started = true;
    got = ::recv(fd, &byte, 1, 0);
  });
  while (!started) std::this_thread::yield();
  pollfd none{-1, 0, 0};
  ::poll(&none, 1, 30);
  ::shutdown(fd, how);
  reader.join();
  Log("recv: %zd", got);
  Barrier();
}

// Several threads that wait for the same connection by poll() and then read
// what is there: a message wakes somebody, the end wakes all.
Case crowd_polls(
    "crowd_polls",
    [](int fd) {
      std::atomic<std::uint64_t> sum{0};
      std::vector<std::thread> readers;
      for (int i = 0; i < 4; ++i) {
        readers.emplace_back([&, i] {
          for (;;) {
            pollfd one{fd, POLLIN | POLLPRI, 0};
            // With a time and without.
            const int n = ::poll(&one, 1, i % 2 == 0 ? -1 : 15'000);
            if (n != 1) Fail("poll: %d %s", n, ErrorName(errno));
            unsigned char bytes[3];
            const ssize_t got = ::recv(fd, bytes, sizeof bytes, MSG_DONTWAIT);
            if (got == 0) break;
            for (ssize_t k = 0; k < got; ++k) sum += bytes[k];
            if (got < 0 && errno != EAGAIN) Fail("recv: %s", ErrorName(errno));
          }
        });
      }
      for (auto& reader : readers) reader.join();
      Log("sum %llu", static_cast<unsigned long long>(sum));
    },
    [](int fd) {
      Random random{Seed()};
      for (int i = 0; i < Scale(4000); ++i) {
        const unsigned char bytes[] = {1, 2, 3, 4, 5, 6};
        SendAll(fd, bytes, 1 + random.Below(sizeof bytes));
        // Now and then long enough for all to have gone to sleep.
        const timespec pause{0, static_cast<long>(random.Below(200'000))};
        if (random.Below(4) == 0) ::nanosleep(&pause, nullptr);
      }
      ::shutdown(fd, SHUT_WR);
      char byte;
      Result("recv", ::recv(fd, &byte, 1, 0));
    },
    {.seconds = 60});

Case shut_under(
    "shutdown_under_recv",
    [](int fd) {
      int error;
      Drain(fd, &error);
      Barrier();
    },
    [](int fd) { ShutUnderRecv(fd, SHUT_RDWR); });

Case shut_read_under(
    "shutdown_read_under_recv", [](int) { Barrier(); },
    [](int fd) { ShutUnderRecv(fd, SHUT_RD); });

// Not to be inlined: its name is in the suppression below.
[[gnu::noinline]] int CloseUnderOther(int fd) {
  const int result = ::close(fd);
  return result;
}
[[gnu::noinline]] int CloseUnderOther(int fd, int over) {
  const int result = ::dup2(over, fd);
  return result;
}

// In the kernel a recv() that has begun outlives a close() by another thread:
// it still gets what comes.
Case close_under(
    "close_under_recv",
    [](int fd) {
      Barrier();
      ::send(fd, "x", 1, MSG_NOSIGNAL);
      Barrier();
    },
    [](int fd) {
      std::atomic<bool> started{false};
      std::atomic<bool> ended{false};
      std::thread reader([&] {
        char byte;
        started = true;
        ::recv(fd, &byte, 1, 0);
        ended = true;
      });
      while (!started) std::this_thread::yield();
      pollfd none{-1, 0, 0};
      ::poll(&none, 1, 30);
      Result("close", CloseUnderOther(fd));
      Barrier();
      reader.join();
      Log("recv ends");
      Barrier();
    });

// A call may find the number good, or closed, or another file's; never what
// lies under the stream, whose bytes are no application's.
constexpr int kClosedBeside = 60;
void ServeClosedBeside(int) {
  const int listener = ListenAndTell();
  int good = 0;
  for (int i = 0; i < kClosedBeside; ++i) {
    const int fd = Accept(listener);
    Warm(fd);
    Barrier();
    ::shutdown(fd, SHUT_WR);
    char text[4096];
    ssize_t n;
    bool own = true;
    while ((n = ::recv(fd, text, sizeof text, 0)) > 0) {
      for (ssize_t k = 0; k < n; ++k) own = own && text[k] == 'x';
    }
    if (own && n == 0) ++good;
    ::close(fd);
    Barrier();
  }
  Log("%d good", good);
}
// `over`: what takes the number; -1: nothing.
void CloseBeside(int over) {
  const int port = HearPort();
  int strange = 0;
  for (int i = 0; i < kClosedBeside; ++i) {
    const int fd = Connect(port);
    Warm(fd);
    std::atomic<int> calls{0};
    std::atomic<bool> done{false};
    std::thread other([&] {
      while (!done) {
        char text[512];
        if (::recv(fd, text, sizeof text, MSG_DONTWAIT) > 0) ++strange;
        if (calls % 4 == 0) ::send(fd, "x", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
        ++calls;
      }
    });
    Barrier();
    const int before = calls;
    while (calls < before + i % 8) std::this_thread::yield();
    over >= 0 ? CloseUnderOther(fd, over) : CloseUnderOther(fd);
    const int after = calls;
    while (calls < after + 4) std::this_thread::yield();
    done = true;
    other.join();
    Barrier();
    if (over >= 0) ::close(fd);
  }
  Log("%d strange", strange);
}

Case close_beside("close_beside_calls", ServeClosedBeside,
                  [](int) { CloseBeside(-1); },
                  {.warm = false, .connect = false, .seconds = 60});
Case dup_beside("dup2_beside_calls", ServeClosedBeside,
                [](int) {
                  CloseBeside(::open("/dev/null", O_RDWR | O_CLOEXEC));
                },
                {.warm = false, .connect = false, .seconds = 60});

Case shut_under_poll(
    "shutdown_under_poll",
    [](int fd) {
      Barrier();
      (void)fd;
    },
    [](int fd) {
      std::atomic<bool> started{false};
      int got = -2;
      pollfd one{fd, POLLIN, 0};
      std::thread waiter([&] {
        started = true;
        got = ::poll(&one, 1, -1);
      });
      while (!started) std::this_thread::yield();
      pollfd none{-1, 0, 0};
      ::poll(&none, 1, 30);
      ::shutdown(fd, SHUT_RD);
      waiter.join();
      Log("poll: %d %x", got, static_cast<unsigned>(one.revents));
      Barrier();
    });

// A thread that has its maker's own variables, and is in the kernel while that
// makes short calls of its own.
struct Sharing {
  int fd;
  int rounds;
  std::atomic<int> bad{0};
};

int EchoBySharing(void* argument) {
  auto* const sharing = static_cast<Sharing*>(argument);
  for (int i = 0; i < sharing->rounds; ++i) {
    unsigned char byte = 0;
    if (::recv(sharing->fd, &byte, 1, 0) != 1 ||
        byte != static_cast<unsigned char>(i) ||
        ::send(sharing->fd, &byte, 1, 0) != 1) {
      sharing->bad = 1;
      break;
    }
  }
  return 0;
}

constexpr int kSharingRounds = 40;

Case sharing_thread(
    "thread_with_its_makers_variables",
    [](int) {
      const int listener = ListenAndTell();
      for (int i = 0; i < 20; ++i) {
        const int fd = Accept(listener);
        for (int j = 0; j < kSharingRounds; ++j) {
          auto byte = static_cast<unsigned char>(j);
          SendAll(fd, &byte, 1);
          unsigned char back = 0;
          RecvAll(fd, &back, 1);
          CHECK_THAT(back == byte);
          if (j % 8 == 0) ::poll(nullptr, 0, 1);
        }
        ::close(fd);
      }
      const int fd = Accept(listener);
      for (int i = 0; i < 300; ++i) {
        char text[64];
        RecvAll(fd, text, sizeof text);
        SendAll(fd, text, sizeof text);
      }
      ::close(fd);
      ::close(listener);
    },
    [](int) {
      const int port = HearPort();
      // A call on it says at once that there is no connection.
      const int none = ::socket(AF_INET, SOCK_STREAM, 0);
      static char stack[256 * 1024];
      for (int i = 0; i < 20; ++i) {
        Sharing sharing{Connect(port), kSharingRounds, {}};
        // (The kernel clears it at the thread's end.)
        std::atomic<pid_t> alive{1};
        const int flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND |
                          CLONE_THREAD | CLONE_SYSVSEM | CLONE_CHILD_CLEARTID;
        CHECK_THAT(::clone(EchoBySharing, stack + sizeof stack, flags, &sharing,
                           nullptr, nullptr, &alive) > 0);
        char byte;
        while (alive.load() != 0) ::recv(none, &byte, 1, MSG_DONTWAIT);
        CHECK_THAT(sharing.bad == 0);
        ::close(sharing.fd);
      }
      ::close(none);
      // No lane is sound from here on: it counts on what is a thread's own.
      const int fd = Connect(port);
      std::uint64_t before = 0;
      for (int i = 0; i < 300; ++i) {
        if (i % 8 == 0) ::poll(nullptr, 0, 1);
        if (i == 200) before = TcpBytes(fd);
        char text[64] = {};
        SendAll(fd, text, sizeof text);
        RecvAll(fd, text, sizeof text);
      }
      Log("on TCP: %d", TcpBytes(fd) - before >= std::uint64_t{100 * 64});
      ::close(fd);
    },
    {.warm = false, .connect = false, .seconds = 60});

// A call that comes out of the kernel after its number has been closed, and
// what it brings, is of no other connection.
constexpr int kAfterLate = 24;
constexpr int kParts = 40;
using Part = char[300];

void EchoParts(int fd) {
  for (int i = 0; i < kParts; ++i) {
    Part part;
    RecvAll(fd, part, sizeof part);
    SendAll(fd, part, sizeof part);
  }
}

void AskParts(int fd) {
  for (int i = 0; i < kParts; ++i) {
    Part part;
    Part back;
    Pattern(9, static_cast<std::uint64_t>(i), part, sizeof part);
    SendAll(fd, part, sizeof part);
    RecvAll(fd, back, sizeof back);
    CHECK_THAT(std::memcmp(part, back, sizeof part) == 0);
  }
}

Case late_call(
    "call_of_a_closed_connection",
    [](int) {
      const int listener = ListenAndTell();
      const auto next = [listener] { return Accept(listener); };
      const int late = next();
      for (int i = 0; i < 2 * kAfterLate; ++i) ::close(next());
      int fds[kAfterLate];
      for (int& fd : fds) fd = next();
      Barrier();
      char text[100] = {};
      SendAll(late, text, sizeof text);
      Barrier();
      for (int fd : fds) {
        EchoParts(fd);
        RecvBulk(fd, 7, 200'000);
        SendBulk(fd, 8, 200'000);
        Part part;
        while (::recv(fd, part, sizeof part, MSG_WAITALL) == sizeof part) {
          SendAll(fd, part, sizeof part);
        }
        ::close(fd);
      }
      ::close(late);
      ::close(listener);
    },
    [](int) {
      const int port = HearPort();
      const int late = Connect(port);
      std::atomic<bool> begins{false};
      long got = 0;
      std::thread reader([&] {
        char text[100];
        begins = true;
        got = ::recv(late, text, sizeof text, MSG_WAITALL);
      });
      while (!begins) ::sched_yield();
      ::poll(nullptr, 0, 100);
      // (By a copy of something else: the number is not free for a call that
      // has not begun.)
      const int other = ::eventfd(0, 0);
      CloseUnderOther(late, other);
      ::close(other);
      for (int i = 0; i < 2 * kAfterLate; ++i) ::close(Connect(port));
      int fds[kAfterLate];
      for (int& fd : fds) fd = Connect(port);
      Barrier();
      reader.join();
      Barrier();
      const bool lane = ::getenv("PAIR_WARM") != nullptr;
      int left = 0;  // TCP, by the end
      for (int fd : fds) {
        AskParts(fd);
        SendBulk(fd, 7, 200'000);
        RecvBulk(fd, 8, 200'000);
        bool on_tcp = true;
        const std::uint64_t end = NowMs() + 4000;
        do {
          const std::uint64_t before = TcpBytes(fd);
          AskParts(fd);
          on_tcp = TcpBytes(fd) - before >= kParts * sizeof(Part);
        } while (lane && on_tcp && NowMs() < end);
        left += !on_tcp;
        ::close(fd);
      }
      ::close(late);
      // No lane comes where the ends have counted differently.
      Log("late: %ld, %d", got, !lane || left == kAfterLate);
    },
    {.warm = false, .connect = false, .seconds = 60});

// How often a thread has gone to sleep by itself.
long Sleeps(pid_t thread) {
  std::ifstream status("/proc/self/task/" + std::to_string(thread) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("voluntary_ctxt_switches:", 0) == 0) {
      return std::atol(line.c_str() + line.find(':') + 1);
    }
  }
  return 0;
}

// What comes for one thread wakes no other that waits for something else.
Case left_asleep(
    "threads_leave_each_other_asleep",
    [](int fd) {
      const int listener = ListenAndTell();
      std::thread threads[2];
      std::atomic<pid_t> ids[2] = {};
      for (int i = 0; i < 2; ++i) {
        const int other = Accept(listener);
        threads[i] = std::thread([other, i, &ids] {
          WarmAs(other, false);
          Echo(other, Scale(400));
          ids[i] = static_cast<pid_t>(::syscall(SYS_gettid));
          if (i == 1) {
            pollfd one{other, POLLIN, 0};
            CHECK_THAT(::poll(&one, 1, -1) == 1);
          }
          char byte = 0;
          CHECK_THAT(::recv(other, &byte, 1, 0) == 1);
          ::close(other);
        });
        while (ids[i] == 0) ::sched_yield();
      }
      long before[2];
      for (int i = 0; i < 2; ++i) AwaitAsleep(::getpid(), ids[i]);
      // (On its way to sleep it may have spun.)
      ::poll(nullptr, 0, 50);
      for (int i = 0; i < 2; ++i) before[i] = Sleeps(ids[i]);
      Barrier();
      Echo(fd, Scale(1000));
      for (int i = 0; i < 2; ++i) {
        const long sleeps = Sleeps(ids[i]) - before[i];
        Log("%s: %s", i == 1 ? "poll" : "recv",
            sleeps < Scale(1000) / 4 ? "asleep" : "woken");
      }
      Barrier();
      for (auto& thread : threads) thread.join();
      ::close(listener);
    },
    [](int fd) {
      const int port = HearPort();
      int others[2];
      for (int& other : others) {
        other = Connect(port);
        WarmAs(other, true);
        Call(other, Scale(400));
      }
      Barrier();
      Call(fd, Scale(1000));
      Barrier();
      for (const int other : others) {
        SendAll(other, "e", 1);
        ::close(other);
      }
    });

}  // namespace

#if defined(__SANITIZE_THREAD__)
// What close_under_recv does on purpose, as TSan sees it while TCP has the
// connection: a number closed under a call.
extern "C" [[gnu::visibility("default")]] const char*
__tsan_default_suppressions();
extern "C" const char* __tsan_default_suppressions() {
  return "race:CloseUnderOther\n";
}
#endif
