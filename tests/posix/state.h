#ifndef RCSOCK_TESTS_POSIX_STATE_H_
#define RCSOCK_TESTS_POSIX_STATE_H_

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/posix/pair.h"

// The state of a connection, as TCP_INFO has it, and how it ends at once.
namespace pair {

inline const char* StateName(int state) {
  static const char* const names[] = {"none",      "ESTABLISHED", "SYN_SENT",
                                      "SYN_RECV",  "FIN_WAIT1",   "FIN_WAIT2",
                                      "TIME_WAIT", "CLOSE",       "CLOSE_WAIT",
                                      "LAST_ACK",  "LISTEN",      "CLOSING"};
  return state < 12 ? names[state] : "?";
}

inline int State(int fd) {
  tcp_info info{};
  socklen_t length = sizeof info;
  CHECK_THAT(::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) == 0);
  return info.tcpi_state;
}

// A state that comes by itself, once it is there.
inline void AwaitState(int fd, int wanted) {
  int state = State(fd);
  for (int i = 0; i < 3000 && state != wanted; ++i) {
    ::poll(nullptr, 0, 1);
    state = State(fd);
  }
  Log("%s", StateName(state));
}

inline void ResetByClose(int fd) {
  const linger now{1, 0};
  CHECK_THAT(::setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now) == 0);
  CHECK_THAT(::close(fd) == 0);
}

}  // namespace pair

#endif  // RCSOCK_TESTS_POSIX_STATE_H_
