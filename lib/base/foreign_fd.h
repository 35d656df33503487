#ifndef RCSOCK_LIB_BASE_FOREIGN_FD_H_
#define RCSOCK_LIB_BASE_FOREIGN_FD_H_

#include <utility>

#include "lib/base/unique_fd.h"

namespace rcsock::base {

// A close may wait: the last one of a TCP socket that lingers for its peer, any
// one of a file of FUSE or NFS for a daemon or a server.  Whoever made the file
// says for how long.  So nothing that others wait for (the conductor, whoever
// holds a latch) closes a file that somebody else has made, before it is known
// to be harmless.

// Closes the number in a thread that nobody waits for.  While such closes take
// their time, the numbers stay open; a bounded number of threads waits.
void CloseElsewhere(int fd);
// More closes wait than there are threads for them: take no more files from
// strangers.
bool ClosesPileUp();
// Waits until those threads have ended, but not for long.
void AwaitCloses();
// Around fork.  The child closes what was left to do with its own next one.
void ForeignFdForkLock();
void ForeignFdForkUnlock(bool child);

// A file that somebody else has made.
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
  // No close of it waits: memory, an eventfd, or one that was opened by O_PATH.
  bool Harmless() const;
  // For one that is harmless; it is none any more.
  UniqueFd Vouch() { return UniqueFd(std::exchange(fd_, -1)); }
  // Out of the application's way: a harmless one goes to the top of the range,
  // any other keeps its number (to move it is to close that).
  void Hide();

 private:
  int fd_ = -1;
};

// A socket of ours in whose queue others put files: an AF_UNIX listener (the
// queues of those who have not been accepted), or a connection.  To close it is
// to close them.
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
  // From now on the kernel refuses the descriptors that others send here
  // (SO_PASSRIGHTS, Linux 6.16); what is accepted here refuses them too.
  void RefuseFiles();
  void TakeFiles();
  // One that was accepted at `listener`, which refuses files.
  void Inherit(const PeerSocket& listener);

 private:
  UniqueFd fd_;
  bool empty_ = false;  // no file can be in its queue
};

// Tests: as a kernel without SO_PASSRIGHTS.
void PretendFilesCannotBeRefused(bool pretend);

}  // namespace rcsock::base

#endif  // RCSOCK_LIB_BASE_FOREIGN_FD_H_
