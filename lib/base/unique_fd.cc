#include "lib/base/unique_fd.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>

namespace rcsock::base {

namespace {

constexpr int kMostInternal = 65536;
std::atomic<std::uint64_t> internal_fds[kMostInternal / 64];

void Mark(int fd, bool internal) {
  if (fd < 0 || fd >= kMostInternal) return;
  const std::uint64_t bit = std::uint64_t{1} << (fd % 64);
  if (internal) {
    internal_fds[fd / 64].fetch_or(bit, std::memory_order_relaxed);
  } else if (IsInternalFd(fd)) {
    internal_fds[fd / 64].fetch_and(~bit, std::memory_order_relaxed);
  }
}

}  // namespace

bool IsInternalFd(int fd) {
  return fd >= 0 && fd < kMostInternal &&
         (internal_fds[fd / 64].load(std::memory_order_relaxed) >> (fd % 64) &
          1) != 0;
}

void CloseRaw(int fd) {
  Mark(fd, false);
  int saved = errno;
  ::syscall(SYS_close, fd);
  errno = saved;
}

int RelocateHigh(int fd) {
  if (fd < 0) return fd;
  // A table of a million entries costs the kernel 8 MiB: stay under 64 Ki even
  // where the limit is higher.
  rlimit limit{};
  rlim_t top = 1024;
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0) top = limit.rlim_cur;
  if (top > 65536) top = 65536;
  // Room for internal fds: a quarter of the range, 4096 at most.
  rlim_t room = top / 4 < 4096 ? top / 4 : 4096;
  long moved = ::syscall(SYS_fcntl, fd, F_DUPFD_CLOEXEC, top - room);
  if (moved < 0) {
    ::syscall(SYS_fcntl, fd, F_SETFD, FD_CLOEXEC);
    Mark(fd, true);
    return fd;
  }
  CloseRaw(fd);
  Mark(static_cast<int>(moved), true);
  return static_cast<int>(moved);
}

}  // namespace rcsock::base
