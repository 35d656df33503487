// Sessions of their own: daemon, login_tty, forkpty.  libc makes them of calls
// of its own, which nobody else sees; who has let a connection go there, or has
// ended, must not count as a holder of it, or it would stay on TCP.
#include <fcntl.h>
#include <pty.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>
#include <utmp.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "tests/posix/pair.h"

extern char** environ;

namespace {

using namespace pair;

// What a login is: a program that is started without what loads rcsock.
[[noreturn]] void BecomeSleep() {
  char* none[] = {nullptr};
  ::execle("/bin/sleep", "sleep", "1000", static_cast<char*>(nullptr), none);
  ::_exit(99);
}

// The connection at 0, 1 and 2, as inetd gives it to telnetd.
void AtStandard(int fd) {
  for (int number = 0; number < 3; ++number) {
    CHECK_THAT(::dup2(fd, number) == number);
  }
  ::close(fd);
}

void End(pid_t child) {
  ::kill(child, SIGKILL);
  LogChild(child);
}

// (stdout is the connection: what is seen is said by the other end.)
void Answer(int fd, int count) {
  for (int i = 0; i < count; ++i) {
    Warm(fd);
    char what = 0;
    RecvAll(fd, &what, 1);
    Log("then %c", what);
  }
  LogDrain(fd);
}

Case forkpty_standard(
    "forkpty", [](int fd) { Answer(fd, 2); },
    [](int fd) {
      const int log = ::fcntl(1, F_DUPFD_CLOEXEC, 100);
      AtStandard(fd);
      Warm(0);
      SendAll(0, "1", 1);
      int terminal = -1;
      const pid_t child = ::forkpty(&terminal, nullptr, nullptr, nullptr);
      if (child == 0) BecomeSleep();
      Warm(0);
      SendAll(0, "2", 1);
      ::dup2(log, 1);
      ::close(0);
      ::close(2);
      Log("terminal %d", terminal > 2);
      End(child);
    },
    {.warm = false});

Case forkpty_beside(
    "forkpty_child_uses_it", [](int fd) { Answer(fd, 1); },
    [](int fd) {
      // At 0 first, then elsewhere as well: the child has that number still.
      CHECK_THAT(::dup2(fd, 0) == 0);
      ::close(fd);
      CHECK_THAT(::dup2(0, fd) == fd);
      int terminal = -1;
      const pid_t child = ::forkpty(&terminal, nullptr, nullptr, nullptr);
      if (child == 0) {
        if (::isatty(0) != 1) ::_exit(1);
        // The parent has let it go.
        Warm(fd);
        SendAll(fd, "c", 1);
        ::_exit(7);
      }
      ::close(fd);
      ::close(0);
      char gone[64];
      while (::read(terminal, gone, sizeof gone) > 0) {
      }
      LogChild(child);
    });

Case login(
    "login_tty", [](int fd) { Answer(fd, 1); },
    [](int fd) {
      int control, terminal;
      CHECK_THAT(::openpty(&control, &terminal, nullptr, nullptr, nullptr) ==
                 0);
      CHECK_THAT(::dup2(fd, 0) == 0);
      const pid_t child = ::fork();
      if (child == 0) {
        ::close(fd);
        ::close(control);
        if (::login_tty(terminal) != 0) ::_exit(1);
        BecomeSleep();
      }
      ::close(terminal);
      ::close(0);
      Warm(fd);
      SendAll(fd, "l", 1);
      ::close(fd);
      End(child);
      errno = 0;
      Result("login_tty of no terminal", ::login_tty(control));
    });

Case daemon_alone(
    "daemon_goes_on", [](int fd) { Answer(fd, 2); },
    [](int fd) {
      Warm(fd);
      SendAll(fd, "p", 1);
      const pid_t child = ::fork();
      if (child == 0) {
        // (At 0, too, which it gives up.)
        ::dup2(fd, 0);
        CHECK_THAT(::daemon(1, 0) == 0);
        Warm(fd);
        SendAll(fd, "d", 1);
        ::exit(0);
      }
      ::close(fd);
      LogChild(child);
    },
    {.warm = false});

// Long enough to take a lane in whatever way.
constexpr int kMessages = 5000;
Case daemon_talks(
    "daemon_talks",
    [](int fd) {
      Echo(fd, kMessages);
      LogDrain(fd);
    },
    [](int fd) {
      const pid_t child = ::fork();
      if (child == 0) {
        CHECK_THAT(::daemon(1, 1) == 0);
        for (int i = 0; i < kMessages; ++i) {
          char text[16] = "daemon";
          SendAll(fd, text, sizeof text);
          RecvAll(fd, text, sizeof text);
        }
        ::exit(0);
      }
      ::close(fd);
      LogChild(child);
    },
    {.warm = false});

// What it does beside that.
Case daemon_itself(
    "daemon_itself", [](int fd) { LogDrain(fd); },
    [](int fd) {
      int said[2];
      CHECK_THAT(::pipe(said) == 0);
      const pid_t child = ::fork();
      if (child == 0) {
        const pid_t session = ::getsid(0);
        ::close(0);
        CHECK_THAT(::daemon(0, 0) == 0);
        char where[64] = {};
        char one[8];
        const char* const folder = ::getcwd(where, sizeof where);
        const char text[] = {
            folder != nullptr && std::strcmp(folder, "/") == 0 ? 'y' : 'n',
            ::getsid(0) != session ? 'y' : 'n',
            ::read(0, one, sizeof one) == 0 ? 'y' : 'n',
            ::write(1, one, sizeof one) == 8 ? 'y' : 'n',
            (::fcntl(2, F_GETFL) & O_ACCMODE) == O_RDWR ? 'y' : 'n'};
        ::write(said[1], text, sizeof text);
        ::_exit(0);
      }
      LogChild(child);
      char text[6] = {};
      CHECK_THAT(::read(said[0], text, 5) == 5);
      Log("folder, session, 0, 1, 2: %s", text);
      ::close(fd);
    });

}  // namespace
