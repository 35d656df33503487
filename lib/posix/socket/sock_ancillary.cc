// Control messages that TCP adds to what recvmsg returns.
//
// A stream whose recvmsg tells the time leaves its lane at the first one.  What
// a switch had read ahead by then, and cannot hand back, gets the time that the
// kernel said of it.
//
// gRPC sets TCP_INQ on each of its connections, and waits for the next edge if
// nothing is left.  So the answer must not be zero while bytes are there whose
// edge has been told.  What comes later makes an edge of its own.

#include "lib/posix/socket/sock_ancillary.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>

#include "lib/base/poll_now.h"
#include "lib/posix/socket/sock.h"
#include "lib/posix/socket/sock_answers.h"
#include "lib/posix/socket/sock_looks.h"
#include "lib/posix/socket/tcp_info.h"
#include "lib/posix/sys/control_message.h"

namespace rcsock::posix {
namespace {

constexpr std::uint64_t kSecond = 1'000'000'000;

void PutTime(Sock* sock, ControlMessages* beside) {
  std::uint64_t came = sock->anchor().came_ns();
  if (came == 0) {
    // The bytes came over a lane, from a peer that has not answered since, or
    // died.
    timespec now{};
    ::clock_gettime(CLOCK_REALTIME, &now);
    came = static_cast<std::uint64_t>(now.tv_sec) * kSecond +
           static_cast<std::uint64_t>(now.tv_nsec);
  }
  const auto seconds = static_cast<time_t>(came / kSecond);
  const auto rest = static_cast<long>(came % kSecond);
  int nano = 0;
  socklen_t size = sizeof nano;
  ::syscall(SYS_getsockopt, sock->fd(), SOL_SOCKET, SO_TIMESTAMPNS, &nano,
            &size);
  if (nano != 0) {
    const timespec time{seconds, rest};
    beside->Put(SOL_SOCKET, SO_TIMESTAMPNS, &time, sizeof time);
  } else {
    const timeval time{seconds, rest / 1000};
    beside->Put(SOL_SOCKET, SO_TIMESTAMP, &time, sizeof time);
  }
}

// Returns whether the peer may have ended, by the state that TCP_INFO tells.
bool PeerMayHaveEnded(Sock* sock) {
  const int anchors = AskTcpState(sock->fd());
  if (anchors < 0) return true;
  const int state = Answers(sock).TcpState(static_cast<std::uint8_t>(anchors));
  return state != kTcpEstablished && state != kTcpFinWait1 &&
         state != kTcpFinWait2;
}

// Returns what TCP_INQ says.
int LeftOf(Sock* sock) {
  int left = 0;
  if (!Answers(sock).Readable(&left)) {
    // The call has ended in the kernel, or the kernel has the stream by now.
    ::syscall(SYS_ioctl, sock->fd(), FIONREAD, &left);
  }
  if (left != 0) return left;
  // An end that has come counts for one more byte, as in the kernel.
  bool plain = false;
  std::uint32_t ready = Looks(sock).Readiness(-1, POLLIN | POLLRDHUP, &plain);
  if (plain) {
    pollfd one{sock->fd(), POLLIN | POLLRDHUP, 0};
    base::PollNow(&one);
    ready = static_cast<std::uint32_t>(one.revents);
  }
  // This end's SHUT_RD, which ends what is read as well, does not count.
  const bool ended =
      (ready & (POLLIN | POLLRDHUP | POLLHUP)) != 0 && PeerMayHaveEnded(sock);
  return ended ? 1 : 0;
}

}  // namespace

void TellBeside(Sock* sock, msghdr* message, ssize_t length) {
  const int saved = errno;
  ControlMessages beside(message);
  if (sock->ancillary().Tells(Ancillary::kTime) && length > 0) {
    PutTime(sock, &beside);
  }
  if (sock->ancillary().Tells(Ancillary::kLeft)) {
    const int left = LeftOf(sock);
    beside.Put(IPPROTO_TCP, TCP_CM_INQ, &left, sizeof left);
  }
  errno = saved;
}

}  // namespace rcsock::posix
