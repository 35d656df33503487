// Calls that give a descriptor to stdio, or take it away
// (lib/posix/hooks/stdio.h).

#include <fcntl.h>
#include <gnu/libc-version.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <syslog.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdio>

#include "lib/posix/hooks/hooks.h"
#include "lib/posix/hooks/stdio.h"
#include "lib/posix/socket/lookup.h"
#include "lib/posix/socket/sock_plain.h"
#include "lib/posix/sys/identity.h"

namespace rcsock::posix::hook {

void BeforeStdio(int fd) {
  if (const SockAt sock(fd); sock)
    sock->way_back().Pin(base::Reason::kPinnedFdopen);
}

// freopen gives the number to another file by a dup3 of its own.
static void BeforeReopening(FILE* file) {
  if (file == nullptr) return;
  const int saved = errno;
  const int fd = ::fileno(file);
  if (LookupSock(fd) != nullptr && !InBorrowedMemory()) {
    // What the FILE has buffered goes first.
    ::fflush(file);
    const int none = ::open("/dev/null", O_RDWR | O_CLOEXEC);
    if (none >= 0) {
      hook::dup2(none, fd);
      ::close(none);
    }
  }
  errno = saved;
}

FILE* freopen(const char* path, const char* mode, FILE* file) {
  BeforeReopening(file);
  return real::freopen(path, mode, file);
}

FILE* freopen64(const char* path, const char* mode, FILE* file) {
  BeforeReopening(file);
  return real::freopen64(path, mode, file);
}

FILE* fdopen(int fd, const char* mode) {
  // libc may set O_APPEND.
  if (const SockAt sock(fd); sock) sock->status_known.store(0);
  if (LookupSock(fd) != nullptr && !FollowsFileOf(mode)) BeforeStdio(fd);
  return real::fdopen(fd, mode);
}

int vdprintf(int fd, const char* format, va_list arguments) {
  BeforeStdio(fd);
  return real::vdprintf(fd, format, arguments);
}

int __vdprintf_chk(int fd, int flag, const char* format, va_list arguments) {
  BeforeStdio(fd);
  return real::__vdprintf_chk(fd, flag, format, arguments);
}

namespace {

constinit std::atomic<bool> log_to_standard_error{false};

// glibc 2.36 makes a FILE of the descriptor that syslog prints to. That FILE
// comes to the hooks.  Earlier and later versions print by a system call.
bool PrintsPastFiles() {
  static const bool past = [] {
    int major = 0;
    int minor = 0;
    const int n =
        std::sscanf(::gnu_get_libc_version(), "%d.%d", &major, &minor);
    return n != 2 || major != 2 || minor != 36;
  }();
  return past;
}

void BeforeLog() {
  if (log_to_standard_error.load(std::memory_order_relaxed) &&
      PrintsPastFiles()) {
    BeforeStdio(STDERR_FILENO);
  }
}

}  // namespace

void openlog(const char* name, int options, int facility) {
  log_to_standard_error.store((options & LOG_PERROR) != 0,
                              std::memory_order_relaxed);
  real::openlog(name, options, facility);
}

void vsyslog(int priority, const char* format, va_list arguments) {
  BeforeLog();
  real::vsyslog(priority, format, arguments);
}

void __vsyslog_chk(int priority, int flag, const char* format,
                   va_list arguments) {
  BeforeLog();
  real::__vsyslog_chk(priority, flag, format, arguments);
}

void psiginfo(const siginfo_t* signal, const char* text) {
  BeforeStdio(STDERR_FILENO);
  real::psiginfo(signal, text);
}

// libc writes line by line, by calls of its own, so here libc writes to memory
// first.  Like libc's, this function takes nothing from malloc: a handler that
// reports a crash may call it.
void backtrace_symbols_fd(void* const* frames, int count, int fd) {
  const bool follows = LookupSock(fd) != nullptr && !InBorrowedMemory();
  const int saved = errno;
  const long file =
      follows ? ::syscall(SYS_memfd_create, "rcsock", MFD_CLOEXEC) : -1;
  errno = saved;
  if (file < 0) {
    if (follows) BeforeStdio(fd);
    real::backtrace_symbols_fd(frames, count, fd);
    return;
  }
  real::backtrace_symbols_fd(frames, count, static_cast<int>(file));
  char piece[1024];
  long n;
  for (off_t at = 0;
       (n = ::syscall(SYS_pread64, file, piece, sizeof piece, at)) > 0;
       at += n) {
    ssize_t written = 0;
    for (ssize_t done = 0; done < n && written >= 0; done += written) {
      written =
          hook::write(fd, piece + done, static_cast<std::size_t>(n - done));
    }
    if (written < 0) break;
  }
  ::syscall(SYS_close, file);
}

}  // namespace rcsock::posix::hook
