// A FILE of fdopen() on a connection: what libc's stdio does by calls of its
// own.
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cwchar>
#include <string>
#include <vector>

#include "tests/posix/pair.h"

namespace {

using namespace pair;

constexpr int kTurns = 300;

// On a lane, a connection that stays there: TCP carries no more of it.
void LogStays(int fd, void (*talk)(int fd)) {
  const std::uint64_t before = TcpBytes(fd);
  talk(fd);
  const bool on_lane = std::getenv("PAIR_WARM") != nullptr &&
                       std::getenv("RCSOCK_STATS") != nullptr &&
                       std::getenv("LD_PRELOAD") != nullptr;
  Log("stays %d", !on_lane || TcpBytes(fd) - before < 1000);
}

std::FILE* Opened(int fd, const char* mode) {
  std::FILE* file = ::fdopen(fd, mode);
  CHECK_THAT(file != nullptr && ::fileno(file) == fd);
  return file;
}

std::FILE* OpenedCopy(int fd, const char* mode) {
  const int copy = ::dup(fd);
  CHECK_THAT(copy >= 0);
  return Opened(copy, mode);
}

std::string Line(std::FILE* file) {
  char text[128];
  CHECK_THAT(std::fgets(text, sizeof text, file) != nullptr);
  return text;
}

// As a mail server: two FILEs of one connection, a line each way.
Case lines(
    "filed_lines",
    [](int fd) {
      LogStays(fd, [](int stream) {
        std::FILE* in = OpenedCopy(stream, "r");
        std::FILE* out = OpenedCopy(stream, "w");
        for (int i = 0; i < kTurns; ++i) {
          std::fprintf(out, "%d %s", 250 + i, Line(in).c_str());
          CHECK_THAT(std::fflush(out) == 0);
        }
        Result("fclose", std::fclose(in));
        Result("fclose", std::fclose(out));
      });
      SendAll(fd, "past it\n", 8);
      Barrier();
    },
    [](int fd) {
      std::FILE* both = Opened(fd, "r+");
      std::setvbuf(both, nullptr, _IONBF, 0);
      bool right = true;
      for (int i = 0; i < kTurns; ++i) {
        std::fprintf(both, "line %d\n", i);
        const std::string heard = Line(both);
        right = right && heard == std::to_string(250 + i) + " line " +
                                      std::to_string(i) + "\n";
      }
      Log("right %d", right);
      Log("%s", Line(both).c_str());
      Barrier();
    });

// More than a buffer, and than a ring; in pieces that fit neither.
constexpr std::size_t kMuch = 3'000'001;

Case bulk(
    "filed_bulk",
    [](int fd) {
      std::vector<char> text(kMuch);
      Pattern(5, 0, text.data(), kMuch);
      std::FILE* out = OpenedCopy(fd, "w");
      for (std::size_t at = 0; at < kMuch;) {
        const std::size_t piece =
            std::min<std::size_t>(777 + at % 9000, kMuch - at);
        CHECK_THAT(std::fwrite(text.data() + at, 1, piece, out) == piece);
        at += piece;
      }
      Result("at", std::ftell(out));
      Log("%s", ErrorName(errno));
      Result("fclose", std::fclose(out));
      Result("shutdown", ::shutdown(fd, SHUT_WR));
      Barrier();
    },
    [](int fd) {
      std::vector<char> text(kMuch + 1);
      std::FILE* in = Opened(fd, "r");
      char buffer[5000];
      Result("setvbuf", std::setvbuf(in, buffer, _IOFBF, sizeof buffer));
      const int first = std::fgetc(in);
      CHECK_THAT(std::ungetc(first, in) == first);
      Result("fread",
             static_cast<long>(std::fread(text.data(), 1, text.size(), in)));
      Log("right %d", IsPattern(5, 0, text.data(), kMuch));
      Log("eof %d error %d", std::feof(in), std::ferror(in));
      std::clearerr(in);
      Result("seek", std::fseek(in, 0, SEEK_SET));
      Log("%s", ErrorName(errno));
      Log("again %d", std::fgetc(in));
      Barrier();
      Result("fclose", std::fclose(in));
      Result("its number", ::fcntl(fd, F_GETFD));
      Log("%s", ErrorName(errno));
    });

Case wide(
    "filed_wide",
    [](int fd) {
      std::FILE* out = Opened(fd, "w");
      for (int i = 0; i < 50; ++i) std::fwprintf(out, L"wide %d\n", i);
      CHECK_THAT(std::fflush(out) == 0);
      Barrier();
    },
    [](int fd) {
      std::FILE* in = Opened(fd, "r");
      wchar_t text[64];
      for (int i = 0; i < 50; ++i) {
        CHECK_THAT(std::fgetws(text, 64, in) != nullptr);
      }
      Log("%ls", text);
      Barrier();
    });

// Nothing there, time-outs, a handler: errno, and the FILE goes on.
Case waits(
    "filed_waits",
    [](int fd) {
      Barrier();
      SendAll(fd, "at last\n", 8);
      Barrier();
      Barrier();
      SendAll(fd, "and more\n", 9);
      Barrier();
    },
    [](int fd) {
      std::FILE* in = Opened(fd, "r");
      SetNonblock(fd, true);
      Result("none", std::fgetc(in));
      Log("%s, error %d", ErrorName(errno), std::ferror(in) != 0);
      std::clearerr(in);
      SetNonblock(fd, false);
      const timeval soon{0, 20'000};
      CHECK_THAT(
          ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof soon) == 0);
      Result("none in time", std::fgetc(in));
      Log("%s", ErrorName(errno));
      std::clearerr(in);
      const timeval never{};
      CHECK_THAT(
          ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &never, sizeof never) == 0);
      Barrier();
      Log("%s", Line(in).c_str());
      Barrier();
      struct sigaction action {};
      action.sa_handler = [](int) {};
      CHECK_THAT(::sigaction(SIGALRM, &action, nullptr) == 0);
      const itimerval often{{0, 20'000}, {0, 20'000}};
      CHECK_THAT(::setitimer(ITIMER_REAL, &often, nullptr) == 0);
      Result("interrupted", std::fgetc(in));
      Log("%s", ErrorName(errno));
      const itimerval off{};
      CHECK_THAT(::setitimer(ITIMER_REAL, &off, nullptr) == 0);
      std::clearerr(in);
      Barrier();
      Log("%s", Line(in).c_str());
      Barrier();
    });

// A thread that is cancelled in it lets go of the FILE.
Case cancelled(
    "filed_cancelled",
    [](int fd) {
      Barrier();
      SendAll(fd, "for another\n", 12);
      Barrier();
    },
    [](int fd) {
      std::FILE* in = Opened(fd, "r");
      pthread_t thread;
      CHECK_THAT(::pthread_create(
                     &thread, nullptr,
                     [](void* file) -> void* {
                       std::fgetc(static_cast<std::FILE*>(file));
                       return nullptr;
                     },
                     in) == 0);
      // (Cancelled before it sleeps, or after: it must end either way.)
      CHECK_THAT(::pthread_cancel(thread) == 0);
      void* result = nullptr;
      CHECK_THAT(::pthread_join(thread, &result) == 0);
      Log("cancelled %d", result == PTHREAD_CANCELED);
      Result("its lock", ::ftrylockfile(in));
      ::funlockfile(in);
      Barrier();
      Log("%s", Line(in).c_str());
      Barrier();
    });

// A peer that has gone.
Case broken(
    "filed_broken",
    [](int fd) {
      const linger at_once{1, 0};
      CHECK_THAT(::setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once,
                              sizeof at_once) == 0);
      ::close(fd);
      Barrier();
      Barrier();
    },
    [](int fd) {
      ::signal(SIGPIPE, SIG_IGN);
      Barrier();
      std::FILE* in = OpenedCopy(fd, "r");
      std::FILE* out = OpenedCopy(fd, "w");
      Result("fgetc", std::fgetc(in));
      Log("%s, error %d eof %d", ErrorName(errno), std::ferror(in) != 0,
          std::feof(in) != 0);
      std::fputs("for nobody", out);
      Result("fflush", std::fflush(out));
      Log("%s, error %d", ErrorName(errno), std::ferror(out) != 0);
      Result("fclose", std::fclose(out));
      Result("fclose", std::fclose(in));
      Barrier();
    });

// A FILE of a socket that is connected only then.
Case before(
    "filed_before_connect",
    [](int) {
      const int listener = ListenAndTell();
      const int fd = Accept(listener);
      Warm(fd);
      std::FILE* in = Opened(fd, "r");
      for (int i = 0; i < 40; ++i) CHECK_THAT(!Line(in).empty());
      Log("%s", Line(in).c_str());
      Barrier();
    },
    [](int) {
      const sockaddr_in to = posix_test::Loopback(HearPort());
      const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
      std::FILE* out = Opened(fd, "w");
      CHECK_THAT(::connect(fd, reinterpret_cast<const sockaddr*>(&to),
                           sizeof to) == 0);
      Warm(fd);
      for (int i = 0; i < 41; ++i) {
        std::fprintf(out, "line %d\n", i);
        CHECK_THAT(std::fflush(out) == 0);
      }
      Barrier();
    },
    {.warm = false, .connect = false});

// Another file gets its number under the FILE, and the connection another
// number's FILE.
Case exchanged(
    "filed_number_exchanged",
    [](int fd) {
      char path[] = "/tmp/pair.XXXXXX";
      const int file = ::mkstemp(path);
      const int kept = ::dup(fd);
      std::FILE* one = Opened(fd, "w");
      std::FILE* other = Opened(file, "w");
      std::fprintf(one, "one\n");
      std::fflush(one);
      CHECK_THAT(::dup2(file, fd) == fd && ::dup2(kept, file) == file);
      std::fprintf(one, "to the file\n");
      std::fprintf(other, "other\n");
      std::fflush(nullptr);
      char text[64] = {};
      Result("in the file", ::pread(fd, text, sizeof text - 1, 0));
      Log("%s", text);
      std::fclose(other);
      std::fclose(one);
      SendAll(kept, "last\n", 5);
      ::unlink(path);
      Barrier();
    },
    [](int fd) {
      std::FILE* in = Opened(fd, "r");
      for (int i = 0; i < 3; ++i) Log("%s", Line(in).c_str());
      Barrier();
    });

// A FILE of something else, onto whose number the connection comes: no fdopen()
// tells of that.
void PutUnderFile(int fd, int (*put)(int from, int to)) {
  std::FILE* file = std::fopen("/dev/null", "r+");
  CHECK_THAT(file != nullptr && ::fileno(file) > 2);
  CHECK_THAT(put(fd, ::fileno(file)) == ::fileno(file));
  ::close(fd);
  std::fprintf(file, "from under it\n");
  std::fflush(file);
  Log("%s", Line(file).c_str());
  std::fclose(file);
}
void TalkToFile(int fd) {
  char text[32] = {};
  RecvAll(fd, text, 14);
  Log("%s", text);
  SendAll(fd, "to it\n", 6);
  Result("the end", ::recv(fd, text, sizeof text, 0));
}
Case replaced(
    "filed_replaced", [](int fd) { PutUnderFile(fd, &::dup2); }, &TalkToFile);
Case replaced_by_dup3(
    "filed_by_dup3",
    [](int fd) {
      PutUnderFile(
          fd, [](int from, int to) { return ::dup3(from, to, O_CLOEXEC); });
    },
    &TalkToFile);

// What is in the buffer of a child when it is made, and when it ends.
Case forked(
    "filed_forked",
    [](int fd) {
      std::FILE* out = Opened(fd, "w");
      std::fprintf(out, "before\n");
      std::fflush(out);
      const int pid = ::fork();
      CHECK_THAT(pid >= 0);
      if (pid == 0) {
        std::fprintf(out, "the child's last words\n");
        std::exit(0);
      }
      int status = 0;
      CHECK_THAT(::waitpid(pid, &status, 0) == pid);
      Log("status %d", status);
      for (int i = 0; i < 200; ++i) {
        std::fprintf(out, "after %d\n", i);
        std::fflush(out);
      }
      Barrier();
    },
    [](int fd) {
      std::FILE* in = Opened(fd, "r");
      for (int i = 0; i < 201; ++i) CHECK_THAT(!Line(in).empty());
      Log("%s", Line(in).c_str());
      Barrier();
    });

// ... and of a process that holds the connection alone.
Case exits(
    "filed_exits",
    [](int fd) {
      const int pid = ::fork();
      CHECK_THAT(pid >= 0);
      if (pid == 0) {
        std::FILE* out = Opened(fd, "w");
        char word[4];
        for (int i = 0; i < 200; ++i) {
          SendAll(fd, "call", 4);
          RecvAll(fd, word, 4);
        }
        std::fprintf(out, "the last words\n");
        std::exit(0);
      }
      ::close(fd);
      int status = 0;
      CHECK_THAT(::waitpid(pid, &status, 0) == pid);
      Log("status %d", status);
      Barrier();
    },
    [](int fd) {
      char word[4];
      for (int i = 0; i < 200; ++i) {
        RecvAll(fd, word, 4);
        SendAll(fd, word, 4);
      }
      std::FILE* in = Opened(fd, "r");
      Log("%s", Line(in).c_str());
      Log("the end %d", std::fgetc(in));
      Log("eof %d", std::feof(in) != 0);
      Barrier();
    });

Case reopened(
    "filed_reopened",
    [](int fd) {
      char path[] = "/tmp/pair.XXXXXX";
      const int file = ::mkstemp(path);
      std::FILE* out = Opened(fd, "w");
      std::fprintf(out, "to the peer\n");
      CHECK_THAT(std::freopen(path, "w", out) == out);
      std::fprintf(out, "to the file\n");
      std::fclose(out);
      char text[64] = {};
      Result("in the file", ::read(file, text, sizeof text - 1));
      ::unlink(path);
      Barrier();
    },
    [](int fd) {
      std::FILE* in = Opened(fd, "r");
      Log("%s", Line(in).c_str());
      Log("the end %d", std::fgetc(in));
      Barrier();
    });

// What is refused, and the modes that no hook follows.
Case modes(
    "filed_modes",
    [](int fd) {
      Log("%d", ::fdopen(fd, "no mode") == nullptr);
      Log("%s", ErrorName(errno));
      Log("%d", ::fdopen(-1, "r") == nullptr);
      Log("%s", ErrorName(errno));
      std::FILE* in = OpenedCopy(fd, "rm");
      Log("%s", Line(in).c_str());
      std::FILE* out = OpenedCopy(fd, "wc");
      std::fputs("out\n", out);
      Result("fclose", std::fclose(out));
      Result("fclose", std::fclose(in));
      Barrier();
    },
    [](int fd) {
      SendAll(fd, "in\n", 3);
      std::FILE* in = Opened(fd, "r");
      Log("%s", Line(in).c_str());
      Barrier();
    });

}  // namespace
