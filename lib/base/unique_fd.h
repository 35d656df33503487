#ifndef RCSOCK_LIB_BASE_UNIQUE_FD_H_
#define RCSOCK_LIB_BASE_UNIQUE_FD_H_

#include <cstdint>
#include <utility>

#include "lib/base/critical.h"

namespace rcsock::base {

// Closes an internal descriptor by a raw system call, never through the
// preload.
void CloseRaw(int fd);
// The number is no longer internal; its caller closes it in another way.
void Disown(int fd);

// Moves `fd` to the top of the process's range, close-on-exec. So the
// application keeps the low numbers that it would have without rcsock. Returns
// the new number; on failure `fd` itself, made close-on-exec. -1 stays -1.
int RelocateHigh(int fd);

// As RelocateHigh, for a descriptor that no child of fork needs.
int RelocateHighForParent(int fd);

// Makes the number rcsock's where it is, close-on-exec.
void KeepNumber(int fd);

// Held from the creation of a descriptor of rcsock's until the descriptor is at
// the top, and by FreeNumber and LibraryOpens. The kernel gives out the lowest
// free number. So dup2 of the application may put another file at a new number,
// which rcsock would then move and close. A child of fork would keep the number
// for good. Code that runs with a LowNumber held is short, and takes no latch.
class LowNumber {
 public:
  LowNumber();
  ~LowNumber();
  LowNumber(const LowNumber&) = delete;
  LowNumber& operator=(const LowNumber&) = delete;

 private:
  const Critical critical_;
};
// As LowNumber, around the open of another library. That open may take long, or
// wait for something that the caller of dup2 holds, the loader's lock in a
// constructor for instance. So no latch is held: dup2 waits until the open is
// over (FreeNumber). After five seconds dup2 goes on, and later ones no longer
// wait.
class LibraryOpens {
 public:
  LibraryOpens();
  ~LibraryOpens();
  LibraryOpens(const LibraryOpens&) = delete;
  LibraryOpens& operator=(const LibraryOpens&) = delete;
};

// dup2 holds it for a number that may be free.
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

// Moves what `open()` returns to the top, and returns the new number.
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
// Duplicates `fd` to the top at once. Returns -1 and errno on failure.
int CopyHigh(int fd);
int CopyHighForParent(int fd);
// In the child of fork: closes the descriptors made by the ...ForParent calls.
void CloseParentFds();

// Returns true if `fd` is internal: hidden from the application, which cannot
// close it.
bool IsInternalFd(int fd);
// For a number that was seen to be open. Returns true if the number is
// internal, or is not open any more. IsInternalFd misses a number that another
// thread is just making or closing. Requires that the caller holds no
// LowNumber.
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
