// The reader of overtaken, which runs under the preload.
//
// usage: fin_overtakes_reader WAY REPORT
//
// It writes its port to the pipe REPORT, answers pings until one begins with
// 'g', reads to the end by WAY, and reports how many bytes came.

#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "tests/posix/fin_overtakes.h"
#include "tests/posix/under.h"

namespace {

using overtaken::kPing;
using overtaken::kSeed;

// Until there is something to read, by `way`.
void Await(int fd, const std::string& way, int set) {
  if (way == "poll") {
    pollfd one{fd, POLLIN, 0};
    CHECK_THAT(::poll(&one, 1, -1) == 1);
  } else if (set >= 0) {
    epoll_event event;
    CHECK_THAT(::epoll_wait(set, &event, 1, -1) == 1);
  }
}

int Reader(const std::string& way, int report) {
  int port;
  const int listener = under::Listen(&port);
  CHECK_THAT(::write(report, &port, sizeof port) == sizeof port);
  const int fd = under::Accept(listener);
  int set = -1;
  if (way.rfind("epoll", 0) == 0) {
    set = ::epoll_create1(0);
    epoll_event event{};
    event.events = way == "epoll_edge" ? EPOLLIN | EPOLLET : EPOLLIN;
    CHECK_THAT(::epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
  }
  char ping[kPing];
  do {
    CHECK_THAT(::recv(fd, ping, kPing, MSG_WAITALL) == kPing);
    CHECK_THAT(::send(fd, ping, kPing, 0) == kPing);
  } while (ping[0] != 'g');
  std::vector<std::uint8_t> bytes(64 * 1024);
  const bool asks = way == "poll" || set >= 0;
  std::uint64_t got = 0;
  for (;;) {
    Await(fd, way, set);
    ssize_t n;
    do {
      // Of what an edge has told of all is taken; else a part, to be told anew.
      const std::size_t most = way == "epoll_edge" ? bytes.size() : 1000;
      n = ::recv(fd, bytes.data(), most,
                 asks               ? MSG_DONTWAIT
                 : way == "waitall" ? MSG_WAITALL
                                    : 0);
      for (ssize_t i = 0; i < n; ++i) {
        CHECK_THAT(bytes[static_cast<std::size_t>(i)] ==
                   under::ByteAt(kSeed, got + static_cast<std::uint64_t>(i)));
      }
      if (n > 0) got += static_cast<std::uint64_t>(n);
    } while (n > 0 && way == "epoll_edge");
    if (n == 0) break;
    CHECK_THAT(n > 0 || (asks && errno == EAGAIN));
  }
  CHECK_THAT(::write(report, &got, sizeof got) == sizeof got);
  // The test ends it.
  for (;;) ::pause();
}

}  // namespace

int main(int argc, char** argv) {
  return argc == 3 ? Reader(argv[1], std::atoi(argv[2])) : 2;
}
