#ifndef RCSOCK_LIB_POSIX_TCP_INFO_H_
#define RCSOCK_LIB_POSIX_TCP_INFO_H_

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

// The kernel's TCP_INFO, past every wrapper: for where latches are held, too.
namespace rcsock::posix {

// Of linux/tcp.h and netinet/tcp.h, which can't be had beside each other; only
// the second one names states, and only the first one all of tcp_info.
inline constexpr int kTcpInfo = 11;
inline constexpr int kTcpEstablished = 1;
inline constexpr int kTcpFinWait1 = 4;
inline constexpr int kTcpFinWait2 = 5;
inline constexpr int kTcpClose = 7;
inline constexpr int kTcpListen = 10;

// As much of it as the kernel knows and *info has room for: so many bytes, or
// 0, and errno.
template <class Info>
socklen_t AskTcpInfo(int fd, Info* info) {
  socklen_t size = sizeof *info;
  return ::syscall(SYS_getsockopt, fd, IPPROTO_TCP, kTcpInfo, info, &size) == 0
             ? size
             : 0;
}

// Its state alone, which is its first byte; -1, and errno.
inline int AskTcpState(int fd) {
  std::uint8_t state = 0;
  return AskTcpInfo(fd, &state) > 0 ? state : -1;
}

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_TCP_INFO_H_
