// Processes: fork, exec, passing and closing of descriptors.
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <linux/filter.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <set>
#include <thread>
#include <vector>

#include "tests/posix/pair.h"

extern char** environ;

namespace {

using namespace pair;

void Call(int fd, int count) {
  for (int i = 0; i < count; ++i) {
    char text[16];
    char back[16];
    Pattern(21, static_cast<std::uint64_t>(i) * 16, text, 16);
    SendAll(fd, text, 16);
    RecvAll(fd, back, 16);
    CHECK_THAT(std::memcmp(text, back, 16) == 0);
  }
}

void LogDrain(int fd) {
  int error;
  const std::size_t n = Drain(fd, &error);
  Log("rest %zu, %s", n, error == 0 ? "EOF" : ErrorName(error));
}

void LogChild(pid_t child) {
  int status = 0;
  CHECK_THAT(::waitpid(child, &status, 0) == child);
  Log("child: %x", static_cast<unsigned>(status));
}

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
      int port;
      const int listener = Listen(&port);
      Tell(port);
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
      int port;
      const int listener = Listen(&port);
      Tell(port);
      for (int i = 0; i < 8; ++i) {
        const int fd = ::accept(listener, nullptr, nullptr);
        CHECK_THAT(fd >= 0);
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

// inetd: another program with the connection as its input and output.
void SpeakToCat(int fd) {
  char text[64];
  for (int i = 0; i < 300; ++i) {
    const int n = std::snprintf(text, sizeof text, "line %d\n", i);
    SendAll(fd, text, static_cast<std::size_t>(n));
    char back[64] = {};
    RecvAll(fd, back, static_cast<std::size_t>(n));
    CHECK_THAT(std::memcmp(text, back, static_cast<std::size_t>(n)) == 0);
  }
  ::shutdown(fd, SHUT_WR);
  LogDrain(fd);
}

// In a child, of vfork too.
[[noreturn]] void BecomeCat(int fd) {
  ::dup2(fd, 0);
  ::dup2(fd, 1);
  ::close(fd);
  ::execlp("cat", "cat", static_cast<char*>(nullptr));
  ::_exit(99);
}

void ForkCat(int fd) {
  const pid_t child = ::fork();
  if (child == 0) BecomeCat(fd);
  ::close(fd);
  LogChild(child);
}

void SpawnCat(int fd) {
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, fd, 0);
  ::posix_spawn_file_actions_adddup2(&actions, fd, 1);
  ::posix_spawn_file_actions_addclose(&actions, fd);
  char name[] = "cat";
  char* argv[] = {name, nullptr};
  pid_t child;
  Result("posix_spawnp",
         ::posix_spawnp(&child, "cat", &actions, nullptr, argv, environ));
  ::posix_spawn_file_actions_destroy(&actions);
  ::close(fd);
  LogChild(child);
}

Case inetd("exec_cat", ForkCat, SpeakToCat);

Case inetd_vfork(
    "vfork_cat",
    [](int fd) {
      const pid_t child = ::vfork();
      if (child == 0) BecomeCat(fd);
      Result("close", ::close(fd));
      LogChild(child);
    },
    SpeakToCat);

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

// vfork and exec of something that has nothing to do with the stream.
Case vfork_other(
    "vfork_other",
    [](int fd) {
      Echo(fd, 600);
      LogDrain(fd);
    },
    [](int fd) {
      ::fcntl(fd, F_SETFD, FD_CLOEXEC);
      for (int i = 0; i < 3; ++i) {
        Call(fd, 200);
        const pid_t child = ::vfork();
        if (child == 0) {
          ::close(fd);
          ::execlp("true", "true", static_cast<char*>(nullptr));
          ::_exit(99);
        }
        LogChild(child);
      }
      ::close(fd);
    });

// Numbers that a child of vfork closes and takes again are its own.
Case vfork_numbers(
    "vfork_takes_numbers",
    [](int fd) {
      Echo(fd, 400);
      LogDrain(fd);
    },
    [](int fd) {
      Call(fd, 200);
      struct {
        const char* what;
        int (*make)();
      } const makers[] = {
          {"socket", [] { return ::socket(AF_UNIX, SOCK_STREAM, 0); }},
          {"TCP socket", [] { return ::socket(AF_INET, SOCK_STREAM, 0); }},
          {"epoll_create1", [] { return ::epoll_create1(0); }},
          {"eventfd", [] { return ::eventfd(0, 0); }},
          {"timerfd", [] { return ::timerfd_create(CLOCK_MONOTONIC, 0); }},
      };
      for (const auto& maker : makers) {
        const pid_t child = ::vfork();
        if (child == 0) {
          ::close(fd);
          ::_exit(maker.make() == fd ? 1 : 2);
        }
        Log("%s", maker.what);
        LogChild(child);
        Call(fd, 40);
      }
      ::close(fd);
    });

// What a child of vfork puts where it has closed the connection is not the
// connection.
Case vfork_reuses(
    "vfork_reuses_the_number",
    [](int fd) {
      SendAll(fd, "first", 5);
      Barrier();
      Barrier();
      Echo(fd, 100);
      LogDrain(fd);
    },
    [](int fd) {
      Barrier();
      for (int way = 0; way < 4; ++way) {
        static char text[8];
        static volatile int opened, got, put;
        std::memcpy(text, "unread", 7);
        opened = -9;
        got = -9;
        put = -9;
        const pid_t child = ::vfork();
        if (child == 0) {
          if (way == 0) {
            ::close(fd);
            opened = ::open("/dev/zero", O_RDWR) == fd;
          } else if (way == 3) {
            ::close_range(static_cast<unsigned>(fd), ~0u, 0);
            opened = ::open("/dev/zero", O_RDWR) == fd;
          } else {
            const int zero = ::open("/dev/zero", O_RDWR);
            opened = (way == 1 ? ::dup2(zero, fd) : ::dup3(zero, fd, 0)) == fd;
          }
          got = static_cast<int>(::read(fd, text, 5));
          put = static_cast<int>(::write(fd, "child", 5));
          ::_exit(way);
        }
        int status = 0;
        CHECK_THAT(::waitpid(child, &status, 0) == child);
        Log("child %x: opened %d, read %d, %d, wrote %d",
            static_cast<unsigned>(status), opened, got, text[0], put);
      }
      char text[5];
      RecvAll(fd, text, 5);
      Log("%.5s", text);
      Barrier();
      Call(fd, 100);
      Result("close", ::close(fd));
    });

// The same of a number that few programs have.
Case vfork_reuses_high(
    "vfork_reuses_a_high_number",
    [](int fd) {
      Echo(fd, 200);
      LogDrain(fd);
    },
    [](int fd) {
      constexpr int kHigh = 100'000;
      rlimit limit{};
      CHECK_THAT(::getrlimit(RLIMIT_NOFILE, &limit) == 0);
      limit.rlim_cur = 2 * kHigh;
      if (limit.rlim_max < limit.rlim_cur) limit.rlim_max = limit.rlim_cur;
      // (Who may not raise it has what the other case has.)
      const bool high = ::setrlimit(RLIMIT_NOFILE, &limit) == 0;
      const int number = ::fcntl(fd, F_DUPFD, high ? kHigh : 0);
      CHECK_THAT(number >= 0);
      Call(number, 100);
      static volatile int got, put;
      const pid_t child = ::vfork();
      if (child == 0) {
        char text[5];
        ::dup2(::open("/dev/zero", O_RDWR), number);
        got = static_cast<int>(::read(number, text, sizeof text));
        put = static_cast<int>(::write(number, "child", 5));
        ::_exit(0);
      }
      LogChild(child);
      Log("read %d, wrote %d", got, put);
      Call(number, 100);
      Result("close", ::close(number));
      Result("close", ::close(fd));
    });

Case spawn_cat("spawn_cat", SpawnCat, SpeakToCat);

// A connection that is inherited leaves TCP again, whoever it was that had it
// before: Warm waits for that.
void WarmCat(int fd) {
  Warm(fd);
  SpeakToCat(fd);
}

Case after_exec("exec_warm_cat", ForkCat, WarmCat);

Case after_exec_alone("exec_warm_cat_alone", BecomeCat, WarmCat,
                      {.warm = false});

// The loader takes the last of several lists.
Case after_exec_lists(
    "exec_warm_cat_two_preload_lists",
    [](int fd) {
      const pid_t child = ::fork();
      if (child == 0) {
        ::dup2(fd, 0);
        ::dup2(fd, 1);
        ::close(fd);
        char name[] = "cat";
        char* argv[] = {name, nullptr};
        char first[] = "LD_PRELOAD=";
        std::vector<char*> all = {first};
        for (char** at = environ; *at != nullptr; ++at) all.push_back(*at);
        all.push_back(nullptr);
        ::execvpe(name, argv, all.data());
        ::_exit(99);
      }
      ::close(fd);
      LogChild(child);
    },
    WarmCat);

// A shell in between, which does not stay.
Case after_system(
    "system_warm_cat",
    [](int fd) {
      char command[64];
      std::snprintf(command, sizeof command, "exec cat <&%d >&%d %d<&-", fd, fd,
                    fd);
      const pid_t child = ::fork();
      if (child == 0) {
        ::execl("/bin/sh", "sh", "-c", command, static_cast<char*>(nullptr));
        ::_exit(99);
      }
      ::close(fd);
      LogChild(child);
    },
    WarmCat);

Case after_spawn("spawn_warm_cat", SpawnCat, WarmCat);

// vfork in a process that has forked.
Case after_vfork(
    "vfork_warm_cat",
    [](int fd) {
      const pid_t first = ::fork();
      if (first == 0) ::_exit(0);
      LogChild(first);
      const pid_t child = ::vfork();
      if (child == 0) BecomeCat(fd);
      ::close(fd);
      LogChild(child);
    },
    WarmCat);

// ... and no exec after all: it has the connection alone, as before.
Case failed_vfork(
    "vfork_exec_fails_warm",
    [](int fd) {
      const pid_t first = ::fork();
      if (first == 0) ::_exit(0);
      LogChild(first);
      const pid_t child = ::vfork();
      if (child == 0) {
        ::execl("/nowhere/cat", "cat", static_cast<char*>(nullptr));
        ::_exit(98);
      }
      LogChild(child);
      Warm(fd);
      Echo(fd, 100);
      LogDrain(fd);
    },
    [](int fd) {
      Warm(fd);
      Call(fd, 100);
      ::close(fd);
    });

// Programs that are not started take nothing with them: not those either that
// would not be told of the connection, as they have no preload.
Case failed_starts(
    "failed_starts_warm",
    [](int fd) {
      Warm(fd);
      LogDrain(fd);
    },
    [](int fd) {
      char name[] = "cat";
      char* const arguments[] = {name, nullptr};
      char* const nothing[] = {nullptr};
      pid_t child;
      Log("posix_spawn: %s",
          ErrorName(::posix_spawn(&child, "/nowhere/cat", nullptr, nullptr,
                                  arguments, nothing)));
      child = ::vfork();
      if (child == 0) {
        ::execve("/nowhere/cat", arguments, nothing);
        ::_exit(98);
      }
      LogChild(child);
      rlimit limit{};
      CHECK_THAT(::getrlimit(RLIMIT_NOFILE, &limit) == 0);
      const rlimit before = limit;
      const int next = ::dup(fd);
      ::close(next);
      limit.rlim_cur = static_cast<rlim_t>(next);
      CHECK_THAT(::setrlimit(RLIMIT_NOFILE, &limit) == 0);
      FILE* const pipe = ::popen("cat", "r");
      Log("popen: %s", pipe != nullptr ? "?" : ErrorName(errno));
      CHECK_THAT(::setrlimit(RLIMIT_NOFILE, &before) == 0);
      Warm(fd);
      ::close(fd);
    });

// One process reads, then another one, then the first again: each knows how far
// the others have come.
Case after_turns(
    "exec_turns_warm",
    [](int fd) {
      Warm(fd);
      Echo(fd, 10);
      for (int i = 0; i < 2; ++i) {
        const pid_t child = ::fork();
        if (child == 0) {
          Echo(fd, 7);
          ::dup2(fd, 0);
          ::close(fd);
          ::execl("/bin/sh", "sh", "-c", "head -c 33 >/dev/null",
                  static_cast<char*>(nullptr));
          ::_exit(99);
        }
        LogChild(child);
        Warm(fd);
      }
      LogDrain(fd);
    },
    [](int fd) {
      Warm(fd);
      Call(fd, 10);
      for (int i = 0; i < 2; ++i) {
        Call(fd, 7);
        char text[33] = {};
        SendAll(fd, text, sizeof text);
        Warm(fd);
      }
      ::close(fd);
    });

// The program that inherits it never uses it, and ends.
Case after_system_inherits(
    "system_inherits_warm",
    [](int fd) {
      Warm(fd);
      Warm(fd);
      LogDrain(fd);
    },
    [](int fd) {
      Result("system", ::system("true"));
      Warm(fd);
      for (int i = 0; i < 3; ++i) Result("system", ::system("exit 3"));
      Warm(fd);
      ::close(fd);
    });

// Several threads do so at once, and others look at the environment meanwhile.
Case system_threads(
    "system_threads", [](int fd) { LogDrain(fd); },
    [](int fd) {
      char** const before = environ;
      std::atomic<int> running{3};
      std::vector<std::thread> threads;
      for (int i = 0; i < 3; ++i) {
        threads.emplace_back([&running, i] {
          for (int n = 0; n < 10; ++n) {
            CHECK_THAT(::system(i == 0 ? "sleep 0.02; exit 3" : "exit 3") ==
                       3 << 8);
          }
          --running;
        });
      }
      while (running > 0) {
        CHECK_THAT(::getenv("PATH") != nullptr && environ == before);
        ::sched_yield();
      }
      for (auto& thread : threads) thread.join();
      Result("killed", ::system("kill -9 $$"));
      Result("interrupted", ::system("kill -INT $$"));
      struct sigaction now {};
      CHECK_THAT(::sigaction(SIGINT, nullptr, &now) == 0);
      Log("as before: %d", now.sa_handler == SIG_DFL);
      ::close(fd);
    });

Case shells(
    "system_popen",
    [](int fd) {
      Echo(fd, 900);
      LogDrain(fd);
    },
    [](int fd) {
      ::fcntl(fd, F_SETFD, FD_CLOEXEC);
      Call(fd, 300);
      Result("system", ::system("exit 3"));
      Call(fd, 300);
      std::FILE* pipe = ::popen("echo hello", "r");
      char line[32] = {};
      CHECK_THAT(std::fgets(line, sizeof line, pipe) != nullptr);
      Log("%.5s", line);
      Result("pclose", ::pclose(pipe));
      Call(fd, 300);
      ::close(fd);
    });

// The descriptor is inherited by a program that never uses it.
Case inherited(
    "system_inherits",
    [](int fd) {
      Echo(fd, 600);
      LogDrain(fd);
    },
    [](int fd) {
      Call(fd, 300);
      Result("system", ::system("true"));
      Call(fd, 300);
      ::close(fd);
    });

Case exec_self(
    "exec_with_stream",
    [](int fd) {
      // Bytes that are on their way while the image changes.
      char text[5];
      SendAll(fd, "early", 5);
      Barrier();
      ::shutdown(fd, SHUT_WR);
      RecvAll(fd, text, 5);
      Log("%.5s", text);
      LogDrain(fd);
    },
    [](int fd) {
      Barrier();
      BecomeCat(fd);
    });

// A promoted stream is given to another process.
Case passing(
    "scm_rights",
    [](int fd) {
      Echo(fd, 800);
      LogDrain(fd);
    },
    [](int fd) {
      Call(fd, 200);
      int pair_fds[2];
      CHECK_THAT(::socketpair(AF_UNIX, SOCK_STREAM, 0, pair_fds) == 0);
      const pid_t child = ::fork();
      alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
      char byte = 'f';
      iovec part{&byte, 1};
      msghdr message{};
      message.msg_iov = &part;
      message.msg_iovlen = 1;
      message.msg_control = control;
      message.msg_controllen = sizeof control;
      if (child == 0) {
        ::close(fd);
        CHECK_THAT(::recvmsg(pair_fds[1], &message, 0) == 1);
        int got;
        std::memcpy(&got, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof got);
        Call(got, 400);
        ::_exit(0);
      }
      Call(fd, 200);
      cmsghdr* header = CMSG_FIRSTHDR(&message);
      header->cmsg_level = SOL_SOCKET;
      header->cmsg_type = SCM_RIGHTS;
      header->cmsg_len = CMSG_LEN(sizeof fd);
      std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
      Result("sendmsg", ::sendmsg(pair_fds[0], &message, 0));
      ::close(fd);
      LogChild(child);
    });

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

// Programs that close everything they did not open.
Case close_all(
    "close_all",
    [](int fd) {
      Echo(fd, 400);
      LogDrain(fd);
    },
    [](int fd) {
      Call(fd, 200);
      const int last = static_cast<int>(::sysconf(_SC_OPEN_MAX));
      for (int i = 30; i < (last < 5000 ? last : 5000); ++i) {
        if (i != fd) ::close(i);
      }
      Call(fd, 100);
      ::close_range(30, ~0u, 0);
      Call(fd, 100);
      ::close(fd);
    });

Case close_stream_range(
    "close_range_takes_stream",
    [](int fd) {
      Echo(fd, 200);
      LogDrain(fd);
    },
    [](int fd) {
      Call(fd, 200);
      const int high = ::fcntl(fd, F_DUPFD, 50);
      ::close(fd);
      CHECK_THAT(high >= 50);
      Result("close_range", ::close_range(50, ~0u, 0));
      char byte;
      Result("recv", ::recv(high, &byte, 1, 0));
      // And a new connection afterwards.
      int port;
      const int listener = Listen(&port);
      const int out = Connect(port);
      const int in = ::accept(listener, nullptr, nullptr);
      for (int i = 0; i < 500; ++i) {
        SendAll(out, "ping", 4);
        char text[4];
        RecvAll(in, text, 4);
      }
      Log("done");
    });

// What the kernel refuses has closed nothing.
Case refused_range(
    "close_range_refused",
    [](int fd) {
      Echo(fd, 200);
      LogDrain(fd);
    },
    [](int fd) {
      Call(fd, 100);
      const auto number = static_cast<unsigned>(fd);
      constexpr int kNoSuchFlag = 0x40;
      Result("close_range", ::close_range(number, number, kNoSuchFlag));
      Result("close_range", ::close_range(number, number - 1, 0));
      Call(fd, 100);
      ::close(fd);
    });

// closefrom, also where a filter says that the kernel has no close_range.
Case from(
    "closefrom",
    [](int fd) {
      Echo(fd, 200);
      LogDrain(fd);
    },
    [](int fd) {
      Call(fd, 100);
      const int high = ::fcntl(fd, F_DUPFD, 50);
      const int other = ::fcntl(0, F_DUPFD, 60);
      CHECK_THAT(high >= 50 && other >= 60);
      ::closefrom(50);
      Result("fcntl", ::fcntl(high, F_GETFD));
      Result("fcntl", ::fcntl(other, F_GETFD));
      Call(fd, 100);
      sock_filter code[] = {
          BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
          BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_close_range, 0, 1),
          BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
          BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
      sock_fprog filter{sizeof code / sizeof code[0], code};
      CHECK_THAT(::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
      CHECK_THAT(::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter, 0, 0) ==
                 0);
      ::closefrom(fd);
      Result("fcntl", ::fcntl(fd, F_GETFD));
    });

Case cloexec_range(
    "close_range_cloexec",
    [](int fd) {
      Echo(fd, 400);
      LogDrain(fd);
    },
    [](int fd) {
      Call(fd, 200);
      Result("close_range", ::close_range(3, ~0u, CLOSE_RANGE_CLOEXEC));
      Log("cloexec %d", (::fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
      Call(fd, 200);
      ::close(fd);
    });

// No descriptors left: the connection works as it is.
Case no_fds(
    "rlimit_nofile",
    [](int) {
      int port;
      const int listener = Listen(&port);
      Tell(port);
      const int fd = ::accept(listener, nullptr, nullptr);
      Echo(fd, 2000);
      LogDrain(fd);
    },
    [](int) {
      const int port = static_cast<int>(Hear());
      const int fd = Connect(port);
      rlimit limit{static_cast<rlim_t>(fd) + 1, static_cast<rlim_t>(fd) + 1};
      CHECK_THAT(::setrlimit(RLIMIT_NOFILE, &limit) == 0);
      Call(fd, 2000);
      Result("socket", ::socket(AF_INET, SOCK_STREAM, 0));
      Result("dup", ::dup(fd));
      Result("close", ::close(fd));
      Result("socket", ::socket(AF_INET, SOCK_STREAM, 0));
    },
    {.warm = false, .connect = false});

Case dup_over(
    "dup2_over_stream",
    [](int fd) {
      Echo(fd, 200);
      LogDrain(fd);
    },
    [](int fd) {
      Call(fd, 200);
      const int null = ::open("/dev/null", O_RDWR);
      Result("dup2", ::dup2(null, fd) == fd ? 0 : -1);
      char byte;
      Result("read", ::read(fd, &byte, 1));
      Result("write", ::write(fd, "x", 1));
    });

// A dup2 that fails leaves the connection where it is.
Case dup_over_limit(
    "dup2_over_stream_past_limit",
    [](int fd) {
      Echo(fd, 400);
      LogDrain(fd);
    },
    [](int fd) {
      Call(fd, 200);
      const int set = ::epoll_create1(0);
      rlimit limit{};
      CHECK_THAT(::getrlimit(RLIMIT_NOFILE, &limit) == 0);
      const rlimit low{static_cast<rlim_t>(fd), limit.rlim_max};
      CHECK_THAT(::setrlimit(RLIMIT_NOFILE, &low) == 0);
      Result("dup2", ::dup2(0, fd));
      Result("dup3", ::dup3(0, fd, O_CLOEXEC));
      Call(fd, 100);
      CHECK_THAT(::setrlimit(RLIMIT_NOFILE, &limit) == 0);
      const rlimit lower{static_cast<rlim_t>(set), limit.rlim_max};
      CHECK_THAT(::setrlimit(RLIMIT_NOFILE, &lower) == 0);
      Result("dup2 over a set", ::dup2(0, set));
      CHECK_THAT(::setrlimit(RLIMIT_NOFILE, &limit) == 0);
      epoll_event event{};
      event.events = EPOLLOUT;
      Result("add", ::epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
      Result("wait", ::epoll_wait(set, &event, 1, 0));
      Call(fd, 100);
      ::close(fd);
    });

// The number is never free meanwhile, for another thread's new descriptor would
// have it, and be closed.
constexpr int kReplaced = 60;
Case dup_over_race(
    "dup2_over_streams_beside_open",
    [](int) {
      int port;
      const int listener = Listen(&port);
      Tell(port);
      std::vector<int> fds;
      for (int i = 0; i < kReplaced; ++i) {
        fds.push_back(::accept(listener, nullptr, nullptr));
        CHECK_THAT(fds.back() >= 0);
        Warm(fds.back());
      }
      for (const int fd : fds) LogDrain(fd);
    },
    [](int) {
      const int port = static_cast<int>(Hear());
      const int null = ::open("/dev/null", O_RDWR);
      std::vector<int> fds;
      for (int i = 0; i < kReplaced; ++i) {
        fds.push_back(Connect(port));
        Warm(fds.back());
      }
      // (Beside them a set of epoll, and a stream with two numbers.)
      fds.push_back(::epoll_create1(0));
      fds.push_back(::dup(fds[0]));
      const std::set<int> numbers(fds.begin(), fds.end());
      std::atomic<bool> done{false};
      std::atomic<int> rounds{0};
      int stolen = 0;
      std::thread other([&] {
        while (!done.load()) {
          const int fd = ::open("/dev/zero", O_RDONLY);
          CHECK_THAT(fd >= 0);
          if (numbers.contains(fd)) ++stolen;
          ::close(fd);
          rounds.fetch_add(1);
        }
      });
      for (const int fd : fds) {
        const int before = rounds.load();
        while (rounds.load() == before) ::sched_yield();
        CHECK_THAT(::dup2(null, fd) == fd);
      }
      done.store(true);
      other.join();
      Log("%d stolen", stolen);
    },
    {.warm = false, .connect = false});

Case dup_over_peer(
    "reuse_number",
    [](int fd) {
      Echo(fd, 200);
      LogDrain(fd);
    },
    [](int fd) {
      Call(fd, 200);
      ::close(fd);
      int pipe_fds[2];
      CHECK_THAT(::pipe(pipe_fds) == 0);
      Log("number is taken again %d", pipe_fds[0] == fd || pipe_fds[1] == fd);
      Result("write", ::write(pipe_fds[1], "abc", 3));
      char text[4];
      Result("read", ::read(pipe_fds[0], text, 4));
    });

// A table of descriptors of its own for a thread that has no other beside it:
// what it closes is closed.
void Part(int fd, int port, bool by_range) {
  int pipe[2];
  CHECK_THAT(::pipe(pipe) == 0);
  if (by_range) {
    const auto number = static_cast<unsigned>(pipe[1]);
    Result("close_range", ::close_range(number, number, CLOSE_RANGE_UNSHARE));
  } else {
    Result("unshare", ::unshare(CLONE_FILES));
    Result("close", ::close(pipe[1]));
  }
  pollfd end{pipe[0], POLLIN, 0};
  Result("poll", ::poll(&end, 1, 2000));
  Log("%x", static_cast<unsigned>(end.revents));
  const auto ask = [](int on) {
    char text[4];
    for (int i = 0; i < 50; ++i) {
      SendAll(on, "ping", 4);
      RecvAll(on, text, 4);
    }
  };
  ask(fd);
  // The number is another connection's now.
  const int other = Connect(port);
  Warm(other);
  ask(other);
  ::close(other);
  ::close(pipe[0]);
  Log("goes on");
}

void AnswerAll(int listener, int connections) {
  for (int i = 0; i < connections; ++i) {
    const int fd = ::accept(listener, nullptr, nullptr);
    CHECK_THAT(fd >= 0);
    Warm(fd);
    std::thread([fd] {
      char text[4];
      while (::recv(fd, text, 4, MSG_WAITALL) == 4) SendAll(fd, text, 4);
      ::close(fd);
    }).detach();
  }
}

Case parted(
    "unshare_descriptors",
    [](int) {
      int port;
      const int listener = Listen(&port);
      Tell(port);
      AnswerAll(listener, 3);
      Barrier();
    },
    [](int) {
      const int port = static_cast<int>(Hear());
      const int fd = Connect(port);
      Warm(fd);
      Part(fd, port, true);
      Part(fd, port, false);
      ::close(fd);
      Barrier();
    },
    {.warm = false, .connect = false});

// With another thread: the streams go on.
Case parted_beside(
    "unshare_descriptors_beside",
    [](int fd) {
      char text[4];
      while (::recv(fd, text, 4, MSG_WAITALL) == 4) SendAll(fd, text, 4);
    },
    [](int fd) {
      std::atomic<bool> done{false};
      std::thread beside([&] {
        while (!done) ::poll(nullptr, 0, 1);
      });
      Result("unshare", ::unshare(CLONE_FILES));
      char text[4];
      for (int i = 0; i < 50; ++i) {
        SendAll(fd, "ping", 4);
        RecvAll(fd, text, 4);
      }
      done = true;
      beside.join();
      Result("shutdown", ::shutdown(fd, SHUT_WR));
      int error;
      Result("rest", static_cast<long>(Drain(fd, &error)));
    });

// A thread parts and closes all that it has then: the others keep theirs.
Case parted_closes(
    "close_range_parts_beside",
    [](int fd) {
      char text[4];
      while (::recv(fd, text, 4, MSG_WAITALL) == 4) SendAll(fd, text, 4);
    },
    [](int fd) {
      for (const bool named : {false, true}) {
        long result = -1;
        std::thread([&] {
          result =
              named ? ::close_range(3, ~0u, CLOSE_RANGE_UNSHARE)
                    : ::syscall(SYS_close_range, 3, ~0u, CLOSE_RANGE_UNSHARE);
        }).join();
        Result("close_range", result);
        char text[4];
        for (int i = 0; i < 50; ++i) {
          SendAll(fd, "ping", 4);
          RecvAll(fd, text, 4);
        }
      }
      Result("shutdown", ::shutdown(fd, SHUT_WR));
      int error;
      Result("rest", static_cast<long>(Drain(fd, &error)));
    });

}  // namespace
