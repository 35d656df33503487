#include "lib/api/rsocket/wait.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <climits>
#include <ctime>

#include "lib/include/rcsock/rcsock.h"

namespace rcsock::rsocket {

bool Nonblocking(int fd, int flags) {
  return (flags & MSG_DONTWAIT) != 0 ||
         (rcs_fcntl(fd, F_GETFL) & O_NONBLOCK) != 0;
}

std::int64_t NowMs() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000 + now.tv_nsec / 1'000'000;
}

void Nap() {
  const timespec brief{0, 1'000'000};
  ::nanosleep(&brief, nullptr);
}

bool WaitFor(int fd, short events, int timeout) {
  pollfd one{fd, events, 0};
  return rcs_poll(&one, 1, timeout) >= 0;
}

int Milliseconds(const timeval& time) {
  constexpr std::int64_t kMost = INT_MAX / 1000 - 1;
  if (time.tv_sec > kMost) return INT_MAX;
  return static_cast<int>(time.tv_sec * 1000 + (time.tv_usec + 999) / 1000);
}

bool WaitToRead(int fd) {
  char first;
  return rcs_recv(fd, &first, 1, MSG_PEEK) >= 0;
}

bool WaitToSend(int fd, short events) {
  timeval time{};
  socklen_t size = sizeof time;
  int limit = -1;
  if (rcs_getsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &time, &size) == 0 &&
      (time.tv_sec > 0 || time.tv_usec > 0)) {
    limit = Milliseconds(time);
  }
  pollfd one{fd, events, 0};
  const int n = rcs_poll(&one, 1, limit);
  if (n == 0) errno = EAGAIN;
  return n > 0;
}

bool Shake(const Shared& channel, int timeout) {
  const std::int64_t end = NowMs() + timeout;
  for (;;) {
    channel->Step();
    const Phase phase = channel->phase();
    if (phase == Phase::kPlain || phase == Phase::kFramed) return true;
    const std::int64_t left = timeout < 0 ? -1 : end - NowMs();
    if (timeout >= 0 && left <= 0) return true;
    if (channel->undecided()) Nap();
    if (!WaitFor(channel->fd(), phase == Phase::kConnecting ? POLLOUT : POLLIN,
                 static_cast<int>(left))) {
      return false;
    }
  }
}

}  // namespace rcsock::rsocket
