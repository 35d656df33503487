#include "lib/base/unique_fd.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdint>
#include <ctime>

#include "lib/base/clock.h"
#include "lib/base/latch.h"

namespace rcsock::base {

namespace {

constexpr int kMostInternal = 65536;
using Set = std::atomic<std::uint64_t>[kMostInternal / 64];
Set internal_fds;
Set parent_fds;  // a subset of internal_fds
Set closing_fds;

bool Has(const Set& set, int fd) {
  if (fd < 0 || fd >= kMostInternal) return false;
  return (set[fd / 64].load(std::memory_order_acquire) >> (fd % 64) & 1) != 0;
}

void Mark(Set& set, int fd, bool in) {
  if (fd < 0 || fd >= kMostInternal) return;
  const std::uint64_t bit = std::uint64_t{1} << (fd % 64);
  if (in) {
    set[fd / 64].fetch_or(bit, std::memory_order_relaxed);
  } else if (Has(set, fd)) {
    // IsInternalFdOrGone reads in the other order.
    set[fd / 64].fetch_and(~bit, std::memory_order_release);
  }
}

// Returns where the application's numbers end, if possible.
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
// Written with low_latch held.
constinit std::atomic<std::uint32_t> library_opens{0};
// dup2 waits no longer, until no library opens.
constinit bool opens_given_up RC_GUARDED_BY(low_latch) = false;
constinit int opens_awaited RC_GUARDED_BY(low_latch) = 0;

}  // namespace

// Users of LowNumber and LibraryOpens cannot name the latch. They assert it
// where they need it.
LowNumber::LowNumber() RC_NO_LOCK_CHECK { low_latch.lock(); }
LowNumber::~LowNumber() RC_NO_LOCK_CHECK { low_latch.unlock(); }

LibraryOpens::LibraryOpens() {
  // The holder of a FreeNumber has filled its number before this continues.  A
  // later holder sees the count.
  const LowNumber low;
  library_opens.fetch_add(1, std::memory_order_relaxed);
}

LibraryOpens::~LibraryOpens() {
  const LowNumber low;
  low_latch.AssertHeld();
  if (library_opens.fetch_sub(1, std::memory_order_relaxed) != 1) return;
  opens_given_up = false;
  if (opens_awaited != 0) FutexWake(&library_opens, INT_MAX, false);
}

FreeNumber::FreeNumber(std::uint64_t limit_ns) {
  if (library_opens.load(std::memory_order_relaxed) == 0) [[likely]]
    return;
  low_latch.AssertHeld();  // low_
  const std::uint64_t end = NowNs() + limit_ns;
  while (!opens_given_up) {
    const std::uint32_t opens = library_opens.load(std::memory_order_relaxed);
    if (opens == 0) return;
    const std::uint64_t now = NowNs();
    if (now >= end) {
      opens_given_up = true;
      return;
    }
    const timespec left{static_cast<time_t>((end - now) / 1'000'000'000u),
                        static_cast<long>((end - now) % 1'000'000'000u)};
    ++opens_awaited;
    low_latch.unlock();
    FutexWait(&library_opens, opens, &left, false);
    low_latch.lock();
    --opens_awaited;
  }
}

void LowNumberForkLock() { low_latch.LockForFork(); }

void LowNumberForkUnlock(bool child) {
  if (child) {
    low_latch.AssertUnshared();
    library_opens.store(0, std::memory_order_relaxed);
    opens_given_up = false;
    opens_awaited = 0;
  }
  low_latch.UnlockAfterFork(child);
}

[[gnu::hot]] bool IsInternalFd(int fd) { return Has(internal_fds, fd); }

bool IsInternalFdOrGone(int fd) {
  if (IsInternalFd(fd)) return true;
  // By then the thread that made a new descriptor has marked it.
  const LowNumber marked;
  // CloseRaw marks a number as closing before it removes the other mark.
  return IsInternalFd(fd) || Has(closing_fds, fd) ||
         ::syscall(SYS_fcntl, fd, F_GETFD) < 0;
}

void Disown(int fd) {
  Mark(internal_fds, fd, false);
  Mark(parent_fds, fd, false);
}

void CloseRaw(int fd) {
  const bool internal = IsInternalFd(fd);
  if (internal) Mark(closing_fds, fd, true);
  // Before another file can have the number.
  Disown(fd);
  const int saved = errno;
  ::syscall(SYS_close, fd);
  errno = saved;
  if (internal) Mark(closing_fds, fd, false);
}

void KeepNumber(int fd) {
  ::syscall(SYS_fcntl, fd, F_SETFD, FD_CLOEXEC);
  Mark(internal_fds, fd, true);
}

int RelocateHigh(int fd) {
  if (fd < 0) return fd;
  const long moved = ::syscall(SYS_fcntl, fd, F_DUPFD_CLOEXEC, Top());
  if (moved < 0) {
    KeepNumber(fd);
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
  const LowNumber unmarked;
  long copy = ::syscall(SYS_fcntl, fd, F_DUPFD_CLOEXEC, Top());
  // No number is free above Top(); below it there may be one.
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
