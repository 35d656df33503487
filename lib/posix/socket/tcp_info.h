#ifndef RCSOCK_LIB_POSIX_SOCKET_TCP_INFO_H_
#define RCSOCK_LIB_POSIX_SOCKET_TCP_INFO_H_

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

// The kernel's TCP_INFO, past every wrapper, so that callers may hold latches.
namespace rcsock::posix {

// Values of linux/tcp.h and netinet/tcp.h, which cannot be included together.
// Only the second names states, and only the first has all of tcp_info.
inline constexpr int kTcpInfo = 11;
inline constexpr int kTcpEstablished = 1;
inline constexpr int kTcpFinWait1 = 4;
inline constexpr int kTcpFinWait2 = 5;
inline constexpr int kTcpClose = 7;
inline constexpr int kTcpListen = 10;

// Asks for as much as the kernel knows and *info has room for.  Returns how
// many bytes that is, or 0 with errno.
template <class Info>
socklen_t AskTcpInfo(int fd, Info* info) {
  socklen_t size = sizeof *info;
  return ::syscall(SYS_getsockopt, fd, IPPROTO_TCP, kTcpInfo, info, &size) == 0
             ? size
             : 0;
}

// Returns the state alone, which is the first byte, or -1 with errno.
inline int AskTcpState(int fd) {
  std::uint8_t state = 0;
  return AskTcpInfo(fd, &state) > 0 ? state : -1;
}

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_SOCKET_TCP_INFO_H_
