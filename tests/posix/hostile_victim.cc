// The processes of hostile_peer under the preload: they know sockets, and
// nothing of rcsock.  (rcsock's own code would keep them on TCP: it makes
// system calls of its own.)
//
// usage: hostile_victim victim threads|epoll ORDERS REPORT
//        hostile_victim honest PORT ORDERS REPORT
//
// ORDERS and REPORT are pipes from and to the test.

#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "tests/posix/under.h"

namespace {

constexpr int kHonestTrips = 20;

void Ended(int report) { CHECK_THAT(::write(report, "e", 1) == 1); }

void EchoBlocking(int fd, int report) {
  std::vector<char> bytes(65536);
  for (;;) {
    const ssize_t n = ::recv(fd, bytes.data(), bytes.size(), 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    ssize_t sent = 0;
    while (sent < n) {
      const ssize_t m = ::send(fd, bytes.data() + sent,
                               static_cast<std::size_t>(n - sent), 0);
      if (m < 0 && errno == EINTR) continue;
      if (m <= 0) break;
      sent += m;
    }
    if (sent < n) break;
  }
  ::close(fd);
  Ended(report);
}

// -1: end.
int TakeOrder(int orders) {
  char what = 'x';
  int port = 0;
  if (::read(orders, &what, 1) != 1 || what != 'c') return -1;
  CHECK_THAT(::read(orders, &port, sizeof port) == sizeof port);
  return under::Connect(port);
}

void VictimThreads(int listener, int orders, int report) {
  for (;;) {
    pollfd both[2] = {{listener, POLLIN, 0}, {orders, POLLIN, 0}};
    ::poll(both, 2, -1);
    int fd = -1;
    if (both[0].revents != 0) {
      fd = ::accept(listener, nullptr, nullptr);
    } else if (both[1].revents != 0) {
      fd = TakeOrder(orders);
      if (fd < 0) return;
    }
    if (fd >= 0) std::thread(EchoBlocking, fd, report).detach();
  }
}

void VictimEpoll(int listener, int orders, int report) {
  const int set = ::epoll_create1(0);
  const auto add = [set](int fd) {
    epoll_event event{EPOLLIN, {.fd = fd}};
    CHECK_THAT(::epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
  };
  add(listener);
  add(orders);
  std::map<int, std::string> pending;
  std::vector<char> bytes(65536);
  for (;;) {
    epoll_event events[16];
    const int n = ::epoll_wait(set, events, 16, -1);
    for (int i = 0; i < n; ++i) {
      const int fd = events[i].data.fd;
      if (fd == listener || fd == orders) {
        const int got = fd == listener ? ::accept4(listener, nullptr, nullptr,
                                                   SOCK_NONBLOCK)
                                       : TakeOrder(orders);
        if (got < 0 && fd == orders) return;
        if (got < 0) continue;
        CHECK_THAT(::fcntl(got, F_SETFL, O_NONBLOCK) == 0);
        pending[got];
        add(got);
        continue;
      }
      std::string& left = pending[fd];
      bool over = false;
      if (left.empty()) {
        const ssize_t r = ::read(fd, bytes.data(), bytes.size());
        over = r == 0 || (r < 0 && errno != EAGAIN && errno != EINTR);
        if (r > 0) left.assign(bytes.data(), static_cast<std::size_t>(r));
      }
      if (!left.empty()) {
        const ssize_t w = ::write(fd, left.data(), left.size());
        over = w < 0 && errno != EAGAIN && errno != EINTR;
        if (w > 0) left.erase(0, static_cast<std::size_t>(w));
      }
      if (over) {
        pending.erase(fd);
        ::close(fd);
        Ended(report);
        continue;
      }
      epoll_event event{left.empty() ? EPOLLIN : EPOLLOUT, {.fd = fd}};
      CHECK_THAT(::epoll_ctl(set, EPOLL_CTL_MOD, fd, &event) == 0);
    }
  }
}

void Trips(int fd, std::uint64_t seed, std::uint64_t* offset) {
  for (int i = 0; i < kHonestTrips; ++i) {
    std::uint8_t bytes[3000];
    const std::size_t length = i % 4 == 0 ? sizeof bytes : 10;
    for (std::size_t k = 0; k < length; ++k) {
      bytes[k] = under::ByteAt(seed, *offset + k);
    }
    CHECK_THAT(::send(fd, bytes, length, 0) == static_cast<ssize_t>(length));
    CHECK_THAT(::recv(fd, bytes, length, MSG_WAITALL) ==
               static_cast<ssize_t>(length));
    for (std::size_t k = 0; k < length; ++k) {
      CHECK_THAT(bytes[k] == under::ByteAt(seed, *offset + k));
    }
    *offset += length;
  }
}

// An echo server, by threads or by epoll, that tells its port, and 'e' for each
// connection that has ended.  Orders: 'c' and a port: connect to it; else: end.
int Victim(const std::string& mode, int orders, int report) {
  int port;
  const int listener = under::Listen(&port);
  CHECK_THAT(::write(report, &port, sizeof port) == sizeof port);
  if (mode == "threads") {
    VictimThreads(listener, orders, report);
  } else {
    VictimEpoll(listener, orders, report);
  }
  return 0;
}

// The victim's other client, for whom nothing may change.  For each 'g' it
// makes round trips of one long connection and a new one, then says 'k'.
int Honest(int port, int orders, int report) {
  const int fd = under::Connect(port);
  std::uint64_t offset = 0;
  char order;
  for (std::uint64_t n = 1; ::read(orders, &order, 1) == 1 && order == 'g';
       ++n) {
    Trips(fd, 0, &offset);
    const int other = under::Connect(port);
    std::uint64_t begin = 0;
    Trips(other, n, &begin);
    ::close(other);
    CHECK_THAT(::write(report, "k", 1) == 1);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  ::signal(SIGPIPE, SIG_IGN);
  if (argc != 5) return 2;
  const std::string what = argv[1];
  const int orders = std::atoi(argv[3]);
  const int report = std::atoi(argv[4]);
  if (what == "victim") return Victim(argv[2], orders, report);
  if (what == "honest") return Honest(std::atoi(argv[2]), orders, report);
  return 2;
}
