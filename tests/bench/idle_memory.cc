// usage: idle_memory [--connections N] [--bytes N] [--idle S] [--most MIB]
//
// What idle connections cost: two processes, N connections, each of which has
// carried a megabyte each way and is then idle.  Prints the memory of both
// processes together, what they share counted once, and what the first answers
// take when traffic returns.  Plain, or under the preload.  With --most it
// fails where the idle connections take more.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

namespace {

constexpr std::size_t kPiece = 16'384;

[[noreturn]] void Die(const char* what) {
  std::perror(what);
  std::_Exit(1);
}

void MoveAll(int fd, std::size_t bytes, bool out) {
  char piece[kPiece] = {};
  while (bytes > 0) {
    const std::size_t length = std::min(bytes, kPiece);
    const ssize_t n = out ? ::send(fd, piece, length, MSG_NOSIGNAL)
                          : ::recv(fd, piece, length, 0);
    if (n <= 0) Die(out ? "send" : "recv");
    bytes -= static_cast<std::size_t>(n);
  }
}

int Ready(int fd) {
  if (fd < 0) Die("connection");
  const int one = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  return fd;
}

// Answers each byte with one, until the first connection ends.
void Echo(const std::vector<int>& all) {
  const int set = ::epoll_create1(EPOLL_CLOEXEC);
  for (const int fd : all) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = fd;
    if (::epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) != 0) Die("epoll_ctl");
  }
  for (;;) {
    epoll_event event;
    if (::epoll_wait(set, &event, 1, -1) != 1) continue;
    char byte;
    if (::recv(event.data.fd, &byte, 1, 0) != 1) return;
    MoveAll(event.data.fd, 1, true);
  }
}

void Serve(int listener, int connections, std::size_t bytes) {
  std::vector<int> all;
  for (int i = 0; i < connections; ++i) {
    all.push_back(Ready(::accept(listener, nullptr, nullptr)));
    MoveAll(all.back(), bytes, false);
    MoveAll(all.back(), bytes, true);
  }
  Echo(all);
}

// Memory of the process in KiB, its part of what others map too.
long Memory(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/smaps_rollup");
  std::string word;
  while (file >> word) {
    long kib = 0;
    if (word == "Pss:" && file >> kib) return kib;
  }
  Die("smaps_rollup");
}

double Median(std::vector<double> all) {
  std::sort(all.begin(), all.end());
  return all[all.size() / 2];
}

// One byte there and back over each; the median in microseconds.
double RoundTrip(const std::vector<int>& all) {
  std::vector<double> us;
  for (const int fd : all) {
    const auto begin = std::chrono::steady_clock::now();
    MoveAll(fd, 1, true);
    MoveAll(fd, 1, false);
    us.push_back(std::chrono::duration<double, std::micro>(
                     std::chrono::steady_clock::now() - begin)
                     .count());
  }
  return Median(std::move(us));
}

int Listen(sockaddr_in* address) {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  socklen_t length = sizeof *address;
  address->sin_family = AF_INET;
  address->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (fd < 0 || ::bind(fd, reinterpret_cast<sockaddr*>(address), length) != 0 ||
      ::listen(fd, 128) != 0 ||
      ::getsockname(fd, reinterpret_cast<sockaddr*>(address), &length) != 0) {
    Die("listen");
  }
  return fd;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"What idle connections cost"};
  int connections = 10'000;
  std::size_t bytes = 1 << 20;
  double idle = 10;
  double most = 0;
  app.add_option("--connections", connections)->check(CLI::PositiveNumber);
  app.add_option("--bytes", bytes, "that each has carried each way");
  app.add_option("--idle", idle, "seconds");
  app.add_option("--most", most, "MiB of both processes together");
  CLI11_PARSE(app, argc, argv);

  const auto numbers = static_cast<rlim_t>(connections + 1'000);
  rlimit limit{numbers, numbers};
  if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) Die("setrlimit");
  sockaddr_in address{};
  const int listener = Listen(&address);
  const pid_t server = ::fork();
  if (server < 0) Die("fork");
  if (server == 0) {
    Serve(listener, connections, bytes);
    return 0;
  }
  ::close(listener);
  std::vector<int> all;
  for (int i = 0; i < connections; ++i) {
    all.push_back(Ready(::socket(AF_INET, SOCK_STREAM, 0)));
    if (::connect(all.back(), reinterpret_cast<sockaddr*>(&address),
                  sizeof address) != 0) {
      Die("connect");
    }
    MoveAll(all.back(), bytes, true);
    MoveAll(all.back(), bytes, false);
  }
  const auto both = [server] {
    return static_cast<double>(Memory(::getpid()) + Memory(server)) / 1024;
  };
  const double busy = both();
  ::usleep(static_cast<useconds_t>(idle * 1e6));
  const double rest = both();
  const double first = RoundTrip(all);
  const double second = RoundTrip(all);
  std::printf(
      "%d connections: %.0f MiB at first, %.0f MiB idle, %.0f MiB after "
      "traffic; a round trip %.1f us at first, %.1f us then\n",
      connections, busy, rest, both(), first, second);
  for (const int fd : all) ::close(fd);
  int status = 1;
  ::waitpid(server, &status, 0);
  if (most > 0 && rest > most) {
    std::printf("more than %.0f MiB\n", most);
    return 1;
  }
  return status == 0 ? 0 : 1;
}
