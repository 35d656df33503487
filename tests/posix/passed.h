#ifndef RCSOCK_TESTS_POSIX_PASSED_H_
#define RCSOCK_TESTS_POSIX_PASSED_H_

#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "tests/posix/pair.h"

// Passing connections from process to process by SCM_RIGHTS.
namespace pair {

inline constexpr Options kByItself = {.warm = false, .connect = false};

// A message of one byte that may bring descriptors.
struct Message {
  explicit Message(std::size_t room = CMSG_SPACE(2 * sizeof(int))) {
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = room;
  }
  void Put(const std::vector<int>& fds) {
    const std::size_t size = fds.size() * sizeof(int);
    header.msg_controllen = CMSG_SPACE(size);
    cmsghdr* const first = CMSG_FIRSTHDR(&header);
    first->cmsg_level = SOL_SOCKET;
    first->cmsg_type = SCM_RIGHTS;
    first->cmsg_len = CMSG_LEN(size);
    std::memcpy(CMSG_DATA(first), fds.data(), size);
  }
  int Got(int which = 0) {
    const cmsghdr* const first = CMSG_FIRSTHDR(&header);
    if (first == nullptr || first->cmsg_type != SCM_RIGHTS) return -1;
    int fd;
    std::memcpy(&fd, CMSG_DATA(first) + which * sizeof fd, sizeof fd);
    return fd;
  }

  char byte = 'f';
  iovec part{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(2 * sizeof(int))] = {};
  msghdr header{};
};

inline void Pass(int to, int fd) {
  Message message;
  message.Put({fd});
  CHECK_THAT(::sendmsg(to, &message.header, 0) == 1);
}

inline int Take(int from, int flags = 0) {
  Message message;
  CHECK_THAT(::recvmsg(from, &message.header, flags) == 1);
  const int fd = message.Got();
  CHECK_THAT(fd >= 0);
  return fd;
}

struct Channel {
  explicit Channel(int type = SOCK_STREAM) {
    CHECK_THAT(::socketpair(AF_UNIX, type, 0, ends) == 0);
  }
  ~Channel() {
    for (const int end : ends) ::close(end);
  }
  void Say() const { CHECK_THAT(::write(ends[0], "s", 1) == 1); }
  void Await() const {
    char byte;
    CHECK_THAT(::read(ends[1], &byte, 1) == 1);
  }
  int ends[2];
};

// A process of its own, made before there is a connection that it could have
// by fork.
template <class Body>
pid_t Worker(Body&& body) {
  const pid_t child = ::fork();
  CHECK_THAT(child >= 0);
  if (child == 0) {
    body();
    ::_exit(0);
  }
  return child;
}

inline void Serve(int fd) {
  WarmAs(fd, false);
  LogDrain(fd);
  ::close(fd);
}

// Where another process may still use the connection: no lane comes, however
// long it is used.
inline constexpr int kManyTurns = 3000;

inline void AskByTcp(int fd) {
  Call(fd, kManyTurns);
  const std::uint64_t before = TcpBytes(fd);
  Call(fd, 20);
  Log("by TCP: %d", TcpBytes(fd) != before);
}

inline void AnswerByTcp(int fd) { Echo(fd, kManyTurns + 20); }

inline void AskTwiceByTcp(int) {
  const int fd = Connect(HearPort());
  AskByTcp(fd);
  AskByTcp(fd);
  ::close(fd);
}

inline void AskByTcpThenWarm(int) {
  const int fd = Connect(HearPort());
  AskByTcp(fd);
  WarmAs(fd, true);
  ::close(fd);
}

inline void Ask(int) {
  const int fd = Connect(HearPort());
  WarmAs(fd, true);
  ::close(fd);
}

}  // namespace pair

#endif  // RCSOCK_TESTS_POSIX_PASSED_H_
