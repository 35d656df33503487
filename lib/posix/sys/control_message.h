#ifndef RCSOCK_LIB_POSIX_SYS_CONTROL_MESSAGE_H_
#define RCSOCK_LIB_POSIX_SYS_CONTROL_MESSAGE_H_

#include <sys/socket.h>

#include <cstddef>

#include "lib/base/guard.h"

namespace rcsock::posix {

// Appends control messages to `message`, as the kernel's put_cmsg does.
class ControlMessages {
 public:
  explicit ControlMessages(msghdr* message)
      : message_(message),
        room_(message->msg_control != nullptr ? message->msg_controllen : 0) {
    message->msg_controllen = 0;
  }
  void Put(int level, int type, const void* data, std::size_t size) {
    if (room_ < sizeof(cmsghdr)) {
      message_->msg_flags |= MSG_CTRUNC;
      return;
    }
    std::size_t length = CMSG_LEN(size);
    if (room_ < length) {
      message_->msg_flags |= MSG_CTRUNC;
      length = room_;
    }
    cmsghdr header{};
    header.cmsg_len = length;
    header.cmsg_level = level;
    header.cmsg_type = type;
    auto* to =
        static_cast<char*>(message_->msg_control) + message_->msg_controllen;
    // As in the kernel, a message that cannot be stored is left out.
    if (!base::TryPut(to, &header, sizeof header) ||
        !base::TryPut(to + sizeof header, data, length - sizeof header)) {
      return;
    }
    const std::size_t space = CMSG_SPACE(size);
    const std::size_t taken = space < room_ ? space : room_;
    message_->msg_controllen += taken;
    room_ -= taken;
  }

 private:
  msghdr* const message_;
  std::size_t room_;
};

// Stores the only control message.
inline void PutControlMessage(msghdr* message, int level, int type,
                              const void* data, std::size_t size) {
  ControlMessages(message).Put(level, type, data, size);
}

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_SYS_CONTROL_MESSAGE_H_
