#ifndef RCSOCK_TESTS_POSIX_WAITING_H_
#define RCSOCK_TESTS_POSIX_WAITING_H_

#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "tests/posix/pair.h"

// Sets of epoll, and what a wait in one says.
namespace pair {

inline int NewSet() {
  const int set = ::epoll_create1(EPOLL_CLOEXEC);
  CHECK_THAT(set >= 0);
  return set;
}

inline int Ctl(int set, int op, int fd, std::uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.fd = fd;
  return ::epoll_ctl(set, op, fd, &event);
}

// Each connection has left TCP before it is looked at, and for shared memory.
inline bool OnLanesInMemory() {
  const char* warm = std::getenv("PAIR_WARM");
  const char* lanes = std::getenv("RCSOCK_LANES");
  return warm != nullptr && std::strcmp(warm, "lane") == 0 &&
         (lanes == nullptr || std::strcmp(lanes, "rdma") != 0);
}

// No lane has what this asks for.
inline void StayOnTcp(int fd) {
  for (const int least : {2, 1}) {
    CHECK_THAT(
        ::setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &least, sizeof least) == 0);
  }
}

// Long enough for what is on its way to arrive, to see that nothing does.
inline constexpr int kQuiet = 20;
inline constexpr int kLong = 5000;

// One event, or none: "in out", "-", within the time.
inline void LogWait(const char* what, int set, int timeout) {
  epoll_event event{};
  const int n = ::epoll_wait(set, &event, 1, timeout);
  if (n < 0) {
    Log("%s: %s", what, ErrorName(errno));
  } else if (n == 0) {
    Log("%s: nothing", what);
  } else {
    Log("%s: %x", what, event.events);
  }
}

// Nothing, to an edge-triggered set.  A stream that leaves TCP makes one edge
// more for what is there (docs/compatibility.md), which on a busy machine may
// be now: `moves` of them are no news.  One that is on its lane has none.
inline void LogNoEdge(const char* what, int set, int* moves) {
  const char* warm = std::getenv("PAIR_WARM");
  epoll_event event{};
  while (warm == nullptr && *moves > 0 &&
         ::epoll_wait(set, &event, 1, kQuiet) == 1) {
    --*moves;
  }
  LogWait(what, set, kQuiet);
}

// The kernel may tell of a FIN as input alone, to who looks between its taking
// its place in the queue and the mark of the end: asked again behind FIONREAD,
// which waits for the mark, it tells both.
inline bool OnlyFin(int fd, std::uint32_t events) {
  if ((events & (EPOLLIN | EPOLLRDHUP)) != EPOLLIN) return false;
  int bytes = 0;
  CHECK_THAT(::ioctl(fd, FIONREAD, &bytes) == 0);
  return bytes == 0;
}

// LogWait at the end of a stream.
inline void LogEnd(const char* what, int set, int fd) {
  epoll_event event{};
  CHECK_THAT(::epoll_wait(set, &event, 1, kLong) == 1);
  if (OnlyFin(fd, event.events)) {
    CHECK_THAT(::epoll_wait(set, &event, 1, 0) == 1);
  }
  Log("%s: %x", what, event.events);
}

// Edges end.  A few come at once: of the registration, and of each step of a
// stream that comes on its lane meanwhile.
inline void SkipEdges(int set) {
  epoll_event event{};
  for (int i = 0; i < 6; ++i) {
    if (::epoll_wait(set, &event, 1, 20) == 0) return;
  }
  Log("edges do not end");
}

}  // namespace pair

#endif  // RCSOCK_TESTS_POSIX_WAITING_H_
