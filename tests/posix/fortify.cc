// The checked names: the compiler knows how large the buffers are, and not how
// much is asked for.
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "tests/posix/pair.h"

namespace {

using namespace pair;

// Not known when this is compiled.
std::size_t Length() {
  volatile std::size_t length = 16;
  return length;
}

Case checked(
    "checked_calls",
    [](int fd) {
      for (int i = 0; i < 400; ++i) {
        char text[16];
        RecvAll(fd, text, 16);
        SendAll(fd, text, 16);
      }
      char line[32] = {};
      RecvAll(fd, line, 8);
      Log("%s", line);
    },
    [](int fd) {
      char text[16];
      char back[16];
      for (int i = 0; i < 400; ++i) {
        std::memset(text, i & 0xff, sizeof text);
        SendAll(fd, text, 16);
        pollfd one[1] = {{fd, POLLIN, 0}};
        const std::size_t n = Length();
        CHECK_THAT(::poll(one, n / 16, -1) == 1);
        const std::size_t half = n / 2;
        ssize_t got = 0;
        switch (i % 3) {
          case 0:
            got = ::read(fd, back, half);
            break;
          case 1:
            got = ::recv(fd, back, half, 0);
            break;
          default:
            got = ::recvfrom(fd, back, half, 0, nullptr, nullptr);
        }
        CHECK_THAT(got > 0);
        RecvAll(fd, back + got, 16 - static_cast<std::size_t>(got));
        CHECK_THAT(std::memcmp(text, back, 16) == 0);
      }
      Result("dprintf", ::dprintf(fd, "%s %s\n", "abc", "def"));
    });

}  // namespace
