#ifndef RCSOCK_LIB_POSIX_SOCKET_SOCK_ANCILLARY_H_
#define RCSOCK_LIB_POSIX_SOCKET_SOCK_ANCILLARY_H_

#include <sys/socket.h>
#include <sys/types.h>

#include <atomic>
#include <cstdint>

namespace rcsock::posix {

class Sock;

// Which control messages recvmsg tells beside the bytes of a stream.
//
// A part of its Sock.  Any thread may call it, without a latch.  A child of a
// fork reports the same messages.
class Ancillary {
 public:
  enum Kind : std::uint8_t {
    kLeft = 1,  // TCP_INQ: how much is left
    kTime = 2,  // SO_TIMESTAMP: when the bytes came; a lane cannot say
  };
  // Turns one kind on or off.
  void Set(Kind kind, bool on) {
    if (on) {
      kinds_.fetch_or(kind, std::memory_order_relaxed);
    } else {
      kinds_.fetch_and(static_cast<std::uint8_t>(~kind),
                       std::memory_order_relaxed);
    }
  }
  // Tells returns whether the kind is on, TellsAny whether any kind is.
  bool Tells(Kind kind) const {
    return (kinds_.load(std::memory_order_relaxed) & kind) != 0;
  }
  bool TellsAny() const { return kinds_.load(std::memory_order_relaxed) != 0; }
  // Takes over what an accepted socket inherits from its listener.
  void Inherit(const Ancillary& listener) {
    kinds_.store(listener.kinds_.load(std::memory_order_relaxed),
                 std::memory_order_relaxed);
  }
  // Forgets all, for another connection.
  void Reset() { kinds_.store(0, std::memory_order_relaxed); }

 private:
  std::atomic<std::uint8_t> kinds_{0};
};

// Adds to `message` the control messages that the kernel would have added.  The
// caller's recvmsg has read `length` bytes of the stream without the kernel.
// Keeps errno.
void TellBeside(Sock* sock, msghdr* message, ssize_t length);

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_SOCKET_SOCK_ANCILLARY_H_
