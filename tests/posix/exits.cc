// How processes end, by their first or last thread, exit or exec, and what they
// still owe then.
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "tests/posix/bulk.h"
#include "tests/posix/pair.h"

namespace {

using namespace pair;

// Where the first thread leaves by pthread_exit, the process ends with the last
// one, as by exit(0): with the functions that are called then, and with what is
// still owed to the peer.
pthread_t first_thread;

void LeaveFirstThread(void (*then)(int), int fd) {
  first_thread = ::pthread_self();
  CHECK_THAT(std::atexit([] { Log("exit's functions run"); }) == 0);
  std::thread([then, fd] {
    CHECK_THAT(::pthread_join(first_thread, nullptr) == 0);
    then(fd);
    Log("the last thread ends");
  }).detach();
  ::pthread_exit(nullptr);
}

Case first_thread_ends(
    "first_thread_ends",
    [](int fd) {
      LeaveFirstThread([](int one) { SendEvenly(one, 1, 1'000'000); }, fd);
    },
    [](int fd) { RecvEvenly(fd, 1, 1'000'000), LogDrain(fd); });

// The connection, and with it all that rcsock starts, comes after.
Case first_thread_ended(
    "first_thread_ended",
    [](int) {
      LeaveFirstThread(
          [](int) {
            const int listener = ListenAndTell();
            const int fd = ::accept(listener, nullptr, nullptr);
            Warm(fd);
            SendEvenly(fd, 1, 1'000'000);
          },
          -1);
    },
    [](int) {
      const int fd = Connect(HearPort());
      Warm(fd);
      RecvEvenly(fd, 1, 1'000'000);
      LogDrain(fd);
    },
    {.warm = false, .connect = false});

// A signal ends the process then as ever: while the last thread waits, and in
// the functions that exit calls.
Case first_thread_and_signal(
    "first_thread_ends_by_signal",
    [](int fd) {
      Tell(::getpid());
      LeaveFirstThread(
          [](int one) {
            Barrier();
            char byte;
            ::recv(one, &byte, 1, 0);
          },
          fd);
    },
    [](int) {
      const auto server = static_cast<pid_t>(Hear());
      Barrier();
      CHECK_THAT(::kill(server, SIGTERM) == 0);
    });
Case exit_and_signal(
    "first_thread_ends_signal_in_exit",
    [](int fd) {
      Tell(::getpid());
      // (Called before the other one.)
      CHECK_THAT(std::atexit([] {
                   Barrier();
                   for (;;) ::pause();
                 }) == 0);
      LeaveFirstThread([](int) {}, fd);
    },
    [](int) {
      const auto server = static_cast<pid_t>(Hear());
      Barrier();
      CHECK_THAT(::kill(server, SIGTERM) == 0);
    });

// In a child of fork the thread that forked is the first.
Case first_thread_of_child_ends(
    "first_thread_of_child_ends",
    [](int fd) {
      std::thread([fd] {
        const pid_t child = ::fork();
        if (child == 0) {
          SendAll(fd, "child", 5);
          ::close(fd);
          const int listener = ListenAndTell();
          const int other = Accept(listener);
          Warm(other);
          ::pthread_exit(nullptr);
        }
        ::close(fd);
        int status = 0;
        CHECK_THAT(::waitpid(child, &status, 0) == child);
        Log("the child's status is %x", static_cast<unsigned>(status));
      }).join();
    },
    [](int fd) {
      LogDrain(fd);
      const int other = Connect(HearPort());
      Warm(other);
      LogDrain(other);
    });

// ... also where there is no /proc to be seen.
Case first_thread_in_chroot(
    "first_thread_ends_in_chroot",
    [](int fd) {
      char empty[] = "/tmp/rcsock-ends.XXXXXX";
      CHECK_THAT(::mkdtemp(empty) != nullptr);
      if (::chroot(empty) != 0) {
        std::fprintf(stderr, "SKIPPED: no chroot here: %s\n", ErrorName(errno));
      }
      ::rmdir(empty);
      LeaveFirstThread([](int one) { SendEvenly(one, 1, 100'000); }, fd);
    },
    [](int fd) { RecvEvenly(fd, 1, 100'000), LogDrain(fd); });

// The handler of a fault inside a call ends the process.  (TCP says EFAULT, and
// the program ends by itself.)
Case fault_exits(
    "exit_in_the_handler_of_a_fault",
    [](int fd) {
      CHECK_THAT(::signal(SIGSEGV, [](int) { ::_exit(7); }) != SIG_ERR);
      void* none =
          ::mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      CHECK_THAT(none != MAP_FAILED);
      ::send(fd, none, 100, MSG_NOSIGNAL);
      ::_exit(7);
    },
    [](int fd) {
      // (To a peer over RDMA it is as a kill: docs/compatibility.md.)
      int error;
      Result("drained", static_cast<long>(Drain(fd, &error)));
    });

// The reader has stopped, so that the stream leaves its lane, and TCP has
// little room: what it owes is still here when the program goes on.
std::int64_t SendMost(int fd) {
  const int room = 4096;
  ::setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
  Barrier();
  SetNonblock(fd, true);
  std::vector<char> piece(1 << 16);
  std::int64_t sent = 0;
  for (int turn = 0; turn < 2; ++turn) {
    for (;;) {
      Pattern(9, static_cast<std::uint64_t>(sent), piece.data(), piece.size());
      const long n = ::write(fd, piece.data(), piece.size());
      if (n <= 0) break;
      sent += n;
    }
    // (A receiver counts as one that has stopped after 100 to 200 ms.)
    ::poll(nullptr, 0, 400);
  }
  return sent;
}

void LittleRoom(int fd) {
  const int room = 32768;
  ::setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &room, sizeof room);
  Barrier();
}

void TakeMost(int fd) {
  LittleRoom(fd);
  const std::int64_t sent = Hear();
  ::poll(nullptr, 0, 500);  // it has ended, if it does not wait
  RecvEvenly(fd, 9, static_cast<std::size_t>(sent));
  LogDrain(fd);
}

Case close_owing(
    "close_owing_exit",
    [](int fd) {
      Tell(SendMost(fd));
      ::close(fd);
      ::exit(0);
    },
    TakeMost);

void LimitNumbers() {
  rlimit limit{};
  CHECK_THAT(::getrlimit(RLIMIT_NOFILE, &limit) == 0);
  limit.rlim_cur = 200;
  CHECK_THAT(::setrlimit(RLIMIT_NOFILE, &limit) == 0);
}

// There is no other number for the connection.
Case close_owing_at_limit(
    "close_owing_at_limit",
    [](int) {
      LimitNumbers();
      const int listener = ListenAndTell();
      const int fd = ::accept(listener, nullptr, nullptr);
      Warm(fd);
      Tell(SendMost(fd));
      while (::dup(0) >= 0) {
      }
      Result("close", ::close(fd));
      const int again = ::open("/dev/null", O_RDONLY);
      Log("the number is free %d", again == fd);
      ::exit(0);
    },
    [](int) {
      const int fd = Connect(HearPort());
      Warm(fd);
      TakeMost(fd);
    },
    {.warm = false, .connect = false});

// ... nor for another one, beside it; the number of the first is taken again.
Case close_owing_two_at_limit(
    "close_owing_two_at_limit",
    [](int) {
      LimitNumbers();
      const int listener = ListenAndTell();
      int fds[2];
      for (int& fd : fds) Warm(fd = ::accept(listener, nullptr, nullptr));
      for (const int fd : fds) Tell(SendMost(fd));
      for (const int fd : fds) {
        while (::dup(0) >= 0) {
        }
        Result("close", ::close(fd));
      }
      ::exit(0);
    },
    [](int) {
      const int port = static_cast<int>(Hear());
      int fds[2];
      for (int& fd : fds) Warm(fd = Connect(port));
      std::int64_t sent[2];
      for (int i = 0; i < 2; ++i) {
        LittleRoom(fds[i]);
        sent[i] = Hear();
      }
      ::poll(nullptr, 0, 500);  // it has ended, if it does not wait
      for (int i = 0; i < 2; ++i) {
        RecvEvenly(fds[i], 9, static_cast<std::size_t>(sent[i]));
        LogDrain(fds[i]);
      }
    },
    {.warm = false, .connect = false});

// exec waits for a second only, and what is owed then is lost: not by an
// orderly end.
void TellHonest(int fd) {
  LittleRoom(fd);
  const std::int64_t sent = Hear();
  ::poll(nullptr, 0, 2500);
  int error = 0;
  const std::size_t n = Drain(fd, &error);
  Log("all, or an error: %d",
      error == ECONNRESET || n == static_cast<std::size_t>(sent));
}
Case exec_owing(
    "exec_owing_closed",
    [](int fd) {
      Tell(SendMost(fd));
      ::close(fd);
      ::execl("/bin/true", "true", static_cast<char*>(nullptr));
    },
    TellHonest);
Case exec_owing_open(
    "exec_owing_cloexec",
    [](int fd) {
      Tell(SendMost(fd));
      ::fcntl(fd, F_SETFD, FD_CLOEXEC);
      ::execl("/bin/true", "true", static_cast<char*>(nullptr));
    },
    TellHonest);

// An exec that fails takes nothing from anybody.
Case exec_fails_owing(
    "exec_fails_owing",
    [](int fd) {
      Tell(SendMost(fd));
      ::fcntl(fd, F_SETFD, FD_CLOEXEC);
      ::execl("/nowhere", "nowhere", static_cast<char*>(nullptr));
      Result("close", ::close(fd));
      Barrier();
    },
    [](int fd) {
      LittleRoom(fd);
      const std::int64_t sent = Hear();
      ::poll(nullptr, 0, 1500);
      RecvEvenly(fd, 9, static_cast<std::size_t>(sent));
      LogDrain(fd);
      Barrier();
    });

Case exit_without_close(
    "exit_without_close",
    [](int fd) {
      SendEvenly(fd, 8, 150'000);
      Barrier();
      ::exit(0);
    },
    [](int fd) {
      Barrier();
      RecvEvenly(fd, 8, 150'000);
      LogDrain(fd);
    });

Case raw_exit(
    "_exit_without_close",
    [](int fd) {
      SendEvenly(fd, 8, 60'000);
      Barrier();
      ::_exit(3);
    },
    [](int fd) {
      Barrier();
      RecvEvenly(fd, 8, 60'000);
      LogDrain(fd);
    });

// Its handlers still have the connection.
int last_words = -1;

Case quick_exit(
    "quick_exit",
    [](int fd) {
      last_words = fd;
      ::at_quick_exit([] {
        char unread[6];
        RecvAll(last_words, unread, sizeof unread);
        SendAll(last_words, "bye", 3);
      });
      Barrier();
      pollfd one{fd, POLLIN, 0};
      ::poll(&one, 1, -1);
      ::quick_exit(0);
    },
    [](int fd) {
      SendAll(fd, "unread", 6);
      Barrier();
      LogDrain(fd);
    });

// A peer that is stopped, over several connections, is not waited for long; it
// finds all when it goes on.
constexpr int kLeft = 4;
Case exit_stopped(
    "exit_stopped_peer",
    [](int) {
      const int listener = ListenAndTell();
      int fds[kLeft];
      for (int& fd : fds) {
        fd = ::accept(listener, nullptr, nullptr);
        CHECK_THAT(fd >= 0);
        Warm(fd);
      }
      Tell(::getpid());
      Barrier();
      for (const int fd : fds) LogDrain(fd);
    },
    [](int) {
      int about[2];
      CHECK_THAT(::pipe(about) == 0);
      const pid_t child = ::fork();
      CHECK_THAT(child >= 0);
      if (child == 0) {
        const int port = static_cast<int>(Hear());
        int fds[kLeft];
        for (int& fd : fds) Warm(fd = Connect(port));
        const auto peer = static_cast<pid_t>(Hear());
        Stop(peer);
        const char text[1000] = {};
        for (const int fd : fds) SendAll(fd, text, sizeof text);
        ::write(about[1], &peer, sizeof peer);
        ::exit(0);
      }
      pid_t peer;
      CHECK_THAT(::read(about[0], &peer, sizeof peer) == sizeof peer);
      const std::uint64_t start = NowMs();
      int status = 0;
      CHECK_THAT(::waitpid(child, &status, 0) == child);
      const std::uint64_t took = NowMs() - start;
      Log("status %d, %s", status, took < 3000 ? "in time" : "late");
      CHECK_THAT(::kill(peer, SIGCONT) == 0);
      Barrier();
    },
    {.warm = false, .connect = false, .seconds = 60});

}  // namespace
