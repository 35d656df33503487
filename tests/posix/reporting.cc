// An error that the kernel tells once, where a call has moved bytes before it:
// the call tells of the bytes, and the next one of the error.  Not of an end.
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "tests/posix/pair.h"
#include "tests/posix/state.h"

namespace {

using namespace pair;

void AwaitReset(int fd) {
  tcp_info info{};
  do {
    socklen_t length = sizeof info;
    CHECK_THAT(::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) == 0);
    if (info.tcpi_state != TCP_CLOSE) ::usleep(100);
  } while (info.tcpi_state != TCP_CLOSE);
}

void AwaitUnread(int fd, int bytes) {
  for (int there = -1; there != bytes; ::usleep(100)) {
    CHECK_THAT(::ioctl(fd, FIONREAD, &there) == 0);
  }
}

// Back to TCP, where nobody reads it.
void Fork() {
  const pid_t child = ::fork();
  CHECK_THAT(child >= 0);
  if (child == 0) ::_exit(0);
  CHECK_THAT(::waitpid(child, nullptr, 0) == child);
}

void LogBehind(int fd) {
  char text[16];
  Result("next", ::recv(fd, text, sizeof text, 0));
  Result("and then", ::recv(fd, text, sizeof text, 0));
  ::close(fd);
}

// `then`: by another thread, when the reader has all that has come and waits
// for more.
struct Reader {
  Reader(const char* name, std::function<void(int)> then)
      : one(
            name,
            [then](int fd) {
              std::thread reader([fd] {
                char text[16];
                Result("all", ::recv(fd, text, sizeof text, MSG_WAITALL));
              });
              Barrier();
              AwaitUnread(fd, 0);
              then(fd);
              Barrier();
              reader.join();
              LogBehind(fd);
            },
            [](int fd) {
              SendAll(fd, "bytes", 5);
              Barrier();
              Barrier();
              ResetByClose(fd);
            }) {}
  const Case one;
};

Reader waits("reset_behind_a_part", [](int) {});
// What it has had came over the lane, and the rest will by TCP.
Reader goes_on("reset_behind_a_part_by_tcp", [](int) { Fork(); });

// The reset is there before the call is made.
Case all_there(
    "reset_behind_all_there",
    [](int fd) {
      Barrier();
      AwaitReset(fd);
      char text[16];
      Result("all", ::recv(fd, text, sizeof text, MSG_WAITALL));
      LogBehind(fd);
    },
    [](int fd) {
      SendAll(fd, "bytes", 5);
      ResetByClose(fd);
      Barrier();
    });

// Of a send that waits for room.
struct Writer {
  Writer(const char* name, std::function<void(int)> then)
      : one(
            name,
            [](int fd) {
              // (It has begun.)
              char byte;
              Result("first", ::recv(fd, &byte, 1, 0));
              Barrier();
              Barrier();
              ResetByClose(fd);
              Barrier();
            },
            [then](int fd) {
              std::thread writer([fd] {
                // (More than TCP's buffers at both ends.)
                const std::vector<char> much(
                    static_cast<std::size_t>(std::max(16, Scale(64))) << 20,
                    'x');
                const ssize_t n =
                    ::send(fd, much.data(), much.size(), MSG_NOSIGNAL);
                Log("a part: %d",
                    n > 0 && n < static_cast<ssize_t>(much.size()));
              });
              Barrier();
              then(fd);
              Barrier();
              writer.join();
              Barrier();
              Result("send", ::send(fd, "x", 1, MSG_NOSIGNAL));
              Result("send", ::send(fd, "x", 1, MSG_NOSIGNAL));
              ::close(fd);
            }) {}
  const Case one;
};

Writer fills("reset_amid_a_send", [](int) {});
Writer leaves("reset_amid_a_send_by_tcp", [](int) { Fork(); });

}  // namespace
