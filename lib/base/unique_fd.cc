#include "lib/base/unique_fd.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>

#include "lib/base/latch.h"

namespace rcsock::base {

namespace {

constexpr int kMostInternal = 65536;
using Set = std::atomic<std::uint64_t>[kMostInternal / 64];
Set internal_fds;
Set parent_fds;  // of them

bool Has(const Set& set, int fd) {
  return (set[fd / 64].load(std::memory_order_relaxed) >> (fd % 64) & 1) != 0;
}

void Mark(Set& set, int fd, bool in) {
  if (fd < 0 || fd >= kMostInternal) return;
  const std::uint64_t bit = std::uint64_t{1} << (fd % 64);
  if (in) {
    set[fd / 64].fetch_or(bit, std::memory_order_relaxed);
  } else if (Has(set, fd)) {
    set[fd / 64].fetch_and(~bit, std::memory_order_relaxed);
  }
}

// Where the application has no number, if it can be helped.
rlim_t Top() {
  // A table of a million entries costs the kernel 8 MiB: stay under 64 Ki even
  // where the limit is higher.
  rlimit limit{};
  rlim_t top = 1024;
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0) top = limit.rlim_cur;
  if (top > 65536) top = 65536;
  // Room for internal fds: a quarter of the range, 4096 at most.
  const rlim_t room = top / 4 < 4096 ? top / 4 : 4096;
  return top - room;
}

constinit Latch low_latch;

}  // namespace

LowNumber::LowNumber() { low_latch.lock(); }
LowNumber::~LowNumber() { low_latch.unlock(); }

void LowNumberForkLock() { low_latch.lock(); }

void LowNumberForkUnlock(bool child) {
  if (child) {
    low_latch.Reset();
  } else {
    low_latch.unlock();
  }
}

bool IsInternalFd(int fd) {
  return fd >= 0 && fd < kMostInternal && Has(internal_fds, fd);
}

void CloseRaw(int fd) {
  Mark(internal_fds, fd, false);
  Mark(parent_fds, fd, false);
  int saved = errno;
  ::syscall(SYS_close, fd);
  errno = saved;
}

int RelocateHigh(int fd) {
  if (fd < 0) return fd;
  const long moved = ::syscall(SYS_fcntl, fd, F_DUPFD_CLOEXEC, Top());
  if (moved < 0) {
    ::syscall(SYS_fcntl, fd, F_SETFD, FD_CLOEXEC);
    Mark(internal_fds, fd, true);
    return fd;
  }
  CloseRaw(fd);
  Mark(internal_fds, static_cast<int>(moved), true);
  return static_cast<int>(moved);
}

int RelocateHighForParent(int fd) {
  fd = RelocateHigh(fd);
  Mark(parent_fds, fd, true);
  return fd;
}

int CopyHigh(int fd) {
  long copy = ::syscall(SYS_fcntl, fd, F_DUPFD_CLOEXEC, Top());
  // (Above the limit's last: below it there may be one.)
  if (copy < 0) copy = ::syscall(SYS_fcntl, fd, F_DUPFD_CLOEXEC, 0);
  Mark(internal_fds, static_cast<int>(copy), true);
  return static_cast<int>(copy);
}

int CopyHighForParent(int fd) {
  fd = CopyHigh(fd);
  Mark(parent_fds, fd, true);
  return fd;
}

void CloseParentFds() {
  for (int fd = 0; fd < kMostInternal; ++fd) {
    if (fd % 64 == 0 && parent_fds[fd / 64].load() == 0) {
      fd += 63;
    } else if (Has(parent_fds, fd)) {
      CloseRaw(fd);
    }
  }
}

}  // namespace rcsock::base
