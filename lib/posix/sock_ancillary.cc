// Control messages that TCP adds to what recvmsg returns.
//
// gRPC sets TCP_INQ on each of its connections, and waits for the next edge
// where nothing is left: what is told must not be zero while anything is there
// whose edge has been told already.  What comes later makes an edge of its own.

#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "lib/posix/control_message.h"
#include "lib/posix/sock.h"

namespace rcsock::posix {

void Sock::SetAncillary(Ancillary what, bool on) {
  if (on) {
    ancillary_.fetch_or(what, std::memory_order_relaxed);
  } else {
    ancillary_.fetch_and(static_cast<std::uint8_t>(~what),
                         std::memory_order_relaxed);
  }
}

void Sock::TellLeft(msghdr* message) {
  const int saved = errno;
  int left = 0;
  if (!ReadableBytes(&left)) {
    // The call has ended in the kernel, or the stream is there by now.
    ::syscall(SYS_ioctl, fd(), FIONREAD, &left);
  }
  if (left == 0) {
    // As the kernel: an end that has come counts for one more.
    bool plain = false;
    std::uint32_t ready = Readiness(POLLIN | POLLRDHUP, &plain);
    if (plain) {
      pollfd one{fd(), POLLIN | POLLRDHUP, 0};
      timespec now{0, 0};
      ::syscall(SYS_ppoll, &one, 1, &now, nullptr, 8);
      ready = static_cast<std::uint32_t>(one.revents);
    }
    if ((ready & (POLLIN | POLLRDHUP | POLLHUP)) != 0) left = 1;
  }
  PutControlMessage(message, IPPROTO_TCP, TCP_CM_INQ, &left, sizeof left);
  errno = saved;
}

}  // namespace rcsock::posix
