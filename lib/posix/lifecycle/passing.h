#ifndef RCSOCK_LIB_POSIX_LIFECYCLE_PASSING_H_
#define RCSOCK_LIB_POSIX_LIFECYCLE_PASSING_H_

#include <sys/socket.h>

#include <cstdint>

namespace rcsock::posix {

// One call that sends messages by the AF_UNIX socket `fd`, and may pass
// descriptors on by SCM_RIGHTS.  Their streams leave their lanes.
class Passing {
 public:
  // `fd` -1: nothing reports whether the messages are sent.
  explicit Passing(int fd) : fd_(fd) {}
  // Called before the message is sent.
  void Before(const msghdr* message);
  // The call's only message has not been sent.
  void Failed(const msghdr* message);
  // Called when the messages from `sent` on, of all `count`, have not been
  // sent.
  void Failed(const mmsghdr* messages, unsigned sent, unsigned count);

 private:
  // Ends the flights of one message, of which `index` is the first descriptor.
  // Returns the index of the next message.
  std::uint32_t Drop(const msghdr* message, bool failed,
                     std::uint32_t index) const;
  const int fd_;
  bool asked_ = false;
  std::uint64_t to_ =
      0;  // the inode number of the receiving socket; 0: unknown
  // The tag of the first descriptor.  Each descriptor has a tag of its own,
  // since each is a flight that lands by itself.
  std::uint32_t tag_ = 0;
  std::uint32_t count_ = 0;
};

// A message has come by the AF_UNIX socket `fd`.  `flags`: of the call.
void AfterReceiving(int fd, const msghdr* message, int flags);

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_LIFECYCLE_PASSING_H_
