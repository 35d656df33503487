#include "lib/posix/table.h"

#include <cerrno>

#include "lib/base/real.h"
#include "lib/posix/process.h"
#include "lib/posix/signals.h"

namespace rcsock::posix {
namespace {

void Raise(int fd) {
  int high = fd_high.load(std::memory_order_relaxed);
  while (fd > high && !fd_high.compare_exchange_weak(high, fd)) {
  }
}

// Another number that names `file`, or -1.
int OtherFd(const File* file, int except) {
  const int top = fd_high.load(std::memory_order_relaxed);
  for (int fd = 0; fd <= top; ++fd) {
    if (fd != except && Lookup(fd) == file) return fd;
  }
  return -1;
}

}  // namespace

void Bind(int fd, File* file) {
  Evict(fd);
  if (static_cast<unsigned>(fd) >= static_cast<unsigned>(kMaxFds) ||
      OwnFace() == Face::kBehind) {
    // Not followed: plain TCP for ever.
    if (file->kind == FileKind::kSock) {
      static_cast<Sock*>(file)->Unref();
    } else {
      static_cast<EpollSet*>(file)->Free();
    }
    return;
  }
  file->fds.store(1, std::memory_order_relaxed);
  if (file->kind == FileKind::kSock) static_cast<Sock*>(file)->set_fd(fd);
  Raise(fd);
  fd_table[fd].store(file, std::memory_order_release);
}

void Evict(int fd) {
  File* file = Lookup(fd);
  if (file == nullptr) return;
  fd_table[fd].store(nullptr, std::memory_order_release);
  if (file->fds.fetch_sub(1) != 1) {
    if (file->kind == FileKind::kEpoll) {
      auto* set = static_cast<EpollSet*>(file);
      if (set->fd() == fd) set->set_fd(OtherFd(file, fd));
    }
    return;
  }
  if (file->kind == FileKind::kSock) {
    // The connection is gone already; only what we keep about it is left.
    static_cast<Sock*>(file)->Vanished();
  } else {
    static_cast<EpollSet*>(file)->Free();
  }
}

int CloseNumber(int fd, int from, int flags) {
  if (from < 0) return real::close(fd);
  // (A filter of system calls may know only the older.)
  return flags == 0 ? real::dup2(from, fd) : real::dup3(from, fd, flags);
}

int CloseFd(int fd, int from, int flags) {
  File* file = Lookup(fd);
  if (file == nullptr || InBorrowedMemory()) {
    return CloseNumber(fd, from, flags);
  }
  fd_table[fd].store(nullptr, std::memory_order_release);
  if (file->fds.fetch_sub(1) != 1) {
    if (file->kind == FileKind::kSock) {
      static_cast<Sock*>(file)->LoseFd(fd, OtherFd(file, fd));
    } else if (auto* set = static_cast<EpollSet*>(file); set->fd() == fd) {
      set->set_fd(OtherFd(file, fd));
    }
    return CloseNumber(fd, from, flags);
  }
  if (file->kind == FileKind::kSock) {
    return static_cast<Sock*>(file)->CloseLast(fd, from, flags);
  }
  const int result = CloseNumber(fd, from, flags);
  const int saved = errno;
  static_cast<EpollSet*>(file)->Free();
  errno = saved;
  return result;
}

void CopyFd(int from, int to) {
  Evict(to);
  File* file = Lookup(from);
  if (file == nullptr ||
      static_cast<unsigned>(to) >= static_cast<unsigned>(kMaxFds)) {
    return;
  }
  file->fds.fetch_add(1);
  Raise(to);
  fd_table[to].store(file, std::memory_order_release);
}

}  // namespace rcsock::posix
