// Connections of one request, whose two ends one thread holds: what rcsock adds
// to a connection that ends before it has a lane.
//
// usage: one_request instructions|threads|calls|repeats COUNT
//
//   instructions  for count_instructions: a breakpoint before the connections,
//                 one behind each, and one at the end
//   threads       as instructions, in a program that has had a second thread
//   calls         for count_syscalls: bench::Mark() before and behind them
//   repeats       the same around calls that change nothing: COUNT times
//                 EPOLL_CTL_MOD with what is registered, and F_GETFL
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include "tests/bench/net.h"
#include "tools/rcsock/perf/mark.h"

namespace {

void Send(int fd, std::size_t size) {
  static const char text[1024] = {};
  if (send(fd, text, size, 0) != static_cast<ssize_t>(size)) bench::Die("send");
}

void Receive(int fd, std::size_t size) {
  static char text[1024];
  if (recv(fd, text, size, MSG_WAITALL) != static_cast<ssize_t>(size)) {
    bench::Die("recv");
  }
}

// As nginx serves it: the server waits for the request by epoll, and closes
// first.
void Serve(int listener, int set, const sockaddr_in& address) {
  const int client = socket(AF_INET, SOCK_STREAM, 0);
  if (connect(client, reinterpret_cast<const sockaddr*>(&address),
              sizeof address) != 0) {
    bench::Die("connect");
  }
  const int server = accept4(listener, nullptr, nullptr, SOCK_NONBLOCK);
  epoll_event event{};
  event.events = EPOLLIN | EPOLLRDHUP | EPOLLET;
  if (server < 0 || epoll_ctl(set, EPOLL_CTL_ADD, server, &event) != 0) {
    bench::Die("accept");
  }
  Send(client, 100);
  if (epoll_wait(set, &event, 1, -1) != 1) bench::Die("epoll_wait");
  Receive(server, 100);
  Send(server, 1024);
  Receive(client, 1024);
  if (close(server) != 0 || close(client) != 0) bench::Die("close");
}

void Repeat(int listener, int set, const sockaddr_in& address, long count) {
  const int client = socket(AF_INET, SOCK_STREAM, 0);
  epoll_event event{};
  event.events = EPOLLIN | EPOLLOUT;
  if (connect(client, reinterpret_cast<const sockaddr*>(&address),
              sizeof address) != 0 ||
      accept(listener, nullptr, nullptr) < 0 ||
      epoll_ctl(set, EPOLL_CTL_ADD, client, &event) != 0) {
    bench::Die("connect");
  }
  const auto repeat = [&](long times) {
    for (long i = 0; i < times; ++i) {
      if (epoll_ctl(set, EPOLL_CTL_MOD, client, &event) != 0 ||
          fcntl(client, F_GETFL) != O_RDWR) {
        bench::Die("repeat");
      }
    }
  };
  // rcsock finds out meanwhile whether it sees all calls.
  for (int i = 0; i < 50; ++i) {
    repeat(100);
    usleep(10'000);
  }
  rcsock::perf::Mark();
  repeat(count);
  rcsock::perf::Mark();
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc == 3 ? argv[1] : "";
  const long count = argc == 3 ? std::atol(argv[2]) : 0;
  const bool calls = mode == "calls";
  const bool threads = mode == "threads";
  const bool repeats = mode == "repeats";
  if (count <= 0 ||
      (!calls && !threads && !repeats && mode != "instructions")) {
    std::fputs("usage: one_request instructions|threads|calls|repeats COUNT\n",
               stderr);
    return 2;
  }
  if (threads || repeats) std::thread([] {}).join();
  std::uint16_t port = 0;
  const int listener = bench::Listen("127.0.0.1", &port);
  const int set = epoll_create1(0);
  if (set < 0) bench::Die("epoll_create1");
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  if (repeats) {
    Repeat(listener, set, address, count);
    return 0;
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
