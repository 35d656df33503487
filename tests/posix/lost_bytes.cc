// What no program can be told of: bytes that were read ahead from a peer that
// is dead, when a program that rcsock does not follow takes the connection
// over. Prints how many of them cat finds.
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>

#include "tests/posix/pair.h"

namespace {

using namespace pair;

constexpr std::size_t kPiece = 16;
constexpr std::size_t kPieces = 80;  // that a ring takes at once

void Say(int fd) {
  char text[kPiece];
  RecvAll(fd, text, 1);
  for (std::size_t i = 0; i < kPieces; ++i) {
    Pattern(1, i * kPiece, text, kPiece);
    SendAll(fd, text, kPiece);
    if (i < 30) ::poll(nullptr, 0, 1);
  }
  // (At exit it would send again what has not been read.)
  ::kill(::getpid(), SIGKILL);
}

void Take(int fd, bool vfork) {
  SendAll(fd, "x", 1);
  int there = 0;
  while (there < static_cast<int>(kPiece * kPieces)) {
    CHECK_THAT(::ioctl(fd, FIONREAD, &there) == 0);
    ::poll(nullptr, 0, 1);
  }
  pollfd one{fd, POLLRDHUP, 0};
  CHECK_THAT(::poll(&one, 1, 10'000) == 1);
  int out[2];
  CHECK_THAT(::pipe(out) == 0);
  const pid_t child = vfork ? ::vfork() : ::fork();
  if (child == 0) {
    ::dup2(fd, 0);
    ::dup2(out[1], 1);
    ::close(out[0]);
    ::close(fd);
    char* const nothing[] = {nullptr};
    ::execle("/bin/cat", "cat", static_cast<char*>(nullptr), nothing);
    ::_exit(99);
  }
  ::close(out[1]);
  ::close(fd);
  std::size_t found = 0;
  char text[256];
  for (ssize_t n; (n = ::read(out[0], text, sizeof text)) > 0;) {
    found += static_cast<std::size_t>(n);
  }
  CHECK_THAT(::waitpid(child, nullptr, 0) == child);
  Log("found %zu", found);
}

Case forked("lost_fork", Say, [](int fd) { Take(fd, false); }, {.warm = false});
Case vforked("lost_vfork", Say, [](int fd) { Take(fd, true); },
             {.warm = false});

}  // namespace
