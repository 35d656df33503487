// Processes: fork in all its forms, and ends that libc does not see.
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "tests/posix/pair.h"

namespace {

using namespace pair;

// fork() while the stream is promoted; the parent goes on.
Case fork_parent(
    "fork_parent_goes_on",
    [](int fd) {
      Echo(fd, 1000);
      LogDrain(fd);
    },
    [](int fd) {
      Call(fd, 200);
      const pid_t child = ::fork();
      CHECK_THAT(child >= 0);
      if (child == 0) {
        ::close(fd);
        ::_exit(7);
      }
      Call(fd, 400);
      LogChild(child);
      Call(fd, 400);
      ::close(fd);
    });

// A server that forks for each snapshot, with children that touch nothing: the
// connection has its lane again after each.  (If each had put the next lane off
// by eight times as many calls, the last one would take minutes.)
Case fork_for_snapshots(
    "fork_for_snapshots",
    [](int fd) {
      for (int i = 0; i < 12; ++i) Warm(fd);
      Echo(fd, 100);
      LogDrain(fd);
    },
    [](int fd) {
      for (int i = 0; i < 12; ++i) {
        const pid_t child = ::fork();
        CHECK_THAT(child >= 0);
        if (child == 0) ::_exit(i);
        LogChild(child);
        Warm(fd);
      }
      Call(fd, 100);
      ::close(fd);
    });

// A child of fork and a child of that one have connections of their own, on
// lanes of their own, whatever of their parents' they may not touch.
template <class Connection>
void InTwoGenerations(int fd, Connection connection) {
  for (int generation = 0; generation < 2; ++generation) {
    const pid_t child = ::fork();
    CHECK_THAT(child >= 0);
    if (child != 0) {
      ::shutdown(fd, SHUT_WR);
      LogDrain(fd);
      LogChild(child);
      if (generation != 0) ::_exit(generation);
      return;
    }
    ::close(fd);
    fd = connection();
  }
  ::close(fd);
  ::_exit(2);
}
Case fork_generations(
    "fork_children_have_their_own",
    [](int fd) {
      InTwoGenerations(fd, [] {
        const int listener = ListenAndTell();
        const int other = Accept(listener);
        ::close(listener);
        WarmAs(other, false);
        Echo(other, 100);
        return other;
      });
    },
    [](int fd) {
      InTwoGenerations(fd, [] {
        const int other = Connect(HearPort());
        WarmAs(other, true);
        Call(other, 100);
        return other;
      });
    });

// The child holds a copy: no end of file before it has gone.
Case fork_copy(
    "fork_child_keeps_copy",
    [](int fd) {
      Echo(fd, 100);
      pollfd one{fd, POLLIN, 0};
      Result("poll while the child lives", ::poll(&one, 1, 100));
      Barrier();
      LogDrain(fd);
    },
    [](int fd) {
      Call(fd, 100);
      int gate[2];
      CHECK_THAT(::pipe(gate) == 0);
      const pid_t child = ::fork();
      if (child == 0) {
        ::close(gate[1]);
        char byte;
        ::read(gate[0], &byte, 1);
        ::_exit(0);
      }
      ::close(gate[0]);
      ::close(fd);
      Barrier();
      ::close(gate[1]);
      LogChild(child);
    });

Case fork_child(
    "fork_child_goes_on",
    [](int fd) {
      Echo(fd, 2000);
      LogDrain(fd);
    },
    [](int fd) {
      Call(fd, 200);
      const pid_t child = ::fork();
      if (child == 0) {
        Call(fd, 1800);
        ::close(fd);
        ::exit(5);
      }
      ::close(fd);
      LogChild(child);
    });

// An option that the parent's lane has kept is the connection's, and so the
// child's: what the child sets, it reads.
void OptionIs(int fd, const char* whose) {
  int value = -1;
  socklen_t size = sizeof value;
  CHECK_THAT(::getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &value, &size) == 0);
  Result(whose, value);
}
Case fork_options(
    "fork_child_sets_option",
    [](int fd) {
      Echo(fd, 300);
      LogDrain(fd);
    },
    [](int fd) {
      Call(fd, 200);
      const int on = 1;
      const int off = 0;
      ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
      OptionIs(fd, "TCP_NODELAY of the parent");
      const pid_t child = ::fork();
      if (child == 0) {
        OptionIs(fd, "TCP_NODELAY of the child");
        ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &off, sizeof off);
        OptionIs(fd, "TCP_NODELAY that the child has set");
        Call(fd, 100);
        ::_exit(0);
      }
      LogChild(child);
      OptionIs(fd, "TCP_NODELAY of the parent, behind the child");
      ::close(fd);
    });

// A child that alone has the connection, on a lane of its own by then, is
// killed: the peer sees the end that the kernel makes of it.
void ChildIsKilled(int fd, bool unread) {
  int told[2];
  CHECK_THAT(::pipe(told) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    WarmAs(fd, true);
    Call(fd, 100);
    if (unread) AwaitBytes(fd, 1);
    SendAll(fd, "last", 4);
    ::write(told[1], "", 1);
    for (;;) ::pause();
  }
  ::close(fd);
  char byte;
  CHECK_THAT(::read(told[0], &byte, 1) == 1);
  Barrier();  // the peer has it
  ::kill(child, SIGKILL);
  LogChild(child);
  ::close(told[0]);
  ::close(told[1]);
}
void PeerOfKilledChild(int fd, bool unread) {
  WarmAs(fd, false);
  Echo(fd, 100);
  if (unread) SendAll(fd, "?", 1);
  char last[4];
  RecvAll(fd, last, sizeof last);
  Barrier();
  LogDrain(fd);
}
Case fork_child_killed(
    "fork_child_killed", [](int fd) { PeerOfKilledChild(fd, false); },
    [](int fd) { ChildIsKilled(fd, false); });
Case fork_child_killed_unread(
    "fork_child_killed_with_unread",
    [](int fd) { PeerOfKilledChild(fd, true); },
    [](int fd) { ChildIsKilled(fd, true); });

// How many mappings, or descriptors, are named so.
int CountNamed(const char* list, const char* name) {
  int found = 0;
  if (DIR* all = ::opendir(list)) {
    while (const dirent* one = ::readdir(all)) {
      char target[256] = {};
      const ssize_t n =
          ::readlinkat(::dirfd(all), one->d_name, target, sizeof target - 1);
      if (n > 0 && std::strstr(target, name) != nullptr) ++found;
    }
    ::closedir(all);
  } else if (FILE* file = std::fopen(list, "r")) {
    char line[1024];
    while (std::fgets(line, sizeof line, file) != nullptr) {
      if (std::strstr(line, name) != nullptr) ++found;
    }
    std::fclose(file);
  }
  return found;
}

// What the parent shares with its peers is no child's: it would hold their
// memory, which is large, for as long as it lives.
Case fork_keeps_nothing(
    "fork_child_keeps_no_memory",
    [](int fd) {
      Echo(fd, 200);
      LogDrain(fd);
    },
    [](int fd) {
      Call(fd, 100);
      const pid_t child = ::fork();
      CHECK_THAT(child >= 0);
      if (child == 0) {
        ::close(fd);
        for (const char* name :
             {"rcsock-rings", "rcsock-link", "rcsock-bells"}) {
          Log("%s: %d mappings, %d descriptors", name,
              CountNamed("/proc/self/maps", name),
              CountNamed("/proc/self/fd", name));
        }
        Log("%d eventfds", CountNamed("/proc/self/fd", "[eventfd]"));
        ::_exit(7);
      }
      LogChild(child);
      Call(fd, 100);
      ::close(fd);
    });

// Peers that do not answer are waited for together, not one after the other.
constexpr int kStopped = 5;
Case fork_stopped(
    "fork_stopped_peers",
    [](int) {
      const int listener = ListenAndTell();
      pid_t children[kStopped];
      for (pid_t& child : children) {
        child = ::fork();
        CHECK_THAT(child >= 0);
        if (child == 0) {
          const int fd = ::accept(listener, nullptr, nullptr);
          Warm(fd);
          // (In the moment of a switch, what has been sent may still be with
          // who has sent it.)
          char byte;
          RecvAll(fd, &byte, 1);
          ::raise(SIGSTOP);
          ::_exit(0);
        }
        int status = 0;
        CHECK_THAT(::waitpid(child, &status, WUNTRACED) == child);
        CHECK_THAT(WIFSTOPPED(status));
        Barrier();
      }
      Barrier();
      for (const pid_t child : children) {
        ::kill(child, SIGKILL);
        ::waitpid(child, nullptr, 0);
      }
    },
    [](int) {
      const int port = static_cast<int>(Hear());
      for (int i = 0; i < kStopped; ++i) {
        const int fd = Connect(port);
        Warm(fd);
        SendAll(fd, "x", 1);
        Barrier();
      }
      const std::uint64_t start = NowMs();
      const pid_t child = ::fork();
      if (child == 0) ::_exit(3);
      const std::uint64_t ms = NowMs() - start;
      // (One deadline is 1.6 s.)
      Log("in time %d", ms < 4000);
      LogChild(child);
      Barrier();
    },
    {.warm = false, .connect = false});

// In turns, on one connection.
Case fork_turns(
    "fork_turns",
    [](int fd) {
      Echo(fd, 600);
      LogDrain(fd);
    },
    [](int fd) {
      for (int round = 0; round < 3; ++round) {
        Call(fd, 100);
        const pid_t child = ::fork();
        if (child == 0) {
          Call(fd, 100);
          ::_exit(round);
        }
        LogChild(child);
      }
      ::close(fd);
    });

// What was read ahead of the application survives a fork.
Case fork_unread(
    "fork_unread",
    [](int fd) {
      SendAll(fd, "abcdefghij", 10);
      Barrier();
      SendAll(fd, "klm", 3);
      LogDrain(fd);
    },
    [](int fd) {
      Barrier();
      char text[32] = {};
      pollfd one{fd, POLLIN, 0};
      ::poll(&one, 1, -1);
      RecvAll(fd, text, 2);
      const pid_t child = ::fork();
      if (child == 0) ::_exit(0);
      RecvAll(fd, text + 2, 11);
      Log("%s", text);
      LogChild(child);
    });

Case prefork(
    "prefork",
    [](int) {
      int port;
      const int listener = Listen(&port);
      std::vector<pid_t> children;
      for (int i = 0; i < 4; ++i) {
        const pid_t child = ::fork();
        if (child == 0) {
          for (;;) {
            const int fd = ::accept(listener, nullptr, nullptr);
            char text[16];
            for (;;) {
              const ssize_t n = ::recv(fd, text, 16, MSG_WAITALL);
              if (n == 0) break;
              CHECK_THAT(n == 16);
              SendAll(fd, text, 16);
            }
            ::close(fd);
          }
        }
        children.push_back(child);
      }
      Tell(port);
      Barrier();
      for (const pid_t child : children) ::kill(child, SIGKILL);
      for (const pid_t child : children) ::waitpid(child, nullptr, 0);
      Log("done");
    },
    [](int) {
      const int port = static_cast<int>(Hear());
      std::vector<int> fds;
      for (int i = 0; i < 4; ++i) fds.push_back(Connect(port));
      for (const int fd : fds) Call(fd, 500);
      for (const int fd : fds) Call(fd, 500);
      for (const int fd : fds) ::close(fd);
      for (int i = 0; i < 8; ++i) {
        const int fd = Connect(port);
        Call(fd, 300);
        ::close(fd);
      }
      Barrier();
    },
    {.warm = false, .connect = false, .seconds = 30});

Case forking(
    "fork_per_connection",
    [](int) {
      const int listener = ListenAndTell();
      for (int i = 0; i < 8; ++i) {
        const int fd = Accept(listener);
        const pid_t child = ::fork();
        if (child == 0) {
          ::close(listener);
          Echo(fd, 1000);
          LogDrain(fd);
          ::exit(0);
        }
        ::close(fd);
        LogChild(child);
      }
    },
    [](int) {
      const int port = static_cast<int>(Hear());
      for (int i = 0; i < 8; ++i) {
        const int fd = Connect(port);
        Call(fd, 1000);
        ::close(fd);
      }
    },
    {.warm = false, .connect = false, .seconds = 30});

// _Fork(), which libc's handlers do not see.
Case fork_bare(
    "fork_without_handlers",
    [](int fd) {
      Echo(fd, 400);
      char text[11];
      RecvAll(fd, text, sizeof text);
      Log("%.11s", text);
      Echo(fd, 200);
      LogDrain(fd);
    },
    [](int fd) {
      Call(fd, 400);
      auto* const bare = reinterpret_cast<pid_t (*)()>(
          ::dlsym(RTLD_DEFAULT, "_Fork"));  // from glibc 2.34 on
      const pid_t child = bare != nullptr ? bare() : ::fork();
      CHECK_THAT(child >= 0);
      if (child == 0) {
        SendAll(fd, "child", 5);
        ::_exit(7);
      }
      LogChild(child);
      SendAll(fd, "parent", 6);
      Call(fd, 200);
      ::close(fd);
    });

// clone() of a process with memory of its own is a fork by another name.
Case fork_clone(
    "fork_by_clone",
    [](int fd) {
      Echo(fd, 400);
      char text[48];
      RecvAll(fd, text, sizeof text);
      Log("%.48s", text);
      SendAll(fd, "one.two.", 8);
      Echo(fd, 200);
      LogDrain(fd);
    },
    [](int fd) {
      Call(fd, 400);
      static int stream;
      stream = fd;
      alignas(16) static char stack[1 << 16];
      const auto by_name = [](int (*start)(void*)) {
        LogChild(::clone(start, stack + sizeof stack, SIGCHLD, nullptr));
      };
      const auto says = [](void*) {
        SendAll(stream, "child ", 6);
        return 7;
      };
      by_name(says);
      SendAll(fd, "parent", 6);
      by_name(says);
      SendAll(fd, "parent", 6);
      const auto by_number = [&](auto&& call) {
        const long child = call();
        if (child == 0) ::_exit(says(nullptr));
        LogChild(static_cast<pid_t>(child));
        SendAll(fd, "parent", 6);
      };
      by_number([] { return ::syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0); });
      by_number([] {
        clone_args with{};
        with.exit_signal = SIGCHLD;
        return ::syscall(SYS_clone3, &with, sizeof with);
      });
      by_name([](void*) {
        char text[4];
        RecvAll(stream, text, 4);
        return text[0] == 'o' ? 1 : 0;
      });
      char text[4];
      RecvAll(fd, text, 4);
      Log("%.4s", text);
      Call(fd, 200);
      ::close(fd);
    });

// The program's only thread ends past libc.
Case raw_exit(
    "exit_of_thread",
    [](int fd) {
      Echo(fd, 400);
      LogDrain(fd);
    },
    [](int fd) {
      Call(fd, 400);
      ::syscall(SYS_exit, 0);
    });

// Another is left then, for a while.
Case raw_exit_beside(
    "exit_of_first_thread",
    [](int fd) {
      Echo(fd, 800);
      LogDrain(fd);
    },
    [](int fd) {
      Call(fd, 400);
      static int stream;
      stream = fd;
      std::thread([] { Call(stream, 400); }).detach();
      ::syscall(SYS_exit, 0);
    });

// A connection that is accepted while another thread's fork() waits for a peer
// that does not answer: both processes hold it.  With `forks_too` there is a
// second fork meanwhile, whose child has it for a moment: it ends at once.
int begun[2];
std::atomic<bool> tells_begin{false};
std::atomic<int> accepted{-1};

void StandStill(int fd) {
  Tell(::getpid());
  Warm(fd);
  Barrier();  // it stands from now on, for a while
  Barrier();
  ::close(fd);
}

void AcceptWhileForking(int fd, bool forks_too) {
  const auto server = static_cast<pid_t>(Hear());
  int go[2];
  int said[2];
  int all_warm[2];
  CHECK_THAT(::pipe(begun) == 0 && ::pipe(go) == 0 && ::pipe(said) == 0 &&
             ::pipe(all_warm) == 0);
  int port;
  const int listener = Listen(&port);
  const pid_t other = ::fork();
  if (other == 0) {
    ::close(fd);
    char text[64];
    CHECK_THAT(::read(go[0], text, 1) == 1);
    const int stream = Connect(port);
    Call(stream, 400);
    std::size_t got = 0;
    ssize_t n = 0;
    while ((n = ::recv(stream, text + got, sizeof text - got, 0)) > 0) {
      got += static_cast<std::size_t>(n);
    }
    CHECK_THAT(n == 0);
    CHECK_THAT(::write(said[1], text, got) == static_cast<ssize_t>(got));
    ::_exit(0);
  }
  Warm(fd);
  Barrier();
  Stop(server);
  ::pthread_atfork(
      [] {
        if (tells_begin) CHECK_THAT(::write(begun[1], "x", 1) == 1);
      },
      nullptr, nullptr);
  tells_begin = true;
  pid_t child = -1;
  char byte;
  std::thread forks([&] {
    child = ::fork();
    if (child != 0) return;
    // Over TCP it has been made too early to know the connection, or to have
    // it (the kernel copies the table of files before the memory).
    int known = accepted;
    if (known >= 0 && ::fcntl(known, F_GETFD) < 0) known = -1;
    CHECK_THAT(::read(all_warm[0], &byte, 1) == 1);
    if (known >= 0) ::send(known, "child ", 6, MSG_NOSIGNAL);
    ::_exit(known >= 0 ? 1 : 0);
  });
  CHECK_THAT(::read(begun[0], &byte, 1) == 1);
  CHECK_THAT(::write(go[1], "x", 1) == 1);
  accepted = ::accept(listener, nullptr, nullptr);
  CHECK_THAT(accepted >= 0);
  if (forks_too) {
    const pid_t brief = ::fork();
    if (brief == 0) ::_exit(3);
    LogChild(brief);
  }
  forks.join();
  tells_begin = false;
  Echo(accepted, 400);
  CHECK_THAT(::write(all_warm[1], "x", 1) == 1);
  int status = 0;
  CHECK_THAT(::waitpid(child, &status, 0) == child);
  if (status == 0) ::send(accepted, "child ", 6, MSG_NOSIGNAL);
  ::send(accepted, "parent", 6, MSG_NOSIGNAL);
  ::close(accepted);
  LogChild(other);
  char text[64];
  const ssize_t n = ::read(said[0], text, sizeof text);
  Log("%.*s", static_cast<int>(n), text);
  ::kill(server, SIGCONT);
  Barrier();
  ::close(fd);
}

Case accept_beside("accept_while_forking", &StandStill,
                   [](int fd) { AcceptWhileForking(fd, false); },
                   {.warm = false});

Case accept_between("accept_and_fork_while_forking", &StandStill,
                    [](int fd) { AcceptWhileForking(fd, true); },
                    {.warm = false});

Case daemons(
    "daemon",
    [](int fd) {
      Echo(fd, 600);
      LogDrain(fd);
    },
    [](int fd) {
      Call(fd, 200);
      const pid_t child = ::fork();
      if (child == 0) {
        CHECK_THAT(::daemon(1, 1) == 0);
        Call(fd, 400);
        ::exit(0);
      }
      ::close(fd);
      LogChild(child);
    });

}  // namespace
