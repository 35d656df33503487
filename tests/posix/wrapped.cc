// Stands between the preload and libc, as libsocket_wrapper does: what the
// program takes for TCP is AF_UNIX to the kernel.
#include <arpa/inet.h>
#include <dlfcn.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#define NEXT(name)         \
  static const auto next = \
      reinterpret_cast<decltype(&::name)>(::dlsym(RTLD_NEXT, #name))

namespace {

socklen_t Name(int port, sockaddr_un* name) {
  *name = {};
  name->sun_family = AF_UNIX;
  const int n = std::snprintf(name->sun_path + 1, sizeof name->sun_path - 1,
                              "rcsock-wrapped-%d", port);
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 +
                                static_cast<std::size_t>(n));
}

int PortOf(const sockaddr_un& name) {
  const char* number = std::strrchr(name.sun_path + 1, '-');
  return number != nullptr ? std::atoi(number + 1) : 1;
}

void Tell(int port, sockaddr* to, socklen_t* length) {
  if (to == nullptr) return;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::memcpy(to, &address, std::min<std::size_t>(*length, sizeof address));
  *length = sizeof address;
}

// What `next`, getsockname or getpeername, says of it, as TCP would.
int TellName(int (*next)(int, sockaddr*, socklen_t*), int fd, sockaddr* address,
             socklen_t* length) {
  sockaddr_un name{};
  socklen_t size = sizeof name;
  const int r = next(fd, reinterpret_cast<sockaddr*>(&name), &size);
  if (r != 0 || name.sun_family != AF_UNIX) return next(fd, address, length);
  Tell(PortOf(name), address, length);
  return 0;
}

int Port(const sockaddr* address) {
  return ntohs(reinterpret_cast<const sockaddr_in*>(address)->sin_port);
}

}  // namespace

#pragma GCC visibility push(default)

extern "C" {

int socket(int domain, int type, int protocol) {
  NEXT(socket);
  const bool wrap = domain == AF_INET && (type & 0xf) == SOCK_STREAM;
  return wrap ? next(AF_UNIX, type, 0) : next(domain, type, protocol);
}

int bind(int fd, const sockaddr* address, socklen_t length) {
  NEXT(bind);
  if (address->sa_family != AF_INET) return next(fd, address, length);
  const int wanted = Port(address);
  for (int port = wanted != 0 ? wanted : 20'000 + ::getpid() % 20'000;;
       ++port) {
    sockaddr_un name;
    const socklen_t size = Name(port, &name);
    const int r = next(fd, reinterpret_cast<sockaddr*>(&name), size);
    if (r == 0 || wanted != 0 || errno != EADDRINUSE) return r;
  }
}

int connect(int fd, const sockaddr* address, socklen_t length) {
  NEXT(connect);
  if (address->sa_family != AF_INET) return next(fd, address, length);
  sockaddr_un name;
  const socklen_t size = Name(Port(address), &name);
  return next(fd, reinterpret_cast<sockaddr*>(&name), size);
}

int accept4(int fd, sockaddr* address, socklen_t* length, int flags) {
  NEXT(accept4);
  const int got = next(fd, nullptr, nullptr, flags);
  if (got >= 0) Tell(1, address, length);
  return got;
}

int getsockname(int fd, sockaddr* address, socklen_t* length) {
  NEXT(getsockname);
  return TellName(next, fd, address, length);
}

int getpeername(int fd, sockaddr* address, socklen_t* length) {
  NEXT(getpeername);
  return TellName(next, fd, address, length);
}

int getsockopt(int fd, int level, int name, void* value, socklen_t* length) {
  NEXT(getsockopt);
  if (level == IPPROTO_TCP) {
    std::memset(value, 0, *length);
    return 0;
  }
  if (level == SOL_SOCKET && name == SO_PROTOCOL) {
    const int protocol = IPPROTO_TCP;
    std::memcpy(value, &protocol, sizeof protocol);
    return 0;
  }
  return next(fd, level, name, value, length);
}

}  // extern "C"

#pragma GCC visibility pop
