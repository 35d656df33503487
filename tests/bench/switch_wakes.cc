// Threads that sleep while connections take their lanes: 12 round trips, of
// which a search begins after the fourth, on each of 50 connections in turn.
// Both ends are here, each with an epoll set.  switch_wakes_test.sh counts the
// system calls.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "tools/rcsock/perf/mark.h"

namespace {

constexpr int kConnections = 50;
constexpr int kTrips = 12;

void Must(bool holds, const char* what) {
  if (holds) return;
  std::perror(what);
  std::exit(1);
}

int Watch(const std::vector<int>& fds) {
  const int set = ::epoll_create1(0);
  for (const int fd : fds) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = fd;
    Must(::epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0, "epoll_ctl");
  }
  return set;
}

// Sleeps until a byte comes, and takes it.  Returns its stream.
int Take(int set) {
  epoll_event event;
  Must(::epoll_wait(set, &event, 1, -1) == 1, "epoll_wait");
  char byte;
  Must(::recv(event.data.fd, &byte, 1, 0) == 1, "recv");
  return event.data.fd;
}

void Send(int fd) { Must(::send(fd, "x", 1, 0) == 1, "send"); }

struct Ends {
  std::vector<int> ours;
  std::vector<int> theirs;
};

Ends Connect(int count) {
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* const address = reinterpret_cast<sockaddr*>(&at);
  socklen_t length = sizeof at;
  Must(::bind(listener, address, length) == 0 && ::listen(listener, 8) == 0 &&
           ::getsockname(listener, address, &length) == 0,
       "listen");
  Ends ends;
  for (int i = 0; i < count; ++i) {
    const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
    const int one = 1;
    Must(::connect(fd, address, length) == 0 &&
             ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) == 0,
         "connect");
    ends.ours.push_back(fd);
    ends.theirs.push_back(::accept(listener, nullptr, nullptr));
  }
  ::close(listener);
  return ends;
}

// The pauses let both threads fall asleep.
void Talk(int count, int trips) {
  const Ends ends = Connect(count);
  std::thread echo([&ends, count, trips] {
    const int set = Watch(ends.theirs);
    for (int i = 0; i < count * trips; ++i) Send(Take(set));
    ::close(set);
  });
  const int set = Watch(ends.ours);
  for (int trip = 0; trip < trips; ++trip) {
    for (const int fd : ends.ours) {
      Send(fd);
      Take(set);
      ::usleep(200);
    }
  }
  echo.join();
  ::close(set);
  for (const int fd : ends.ours) ::close(fd);
  for (const int fd : ends.theirs) ::close(fd);
}

}  // namespace

int main() {
  // What comes once in a process, such as the look at its code.
  for (int i = 0; i < 5; ++i) {
    Talk(1, 40);
    ::usleep(200'000);
  }
  rcsock::perf::Mark();
  Talk(kConnections, kTrips);
  rcsock::perf::Mark();
}
