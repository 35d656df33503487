#ifndef RCSOCK_LIB_POSIX_SOCKET_SOCK_READ_AHEAD_H_
#define RCSOCK_LIB_POSIX_SOCKET_SOCK_READ_AHEAD_H_

#include <cstddef>
#include <cstdint>

#include "lib/base/latch.h"
#include "lib/posix/sharing/unread.h"

namespace rcsock::posix {

class Sock;

// What a stream in kUnread has read from TCP ahead of the application: bytes
// that the holders share, and the error behind them.
//
// A part of its Sock.  Any thread may call it, and holds no latch of the
// stream, unless a method says otherwise.  A child of fork shares the bytes.
class ReadAhead {
 public:
  // `rx`: the stream's rx_latch, which guards this.
  ReadAhead(Sock* sock, base::Latch& rx) : sock_(sock), rx_(rx) {}

  // Returns how many bytes are shared.
  std::size_t Bytes() RC_EXCLUDES(rx_);
  // Returns whether an error comes behind them.
  bool Failed() RC_EXCLUDES(rx_);
  // Returns a descriptor of them, for a program about to be executed, or -1 if
  // there are none.
  int Fd() RC_EXCLUDES(rx_);

  // Held returns the bytes, and HeldFd a descriptor that shares them, or -1.
  // Both require the rx_latch.
  Unread& Held() {
    rx_.AssertHeld();
    return unread_;
  }
  int HeldFd();
  // Takes over bytes from `memory`.  Returns false if it has none.  Requires
  // the rx_latch, or that no other thread knows the stream.
  bool Open(int memory) {
    rx_.AssertUnshared();
    return unread_.Open(memory);
  }
  // Forgets the bytes, since all are read: the stream is in kPlain.  Requires
  // the rx_latch.
  void EndLatched();
  // Takes the error that is kept for the next call.  Returns 0 if there is
  // none.
  [[gnu::cold]] int TakeError() RC_EXCLUDES(rx_);
  // As TakeError, in kUnread.  Requires the rx_latch.
  int TakeErrorLatched();

  // Drops the bytes.  Requires a pinned stream, whose connection the kernel has
  // ended by connect() to no address.
  void Drop() RC_EXCLUDES(rx_);
  // Takes over bytes from `memory`, in the program that was executed.  The
  // anchor has the inode number of their connection then.  Returns false if
  // `memory` has none.  Requires that no other thread knows the stream.
  bool Inherit(int memory);

 private:
  // Returns whether the stream is in kUnread.
  bool Any() const;

  Sock* const sock_;
  base::Latch& rx_;
  Unread unread_ RC_GUARDED_BY(rx_);
};

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_SOCKET_SOCK_READ_AHEAD_H_
