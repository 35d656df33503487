#include "tests/bench/net.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>

namespace bench {
namespace {

sockaddr_in Address(const std::string& host, std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  if (::inet_pton(AF_INET, host.c_str(), &address.sin_addr) != 1) {
    errno = EINVAL;
    Die("address");
  }
  return address;
}

int Socket() {
  // No SOCK_CLOEXEC and no accept4: librspreload knows neither.
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  if (fd < 0) Die("socket");
  return fd;
}

}  // namespace

void Die(const char* what) {
  std::fprintf(stderr, "%s: %s\n", what, std::strerror(errno));
  std::exit(1);
}

int Listen(const std::string& host, std::uint16_t* port) {
  const int fd = Socket();
  const int on = 1;
  ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in address = Address(host, *port);
  socklen_t length = sizeof address;
  if (::bind(fd, reinterpret_cast<sockaddr*>(&address), length) != 0) {
    Die("bind");
  }
  if (::listen(fd, 4096) != 0) Die("listen");
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    Die("getsockname");
  }
  *port = ntohs(address.sin_port);
  return fd;
}

int Accept(int listener) {
  for (;;) {
    const int fd = ::accept(listener, nullptr, nullptr);
    if (fd >= 0) {
      SetNoDelay(fd);
      return fd;
    }
    if (errno != EINTR) Die("accept");
  }
}

int Connect(const std::string& host, std::uint16_t port) {
  const sockaddr_in address = Address(host, port);
  const std::int64_t give_up = NowNs() + 10'000'000'000;
  for (;;) {
    const int fd = Socket();
    if (::connect(fd, reinterpret_cast<const sockaddr*>(&address),
                  sizeof address) == 0) {
      SetNoDelay(fd);
      return fd;
    }
    if (errno != ECONNREFUSED || NowNs() > give_up) Die("connect");
    ::close(fd);
    ::usleep(5000);
  }
}

void SetNonBlocking(int fd) {
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0 || ::fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0) Die("fcntl");
}

void SetNoDelay(int fd) {
  const int on = 1;
  if (::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) != 0) {
    Die("TCP_NODELAY");
  }
}

void WriteAll(int fd, const void* data, std::size_t size) {
  const char* next = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t n = ::send(fd, next, size, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) Die("send");
    next += n;
    size -= static_cast<std::size_t>(n);
  }
}

bool ReadAll(int fd, void* data, std::size_t size) {
  char* next = static_cast<char*>(data);
  while (size > 0) {
    const ssize_t n = ::recv(fd, next, size, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) Die("recv");
    if (n == 0) return false;
    next += n;
    size -= static_cast<std::size_t>(n);
  }
  return true;
}

void RaiseDescriptorLimit() {
  rlimit limit;
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) Die("getrlimit");
  limit.rlim_cur = limit.rlim_max;
  if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) Die("setrlimit");
}

std::int64_t NowNs() {
  timespec now;
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
}

void Pin(int index) {
  cpu_set_t allowed;
  if (index < 0 || ::sched_getaffinity(0, sizeof allowed, &allowed) != 0) {
    return;
  }
  for (int cpu = 0, seen = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &allowed) && seen++ == index) {
      cpu_set_t one;
      CPU_ZERO(&one);
      CPU_SET(cpu, &one);
      ::sched_setaffinity(0, sizeof one, &one);
      return;
    }
  }
}

int RunEnds(const Ends& ends, const std::function<void(int listener)>& server,
            const std::function<void(std::uint16_t port)>& client) {
  std::uint16_t port = ends.port;
  if (ends.role == "client") {
    Pin(ends.cpu);
    client(port);
    return 0;
  }
  const int listener = Listen(ends.host, &port);
  if (ends.role == "server") {
    Pin(ends.cpu);
    server(listener);
    return 0;
  }
  const pid_t child = ::fork();
  if (child < 0) Die("fork");
  if (child == 0) {
    ::close(listener);
    Pin(1);
    client(port);
    std::exit(0);
  }
  Pin(0);
  server(listener);
  int status = 0;
  if (::waitpid(child, &status, 0) != child) Die("waitpid");
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

}  // namespace bench
