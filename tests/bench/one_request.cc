// Connections of one request, whose two ends one thread holds: what rcsock adds
// to a connection that ends before it has a lane.
//
// usage: one_request instructions|calls COUNT
//
//   instructions  for count_instructions: a breakpoint before the connections,
//                 one behind each, and one at the end
//   calls         for count_syscalls: bench::Mark() before and behind them
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "tools/rcsock/perf/mark.h"

namespace {

[[noreturn]] void Fail(const char* what) {
  std::perror(what);
  std::exit(1);
}

void Send(int fd, std::size_t size) {
  static const char text[1024] = {};
  if (send(fd, text, size, 0) != static_cast<ssize_t>(size)) Fail("send");
}

void Receive(int fd, std::size_t size) {
  static char text[1024];
  if (recv(fd, text, size, MSG_WAITALL) != static_cast<ssize_t>(size)) {
    Fail("recv");
  }
}

// As nginx serves it: the server waits for the request by epoll, and closes
// first.
void Serve(int listener, int set, const sockaddr_in& address) {
  const int client = socket(AF_INET, SOCK_STREAM, 0);
  if (connect(client, reinterpret_cast<const sockaddr*>(&address),
              sizeof address) != 0) {
    Fail("connect");
  }
  const int server = accept4(listener, nullptr, nullptr, SOCK_NONBLOCK);
  epoll_event event{};
  event.events = EPOLLIN | EPOLLRDHUP | EPOLLET;
  if (server < 0 || epoll_ctl(set, EPOLL_CTL_ADD, server, &event) != 0) {
    Fail("accept");
  }
  Send(client, 100);
  if (epoll_wait(set, &event, 1, -1) != 1) Fail("epoll_wait");
  Receive(server, 100);
  Send(server, 1024);
  Receive(client, 1024);
  if (close(server) != 0 || close(client) != 0) Fail("close");
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc == 3 ? argv[1] : "";
  const long count = argc == 3 ? std::atol(argv[2]) : 0;
  const bool calls = mode == "calls";
  if (count <= 0 || (!calls && mode != "instructions")) {
    std::fputs("usage: one_request instructions|calls COUNT\n", stderr);
    return 2;
  }
  sockaddr_in address{};
  socklen_t size = sizeof address;
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* name = reinterpret_cast<sockaddr*>(&address);
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  const int set = epoll_create1(0);
  if (set < 0 || bind(listener, name, size) != 0 || listen(listener, 8) != 0 ||
      getsockname(listener, name, &size) != 0) {
    Fail("listen");
  }
  for (int i = 0; i < 20; ++i) Serve(listener, set, address);
  if (calls) {
    rcsock::perf::Mark();
  } else {
    __asm__ volatile("int3");
  }
  for (long i = 0; i < count; ++i) {
    Serve(listener, set, address);
    if (!calls) __asm__ volatile("int3");
  }
  if (calls) {
    rcsock::perf::Mark();
  } else {
    __asm__ volatile("int3");
  }
  return 0;
}
