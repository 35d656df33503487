#ifndef RCSOCK_LIB_POSIX_SOCKET_SOCK_OPTIONS_H_
#define RCSOCK_LIB_POSIX_SOCKET_SOCK_OPTIONS_H_

#include <cstdint>

#include "lib/base/latch.h"

namespace rcsock::posix {

class TcpAnchor;

// TCP_CORK and TCP_NODELAY of a stream that the engine has.
//
// They say when the kernel sends what it was given.  On a lane everything is
// sent at once, so they have no effect, and programs set them for every answer.
// They are kept here, and told to the kernel when the stream goes back.
// Meanwhile TCP carries the frames of the switch above all.  These must not
// wait for an acknowledgement that the peer delays (40 ms), nor behind a cork
// (200 ms).
//
// A part of its Sock.  Any thread may call Keep and Kept, without a latch.
class KeptOptions {
 public:
  // `tx`: the stream's tx_latch, which guards this.
  explicit KeptOptions(base::Latch& tx) : tx_(tx) {}

  // Keeps a value in the kernel's place.  Returns false if the kernel must be
  // told: the engine does not have the stream, or the option is another.
  bool Keep(int name, bool on, const TcpAnchor& anchor) RC_EXCLUDES(tx_);
  // Stores a value that is kept into *value.  Returns false if the kernel must
  // be asked.
  bool Kept(int name, int* value) RC_EXCLUDES(tx_);
  // The engine has taken the stream: takes over what the kernel has.
  void Take(int number);
  // The stream is about to go back: the kernel is told.
  void Push(int number);

  // The stream has ended: there is nothing to tell.
  void Drop();

  // Forgets all, for another connection.
  void Reset() {
    tx_.AssertUnshared();
    engine_ = false;
    bits_ = 0;
  }
  // In the child of a fork.  The parent's engine has what is kept, and tells
  // the kernel.
  void OnForkChild() { Reset(); }

 private:
  void Note(int index, bool on) RC_REQUIRES(tx_);

  base::Latch& tx_;
  bool engine_ RC_GUARDED_BY(tx_) = false;    // between Take and Push
  std::uint8_t bits_ RC_GUARDED_BY(tx_) = 0;  // two for each option
};

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_SOCKET_SOCK_OPTIONS_H_
