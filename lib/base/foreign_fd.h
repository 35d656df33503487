#ifndef RCSOCK_LIB_BASE_FOREIGN_FD_H_
#define RCSOCK_LIB_BASE_FOREIGN_FD_H_

#include <utility>

#include "lib/base/unique_fd.h"

namespace rcsock::base {

// A close may wait: the last close of a TCP socket that lingers for its peer;
// any close of a file of FUSE or NFS, for a daemon or a server. The process
// that made the file decides how long. Other threads wait for the conductor,
// and for the holder of a latch. So the conductor and such holders close
// another process's file only if the file is known to be harmless.

// Closes the number in a thread that no other waits for. Until then the number
// stays open. At most a bounded number of threads wait so.
void CloseElsewhere(int fd);
// Returns true if many closes wait for a thread: take no more files from
// strangers.
bool ClosesPileUp();
// Returns true if so many wait that further numbers could soon stay open for
// good: take no more files from anybody.
bool ClosesOverflow();
// Waits until those threads have ended, 0.1 s at most.
void AwaitCloses();
// Around fork. The child's next close also makes the closes that the parent's
// threads have left.
void ForeignFdForkLock();
void ForeignFdForkUnlock(bool child);

// A file that another process has made.
class ForeignFd {
 public:
  ForeignFd() = default;
  explicit ForeignFd(int fd) : fd_(fd) {}
  ForeignFd(ForeignFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  ForeignFd& operator=(ForeignFd&& other) noexcept {
    if (this != &other) reset(std::exchange(other.fd_, -1));
    return *this;
  }
  ForeignFd(const ForeignFd&) = delete;
  ForeignFd& operator=(const ForeignFd&) = delete;
  ~ForeignFd() { reset(); }

  int get() const { return fd_; }
  bool ok() const { return fd_ >= 0; }
  void reset(int fd = -1) {
    const int old = std::exchange(fd_, fd);
    if (old >= 0) CloseElsewhere(old);
  }
  // Returns true if no close of the file waits: it is memory, an eventfd, or
  // opened by O_PATH.
  bool Harmless() const;
  // Gives the harmless file away, and holds no file any more.
  UniqueFd Vouch() { return UniqueFd(std::exchange(fd_, -1)); }
  // Takes the number out of the application's way. A harmless file goes to the
  // top of the range. Any other keeps its number, since a move is a close.
  void Hide();

 private:
  int fd_ = -1;
};

// A socket of ours in whose queue others put files: a connection, or an AF_UNIX
// listener with the queues of connections that nobody has accepted. To close
// the socket is to close these files.
class PeerSocket {
 public:
  PeerSocket() = default;
  explicit PeerSocket(UniqueFd fd) : fd_(std::move(fd)) {}
  PeerSocket(PeerSocket&& other) noexcept
      : fd_(std::move(other.fd_)), empty_(std::exchange(other.empty_, false)) {}
  PeerSocket& operator=(PeerSocket&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = std::move(other.fd_);
      empty_ = std::exchange(other.empty_, false);
    }
    return *this;
  }
  ~PeerSocket() { reset(); }

  int get() const { return fd_.get(); }
  bool ok() const { return fd_.ok(); }
  void reset();
  // From now on the kernel refuses the descriptors that others send to this
  // socket (SO_PASSRIGHTS, Linux 6.16), and to what it accepts.
  void RefuseFiles();
  void TakeFiles();
  // For a socket that was accepted at `listener`, which refuses files.
  void Inherit(const PeerSocket& listener);

 private:
  UniqueFd fd_;
  bool empty_ = false;  // no file can be in its queue
};

// For tests: behaves as on a kernel without SO_PASSRIGHTS.
void PretendFilesCannotBeRefused(bool pretend);

}  // namespace rcsock::base

#endif  // RCSOCK_LIB_BASE_FOREIGN_FD_H_
