#ifndef RCSOCK_LIB_POSIX_CONTROL_MESSAGE_H_
#define RCSOCK_LIB_POSIX_CONTROL_MESSAGE_H_

#include <sys/socket.h>

#include <cstddef>
#include <cstring>

namespace rcsock::posix {

// The only control message of `message`, as the kernel's put_cmsg leaves it.
inline void PutControlMessage(msghdr* message, int level, int type,
                              const void* data, std::size_t size) {
  const std::size_t room =
      message->msg_control != nullptr ? message->msg_controllen : 0;
  message->msg_controllen = 0;
  if (room < sizeof(cmsghdr)) {
    message->msg_flags |= MSG_CTRUNC;
    return;
  }
  std::size_t length = CMSG_LEN(size);
  if (room < length) {
    message->msg_flags |= MSG_CTRUNC;
    length = room;
  }
  cmsghdr header{};
  header.cmsg_len = length;
  header.cmsg_level = level;
  header.cmsg_type = type;
  auto* to = static_cast<char*>(message->msg_control);
  std::memcpy(to, &header, sizeof header);
  std::memcpy(to + sizeof header, data, length - sizeof header);
  const std::size_t space = CMSG_SPACE(size);
  message->msg_controllen = space < room ? space : room;
}

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_CONTROL_MESSAGE_H_
