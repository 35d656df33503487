// Other programs: vfork, exec, posix_spawn, system, popen.
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "tests/posix/pair.h"

extern char** environ;

namespace {

using namespace pair;

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

}  // namespace
