// Files and pipes: sendfile, splice, stdio.
#include <fcntl.h>
#include <signal.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <syslog.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "tests/posix/pair.h"

extern char** environ;

namespace {

using namespace pair;

Case sendfile_special(
    "sendfile_special",
    [](int fd) {
      // Files without a size: what a call that sends nothing of them says, and
      // what is read of those that may be sent.
      for (const char* name :
           {"/proc/self/comm", "/proc/self/status", "/proc/self/environ",
            "/proc/self/fd", "/proc/version",
            "/sys/kernel/mm/transparent_hugepage/enabled", "/dev/null"}) {
        const int special = ::open(name, O_RDONLY);
        if (special < 0) continue;
        ssize_t n = ::sendfile(fd, special, nullptr, 1 << 15);
        Log("%s: %s", name, n < 0 ? ErrorName(errno) : "sent");
        off_t at = ::lseek(special, 0, SEEK_CUR);
        Log("read on at the end %d", n < 0 || at == n);
        while (n > 0 && (n = ::sendfile(fd, special, nullptr, 1 << 15)) > 0) {
        }
        at = 0;
        n = ::sendfile(fd, special, &at, 1 << 15);
        Log("from the start: %s, %d", n < 0 ? ErrorName(errno) : "sent",
            n < 0 || at == n);
        ::close(special);
      }
      ::close(fd);
    },
    [](int fd) {
      int error;
      Drain(fd, &error);
      Log("%s", ErrorName(error));
    });

Case sendfiles(
    "sendfile",
    [](int fd) {
      char path[] = "/tmp/pair.XXXXXX";
      const int file = ::mkstemp(path);
      CHECK_THAT(file >= 0);
      ::unlink(path);
      std::vector<char> text(500'000);
      Pattern(11, 0, text.data(), text.size());
      CHECK_THAT(::write(file, text.data(), text.size()) ==
                 static_cast<ssize_t>(text.size()));
      off_t offset = 1000;
      Result("sendfile offset", ::sendfile(fd, file, &offset, 200'000));
      Log("offset %lld, position %lld", static_cast<long long>(offset),
          static_cast<long long>(::lseek(file, 0, SEEK_CUR)));
      ::lseek(file, 300'000, SEEK_SET);
      Result("sendfile", ::sendfile(fd, file, nullptr, 100'000));
      Log("position %lld", static_cast<long long>(::lseek(file, 0, SEEK_CUR)));
      Result("sendfile past", ::sendfile(fd, file, nullptr, 1'000'000));
      Result("sendfile at end", ::sendfile(fd, file, nullptr, 10));
      offset = 0;
      Result("sendfile none", ::sendfile(fd, file, &offset, 0));
      offset = -1;
      Result("sendfile -1", ::sendfile(fd, file, &offset, 10));
      Result("sendfile bad", ::sendfile(fd, -1, nullptr, 10));
      int ends[2];
      CHECK_THAT(::pipe(ends) == 0 && ::write(ends[1], "pipe", 4) == 4);
      Result("sendfile of a pipe", ::sendfile(fd, ends[0], nullptr, 4));
      offset = 0;
      Result("at an offset", ::sendfile(fd, ends[0], &offset, 4));
      Result("none of it", ::sendfile(fd, ends[0], nullptr, 0));
      char left[8];
      Result("still there", ::read(ends[0], left, sizeof left));
      ::close(ends[0]);
      ::close(ends[1]);
      Result("sendfile of a stream", ::sendfile(fd, fd, nullptr, 4));
      // More than there can be behind where it stands; its place is looked at
      // before the stream's.
      offset = 1;
      Result("too much", ::sendfile(fd, file, &offset, SSIZE_MAX));
      Result("much too much", ::sendfile(fd, file, &offset, SIZE_MAX));
      Log("offset %lld", static_cast<long long>(offset));
      ::lseek(file, 1, SEEK_SET);
      Result("without offset", ::sendfile(fd, file, nullptr, SSIZE_MAX));
      Result("of the closed", ::sendfile(fd, ends[0], nullptr, SSIZE_MAX));
      const int directory = ::open("/", O_RDONLY | O_DIRECTORY);
      Result("of a directory", ::sendfile(fd, directory, &offset, 4));
      Result("without offset", ::sendfile(fd, directory, nullptr, 4));
      ::close(directory);
      Result("none of what is closed", ::sendfile(fd, directory, nullptr, 0));
      Barrier();
      // To a full stream.
      SetNonblock(fd, true);
      std::uint64_t total = 0;
      for (;;) {
        offset = 0;
        const ssize_t n = ::sendfile(fd, file, &offset, text.size());
        if (n < 0) {
          Log("%s, offset %lld", ErrorName(errno),
              static_cast<long long>(offset));
          break;
        }
        CHECK_THAT(n == offset);
        total += static_cast<std::uint64_t>(n);
        if (n < static_cast<ssize_t>(text.size())) continue;
      }
      Tell(static_cast<std::int64_t>(total));
    },
    [](int fd) {
      std::vector<char> text(200'000);
      RecvAll(fd, text.data(), 200'000);
      CHECK_THAT(IsPattern(11, 1000, text.data(), 200'000));
      RecvAll(fd, text.data(), 200'000);
      CHECK_THAT(IsPattern(11, 300'000, text.data(), 200'000));
      Barrier();
      const auto total = static_cast<std::size_t>(Hear());
      int error;
      Log("all came %d", Drain(fd, &error) == total);
    });

Case spliced(
    "splice",
    [](int fd) {
      int pipe_fds[2];
      CHECK_THAT(::pipe(pipe_fds) == 0);
      CHECK_THAT(::write(pipe_fds[1], "by pipe", 7) == 7);
      Result("splice", ::splice(pipe_fds[0], nullptr, fd, nullptr, 7, 0));
      SendAll(fd, "after", 5);
      Barrier();
    },
    [](int fd) {
      int pipe_fds[2];
      CHECK_THAT(::pipe(pipe_fds) == 0);
      std::size_t left = 12;
      while (left > 0) {
        const ssize_t n = ::splice(fd, nullptr, pipe_fds[1], nullptr, left, 0);
        CHECK_THAT(n > 0);
        left -= static_cast<std::size_t>(n);
      }
      char text[16] = {};
      Result("read", ::read(pipe_fds[0], text, 12));
      Log("%s", text);
      Barrier();
    });

Case stdio(
    "stdio",
    [](int fd) {
      std::FILE* out = ::fdopen(::dup(fd), "w");
      std::fprintf(out, "first line\n");
      std::fflush(out);
      ::dprintf(fd, "second %d\n", 2);
      Barrier();
      std::fclose(out);
      SendAll(fd, "third\n", 6);
      Barrier();
    },
    [](int fd) {
      std::FILE* in = ::fdopen(fd, "r");
      char line[64];
      for (int i = 0; i < 2; ++i) {
        CHECK_THAT(std::fgets(line, sizeof line, in) != nullptr);
        Log("%.6s", line);
      }
      Barrier();
      CHECK_THAT(std::fgets(line, sizeof line, in) != nullptr);
      Log("%.5s", line);
      Barrier();
    });

// stdin, stdout and stderr where the connection has their numbers, and no
// fdopen says so: libc's own calls, among those of the program.
struct Standard {
  explicit Standard(int number, int fd) : number_(number) {
    std::fflush(nullptr);
    // (None if it is closed.)
    kept_ = ::fcntl(number, F_DUPFD_CLOEXEC, 100);
    CHECK_THAT(::dup2(fd, number) == number);
  }
  ~Standard() { kept_ < 0 ? ::close(number_) : ::dup2(kept_, number_); }
  int number_;
  int kept_;
};

void HearLines(int fd, int count) {
  for (int i = 0; i < count; ++i) {
    std::string line;
    for (char c = 0; c != '\n'; line += c) RecvAll(fd, &c, 1);
    line.pop_back();
    Log("%s", line.c_str());
  }
}

void CallAndAnswer(int fd, bool calls, int count) {
  for (int i = 0; i < count; ++i) {
    char text[4];
    if (calls) SendAll(fd, "call", 4);
    RecvAll(fd, text, 4);
    if (!calls) SendAll(fd, text, 4);
  }
}

Case standard_output(
    "stdio_standard_output",
    [](int fd) {
      {
        const Standard standard(STDOUT_FILENO, fd);
        for (int i = 0; i < 3; ++i) {
          std::printf("printed %d\n", i);
          std::fflush(stdout);
          CHECK_THAT(::write(STDOUT_FILENO, "written\n", 8) == 8);
        }
        // More than the buffer, and than one record of a lane.
        const std::string many(300'000, 'x');
        std::puts(many.c_str());
        std::fflush(stdout);
        CHECK_THAT(std::ferror(stdout) == 0);
      }
      CallAndAnswer(fd, true, 100);
      Barrier();
    },
    [](int fd) {
      HearLines(fd, 6);
      std::string many(300'001, ' ');
      RecvAll(fd, many.data(), many.size());
      Log("%d", many == std::string(300'000, 'x') + "\n");
      CallAndAnswer(fd, false, 100);
      Barrier();
    });

Case standard_error(
    "stdio_standard_error",
    [](int fd) {
      {
        const Standard standard(STDERR_FILENO, fd);
        errno = ENOENT;
        std::perror("said by perror");
        std::fprintf(stderr, "said %d\n", 1);
        ::openlog("log", LOG_PERROR, LOG_USER);
        ::syslog(LOG_INFO, "said by syslog");
        ::closelog();
        errno = EINTR;
        std::perror("again");
        siginfo_t signal{};
        signal.si_signo = SIGUSR1;
        signal.si_code = SI_QUEUE;
        ::psiginfo(&signal, "said by psiginfo");
      }
      CallAndAnswer(fd, true, 100);
      Barrier();
    },
    [](int fd) {
      HearLines(fd, 5);
      CallAndAnswer(fd, false, 100);
      Barrier();
    });

Case standard_input(
    "stdio_standard_input",
    [](int fd) {
      {
        const Standard standard(STDIN_FILENO, fd);
        char line[64];
        for (int i = 0; i < 3; ++i) {
          SendAll(fd, "next", 4);
          CHECK_THAT(std::fgets(line, sizeof line, stdin) != nullptr);
          Log("%.6s", line);
        }
      }
      CallAndAnswer(fd, true, 100);
      Barrier();
    },
    [](int fd) {
      for (int i = 0; i < 3; ++i) {
        char text[4];
        RecvAll(fd, text, 4);
        SendAll(fd, i == 0 ? "line 0\n" : i == 1 ? "line 1\n" : "line 2\n", 7);
      }
      CallAndAnswer(fd, false, 100);
      Barrier();
    });

// The FILE lets go of the number, by its own close or dup3.
Case standard_closed(
    "stdio_standard_closed",
    [](int fd) {
      char path[] = "/tmp/pair.XXXXXX";
      const int file = ::mkstemp(path);
      CHECK_THAT(file >= 0 && ::close(file) == 0);
      std::fflush(stdout);
      CHECK_THAT(::dup2(fd, STDOUT_FILENO) == STDOUT_FILENO);
      CallAndAnswer(fd, true, 100);
      std::printf("to the connection\n");
      CHECK_THAT(std::freopen(path, "w", stdout) == stdout);
      std::printf("to the file\n");
      std::fflush(stdout);
      CHECK_THAT(::write(STDOUT_FILENO, "this too\n", 9) == 9);
      CallAndAnswer(fd, true, 100);
      CHECK_THAT(::dup2(fd, STDOUT_FILENO) == STDOUT_FILENO);
      std::printf("again\n");
      CHECK_THAT(::close(fd) == 0);
      Result("fclose", std::fclose(stdout));
      const int text = ::open(path, O_RDONLY);
      char all[64] = {};
      Result("in the file", ::read(text, all, sizeof all - 1));
      Log("%s", all);
      ::close(text);
      ::unlink(path);
      Barrier();
      // (Said by the other end: the connection is closed here.)
      Barrier();
    },
    [](int fd) {
      CallAndAnswer(fd, false, 100);
      HearLines(fd, 1);
      CallAndAnswer(fd, false, 100);
      HearLines(fd, 1);
      char end;
      Result("the end", ::recv(fd, &end, 1, 0));
      Barrier();
      Barrier();
    });

// What is in the buffer at exit.
Case standard_exit(
    "stdio_standard_exit",
    [](int fd) {
      const int pid = ::fork();
      CHECK_THAT(pid >= 0);
      if (pid == 0) {
        CHECK_THAT(::dup2(fd, STDOUT_FILENO) == STDOUT_FILENO);
        CallAndAnswer(fd, true, 200);
        std::printf("the last words\n");
        std::exit(0);
      }
      ::close(fd);
      int status = 0;
      CHECK_THAT(::waitpid(pid, &status, 0) == pid);
      Log("status %d", status);
      Barrier();
    },
    [](int fd) {
      CallAndAnswer(fd, false, 200);
      HearLines(fd, 1);
      char end;
      Result("the end", ::recv(fd, &end, 1, 0));
      Barrier();
    });

}  // namespace
