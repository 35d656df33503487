// How much of what a lane sends the peer may leave unread: as TCP, no more than
// the program's SO_SNDBUF allows.

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>

#include "lib/posix/socket/sock.h"
#include "lib/posix/socket/tcp_info.h"
#include "lib/posix/thread/signals.h"

namespace rcsock::posix {

void Sock::BoundSends() {
  Critical critical;
  tx_latch.lock();
  BoundSendsLatched();
  // A thread that sleeps for room may have some now.
  if (lane_ != nullptr) lane_->WakeLocal();
  tx_latch.unlock();
}

// What TCP would take of a program that has set its SO_SNDBUF: that value,
// which the kernel reports doubled, and what the peer's buffer has room for.
// Without SO_SNDBUF the kernel's buffer grows as needed, and so a lane's ring
// is no more.
void Sock::BoundSendsLatched() {
  if (lane_ == nullptr || !lane_is_shm_) return;
  const int saved = errno;
  constexpr int kBufLock = 72;    // SO_BUF_LOCK; since Linux 5.14
  constexpr int kSendLocked = 1;  // SOCK_SNDBUF_LOCK
  int locked = 0;
  int bytes = 0;
  socklen_t size = sizeof locked;
  tcp_info info{};
  if (::syscall(SYS_getsockopt, fd(), SOL_SOCKET, kBufLock, &locked, &size) ==
          0 &&
      (locked & kSendLocked) != 0 && (size = sizeof bytes) != 0 &&
      ::syscall(SYS_getsockopt, fd(), SOL_SOCKET, SO_SNDBUF, &bytes, &size) ==
          0 &&
      AskTcpInfo(fd(), &info) >=
          offsetof(tcp_info, tcpi_snd_wnd) + sizeof info.tcpi_snd_wnd) {
    lane_->BoundUnread(static_cast<std::uint64_t>(bytes) + info.tcpi_snd_wnd);
  }
  errno = saved;
}

}  // namespace rcsock::posix
