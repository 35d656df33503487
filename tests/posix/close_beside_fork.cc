// What one thread does beside another: it closes a connection while that one
// forks, which may take a while, or an epoll set whose number that one has at
// once.
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "tests/posix/pair.h"

namespace {

using namespace pair;

// --- Connections that are closed while another thread forks

int begun[2];
std::atomic<bool> tells_begin{false};

// fork() in a thread of its own, until the end of this; its child ends at once.
// Begun: TCP's is over, and one that waits for peers is not.
class Fork {
 public:
  Fork() {
    CHECK_THAT(::pipe(begun) == 0);
    ::pthread_atfork(
        [] {
          if (tells_begin) CHECK_THAT(::write(begun[1], "x", 1) == 1);
        },
        nullptr, nullptr);
    tells_begin = true;
    thread_ = std::thread([] {
      const pid_t child = ::fork();
      if (child == 0) ::_exit(0);
      int status = 0;
      CHECK_THAT(::waitpid(child, &status, 0) == child && status == 0);
    });
    char byte;
    CHECK_THAT(::read(begun[0], &byte, 1) == 1);
  }
  ~Fork() {
    thread_.join();
    tells_begin = false;
  }

 private:
  std::thread thread_;
};

// As much as is taken without a wait.
std::size_t Fill(int fd) {
  const std::vector<char> bytes(64 << 10);
  std::size_t total = 0;
  for (;;) {
    const ssize_t n =
        ::send(fd, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n <= 0) return total;
    total += static_cast<std::size_t>(n);
  }
}

// TCP takes less than lies in a ring.
void MakeSmall(int fd) {
  const int small = 4096;
  CHECK_THAT(::setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &small, sizeof small) ==
             0);
}

// A process that has gone to sleep with a connection: over a lane, a fork here
// waits for it.
class Sleeper {
 public:
  explicit Sleeper(int not_its) {
    int port;
    const int listener = Listen(&port);
    // (What it had sent in the moment of its switch would wait for it.)
    int may_sleep[2];
    CHECK_THAT(::pipe(may_sleep) == 0);
    pid_ = ::fork();
    CHECK_THAT(pid_ >= 0);
    if (pid_ == 0) {
      // (Who ends by _exit does not end this one.)
      CHECK_THAT(::prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
      ::close(not_its);
      const int fd = Connect(port);
      WarmAs(fd, false);
      char byte;
      CHECK_THAT(::read(may_sleep[0], &byte, 1) == 1);
      ::raise(SIGSTOP);
      ::_exit(0);
    }
    fd_ = ::accept(listener, nullptr, nullptr);
    CHECK_THAT(fd_ >= 0);
    ::close(listener);
    WarmAs(fd_, true);
    CHECK_THAT(::write(may_sleep[1], "x", 1) == 1);
    ::close(may_sleep[0]);
    ::close(may_sleep[1]);
    int status = 0;
    CHECK_THAT(::waitpid(pid_, &status, WUNTRACED) == pid_ &&
               WIFSTOPPED(status));
  }
  ~Sleeper() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    ::close(fd_);
  }

 private:
  pid_t pid_;
  int fd_;
};

// What was read ahead for the switch, and can't be handed back behind the own
// end: it is in no queue of the kernel's.
constexpr int kTold = 50;

Case close_ahead(
    "close_while_forking_and_ahead",
    [](int fd) {
      SendAll(fd, "never read", 10);
      char text[kTold];
      RecvAll(fd, text, sizeof text);
      Barrier();
      int error;
      Log("drained %zu", Drain(fd, &error));
      Barrier();
      // The answer to nothing: it is reset.
      pollfd one{fd, 0, 0};
      Result("poll", ::poll(&one, 1, 10'000));
      Log("%x", static_cast<unsigned>(one.revents));
      Result("send", ::send(fd, "x", 1, MSG_NOSIGNAL));
      Barrier();
    },
    [](int fd) {
      const Sleeper sleeper(fd);
      pollfd one{fd, POLLIN, 0};
      CHECK_THAT(::poll(&one, 1, -1) == 1);
      // By one of these the connection leaves TCP.
      for (int i = 0; i < kTold; ++i) {
        SendAll(fd, "x", 1);
        ::poll(nullptr, 0, 1);
      }
      Result("shutdown", ::shutdown(fd, SHUT_WR));
      Barrier();
      {
        const Fork fork;
        // (While it leaves its lane it would be reset, too.)
        ::poll(nullptr, 0, 100);
        Result("close", ::close(fd));
      }
      Barrier();
      Barrier();
    },
    {.warm = false});

// --- What a fork leaves

// The child of a fork whose peer has not answered does not have the connection:
// its parent has it alone, and when that ends, what is not delivered is not
// passed over.
Case exit_owing(
    "exit_owing_after_fork",
    [](int fd) {
      Warm(fd);
      const auto total = static_cast<std::size_t>(Hear());
      Barrier();
      int error;
      const std::size_t n = Drain(fd, &error);
      Log("%s", n == total || error != 0 ? "nothing is passed over"
                                         : "it ends as if that were all");
    },
    [](int fd) {
      int said[2];
      int gate[2];
      CHECK_THAT(::pipe(said) == 0 && ::pipe(gate) == 0);
      const pid_t parent = ::fork();
      CHECK_THAT(parent >= 0);
      if (parent == 0) {
        ::close(gate[1]);
        Warm(fd);
        MakeSmall(fd);
        const std::size_t total = Fill(fd);
        CHECK_THAT(::write(said[1], &total, sizeof total) == sizeof total);
        const pid_t child = ::fork();
        CHECK_THAT(child >= 0);
        if (child == 0) {
          char byte;
          ::read(gate[0], &byte, 1);
        }
        ::_exit(0);
      }
      ::close(fd);
      std::size_t total = 0;
      CHECK_THAT(::read(said[0], &total, sizeof total) == sizeof total);
      Tell(static_cast<std::int64_t>(total));
      int status = 0;
      CHECK_THAT(::waitpid(parent, &status, 0) == parent && status == 0);
      ::close(gate[1]);
      Barrier();
    },
    {.warm = false, .seconds = 30});

// A fork whose peer does not answer, where no descriptor is left: over a lane
// the child's copy is dead, and what it sends is not put between the frames of
// its parent's.
Case dead_copy_without_descriptors(
    "dead_copy_without_descriptors",
    [](int fd) {
      Tell(::getpid());
      char byte = 0;
      while (byte != 'p') RecvAll(fd, &byte, 1);
      SendAll(fd, "s", 1);
      Barrier();
    },
    [](int fd) {
      const auto server = static_cast<pid_t>(Hear());
      Stop(server);
      rlimit limit{};
      CHECK_THAT(::getrlimit(RLIMIT_NOFILE, &limit) == 0);
      const int lowest = ::dup(0);
      CHECK_THAT(lowest >= 0 && ::close(lowest) == 0);
      const rlimit none{static_cast<rlim_t>(lowest), limit.rlim_max};
      CHECK_THAT(::setrlimit(RLIMIT_NOFILE, &none) == 0);
      const pid_t child = ::fork();
      if (child == 0) {
        ::send(fd, "child", 5, MSG_NOSIGNAL);
        ::_exit(0);
      }
      LogChild(child);
      CHECK_THAT(::setrlimit(RLIMIT_NOFILE, &limit) == 0);
      CHECK_THAT(::kill(server, SIGCONT) == 0);
      SendAll(fd, "p", 1);
      char byte;
      RecvAll(fd, &byte, 1);
      Log("%c", byte);
      Barrier();
    });

// A connection whose bytes nobody reads: a process that ends while another
// thread of it forks resets it, or leaves that to the child.
Case exit_beside(
    "exit_while_forking_and_unread",
    [](int fd) {
      SendAll(fd, "never read", 10);
      char text[kTold];
      RecvAll(fd, text, sizeof text);
      Barrier();
      int error;
      Log("drained %zu", Drain(fd, &error));
      Barrier();
      pollfd one{fd, 0, 0};
      Result("poll", ::poll(&one, 1, 10'000));
      Log("%x", static_cast<unsigned>(one.revents));
      Result("send", ::send(fd, "x", 1, MSG_NOSIGNAL));
    },
    [](int fd) {
      const pid_t ends = ::fork();
      CHECK_THAT(ends >= 0);
      if (ends == 0) {
        const Sleeper sleeper(fd);
        pollfd one{fd, POLLIN, 0};
        CHECK_THAT(::poll(&one, 1, -1) == 1);
        // (As above.)
        for (int i = 0; i < kTold; ++i) {
          SendAll(fd, "x", 1);
          ::poll(nullptr, 0, 1);
        }
        CHECK_THAT(::shutdown(fd, SHUT_WR) == 0);
        Barrier();
        Barrier();
        const Fork fork;
        // (While it leaves its lane it would be reset, too.)
        ::poll(nullptr, 0, 100);
        ::_exit(0);
      }
      ::close(fd);
      LogChild(ends);
    },
    {.warm = false});

// --- A reset that is known before the fork

// What came before it is still there, and it is told behind that.
Case fork_behind_reset(
    "fork_behind_a_reset",
    [](int fd) {
      SendAll(fd, "last words", 10);
      char byte;
      RecvAll(fd, &byte, 1);
      const linger now{1, 0};
      CHECK_THAT(::setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now) ==
                 0);
      ::close(fd);
      Barrier();
    },
    [](int fd) {
      pollfd one{fd, POLLIN, 0};
      CHECK_THAT(::poll(&one, 1, -1) == 1);
      SendAll(fd, "x", 1);
      one.events = 0;
      // (The kernel shows the error a moment before the end.)
      do {
        CHECK_THAT(::poll(&one, 1, 10'000) == 1);
      } while ((one.revents & POLLHUP) == 0);
      Log("%x", static_cast<unsigned>(one.revents));
      const pid_t child = ::fork();
      if (child == 0) ::_exit(0);
      LogChild(child);
      char text[4];
      for (int i = 0; i < 5; ++i) {
        const ssize_t n = ::recv(fd, text, sizeof text, 0);
        Result("recv", static_cast<int>(n));
      }
      Result("send", static_cast<int>(::send(fd, "x", 1, MSG_NOSIGNAL)));
      Barrier();
    });

// One that nothing came before.  (A fork waits for no such peer.)
Case fork_after_reset(
    "fork_after_a_reset",
    [](int fd) {
      char byte;
      RecvAll(fd, &byte, 1);
      const linger now{1, 0};
      CHECK_THAT(::setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now) ==
                 0);
      ::close(fd);
      Barrier();
    },
    [](int fd) {
      SendAll(fd, "x", 1);
      pollfd one{fd, 0, 0};
      CHECK_THAT(::poll(&one, 1, 10'000) == 1);
      const pid_t child = ::fork();
      char byte;
      if (child == 0) {
        Result("in the child", static_cast<int>(::recv(fd, &byte, 1, 0)));
        ::_exit(0);
      }
      LogChild(child);
      Result("recv", static_cast<int>(::recv(fd, &byte, 1, 0)));
      Barrier();
    });

// --- Numbers

constexpr int kMeetings = 40;
constexpr int kMessages = 2000;

// dup2() whose source another thread closes either takes the place of what its
// target is, or fails and leaves it.
Case closed_source(
    "dup2_of_what_is_closed", [](int) {},
    [](int) {
      constexpr int kRounds = 4000;
      constexpr int kOver = kRounds + 1;
      const auto inode = [](int fd) {
        struct stat what {};
        CHECK_THAT(::fstat(fd, &what) == 0);
        return what.st_ino;
      };
      const int own = ::socket(AF_INET, SOCK_STREAM, 0);
      const int target = ::dup(own);
      CHECK_THAT(own >= 0 && target >= 0);
      std::atomic<int> source{-1};
      std::atomic<int> round{0};
      std::thread closes([&] {
        for (int i = 1;; ++i) {
          int now;
          while ((now = round) != i && now != kOver) {
          }
          if (now == kOver) return;
          for (int wait = i % 400; wait > 0; --wait) asm volatile("");
          CHECK_THAT(::close(source) == 0);
          round = -i;
        }
      });
      // (Each wait may cost a slice of others' who want the CPUs.)
      const std::uint64_t end = NowMs() + 5000;
      for (int i = 1; i <= kRounds && NowMs() < end; ++i) {
        const int fd = i % 2 == 0 ? ::socket(AF_INET, SOCK_STREAM, 0)
                                  : ::eventfd(0, EFD_CLOEXEC);
        CHECK_THAT(fd >= 0);
        const auto expected = inode(fd);
        source = fd;
        round = i;
        const int result = ::dup2(fd, target);
        if (result != target && errno != EBADF) {
          Fail("dup2: %s", ErrorName(errno));
        }
        // (All eventfds have one inode.)
        if (inode(target) != (result == target ? expected : inode(own))) {
          Fail("round %d: dup2 said %d", i, result);
        }
        while (round != -i) {
        }
        CHECK_THAT(::dup2(own, target) == target);
      }
      round = kOver;
      closes.join();
      Log("what it says is so");
    },
    {.warm = false, .connect = false});

// dup2() onto the lowest number that is free, where the kernel puts what
// rcsock's own thread opens meanwhile.
Case onto_lowest(
    "dup2_while_lanes_come",
    [](int) {
      const int listener = ListenAndTell();
      std::vector<std::thread> all;
      for (int i = Scale(kMeetings); i > 0; --i) {
        all.emplace_back([fd = ::accept(listener, nullptr, nullptr)] {
          CHECK_THAT(fd >= 0);
          Echo(fd, kMessages);
          ::close(fd);
        });
      }
      for (std::thread& one : all) one.join();
    },
    [](int) {
      const int port = static_cast<int>(Hear());
      for (int i = Scale(kMeetings); i > 0; --i) {
        // (Each process meets the server anew.)
        const pid_t child = ::fork();
        CHECK_THAT(child >= 0);
        if (child > 0) {
          int status = 0;
          CHECK_THAT(::waitpid(child, &status, 0) == child && status == 0);
          continue;
        }
        const int fd = Connect(port);
        const int own =
            ::eventfd(7, EFD_CLOEXEC | EFD_NONBLOCK | EFD_SEMAPHORE);
        const int lowest = ::dup(0);
        CHECK_THAT(own >= 0 && lowest >= 0 && ::close(lowest) == 0);
        std::atomic<bool> done{false};
        std::thread puts([&] {
          while (!done) {
            if (::dup2(own, lowest) != lowest)
              Fail("dup2: %s", ErrorName(errno));
            // (It would have been taken away, or be another's.)
            for (int k = 0; k < 8; ++k) {
              eventfd_t one = 0;
              CHECK_THAT(::eventfd_read(lowest, &one) == 0 && one == 1);
              CHECK_THAT(::eventfd_write(lowest, 1) == 0);
            }
            CHECK_THAT(::close(lowest) == 0);
          }
        });
        for (int k = 0; k < kMessages; ++k) {
          char text[16] = "meeting";
          SendAll(fd, text, sizeof text);
          RecvAll(fd, text, sizeof text);
        }
        done = true;
        puts.join();
        ::_exit(0);
      }
      Log("nothing else was there");
    },
    {.warm = false, .connect = false, .seconds = 40});

// librdmacm looks for ibacm once, and keeps the connection to it for good: it
// must be at no number that the application sees, or can close.
Case beside_ibacm(
    "numbers_beside_ibacm",
    [](int) {
      const int fd = Accept(ListenAndTell());
      Warm(fd);
      Echo(fd, kMessages);
      ::close(fd);
    },
    [](int) {
      // (Where it is nobody else's: in a guest.)
      const char* guest = std::getenv("IN_GUEST");
      pid_t ibacm = -1;
      if (guest != nullptr && *guest != '\0') {
        sockaddr_un name{AF_UNIX, "/run/ibacm.sock"};
        ::unlink(name.sun_path);
        const int listener = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        CHECK_THAT(::bind(listener, reinterpret_cast<sockaddr*>(&name),
                          sizeof name) == 0);
        CHECK_THAT(::listen(listener, 8) == 0);
        ibacm = ::fork();
        CHECK_THAT(ibacm >= 0);
        if (ibacm == 0) {
          ::prctl(PR_SET_PDEATHSIG, SIGKILL);
          for (;;) {
            const int asks = ::accept(listener, nullptr, nullptr);
            // Its messages are as long as they say; what is asked is unknown.
            char message[640];
            while (::recv(asks, message, sizeof message, 0) > 0) {
              const char unknown[16] = {1, '\x81', 3, 0, 0, 0, 16};
              if (::send(asks, unknown, sizeof unknown, MSG_NOSIGNAL) < 0)
                break;
            }
            ::close(asks);
          }
        }
        ::close(listener);
      }
      const int fd = Connect(HearPort());
      const int lowest = ::dup(0);
      CHECK_THAT(lowest >= 0 && ::close(lowest) == 0);
      Warm(fd);
      Call(fd, kMessages);
      const int next = ::dup(0);
      Log("the lowest that is free %s", next == lowest ? "still is" : "is not");
      ::close(fd);
      if (ibacm > 0) {
        CHECK_THAT(::kill(ibacm, SIGKILL) == 0);
        CHECK_THAT(::waitpid(ibacm, nullptr, 0) == ibacm);
      }
    },
    {.warm = false, .connect = false});

// --- A set whose number another one has at once

// So many that the kernel is busy with the end of their set for a while: the
// number is free by then.
constexpr int kCrowd = 12'000;

epoll_event Event(std::uint32_t events, std::uint64_t data) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = data;
  return event;
}

constexpr std::uint64_t kOld = 0x01d;

void ExpectNothing(int set) {
  epoll_event event{};
  const int n = ::epoll_wait(set, &event, 1, 0);
  CHECK_THAT(n >= 0);
  if (n > 0) {
    Fail("told of %llx, %x", static_cast<unsigned long long>(event.data.u64),
         event.events);
  }
}

Case next_set(
    "set_of_the_same_number",
    [](int) {
      const int listener = ListenAndTell();
      for (int i = 0; i < 10; ++i) {
        const int fd = Accept(listener);
        Warm(fd);
        SendAll(fd, "something to be told of", 23);
        Barrier();
        Barrier();
        ::close(fd);
      }
    },
    [](int) {
      const int port = static_cast<int>(Hear());
      rlimit limit{};
      CHECK_THAT(::getrlimit(RLIMIT_NOFILE, &limit) == 0);
      limit.rlim_cur = limit.rlim_max;
      CHECK_THAT(::setrlimit(RLIMIT_NOFILE, &limit) == 0);
      // (Before the others: their numbers are higher than those of the sets.)
      const int place = ::eventfd(0, EFD_CLOEXEC);
      CHECK_THAT(place >= 0);
      std::vector<int> fds;
      for (int i = 0; i < 10; ++i) fds.push_back(Connect(port));
      std::vector<int> crowd;
      for (int i = 0; i < kCrowd; ++i) {
        const int one = i == 0 ? ::eventfd(0, EFD_CLOEXEC) : ::dup(crowd[0]);
        if (one < 0) break;
        crowd.push_back(one);
      }
      ::close(place);
      for (const int fd : fds) {
        Warm(fd);
        const int set = ::epoll_create1(EPOLL_CLOEXEC);
        CHECK_THAT(set == place);
        epoll_event event = Event(EPOLLIN, kOld);
        CHECK_THAT(::epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
        for (const int one : crowd) {
          CHECK_THAT(::epoll_ctl(set, EPOLL_CTL_ADD, one, &event) == 0);
        }
        Barrier();
        CHECK_THAT(::epoll_wait(set, &event, 1, -1) == 1);
        std::thread closes([set] { CHECK_THAT(::close(set) == 0); });
        int next;
        while ((next = ::epoll_create1(EPOLL_CLOEXEC)) != set) ::close(next);
        // By this it leaves its lane.
        const int two = 2;
        CHECK_THAT(
            ::setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &two, sizeof two) == 0);
        ExpectNothing(next);
        closes.join();
        ExpectNothing(next);
        ::close(next);
        Barrier();
        ::close(fd);
      }
      Log("each is told of its own");
    },
    {.warm = false, .connect = false, .seconds = 60});

}  // namespace
