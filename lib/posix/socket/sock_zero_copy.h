#ifndef RCSOCK_LIB_POSIX_SOCKET_SOCK_ZERO_COPY_H_
#define RCSOCK_LIB_POSIX_SOCKET_SOCK_ZERO_COPY_H_

#include <sys/socket.h>
#include <sys/types.h>

#include <atomic>

namespace rcsock::posix {

class Sock;
class ZeroCopy;

// MSG_ZEROCOPY on a stream: completions of the kernel, and of what a lane has
// copied.
//
// A part of its Sock.  Any thread may call it, and holds no latch of the
// stream, unless a method says otherwise.  Its ZeroCopy stays with it in the
// pool.
class ZeroCopyUse {
 public:
  // `completions`: whether completions wait to be read.  The stream keeps it on
  // the cache line of its lane.
  ZeroCopyUse(Sock* sock, std::atomic<bool>& completions)
      : sock_(sock), completions_(completions) {}

  // Notes that the program has set SO_ZEROCOPY to `on`.  Without memory it pins
  // the stream.
  void Set(bool on);
  bool on() const { return on_.load(std::memory_order_relaxed); }
  // Returns whether the option has ever been set.
  bool Any() const { return its() != nullptr; }
  // Returns where the engine counts a call with MSG_ZEROCOPY, which the caller
  // is about to make.  Returns null if the flag means nothing, or if the kernel
  // alone answers such calls: then it has pinned the stream.
  ZeroCopy* ForCall();
  // Notes that the engine has copied the bytes of such a call, and wakes a
  // reader of its completion.  Requires a ForCall that was not null.
  void CopiedInstead();
  // Carries out recvmsg with MSG_ERRQUEUE.
  ssize_t RecvErrors(int number, msghdr* message, int flags);
  // Takes the completions that the kernel still owed when the stream left the
  // kernel.  Requires both latches.  Runs on the conductor's thread.
  void TakeErrors();
  // Forgets all completions.  Requires both latches.
  void Forget();

  // Forgets that the option is set, for another connection.
  void Reset() { on_.store(false, std::memory_order_relaxed); }
  // In the child of a fork: the parent reports what waits.
  void OnForkChild();

 private:
  ZeroCopy* its() const { return calls_.load(std::memory_order_acquire); }
  // Tells the stream whether completions wait.  Requires the rx_latch.
  void Changed();
  void SetCompletions(bool some);

  Sock* const sock_;
  std::atomic<bool>& completions_;
  std::atomic<bool> on_{false};
  std::atomic<ZeroCopy*> calls_{nullptr};
};

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_SOCKET_SOCK_ZERO_COPY_H_
