#include "tools/rcsock/perf/net.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/tcp.h>  // glibc's tcp_info has no counters of bytes
#include <netdb.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <ctime>
#include <memory>

#include "tools/rcsock/perf/error.h"

namespace rcsock::perf {
namespace {

constexpr int kBacklog = 4096;

void SetInt(int fd, int level, int name, int value) {
  ::setsockopt(fd, level, name, &value, sizeof value);
}

}  // namespace

void Fd::Close() {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

std::uint16_t Address::port() const {
  return ntohs(storage.ss_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_port
                   : reinterpret_cast<const sockaddr_in*>(&storage)->sin_port);
}

void Address::SetPort(std::uint16_t port) {
  if (storage.ss_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6*>(&storage)->sin6_port = htons(port);
  } else {
    reinterpret_cast<sockaddr_in*>(&storage)->sin_port = htons(port);
  }
}

std::string Address::Host() const {
  char text[NI_MAXHOST] = {};
  if (::getnameinfo(get(), length, text, sizeof text, nullptr, 0,
                    NI_NUMERICHOST) != 0) {
    return "?";
  }
  const std::string host = text;
  constexpr char kMapped[] = "::ffff:";
  if (host.rfind(kMapped, 0) == 0 && host.find('.') != std::string::npos) {
    return host.substr(sizeof kMapped - 1);
  }
  return host;
}

std::vector<Address> ResolveAll(const std::string& host, std::uint16_t port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = host.empty() ? AI_PASSIVE : 0;
  hints.ai_family = host.empty() ? AF_INET6 : AF_UNSPEC;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(host.empty() ? nullptr : host.c_str(),
                                  std::to_string(port).c_str(), &hints, &found);
  if (error != 0) Fail("unknown host {}: {}", host, ::gai_strerror(error));
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(
      found, &::freeaddrinfo);
  std::vector<Address> all;
  for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
    Address& address = all.emplace_back();
    address.length = at->ai_addrlen;
    std::memcpy(&address.storage, at->ai_addr, at->ai_addrlen);
  }
  return all;
}

Address Resolve(const std::string& host, std::uint16_t port) {
  return ResolveAll(host, port).front();
}

Address LocalAddress(int fd) {
  Address address;
  address.length = sizeof address.storage;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address.storage),
                    &address.length) != 0) {
    FailErrno("getsockname");
  }
  return address;
}

Address PeerAddress(int fd) {
  Address address;
  address.length = sizeof address.storage;
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&address.storage),
                    &address.length) != 0) {
    FailErrno("getpeername");
  }
  return address;
}

Fd Listen(const std::string& host, std::uint16_t port) {
  Address address = Resolve(host, port);
  Fd fd(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd && host.empty()) {  // a kernel without IPv6
    address = Resolve("0.0.0.0", port);
    fd = Fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  }
  if (!fd) FailErrno("socket");
  SetInt(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (host.empty() && address.storage.ss_family == AF_INET6) {
    SetInt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, 0);
  }
  if (::bind(fd.get(), address.get(), address.length) != 0) {
    if (errno == EADDRINUSE) {
      Fail(
          "port {} is in use already (another perf server? -p chooses another)",
          port);
    }
    FailErrno("cannot listen on {} port {}", host.empty() ? "*" : host, port);
  }
  if (::listen(fd.get(), kBacklog) != 0) {
    if (errno == EADDRINUSE) Fail("port {} is in use already", port);
    FailErrno("listen");
  }
  return fd;
}

Fd TryConnect(const Address& address, double seconds) {
  Fd fd(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd) return fd;
  SetTimeout(fd.get(), seconds);
  if (::connect(fd.get(), address.get(), address.length) != 0) {
    const int code = errno == EINPROGRESS ? ETIMEDOUT : errno;
    fd.Close();
    errno = code;
    return fd;
  }
  SetTimeout(fd.get(), 0);
  return fd;
}

void SetNoDelay(int fd) { SetInt(fd, IPPROTO_TCP, TCP_NODELAY, 1); }

void SetNonBlocking(int fd) {
  ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK);
}

void SetTimeout(int fd, double seconds) {
  timeval time{};
  time.tv_sec = static_cast<time_t>(seconds);
  time.tv_usec =
      static_cast<suseconds_t>((seconds - std::floor(seconds)) * 1e6);
  ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time);
  ::setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &time, sizeof time);
}

void SendAll(int fd, const void* data, std::size_t size) {
  const char* at = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t n = ::send(fd, at, size, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) FailErrno("send");
    at += n;
    size -= static_cast<std::size_t>(n);
  }
}

bool ReceiveAll(int fd, void* data, std::size_t size) {
  char* at = static_cast<char*>(data);
  const std::size_t all = size;
  while (size > 0) {
    const ssize_t n = ::recv(fd, at, size, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) FailErrno("receive");
    if (n == 0 && size == all) return false;
    if (n == 0) Fail("the connection ended in the middle of a message");
    at += n;
    size -= static_cast<std::size_t>(n);
  }
  return true;
}

std::uint64_t TcpBytes(int fd) {
  tcp_info info{};
  socklen_t length = sizeof info;
  if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return 0;
  return info.tcpi_bytes_acked + info.tcpi_bytes_received;
}

void NeedDescriptors(std::uint64_t count) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_max < count) {
    Fail(
        "{} connections need more descriptors than the limit of {} (ulimit "
        "-Hn)",
        count, limit.rlim_max);
  }
}

std::int64_t NowNs() {
  timespec now;
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * std::int64_t{1'000'000'000} + now.tv_nsec;
}

}  // namespace rcsock::perf
