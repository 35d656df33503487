#include "lib/base/foreign_fd.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <ctime>
#include <string_view>

#include "lib/base/helper_thread.h"
#include "lib/base/internal.h"
#include "lib/base/latch.h"

#ifndef F_GET_SEALS
#define F_GET_SEALS 1034
#endif
#ifndef SO_PASSRIGHTS
#define SO_PASSRIGHTS 83
#endif

namespace rcsock::base {
namespace {

// The most threads that wait in a close at one time.
constexpr int kMostThreads = 4;
// The most numbers that wait for a thread. A further number stays open for
// good.
constexpr int kMostWaiting = 1024;
// With this many waiting closes, no more files are taken from strangers.
constexpr int kPileUp = 64;
// With this many, none from a peer that has sent only what it may.
constexpr int kOverflow = kMostWaiting / 2;

// How long a thread waits for another close.  A thread costs many times what a
// close costs, and closes come in bursts: one for each stream that meets its
// peer.
constexpr timespec kIdleTime{0, 20'000'000};

constinit Latch latch;
constinit std::array<int, kMostWaiting> waiting RC_GUARDED_BY(latch){};
// Written with the latch held.
constinit std::atomic<int> waiting_count{0};
constinit std::atomic<int> threads{0};
// Threads that have made their closes, and wait for another.
constinit int idle RC_GUARDED_BY(latch) = 0;
// Of these, those that have been woken for a close.
constinit int called RC_GUARDED_BY(latch) = 0;
constinit bool hurry RC_GUARDED_BY(latch) = false;  // none is to wait
// Idle threads sleep on it.
constinit std::atomic<std::uint32_t> news{0};

constinit std::atomic<bool> pretend_not{false};

// Waits for another close.  Returns false if none has come.
bool AwaitClose() RC_REQUIRES(latch) {
  if (hurry) return false;
  const std::uint32_t seen = news.load(std::memory_order_relaxed);
  ++idle;
  latch.unlock();
  FutexWait(&news, seen, &kIdleTime, false);
  latch.lock();
  --idle;
  // Another thread may have been meant.  That one then finds nothing.
  if (called > 0) --called;
  return waiting_count > 0;
}

void* CloseAll(void*) {
  tls_internal = true;
  latch.lock();
  do {
    while (waiting_count > 0) {
      const int fd = waiting[--waiting_count];
      latch.unlock();
      CloseRaw(fd);
      latch.lock();
    }
  } while (AwaitClose());
  --threads;
  latch.unlock();
  return nullptr;
}

// Returns false if the kernel does not have the option.
bool PassFiles(int fd, int on) {
  const int saved = errno;
  const bool done = !pretend_not.load(std::memory_order_relaxed) &&
                    ::syscall(SYS_setsockopt, fd, SOL_SOCKET, SO_PASSRIGHTS,
                              &on, sizeof on) == 0;
  errno = saved;
  return done;
}

}  // namespace

void CloseElsewhere(int fd) {
  const int saved = errno;
  bool starts = false;
  {
    LatchGuard lock(latch);
    if (waiting_count == kMostWaiting) return;
    waiting[waiting_count++] = fd;
    // A thread that is in a close may stay there, so each close has another
    // come, as long as there are threads.
    if (idle > called) {
      ++called;
      news.fetch_add(1, std::memory_order_relaxed);
    } else if (threads == kMostThreads) {
      return;
    } else {
      starts = true;
      ++threads;
    }
  }
  if (!starts) return FutexWake(&news, 1, false);
  const InternalScope internal;
  if (StartHelper(&CloseAll, nullptr) != 0) {
    // The next close starts a thread again.
    LatchGuard lock(latch);
    --threads;
  }
  errno = saved;
}

bool ClosesPileUp() {
  return waiting_count.load(std::memory_order_relaxed) >= kPileUp;
}

bool ClosesOverflow() {
  return waiting_count.load(std::memory_order_relaxed) >= kOverflow;
}

void AwaitCloses() {
  constexpr int kMostLooks = 100;
  {
    LatchGuard lock(latch);
    hurry = true;
    news.fetch_add(1, std::memory_order_relaxed);
  }
  FutexWake(&news, kMostThreads, false);
  for (int i = 0; i < kMostLooks && threads != 0; ++i) {
    const timespec brief{0, 1'000'000};
    ::syscall(SYS_nanosleep, &brief, nullptr);
  }
  LatchGuard lock(latch);
  hurry = false;
}

void ForeignFdForkLock() { latch.LockForFork(); }

void ForeignFdForkUnlock(bool child) {
  latch.AssertHeld();
  if (child) {
    threads = 0;
    idle = called = 0;
    hurry = false;
  }
  latch.UnlockAfterFork(child);
}

bool ForeignFd::Harmless() const {
  // Only memory has seals.
  if (::syscall(SYS_fcntl, fd_, F_GET_SEALS) >= 0) return true;
  const long flags = ::syscall(SYS_fcntl, fd_, F_GETFL);
  if (flags >= 0 && (flags & O_PATH) != 0) return true;
  char path[48] = "/proc/thread-self/fd/";
  const std::size_t prefix = std::strlen(path);
  *std::to_chars(path + prefix, path + sizeof path - 1, fd_).ptr = '\0';
  char target[64];
  const long length = ::syscall(SYS_readlink, path, target, sizeof target);
  if (length < 0) {
    // There is no /proc. A file without a type belongs to no file system. Only
    // calls that the kernel answers by itself are used: a file system could
    // take its time.
    struct statx found {};
    return ::syscall(SYS_statx, fd_, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC,
                     STATX_TYPE, &found) == 0 &&
           (found.stx_mode & S_IFMT) == 0;
  }
  return std::string_view(target, static_cast<std::size_t>(length)) ==
         "anon_inode:[eventfd]";
}

void ForeignFd::Hide() {
  if (Harmless()) {
    fd_ = RelocateHigh(fd_);
  } else {
    KeepNumber(fd_);
  }
}

void PeerSocket::RefuseFiles() {
  // Files that have come before are still there.
  empty_ = PassFiles(fd_.get(), 0);
}

void PeerSocket::TakeFiles() {
  if (!empty_) return;
  empty_ = false;
  PassFiles(fd_.get(), 1);
}

void PeerSocket::Inherit(const PeerSocket& listener) {
  const int saved = errno;
  int passes = 1;
  socklen_t length = sizeof passes;
  empty_ = listener.empty_ &&
           ::syscall(SYS_getsockopt, fd_.get(), SOL_SOCKET, SO_PASSRIGHTS,
                     &passes, &length) == 0 &&
           passes == 0;
  errno = saved;
}

void PeerSocket::reset() {
  if (!fd_.ok()) return;
  if (!empty_ && PassFiles(fd_.get(), 0)) {
    pollfd one{fd_.get(), POLLIN, 0};
    const timespec now{0, 0};
    empty_ = ::syscall(SYS_ppoll, &one, 1, &now, nullptr, 8) == 0;
  }
  if (std::exchange(empty_, false)) {
    fd_.reset();
  } else {
    // No peer may wait for an answer of this process meanwhile.
    ::syscall(SYS_shutdown, fd_.get(), SHUT_RDWR);
    CloseElsewhere(fd_.release());
  }
}

void PretendFilesCannotBeRefused(bool pretend) { pretend_not = pretend; }

}  // namespace rcsock::base
