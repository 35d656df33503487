// Control messages that TCP adds to what recvmsg returns.
//
// A stream whose recvmsg tells the time leaves its lane at the first one.  What
// a switch had read ahead by then, and cannot hand back, gets the time that the
// kernel said of it.
//
// gRPC sets TCP_INQ on each of its connections, and waits for the next edge if
// nothing is left.  So the answer must not be zero while bytes are there whose
// edge has been told.  What comes later makes an edge of its own.

#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>

#include "lib/base/poll_now.h"
#include "lib/posix/socket/sock.h"
#include "lib/posix/socket/tcp_info.h"
#include "lib/posix/sys/control_message.h"

namespace rcsock::posix {
namespace {

constexpr std::uint64_t kSecond = 1'000'000'000;

std::uint64_t RealNs(const timespec& time) {
  return static_cast<std::uint64_t>(time.tv_sec) * kSecond +
         static_cast<std::uint64_t>(time.tv_nsec);
}

}  // namespace

void Sock::SetAncillary(Ancillary what, bool on) {
  if (on) {
    ancillary_.fetch_or(what, std::memory_order_relaxed);
  } else {
    ancillary_.fetch_and(static_cast<std::uint8_t>(~what),
                         std::memory_order_relaxed);
  }
}

long Sock::RecvStamped(void* to, std::size_t length) {
  iovec iov{to, length};
  alignas(cmsghdr) char control[256];
  msghdr message{};
  message.msg_iov = &iov;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const long n = ::syscall(SYS_recvmsg, fd(), &message, MSG_DONTWAIT);
  if (n <= 0 || stream_->rx() != stream::Rx::kRaw) return n;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET) continue;
    timespec time{};
    if (header->cmsg_type == SO_TIMESTAMPNS &&
        header->cmsg_len >= CMSG_LEN(sizeof time)) {
      std::memcpy(&time, CMSG_DATA(header), sizeof time);
    } else if (header->cmsg_type == SO_TIMESTAMP &&
               header->cmsg_len >= CMSG_LEN(sizeof(timeval))) {
      timeval micro;
      std::memcpy(&micro, CMSG_DATA(header), sizeof micro);
      time = {micro.tv_sec, static_cast<long>(micro.tv_usec) * 1000};
    } else {
      continue;
    }
    came_ns_.store(RealNs(time), std::memory_order_relaxed);
  }
  return n;
}

bool Sock::PeerMayHaveEnded() {
  const int anchors = AskTcpState(fd());
  if (anchors < 0) return true;
  const int state = TcpState(static_cast<std::uint8_t>(anchors));
  return state != kTcpEstablished && state != kTcpFinWait1 &&
         state != kTcpFinWait2;
}

void Sock::TellBeside(msghdr* message, ssize_t length) {
  const int saved = errno;
  ControlMessages beside(message);
  if (Tells(kTellsTime) && length > 0) {
    std::uint64_t came = came_ns_.load(std::memory_order_relaxed);
    if (came == 0) {
      // The bytes came over a lane, from a peer that has not answered since, or
      // died.
      timespec now{};
      ::clock_gettime(CLOCK_REALTIME, &now);
      came = RealNs(now);
    }
    const auto seconds = static_cast<time_t>(came / kSecond);
    const auto rest = static_cast<long>(came % kSecond);
    int nano = 0;
    socklen_t size = sizeof nano;
    ::syscall(SYS_getsockopt, fd(), SOL_SOCKET, SO_TIMESTAMPNS, &nano, &size);
    if (nano != 0) {
      const timespec time{seconds, rest};
      beside.Put(SOL_SOCKET, SO_TIMESTAMPNS, &time, sizeof time);
    } else {
      const timeval time{seconds, rest / 1000};
      beside.Put(SOL_SOCKET, SO_TIMESTAMP, &time, sizeof time);
    }
  }
  if (!Tells(kTellsLeft)) {
    errno = saved;
    return;
  }
  int left = 0;
  if (!ReadableBytes(&left)) {
    // The call has ended in the kernel, or the stream is there by now.
    ::syscall(SYS_ioctl, fd(), FIONREAD, &left);
  }
  if (left == 0) {
    // An end that has come counts for one more byte, as in the kernel.
    bool plain = false;
    std::uint32_t ready = Readiness(-1, POLLIN | POLLRDHUP, &plain);
    if (plain) {
      pollfd one{fd(), POLLIN | POLLRDHUP, 0};
      base::PollNow(&one);
      ready = static_cast<std::uint32_t>(one.revents);
    }
    // This end's SHUT_RD, which ends what is read as well, does not count.
    if ((ready & (POLLIN | POLLRDHUP | POLLHUP)) != 0 && PeerMayHaveEnded()) {
      left = 1;
    }
  }
  beside.Put(IPPROTO_TCP, TCP_CM_INQ, &left, sizeof left);
  errno = saved;
}

}  // namespace rcsock::posix
