#ifndef RCSOCK_LIB_BASE_UNIQUE_FD_H_
#define RCSOCK_LIB_BASE_UNIQUE_FD_H_

#include <cstdint>
#include <utility>

#include "lib/base/critical.h"

namespace rcsock::base {

// Closes an internal descriptor by a raw system call (never through the
// preload).
void CloseRaw(int fd);
// It is none any more, and about to be closed otherwise.
void Disown(int fd);

// Moves `fd` to the top of the process's range, close-on-exec, so that the
// application keeps the low numbers it would have without rcsock.  Returns the
// new number; on failure `fd` itself, made close-on-exec.  -1 stays -1.
int RelocateHigh(int fd);

// The same for one that no child of fork has a use for.
int RelocateHighForParent(int fd);

// It is rcsock's at the number that it has.
void KeepNumber(int fd);

// The kernel gives out the lowest number that is free, so a new descriptor of
// rcsock's is for a moment where dup2 of the application may put something
// else, which would then be moved and closed in its place; and a child of fork
// would have it there for good.  Held by who has one, until it is at the top,
// and by those two.  What is done with it held is short, and takes no latch.
class LowNumber {
 public:
  LowNumber();
  ~LowNumber();
  LowNumber(const LowNumber&) = delete;
  LowNumber& operator=(const LowNumber&) = delete;

 private:
  const Critical critical_;
};
// The same where another library opens, which may take long, or wait for what
// the caller of dup2 has (the loader's lock, in a constructor).  So nothing is
// held: dup2 waits until it is over (FreeNumber), and if that takes too long
// (five seconds) no longer, nor does the next one.
class LibraryOpens {
 public:
  LibraryOpens();
  ~LibraryOpens();
  LibraryOpens(const LibraryOpens&) = delete;
  LibraryOpens& operator=(const LibraryOpens&) = delete;
};

// Held by dup2 onto a number that may be free.
class FreeNumber {
 public:
  explicit FreeNumber(std::uint64_t limit_ns = 5'000'000'000);
  FreeNumber(const FreeNumber&) = delete;
  FreeNumber& operator=(const FreeNumber&) = delete;

 private:
  const LowNumber low_;
};

// Around fork.
void LowNumberForkLock();
void LowNumberForkUnlock(bool child);

// What `open()` returns, moved.
template <class Open>
int OpenHigh(Open open) {
  const LowNumber low;
  return RelocateHigh(static_cast<int>(open()));
}
template <class Open>
int OpenHighForParent(Open open) {
  const LowNumber low;
  return RelocateHighForParent(static_cast<int>(open()));
}
// Another number of the same, at the top from the beginning; -1 and errno.
int CopyHigh(int fd);
int CopyHighForParent(int fd);
// In the child: closes those that are open.
void CloseParentFds();

// Whether `fd` is one that RelocateHigh has given out: the application can
// neither close nor see it.
bool IsInternalFd(int fd);
// For a number that was seen to be open: whether it is internal, or is not open
// any more.  IsInternalFd misses one that another thread is just making or
// closing.  Not with a LowNumber held.
bool IsInternalFdOrGone(int fd);

class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) reset(std::exchange(other.fd_, -1));
    return *this;
  }
  UniqueFd(const UniqueFd&) = delete;
  UniqueFd& operator=(const UniqueFd&) = delete;
  ~UniqueFd() { reset(); }

  int get() const { return fd_; }
  bool ok() const { return fd_ >= 0; }
  int release() { return std::exchange(fd_, -1); }
  void reset(int fd = -1) {
    int old = std::exchange(fd_, fd);
    if (old >= 0) CloseRaw(old);
  }

 private:
  int fd_ = -1;
};

}  // namespace rcsock::base

#endif  // RCSOCK_LIB_BASE_UNIQUE_FD_H_
