// How connections end: half-close, EOF, resets, kills.
#include <dirent.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/posix/pair.h"

namespace {

using namespace pair;

void LogDrain(int fd) {
  int error;
  const std::size_t n = Drain(fd, &error);
  Log("drained %zu, then %s", n, error == 0 ? "EOF" : ErrorName(error));
}

// What poll says once it says all of `wanted`.
void AwaitPoll(int fd, short events, short wanted) {
  for (;;) {
    pollfd one{fd, events, 0};
    CHECK_THAT(::poll(&one, 1, -1) == 1);
    if ((one.revents & wanted) == wanted) {
      Log("poll %x", static_cast<unsigned>(one.revents));
      return;
    }
    pollfd none{-1, 0, 0};
    ::poll(&none, 1, 1);
  }
}

void Bulk(int fd, std::uint64_t seed, std::size_t total) {
  std::vector<char> buffer(70'000);
  for (std::size_t at = 0; at < total;) {
    const std::size_t n = std::min(buffer.size(), total - at);
    Pattern(seed, at, buffer.data(), n);
    SendAll(fd, buffer.data(), n);
    at += n;
  }
}

void CheckBulk(int fd, std::uint64_t seed, std::size_t total) {
  std::vector<char> buffer(50'000);
  for (std::size_t at = 0; at < total;) {
    const std::size_t n = std::min(buffer.size(), total - at);
    RecvAll(fd, buffer.data(), n);
    CHECK_THAT(IsPattern(seed, at, buffer.data(), n));
    at += n;
  }
}

// The client says all, half-closes, and hears all.
Case half_close_client(
    "half_close_client",
    [](int fd) {
      CheckBulk(fd, 1, 3'000'000);
      LogDrain(fd);
      AwaitPoll(fd, POLLIN | POLLRDHUP | POLLOUT, POLLIN | POLLRDHUP | POLLOUT);
      Bulk(fd, 2, 3'000'000);
      Result("close", ::close(fd));
    },
    [](int fd) {
      Bulk(fd, 1, 3'000'000);
      Result("shutdown", ::shutdown(fd, SHUT_WR));
      errno = 0;
      Result("send", ::send(fd, "x", 1, MSG_NOSIGNAL));
      CheckBulk(fd, 2, 3'000'000);
      LogDrain(fd);
      AwaitPoll(fd, POLLIN | POLLOUT | POLLRDHUP, POLLHUP);
      Result("close", ::close(fd));
    });

Case half_close_server(
    "half_close_server",
    [](int fd) {
      Bulk(fd, 1, 1'000'000);
      Result("shutdown", ::shutdown(fd, SHUT_WR));
      CheckBulk(fd, 2, 1'000'000);
      LogDrain(fd);
      Result("close", ::close(fd));
    },
    [](int fd) {
      CheckBulk(fd, 1, 1'000'000);
      LogDrain(fd);
      LogDrain(fd);
      Bulk(fd, 2, 1'000'000);
      Result("close", ::close(fd));
    });

Case both_half_close(
    "both_half_close",
    [](int fd) {
      SendAll(fd, "abc", 3);
      ::shutdown(fd, SHUT_WR);
      LogDrain(fd);
      AwaitPoll(fd, POLLIN | POLLOUT | POLLRDHUP, POLLHUP);
      Barrier();
      Result("close", ::close(fd));
    },
    [](int fd) {
      SendAll(fd, "defg", 4);
      ::shutdown(fd, SHUT_WR);
      LogDrain(fd);
      AwaitPoll(fd, POLLIN | POLLOUT | POLLRDHUP, POLLHUP);
      Barrier();
      Result("close", ::close(fd));
    });

// The peer closes; a write is taken, and the answer to it ends the connection.
Case write_after_close(
    "write_after_close",
    [](int fd) {
      Result("close", ::close(fd));
      Barrier();
      Barrier();
    },
    [](int fd) {
      Barrier();
      LogDrain(fd);
      AwaitPoll(fd, POLLIN | POLLRDHUP, POLLIN | POLLRDHUP);
      Result("first send", ::send(fd, "x", 1, MSG_NOSIGNAL));
      for (;;) {
        const ssize_t n = ::send(fd, "x", 1, MSG_NOSIGNAL);
        if (n < 0) {
          Result("a later send", n);
          break;
        }
        pollfd none{-1, 0, 0};
        ::poll(&none, 1, 1);
      }
      Result("send again", ::send(fd, "x", 1, MSG_NOSIGNAL));
      char byte;
      Result("recv", ::recv(fd, &byte, 1, 0));
      AwaitPoll(fd, POLLIN | POLLRDHUP | POLLOUT, POLLHUP);
      Result("close", ::close(fd));
      Barrier();
    });

// Descriptors of this process, under whatever number, that are connected to one
// of `ports`.
int ConnectedTo(const std::set<int>& ports) {
  int found = 0;
  DIR* const all = ::opendir("/proc/self/fd");
  CHECK_THAT(all != nullptr);
  while (const dirent* one = ::readdir(all)) {
    const int fd = std::atoi(one->d_name);
    sockaddr_in peer{};
    socklen_t length = sizeof peer;
    if (one->d_name[0] != '.' &&
        ::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &length) == 0 &&
        peer.sin_family == AF_INET && ports.contains(ntohs(peer.sin_port))) {
      ++found;
    }
  }
  ::closedir(all);
  return found;
}

// A server that closes what is idle has the descriptors back, though the client
// keeps its end and does not look.
constexpr int kIdle = 12;
Case close_idle(
    "close_frees_the_descriptor",
    [](int) {
      int port;
      const int listener = Listen(&port);
      Tell(port);
      std::vector<int> fds;
      std::set<int> ports;
      for (int i = 0; i < kIdle; ++i) {
        sockaddr_in peer{};
        socklen_t length = sizeof peer;
        fds.push_back(
            ::accept(listener, reinterpret_cast<sockaddr*>(&peer), &length));
        CHECK_THAT(fds.back() >= 0);
        ports.insert(ntohs(peer.sin_port));
        Warm(fds.back());
        // Some hear a last word before the close.
        if (i % 3 == 1) {
          SendAll(fds.back(), "idle", 4);
          Barrier();
        }
      }
      Log("%d connected", ConnectedTo(ports));
      for (const int fd : fds) CHECK_THAT(::close(fd) == 0);
      Barrier();
      const std::uint64_t until = NowMs() + 10'000;
      while (ConnectedTo(ports) != 0 && NowMs() < until) ::poll(nullptr, 0, 5);
      Log("%d connected", ConnectedTo(ports));
      Barrier();
      Barrier();
    },
    [](int) {
      const int port = static_cast<int>(Hear());
      std::vector<int> fds;
      for (int i = 0; i < kIdle; ++i) {
        fds.push_back(Connect(port));
        Warm(fds.back());
        char text[4];
        if (i % 3 == 1) {
          RecvAll(fds.back(), text, sizeof text);
          Barrier();
        }
      }
      Barrier();
      Barrier();
      for (int i = 0; i < kIdle; ++i) {
        const int fd = fds[static_cast<std::size_t>(i)];
        AwaitPoll(fd, POLLIN | POLLOUT | POLLRDHUP,
                  POLLIN | POLLOUT | POLLRDHUP);
        if (i % 2 == 0) LogDrain(fd);
        Result("first send", ::send(fd, "x", 1, MSG_NOSIGNAL));
        ssize_t n;
        while ((n = ::send(fd, "x", 1, MSG_NOSIGNAL)) > 0) {
          ::poll(nullptr, 0, 1);
        }
        Result("a later send", n);
        LogDrain(fd);
        AwaitPoll(fd, POLLIN | POLLOUT | POLLRDHUP, POLLHUP);
        Result("close", ::close(fd));
      }
      Barrier();
    },
    {.warm = false, .connect = false});

// A child of fork has no part in what was closed before, though the peer has
// not read all of it yet.
Case close_then_fork(
    "close_then_fork",
    [](int fd) {
      sockaddr_in peer{};
      socklen_t length = sizeof peer;
      CHECK_THAT(
          ::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &length) == 0);
      const std::set<int> port{ntohs(peer.sin_port)};
      SendAll(fd, "last words", 10);
      Result("close", ::close(fd));
      int to_child[2], to_parent[2];
      CHECK_THAT(::pipe(to_child) == 0 && ::pipe(to_parent) == 0);
      const pid_t child = ::fork();
      if (child == 0) {
        ::close(to_child[1]);
        char found = static_cast<char>(ConnectedTo(port));
        CHECK_THAT(::write(to_parent[1], &found, 1) == 1);
        ::_exit(::read(to_child[0], &found, 1) == 0 ? 0 : 1);
      }
      char found = 9;
      CHECK_THAT(::read(to_parent[0], &found, 1) == 1);
      Log("the child has %d", found);
      Barrier();
      Barrier();
      ::close(to_child[1]);
      CHECK_THAT(::waitpid(child, nullptr, 0) == child);
    },
    [](int fd) {
      Barrier();
      ssize_t n;
      while ((n = ::send(fd, "x", 1, MSG_NOSIGNAL)) > 0) {
        ::poll(nullptr, 0, 1);
      }
      Result("send", n);
      Barrier();
    });

// The peer exits: a last word to it is taken all the same.
Case write_after_exit(
    "write_after_exit",
    [](int) {
      Barrier();
      ::_exit(0);
    },
    [](int fd) {
      Barrier();
      LogDrain(fd);
      Result("first send", ::write(fd, "x", 1));
    });

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
      LeaveFirstThread([](int one) { Bulk(one, 1, 1'000'000); }, fd);
    },
    [](int fd) { CheckBulk(fd, 1, 1'000'000), LogDrain(fd); });

// The connection, and with it all that rcsock starts, comes after.
Case first_thread_ended(
    "first_thread_ended",
    [](int) {
      LeaveFirstThread(
          [](int) {
            int port;
            const int listener = Listen(&port);
            Tell(port);
            const int fd = ::accept(listener, nullptr, nullptr);
            Warm(fd);
            Bulk(fd, 1, 1'000'000);
          },
          -1);
    },
    [](int) {
      const int fd = Connect(static_cast<int>(Hear()));
      Warm(fd);
      CheckBulk(fd, 1, 1'000'000);
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
          int port;
          const int listener = Listen(&port);
          Tell(port);
          const int other = ::accept(listener, nullptr, nullptr);
          CHECK_THAT(other >= 0);
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
      const int other = Connect(static_cast<int>(Hear()));
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
      LeaveFirstThread([](int one) { Bulk(one, 1, 100'000); }, fd);
    },
    [](int fd) { CheckBulk(fd, 1, 100'000), LogDrain(fd); });

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

volatile sig_atomic_t pipes = 0;

Case sigpipe(
    "sigpipe",
    [](int fd) {
      ::close(fd);
      Barrier();
    },
    [](int fd) {
      struct sigaction action {};
      action.sa_handler = [](int) { pipes = pipes + 1; };
      ::sigaction(SIGPIPE, &action, nullptr);
      Barrier();
      LogDrain(fd);
      ssize_t n;
      do {
        n = ::write(fd, "x", 1);
      } while (n > 0);
      Result("write", n);
      Log("SIGPIPE %d times", static_cast<int>(pipes));
      Result("send, no signal", ::send(fd, "x", 1, MSG_NOSIGNAL));
      Log("SIGPIPE %d times", static_cast<int>(pipes));
      // And the default action.
      ::signal(SIGPIPE, SIG_DFL);
      ::write(fd, "x", 1);
      Log("not reached");
    });

Case own_shutdown_sigpipe(
    "own_shutdown_sigpipe", [](int fd) { LogDrain(fd); },
    [](int fd) {
      struct sigaction action {};
      action.sa_handler = [](int) { pipes = pipes + 1; };
      ::sigaction(SIGPIPE, &action, nullptr);
      ::shutdown(fd, SHUT_WR);
      Result("write", ::write(fd, "x", 1));
      Result("write nothing", ::write(fd, "", 0));
      Log("SIGPIPE %d times", static_cast<int>(pipes));
    });

Case shutdown_read(
    "shutdown_read",
    [](int fd) {
      SendAll(fd, "before", 6);
      Barrier();
      Barrier();
      SendAll(fd, "after", 5);
      Barrier();
      char text[8];
      RecvAll(fd, text, 2);
      Barrier();
      Result("close", ::close(fd));
    },
    [](int fd) {
      Barrier();
      char text[64];
      pollfd one{fd, POLLIN, 0};
      ::poll(&one, 1, -1);
      Result("shutdown", ::shutdown(fd, SHUT_RD));
      Result("recv", ::recv(fd, text, sizeof text, 0));
      Result("recv at the end", ::recv(fd, text, sizeof text, 0));
      Result("recv at the end", ::recv(fd, text, sizeof text, MSG_DONTWAIT));
      AwaitPoll(fd, POLLIN | POLLOUT | POLLRDHUP, POLLIN | POLLRDHUP | POLLOUT);
      Barrier();
      Barrier();
      // Linux still takes what comes after shutdown(SHUT_RD).
      Result("send", ::send(fd, "ok", 2, 0));
      Barrier();
    });

Case shutdown_both(
    "shutdown_both",
    [](int fd) {
      Barrier();
      LogDrain(fd);
      Result("close", ::close(fd));
    },
    [](int fd) {
      Result("send", ::send(fd, "bye", 3, 0));
      Result("shutdown", ::shutdown(fd, SHUT_RDWR));
      Result("send", ::send(fd, "x", 1, MSG_NOSIGNAL));
      char byte;
      Result("recv", ::recv(fd, &byte, 1, 0));
      Barrier();
      AwaitPoll(fd, POLLIN | POLLOUT | POLLRDHUP, POLLHUP | POLLRDHUP | POLLIN);
      Result("close", ::close(fd));
    });

Case shutdown_bad(
    "shutdown_bad", [](int fd) { LogDrain(fd); },
    [](int fd) {
      Result("shutdown 7", ::shutdown(fd, 7));
      Result("shutdown -1", ::shutdown(fd, -1));
      Result("send", ::send(fd, "ok", 2, 0));
    });

// It closes nothing: the connection may leave TCP after it.
Case shutdown_bad_first(
    "shutdown_bad_first",
    [](int fd) {
      Warm(fd);
      LogDrain(fd);
    },
    [](int fd) {
      Result("shutdown 7", ::shutdown(fd, 7));
      Warm(fd);
      Result("send", ::send(fd, "ok", 2, 0));
    },
    {.warm = false});

// Unread data at close: the peer gets a reset.
Case close_unread(
    "close_unread",
    [](int fd) {
      Barrier();
      pollfd one{fd, POLLIN, 0};
      ::poll(&one, 1, -1);
      Result("close", ::close(fd));
      Barrier();
      Barrier();
    },
    [](int fd) {
      SendAll(fd, "never read", 10);
      Barrier();
      Barrier();
      // The reset throws away nothing here: nothing was sent to us.
      LogDrain(fd);
      LogDrain(fd);
      AwaitPoll(fd, POLLIN | POLLOUT | POLLRDHUP, POLLHUP);
      Result("send", ::send(fd, "x", 1, MSG_NOSIGNAL));
      Barrier();
    });

// What poll says of a reset, until somebody has been told of it: by what each
// letter of `order` does.
const char* const kOrders[] = {"wp",  "wpr",  "wrp",  "wps", "weps",
                               "rwp", "rwpr", "rwsp", "wepr"};
const char* const kResets[] = {"p", "pr", "prp", "psp", "pep", "rp"};

void SayAll(int fd, const char* order) {
  for (const char* at = order; *at != 0; ++at) {
    char byte = 'x';
    if (*at == 'w') {
      // The answer is a reset.
      Result("write", ::send(fd, &byte, 1, MSG_NOSIGNAL));
      AwaitPoll(fd, 0, POLLHUP);
    } else if (*at == 'r') {
      Result("recv", ::recv(fd, &byte, 1, 0));
    } else if (*at == 's') {
      Result("send", ::send(fd, &byte, 1, MSG_NOSIGNAL));
    } else if (*at == 'e') {
      int error = 0;
      socklen_t size = sizeof error;
      ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
      Log("error: %s", error == 0 ? "none" : ErrorName(error));
    }
    pollfd one{fd, POLLIN | POLLOUT | POLLRDHUP, 0};
    ::poll(&one, 1, 0);
    Log("%c: %x", *at, static_cast<unsigned>(one.revents));
  }
}

Case reset_polled(
    "reset_polled",
    [](int) {
      int port;
      const int listener = Listen(&port);
      Tell(port);
      for (std::size_t i = 0; i < std::size(kOrders) + std::size(kResets);
           ++i) {
        const int fd = ::accept(listener, nullptr, nullptr);
        CHECK_THAT(fd >= 0);
        Warm(fd);
        if (i >= std::size(kOrders)) {
          pollfd one{fd, POLLIN, 0};
          ::poll(&one, 1, -1);
        }
        ::close(fd);
        Barrier();
        Barrier();
      }
    },
    [](int) {
      const int port = static_cast<int>(Hear());
      for (const char* order : kOrders) {
        const int fd = Connect(port);
        Warm(fd);
        Barrier();
        AwaitPoll(fd, POLLIN | POLLRDHUP, POLLIN | POLLRDHUP);
        Log("closed, %s", order);
        SayAll(fd, order);
        ::close(fd);
        Barrier();
      }
      for (const char* order : kResets) {
        const int fd = Connect(port);
        Warm(fd);
        SendAll(fd, "never read", 10);
        Barrier();
        AwaitPoll(fd, 0, POLLHUP);
        Log("reset, %s", order);
        SayAll(fd, order);
        ::close(fd);
        Barrier();
      }
    },
    {.warm = false, .connect = false, .seconds = 60});

// No address in particular means this host.
Case connect_any(
    "connect_to_no_address",
    [](int) {
      int port;
      const int listener = Listen(&port);
      Tell(port);
      const int fd = ::accept(listener, nullptr, nullptr);
      CHECK_THAT(fd >= 0);
      Warm(fd);
      LogDrain(fd);
    },
    [](int) {
      sockaddr_in to{};
      to.sin_family = AF_INET;
      to.sin_port = htons(static_cast<std::uint16_t>(Hear()));
      const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
      CHECK_THAT(::connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof to) ==
                 0);
      Warm(fd);
      Result("close", ::close(fd));
    },
    {.warm = false, .connect = false});

Case linger_reset(
    "linger_reset",
    [](int fd) {
      linger option{1, 0};
      CHECK_THAT(
          ::setsockopt(fd, SOL_SOCKET, SO_LINGER, &option, sizeof option) == 0);
      Result("close", ::close(fd));
      Barrier();
    },
    [](int fd) {
      LogDrain(fd);
      LogDrain(fd);
      Result("send", ::send(fd, "x", 1, MSG_NOSIGNAL));
      Barrier();
    });

Case linger_waits(
    "linger_waits",
    [](int fd) {
      linger option{1, 5};
      CHECK_THAT(
          ::setsockopt(fd, SOL_SOCKET, SO_LINGER, &option, sizeof option) == 0);
      Bulk(fd, 5, 200'000);
      Result("close", ::close(fd));
    },
    [](int fd) {
      CheckBulk(fd, 5, 200'000);
      LogDrain(fd);
    });

// Everything written before close or exit arrives, however slow the reader.
Case close_at_once(
    "close_at_once",
    [](int fd) {
      Bulk(fd, 7, 150'000);
      Result("close", ::close(fd));
      Barrier();
    },
    [](int fd) {
      Barrier();
      CheckBulk(fd, 7, 150'000);
      LogDrain(fd);
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
  CheckBulk(fd, 9, static_cast<std::size_t>(sent));
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
      int port;
      const int listener = Listen(&port);
      Tell(port);
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
      const int fd = Connect(static_cast<int>(Hear()));
      Warm(fd);
      TakeMost(fd);
    },
    {.warm = false, .connect = false});

// ... nor for another one, beside it; the number of the first is taken again.
Case close_owing_two_at_limit(
    "close_owing_two_at_limit",
    [](int) {
      LimitNumbers();
      int port;
      const int listener = Listen(&port);
      Tell(port);
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
        CheckBulk(fds[i], 9, static_cast<std::size_t>(sent[i]));
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
      CheckBulk(fd, 9, static_cast<std::size_t>(sent));
      LogDrain(fd);
      Barrier();
    });

Case exit_without_close(
    "exit_without_close",
    [](int fd) {
      Bulk(fd, 8, 150'000);
      Barrier();
      ::exit(0);
    },
    [](int fd) {
      Barrier();
      CheckBulk(fd, 8, 150'000);
      LogDrain(fd);
    });

Case raw_exit(
    "_exit_without_close",
    [](int fd) {
      Bulk(fd, 8, 60'000);
      Barrier();
      ::_exit(3);
    },
    [](int fd) {
      Barrier();
      CheckBulk(fd, 8, 60'000);
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
// Rounds between two processes that end, each with a connection of its own.
// (Their parent has none: a child of one that has used an RDMA device can't.)
void EndRounds(int rounds, void (*answers)(int fd), void (*asks)(int fd)) {
  for (int i = 0; i < rounds; ++i) {
    int port;
    const int listener = Listen(&port);
    pid_t ends[2];
    for (int end = 0; end < 2; ++end) {
      ends[end] = ::fork();
      CHECK_THAT(ends[end] >= 0);
      if (ends[end] > 0) continue;
      const int fd =
          end == 0 ? ::accept(listener, nullptr, nullptr) : Connect(port);
      CHECK_THAT(fd >= 0);
      ::close(listener);
      WarmAs(fd, end == 1);
      (end == 0 ? answers : asks)(fd);
      ::_exit(0);
    }
    ::close(listener);
    for (const pid_t end : {ends[1], ends[0]}) {
      CHECK_THAT(::waitpid(end, nullptr, 0) == end);
    }
  }
}

constexpr std::size_t kAsked = 100;

// A server that reads all and exits has ended the stream in order.
Case exit_when_read(
    "exit_when_all_is_read",
    [](int) {
      EndRounds(
          12,
          [](int fd) {
            char request[kAsked];
            RecvAll(fd, request, sizeof request);
          },
          [](int fd) {
            const char request[kAsked] = {};
            SendAll(fd, request, sizeof request);
            LogDrain(fd);
          });
    },
    [](int) {}, {.warm = false, .connect = false, .seconds = 60});

// kill -9 of one that has read all: when the other end knows that it has come,
// and at once, when a lane of another host may not have heard of it.
void KillReaders(bool at_once) {
  static int told[2];
  static bool knows;
  CHECK_THAT(::pipe(told) == 0);
  knows = !at_once;
  EndRounds(
      12,
      [](int fd) {
        char request[kAsked];
        RecvAll(fd, request, sizeof request);
        const pid_t reader = ::getpid();
        ::write(told[1], &reader, sizeof reader);
        for (;;) ::pause();
      },
      [](int fd) {
        const char request[kAsked] = {};
        SendAll(fd, request, sizeof request);
        pid_t reader;
        CHECK_THAT(::read(told[0], &reader, sizeof reader) == sizeof reader);
        for (int unread = 1; knows && unread != 0; ::poll(nullptr, 0, 1)) {
          CHECK_THAT(::ioctl(fd, SIOCOUTQ, &unread) == 0);
        }
        CHECK_THAT(::kill(reader, SIGKILL) == 0);
        int error;
        const std::size_t n = Drain(fd, &error);
        // (docs/compatibility.md)
        if (!knows && error == ECONNRESET) error = 0;
        Log("%zu, then %s", n, error == 0 ? "the end" : ErrorName(error));
      });
}
Case kill_reader(
    "kill_when_all_is_read", [](int) { KillReaders(false); }, [](int) {},
    {.warm = false, .connect = false, .seconds = 60});
Case kill_reader_at_once(
    "kill_when_all_is_just_read", [](int) { KillReaders(true); }, [](int) {},
    {.warm = false, .connect = false, .seconds = 60});

// A peer that is stopped, over several connections, is not waited for long; it
// finds all when it goes on.
constexpr int kLeft = 4;
Case exit_stopped(
    "exit_stopped_peer",
    [](int) {
      int port;
      const int listener = Listen(&port);
      Tell(port);
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

Case exit_unread(
    "exit_unread",
    [](int fd) {
      Barrier();
      pollfd one{fd, POLLIN, 0};
      ::poll(&one, 1, -1);
      ::exit(0);
    },
    [](int fd) {
      SendAll(fd, "never read", 10);
      Barrier();
      LogDrain(fd);
    });

Case blocked_writer(
    "blocked_writer_peer_closes",
    [](int fd) {
      char text[1000];
      RecvAll(fd, text, sizeof text);
      Barrier();
      Result("close", ::close(fd));
    },
    [](int fd) {
      std::vector<char> big(1 << 20);
      SendAll(fd, big.data(), 2000);
      Barrier();
      ssize_t n;
      do {
        n = ::send(fd, big.data(), big.size(), MSG_NOSIGNAL);
      } while (n > 0);
      // Which of the two TCP gives depends on whether the close came first.
      Log("send ends: %s",
          errno == ECONNRESET || errno == EPIPE ? "reset" : ErrorName(errno));
    });

// The reader closes its descriptor in the middle of the other's bulk.
Case close_in_bulk(
    "close_in_bulk",
    [](int fd) {
      CheckBulk(fd, 3, 5'000'000);
      Result("close", ::close(fd));
    },
    [](int fd) {
      std::vector<char> buffer(100'000);
      std::size_t at = 0;
      for (;;) {
        Pattern(3, at, buffer.data(), buffer.size());
        const ssize_t n =
            ::send(fd, buffer.data(), buffer.size(), MSG_NOSIGNAL);
        if (n <= 0) break;
        at += static_cast<std::size_t>(n);
      }
      Log("send ends: %s",
          errno == ECONNRESET || errno == EPIPE ? "reset" : ErrorName(errno));
      CHECK_THAT(at >= 5'000'000);
    });

// kill -9 at a random moment: the survivor gets a prefix that holds all that
// the victim's writes had returned for, and then an end; it never waits for
// ever.
void KillRound(bool kill_writer, std::uint64_t seed) {
  int port;
  const int listener = Listen(&port);
  int told[2];
  CHECK_THAT(::pipe(told) == 0);
  const pid_t victim = ::fork();
  CHECK_THAT(victim >= 0);
  if (victim == 0) {
    ::close(listener);
    const int fd = Connect(port);
    char message[64];
    std::vector<char> buffer(30'000);
    std::uint64_t at = 0;
    Random random{seed};
    for (int i = 0; i < 300; ++i) {
      SendAll(fd, message, sizeof message);
      RecvAll(fd, message, sizeof message);
    }
    ::write(told[1], "g", 1);
    for (;;) {
      if (kill_writer) {
        const std::size_t n = 1 + random.Below(buffer.size());
        Pattern(seed, at, buffer.data(), n);
        SendAll(fd, buffer.data(), n);
        at += n;
        ::write(told[1], &at, sizeof at);
      } else {
        const ssize_t n = ::recv(fd, buffer.data(), buffer.size(), 0);
        if (n <= 0 ||
            !IsPattern(seed, at, buffer.data(), static_cast<std::size_t>(n))) {
          ::_exit(1);
        }
        at += static_cast<std::size_t>(n);
      }
    }
  }
  ::close(told[1]);
  const int fd = ::accept(listener, nullptr, nullptr);
  CHECK_THAT(fd >= 0);
  ::close(listener);
  char message[64];
  for (int i = 0; i < 300; ++i) {
    RecvAll(fd, message, sizeof message);
    SendAll(fd, message, sizeof message);
  }
  char go;
  CHECK_THAT(::read(told[0], &go, 1) == 1);
  Random random{seed * 77};
  const std::uint64_t limit = 1000 + random.Below(1'500'000);
  std::vector<char> buffer(40'000);
  std::uint64_t at = 0;
  bool killed = false;
  std::uint64_t promised = 0;
  for (;;) {
    ssize_t n;
    if (kill_writer) {
      n = ::recv(fd, buffer.data(), 1 + random.Below(buffer.size() - 1), 0);
      if (n > 0 &&
          !IsPattern(seed, at, buffer.data(), static_cast<std::size_t>(n))) {
        Fail("foreign byte near %llu", static_cast<unsigned long long>(at));
      }
    } else {
      Pattern(seed, at, buffer.data(), buffer.size());
      n = ::send(fd, buffer.data(), 1 + random.Below(buffer.size() - 1),
                 MSG_NOSIGNAL);
    }
    if (n < 0 && errno != ECONNRESET && errno != EPIPE) {
      Fail("survivor: %s", ErrorName(errno));
    }
    if (n <= 0) break;
    at += static_cast<std::uint64_t>(n);
    std::uint64_t told_now;
    if (kill_writer) {
      pollfd one{told[0], POLLIN, 0};
      while (::poll(&one, 1, 0) == 1 &&
             ::read(told[0], &told_now, sizeof told_now) == sizeof told_now) {
        promised = told_now;
      }
    }
    if (!killed && at >= limit) {
      ::kill(victim, SIGKILL);
      killed = true;
    }
  }
  if (!killed)
    Fail("ended before the kill at %llu", static_cast<unsigned long long>(at));
  int status;
  CHECK_THAT(::waitpid(victim, &status, 0) == victim);
  if (kill_writer) {
    std::uint64_t told_now;
    while (::read(told[0], &told_now, sizeof told_now) == sizeof told_now) {
      promised = told_now;
    }
    // A victim with unread data of ours resets; here it had none.
    if (at < promised) {
      Fail("%llu promised, %llu came",
           static_cast<unsigned long long>(promised),
           static_cast<unsigned long long>(at));
    }
  }
  ::close(told[0]);
  ::close(fd);
}

Case kills(
    "kill_rounds",
    [](int) {
      const int rounds = Scale(20);
      for (int i = 0; i < rounds; ++i) KillRound(true, Seed() * 1000 + i);
      Log("done");
    },
    [](int) {
      const int rounds = Scale(20);
      for (int i = 0; i < rounds; ++i) KillRound(false, Seed() * 1000 + i);
      Log("done");
    },
    {.warm = false, .connect = false, .seconds = 60});

// kill -9 while the connection moves to a lane, at some moment of the first
// writes: every byte of a write that has returned arrives.
// `unread`: what the other end has sent last is not read, so TCP ends by a
// reset, and what has not been read by then may be lost.
void KillItself(bool connects, bool unread, std::uint64_t seed) {
  int port;
  const int listener = Listen(&port);
  auto* written = static_cast<std::atomic<std::uint64_t>*>(
      ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
             -1, 0));
  CHECK_THAT(written != MAP_FAILED);
  const pid_t victim = ::fork();
  CHECK_THAT(victim >= 0);
  const bool child = victim == 0;
  int fd;
  if (child == connects) {
    ::close(listener);
    fd = Connect(port);
  } else {
    fd = ::accept(listener, nullptr, nullptr);
    CHECK_THAT(fd >= 0);
    ::close(listener);
  }
  char message[64];
  for (int i = 0; i < 20; ++i) {
    if (child) SendAll(fd, message, sizeof message);
    RecvAll(fd, message, sizeof message);
    if (!child) SendAll(fd, message, sizeof message);
  }
  if (unread && !child) SendAll(fd, message, sizeof message);
  if (child) {
    pollfd sent{fd, POLLIN, 0};
    if (unread) CHECK_THAT(::poll(&sent, 1, 5000) == 1);
    Random random{seed};
    const std::uint64_t writes = random.Below(60);
    for (std::uint64_t i = 0; i < writes; ++i) {
      Pattern(seed, *written, message, sizeof message);
      SendAll(fd, message, sizeof message);
      *written += sizeof message;
      for (std::uint64_t n = random.Below(20'000); n > 0; --n) {
        std::atomic_signal_fence(std::memory_order_seq_cst);
      }
    }
    ::kill(::getpid(), SIGKILL);
  }
  std::uint64_t at = 0;
  for (;;) {
    const ssize_t n = ::recv(fd, message, sizeof message, 0);
    // (Or EOF, in a switch: docs/compatibility.md.)
    if (n < 0 && unread && errno == ECONNRESET) break;
    if (n < 0) Fail("recv: %s", ErrorName(errno));
    if (n == 0) break;
    CHECK_THAT(IsPattern(seed, at, message, static_cast<std::size_t>(n)));
    at += static_cast<std::uint64_t>(n);
  }
  int status;
  CHECK_THAT(::waitpid(victim, &status, 0) == victim);
  if (unread ? at > *written : at != *written) {
    Fail("seed %llu: %llu written, %llu came",
         static_cast<unsigned long long>(seed),
         static_cast<unsigned long long>(*written),
         static_cast<unsigned long long>(at));
  }
  ::munmap(written, 4096);
  ::close(fd);
}

void KillRounds(bool connects, bool unread) {
  for (int i = 0; i < Scale(40); ++i) {
    KillItself(connects, unread, Seed() * 1000 + i);
  }
  Log("done");
}

Case kills_in_switch(
    "killed_in_the_switch", [](int) { KillRounds(true, false); },
    [](int) { KillRounds(false, false); },
    {.warm = false, .connect = false, .seconds = 60});

Case kills_with_unread(
    "killed_with_unread_in_the_switch", [](int) { KillRounds(true, true); },
    [](int) { KillRounds(false, true); },
    {.warm = false, .connect = false, .seconds = 60});

// One end shuts down for writing while both look for a lane: the other sees the
// end at once, and does not wait for a lane that will not come.
Case half_close_early(
    "half_close_while_seeking",
    [](int) {
      int port;
      const int listener = Listen(&port);
      Tell(port);
      for (int i = 0; i < 60; ++i) {
        const int fd = ::accept(listener, nullptr, nullptr);
        CHECK_THAT(fd >= 0);
        char text[16];
        for (int k = 0; k < 3; ++k) {
          RecvAll(fd, text, sizeof text);
          SendAll(fd, text, sizeof text);
        }
        // In no call, so that the engine may have the stream when the end
        // comes.
        ::poll(nullptr, 0, 5);
        const std::uint64_t start = NowMs();
        CHECK_THAT(::recv(fd, text, sizeof text, 0) == 0);
        if (NowMs() - start > 1500) Fail("the end came late");
        ::close(fd);
      }
      Log("done");
    },
    [](int) {
      const int port = static_cast<int>(Hear());
      Random random{Seed()};
      for (int i = 0; i < 60; ++i) {
        const int fd = Connect(port);
        char text[16] = {};
        for (int k = 0; k < 3; ++k) {
          SendAll(fd, text, sizeof text);
          RecvAll(fd, text, sizeof text);
        }
        for (std::uint64_t n = random.Below(2'000'000); n > 0; --n) {
          std::atomic_signal_fence(std::memory_order_seq_cst);
        }
        ::shutdown(fd, SHUT_WR);
        CHECK_THAT(::recv(fd, text, sizeof text, 0) == 0);
        ::close(fd);
      }
      Log("done");
    },
    {.warm = false, .connect = false, .seconds = 60});

// SHUT_RD, then back to TCP: a lane would have no way to say so, and the peer
// would be reset.
Case shut_rd_then_tcp(
    "shutdown_read_then_tcp",
    [](int fd) {
      Result("shutdown", ::shutdown(fd, SHUT_RD));
      const pid_t child = ::fork();
      if (child == 0) ::_exit(0);
      int status;
      CHECK_THAT(::waitpid(child, &status, 0) == child);
      char text[16] = {};
      for (int round = 0; round < 40; ++round) {
        for (int i = 0; i < 50; ++i) SendAll(fd, text, sizeof text);
        Barrier();
      }
      Result("send", ::send(fd, "end", 3, MSG_NOSIGNAL));
      Barrier();
    },
    [](int fd) {
      char text[16] = {};
      for (int round = 0; round < 40; ++round) {
        for (int i = 0; i < 50; ++i) {
          RecvAll(fd, text, sizeof text);
          SendAll(fd, text, sizeof text);
        }
        Barrier();
      }
      Result("send", ::send(fd, text, sizeof text, MSG_NOSIGNAL));
      RecvAll(fd, text, 3);
      Log("%.3s", text);
      Barrier();
      ::close(fd);
    });

// Out of descriptors, closed numbers.
Case bad_fd(
    "bad_fd", [](int fd) { LogDrain(fd); },
    [](int fd) {
      ::close(fd);
      char byte;
      Result("recv", ::recv(fd, &byte, 1, 0));
      Result("send", ::send(fd, "x", 1, MSG_NOSIGNAL));
      Result("shutdown", ::shutdown(fd, SHUT_WR));
      Result("close", ::close(fd));
      int n;
      Result("ioctl", ::ioctl(fd, FIONREAD, &n));
      pollfd one{fd, POLLIN, 0};
      Result("poll", ::poll(&one, 1, 0));
      Log("revents %x", static_cast<unsigned>(one.revents));
    });

}  // namespace
