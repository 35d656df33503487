#include "lib/base/log.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <ctime>

#include "lib/base/own_file.h"
#include "lib/base/path.h"
#include "lib/base/start_data.h"
#include "lib/base/unique_fd.h"

namespace rcsock::base {

RCSOCK_START_DATA int log_level = 0;

namespace {

// st_ino 0: there was none.
RCSOCK_START_DATA constinit struct stat stderr_at_start = {};

// The file of RCSOCK_LOG_FILE. Only one thread writes these variables: at the
// beginning, and in the child of fork.
RCSOCK_START_DATA constinit int file_fd = -1;
constinit struct stat file_at_start = {};
RCSOCK_START_DATA constinit char file_pattern[kLongestPath + 1] = {};
RCSOCK_START_DATA constinit std::atomic<bool> ended{false};

bool Same(const struct stat& one, const struct stat& other) {
  return one.st_ino != 0 && one.st_dev == other.st_dev &&
         one.st_ino == other.st_ino;
}

// Returns null, or why there is no file.
const char* OpenFile() {
  char path[kExpandedPath];
  ExpandPid(file_pattern, ::syscall(SYS_getpid), path);
  const char* why = nullptr;
  const int fd = OpenToWrite(path, true, &why);
  if (fd < 0) return why;
  if (file_fd >= 0) CloseRaw(file_fd);
  file_fd = fd;
  if (::fstat(fd, &file_at_start) != 0) file_at_start = {};
  return nullptr;
}

// A program's own machine code may put another file at that number, for example
// by closing all that is open.
bool IsFile() {
  struct stat now;
  return ::fstat(file_fd, &now) == 0 && Same(file_at_start, now);
}

// If a program closes its stderr, its next file or connection is fd 2.
bool IsStderr() {
  struct stat now;
  if (::fstat(STDERR_FILENO, &now) != 0) return false;
  if (Same(stderr_at_start, now)) return true;
  if (S_ISCHR(now.st_mode)) return true;
  // dup2 may have put a file that is appended to there as stderr.
  const long flags = ::syscall(SYS_fcntl, STDERR_FILENO, F_GETFL);
  return S_ISREG(now.st_mode) && flags >= 0 && (flags & O_APPEND) != 0;
}

}  // namespace

long WriteQuietly(int fd, const char* line, std::size_t length) {
  sigset_t signals;
  sigset_t before;
  ::sigemptyset(&signals);
  ::sigaddset(&signals, SIGPIPE);
  ::sigaddset(&signals, SIGXFSZ);
  ::pthread_sigmask(SIG_BLOCK, &signals, &before);
  const long n = ::syscall(SYS_write, fd, line, length);
  const int error = errno;
  const int ours = n >= 0           ? 0
                   : error == EPIPE ? SIGPIPE
                   : error == EFBIG ? SIGXFSZ
                                    : 0;
  // A signal that the program blocks itself may have been pending before.
  if (ours != 0 && ::sigismember(&before, ours) == 0) {
    const timespec now{0, 0};
    ::sigemptyset(&signals);
    ::sigaddset(&signals, ours);
    ::syscall(SYS_rt_sigtimedwait, &signals, nullptr, &now, 8);
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  errno = error;
  return n;
}

[[gnu::cold]] void InitLog(int level) {
  log_level = level;
  if (::fstat(STDERR_FILENO, &stderr_at_start) != 0) stderr_at_start = {};
}

[[gnu::cold]] void OpenLogFile(const char* pattern) {
  if (file_fd >= 0) CloseRaw(file_fd);
  file_fd = -1;
  file_pattern[0] = '\0';
  if (pattern == nullptr || *pattern == '\0') return;
  if (std::strlen(pattern) > kLongestPath) {
    Log("RCSOCK_LOG_FILE is too long: ignored");
    return;
  }
  std::strcpy(file_pattern, pattern);
  const char* const why = OpenFile();
  if (why != nullptr) Log("can't write the log to %s: %s", pattern, why);
}

void LogForkChild() {
  if (file_fd < 0 || ended.load(std::memory_order_relaxed) ||
      std::strstr(file_pattern, "%p") == nullptr) {
    return;
  }
  const int saved = errno;
  OpenFile();
  errno = saved;
}

void EndLog() { ended.store(true, std::memory_order_relaxed); }

void Log(const char* format, ...) {
  if (ended.load(std::memory_order_relaxed)) return;
  const int saved = errno;
  const int fd = file_fd >= 0 ? file_fd : STDERR_FILENO;
  if (fd == file_fd ? !IsFile() : !IsStderr()) {
    errno = saved;
    return;
  }
  char line[512];
  const int pid = static_cast<int>(::syscall(SYS_getpid));
  int n;
  if (fd == file_fd) {
    // The system's clock, as in the kernel's log: all processes' files agree.
    timespec now{};
    ::clock_gettime(CLOCK_MONOTONIC, &now);
    n = std::snprintf(line, sizeof line, "rcsock[%d] %ld.%06ld: ", pid,
                      static_cast<long>(now.tv_sec), now.tv_nsec / 1000);
  } else {
    n = std::snprintf(line, sizeof line, "rcsock[%d]: ", pid);
  }
  va_list args;
  va_start(args, format);
  const int m = std::vsnprintf(line + n, sizeof line - n - 1, format, args);
  va_end(args);
  n += m < 0 ? 0 : m;
  if (n > static_cast<int>(sizeof line) - 2) n = sizeof line - 2;
  line[n++] = '\n';
  WriteQuietly(fd, line, n);
  errno = saved;
}

}  // namespace rcsock::base
