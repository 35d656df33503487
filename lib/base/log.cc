#include "lib/base/log.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <ctime>

namespace rcsock::base {

int log_level = 0;

namespace {

struct stat stderr_at_start;  // st_ino 0: there was none

// A program may close its stderr, and its next file or connection is fd 2.
bool IsStderr() {
  struct stat now;
  if (::fstat(STDERR_FILENO, &now) != 0) return false;
  if (stderr_at_start.st_ino != 0 && now.st_dev == stderr_at_start.st_dev &&
      now.st_ino == stderr_at_start.st_ino) {
    return true;
  }
  if (S_ISCHR(now.st_mode)) return true;
  // What has been put there by dup2 to be one.
  const long flags = ::syscall(SYS_fcntl, STDERR_FILENO, F_GETFL);
  return S_ISREG(now.st_mode) && flags >= 0 && (flags & O_APPEND) != 0;
}

void WriteQuietly(const char* line, int length) {
  sigset_t signals;
  sigset_t before;
  ::sigemptyset(&signals);
  ::sigaddset(&signals, SIGPIPE);
  ::sigaddset(&signals, SIGXFSZ);
  ::pthread_sigmask(SIG_BLOCK, &signals, &before);
  const long n = ::syscall(SYS_write, STDERR_FILENO, line, length);
  const int ours = n >= 0           ? 0
                   : errno == EPIPE ? SIGPIPE
                   : errno == EFBIG ? SIGXFSZ
                                    : 0;
  // (What the program blocks itself may have been pending before.)
  if (ours != 0 && ::sigismember(&before, ours) == 0) {
    const timespec now{0, 0};
    ::sigemptyset(&signals);
    ::sigaddset(&signals, ours);
    ::syscall(SYS_rt_sigtimedwait, &signals, nullptr, &now, 8);
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace

void InitLog(int level) {
  log_level = level;
  if (::fstat(STDERR_FILENO, &stderr_at_start) != 0) stderr_at_start = {};
}

void Log(const char* format, ...) {
  const int saved = errno;
  if (!IsStderr()) {
    errno = saved;
    return;
  }
  char line[512];
  int n =
      std::snprintf(line, sizeof line,
                    "rcsock[%d]: ", static_cast<int>(::syscall(SYS_getpid)));
  va_list args;
  va_start(args, format);
  const int m = std::vsnprintf(line + n, sizeof line - n - 1, format, args);
  va_end(args);
  n += m < 0 ? 0 : m;
  if (n > static_cast<int>(sizeof line) - 2) n = sizeof line - 2;
  line[n++] = '\n';
  WriteQuietly(line, n);
  errno = saved;
}

}  // namespace rcsock::base
