#ifndef RCSOCK_LIB_BASE_UNIQUE_FD_H_
#define RCSOCK_LIB_BASE_UNIQUE_FD_H_

#include <utility>

namespace rcsock::base {

// Closes an internal descriptor by a raw system call (never through the
// preload).
void CloseRaw(int fd);

// Moves `fd` to the top of the process's range, close-on-exec, so that the
// application keeps the low numbers it would have without rcsock.  Returns the
// new number; on failure `fd` itself, made close-on-exec.  -1 stays -1.
int RelocateHigh(int fd);

// The same for one that no child of fork has a use for.
int RelocateHighForParent(int fd);
// In the child: closes those that are open.
void CloseParentFds();

// Whether `fd` is one that RelocateHigh has given out: the application can
// neither close nor see it.
bool IsInternalFd(int fd);

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
